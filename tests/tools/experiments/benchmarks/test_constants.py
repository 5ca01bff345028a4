"""The constants of docs/scaling.md: the bytes are those that the samplers' states have by their definition."""

import pytest
import torch
from experiments.benchmarks import constants


@pytest.mark.parametrize(
    ("name", "float32", "bfloat16"),
    [
        ("SGLD", 0, 4),
        ("SGHMC", 4, 8),
        ("ScaleAdaptedSGHMC", 8, 12),
        ('L2E, `network="l2e"`', 36, 40),
        ("torch.optim.Adam", 8, 4),
    ],
)
def test_bytes_of_state(name, float32, bfloat16):
    make = constants.OPTIMIZERS[name]
    # Adam keeps its step count, 4 bytes, as a tensor too.
    assert constants.bytes_per_weight(make, torch.float32, 20_000) == pytest.approx(float32, abs=1e-3)
    assert constants.bytes_per_weight(make, torch.bfloat16, 20_000) == pytest.approx(bfloat16, abs=1e-3)


def test_bytes_of_a_stored_sample_and_of_a_message():
    assert constants.stored_bytes_per_weight(None, 100_000) == pytest.approx(4, rel=0.01)
    assert constants.stored_bytes_per_weight(torch.bfloat16, 100_000) == pytest.approx(2, rel=0.01)
    assert constants.message_bytes(1001) - constants.message_bytes(1) == pytest.approx(8000, abs=20)


def test_the_command(tmp_path):
    threads = torch.get_num_threads()
    out = tmp_path / "table.md"
    constants.benchmark_constants(constants.ConstantsBenchmark(weights=10_000, steps=2, out=out))
    torch.set_num_threads(threads)
    assert '| L2E, `network="l2e"` | 36.0 | 40.0 |' in out.read_text()
    with pytest.raises(ValueError, match="weights must be at least 1, got 0"):
        constants.ConstantsBenchmark(weights=0)
