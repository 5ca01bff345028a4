"""The particle samplers: the step is the pure rule, roles, limits and laws."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from learned_samplers.particles import (
    FSVGD,
    IMQ,
    MGDA,
    MOOSVGD,
    MTSGD,
    RBF,
    SVGD,
    Linear,
    LinearScalarisation,
    ParetoMTL,
)
from learned_samplers.particles.directions import repulsion, svgd_direction, target_weights, weighted
from learned_samplers.particles.target_weights import mgda_weights
from tests.learned_samplers.particles.particle_problems import EVERY, MEANS, SEVERAL, TwoHeads, energies, parameter

DOUBLE = torch.float64


def trunk_and_heads(net):
    """∇loss of the trunk, (2, M, d), and of each head by its own loss, (M, 4); the trunk's particles (M, d)."""
    losses = net.losses()
    shared, own = [], []
    for k in range(2):
        grads = torch.autograd.grad(losses[k].sum(), [*net.trunk, *net.heads[k]], retain_graph=True)
        shared.append(torch.cat([g.flatten(1) for g in grads[:-1]], dim=1))
        own.append(grads[-1])
    return torch.stack(shared), own, torch.cat([p.detach().flatten(1) for p in net.trunk], dim=1)


# ---------------------------------------------------------------- the step


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("kernel", [RBF(), IMQ(0.5), Linear()])
def test_svgd_step_is_the_rule(kernel, temperature):
    x = parameter(5, 2, dtype=DOUBLE)
    before = x.detach().clone()
    sampler = SVGD([x], 0.3, num_data=10, kernel=kernel, temperature=temperature, prior_precision=2.0)
    returned = sampler.step(lambda: energies("SVGD", x))
    torch.testing.assert_close(returned, energies("SVGD", before))
    score = -(10 * (before - torch.tensor([1.0, 0.0], dtype=DOUBLE)) + 2 * before)
    matrix = kernel(before)
    phi = svgd_direction(score, repulsion(before, matrix), matrix, temperature)
    torch.testing.assert_close(x.detach(), before + 0.03 * phi)
    assert sampler.step_count == 1
    assert x.grad is None


@pytest.mark.parametrize("rule", ["exact", "gradients", "equal"])
def test_algorithm_two(rule):
    """MT-SGD on the trunk, SVGD on each head, each with the kernel of its own parameters, N and the prior in all."""
    net = TwoHeads(dtype=DOUBLE)
    gradients, own, points = trunk_and_heads(net)
    heads = [h[0].detach().clone() for h in net.heads]
    sampler = MTSGD(net.groups(prior_precision=0.5), 0.1, num_data=20, target_weights=rule)
    sampler.step(net.losses)
    scores = -(20 * gradients + 0.5 * points)
    matrix = RBF()(points)
    push = repulsion(points, matrix)
    weights = target_weights(scores, push, matrix, rule=rule)
    moved = points + 0.1 / 20 * svgd_direction(weighted(scores, weights), push, matrix)
    torch.testing.assert_close(torch.cat([p.detach().flatten(1) for p in net.trunk], dim=1), moved)
    torch.testing.assert_close(sampler.weights, weights)
    for head, grad, parameter_ in zip(heads, own, net.heads, strict=True):
        matrix = RBF()(head)
        phi = svgd_direction(-20 * grad, repulsion(head, matrix), matrix)
        torch.testing.assert_close(parameter_[0].detach(), head + 0.1 / 20 * phi)


BY_FEATURES = {"features": lambda p, lr, **kw: MTSGD(p, lr, kernel_on="features", target_weights="gradients", **kw)}


@pytest.mark.parametrize("name", [*SEVERAL, "features"])
def test_a_list_of_losses_is_the_same_as_a_stack(name):
    stacked, listed = TwoHeads(dtype=DOUBLE), TwoHeads(dtype=DOUBLE)
    make = (SEVERAL | BY_FEATURES)[name]
    one, other = (make(net.groups(prior_precision=0.5), 0.1, num_data=20) for net in (stacked, listed))
    for _ in range(3):
        first = one.step(lambda: (stacked.losses(), stacked.latents()) if name == "features" else stacked.losses())
        second = other.step(
            lambda: ([*listed.losses()], listed.latents()) if name == "features" else [*listed.losses()]
        )
        first, second = (first[0], second[0]) if name == "features" else (first, second)
        assert torch.equal(torch.stack(second), first)
        assert not second[0].requires_grad
    assert torch.equal(stacked.flat(), listed.flat())


@pytest.mark.parametrize(("stacked", "visits"), [(False, 1), (True, 3)])
def test_of_a_list_a_pass_goes_through_one_head(stacked, visits):
    """How often the gradient comes by each head's output: once, or once for every task where losses are stacked."""
    trunk, heads = parameter(4, 2), [parameter(4, seed=k + 1) for k in range(3)]
    counts = [0, 0, 0]

    def closure():
        losses = []
        for k, head in enumerate(heads):
            out = trunk.sum(1) * head

            def count(grad, k=k):
                counts[k] += 1

            out.register_hook(count)
            losses.append(out.square())
        return torch.stack(losses) if stacked else losses

    groups = [{"params": [trunk]}, *({"params": [head], "task": k} for k, head in enumerate(heads))]
    MGDA(groups, 0.1).step(closure)
    assert counts == [visits] * 3


@pytest.mark.parametrize(
    ("one", "losses", "other", "count"),
    [
        (lambda x: MTSGD(x, 0.1, target_weights=(1.0, 0.0)), lambda x: energies("MTSGD", x), SVGD, 4),
        (lambda x: MTSGD(x, 0.1), lambda x: energies("SVGD", x)[None], SVGD, 4),
        (lambda x: MTSGD(x, 0.1), lambda x: energies("MGDA", x), MGDA, 1),
        (
            lambda x: MTSGD(x, 0.1, kernel_on="features", target_weights="gradients"),
            lambda x: (energies("MTSGD", x), x * 1.0),
            lambda x, lr: MTSGD(x, lr, target_weights="gradients"),
            4,
        ),
    ],
    ids=["fixed weights", "one target", "one particle", "features that are the parameters"],
)
def test_limits_that_coincide(one, losses, other, count):
    x, y = parameter(count, 2), parameter(count, 2)
    one([x]).step(lambda: losses(x))
    other([y], 0.1).step(lambda: energies("SVGD" if other is SVGD else "several", y))
    torch.testing.assert_close(x, y)


def test_kernel_on_features_is_pulled_back():
    """Particle i is pushed along (∂zᵢ/∂θᵢ)ᵀ Σⱼ ∇k(zⱼ, zᵢ); heads that the features do not reach are not pushed."""
    net = TwoHeads(dtype=DOUBLE)
    gradients, own, points = trunk_and_heads(net)
    heads = [h[0].detach().clone() for h in net.heads]
    z = net.latents().detach().flatten(1)
    matrix = RBF()(z)
    push = repulsion(z, matrix)
    pulled = torch.autograd.grad(net.latents(), net.trunk, push.view(3, 8, 4))
    push = torch.cat([g.flatten(1) for g in pulled], dim=1)
    sampler = MTSGD(net.groups(), 0.1, kernel_on="features", target_weights="equal")
    sampler.step(lambda: (net.losses(), net.latents()))
    phi = svgd_direction(-gradients.mean(0), push, matrix)
    torch.testing.assert_close(torch.cat([p.detach().flatten(1) for p in net.trunk], dim=1), points + 0.1 * phi)
    torch.testing.assert_close(net.heads[0][0].detach(), heads[0] - 0.1 * matrix.values @ own[0] / 3)


@pytest.mark.parametrize("kernel_on", ["losses", "parameters"])
def test_moo_svgd_against_its_definition(kernel_on):
    """With the repulsion of losses as the derivative of the kernel's sum, by autograd."""
    x = parameter(5, 2, dtype=DOUBLE)
    before = x.detach().clone().requires_grad_()
    losses = energies("MOOSVGD", before)
    z = losses.T if kernel_on == "losses" else before
    sigma = 0.7
    k = torch.exp(-(z[:, None] - z.detach()[None]).square().sum(-1) / (2 * sigma**2))
    push = -torch.autograd.grad(k.sum(), before, retain_graph=True)[0]
    gradients = torch.stack([torch.autograd.grad(v.sum(), before, retain_graph=True)[0] for v in losses])
    gradients = 10 * gradients + 3 * before.detach()
    sampler = MOOSVGD([x], 0.1, 10, kernel=RBF(sigma), kernel_on=kernel_on, prior_precision=3.0, temperature=0.8)
    sampler.step(lambda: energies("MOOSVGD", x))
    descended = weighted(gradients, mgda_weights(gradients))
    phi = (-k.detach() @ descended + 0.8 * push) / 5
    torch.testing.assert_close(x.detach(), before.detach() + 0.01 * phi)


def test_mgda_descends_every_target_and_stops_between():
    x = parameter(6, 2)
    sampler = MGDA([x], 0.05)
    last = energies("MGDA", x).detach()
    for _ in range(300):
        sampler.step(lambda: energies("MGDA", x))
        now = energies("MGDA", x).detach()
        assert (now <= last + 1e-5).all()
        last = now
    means = MEANS
    # Pareto-stationary: on the segment between the means.
    along = ((x.detach() - means[1]) @ (means[0] - means[1])) / (means[0] - means[1]).square().sum()
    nearest = means[1] + along.clamp(0, 1)[:, None] * (means[0] - means[1])
    torch.testing.assert_close(x.detach(), nearest, rtol=0, atol=1e-2)


def test_linear_scalarisation_is_gradient_descent():
    x, y = parameter(3, 2), parameter(3, 2)
    LinearScalarisation([x], 0.1, target_weights=[0.25, 0.75]).step(lambda: energies("L", x))
    loss = (torch.tensor([0.25, 0.75])[:, None] * energies("L", y)).sum()
    loss.backward()
    torch.optim.SGD([y], 0.1).step()
    torch.testing.assert_close(x, y)


def test_pareto_mtl_spreads_over_the_front():
    """Every particle ends in its own sector, from one starting point; MGDA's stay together."""
    spread = {}
    for cls in (ParetoMTL, MGDA):
        x = torch.tensor([[0.1, 2.0]]).repeat(5, 1).requires_grad_()
        sampler = cls([x], 0.02)
        with pytest.warns(UserWarning, match="move alike") if cls is MGDA else nullcontext():
            sampler.step(lambda x=x: energies("ParetoMTL", x))
        for _ in range(799):
            sampler.step(lambda x=x: energies("ParetoMTL", x))
        losses = energies("ParetoMTL", x).detach()
        spread[cls] = torch.atan2(losses[1], losses[0])
    angles = torch.linspace(0, torch.pi / 2, 5)
    assert (spread[ParetoMTL] - angles).abs().max() < torch.pi / 16 + 0.02
    assert spread[MGDA].std() < 1e-4


def test_pareto_mtl_by_enumeration():
    """The first phase descends the violated constraints alone, the second targets and constraints."""
    x = parameter(3, 2, seed=4, dtype=DOUBLE)
    before, losses = x.detach().clone(), energies("ParetoMTL", x).detach()
    gradients = before - MEANS.to(DOUBLE)[:, None]
    preferences = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]], dtype=DOUBLE)
    sampler = ParetoMTL([x], 0.1, preferences=preferences)
    sampler.step(lambda: energies("ParetoMTL", x))
    for m in range(3):
        rows = [u - preferences[m] for u in preferences if (u - preferences[m]) @ losses[:, m] > 0]
        feasible = not rows
        rows += list(torch.eye(2, dtype=DOUBLE)) if feasible else []
        vectors = torch.stack(rows) @ gradients[:, m]
        lengths = []
        for _ in range(2000):  # the shortest of many convex combinations
            w = torch.rand(len(rows), dtype=DOUBLE).pow(4)
            lengths.append(((w / w.sum()) @ vectors).norm())
        moved = (before[m] - x.detach()[m]) / 0.1
        assert moved.norm() <= min(lengths) + 1e-12
        assert moved.norm() >= min(lengths) - 0.05
        assert sampler.param_groups[0]["feasible"][m] == feasible


# ---------------------------------------------------------------- laws


def test_linear_kernel_has_the_exact_gaussian_as_its_fixed_point():
    mean = torch.tensor([0.5, -1.0], dtype=DOUBLE)
    covariance = torch.tensor([[1.0, 0.6], [0.6, 0.8]], dtype=DOUBLE)
    precision = torch.linalg.inv(covariance)

    def measure(factor):
        x = parameter(6, 2, dtype=DOUBLE)
        sampler = SVGD([x], 0.05, kernel=Linear(), temperature=factor)
        for _ in range(1500):
            sampler.step(lambda: ((x - mean) @ precision * (x - mean)).sum(-1) / 2)
        return x.detach().mean(0), torch.cov(x.detach().T, correction=0)

    found = measure(1.0)
    torch.testing.assert_close(found[0], mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(found[1], covariance, rtol=0, atol=1e-8)
    # At temperature T the law is exp(−U/T): a factor T on the covariance. (And a wrong factor is seen.)
    torch.testing.assert_close(measure(0.5)[1], covariance / 2, rtol=0, atol=1e-8)


def test_svgd_fits_a_wide_gaussian():
    """50 particles, N(1, 2²): the mean to 1 %, the variance, which SVGD underestimates, to 10 %."""
    x = parameter(50, 1, dtype=DOUBLE)
    sampler = SVGD([x], 0.5, base_optimizer=torch.optim.Adam)
    scheduler = torch.optim.lr_scheduler.LinearLR(sampler, 1.0, 0.01, 400)
    for _ in range(400):
        sampler.step(lambda: (x[:, 0] - 1).square() / 8)
        scheduler.step()
    assert x.mean().item() == pytest.approx(1.0, abs=0.02)
    assert x.var().item() == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("name", [*EVERY, "FSVGD"])
def test_particles_that_coincide_stay_finite_and_together(name):
    """The documented limit: no median, no repulsion, gradient descent in step. (Not Pareto MTL's.)"""
    x = torch.full((4, 2), 0.3, requires_grad=True)
    sampler = FSVGD([x], 0.1, 1) if name == "FSVGD" else EVERY[name]([x], 0.1)

    def closure():
        outputs = x * 1.0
        return (energies("SVGD", outputs), outputs) if name == "FSVGD" else energies(name, x)

    told = pytest.warns(UserWarning, match="particles .* move alike") if name != "ParetoMTL" else nullcontext()
    with told:
        sampler.step(closure)
    for _ in range(2):
        sampler.step(closure)
    assert x.isfinite().all()
    assert (x != 0.3).any()
    if name != "ParetoMTL":
        torch.testing.assert_close(x, x[:1].expand(4, 2))


@pytest.mark.parametrize("name", EVERY)
def test_frozen_parameters_of_any_type_are_ignored(name):
    """They need no particle axis: all particles share them, as the codes of a quantised model."""
    codes = torch.nn.Parameter(torch.arange(5), requires_grad=False)
    ends = []
    for beside in ([], [codes]):
        x = parameter(4, 2)
        sampler = EVERY[name]([*beside, x], 0.1)
        for _ in range(2):
            sampler.step(lambda x=x: energies(name, x))
        assert sampler.num_particles == 4
        ends.append(x)
    assert torch.equal(*ends)
