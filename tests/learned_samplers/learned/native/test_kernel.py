"""The compiled network against torch in double precision: the step of L2E, values and slopes, members, threads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learned_samplers import L2E, KineticL2E, MetaSGMCMC
from learned_samplers.base.matrices import as_matrices, flat_states, renew_roots_, state_lengths, update_covariances_
from learned_samplers.base.segments import Segments
from learned_samplers.learned.feature_sets import AVERAGE_DECAYS, FEATURE_SETS, feature_set_named
from learned_samplers.learned.features import CompiledFeatures, network_at
from learned_samplers.learned.kinetic import KineticSettings, l2e_kinetic_rule
from learned_samplers.learned.l2e import L2ESettings, l2e_rule
from learned_samplers.learned.meta_sgmcmc import MetaSGMCMCSettings, meta_sgmcmc_rule
from learned_samplers.learned.native import kernel
from learned_samplers.learned.native.kernel import takes
from learned_samplers.learned.network import build_network, flatten, layers_of, shapes_of, unflatten, value_and_slopes
from learned_samplers.learned.preconditioned import PreconditionedSettings, l2e_precond_rule
from tests.harness import SAMPLERS, closure_for, small_data, small_network
from tests.learned_samplers.learned.cases import meta_network, phi_of

pytestmark = pytest.mark.usefixtures("library")
LENGTHS = (40, 3, 1, 2500, 48, 16, 17)
HYPER = dict(lr=0.02, num_data=3000.0, temperature=0.7, prior_precision=4.0, momentum_decay=0.1, step=6)
#: Of a difference to the rule in double precision, in root mean squares of what the step changes; the rule in single
#: precision differs as much. With roots of covariances in single precision, of which the smallest are damped, more.
TOLERANCE, TOLERANCE_OF_ROOTS = 1e-5, 2e-3


def networks(inputs, hidden=(16, 16), members=None, seed=0, outputs=2):
    """Weights with biases, of one network or of one for each member."""
    generator = torch.Generator().manual_seed(seed)
    made = build_network(inputs, hidden, outputs, zero_last=False, generator=generator)
    vector = flatten(layers_of(made)).detach()
    shape = (len(vector),) if members is None else (members, len(vector))
    return unflatten(vector + 0.1 * torch.randn(shape, generator=generator), shapes_of(layers_of(made)))


def segments_of(lengths):
    """Tensors of these lengths: matrices of four rows, of two, or vectors, as they divide."""
    rows = [next(k for k in (4, 2, 1) if n % k == 0) for n in lengths]
    return Segments(tuple(lengths), tuple((k, n // k) if k > 1 else (n,) for k, n in zip(rows, lengths, strict=True)))


def state(lengths, feature_set, leading=(), seed=1):
    """A chain in mid-run: parameter, gradient, noise, momentum, averages, and covariances if the feature set has any.

    Every tensor has a scale of its own.
    """
    generator, total = torch.Generator().manual_seed(seed), sum(lengths)
    named, segments = feature_set_named(feature_set), segments_of(lengths)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    scale = torch.cat([(10 ** draw(1)).expand(n) for n in lengths])
    gradient = 0.01 * scale * draw(*leading, total)
    first = 0.01 * scale * draw(*leading, len(AVERAGE_DECAYS), total)
    second = (0.01 * scale * draw(*leading, len(named.second_moment_decays), total)).square()
    averages = torch.cat([first, second + gradient.square().unsqueeze(-2) * 0.05], -2)
    chain = [0.3 * draw(*leading, total), gradient, draw(*leading, total), draw(*leading, total), averages]
    if named.matrix:
        chain.append(torch.zeros(*leading, sum(state_lengths(segments))))
        states = flat_states(chain[-1], segments)
        update_covariances_(states, as_matrices(0.01 * scale * draw(*leading, total), segments))
        for step in range(10):
            renew_roots_(states, step)
    return chain


def by_code(rule, tensors, lengths, **given):
    """The step in place, by the compiled code, on copies."""
    copies = [None if x is None else x.clone() for x in tensors]
    assert takes(given["phi"], copies, segments_of(lengths))
    with torch.no_grad():
        return rule(*copies, segments=segments_of(lengths), in_place=True, **given)


def by_rule(rule, tensors, lengths, phi, **given):
    """The same by the pure rule, in double precision."""
    wide = [None if x is None else x.double() for x in tensors]
    return rule(*wide, phi=[(w.double(), b.double()) for w, b in phi], segments=segments_of(lengths), **given)


def worst_difference(before, lengths, ours, theirs):
    """The greatest difference of a coordinate, in root mean squares of the change of its tensor, above rounding."""
    worst = 0.0
    for rows in zip(before, ours, theirs, strict=False):
        for old, a, b in zip(*(row.double().split(list(lengths), -1) for row in rows), strict=True):
            change = (b - old).square().mean(-1, keepdim=True).sqrt()
            excess = ((a - b).abs() - 2e-7 * b.abs()).clamp(min=0)
            worst = max(worst, (excess / (change + 1e-30)).max().item())
    return worst


def assert_same_step(tensors, lengths, rule=l2e_rule, **keywords):
    keywords = {**HYPER, **keywords}
    ours, theirs = by_code(rule, tensors, lengths, **keywords), by_rule(rule, tensors, lengths, **keywords)
    matrix = feature_set_named(keywords["settings"].feature_set).matrix
    before = (tensors[0], *tensors[3:5])
    assert worst_difference(before, lengths, ours[:3], theirs[:3]) < (TOLERANCE_OF_ROOTS if matrix else TOLERANCE)


FORMS = {
    "residual": (l2e_rule, lambda **own: L2ESettings(**own)),
    "paper": (l2e_rule, lambda **own: L2ESettings(form="paper", alpha_scale=1.0, beta_scale=2.0, **own)),
    "preconditioner": (l2e_precond_rule, lambda **own: PreconditionedSettings(**own)),
}


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("leading", [(1,), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("attenuated", [False, True])
def test_members_with_shared_and_with_own_weights(leading, own, attenuated):
    members = torch.Size(leading).numel()
    phi = networks("matrix", (8, 8), members if own else None)
    if own:
        phi = [(weight.unflatten(0, leading), bias.unflatten(0, leading)) for weight, bias in phi]
    chosen = L2ESettings(feature_set="matrix", attenuated=attenuated)
    assert_same_step(state(LENGTHS, "matrix", leading), LENGTHS, phi=phi, settings=chosen)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 47, 48, 49, 2047, 2048, 2049, 100_003])
def test_one_tensor_of_any_length(length):
    chosen = dict(phi=networks("adaptive", (8, 8)), settings=L2ESettings(feature_set="adaptive"))
    assert_same_step(state((length,), "adaptive"), (length,), **chosen)


@pytest.mark.parametrize(
    "changes",
    [
        dict(temperature=0.0),
        dict(prior_precision=0.0),
        dict(friction_scale=0.0, beta_scale=10.0, num_data_in_training=50_000.0),
        dict(alpha_scale=0.0),
        dict(alpha_scale=0.0, friction_scale=0.0),
        dict(step=0),
        dict(step=100_000),
        dict(lr=1e-6, num_data=1e6),
        dict(normalise_output=True),
        dict(normalise_output=True, temperature=0.0),
        dict(gated=True),
        dict(gated=True, friction_scale=0.0, temperature=0.0),
        dict(form="paper", friction="algorithm2", noise_multiplier=1e-3, alpha_scale=1.0, beta_scale=2.0),
    ],
    ids=str,
)
def test_every_setting(changes):
    tensors, scales = state(LENGTHS, "adaptive"), {k: v for k, v in changes.items() if k in L2ESettings.names()}
    if changes.get("temperature") == 0:
        tensors[2] = None
    phi = networks("adaptive", outputs=3 if changes.get("gated") else 2)
    chosen = L2ESettings(feature_set="adaptive", **scales)
    hyperparameters = {k: v for k, v in changes.items() if k not in scales}
    assert_same_step(tensors, LENGTHS, phi=phi, settings=chosen, **hyperparameters)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    members=st.integers(1, 4),
    own=st.booleans(),
    hidden=st.lists(st.integers(1, 64), max_size=4),
    form_and_features=st.sampled_from(
        [(form, name) for form in FORMS for name in FEATURE_SETS if form != "preconditioner" or name != "matrix"]
    ),
    step=st.integers(0, 10_000),
    seed=st.integers(0, 1000),
)
def test_any_form_feature_set_network_and_shapes(lengths, members, own, hidden, form_and_features, step, seed):
    form, feature_set = form_and_features
    rule, settings = FORMS[form]
    phi = networks(feature_set, hidden, members if own else None, seed)
    tensors = state(lengths, feature_set, (members,), seed)
    assert_same_step(tensors, lengths, rule, phi=phi, settings=settings(feature_set=feature_set), step=step)


@pytest.mark.parametrize("fault", ["averages", "network of another member", "noise"])
def test_the_comparison_finds_a_fault(fault):
    tensors, phi = state(LENGTHS, "adaptive", (2,)), networks("adaptive", (8, 8), 2)
    keywords = dict(HYPER, settings=L2ESettings(feature_set="adaptive"), phi=phi)
    theirs = by_rule(l2e_rule, tensors, LENGTHS, **keywords)
    if fault == "averages":
        tensors[4] = tensors[4] * (1 + 1e-3)
    elif fault == "noise":
        tensors[2] = tensors[2] * (1 + 1e-3)
    else:
        keywords["phi"] = [(weight.flip(0), bias.flip(0)) for weight, bias in phi]
    ours = by_code(l2e_rule, tensors, LENGTHS, **keywords)
    assert worst_difference((tensors[0], *tensors[3:5]), LENGTHS, ours, theirs) > TOLERANCE


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_the_number_of_threads_changes_no_bit(threads):
    lengths = (*LENGTHS, 70_000, 5000)
    tensors, phi = state(lengths, "adaptive"), networks("adaptive")
    results = []
    for count in (1, 2, 3, 7):
        threads(count)
        chosen = dict(HYPER, settings=L2ESettings(feature_set="adaptive"), phi=phi)
        results.append(by_code(l2e_rule, tensors, lengths, **chosen))
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], result, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30, 1e-42])
def test_what_is_not_finite_or_hardly_a_number_does_no_harm_elsewhere(value):
    """A broken chain stays broken for its own member alone, and its own coordinate shows it."""
    tensors, phi = state((300, 20), "adaptive", (2,)), networks("adaptive")
    keywords = dict(HYPER, settings=L2ESettings(feature_set="adaptive"), phi=phi)
    intact = by_code(l2e_rule, tensors, (300, 20), **keywords)
    tensors[1][0, 7] = value
    broken = by_code(l2e_rule, tensors, (300, 20), **keywords)
    for a, b in zip(intact, broken, strict=True):
        assert torch.equal(a[1], b[1])
    assert broken[0][0, 7].isfinite() == (abs(value) < 1e29)


def test_who_cannot_be_served_is_known_beforehand():
    phi, x = networks("adaptive", (8, 8)), torch.zeros(3)
    assert takes(phi, [x])
    refused = [x.double(), x.bfloat16(), torch.zeros(3, 2).mT, torch.zeros(0), torch.zeros(3, device="meta")]
    assert not any(takes(phi, [tensor]) for tensor in refused)
    assert not takes([(w.double(), b.double()) for w, b in phi], [x])
    assert not takes(networks("adaptive", (65,)), [x])
    assert not takes(networks("adaptive", (8,) * 5), [x])
    assert not takes(phi, [x.requires_grad_()])
    with torch.no_grad():
        assert takes(phi, [x])
        chain = state((3,), "adaptive")
        args = (chain[0], chain[1], chain[4], Segments((3,)))
        run = dict(settings=L2ESettings(feature_set="adaptive"), lr=0.1, num_data=10, step=0)
        for in_place in (True, False):
            network, _ = network_at(phi, *(x.clone() if isinstance(x, torch.Tensor) else x for x in args), **run,
                                    in_place=in_place)  # fmt: skip
            assert isinstance(network.chain, CompiledFeatures) == in_place


@pytest.mark.parametrize("hidden", [(1,), (10,), (32, 32), (5, 7, 9), (64, 3, 64, 20)], ids=str)
@pytest.mark.parametrize("leading", [(), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_values_and_slopes_are_those_of_automatic_differentiation(hidden, leading, own):
    members = torch.Size(leading).numel()
    phi = networks(3, hidden, members if own else None, outputs=1)
    if own:
        phi = [(weight.view(*leading, *weight.shape[1:]), bias.view(*leading, -1)) for weight, bias in phi]
    generator = torch.Generator().manual_seed(4)
    for d in (1, 50, 2100):
        rows = [torch.randn(*leading, d, generator=generator) for _ in range(3)]
        wide = [(w.double(), b.double()) for w, b in phi]
        for wanted in ((), (1,), (0, 2)):
            with torch.no_grad():
                ours = value_and_slopes(phi, rows, wanted)
                theirs = value_and_slopes(wide, [row.double() for row in rows], wanted)
            assert len(ours) == 1 + len(wanted)
            for a, b in zip(ours, theirs, strict=True):
                # A unit that switches within a rounding of its input has one slope or the other.
                off = (a.double() - b).abs() > 2e-5 * (1 + b.abs())
                assert off.float().mean() <= 1e-3


@pytest.mark.parametrize("sampler", [L2E, MetaSGMCMC, KineticL2E])
def test_a_step_of_the_optimizer_runs_compiled_code(sampler, monkeypatch):
    calls, run = [], kernel.network
    monkeypatch.setattr(kernel, "network", lambda *given, **how: calls.append(1) or run(*given, **how))
    weight = torch.nn.Parameter(torch.randn(20, 30))

    def closure():
        weight.grad = weight.detach().clone()
        return 0.5 * weight.detach().square().sum()

    sampler([weight], lr=1e-3, num_data=100).step(closure)
    assert calls


@pytest.mark.parametrize("fault", [None, "energy", "network of another member", "a slope", "segments"])
def test_meta_sgmcmc_takes_the_same_step_and_the_comparison_finds_a_fault(fault):
    tensors, energy = state(LENGTHS, "paper", (2,))[:4], torch.tensor([3000.0, 9000.0])
    vectors = [flatten(phi_of(meta_network(seed, dtype=torch.float32, hidden=(10,)))) for seed in (0, 1)]
    phi = unflatten(torch.stack(vectors), shapes_of(layers_of(meta_network(hidden=(10,)))))
    hyper = {k: v for k, v in HYPER.items() if k != "step"}
    keywords = dict(settings=MetaSGMCMCSettings(feature_set="energy_rms"), segments=segments_of(LENGTHS))
    wide = dict(energy=energy.double(), phi=[(w.double(), b.double()) for w, b in phi])
    theirs = meta_sgmcmc_rule(*(x.double() for x in tensors), **wide, **keywords, **hyper)
    if fault == "energy":
        energy = energy.flip(0)
    elif fault == "network of another member":
        phi = [(weight.flip(0), bias.flip(0)) for weight, bias in phi]
    elif fault == "segments":
        keywords["segments"] = segments_of(LENGTHS[::-1])
    elif fault == "a slope":  # Γ of slightly another size
        hyper["temperature"] *= 1 + 1e-3
    with torch.no_grad():
        ours = meta_sgmcmc_rule(*tensors, energy=energy, phi=phi, **keywords, **hyper)
    difference = worst_difference((tensors[0], tensors[3]), LENGTHS, ours, theirs)
    assert (difference > 3 * TOLERANCE) == (fault is not None), difference


def test_kinetic_l2e_takes_the_same_step():
    tensors, phi = state(LENGTHS, "paper", (2,))[:4], networks(2, (16, 16), outputs=1)
    hyper = {k: v for k, v in HYPER.items() if k != "step"}
    at = dict(segments=segments_of(LENGTHS), settings=KineticSettings(), hessian_product=lambda w: 0.3 * w, **hyper)
    wide = [(w.double(), b.double()) for w, b in phi]
    theirs = l2e_kinetic_rule(*(x.double() for x in tensors), phi=wide, **at)
    with torch.no_grad():
        ours = l2e_kinetic_rule(*tensors, phi=phi, **at)
    assert worst_difference((tensors[0], tensors[3]), LENGTHS, ours, theirs) < 3 * TOLERANCE


@pytest.mark.parametrize("name", ["SGHMC", "L2E", "AdaptedSGHMC", "MetaSGMCMC", "KineticL2E", "PrecondL2E"])
def test_a_graph_of_the_weights_before_is_refused_after_a_step(name):
    """A compiled step changes weights that a graph may still need: autograd must hear of it."""
    model, (x, y) = small_network(), small_data()
    sampler = SAMPLERS[name](model.parameters())
    stale = torch.nn.functional.cross_entropy(model(x), y)
    sampler.step(closure_for(model, sampler))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stale.backward()
