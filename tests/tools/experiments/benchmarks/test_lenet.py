"""tools/benchmark.py lenet: every way computes the same gradients, and the table names them all."""

import pytest
import torch
from experiments.benchmarks.lenet import LeNetBenchmark, Variants, benchmark_lenet, contestants


def test_every_variant_has_the_same_gradients():
    options = LeNetBenchmark(batch_size=6, particles=2)
    steps = contestants(options)
    assert len(steps) == 8
    variants = Variants(options)
    reference = variants.gradients(variants.loop, False)
    for variant in (variants.chosen, variants.grouped, variants.vectorised, variants.loop):
        for batched in (False, True):
            for mine, theirs in zip(variants.gradients(variant, batched), reference):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_the_table_names_every_way(tmp_path, capsys):
    benchmark_lenet(LeNetBenchmark(batch_size=2, particles=2, rounds=2, out=tmp_path / "lenet.md"))
    text = (tmp_path / "lenet.md").read_text()
    assert text.count("a pass a task") == text.count("one batched pass") == 4
    assert "| two grouped convolutions; a pass a task" in capsys.readouterr().out
    with pytest.raises(ValueError, match="rounds must be at least 2, got 1"):
        LeNetBenchmark(rounds=1)
