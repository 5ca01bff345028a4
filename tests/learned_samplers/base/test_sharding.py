"""Chains whose parameters `fully_shard` spreads over two processes (gloo, on the CPU)."""

import pytest
import torch

from tests.two_processes import outcomes

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed"),
    # What fully_shard calls of the CPU's streams, which torch 2.6 does not have: on GPUs it does.
    pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason="this torch cannot shard on CPUs"),
]

_PREAMBLE = """
import copy
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from learned_samplers import L2E, SGHMC, SGLD, AdaptedSGHMC, EntropyMCMC, PosteriorSamples, table
from learned_samplers.learned.network import build_network
from tests.harness import SAMPLERS
from tests.harness import small_network as plain  # 3 → 5 → 2: uneven parts

MESH = init_device_mesh("cpu", (2,))
x = torch.randn(8, 3, generator=torch.Generator().manual_seed(2))
y = torch.tensor([0, 1] * 4)

def sharded(model=None, mesh=MESH):
    model = plain() if model is None else model
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model

def run(model, sampler, steps, x=x[rank::2], y=y[rank::2]):
    for _ in range(steps):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        sampler.step()

def full(x):
    return x.full_tensor() if isinstance(x, DTensor) else x

def weights(model):
    return torch.cat([full(p.detach()).flatten() for p in model.parameters()])

def contents(model, sampler):
    return [full(x).clone() for p in model.parameters() for x in (p.detach(), *sampler.state[p].values())]

def equal(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))
"""

_SCRIPTS = {
    "without_noise_the_chain_is_that_of_one_process": """
def normalised(params, averages_dtype="float32", **more):
    net = build_network("adaptive", (6, 5), zero_last=False, generator=torch.Generator().manual_seed(1))
    settings = dict(feature_set="adaptive", normalise_output=True, beta_scale=0.3, averages_dtype=averages_dtype)
    return L2E(params, 0.05, 100, network=net, settings=settings, **more)

narrow = lambda params, **more: normalised(params, averages_dtype="bfloat16", **more)
done = set()
for name, make in {**SAMPLERS, "L2E-normalised": normalised, "L2E-narrow": narrow}.items():
    one, two = plain(), sharded()
    try:
        sampler = make(two.named_parameters(), temperature=1e-14)
    except (TypeError, ValueError) as error:
        assert "sharded" in str(error), error
        continue
    reference = make(one.named_parameters(), temperature=1e-14)
    run(one, reference, 6, x, y)
    run(two, sampler, 6)
    # SGLRW moves by lattice steps of √T; normalised features divide by small numbers.
    close = torch.allclose(weights(one), weights(two), rtol=2e-4, atol=2e-6)
    assert close, (name, (weights(one) - weights(two)).abs().max())
    for p, q in zip(one.parameters(), two.parameters()):
        assert reference.state[p].keys() == sampler.state[q].keys(), name
        for key, value in sampler.state[q].items():
            near = torch.allclose(full(value), reference.state[p][key], rtol=1e-3, atol=1e-4)
            assert isinstance(value, DTensor) and near, (name, key, value)
    done.add(name)
expected = {name for name, entry in table.SAMPLERS.items() if entry.sharded}
expected |= {"SGHMC-normal", "CyclicalSGMCMC-sgld", "L2E", "L2E-adaptive", "L2E-paper", "L2E-normalised"}
assert done == expected, done ^ expected
""",
    "parts_have_independent_noise_and_copies_the_same": """
torch.manual_seed(3)  # equal seeds, which would give equal noise to both parts
model = sharded(nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 1)))
before = weights(model)
sampler = SGLD(model.parameters(), 0.5, 1)
model(torch.zeros(1, 100)).sum().mul(0).backward()
for step in range(2):
    sampler.step()
noise = weights(model) - before
noise = noise[:10_000] / 2**0.5  # two steps of variance 1
halves = noise.view(2, -1)
assert 0.95 < noise.var() < 1.05, noise.var()  # standard error 0.014
assert abs((halves[0] * halves[1]).mean()) < 0.06  # 0.014
two_copies = init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "parts"))
copies = sharded(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), two_copies)
sampler = SGHMC(copies.parameters(), 0.01, 10, momentum_init="normal")
torch.manual_seed(rank)
run(copies, sampler, 3, torch.randn(4, 4), y[:4].mul(0))
own = torch.cat([p.to_local().flatten() for p in copies.parameters()]).detach()
both = [torch.empty_like(own) for _ in range(2)]
dist.all_gather(both, own)
assert torch.equal(*both)
with torch.no_grad():
    copies[1].bias.to_local().add_(rank)
from learned_samplers.base.guards import replicas
replicas.CHECK_EVERY = 3
assert "drifted apart" in refused(RuntimeError, lambda: run(copies, sampler, 1, torch.ones(1, 4), y[:1]))
replicas.CHECK_EVERY = 100
""",
    "a_checkpoint_resumes_bit_for_bit": """
makers = {
    "SGLD": lambda p: SGLD(p, 0.05, 100),
    "SGHMC": lambda p: SGHMC(p, 0.05, 100, momentum_init="normal", prior_precision=1.0, prior_mean="initial"),
    "adapted": lambda p: AdaptedSGHMC(p, 0.05, 100, warmup_steps=4),
    "L2E": lambda p: L2E(p, 0.05, 100, network="l2e"),
}
for name, make in makers.items():
    model = sharded()
    sampler = make(model.named_parameters())
    run(model, sampler, 3)
    dcp.save({"model": model.state_dict(), "sampler": sampler}, checkpoint_id=f"{folder}/{name}")
    run(model, sampler, 3)
    torch.manual_seed(100 + rank)
    again = sharded(plain(seed=5))
    resumed = make(again.named_parameters())
    state = {"model": again.state_dict(), "sampler": resumed}
    dcp.load(state, checkpoint_id=f"{folder}/{name}")
    again.load_state_dict(state["model"])
    assert resumed.step_count == 3
    run(again, resumed, 3)
    assert equal(contents(model, sampler), contents(again, resumed)), name
    assert sampler.temperatures()[0].keys() == {"kinetic", "configurational"}
""",
    "the_helpers_of_torch_drop_the_noise_and_are_refused": """
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
model = sharded()
sampler = SGHMC(model.named_parameters(), 0.05, 100)
run(model, sampler, 2)
state = get_optimizer_state_dict(model, sampler)
before = contents(model, sampler)
message = refused(ValueError, lambda: set_optimizer_state_dict(model, sampler, state))
assert "dcp.save({'sampler': sampler})" in message, message
whole = sampler.state_dict()
whole["state"] = {i: {k: v.full_tensor() for k, v in s.items()} for i, s in whole["state"].items()}
assert "laid out" in refused(ValueError, lambda: sampler.load_state_dict(whole))
assert equal(before, contents(model, sampler))
""",
    "what_is_not_finite_in_one_part_raises_in_both": """
for break_it in ("gradient", "parameter", "large"):
    model = sharded()
    sampler = SGHMC(model.named_parameters(), 0.05, 100)
    run(model, sampler, 2)
    model.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    part = model[0].weight.grad if break_it == "gradient" else model[0].weight
    with torch.no_grad():
        if rank:
            part.to_local()[0, 0] = float("nan")
        if break_it == "large":
            model[0].weight.to_local().fill_(3e38 if rank else 1e20)
            model[0].weight.grad.to_local().fill_(-3e38 if rank else 1)
    before, noise = contents(model, sampler), sampler.rng_state()["generator"]
    message = refused(FloatingPointError, sampler.step)
    assert "not finite" in message or "would not be finite" in message, message
    assert break_it == "large" or ("'0.weight'" in message and "gradient" in message) == (break_it == "gradient")
    assert sampler.step_count == 2 and torch.equal(noise, sampler.rng_state()["generator"])
    after = contents(model, sampler)
    assert all(torch.equal(a.nan_to_num(1), b.nan_to_num(1)) for a, b in zip(before, after))
""",
    "half_precision_resumes_bit_for_bit_and_follows_weights_that_were_changed": """
half = x[rank::2].bfloat16()
makers = {
    "SGHMC": lambda p: SGHMC(p, 1e-3, 100, momentum_init="normal"),
    "entropy": lambda p: EntropyMCMC(p, 1e-3, 100),
    "adapted": lambda p: AdaptedSGHMC(p, 1e-3, 100, warmup_steps=4),
}
for name, make in makers.items():
    model = sharded(plain().bfloat16())
    sampler = make(model.named_parameters())
    run(model, sampler, 3, half)
    master = full(sampler.state[model[0].weight]["master"])
    assert master.dtype == torch.float32 and torch.equal(master.bfloat16(), full(model[0].weight.detach())), name
    dcp.save({"model": model.state_dict(), "sampler": sampler}, checkpoint_id=f"{folder}/half_{name}")
    run(model, sampler, 2, half)
    again = sharded(plain(seed=5).bfloat16())
    resumed = make(again.named_parameters())
    state = {"model": again.state_dict(), "sampler": resumed}  # its state is made here, before a step
    dcp.load(state, checkpoint_id=f"{folder}/half_{name}")
    again.load_state_dict(state["model"])
    run(again, resumed, 2, half)
    assert {v.dtype for s in resumed.state.values() for v in s.values()} == {torch.float32}, name
    assert equal(contents(model, sampler), contents(again, resumed)), name
    p = again[0].weight
    with torch.no_grad():
        p.to_local().add_(0.25)
    again.zero_grad()
    nn.functional.cross_entropy(again(half), y[rank::2]).backward()
    resumed.step()
    master = resumed.state[p]["master"]
    assert torch.equal(full(master).bfloat16(), full(p.detach())), name
    before = full(master).clone()
    run(again, resumed, 1, half)
    assert not torch.equal(full(resumed.state[p]["master"]), before), name
""",
    "a_copy_knows_its_mesh": """
model = sharded()
sampler = SGHMC(model.named_parameters(), 0.05, 100)
run(model, sampler, 2)
sampler.zero_grad()  # torch cannot copy a DTensor's gradient
copied = copy.deepcopy(sampler)
assert copied.mesh == sampler.mesh
for p in copied.param_groups[0]["params"]:
    p.grad = p.detach() * 1.0
copied.step()
""",
    "refusals_in_a_line": """
model = sharded()
alone = lambda: SGLD(model.named_parameters(), 0.1, 100, distributed="independent")
assert "belong to one chain" in refused(ValueError, alone)
reasons = {"HMC": "trajectories", "MCLMC": "one length", "SGNHT": "whole tensor", "IVON": "that it draws"}
reasons |= {"KineticL2E": "beside", "MetaSGMCMC": "energy", "PSGLD-probe": "probe"}
for name, reason in reasons.items():
    message = refused(TypeError, lambda: SAMPLERS[name](model.named_parameters()))
    assert reason in message and "'0.weight'" in message and "\\n" not in message, message
from learned_samplers import Sampler
class Mine(Sampler):
    badge = "heuristic"
assert "more of a tensor" in refused(TypeError, lambda: Mine(model.parameters(), 0.1, 10))
""",
    "samples_are_whole_and_load_without_sharding": """
model = sharded()
sampler = SGHMC(model.named_parameters(), 0.05, 100)
posterior = PosteriorSamples(model, sampler, burn_in=2, thinning=2, path=f"{folder}/samples")
run(model, sampler, 6)
last = model[2].weight.full_tensor()
assert "load them with the plain network" in refused(ValueError, lambda: posterior.predict(x))
assert len(posterior) == 2
posterior.detach()
dist.barrier()
loaded = PosteriorSamples.load(f"{folder}/samples", plain())
assert loaded.predict(x).shape == (8, 2) and len(loaded) == 2
assert torch.equal(loaded[1]["2.weight"], last) and loaded[1]["0.weight"].shape == (5, 3)
""",
}


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """The error of each scenario by its name, "" for none."""
    return outcomes(tmp_path_factory.mktemp("two"), _PREAMBLE, _SCRIPTS)


@pytest.mark.parametrize("name", _SCRIPTS)
def test_two_processes(name, two_processes):
    assert not two_processes[name], two_processes[name]
