"""Settings for the whole suite."""

import matplotlib
import pytest
import torch

matplotlib.use("Agg")
# The tests' tensors are small: one thread is faster than two, and far faster where the cores are shared.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    """Every test starts from the same seed; those that need another set it."""
    torch.manual_seed(0)
