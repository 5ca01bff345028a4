"""The compiled step of Meta-SGMCMC against the pure rule: its networks, its corrections, shapes, members, threads."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learned_samplers import MetaSGMCMC
from learned_samplers.base.segments import Segments
from learned_samplers.classical.sghmc import sghmc_rule
from learned_samplers.learned.meta_sgmcmc.network import build_meta_network, split_meta_network
from learned_samplers.learned.meta_sgmcmc.rule import MetaSGMCMCSettings, meta_sgmcmc_rule
from learned_samplers.learned.native.library import ENVIRONMENT_VARIABLE
from learned_samplers.learned.native.meta_sgmcmc import can_meta_step, meta_step_flat_, meta_step_tensors_
from learned_samplers.learned.network import flatten, layers_of, shapes_of, unflatten
from meta_tasks.rules.base import Hyperparameters, MemberStep
from meta_tasks.rules.learned import MetaSGMCMCRule

pytestmark = pytest.mark.usefixtures("library")
LENGTHS = (40, 3, 1, 2500, 48, 16, 17)
HYPER = dict(lr=0.02, num_data=3000.0, temperature=0.7, prior_precision=4.0, momentum_decay=0.1)
FEATURE_SETS = ("energy", "energy_rms")
#: Of a difference to the rule in double precision, in root mean squares of the change of its tensor, above the rounding
#: of the value itself; the rule in single precision differs as much (the root of a friction near zero, most).
TOLERANCE = 3e-5
#: Coordinates that may be further off: where a unit is so close to zero that rounding switches it, Γ jumps.
SWITCHED = 1e-5


def networks(hidden=(10,), leading=(), seed=0):
    """f_Q and f_D with biases, one pair or one for each of the leading axes."""
    generator = torch.Generator().manual_seed(seed)
    phi = layers_of(build_meta_network(hidden, zero_last=False, generator=generator))
    vector = flatten(phi).detach()
    own = vector + 0.1 * torch.randn(*leading, len(vector), generator=generator)
    # What lies between the two networks is not theirs, and no rule reads it.
    return unflatten(own, shapes_of(phi))


def state(lengths, leading=(), seed=1):
    """Parameter, gradient, noise, momentum and energies in mid-run; every tensor's gradient has a scale of its own."""
    generator, total = torch.Generator().manual_seed(seed), sum(lengths)
    scale = torch.cat([(10 ** torch.randn(1, generator=generator)).expand(n) for n in lengths])
    draws = [torch.randn(*leading, total, generator=generator) for _ in range(4)]
    energy = HYPER["num_data"] * (0.5 + torch.rand(leading, generator=generator))
    return [0.3 * draws[0], 0.01 * scale * draws[1], draws[2], draws[3]], energy


def arguments(lengths, changes):
    own = {name: changes[name] for name in MetaSGMCMCSettings.names() if name in changes}
    rest = {name: value for name, value in changes.items() if name not in own}
    return {**HYPER, **rest, "segments": Segments(tuple(lengths)), "settings": MetaSGMCMCSettings(**own)}


def by_code(tensors, energy, lengths, phi, **changes):
    given = arguments(lengths, changes)
    copies = [None if x is None else x.clone() for x in tensors]
    assert can_meta_step(phi, given["settings"], *copies)
    meta_step_flat_(*copies, energy=energy, phi=phi, **given)
    assert torch.equal(copies[1].view(torch.int32), tensors[1].view(torch.int32))
    return copies[0], copies[3]


def by_rule(tensors, energy, lengths, phi, dtype=torch.float64, **changes):
    wide = [None if x is None else x.to(dtype) for x in tensors]
    phi = [(w.to(dtype), b.to(dtype)) for w, b in phi]
    return meta_sgmcmc_rule(*wide, energy=energy.to(dtype), phi=phi, **arguments(lengths, changes))


def share_off(tensors, lengths, ours, theirs):
    """The share of coordinates that differ by more than TOLERANCE."""
    off = []
    for old, a, b in zip((tensors[0], tensors[3]), ours, theirs, strict=True):
        for x, y, z in zip(*(row.double().split(list(lengths), -1) for row in (old, a, b)), strict=True):
            change = (z - x).square().mean(-1, keepdim=True).sqrt()
            off.append((((y - z).abs() - 2e-7 * z.abs()) > TOLERANCE * change + 1e-30).flatten())
    return torch.cat(off).double().mean().item()


def assert_same_step(tensors, energy, lengths, phi, **changes):
    ours = by_code(tensors, energy, lengths, phi, **changes)
    theirs = by_rule(tensors, energy, lengths, phi, **changes)
    assert share_off(tensors, lengths, ours, theirs) <= SWITCHED
    return ours


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
@pytest.mark.parametrize("hidden", [(1,), (10,), (32, 32), (5, 7, 9), (64, 3, 64, 20)], ids=str)
def test_every_kind_of_network(hidden, feature_set):
    assert_same_step(*state(LENGTHS), LENGTHS, networks(hidden), feature_set=feature_set)


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("leading", [(1,), (5,), (2, 3)], ids=str)
def test_members_with_shared_and_with_own_weights(leading, own, feature_set):
    phi = networks(leading=leading if own else ())
    assert_same_step(*state(LENGTHS, leading), LENGTHS, phi, feature_set=feature_set)


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 47, 48, 49, 2047, 2048, 2049, 100_003, 1_000_000])
def test_one_tensor_of_any_length(length, feature_set):
    assert_same_step(*state((length,)), (length,), networks(), feature_set=feature_set)


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
@pytest.mark.parametrize(
    "changes",
    [
        dict(form="absolute"),
        dict(temperature=0.0),
        dict(temperature=0.0, form="absolute"),
        dict(prior_precision=0.0),
        dict(constant_friction=0.3),
        dict(curl_offset=-0.5, curl_scale=0.8),
        dict(curl_clip=0.6),
        dict(friction_clip=0.02),
        dict(friction_scale=0.0),
        dict(friction_scale=3.0),
        dict(momentum_decay=1.0),
        dict(energy_scale=0.01),
        dict(gradient_scale=20.0),
        dict(gradient_variance=2.0),
        dict(lr=1e-6, num_data=1e6),
        dict(curl_scale=0.0),
    ],
    ids=str,
)
def test_every_setting(changes, feature_set):
    tensors, energy = state(LENGTHS)
    if changes.get("temperature") == 0:
        tensors[2] = None
    assert_same_step(tensors, energy, LENGTHS, networks(), feature_set=feature_set, **changes)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    leading=st.lists(st.integers(1, 3), max_size=2),
    own=st.booleans(),
    hidden=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    feature_set=st.sampled_from(FEATURE_SETS),
    form=st.sampled_from(["signed", "absolute"]),
    seed=st.integers(0, 1000),
)
def test_any_shapes(lengths, leading, own, hidden, feature_set, form, seed):
    phi = networks(hidden, leading if own else (), seed)
    assert_same_step(*state(lengths, leading, seed), lengths, phi, feature_set=feature_set, form=form)


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
@pytest.mark.parametrize("hidden", [(10,), (6, 4)], ids=str)
def test_the_corrections_are_the_derivatives_of_the_code_itself(hidden, feature_set):
    """Γ, what the temperature adds at noise zero, against autograd of Q and A written out in double precision."""
    tensors, energy = state(LENGTHS)
    phi, eps = networks(hidden), (HYPER["lr"] / HYPER["num_data"]) ** 0.5
    tensors[2] = torch.zeros_like(tensors[0])
    hot = by_code(tensors, energy, LENGTHS, phi, feature_set=feature_set, temperature=1e3)
    cold = by_code(tensors, energy, LENGTHS, phi, feature_set=feature_set, temperature=0.0)
    ours = (hot[1] - cold[1]).double() / 1e3
    theta, g, _, r = (x.double() for x in tensors)
    slope = HYPER["num_data"] * g + HYPER["prior_precision"] * theta
    curl, friction = split_meta_network([(w.double(), b.double()) for w, b in phi])

    def relative(x, floor):  # each coordinate's own share in the root mean square is differentiated, the others' is not
        parts = x.split(list(LENGTHS))
        squares = [p.detach().square().sum() - p.detach().square() + p.square() for p in parts]
        return torch.cat([p / (s / len(p) + floor).sqrt() for p, s in zip(parts, squares, strict=True)])

    def through(layers, *rows):
        x = torch.stack(rows)
        for i, (w, b) in enumerate(layers):
            x = w @ x + b[:, None]
            x = x.relu() if i < len(layers) - 1 else x
        return x[0]

    u = (energy.double() / HYPER["num_data"]).expand(r.shape).clone().requires_grad_()
    r = r.clone().requires_grad_()
    seen = relative(r, 1e-2) if feature_set == "energy_rms" else r
    gamma = slope / HYPER["num_data"]
    gamma = relative(gamma, 1e-16) if feature_set == "energy_rms" else gamma
    q = (1 + through(curl, u, seen)).clamp(-5, 5)
    damping = (HYPER["momentum_decay"] * (q**2 + through(friction, u, seen, gamma))).clamp(0, 1)
    by_energy = torch.autograd.grad(q.sum(), u, retain_graph=True)[0]
    theirs = eps * by_energy * slope / HYPER["num_data"] + torch.autograd.grad(damping.sum(), r)[0]
    assert theirs.abs().max() > 0.01
    assert ((ours - theirs).abs() > 1e-6 + 1e-5 * theirs.abs()).double().mean() <= 1e-3


def test_an_untrained_network_is_sghmc_to_rounding():
    tensors, energy = state(LENGTHS)
    phi = [(w.detach(), b.detach()) for w, b in layers_of(build_meta_network())]
    for a, b in zip(by_code(tensors, energy, LENGTHS, phi), sghmc_rule(*tensors, **HYPER), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fault", ["energy", "noise", "network of another member", "a slope", "segments"])
def test_the_comparison_finds_a_fault(fault):
    (tensors, energy), phi = state(LENGTHS, (2,)), networks(leading=(2,))
    theirs = by_rule(tensors, energy, LENGTHS, phi, feature_set="energy_rms")
    lengths, more = LENGTHS, {}
    if fault == "energy":
        energy = energy * (1 + 1e-3)
    elif fault == "noise":
        tensors = [*tensors[:2], tensors[2] * (1 + 1e-3), tensors[3]]
    elif fault == "a slope":  # Γ of slightly another size
        more = dict(temperature=HYPER["temperature"] * (1 + 1e-3))
        tensors = [*tensors[:2], tensors[2] / (1 + 1e-3) ** 0.5, tensors[3]]
    elif fault == "segments":
        lengths = (41, 2, *LENGTHS[2:])
    else:
        phi = [(w.flip(0), b.flip(0)) for w, b in phi]
    ours = by_code(tensors, energy, lengths, phi, feature_set="energy_rms", **more)
    assert share_off(tensors, LENGTHS, ours, theirs) > 100 * SWITCHED


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
def test_the_number_of_threads_changes_no_bit(feature_set):
    lengths, before = (70_000, 17, 3000, 100_001), torch.get_num_threads()
    (tensors, energy), phi, results = state(lengths), networks(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(by_code(tensors, energy, lengths, phi, feature_set=feature_set))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
@pytest.mark.parametrize("chains", [(), (2,)], ids=str)
def test_tensors_one_by_one_and_of_any_memory_layout(chains, feature_set):
    """Lists of tensors, as an optimizer has them, are the flat buffers, with strides of any kind."""
    shapes = ((4, 3, 3, 3), (7,), (2, 5, 4, 4))
    lengths = [torch.Size(shape).numel() for shape in shapes]
    (flat, energy), phi = state(lengths, chains), networks()
    theirs = by_code(flat, energy, lengths, phi, feature_set=feature_set)
    given = arguments(lengths, dict(feature_set=feature_set))
    del given["segments"]
    for permuted in (False, True):
        rows = [[x.reshape(*chains, *s) for x, s in zip(t.split(lengths, -1), shapes, strict=True)] for t in flat]
        rows = [
            [x.transpose(-1, -2).clone().transpose(-1, -2) if permuted and x.dim() > 3 else x.clone() for x in row]
            for row in rows
        ]
        meta_step_tensors_(*rows, energy=energy, phi=phi, **given)
        for row, expected in zip((rows[0], rows[3]), theirs, strict=True):
            assert torch.equal(torch.cat([x.reshape(*chains, -1) for x in row], -1), expected)


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, 1e-42])
def test_what_is_not_finite_or_hardly_a_number_does_no_harm_elsewhere(value, feature_set):
    (tensors, energy), phi = state((300, 20), (2,)), networks()
    whole = by_code(tensors, energy, (300, 20), phi, feature_set=feature_set)
    tensors[1][0, 7] = value
    broken = by_code(tensors, energy, (300, 20), phi, feature_set=feature_set)
    for a, b in zip(whole, broken, strict=True):
        assert torch.equal(a[1], b[1])
    assert broken[0][0, 7].isfinite() == (abs(value) < 1e29)


def test_who_cannot_be_served_is_known_beforehand():
    phi, own = networks(), MetaSGMCMCSettings()
    x = torch.zeros(3)
    assert can_meta_step(phi, own, x)
    assert not can_meta_step(phi, own, x.double())
    assert not can_meta_step([(w.double(), b.double()) for w, b in phi], own, x)
    assert not can_meta_step(networks((65,)), own, x)
    assert not can_meta_step(networks((8,) * 5), own, x)
    assert not can_meta_step(phi, MetaSGMCMCSettings(correction="finite_difference"), x)
    assert not can_meta_step(phi, own, x.requires_grad_())


def sampler_and_closure(chains, **options):
    generator = torch.Generator().manual_seed(3)
    params = [torch.randn(*chains, *s, generator=generator).requires_grad_() for s in ((7, 5), (5,))]
    sampler = MetaSGMCMC(params, 0.01, 100, prior_precision=2.0, generator=generator, **options)

    def closure():
        sampler.zero_grad()
        loss = (
            params[0].sin().square().sum((-1, -2)) + (params[0] @ params[1][..., None]).square().sum((-1, -2))
        ) / 100
        loss.sum().backward()
        return loss

    return sampler, closure, params


def whole(params):
    return torch.cat([p.detach().flatten() for p in params])


@pytest.mark.parametrize("chains", [(), (3,)], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_the_same_chain_with_and_without_it(chains, temperature, monkeypatch):
    def chain():
        sampler, closure, params = sampler_and_closure(chains, temperature=temperature)
        for _ in range(15):
            sampler.step(closure)
        return whole(params)

    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    taken = []
    monkeypatch.setattr(
        "learned_samplers.learned.meta_sgmcmc.optimizer.meta_step_tensors_",
        lambda *args, **given: (taken.append(1), meta_step_tensors_(*args, **given)),
    )
    compiled = chain()
    assert len(taken) == 15
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "0")
    torch.testing.assert_close(compiled, chain(), rtol=0, atol=2e-5)
    assert len(taken) == 15


def test_a_chain_resumes_bit_for_bit():
    sampler, closure, params = sampler_and_closure(())
    for _ in range(4):
        sampler.step(closure)
    saved, values = copy.deepcopy(sampler.state_dict()), [p.detach().clone() for p in params]
    for _ in range(4):
        sampler.step(closure)
    other, again, resumed = sampler_and_closure(())
    with torch.no_grad():
        for p, value in zip(resumed, values, strict=True):
            p.copy_(value)
    other.load_state_dict(saved)
    for _ in range(4):
        other.step(again)
    assert torch.equal(whole(params), whole(resumed))


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
def test_the_inner_loop_takes_the_same_step(feature_set, monkeypatch):
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    rule = MetaSGMCMCRule(feature_set=feature_set, hidden=(6,))
    weights = torch.stack([rule.initial_weights(i) for i in range(4)])
    weights = weights + 0.1 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(5))
    (tensors, energy), hyper = state(LENGTHS, (4,)), Hyperparameters(lr=0.02, num_data=3000, prior_precision=4.0)

    def step():
        x, g, noise, r = (t.clone() for t in tensors)
        at = MemberStep(x, g, noise, (r,), Segments(LENGTHS), hyper, 3, loss=energy / 3000)
        with torch.no_grad():
            parameter, (momentum,) = rule.update(rule.prepare(weights), at)
        return parameter, momentum, parameter is x

    compiled, slow = step(), (monkeypatch.setenv(ENVIRONMENT_VARIABLE, "0"), step())[1]
    assert compiled[2]
    assert not slow[2]
    for a, b in zip(compiled[:2], slow[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)
