"""Independent chains of `sample.py`: one after the other and over two processes of torchrun, the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sample
import torch
from experiments.harness.runs.networks import build_network
from experiments.harness.runs.settings import Settings
from safetensors.torch import load_file

from learned_samplers import PosteriorSamples

ROOT = Path(__file__).parents[4]
SMALL = [
    *("--chains", "2", "--seed", "3", "--sampler", "SGHMC", "SGD", "--epochs", "4", "--limit", "200"),
    *("--channels", "4", "--depth", "1", "--num-samples", "8"),
]


@pytest.fixture(scope="module")
def one_after_the_other(tmp_path_factory):
    out = tmp_path_factory.mktemp("chains")
    threads = torch.get_num_threads()
    sample.main([*SMALL, "--out", str(out)])
    torch.set_num_threads(threads)
    return out


def files(out):
    return sorted(str(path.relative_to(out)) for path in out.glob("chain_*/samples/*.safetensors"))


def test_each_chain_has_its_own_seed_and_folder(one_after_the_other):
    out = one_after_the_other
    assert files(out) == [
        *("chain_0/samples/SGD_lr0.05_seed3.safetensors", "chain_0/samples/SGHMC_lr0.05_seed3.safetensors"),
        *("chain_1/samples/SGD_lr0.05_seed4.safetensors", "chain_1/samples/SGHMC_lr0.05_seed4.safetensors"),
    ]
    first, second = (load_file(out / name) for name in files(out)[1::2])
    name = next(name for name in first if name.endswith("weight"))
    assert not torch.equal(first[name], second[name])
    table = (out / "table.md").read_text()
    (row,) = (line for line in table.splitlines() if line.startswith("| SGHMC  |      2"))
    assert row.count("95 % below") == 2, "R̂ of predictions and of weights"


def test_the_average_is_that_of_all_chains(one_after_the_other):
    out = one_after_the_other
    runs = json.loads((out / "results.json").read_text())["methods"]["SGHMC"]["runs"]
    assert [run["num_samples"] for run in runs] == [16]
    predicted = load_file(out / "predictions" / "SGHMC_lr0.05_2_chains_seed3.safetensors")["test"]
    each = [load_file(p)["test"] for p in sorted(out.glob("chain_*/predictions/SGHMC*"))]
    torch.testing.assert_close(predicted, sum(each) / 2)
    settings = Settings(channels=4, depth=1)
    network = build_network(settings, settings.load_data(None))
    merged = PosteriorSamples.merge([out / name for name in files(out)[1::2]], network)
    assert merged.chains == [0] * 8 + [1] * 8


def test_torchrun_gives_the_same_chains(one_after_the_other, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "tools/sample.py", *SMALL, "--out", str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("done in") == 1, "the first process alone reports"
    assert files(tmp_path) == files(one_after_the_other)
    for name in files(tmp_path):
        ours, theirs = load_file(tmp_path / name), load_file(one_after_the_other / name)
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs), name

    def rows(out):
        return [line for line in (out / "table.md").read_text().splitlines() if "95 %" in line]

    assert rows(tmp_path) == rows(one_after_the_other) != []
