"""The L2E rule against its equations written out tensor by tensor in numpy, and against SGHMC."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from learned_samplers.base.matrices import state_lengths
from learned_samplers.base.segments import Segments
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.l2e import L2ESettings, l2e_rule
from learned_samplers.learned.network import apply_network
from tests.learned_samplers.learned.cases import features, network, phi_of
from tests.learned_samplers.learned.flat_keywords import keywords

l2e_paper_rule = keywords(l2e_rule, L2ESettings, form="paper")
l2e_residual_rule = keywords(l2e_rule, L2ESettings)

LENGTHS = (40, 3, 25)
SEGMENTS = Segments(LENGTHS, ((8, 5), (3,), (5, 5)))
HYPER = dict(lr=0.2, num_data=300.0, temperature=0.7, prior_precision=4.0, momentum_decay=0.1)
DECAYS = np.array([0.1, 0.5, 0.9, 0.99, 0.999, 0.9999])


def weights(feature_set="paper"):
    return phi_of(network(feature_set, dtype=torch.float64))


def chain_state(feature_set="paper"):
    generator, named = torch.Generator().manual_seed(1), FEATURE_SETS[feature_set]
    scales = (0.3, 0.01, 1.0, 1.0)
    chain = [scale * torch.randn(SEGMENTS.total, generator=generator, dtype=torch.float64) for scale in scales]
    kept = [(named.num_averages, SEGMENTS.total)] + ([(sum(state_lengths(SEGMENTS)),)] if named.matrix else [])
    return [*chain, *(torch.zeros(shape, dtype=torch.float64) for shape in kept)]


def reference_network(phi, theta, r, g, m):
    """Coordinate-major, one tensor: (n, 9) features, RMS over the tensor."""
    x = np.concatenate([np.stack([g, theta, r], -1), m], -1)
    x = x / np.sqrt(1e-5 + (x**2).mean(0, keepdims=True))
    for i, (w, b) in enumerate(phi):
        x = x @ w.T + b
        x = np.maximum(x, 0) if i < len(phi) - 1 else x
    return x[:, 0], x[:, 1]


def reference_run(rule, phi, theta, gradients, noises, fault=None):
    """Several steps of Eq. 6 (``paper``), or of the residual form."""
    phi = [(w.numpy(), b.numpy()) for w, b in phi]
    lr, n, temperature, prior, a = (HYPER[key] for key in HYPER)
    eps = np.sqrt(lr / n)
    theta, r, m = theta.numpy().copy(), np.zeros(SEGMENTS.total), np.zeros((SEGMENTS.total, 6))
    bounds = np.cumsum((0, *LENGTHS))
    for g_all, xi_all in zip(gradients.numpy(), noises.numpy(), strict=True):
        for start, stop in pairwise(bounds):
            s = slice(start, stop)
            g, xi = g_all[s], xi_all[s]
            if fault == "averages updated after the features":
                old = m[s].copy()
            m[s] = DECAYS * m[s] + (1 - DECAYS) * g[:, None]
            seen = old if fault == "averages updated after the features" else m[s]
            alpha, beta = reference_network(phi, theta[s], r[s], g, seen)
            drift = eps * (n * g + prior * theta[s])
            before = r[s].copy()
            if rule == "residual":
                r[s] = (1 - a) * r[s] - drift + np.sqrt(2 * a * temperature) * xi - 0.1 * alpha - a * beta
            else:
                r[s] = r[s] - drift - eps * 1e-3 * alpha - a * 1e-3 * beta + np.sqrt(2 * a * temperature) * xi
            second = before if fault == "second pass with the old momentum" else r[s]
            _, beta = reference_network(phi, theta[s], second, g, seen)
            theta[s] += eps * ((r[s] + beta) if rule == "residual" else 1e-3 * beta)
    return theta, r, m


def run(rule, phi, theta, gradients, noises):
    function = l2e_residual_rule if rule == "residual" else l2e_paper_rule
    r, m = torch.zeros_like(theta), torch.zeros(6, SEGMENTS.total, dtype=theta.dtype)
    for step, (g, xi) in enumerate(zip(gradients, noises, strict=True)):
        theta, r, m = function(theta, g, xi, r, m, phi=phi, segments=SEGMENTS, step=step, **HYPER)
    return theta, r, m


def scripted(steps=12, seed=5):
    generator = torch.Generator().manual_seed(seed)
    draw = [torch.randn(steps, SEGMENTS.total, generator=generator, dtype=torch.float64) for _ in range(2)]
    return 0.3 * torch.randn(SEGMENTS.total, generator=generator, dtype=torch.float64), 0.01 * draw[0], draw[1]


FAULTS = ["averages updated after the features", "second pass with the old momentum"]


@pytest.mark.parametrize("rule", ["residual", "paper"])
def test_trajectory_is_that_of_the_equations_and_the_comparison_sees_a_planted_fault(rule):
    phi, (theta, gradients, noises) = weights(), scripted()
    trajectory = run(rule, phi, theta, gradients, noises)
    expected = reference_run(rule, phi, theta, gradients, noises)
    for ours, theirs in zip((*trajectory[:2], trajectory[2].T), expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-12)
    moved = np.abs(expected[0] - theta.numpy()).max()
    for fault in FAULTS:
        wrong = reference_run(rule, phi, theta, gradients, noises, fault)[0]
        assert np.abs(expected[0] - wrong).max() > 1e-3 * moved


@pytest.mark.parametrize("rule", [l2e_residual_rule, l2e_paper_rule])
def test_inputs_are_left_alone_and_the_rule_is_differentiable(rule):
    state = chain_state()
    phi = [(w.clone().requires_grad_(), b.clone().requires_grad_()) for w, b in weights()]
    copies = [x.clone() for x in state]
    lr = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    theta, r, _ = rule(*state, phi=phi, segments=SEGMENTS, **{**HYPER, "lr": lr})
    for before, after in zip(copies, state, strict=True):
        assert torch.equal(before, after)
    loss = theta.square().sum() + 1e-3 * r.square().sum()
    got = torch.autograd.grad(loss, [lr, *(t for pair in phi for t in pair)])
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in got)

    def value(x):
        theta, r, _ = rule(*state, phi=phi, segments=SEGMENTS, **{**HYPER, "lr": x})
        return (theta.square().sum() + 1e-3 * r.square().sum()).item()

    slope = (value(0.2 + 1e-6) - value(0.2 - 1e-6)) / 2e-6
    assert got[0].item() == pytest.approx(slope, rel=1e-5)


def test_with_a_reference_the_learned_velocity_does_not_depend_on_the_number_of_data():
    """θ moves by √(lr/N₀)·s_β·β beside ε·r, whatever N is; and N = 4·N₀ is s_β doubled."""
    theta, g, _, r, m = chain_state()
    hyper = {**HYPER, "temperature": 0.0, "prior_precision": 0.0}
    common = dict(phi=weights(), segments=SEGMENTS, friction_scale=0.0, beta_scale=3.0)

    def learned_move(num_data, phi):
        options = {**hyper, "num_data": num_data, **common, "phi": phi, "alpha_scale": 0.0}
        return l2e_residual_rule(theta, torch.zeros_like(g), None, r, m, num_data_in_training=50.0, **options)[0]

    silent = [(torch.zeros_like(weight), torch.zeros_like(bias)) for weight, bias in common["phi"]]
    moves = [learned_move(n, common["phi"]) - learned_move(n, silent) for n in (50.0, 800.0)]
    assert moves[0].abs().max() > 0.01
    torch.testing.assert_close(moves[0], moves[1])

    with_reference = l2e_residual_rule(
        theta, g, None, r, m, **hyper, **common, num_data_in_training=HYPER["num_data"] / 4
    )
    doubled = l2e_residual_rule(theta, g, None, r, m, **hyper, **{**common, "beta_scale": 6.0})
    for ours, theirs in zip(with_reference, doubled, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("form", ["residual", "paper"])
def test_a_normalised_output_has_root_mean_square_one_over_each_tensor(form):
    """By the velocity that is left without friction on β; and whatever the scale of the network's last row."""
    theta, g, _, r, m = chain_state()
    rule = l2e_residual_rule if form == "residual" else l2e_paper_rule
    hyper = {**HYPER, "prior_precision": 0.0}
    common = dict(segments=SEGMENTS, **hyper, beta_scale=0.5, friction_scale=0.0, normalise_output=True, step=7)
    phi = weights()
    moved, momentum, _ = rule(theta, g, None, r, m, phi=phi, **common)
    inertia = momentum if form == "residual" else 0.0
    beta = ((moved - theta) / np.sqrt(HYPER["lr"] / HYPER["num_data"]) - inertia) / 0.5
    torch.testing.assert_close(SEGMENTS.mean_square(beta), torch.ones(3, dtype=beta.dtype), rtol=0.05, atol=0.0)
    *hidden, (weight, bias) = phi
    factor = torch.tensor([1.0, 100.0], dtype=weight.dtype)
    louder = [*hidden, (weight * factor[:, None], bias * factor)]
    again = rule(theta, g, None, r, m, phi=louder, **common)[0]
    torch.testing.assert_close(again - theta, moved - theta, rtol=0.05, atol=0.0)
    plain = rule(theta, g, None, r, m, phi=louder, **{**common, "normalise_output": False})[0]
    assert ((plain - moved).abs() > 0.1 * (moved - theta).abs()).any()


@pytest.mark.parametrize("gate", [-50.0, -1.3, 0.0, 0.7, 50.0])
def test_a_gate_multiplies_the_learned_velocity_and_nothing_else(gate):
    phi, state = weights("matrix"), chain_state(feature_set="matrix")
    *hidden, (weight, bias) = phi
    constant = torch.cat([weight, torch.zeros_like(weight[:1])]), torch.cat([bias, bias.new_tensor([gate])])
    gated = l2e_residual_rule(
        *state, phi=[*hidden, constant], segments=SEGMENTS, feature_set="matrix", gated=True, **HYPER
    )
    factor = float(np.exp(np.clip(gate, -6, 6)))
    both = torch.tensor([1.0, factor], dtype=weight.dtype)
    scaled = weight * both.unsqueeze(-1), bias * both
    plain = l2e_residual_rule(*state, phi=[*hidden, scaled], segments=SEGMENTS, feature_set="matrix", **HYPER)
    for ours, theirs in zip(gated, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_gate_is_learned_for_each_coordinate():
    phi, state = weights("matrix"), chain_state(feature_set="matrix")
    *hidden, (weight, bias) = phi
    layers = [*hidden, (torch.cat([weight, -weight[1:]]), torch.cat([bias, -bias[1:]]))]
    at = features(*(state[i] for i in (0, 3, 1, 4)), SEGMENTS, "matrix", lr=0.2, num_data=300.0, direction=state[2])
    ungated, gated = apply_network(phi, at), apply_network(layers, at)
    torch.testing.assert_close(gated[0], ungated[0])
    torch.testing.assert_close(gated[1], ungated[1] * (-ungated[1]).clamp(-6, 6).exp())
