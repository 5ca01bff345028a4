"""MCLMC: its turn against the flow it solves, its law on Gaussians and a banana, its energy errors, its heuristics."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from learned_samplers import MCLMC
from learned_samplers.classical import mclmc
from learned_samplers.classical.mclmc import noise_scale, normalise, turn
from tests.harness import closure_for, flat, small_network
from tests.learned_samplers.classical.test_hmc import banana_energy, moments_by_quadrature, run_chains

N = 100


def unit(*shape):
    x = torch.randn(*shape, dtype=torch.float64)
    return x / x.norm()


# ---------------------------------------------------------------- the turn


def test_the_turn_is_the_flow_of_its_equation():
    """u' = (I − uuᵀ)f/(d−1) by Runge–Kutta, and the kinetic energy's growth as the integral of f·u; 1e-9."""
    torch.manual_seed(0)
    direction, force, time = unit(7), 20 * torch.randn(7, dtype=torch.float64), 0.8
    f = force.numpy()

    def flow(_, z):
        u = z[:7]
        return np.append((f - u * (u @ f)) / 6, f @ u)

    solved = solve_ivp(flow, (0, time), np.append(direction.numpy(), 0.0), rtol=1e-12, atol=1e-12).y[:, -1]
    (turned,), growth = turn([direction], [force], time, 7)
    assert np.allclose(turned.numpy(), solved[:7], atol=1e-9)
    assert growth.item() == pytest.approx(solved[7], abs=1e-8)


def test_one_direction_spans_all_tensors_and_chains_do_not_mix():
    torch.manual_seed(0)
    u, f = [torch.randn(4, 3), torch.randn(4, 2, 2)], [torch.randn(4, 3), torch.randn(4, 2, 2)]
    together, growth = turn(normalise(u, 1), f, 0.5, 7, 1)
    for i in range(4):
        direction = torch.cat([x[i].flatten() for x in u])
        (alone,), one = turn([direction / direction.norm()], [torch.cat([x[i].flatten() for x in f])], 0.5, 7)
        assert torch.allclose(torch.cat([x[i].flatten() for x in together]), alone, atol=1e-6)
        assert growth[i].item() == pytest.approx(one.item(), abs=1e-6)
        assert alone.norm().item() == pytest.approx(1, abs=1e-6)


def test_without_a_force_nothing_turns_and_a_huge_one_aligns():
    u = torch.tensor([0.6, 0.8])
    (still,), growth = turn([u], [torch.zeros(2)], 0.5, 2)
    assert torch.allclose(still, u)
    assert growth.item() == pytest.approx(0, abs=1e-12)
    (aligned,), _ = turn([u], [torch.tensor([1e25, 0.0])], 0.5, 2)
    assert torch.allclose(aligned, torch.tensor([1.0, 0.0]))


# ---------------------------------------------------------------- the law

CURVATURES = torch.logspace(0, 1, 12, dtype=torch.float64)


def gaussian(make, *, steps=800, skip=200, chains=1500, curvatures=CURVATURES, seed=0, temperature=1.0):
    """Variances over T/k for each coordinate of many chains, from exact draws on; the mean, and the sampler."""
    torch.manual_seed(seed)
    d = len(curvatures)
    x = torch.randn(chains, d, dtype=torch.float64) * (temperature / curvatures).sqrt()
    parts = [x[:, : d // 2].clone().requires_grad_(), x[:, d // 2 :].clone().requires_grad_()]
    sampler = make(parts)

    def closure():
        losses = 0
        for p, k in zip(parts, (curvatures[: d // 2], curvatures[d // 2 :]), strict=True):
            p.grad = k * p.detach() / N
            losses = losses + 0.5 * (k * p.detach() ** 2).sum(1) / N
        return losses

    total = torch.zeros(d, dtype=torch.float64)
    for step in range(steps):
        sampler.step(closure)
        if step >= skip:
            total += torch.cat([p.detach().square().mean(0) for p in parts])
    return total / (steps - skip) * curvatures / temperature, sampler


@pytest.mark.parametrize(("momentum_decay", "temperature"), [(0.1, 1.0), (0.3, 0.1)])
def test_the_law_is_a_gaussians_up_to_the_step(momentum_decay, temperature):
    """lr·k/N from 0.01 to 0.1: every variance within 2 % (bias under 1 %, 1,500 chains of 600 steps)."""
    ratio, sampler = gaussian(
        lambda p: MCLMC(p, 1.0, N, momentum_decay=momentum_decay, temperature=temperature), temperature=temperature
    )
    assert torch.allclose(ratio, torch.ones(12, dtype=torch.float64), atol=0.02), ratio
    assert sampler.badge == "O(h)"
    assert sampler.energy_variance.shape == (1500,)


def test_the_bias_and_the_energy_errors_grow_with_the_step():
    """At lr·k/N from 0.1 to 1 the bias is 3 to 4 %; ΔE²/d grows as lr³, less where the refresh has a part in it."""
    ratio, coarse = gaussian(lambda p: MCLMC(p, 10.0, N), steps=600)
    _, fine = gaussian(lambda p: MCLMC(p, 2.5, N), steps=200)
    assert ratio[0].item() == pytest.approx(1.03, abs=0.02)
    assert ratio[-1].item() == pytest.approx(1.04, abs=0.02)
    growth = (coarse.energy_variance.mean() / fine.energy_variance.mean()).item()
    assert 4**2 < growth < 1.25 * 4**3
    assert coarse.energy_error.shape == (1500,)


def test_groups_with_their_own_lr_leave_the_same_law():
    ratio, _ = gaussian(lambda p: MCLMC([{"params": [p[0]], "lr": 2.0}, {"params": [p[1]]}], 0.5, N))
    assert torch.allclose(ratio, torch.ones(12, dtype=torch.float64), atol=0.025), ratio


def _refresh_last(params, gradients, noise, direction, step_size, *, momentum_decay, size, batch_axes, **energy):
    """One whole turn, the whole move, then refresh: its bias of about −a/2 does not vanish with lr."""
    force = mclmc.energy_force(params, gradients, step_size, **energy)
    direction, growth = turn(normalise(direction, batch_axes), force, 1.0, size, batch_axes)
    moved = [p + s * u for p, s, u in zip(params, step_size, direction, strict=True)]
    keep = 1 - momentum_decay
    mixed = [keep * u + math.sqrt((1 - keep**2) / size) * z for u, z in zip(direction, noise, strict=True)]
    return moved, normalise(mixed, batch_axes), (growth, growth)


def _one_dimension_too_many(u, f, time, size, axes=0):
    """d in place of d − 1: every variance is too large by 1/(d−1)."""
    return turn(u, f, time, size + 1, axes)


@pytest.mark.parametrize(
    ("name", "fault", "lr", "decay", "bias"),
    [("mclmc_rule", _refresh_last, 0.3, 0.3, (-0.19, -0.11)), ("turn", _one_dimension_too_many, 1.0, 0.1, (0.05, 1.0))],
)
def test_planted_faults_are_found(name, fault, lr, decay, bias, monkeypatch):
    monkeypatch.setattr(mclmc, name, fault)
    ratio, _ = gaussian(lambda p: MCLMC(p, lr, N, momentum_decay=decay), steps=400, chains=600)
    assert bias[0] < (ratio - 1).mean().item() < bias[1], ratio


def test_the_banana_against_quadrature():
    """The same target as HMC's test; moments within 0.04 of max(1, |moment|)."""
    torch.manual_seed(0)
    start = torch.randn(4000, 2, dtype=torch.float64) - torch.tensor([0.0, 1.0])
    draws, _ = run_chains(banana_energy, start, 1200, cls=MCLMC, lr=0.02, momentum_decay=0.03)
    a, b = draws[400:].reshape(-1, 2).T
    measured = [f.mean() for f in (a, b, a**2, b**2, a**2 * b)]
    for m, e in zip(measured, moments_by_quadrature(banana_energy, 1.0), strict=True):
        assert m.item() == pytest.approx(e, abs=0.04 * max(1, abs(e)))


# ---------------------------------------------------------------- energies and heuristics


def test_without_a_refresh_energy_is_conserved():
    """ΔE summed over a trajectory stays bounded while U itself varies much more."""
    torch.manual_seed(0)
    x = torch.randn(20, dtype=torch.float64).requires_grad_()
    sampler = MCLMC([x], 0.01 * N, N, momentum_decay=1e-12)
    energies, errors = [], []

    def closure():
        x.grad = x.detach() / N
        return 0.5 * x.detach().square().sum() / N

    for _ in range(300):
        energies.append(closure().item() * N)
        sampler.step(closure)
        errors.append(sampler.energy_error.item())
    drift = np.cumsum(errors[1:])
    assert math.isnan(errors[0])
    assert np.ptp(energies) > 5
    assert np.abs(drift).max() < 0.02


def test_the_preconditioner_may_be_a_groups_and_stays_sane_with_minibatches():
    chains, settings = [], {"preconditioner": "gradient_noise"}
    for in_the_group in (False, True):
        model = small_network()
        groups = [{"params": list(model.parameters()), **(settings if in_the_group else {})}]
        sampler = MCLMC(groups, 0.05, 16, prior_precision=1.0, **({} if in_the_group else settings))
        torch.manual_seed(0)
        for _ in range(100):
            sampler.step(closure_for(model, sampler))
        assert sampler.badge == "heuristic"
        assert set(sampler.state[model[0].weight]) == {"direction", "mean_gradient", "noise_square"}
        chains.append(flat(model))
    assert chains[0].isfinite().all()
    assert torch.equal(*chains)


def test_the_preconditioner_is_the_gradients_spread():
    """ŝ of gradients with standard deviations 1 and 4 is in the ratio 1 : 4 and has root mean square 1; limits hold."""
    torch.manual_seed(0)
    deviation = torch.tensor([1.0, 4.0, 1e-6])
    mean, square = [torch.zeros(500, 3)], [torch.zeros(500, 3)]
    for _ in range(600):
        gradient = [3.0 + deviation * torch.randn(500, 3)]
        mean, square, (scale,) = noise_scale(gradient, mean, square, rate=0.01, batch_axes=1)
    ratio = (scale[:, 1] / scale[:, 0]).mean().item()
    assert ratio == pytest.approx(4, rel=0.1)
    assert scale[:, 2].max().item() == pytest.approx(0.1)
    assert scale[:, :2].square().sum(1).mean().item() == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("settings", [{}, {"preconditioner": "gradient_noise"}])
@pytest.mark.parametrize("chains", [0, 3])
def test_what_joins_has_its_share_of_the_speed(settings, chains):
    torch.manual_seed(0)
    lead = (chains,) if chains else ()
    a, b = (torch.randn(*lead, n, requires_grad=True) for n in (4000, 10))
    sampler = MCLMC([a], 0.01, 1, momentum_decay=0.05, **settings)

    def closure():
        sampler.zero_grad()
        loss = 0.5 * (a.square().sum(-1) + b.square().sum(-1))
        loss.sum().backward()
        return loss

    for _ in range(30):
        sampler.step(closure)
    sampler.add_param_group({"params": [b]})
    for _ in range(5):
        before = [p.detach().clone() for p in (a, b)]
        sampler.step(closure)
        large, small = ((p - old).square().mean().sqrt().item() for p, old in zip((a, b), before, strict=True))
        assert large == pytest.approx(0.1, rel=0.35)  # the preconditioner changes it a little
        assert small < 0.3  # 0.1 on average; it was 3.5 with a direction of as many as its weights
