"""Momentum whitened by a matrix's inputs: against eigenvectors, in blocks, in every way to take a step."""

import copy
import math
import re

import pytest
import torch
from torch import nn

from learned_samplers import L2E
from learned_samplers.base import whitening
from learned_samplers.base.matrices import orthogonal
from learned_samplers.base.segments import Segments
from learned_samplers.base.whitening import (
    flat_states,
    initial_whitening,
    state_lengths,
    state_shape,
    update_whitening,
    update_whitening_,
)
from learned_samplers.learned.feature_sets import FEATURE_SETS, FeatureSet
from learned_samplers.learned.l2e.rule import L2ESettings
from learned_samplers.learned.preconditioned import PrecondL2E
from learned_samplers.learned.whole_matrices import whole_direction, whole_rows

D = whitening.COVARIANCE_DECAY
WHITENED = FEATURE_SETS["whitened"]
#: The feature sets that whiten.
SETS = ("whitened", "orthogonal_whitened")


def matrix(rows, columns, seed=0, **kind):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, **kind)


def expected_direction(ahead, covariance):
    """By the definition: M·(R + 10⁻⁴·‖R‖)^(−1/2), root mean square 1."""
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors @ torch.diag((values / covariance.norm() + 1e-4) ** -0.5) @ vectors.mT
    found = ahead @ root
    return found / found.square().mean().sqrt()


def states_after(gradients):
    """The state of one matrix after these gradients."""
    state = torch.zeros(state_shape(gradients[0].shape), dtype=gradients[0].dtype)
    for step, gradient in enumerate(gradients):
        update_whitening_([state], [gradient], step)
    return state


def test_what_is_no_matrix_has_no_state_and_is_divided_by_its_root_mean_square():
    segments = Segments.of([torch.empty(5), torch.empty(()), torch.empty(1, 6), torch.empty(3, 2)])
    assert state_lengths(segments) == (0, 0, 0, 8)
    m, g = matrix(1, 18, 1)[0], matrix(1, 18, 2)[0]
    kept = update_whitening(torch.zeros(8, dtype=torch.float64), g, segments, 0)
    found = whole_direction(WHITENED, m, g, segments, kept, g)[:12]
    ahead = (0.9 * m + 0.1 * g)[:12]
    for piece, original in zip(found.split((5, 1, 6)), ahead.split((5, 1, 6)), strict=True):
        torch.testing.assert_close(piece, original / original.square().mean().sqrt())


def test_members_and_matrices_of_one_shape_do_not_touch_each_other():
    segments = Segments((12, 12, 6), ((3, 4), (3, 2, 2), (2, 3)))
    gradient = matrix(2, 30, 3)
    zeros = torch.zeros(2, sum(state_lengths(segments)), dtype=torch.float64)
    together = update_whitening(zeros, gradient, segments, 0)
    direction = whole_direction(WHITENED, gradient, gradient, segments, together, gradient)
    for member in range(2):
        alone = update_whitening(zeros[member], gradient[member], segments, 0)
        torch.testing.assert_close(together[member], alone)
        for piece, state, shape in zip(
            gradient[member].split(segments.lengths), flat_states(alone, segments), segments.matrices, strict=True
        ):
            torch.testing.assert_close(state, states_after([piece.view(shape)]))
        found = whole_direction(WHITENED, *[gradient[member]] * 2, segments, alone, gradient[member])
        torch.testing.assert_close(direction[member], found)
    assert not zeros.any()


def network_along_the_feature(own):
    network = nn.Sequential(nn.Linear(31, 2), nn.ReLU(), nn.Linear(2, own.outputs))
    with torch.no_grad():
        for p in network.parameters():
            p.zero_()
        network[0].weight[:, own.features.index(f"{own.feature_set}_0.9")] = torch.tensor([1.0, -1.0])
        network[2].weight[1] = torch.tensor([-1.0, 1.0])
    return network


@pytest.mark.parametrize("feature_set", ["whitened", "orthogonal_whitened"])
@pytest.mark.parametrize("kind", ["compiled", "torch", "one by one", "float64", "bfloat16 averages"])
def test_the_optimizer_moves_a_matrix_along_the_whitened_momentum(kind, feature_set, monkeypatch):
    """A network whose β is minus the feature: a step of a cold chain is SGHMC's and −s_β·ε·feature."""
    if kind in ("torch", "one by one"):
        monkeypatch.setenv("LEARNED_SAMPLERS_NATIVE", "0")
    dtype = torch.float64 if kind == "float64" else torch.float32
    narrow = {"averages_dtype": "bfloat16"} if kind == "bfloat16 averages" else {}
    own = L2ESettings(feature_set=feature_set, beta_scale=3.0, friction_scale=0.0, **narrow)
    params = [nn.Parameter(matrix(6, 3).to(dtype)), nn.Parameter(matrix(1, 5)[0].to(dtype))]
    if kind == "one by one":
        params = params[:1]
    sampler = L2E(
        params,
        lr=1e-4,
        num_data=100,
        network=network_along_the_feature(own),
        settings=own,
        temperature=0.0,
        momentum_decay=1.0,
    )
    m = covariance = 0.0
    for step in range(3):
        before = [p.detach().clone() for p in params]
        gradients = [matrix(6, 3, 8 + step).to(dtype), matrix(1, 5, 19 + step)[0].to(dtype)][: len(params)]
        for p, g in zip(params, gradients, strict=True):
            p.grad = g.clone()
        sampler.step()
        g = gradients[0].double()
        m, covariance = 0.9 * m + 0.1 * g, D * covariance + (1 - D) * g.mT @ g
        direction = expected_direction(0.9 * m + 0.1 * g, covariance)
        if feature_set == "orthogonal_whitened":
            direction = orthogonal([direction])[0]
        direction = direction.to(dtype)
        epsilon = math.sqrt(1e-4 / 100)
        moved = before[0] - epsilon * (epsilon * 100 * gradients[0] + 3.0 * direction)
        torch.testing.assert_close(params[0].detach(), moved, rtol=1e-4, atol=1e-4 if narrow else 2e-6)
    assert sampler.state[params[0]]["whitening"].shape == (2, 1, 3, 3)


def test_a_chain_resumes_bit_for_bit_and_refuses_a_state_of_other_shape():
    def chain(seed=0):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
        own = torch.Generator().manual_seed(seed)
        return model, L2E(model.parameters(), lr=1e-3, num_data=10, network=None, feature_set="whitened", generator=own)

    def steps(model, sampler, count, first=0):
        for i in range(first, first + count):
            sampler.zero_grad()
            model(matrix(6, 4, i).float()).square().mean().backward()
            sampler.step()

    model, sampler = chain()
    steps(model, sampler, 12)
    other, twin = chain(1)
    other.load_state_dict(model.state_dict())
    twin.load_state_dict(copy.deepcopy(sampler.state_dict()))
    steps(model, sampler, 9, 12)
    steps(other, twin, 9, 12)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))
    spoilt = sampler.state_dict()
    spoilt["state"][0]["whitening"] = torch.zeros(2, 1, 3, 3)
    with pytest.raises(ValueError, match="whitening"):
        twin.load_state_dict(spoilt)


def test_what_it_refuses():
    segments = Segments((4,), ((2, 2),))
    with pytest.raises(ValueError, match="whitening must be given for a feature set with covariances, got None"):
        update_whitening(None, torch.ones(4), segments, 0)
    with pytest.raises(ValueError, match="root of a covariance is not differentiated through"):
        update_whitening(torch.zeros(8), torch.ones(4, requires_grad=True), segments, 0)
    with pytest.raises(ValueError, match=r"shapes of the tensors must be known here"):
        update_whitening(torch.zeros(8), torch.ones(4), Segments((4,)), 0)
    for feature_set in SETS:
        with pytest.raises(ValueError, match="feature_set must be one of"):
            PrecondL2E([nn.Parameter(torch.zeros(2, 2))], lr=0.1, num_data=10, feature_set=feature_set)


def test_users_are_told_where_it_is_slow():
    wide, needed = [nn.Parameter(torch.zeros(4000, 4000))], []
    for feature_set in ("matrix", *SETS):
        with pytest.warns(UserWarning, match=r"\d+ billion operations a step here .*4000×4000.*network='l2e'") as seen:
            L2E(wide, lr=0.1, num_data=10, network=None, feature_set=feature_set)
        text = str(seen[0].message)
        assert ("momentum whitened" in text) == (feature_set in SETS)
        needed.append(int(re.search(r"(\d+) billion", text)[1]))
    assert needed[2] == pytest.approx(needed[0] + needed[1], abs=1), "the one after the other"


def test_the_feature_sets_have_it_in_the_place_of_the_orthogonal_factor():
    theirs = FEATURE_SETS["matrix"]
    for name in SETS:
        pairs = zip(FEATURE_SETS[name].names, theirs.names, strict=True)
        assert [a for a, b in pairs if a != b] == [f"{name}_0.9"]


def test_the_orthogonal_factor_of_whitened_momentum_has_equal_singular_values():
    """Whitening alone has not: that is what the third kind is for."""
    gradient = matrix(6, 4)
    state = initial_whitening(gradient)
    for step in range(12):
        update_whitening_([state], [matrix(6, 4, step)], step)
    spread = {}
    for name in SETS:
        (found,) = whole_rows(FEATURE_SETS[name], [gradient], [state], [gradient])
        values = torch.linalg.svdvals(found)
        spread[name] = float(values.max() / values.min())
        assert found.square().mean().sqrt() == pytest.approx(1, abs=0.2)
    assert spread["orthogonal_whitened"] < 1.2 / 0.68 < spread["whitened"]


def test_one_that_joins_between_two_roots_moves_along_its_momentum_until_the_next():
    """Not along nothing: its root is 1 until it is made."""
    own = L2ESettings(feature_set="whitened", beta_scale=3.0, friction_scale=0.0)
    first, late = nn.Parameter(matrix(3, 4)), nn.Parameter(matrix(4, 3, 1))
    sampler = L2E(
        [first, late],
        lr=1e-4,
        num_data=100,
        network=network_along_the_feature(own),
        settings=own,
        temperature=0.0,
        missing_gradient="skip",
    )
    for step in range(13):
        first.grad = matrix(3, 4, step)
        sampler.step()
    late.grad, before = matrix(4, 3, 50), late.detach().clone()
    sampler.step()
    epsilon = math.sqrt(1e-4 / 100)
    direction = late.grad / late.grad.square().mean().sqrt()
    expected = before - epsilon * (epsilon * 100 * late.grad + 3.0 * direction)
    torch.testing.assert_close(late.detach(), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(whole="diagonal", second_moment_decays=(0.99,)), "whole must be None or one of .*, got 'diagonal'"),
        (dict(whole="whitened"), "needs second moments and that average"),
        (dict(whole="whitened", second_moment_decays=(0.99,), whole_decay=0.8), "the average at 0.8"),
    ],
)
def test_feature_sets_that_cannot_have_the_row_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        FeatureSet("mine", **given)
