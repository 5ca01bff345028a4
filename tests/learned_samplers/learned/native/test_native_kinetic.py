"""The compiled first half of a step of Kinetic-L2E against the pure rule: shapes, settings, members, threads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learned_samplers import KineticL2E
from learned_samplers.base.segments import Segments
from learned_samplers.classical.sghmc import sghmc_rule
from learned_samplers.learned.kinetic.rule import KineticSettings, kinetic_half_step
from learned_samplers.learned.native.kinetic import can_half_step, half_step
from learned_samplers.learned.native.library import ENVIRONMENT_VARIABLE
from learned_samplers.learned.network import build_network, flatten, layers_of, shapes_of, unflatten

pytestmark = pytest.mark.usefixtures("library")
LENGTHS = (40, 3, 1, 2500, 48, 16, 17)
HYPER = dict(lr=0.02, num_data=3000.0, temperature=0.7, prior_precision=4.0, momentum_decay=0.1)
#: Of a difference to the rule in double precision, in root mean squares over the tensor; the rule in single precision
#: differs as much (1e-6 to 4e-6).
TOLERANCE = 1e-5


def network(hidden=(32, 32), leading=(), seed=0, zero_last=False):
    """Weights with biases, one network or one for each of the leading axes."""
    generator = torch.Generator().manual_seed(seed)
    phi = layers_of(build_network(2, hidden, 1, zero_last=zero_last, generator=generator))
    vector = flatten(phi).detach()
    if not zero_last:
        vector = vector + 0.1 * torch.randn(*leading, len(vector), generator=generator)
    return unflatten(vector, shapes_of(phi))


def state(lengths, leading=(), seed=1):
    """Parameter, gradient, noise and momentum in mid-run; every tensor's gradient has a scale of its own."""
    generator, total = torch.Generator().manual_seed(seed), sum(lengths)
    scale = torch.cat([(10 ** torch.randn(1, generator=generator)).expand(n) for n in lengths])
    draws = [torch.randn(*leading, total, generator=generator) for _ in range(4)]
    return [0.3 * draws[0], 0.01 * scale * draws[1], draws[2], draws[3]]


def assert_same_half_step(tensors, lengths, phi, **changes):
    own = {name: changes.pop(name) for name in KineticSettings.names() if name in changes}
    given = {**HYPER, **changes, "segments": Segments(tuple(lengths)), "settings": KineticSettings(**own)}
    assert can_half_step(phi, *tensors)
    ours = half_step(*tensors, phi=phi, **given)
    wide = [None if x is None else x.double() for x in tensors]
    theirs = kinetic_half_step(*wide, phi=[(w.double(), b.double()) for w, b in phi], **given)
    for name, a, b in zip(("mean", "half", "direct", "through"), ours, theirs, strict=True):
        for x, y in zip(a.double().split(list(lengths), -1), b.split(list(lengths), -1), strict=True):
            size = y.square().mean(-1, keepdim=True).sqrt()
            # One weight's derivative through its own scale nearly cancels: then the terms' size counts.
            floor = 1.0 if x.shape[-1] <= 3 else 1e-30
            assert ((x - y).abs() / (size + floor)).max() < TOLERANCE, name
    return ours


@pytest.mark.parametrize("hidden", [(1,), (32, 32), (5, 7, 9), (64, 3, 64, 20)], ids=str)
def test_every_kind_of_network(hidden):
    assert_same_half_step(state(LENGTHS), LENGTHS, network(hidden))


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("leading", [(1,), (5,), (2, 3)], ids=str)
def test_members_with_shared_and_with_own_weights(leading, own):
    assert_same_half_step(state(LENGTHS, leading), LENGTHS, network(leading=leading if own else ()))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 47, 48, 49, 2047, 2048, 2049, 100_003])
def test_one_tensor_of_any_length(length):
    assert_same_half_step(state((length,)), (length,), network())


@pytest.mark.parametrize(
    "changes",
    [
        dict(temperature=0.0),
        dict(prior_precision=0.0),
        dict(output_bound=0.5),
        dict(mean_scale=3.0),
        dict(mean_scale=0.0),
        dict(momentum_decay=1.0),
        dict(lr=1e-6, num_data=1e6),
    ],
    ids=str,
)
def test_every_setting(changes):
    tensors = state(LENGTHS)
    if changes.get("temperature") == 0:
        tensors[2] = None
    assert_same_half_step(tensors, LENGTHS, network(), **changes)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    leading=st.lists(st.integers(1, 3), max_size=2),
    hidden=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
def test_any_shapes(lengths, leading, hidden, seed):
    assert_same_half_step(state(lengths, leading, seed), lengths, network(hidden, seed=seed))


def test_an_untrained_network_is_sghmc_bit_for_bit():
    tensors = state(LENGTHS)
    mean, half, direct, through = assert_same_half_step(tensors, LENGTHS, network(zero_last=True))
    assert not any(x.any() for x in (mean, direct, through))
    assert torch.equal(half, sghmc_rule(*tensors, **HYPER)[1])


def test_the_number_of_threads_changes_no_bit():
    lengths, before = (70_000, 17, 3000, 100_001), torch.get_num_threads()
    given = {**HYPER, "segments": Segments(lengths), "settings": KineticSettings()}
    tensors, phi, results = state(lengths), network(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(half_step(*tensors, phi=phi, **given))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_what_the_code_cannot_take_goes_by_the_rule():
    tensors, phi = state(LENGTHS), network()
    given = {**HYPER, "segments": Segments(LENGTHS), "settings": KineticSettings()}
    assert not can_half_step(network((65,)), *tensors)
    wide, double = [x.double() for x in tensors], [(w.double(), b.double()) for w, b in phi]
    assert not can_half_step(double, *wide)
    ours, rule = half_step(*wide, phi=double, **given), kinetic_half_step(*wide, phi=double, **given)
    assert all(torch.equal(a, b) for a, b in zip(ours, rule, strict=True))


@pytest.mark.parametrize("hessian", ["none", "finite_difference", "double_backward"])
def test_the_same_chain_with_and_without_it(hessian, monkeypatch):
    def chain():
        generator = torch.Generator().manual_seed(3)
        params = [torch.randn(s, generator=generator).requires_grad_() for s in ((7, 5), (5,))]
        sampler = KineticL2E(params, 0.01, 100, hessian=hessian, probe_size=0.01, generator=generator)

        def closure():
            sampler.zero_grad()
            loss = (params[0].sin().square().sum() + (params[0] @ params[1]).square().sum()) / 100
            if hessian != "double_backward":
                loss.backward()
            return loss

        for _ in range(15):
            sampler.step(closure)
        return torch.cat([p.detach().flatten() for p in params])

    compiled = chain()
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "0")
    torch.testing.assert_close(compiled, chain(), rtol=0, atol=2e-4 if hessian == "finite_difference" else 2e-5)
