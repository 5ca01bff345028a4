"""Features of the learned samplers: against plain formulas, tensor by tensor, in float64."""

import math

import pytest
import torch

from learned_samplers.base.matrices import (
    as_matrices,
    directions,
    flat_states,
    renew_roots_,
    state_lengths,
    update_covariances_,
)
from learned_samplers.base.segments import Segments
from learned_samplers.learned.averages import update_averages
from learned_samplers.learned.feature_sets import AVERAGE_DECAYS, FEATURE_SETS
from learned_samplers.learned.features import Features, Run
from tests.learned_samplers.learned.cases import features

LENGTHS = (12, 1, 30, 7)
SHAPES = ((3, 4), (1,), (5, 3, 2), (7,))
SEGMENTS = Segments(LENGTHS, SHAPES)
LR, NUM_DATA, STEP, TOTAL_STEPS = 0.3, 400.0, 4, 50
AT = dict(lr=LR, num_data=NUM_DATA)


def own_averages(averages, name):
    """Running averages of a set, among the (8, d) that "adaptive" keeps."""
    named = FEATURE_SETS[name]
    rows = list(range(len(AVERAGE_DECAYS)))
    rows += [len(AVERAGE_DECAYS) + (0.99, 0.999).index(d) for d in named.second_moment_decays]
    return averages[rows]


def seen_by(state, name):
    """Inputs that the features of a set are made of."""
    inputs = {key: value for key, value in state.items() if key != "whitening"}
    inputs["averages"] = own_averages(state["averages"], name)
    if FEATURE_SETS[name].matrix:
        ahead = 0.9 * state["averages"][2] + 0.1 * state["gradient"]
        kept = flat_states(state["whitening"], SEGMENTS)
        rows = directions(as_matrices(ahead, SEGMENTS), kept, as_matrices(state["parameter"], SEGMENTS))
        inputs["direction"] = torch.cat([row.flatten() for row in rows])
    return inputs


def rms(x):
    return math.sqrt(float((x * x).mean()))


def whitening_of(gradients):
    kept = gradients[0].new_zeros(sum(state_lengths(SEGMENTS)))
    for gradient in gradients:
        update_covariances_(flat_states(kept, SEGMENTS), as_matrices(gradient, SEGMENTS))
    for step in range(10):
        renew_roots_(flat_states(kept, SEGMENTS), step)
    return kept


@pytest.fixture
def state():
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    averages, seen = torch.zeros(8, SEGMENTS.total, dtype=torch.float64), []
    for _ in range(STEP + 1):
        gradient = 1e-2 * draw(SEGMENTS.total)
        averages = update_averages(averages, gradient, "adaptive")
        seen.append(gradient)
    theta, r, whitening = 0.2 * draw(SEGMENTS.total), draw(SEGMENTS.total), whitening_of(seen)
    return dict(parameter=theta, momentum=r, gradient=gradient, averages=averages, whitening=whitening)


def root_long_side_times_factor(x, shape):
    """√(longer side)·U·p(…p(S/‖S‖))·Vᵀ by the singular values, p as in Muon; a vector's root mean square is 1."""
    if len(shape) < 2:
        return x / rms(x)
    u, s, vt = torch.linalg.svd(x.reshape(shape[0], -1), full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s @ vt).flatten() * math.sqrt(max(shape[0], len(x) // shape[0]))


def whitened_by_its_covariance(x, tensor, whitening):
    """M·R^(−1/2) with R from the state, by eigenvalues; a vector's root mean square is 1."""
    (kept, shape) = flat_states(whitening, SEGMENTS)[tensor], SHAPES[tensor]
    if len(shape) < 2:
        return x / rms(x)
    values, vectors = torch.linalg.eigh(kept[0, 0])
    direction = x.reshape(shape[0], -1) @ vectors @ torch.diag((values / values.norm() + 1e-4) ** -0.5) @ vectors.mT
    return direction.flatten() / rms(direction)


def rows_of(state, tensor, name):
    """A feature of one tensor, written out from its definition."""
    start = sum(LENGTHS[:tensor])
    part = slice(start, start + LENGTHS[tensor])
    theta, r, g = (state[key][part] for key in ("parameter", "momentum", "gradient"))
    m = {decay: state["averages"][i, part] for i, decay in enumerate(AVERAGE_DECAYS)}
    v = {decay: state["averages"][6 + i, part] for i, decay in enumerate((0.99, 0.999))}
    t, epsilon, count = STEP + 1, math.sqrt(LR / NUM_DATA), LENGTHS[tensor]

    def normalised(x):
        return x / math.sqrt(1e-5 + rms(x) ** 2)

    def constant(value):
        return torch.full((count,), value, dtype=torch.float64)

    if name in ("gradient", "parameter", "momentum"):
        return normalised({"gradient": g, "parameter": theta, "momentum": r}[name])
    if name.startswith("average") and not name.endswith("to_rms"):
        return normalised(m[float(name.split("_")[1])])
    if name.endswith("to_rms"):
        root = (v[0.99] / (1 - 0.99**t)).sqrt()
        top = g if name.startswith("gradient") else m[d := float(name.split("_")[1])] / (1 - d**t)
        return (top / root).clamp(-8, 8)
    if name.startswith("log_rms"):
        root = v[float(name.split("_")[2])].sqrt()
        return 0.25 * (root / rms(root)).log()
    if name.startswith("log_coherence"):
        d = float(name.split("_")[2])
        return constant(0.25 * math.log(rms(m[d]) / (1 - d**t) / rms(g)))
    if name.startswith("time"):
        return constant(t / (t + float(name.split("_")[1])))
    if name == "matrix_direction":
        ahead = whitened_by_its_covariance(0.9 * m[0.9] + 0.1 * g, tensor, state["whitening"])
        return root_long_side_times_factor(ahead, SHAPES[tensor])
    return constant(
        {
            "is_matrix": float(len(SHAPES[tensor]) > 1),
            "log_kick": 0.25 * math.log(epsilon * NUM_DATA * rms(g)),
            "log_parameter": 0.25 * math.log(rms(theta)),
            "log_momentum": 0.25 * math.log(rms(r)),
            "log_displacement": 0.25 * math.log(epsilon * rms(r) / rms(theta)),
            "log_size": math.log10(count) / 3 - 1,
            "log_data": math.log10(NUM_DATA) / 3 - 1,
            "progress": STEP / TOTAL_STEPS,
            "has_total": 1.0,
        }[name]
    )


@pytest.mark.parametrize("name", FEATURE_SETS)
def test_every_row_is_what_its_name_says(state, name):
    named = FEATURE_SETS[name]
    x = features(**seen_by(state, name), segments=SEGMENTS, feature_set=name, **AT, step=STEP, total_steps=TOTAL_STEPS)
    assert x.shape == (named.size, SEGMENTS.total)
    assert len(set(named.names)) == named.size
    for i, row in enumerate(named.names):
        expected = torch.cat([rows_of(state, tensor, row) for tensor in range(len(LENGTHS))])
        # The floors inside the logarithms are 1e-8 of a square: 1e-5 of these values and less.
        torch.testing.assert_close(x[i], expected, rtol=0, atol=1e-6, msg=lambda text, row=row: f"{row}: {text}")


def test_a_run_without_an_end_has_no_progress_and_one_with_an_end_stays_there(state):
    common = dict(**seen_by(state, "matrix"), segments=SEGMENTS, feature_set="matrix", **AT)
    where = [FEATURE_SETS["matrix"].names.index(name) for name in ("progress", "has_total")]
    for step, total, expected in ((7, None, (0, 0)), (7, 70, (0.1, 1)), (70, 70, (1, 1)), (700, 70, (1, 1))):
        x = features(**common, step=step, total_steps=total)
        torch.testing.assert_close(x[where, 0], torch.tensor(expected, dtype=x.dtype))


@pytest.mark.parametrize("name", FEATURE_SETS)
def test_leading_axes_and_windows_give_the_same_features(state, name):
    generator = torch.Generator().manual_seed(8)
    stretch = 1 + torch.rand(2, 3, 1, generator=generator, dtype=torch.float64)
    one = seen_by(state, name)
    batch = {key: value * (stretch.unsqueeze(-2) if key == "averages" else stretch) for key, value in one.items()}
    context = dict(**AT, step=STEP)
    x = features(**batch, segments=SEGMENTS, feature_set=name, **context)
    alone = features(**{k: v[1, 2] for k, v in batch.items()}, segments=SEGMENTS, feature_set=name, **context)
    torch.testing.assert_close(x[1, 2], alone, rtol=1e-12, atol=1e-12)
    momentum = batch.pop("momentum")
    direction, run = batch.pop("direction", None), Run(LR, NUM_DATA, STEP + 1)
    scales = Features(**batch, segments=SEGMENTS, feature_set=FEATURE_SETS[name], run=run).with_momentum(momentum)
    scales.direction = direction
    for width in (1, 5, 13, 49):
        pieces = [scales.window(a, min(a + width, SEGMENTS.total)) for a in range(0, SEGMENTS.total, width)]
        torch.testing.assert_close(torch.cat(pieces, -1), x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FEATURE_SETS)
@pytest.mark.parametrize("scale", [0.0, 1e-15, 1e15])
def test_extreme_and_dead_tensors_give_finite_features_and_gradients(name, scale):
    generator = torch.Generator().manual_seed(1)
    g = scale * torch.randn(SEGMENTS.total, generator=generator)
    theta, r = torch.zeros(SEGMENTS.total), torch.zeros(SEGMENTS.total)
    averages = update_averages(torch.zeros(FEATURE_SETS[name].num_averages, SEGMENTS.total), g, name)
    inputs = [x.requires_grad_() for x in (theta, r, g, averages.detach())]
    direction = torch.zeros(SEGMENTS.total) if FEATURE_SETS[name].matrix else None
    x = features(*inputs, SEGMENTS, name, **AT, step=0, direction=direction)
    assert x.isfinite().all()
    assert x.abs().max() < 40
    for gradient in torch.autograd.grad(x.sum(), inputs):
        assert gradient.isfinite().all()


def test_running_averages_follow_their_recursion_without_bias_correction():
    generator = torch.Generator().manual_seed(2)
    gradients = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    averages = torch.zeros(8, 5, dtype=torch.float64)
    for g in gradients:
        averages = update_averages(averages, g, "adaptive")
    age = torch.arange(29, -1, -1, dtype=torch.float64)
    for i, d in enumerate(AVERAGE_DECAYS):
        torch.testing.assert_close(averages[i], ((1 - d) * d**age) @ gradients, rtol=1e-12, atol=1e-14)
    for i, d in enumerate((0.99, 0.999)):
        torch.testing.assert_close(averages[6 + i], ((1 - d) * d**age) @ gradients**2, rtol=1e-12, atol=1e-14)
