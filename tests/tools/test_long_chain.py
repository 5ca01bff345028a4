"""tools/long_chain.py and tools/contours.py: a chain of Meta-SGMCMC on MNIST, and the figure of its networks."""

import contours
import long_chain
import pytest
import torch

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
    options = long_chain.Options(epochs=2, block=1)
    first, second = long_chain.chain(options, mnist)
    assert (first.step, second.step) == (108, 216)
    assert second.loss < first.loss < 2.3
    assert second.accuracy > 0.85
    assert 0.7 < second.kinetic < 2.5
    assert not second.memory - first.memory > 30  # it is NaN where the system does not tell it
    text = long_chain.table([first, second]).splitlines()
    assert len(text) == 4
    assert f"{second.validation_nll:.4f}" in text[-1]


def test_a_chain_that_runs_away_is_stopped(mnist):
    few = datasets.keep_labels(mnist, (0, 1))
    with pytest.raises(FloatingPointError, match="not finite"):
        long_chain.chain(long_chain.Options(epochs=3, lr=1e4), few)


@pytest.mark.parametrize(
    ("main", "arguments", "message"),
    [
        (long_chain.main, ["--block", "0"], "block must be at least 1, got 0"),
        (long_chain.main, ["--epochs", "0"], "epochs must be at least 1, got 0"),
        (contours.main, ["meta-sgmcmc-toy", "--energy", "0"], "energy must be positive, got 0.0"),
        (contours.main, ["no-such-weights"], "no-such-weights"),
        (contours.main, ["l2e"], "is of L2E, not of MetaSGMCMC"),
    ],
)
def test_wrong_options_are_explained(tmp_path, capsys, main, arguments, message):
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "--out", str(tmp_path / "out")])
    said = " ".join(f"{caught.value.code} {capsys.readouterr().err}".replace("│", " ").split())
    assert message in said
    assert not list(tmp_path.iterdir())


def test_the_contours_are_drawn(tmp_path, learned_weights, capsys):
    out = tmp_path / "c.png"
    contours.main([learned_weights["meta_sgmcmc_network"], "--energy", "2", "--gradient", "1", "--out", str(out)])
    assert out.read_bytes().startswith(b"\x89PNG")
    assert str(out) in capsys.readouterr().out
