"""One chain on two processes stays one, drift raises, and independent chains stay independent (gloo, on the CPU)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from learned_samplers.base import distributed

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")

# Each process has its own seed and its own data, and dropout uses its global generator.
_PREAMBLE = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from learned_samplers import HMC, SGHMC, SGLD
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)

def new_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 1))
    torch.manual_seed(rank)
    return model

def run(network, sampler, steps):
    for step in range(steps):
        x = torch.randn(4 + 3 * rank * (step % 2), 3)  # one process has other batch sizes
        sampler.zero_grad()
        network(x).square().mean().backward()
        sampler.step()

def everywhere():
    own = torch.cat([p.detach().flatten() for p in model.parameters()])
    both = [torch.empty_like(own) for _ in range(2)]
    dist.all_gather(both, own)
    return both

def refused(error, call):
    try:
        call()
    except error as caught:
        return str(caught)
    raise AssertionError("nothing was raised")
"""

_SCRIPTS = {
    "replicas_stay_equal_and_resume": """
network = DistributedDataParallel(model)
sampler = SGHMC(model.parameters(), 0.01, 100)
run(network, sampler, 30)
a, b = everywhere()
assert torch.equal(a, b), (a - b).abs().max()
assert sampler.replicated
saved = {"model": model.state_dict(), "sampler": sampler.state_dict()}
torch.save(saved, f"{folder}/{rank}.pt")
draws = sampler.noise_like(torch.zeros(3))
resumed = SGHMC(model.parameters(), 0.01, 100)
resumed.load_state_dict(torch.load(f"{folder}/{rank}.pt", weights_only=True)["sampler"])
assert torch.equal(resumed.noise_like(torch.zeros(3)), draws)
run(network, resumed, 5)
a, b = everywhere()
assert torch.equal(a, b)
""",
    "without_it_they_would_drift": """
network = DistributedDataParallel(model)
run(network, SGLD(model.parameters(), 0.01, 100, distributed="independent"), 3)
a, b = everywhere()
assert not torch.equal(a, b)
""",
    "a_generator_of_the_user_is_that_of_process_0": """
network = DistributedDataParallel(model)
sampler = SGLD(model.parameters(), 0.01, 100, generator=torch.Generator().manual_seed(rank))
run(network, sampler, 3)
a, b = everywhere()
assert torch.equal(a, b)
""",
    "chains_without_ddp_are_independent": """
sampler = SGLD(model.parameters(), 0.01, 100)
run(model, sampler, 3)
assert sampler.replicated is False
a, b = everywhere()
assert not torch.equal(a, b)
""",
    "replicated_by_hand": """
sampler = SGLD(model.parameters(), 0.01, 100, distributed="replicated")
for _ in range(3):
    model(torch.randn(4, 3)).sum().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    sampler.step()
a, b = everywhere()
assert torch.equal(a, b)
""",
    "sharded_parameters_are_refused": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
for sampler in (SGLD, SGHMC):
    assert "'0.weight' is a DTensor" in refused(TypeError, lambda: sampler(model.named_parameters(), 0.1, 100))
""",
    "hmc_reads_the_loss_and_refuses": """
network = DistributedDataParallel(model)
sampler = HMC(model.parameters(), 0.01, 100)
assert "reads the loss" in refused(ValueError, lambda: sampler.step(lambda: network(torch.ones(1, 3)).sum()))
""",
    "drift_raises_everywhere": """
from learned_samplers.base import distributed
distributed.CHECK_EVERY = 5
network = DistributedDataParallel(model)
sampler = SGLD(model.parameters(), 0.01, 100)
run(network, sampler, 7)
if rank:
    with torch.no_grad():
        model[0].bias += 0.1
before = [p.detach().clone() for p in model.parameters()]
message = refused(RuntimeError, lambda: run(network, sampler, 10))
assert "drifted apart" in message and "after 10 steps" in message, message
other = DistributedDataParallel(nn.Linear(2, 2))
with torch.no_grad():
    other.module.weight += rank
fresh = SGLD(other.parameters(), 0.01, 100)
other(torch.zeros(1, 2)).sum().backward()
assert "before the first step" in refused(RuntimeError, fresh.step)
""",
}


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """The error of each scenario by its name, "" for none: all in one pair of processes, which is slow to start."""
    folder = tmp_path_factory.mktemp("two")
    code = _PREAMBLE + "import traceback\n"
    for name, script in _SCRIPTS.items():
        code += f"model, error = new_model(), ''\ntry:\n{textwrap.indent(script, '    ')}"
        code += "\nexcept BaseException:\n    error = traceback.format_exc()\n"
        code += f"open(f'{{folder}}/{name}.{{rank}}.txt', 'w').write(error)\n"
    code += "dist.destroy_process_group()\n"
    command = [sys.executable, "-W", "ignore", "-c", code]
    processes = [
        subprocess.Popen([*command, str(rank), str(folder)], cwd=Path(__file__).parents[3]) for rank in range(2)
    ]
    try:
        for process in processes:
            process.wait(timeout=120)
    finally:
        for process in processes:
            process.kill()
    files = {name: [folder / f"{name}.{rank}.txt" for rank in range(2)] for name in _SCRIPTS}
    return {n: "".join(f.read_text() if f.exists() else "it never ended\n" for f in fs) for n, fs in files.items()}


@pytest.mark.parametrize("name", _SCRIPTS)
def test_two_processes(name, two_processes):
    assert not two_processes[name], two_processes[name]


def test_replicas_are_recognised():
    p = torch.zeros(2, requires_grad=True)
    assert not distributed.in_process_group()
    assert not distributed.are_replicas("auto", [p])
    assert distributed.are_replicas("replicated", [p])
    assert not distributed.are_replicas("independent", [p])
