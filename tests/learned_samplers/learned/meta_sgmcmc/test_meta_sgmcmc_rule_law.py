"""The law that the Meta-SGMCMC rule leaves alone, only with both of its corrections; planted faults move it."""

from __future__ import annotations

import math

import pytest
import torch

from learned_samplers.base.segments import Segments
from learned_samplers.learned import meta_sgmcmc as module
from learned_samplers.learned.meta_fields import slopes_of, to_root_mean_square
from learned_samplers.learned.meta_sgmcmc import MetaSGMCMCSettings, meta_sgmcmc_rule
from tests.learned_samplers.learned.flat_keywords import keywords
from tests.learned_samplers.learned.meta_sgmcmc.meta_sgmcmc_cases import random_phi

meta_sgmcmc_rule = keywords(meta_sgmcmc_rule, MetaSGMCMCSettings)


# ------------------------------------------------------------------ the law


def stationary(seed, step_size=0.05, curvatures=(1.0, 2.0), temperature=1.0, prior=0.0, chains=1500, time=20.0, **more):
    """(mean of z, mean of z² − 1), z = θ·√(curvature/T) on a Gaussian that the energy couples; from exact draws.

    Friction C = a/ε is 1 as ε shrinks, so that the limit is the dynamics in continuous time.
    """
    phi, size = random_phi(seed, dtype=torch.float32), len(curvatures)
    k, generator = torch.tensor(curvatures), torch.Generator().manual_seed(1)
    scale = (k / temperature).sqrt()
    theta = torch.randn(chains, size, generator=generator) / scale
    r = torch.randn(chains, size, generator=generator) * math.sqrt(temperature)
    total, steps = torch.zeros(2, dtype=torch.float64), round(time / step_size)
    for i in range(steps):
        noise = torch.randn(chains, size, generator=generator)
        theta, r = meta_sgmcmc_rule(
            theta,
            theta * (k - prior),
            noise,
            r,
            energy=0.5 * (k * theta.square()).sum(-1),
            phi=phi,
            lr=step_size**2,
            num_data=1.0,
            temperature=temperature,
            prior_precision=prior,
            momentum_decay=step_size,
            curl_scale=0.5,
            friction_scale=0.5,
            **more,
        )
        if i >= steps // 4:
            z = theta * scale
            total += torch.stack([z.mean(), z.square().mean() - 1]).double()
    return (total / (steps - steps // 4)).tolist()


def error(*args, **kwargs):
    return max(map(abs, stationary(*args, **kwargs)))


def without(*names, position=None, factor=0.0):
    """The exact derivatives with some of them multiplied by ``factor``, in the half ``position`` (None: in both)."""

    def slopes(fields, momentum, *, position: bool):
        right = slopes_of(fields, momentum, position=position)
        if half is not None and half != position:
            return right
        wrong = {name: getattr(right, name) for name in names}
        return right._replace(**{name: x if x is None else factor * x for name, x in wrong.items()})

    half = position
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


@pytest.mark.parametrize("seed", sorted({seed for _, seed in FAULTS.values()}))
def test_random_networks_leave_gaussians_alone(seed):
    assert error(seed) < 0.04


@pytest.mark.parametrize("fault", FAULTS)
def test_the_law_moves_under_planted_faults(fault, monkeypatch):
    slopes, seed = FAULTS[fault]
    monkeypatch.setattr(module, "slopes_of", slopes)
    assert error(seed) > 0.12


@pytest.mark.parametrize(
    "options",
    [
        {"curvatures": (1.0,)},
        {"curvatures": (1.0, 0.5, 2.0, 1.5)},
        {"temperature": 0.5, "prior": 0.5},
        {"form": "absolute", "constant_friction": 0.3},
    ],
    ids=["one dimension", "four dimensions", "cold with a prior", "absolute"],
)
def test_the_law_in_other_settings(options):
    assert error(2, **options) < 0.03


# ------------------------------------------------------------------ inputs over their root mean squares


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (0, {"curvatures": (1.0, 2.0), "segments": Segments((2,)), "feature_set": "energy_rms"}),
        (5, {"curvatures": (1.0, 0.5, 2.0, 1.5, 0.7), "segments": Segments((2, 3)), "feature_set": "energy_rms"}),
    ],
)
def test_the_law_with_scaled_inputs(seed, options):
    assert error(seed, **options) < 0.04


@pytest.mark.parametrize("seed", [0, 5])
def test_the_law_moves_where_the_root_mean_square_is_taken_for_a_constant(seed, monkeypatch):
    """The published rule's inputs are scaled by constants; one of two coordinates is much of its own mean square."""

    def constant(x, segments, floor):
        scaled, _ = to_root_mean_square(x, segments, floor)
        return scaled, segments.expand((segments.mean_square(x) + floor).rsqrt())

    monkeypatch.setattr(module, "to_root_mean_square", constant)
    assert error(seed, segments=Segments((2,)), feature_set="energy_rms") > 0.1


def test_scaled_inputs_and_their_slope():
    x = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    segments, h = Segments((2, 3)), 1e-6
    scaled, slope = to_root_mean_square(x, segments, 0.25)
    for piece, whole in zip(scaled.split((2, 3), 1), x.split((2, 3), 1), strict=True):
        torch.testing.assert_close(piece, whole / (whole.square().mean(1, keepdim=True) + 0.25).sqrt())
    for i in range(5):
        moved = x.clone()
        moved[:, i] += h
        difference = (to_root_mean_square(moved, segments, 0.25)[0] - scaled)[:, i] / h
        torch.testing.assert_close(slope[:, i], difference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", [0, 10])
def test_the_bias_shrinks_with_the_step_size(seed):
    """0.20 and 0.04 with the first network, 0.16 and 0.02 with the second; a quarter, were it exactly linear in ε."""
    coarse, fine = (stationary(seed, h, time=40.0, chains=1200)[1] for h in (0.2, 0.05))
    assert coarse > 0.12
    assert abs(fine) < 0.35 * coarse
