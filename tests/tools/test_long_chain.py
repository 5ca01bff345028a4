"""tools/long_chain.py: a chain of Meta-SGMCMC on MNIST."""

import long_chain
import pytest
import torch
from experiments.meta_training import long_chain as runs

from meta_tasks import datasets


@pytest.fixture(autouse=True)
def _restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def mnist():
    try:
        return datasets.load("mnist", download=False)
    except FileNotFoundError as error:
        pytest.skip(f"needs MNIST's files: {error}")


def test_a_chain_on_mnist_neither_drifts_nor_grows(mnist):
    """Two epochs of the shipped sampler (the long run is a command in docs/meta_sgmcmc.md)."""
    options = runs.Options(epochs=2, block=1)
    first, second = runs.chain(options, mnist)
    assert (first.step, second.step) == (108, 216)
    assert second.loss < first.loss < 2.3
    assert second.accuracy > 0.85
    assert 0.7 < second.kinetic < 2.5
    assert not second.memory - first.memory > 30  # it is NaN where the system does not tell it
    text = runs.table([first, second]).splitlines()
    assert len(text) == 4
    assert f"{second.validation_nll:.4f}" in text[-1]


def test_a_chain_that_runs_away_is_stopped(mnist):
    few = datasets.keep_labels(mnist, (0, 1))
    with pytest.raises(FloatingPointError, match=r"not (be )?finite"):
        runs.chain(runs.Options(epochs=3, lr=1e4), few)


@pytest.mark.parametrize("name", ["block", "epochs", "batch_size"])
def test_wrong_options_are_explained(tmp_path, capsys, name):
    with pytest.raises(SystemExit) as caught:
        long_chain.main([f"--{name}", "0", "--out", str(tmp_path / "out")])
    said = " ".join(f"{caught.value.code} {capsys.readouterr().err}".replace("│", " ").split())
    assert f"{name} must be at least 1, got 0" in said
    assert not list(tmp_path.iterdir())


@pytest.fixture
def few(monkeypatch):
    """Twelve images in the place of MNIST's, so that minibatches of 5 make 2 steps an epoch."""
    stream = torch.Generator().manual_seed(0)
    x, y = torch.rand(12, 1, 28, 28, generator=stream), torch.arange(12) % 10
    data = datasets.ImageData("mnist", 10, x, y, x, y, x, y)
    monkeypatch.setattr(long_chain.Settings, "load_data", lambda *_: data)
    return data


def rows(text):
    return [line.split()[1] for line in text.splitlines()[2:]]


@pytest.mark.parametrize(("epochs", "block", "steps"), [(1, 2, ["2"]), (3, 2, ["4", "6"]), (4, 2, ["4", "8"])])
def test_the_last_block_may_be_shorter(few, tmp_path, epochs, block, steps):
    out = tmp_path / "new" / "folder" / "table.md"
    long_chain.main(["--epochs", str(epochs), "--block", str(block), "--batch-size", "5", "--out", str(out)])
    assert rows(out.read_text()) == steps


def test_means_of_a_shorter_block_are_over_its_own_steps(few):
    """A chain in one block has the mean of those of its parts."""
    whole = runs.chain(runs.Options(epochs=3, block=3, batch_size=5), few)[0]
    first, last = runs.chain(runs.Options(epochs=3, block=2, batch_size=5), few)
    assert (2 * first.loss + last.loss) / 3 == pytest.approx(whole.loss)
    assert (2 * first.kinetic + last.kinetic) / 3 == pytest.approx(whole.kinetic)


def test_minibatches_larger_than_the_data_are_refused(few):
    with pytest.raises(SystemExit, match="error: batch_size=13 exceeds the 12 training images"):
        long_chain.main(["--batch-size", "13"])


def test_what_cannot_be_written_is_said_before_the_chain(few, tmp_path, monkeypatch):
    monkeypatch.setattr(long_chain, "chain", lambda *_: pytest.fail("the chain has run"))
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"error: .*file"):
        long_chain.main(["--out", str(tmp_path / "file" / "table.md")])
    with pytest.raises(ValueError, match="out must name a file, got the folder"):
        runs.Options(out=tmp_path)
