"""Meta-SGMCMC leaves its law alone, only with both of its corrections: planted faults move it."""

import gc
import math

import pytest
import torch

from learned_samplers import check_sampler
from learned_samplers.base.segments import Segments
from learned_samplers.learned import meta_sgmcmc as module
from learned_samplers.learned.meta_fields import slopes_of, to_root_mean_square
from learned_samplers.learned.meta_sgmcmc import MetaSGMCMCSettings, meta_sgmcmc_rule
from tests.learned_samplers.learned.cases import meta_network, phi_of
from tests.learned_samplers.learned.flat_keywords import MetaSGMCMC, keywords

meta_sgmcmc_rule = keywords(meta_sgmcmc_rule, MetaSGMCMCSettings)


def stationary(seed, step_size=0.05, curvatures=(1.0, 2.0), temperature=1.0, prior=0.0, chains=1500, time=20.0, **more):
    """(mean of z, mean of z² − 1), z = θ·√(curvature/T) on a Gaussian that the energy couples; from exact draws.

    Friction C = a/ε is 1 as ε shrinks, so that the limit is the dynamics in continuous time.
    """
    phi, size = phi_of(meta_network(seed, dtype=torch.float32, hidden=(8,))), len(curvatures)
    k, generator = torch.tensor(curvatures), torch.Generator().manual_seed(1)
    scale = (k / temperature).sqrt()
    theta = torch.randn(chains, size, generator=generator) / scale
    r = torch.randn(chains, size, generator=generator) * math.sqrt(temperature)
    total, steps = torch.zeros(2, dtype=torch.float64), round(time / step_size)
    hyper = dict(lr=step_size**2, num_data=1.0, temperature=temperature, prior_precision=prior)
    for i in range(steps):
        noise = torch.randn(chains, size, generator=generator)
        at = dict(energy=0.5 * (k * theta.square()).sum(-1), phi=phi, curl_scale=0.5, friction_scale=0.5)
        theta, r = meta_sgmcmc_rule(
            theta, theta * (k - prior), noise, r, momentum_decay=step_size, **at, **hyper, **more
        )
        if i >= steps // 4:
            z = theta * scale
            total += torch.stack([z.mean(), z.square().mean() - 1]).double()
    return (total / (steps - steps // 4)).tolist()


def error(*args, **kwargs):
    return max(map(abs, stationary(*args, **kwargs)))


def scaled_by_constants(x, segments, floor):
    """The root mean square taken for a constant, as the published rule does it."""
    scaled, _ = to_root_mean_square(x, segments, floor)
    return scaled, segments.expand((segments.mean_square(x) + floor).rsqrt())


def without(*names, position=None, factor=0.0):
    """The derivatives with some of them multiplied by ``factor``, in the half ``position`` (None: in both)."""
    half = position

    def slopes(fields, momentum, *, position: bool):
        right = slopes_of(fields, momentum, position=position)
        if half is not None and half != position:
            return right
        wrong = {name: getattr(right, name) for name in names}
        return right._replace(**{name: x if x is None else factor * x for name, x in wrong.items()})

    return slopes


GAMMA_R = ("curl_by_energy", "curl_by_momentum", "friction_by_momentum")
#: Planted faults, each with a network (a seed) on which it shows.
FAULTS = {
    "no Γ_θ": (without("curl_by_momentum", position=True), 3),
    "no Γ_θ, another network": (without("curl_by_momentum", position=True), 9),
    "no Γ_r": (without(*GAMMA_R, position=False), 3),
    "no Γ_r, another network": (without(*GAMMA_R, position=False), 9),
    "no ∂Q/∂θ": (without("curl_by_energy"), 3),
    "∂Q/∂θ with the sign of the published code": (without("curl_by_energy", factor=-1.0), 3),
    "the sign, another network": (without("curl_by_energy", factor=-1.0), 9),
    "∂f_D/∂r left out": (without("friction_by_momentum"), 2),
    "∂D/∂r without its path through Q": (without("curl_by_momentum", position=False), 9),
    "Γ_θ with the other sign": (without("curl_by_momentum", position=True, factor=-1.0), 3),
}
SCALED = {"feature_set": "energy_rms"}


@pytest.mark.parametrize(
    ("seed", "options", "most"),
    [
        *((seed, {}, 0.04) for seed in sorted({seed for _, seed in FAULTS.values()})),
        (2, {"curvatures": (1.0,)}, 0.03),
        (2, {"curvatures": (1.0, 0.5, 2.0, 1.5)}, 0.03),
        (2, {"temperature": 0.5, "prior": 0.5}, 0.03),
        (0, {"segments": Segments((2,)), **SCALED}, 0.04),
        (5, {"curvatures": (1.0, 0.5, 2.0, 1.5, 0.7), "segments": Segments((2, 3)), **SCALED}, 0.04),
    ],
)
def test_random_networks_leave_gaussians_alone(seed, options, most):
    assert error(seed, **options) < most


@pytest.mark.parametrize("fault", FAULTS)
def test_the_law_moves_under_planted_faults(fault, monkeypatch):
    slopes, seed = FAULTS[fault]
    monkeypatch.setattr(module, "slopes_of", slopes)
    assert error(seed, chains=800, time=12.0) > 0.12


@pytest.mark.parametrize("seed", [0, 5])
def test_the_law_moves_where_the_root_mean_square_is_taken_for_a_constant(seed, monkeypatch):
    """One of two coordinates is much of its own mean square."""
    monkeypatch.setattr(module, "to_root_mean_square", scaled_by_constants)
    assert error(seed, segments=Segments((2,)), **SCALED) > 0.1


def test_the_bias_shrinks_with_the_step_size():
    """From 0.20 to 0.04; to a quarter, were it exactly linear in ε."""
    coarse, fine = (stationary(0, h, time=40.0, chains=1200)[1] for h in (0.2, 0.05))
    assert coarse > 0.12
    assert abs(fine) < 0.35 * coarse


def test_the_optimizer_keeps_the_posterior_up_to_the_step_size():
    options = dict(network=meta_network(1, 0.3, torch.float32, (8,)), energy_scale=100.0, gradient_scale=10.0)
    settings = dict(stiffness=(0.3,), per_chain=True, coordinates=2000, steps=80, refinement=4, tolerance=0.03)
    report = check_sampler(lambda p: MetaSGMCMC(p, 0.1, 100, **options), **settings)
    assert report.passed, report
    assert report.verdict == "O(h)"


def test_a_long_chain_does_not_drift_and_keeps_no_memory():
    """Four blocks of 400 steps have the same moments, and a step leaves no tensor behind. (100,000 steps in all were
    run by hand: reports/meta_sgmcmc.md.)"""
    k, length = torch.tensor([100.0, 200.0]), 400
    p = (torch.randn(640, 2) / k.sqrt()).requires_grad_()
    scales = dict(energy_scale=100.0, gradient_scale=10.0, curl_scale=0.5, friction_scale=0.5)
    network, generator = meta_network(2, dtype=torch.float32, hidden=(8,)), torch.Generator().manual_seed(0)
    sampler = MetaSGMCMC([p], 0.02, 100, network=network, momentum_decay=0.1, generator=generator, **scales)

    def closure():
        value = p.detach()
        p.grad = value * k / 100
        return 0.5 * (value * p.grad).sum(1)

    def tensors():
        gc.collect()
        return sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects())

    moments = []
    for block in range(4):
        total = torch.zeros(3, dtype=torch.float64)
        for _ in range(length):
            sampler.step(closure)
            z = p.detach() * k.sqrt()
            total += torch.stack([z.mean(), z.square().mean(), sampler.state[p]["momentum"].square().mean()]).double()
        moments.append(total / length)
        if block == 0:
            count = tensors()
    assert tensors() <= count + 3  # the other blocks' moments
    spread = torch.stack(moments)
    assert sampler.step_count == 4 * length
    assert (spread - spread.mean(0)).abs().max() < 0.05
    assert spread[:, 0].abs().max() < 0.03
    assert (spread[:, 1:] - 1).abs().max() < 0.1
