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


@pytest.mark.parametrize("name", ["block", "epochs"])
def test_wrong_options_are_explained(tmp_path, capsys, name):
    with pytest.raises(SystemExit) as caught:
        long_chain.main([f"--{name}", "0", "--out", str(tmp_path / "out")])
    said = " ".join(f"{caught.value.code} {capsys.readouterr().err}".replace("│", " ").split())
    assert f"{name} must be at least 1, got 0" in said
    assert not list(tmp_path.iterdir())
