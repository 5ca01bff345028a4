"""One chain on two processes stays one, drift raises, and independent chains stay independent (gloo, on the CPU)."""

import pytest
import torch

from tests.two_processes import outcomes

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")

# Each process has its own seed and its own data, and dropout uses its global generator.
_PREAMBLE = """
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from learned_samplers import HMC, SGHMC, SGLD, PosteriorSamples, SampleCollection
from learned_samplers.approximations import IVON
from learned_samplers.particles import SVGD

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
    "a_module_that_wraps_after_the_first_step_is_refused": """
sampler = SGHMC(model.parameters(), 0.01, 100)
run(model, sampler, 2)
assert sampler.replicated is False and not torch.equal(*everywhere())  # chains without it are independent
network = DistributedDataParallel(model)
assert "made after the chain's first step" in refused(RuntimeError, lambda: run(network, sampler, 1))
assert sampler.step_count == 2
alone = SGHMC(model.parameters(), 0.01, 100, distributed="independent")
run(network, alone, 3)
assert not torch.equal(*everywhere())
""",
    "ivon_draws_the_same_weights_whatever_one_process_predicts": """
network = DistributedDataParallel(model.eval())
sampler = IVON(model.parameters(), 0.1, 100)
for step in range(12):
    with sampler.sampled_params():
        sampler.zero_grad()
        network(torch.randn(4, 3)).square().mean().backward()
    sampler.step()
    if rank == 0 and step == 5:
        drawn = []
        for _ in range(3):
            with torch.no_grad(), sampler.sampled_params():
                drawn.append(model[0].weight.clone())
        assert not torch.equal(drawn[0], drawn[1])
        SampleCollection.from_draws(model, sampler.sampled_params, 2)
def predict():
    with sampler.sampled_params():
        model(torch.zeros(1, 3))
assert "no_grad" in refused(RuntimeError, predict)
a, b = everywhere()
assert torch.equal(a, b), (a - b).abs().max()
""",
    "particles_of_a_wrapped_module_would_drift_apart": """
particles = nn.ParameterList([nn.Parameter(torch.randn(3, 2))])
network = DistributedDataParallel(nn.Sequential(model, nn.Identity()), find_unused_parameters=True)
wrapped = [p for p in model.parameters() if p.dim() == 2][:1]
closure = lambda: wrapped[0].square().sum(1)
assert "drift apart" in refused(ValueError, lambda: SVGD(wrapped, lr=0.1).step(closure))
alone = SVGD(list(particles), lr=0.1)
alone.step(lambda: particles[0].square().sum(1))
assert alone.step_count == 1
""",
    "the_first_process_writes_the_samples": """
network = DistributedDataParallel(model)
sampler = SGHMC(model.parameters(), 0.01, 100)
posterior = PosteriorSamples(network, sampler, burn_in=2, thinning=2, path=f"{folder}/samples")
run(network, sampler, 6)
assert len(posterior) == 2
state = posterior.state_dict()
posterior.detach()
dist.barrier()
if rank:
    assert "samples" in refused(RuntimeError, lambda: posterior[0])
else:
    assert torch.equal(posterior[1]["0.weight"], model[0].weight)
again = PosteriorSamples(network, sampler, burn_in=2, thinning=2, path=f"{folder}/samples")
again.load_state_dict(state)
run(network, sampler, 2)
assert again.steps == [4, 6, 8]
again.detach()
dist.barrier()
assert len(PosteriorSamples.load(f"{folder}/samples", model)) == 3
""",
    "another_chain_in_the_folder_is_refused_by_all": """
network = DistributedDataParallel(model)
options = dict(thinning=2, path=f"{folder}/another")
with PosteriorSamples(network, (sampler := SGHMC(model.parameters(), 0.01, 100)), **options):
    run(network, sampler, 5)
dist.barrier()
fresh = SGHMC(model.parameters(), 0.01, 100)
with PosteriorSamples(network, fresh, **options) as posterior:
    assert posterior.steps == [2, 4]
    assert "holds a chain up to step 4" in refused(RuntimeError, lambda: run(network, fresh, 1))
""",
    "a_state_that_one_process_alone_has_loaded_is_told_of": """
network = DistributedDataParallel(model)
sampler = SGHMC(model.parameters(), 0.01, 100)
run(network, sampler, 3)
fresh = SGHMC(model.parameters(), 0.01, 100)
if rank == 0:
    fresh.load_state_dict(sampler.state_dict())
assert "at step 0 in one process and at step 3 in another" in refused(RuntimeError, lambda: run(network, fresh, 1))
""",
    "copies_that_both_would_write_are_told_how": """
sampler = SGHMC(model.parameters(), 0.01, 100)
for turn in range(2):
    if rank == turn:
        call = lambda: PosteriorSamples(model, sampler, path=f"{folder}/both")
        posterior = call() if turn == 0 else refused(RuntimeError, call)
    dist.barrier()
assert rank == 0 or "make PosteriorSamples after DistributedDataParallel" in posterior
""",
    "a_subclass_is_found_and_what_cannot_be_seen_is_refused": """
import gc
class Wrapped(DistributedDataParallel):
    pass
network = Wrapped(model)
sampler = SGHMC(model.parameters(), 0.01, 100)
run(network, sampler, 3)
assert sampler.replicated and torch.equal(*everywhere())
gc.freeze()
fresh = SGHMC(model.parameters(), 0.01, 100)
message = refused(RuntimeError, lambda: run(network, fresh, 1))
gc.unfreeze()
assert "gc.freeze()" in message and "distributed='replicated'" in message
""",
    "a_generator_of_the_user_is_that_of_process_0": """
network = DistributedDataParallel(model)
sampler = SGLD(model.parameters(), 0.01, 100, generator=torch.Generator().manual_seed(rank))
run(network, sampler, 3)
a, b = everywhere()
assert torch.equal(a, b)
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
    "samplers_that_read_the_loss_refuse": """
from learned_samplers import MCLMC, MetaSGMCMC
network = DistributedDataParallel(model)
before = [p.detach().clone() for p in model.parameters()]
for sampler in (HMC(model.parameters(), 0.01, 100), MCLMC(model.parameters(), 0.01, 100),
                MetaSGMCMC(model.parameters(), num_data=100)):
    message = refused(ValueError, lambda: sampler.step(lambda: network(torch.ones(1, 3)).sum()))
    assert message.startswith(f"{type(sampler).__name__} reads the loss") and "distributed='independent'" in message
    assert "\\n" not in message
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
""",
    "drift_raises_everywhere": """
from learned_samplers.base.guards import replicas
replicas.CHECK_EVERY = 5
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
    """The error of each scenario by its name, "" for none."""
    return outcomes(tmp_path_factory.mktemp("two"), _PREAMBLE, _SCRIPTS, each="model = new_model()\n")


@pytest.mark.parametrize("name", _SCRIPTS)
def test_two_processes(name, two_processes):
    assert not two_processes[name], two_processes[name]
