"""Settings for the whole suite."""

import warnings

import matplotlib
import pytest
import torch

from learned_samplers.learned.native.kernel import native_library

matplotlib.use("Agg")
# The tests' tensors are small: one thread is faster than two, and far faster where the cores are shared.
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _compiled_update():
    """Found or compiled once; on a machine without a compiler the suite runs without it, and its own tests skip."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        native_library()


@pytest.fixture(autouse=True)
def _seed():
    """Every test starts from the same seed; those that need another set it."""
    torch.manual_seed(0)
