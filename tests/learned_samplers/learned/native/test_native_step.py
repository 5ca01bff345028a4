"""The compiled update against the pure rule: forms, features, shapes, members, threads."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from learned_samplers.base.segments import Segments
from learned_samplers.classical.sghmc import sghmc_rule
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.l2e.rule import L2ESettings
from learned_samplers.learned.native.step import can_step, step_flat_, step_tensors_
from tests.learned_samplers.learned.native.native_cases import (
    HYPER,
    RULES,
    TOLERANCE,
    TOLERANCE_OF_ROOTS,
    networks,
    segments_of,
    state,
    step_by_code,
    step_by_rule,
    with_settings,
    worst_difference,
)

pytestmark = pytest.mark.usefixtures("library")
LENGTHS = (40, 3, 1, 2500, 48, 16, 17)
FORMS = ("residual", "paper", "preconditioner")


def assert_same_step(tensors, lengths, **given):
    given = {**HYPER, **given}
    ours, theirs = step_by_code(tensors, lengths, **given), step_by_rule(tensors, lengths, **given)
    whitens = FEATURE_SETS[given["feature_set"]].whitens
    assert worst_difference(tensors, lengths, ours, theirs) < (TOLERANCE_OF_ROOTS if whitens else TOLERANCE)
    for changed, wanted in zip(ours[3:], theirs[3:], strict=True):
        scale = max(map(float, wanted.flatten().abs()), default=0.0)
        torch.testing.assert_close(changed.double(), wanted, rtol=0, atol=2e-3 * scale)
    return ours


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("feature_set", FEATURE_SETS)
def test_every_form_and_feature_set(form, feature_set):
    if form == "preconditioner" and FEATURE_SETS[feature_set].whitens:
        pytest.skip("the preconditioned sampler has no covariances")
    tensors = state(LENGTHS, feature_set)
    assert_same_step(tensors, LENGTHS, form=form, feature_set=feature_set, phi=networks(feature_set))


@pytest.mark.parametrize("hidden", [(1,), (8, 8), (16, 16), (32, 32), (5, 7, 9), (64, 3, 64, 20)], ids=str)
def test_every_kind_of_network(hidden):
    tensors = state(LENGTHS, "adaptive")
    assert_same_step(tensors, LENGTHS, form="residual", feature_set="adaptive", phi=networks("adaptive", hidden))


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("leading", [(1,), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("feature_set", ["lean", "matrix", "whitened", "damped_orthogonal_whitened"])
def test_members_with_shared_and_with_own_weights(leading, own, feature_set):
    members = torch.Size(leading).numel()
    phi = networks(feature_set, (8, 8), members if own else None)
    if own:
        phi = [(weight.unflatten(0, leading), bias.unflatten(0, leading)) for weight, bias in phi]
    tensors = state(LENGTHS, feature_set, leading)
    assert_same_step(tensors, LENGTHS, form="residual", feature_set=feature_set, phi=phi)


def test_tensors_of_their_own_shapes_move_as_the_flat_buffer_does():
    """The row that is given from outside reaches the right tensors, whatever their memory layout."""
    shapes = ((6, 3, 2, 2), (5,), (4, 7), (), (3, 1))
    segments = Segments(tuple(torch.Size(s).numel() for s in shapes), shapes)
    tensors, phi = state(segments.lengths, "matrix"), networks("matrix")
    given = {**HYPER, "phi": phi, "settings": L2ESettings(feature_set="matrix")}
    expected = RULES["residual"](*tensors, segments=segments, **given)
    split = [
        [piece.reshape((*piece.shape[:-1], *s)).clone() for piece, s in zip(x.split(segments.lengths, -1), shapes)]
        for x in tensors
    ]
    for row in split[:4]:
        row[0] = row[0].to(memory_format=torch.channels_last)
    step_tensors_(*split, **given)
    for row, wanted in zip((split[0], split[3], split[4]), expected, strict=True):
        lead = wanted.shape[:-1]
        torch.testing.assert_close(torch.cat([x.reshape((*lead, -1)) for x in row], -1), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 47, 48, 49, 2047, 2048, 2049, 100_003, 1_000_000])
def test_one_tensor_of_any_length(length):
    tensors = state((length,), "lean")
    assert_same_step(tensors, (length,), form="residual", feature_set="lean", phi=networks("lean", (8, 8)))


@pytest.mark.parametrize(
    "changes",
    [
        dict(temperature=0.0),
        dict(prior_precision=0.0),
        dict(friction_scale=0.0, beta_scale=10.0, reference_data=50_000.0),
        dict(decay_time=100.0),
        dict(decay_time=100.0, reference_data=500.0),
        dict(output_bound=0.5),
        dict(output_bound=0.01, decay_time=5.0),
        dict(alpha_scale=0.0),
        dict(step=0),
        dict(step=100_000),
        dict(lr=1e-6, num_data=1e6),
        dict(normalise_output=True),
        dict(normalise_output=True, friction_scale=0.0, temperature=0.0),
        dict(normalise_output=True, output_bound=0.5, decay_time=5.0, temperature=0.0),
        dict(gated=True),
        dict(gated=True, output_bound=0.5, decay_time=5.0, friction_scale=0.0, temperature=0.0),
    ],
    ids=str,
)
def test_every_setting_of_the_residual_form(changes):
    tensors = state(LENGTHS, "adaptive_data")
    if changes.get("temperature") == 0:
        tensors[2] = None
    phi = networks("adaptive_data", outputs=3 if changes.get("gated") else 2)
    assert_same_step(tensors, LENGTHS, form="residual", feature_set="adaptive_data", phi=phi, **changes)


@pytest.mark.parametrize(
    "changes",
    [dict(friction="algorithm2", noise_multiplier=1e-3), dict(output_bound=2.0), dict(normalise_output=True)],
    ids=str,
)
def test_every_setting_of_the_paper_form(changes):
    scales = dict(alpha_scale=1.0, beta_scale=2.0, friction_scale=0.5)
    tensors = state(LENGTHS, "paper")
    assert_same_step(tensors, LENGTHS, form="paper", feature_set="paper", phi=networks("paper"), **scales, **changes)


@pytest.mark.parametrize(
    "changes",
    [dict(curl_scale=3.0, curl_clip=1.5), dict(friction_scale=4.0, friction_clip=2.0), dict(temperature=0.0)],
    ids=str,
)
def test_every_setting_of_the_preconditioned_form(changes):
    tensors = state(LENGTHS, "adaptive")
    if changes.get("temperature") == 0:
        tensors[2] = None
    phi = networks("adaptive")
    assert_same_step(tensors, LENGTHS, form="preconditioner", feature_set="adaptive", phi=phi, **changes)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    members=st.integers(1, 4),
    own=st.booleans(),
    hidden=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    feature_set=st.sampled_from(sorted(FEATURE_SETS)),
    form=st.sampled_from(FORMS),
    step=st.integers(0, 10_000),
    seed=st.integers(0, 1000),
)
def test_any_shapes(lengths, members, own, hidden, feature_set, form, step, seed):
    assume(not (form == "preconditioner" and FEATURE_SETS[feature_set].whitens))
    tensors = state(lengths, feature_set, (members,), seed)
    phi = networks(feature_set, hidden, members if own else None, seed)
    assert_same_step(tensors, lengths, form=form, feature_set=feature_set, phi=phi, step=step)


@pytest.mark.parametrize("fault", ["averages", "network of another member", "noise"])
def test_the_comparison_finds_a_fault(fault):
    tensors, phi = state(LENGTHS, "lean", (2,)), networks("lean", (8, 8), 2)
    given = dict(HYPER, form="residual", feature_set="lean", phi=phi)
    theirs = step_by_rule(tensors, LENGTHS, **given)
    if fault == "averages":
        tensors[4] = tensors[4] * (1 + 1e-3)
    elif fault == "noise":
        tensors[2] = tensors[2] * (1 + 1e-3)
    else:
        given["phi"] = [(weight.flip(0), bias.flip(0)) for weight, bias in phi]
    assert worst_difference(tensors, LENGTHS, step_by_code(tensors, LENGTHS, **given), theirs) > TOLERANCE


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("form", FORMS)
def test_the_number_of_threads_changes_no_bit(form, threads):
    lengths = (*LENGTHS, 70_000, 5000)
    tensors, phi = state(lengths, "adaptive"), networks("adaptive")
    results = []
    for count in (1, 2, 3, 7):
        threads(count)
        results.append(step_by_code(tensors, lengths, **HYPER, form=form, feature_set="adaptive", phi=phi))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_last_layer_of_zeros_is_sghmc_bit_for_bit(temperature):
    tensors, phi = state(LENGTHS, "lean"), networks("lean", (8, 8))
    phi = [*phi[:-1], tuple(map(torch.zeros_like, phi[-1]))]
    tensors[2] = tensors[2] if temperature else None
    hyper = {**HYPER, "temperature": temperature}
    parameter, momentum, _ = step_by_code(tensors, LENGTHS, **hyper, form="residual", feature_set="lean", phi=phi)
    del hyper["step"]
    whole, r = sghmc_rule(*tensors[:4], **hyper)
    assert torch.equal(momentum, r)
    assert torch.equal(parameter, whole)


def test_tensors_one_by_one_and_of_any_memory_layout():
    """Lists of tensors, as an optimizer has them, with a momentum and a gradient whose strides are others."""
    shapes = ((4, 3, 3, 3), (7,), (2, 5, 4, 4))
    lengths = [torch.Size(shape).numel() for shape in shapes]
    flat, phi = state(lengths, "lean"), networks("lean", (8, 8))
    given = dict(HYPER, form="residual", feature_set="lean", phi=phi)
    theirs = step_by_code(flat, lengths, **given)
    for layout in (torch.contiguous_format, torch.channels_last):
        rows = [[x.reshape(*x.shape[:-1], *s) for x, s in zip(t.split(lengths, -1), shapes)] for t in flat]
        rows = [[x.clone(memory_format=layout) if x.dim() == 4 else x.clone() for x in row] for row in rows]
        step_tensors_(*rows, **with_settings("residual", {k: v for k, v in given.items() if k != "form"}))
        for row, expected in zip((rows[0], rows[3], rows[4]), theirs, strict=True):
            ours = torch.cat([x.reshape(*x.shape[: expected.dim() - 1], -1) for x in row], -1)
            assert torch.equal(ours, expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30, 1e-42])
def test_what_is_not_finite_or_hardly_a_number_does_no_harm_elsewhere(value):
    """A broken chain stays broken for its own member alone, and its own coordinate shows it."""
    tensors, phi = state((300, 20), "adaptive", (2,)), networks("adaptive")
    given = dict(HYPER, form="residual", feature_set="adaptive", phi=phi)
    whole = step_by_code(tensors, (300, 20), **given)
    tensors[1][0, 7] = value
    broken = step_by_code(tensors, (300, 20), **given)
    for a, b in zip(whole, broken, strict=True):
        assert torch.equal(a[1], b[1])
    assert broken[0][0, 7].isfinite() == (abs(value) < 1e29)


def test_who_cannot_be_served_is_known_beforehand():
    phi, named = networks("lean", (8, 8)), L2ESettings(feature_set="lean")
    x = torch.zeros(3)
    assert can_step(phi, named, x)
    assert not can_step(phi, named, x.double())
    assert not can_step(phi, named, x.bfloat16())
    assert not can_step([(w.double(), b.double()) for w, b in phi], named, x)
    assert not can_step(networks("lean", (65,)), named, x)
    assert not can_step(networks("lean", ()), named, x)
    assert not can_step(networks("lean", (8,) * 5), named, x)
    assert not can_step(phi, L2ESettings(feature_set="paper"), x)
    assert not can_step(phi, named, x.requires_grad_())
    with torch.no_grad():
        assert can_step(phi, named, x)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lengths", [LENGTHS, (1,), (17,), (2049,), (100_003,)], ids=str)
def test_averages_in_bfloat16(form, lengths):
    assert_same_with_narrow_averages(form, lengths, "adaptive")


@pytest.mark.parametrize(
    ("form", "feature_set"),
    [
        ("residual", "matrix"),
        ("residual", "whitened"),
        ("residual", "orthogonal_whitened"),
        ("residual", "damped_orthogonal_whitened"),
        ("preconditioner", "matrix"),
    ],
)
def test_averages_in_bfloat16_with_a_row_of_whole_matrices(form, feature_set):
    """That row is of the average before it is rounded: the nearest orthogonal matrix of another is another."""
    assert_same_with_narrow_averages(form, LENGTHS, feature_set)


def assert_same_with_narrow_averages(form, lengths, feature_set):
    """The same numbers but where a rounding of float32 before it tips one of bfloat16, once in ten thousand or less."""
    tensors, phi = state(lengths, feature_set), networks(feature_set)
    tensors[4] = tensors[4].bfloat16()
    given = {**HYPER, "feature_set": feature_set, "phi": phi, "averages_dtype": "bfloat16"}
    chosen = with_settings(form, given)
    ours = [x.clone() for x in tensors]
    assert can_step(phi, chosen["settings"], *ours[:4], averages=ours[4:5])
    step_flat_(*ours, segments=segments_of(lengths), **chosen)
    parameter, momentum, averages, *_ = RULES[form](*tensors, segments=segments_of(lengths), **chosen)
    assert ours[4].dtype == averages.dtype == torch.bfloat16
    assert (ours[4] != averages).float().mean() < 1e-4
    assert not torch.equal(averages, tensors[4])
    assert_mostly_close(ours[0] - tensors[0], parameter - tensors[0])
    assert_mostly_close(ours[3] - tensors[3], momentum - tensors[3])


def assert_mostly_close(ours, theirs):
    off = (ours - theirs).abs() > 2e-5 * theirs.square().mean().sqrt() + 1e-6
    assert off.float().mean() < 5e-4
