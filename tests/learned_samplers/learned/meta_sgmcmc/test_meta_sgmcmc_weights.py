"""What weights and their card make of MetaSGMCMC: settings, form, inputs."""

from __future__ import annotations

import math

import pytest
import torch

import pretrained
from learned_samplers.base.segments import Segments
from learned_samplers.learned import weights
from learned_samplers.learned.meta_fields import META_FEATURE_SETS, META_FEATURES
from learned_samplers.learned.meta_sgmcmc import MetaSGMCMCSettings, meta_sgmcmc_rule
from learned_samplers.learned.network import layers_of
from tests.learned_samplers.learned.flat_keywords import MetaSGMCMC, keywords
from tests.learned_samplers.learned.meta_sgmcmc.meta_sgmcmc_cases import N, network
from tests.learned_samplers.learned.test_weights import make_card

meta_sgmcmc_rule = keywords(meta_sgmcmc_rule, MetaSGMCMCSettings)


def test_weights_and_card_make_the_sampler(tmp_path):
    path = tmp_path / "meta.safetensors"
    card = make_card(
        sampler="MetaSGMCMC",
        form="absolute",
        feature_set="energy",
        features=list(META_FEATURES),
        scales={"curl_offset": 0.5, "friction_scale": 1.9, "gradient_scale": 70.0},
        defaults={"lr": 0.007, "momentum_decay": 0.01},
    )
    module = network(dtype=torch.float32)
    weights.save(path, module, card)
    sampler = MetaSGMCMC([torch.zeros(3, requires_grad=True)], num_data=10, network=path, curl_clip=2.0)
    group = sampler.param_groups[0]
    assert (group["lr"], group["momentum_decay"]) == (0.007, 0.01)
    chosen = ("curl_offset", "curl_scale", "friction_scale", "gradient_scale", "curl_clip")
    assert [getattr(sampler.settings, key) for key in chosen] == [0.5, 1.0, 1.9, 70.0, 2.0]
    assert sampler.settings.form == "absolute"
    x = torch.randn(4, 3)
    assert torch.equal(sampler.network(x), module(x))
    with pytest.raises(ValueError, match="weights for form 'absolute', asked for 'signed'"):
        MetaSGMCMC([torch.zeros(3, requires_grad=True)], num_data=10, network=path, form="signed")
    with pytest.raises(ValueError, match="lr must be given"):
        MetaSGMCMC([torch.zeros(3, requires_grad=True)], num_data=10, network=None)


def test_without_arguments_it_has_the_shipped_weights():
    sampler = MetaSGMCMC([torch.zeros(3, requires_grad=True)], num_data=10)
    card = pretrained.card("meta-sgmcmc")
    assert {key: sampler.param_groups[0][key] for key in ("lr", "momentum_decay")} == card["defaults"]
    assert torch.equal(sampler.network[0].weight, pretrained.load("meta-sgmcmc")[0].weight)


def test_a_chain_is_not_resumed_with_other_weights_or_another_form():
    def make(**options):
        return MetaSGMCMC([torch.zeros(3, requires_grad=True)], 0.1, 10, **{"network": None, **options})

    saved = make(network=network(0)).state_dict()
    with pytest.raises(ValueError, match="another network: sha256"):
        make(network=network(1)).load_state_dict(saved)
    with pytest.raises(ValueError, match="other settings: form is 'signed' there"):
        make(network=network(0), form="absolute").load_state_dict(saved)


def test_the_settings_of_the_published_code_are_those_of_the_paper():
    """η = √(.007/N), D = (.01/η)·Q² + 50·|f_D|: lr .007, a .01, s_D = 50·η/.01, and its clip of 1,000 is 1,000·η."""
    n, k = 60_000.0, 50.0
    eta = math.sqrt(0.007 / n)
    phi = [(w.detach(), b.detach()) for w, b in layers_of(network())]
    generator = torch.Generator().manual_seed(0)
    r, g = (torch.randn(9, generator=generator, dtype=torch.float64) for _ in range(2))
    new = meta_sgmcmc_rule(
        torch.zeros_like(r),
        torch.zeros_like(r),
        torch.zeros_like(r),
        r,
        phi=phi,
        energy=torch.tensor(n * 1.3, dtype=r.dtype),
        lr=0.007,
        num_data=n,
        temperature=1e-300,
        prior_precision=0.0,
        momentum_decay=0.01,
        curl_offset=0.0,
        friction_scale=k * eta / 0.01,
        friction_clip=1000 * eta,
        gradient_scale=70.0,
        form="absolute",
    )[1]
    module = network()
    rows = torch.stack([torch.full_like(r, 1.3), r, torch.zeros_like(g)], -1)
    f_q, f_d = module(rows).detach().unbind(-1)
    friction = (0.01 / eta * f_q.clamp(-5, 5) ** 2 + k * f_d.abs()).clamp(max=1000)
    torch.testing.assert_close(new, r - eta * friction * r, rtol=1e-10, atol=1e-12)


# ------------------------------------------------------------------ inputs over their root mean squares


def test_the_tensors_are_those_of_the_group(monkeypatch):
    """Two tensors in one buffer are the rule with their lengths; blocks would cut through a tensor and are not made."""
    module, stream = network(), torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=stream, dtype=torch.float64).requires_grad_() for shape in ((2, 3), (4,))]
    sampler = MetaSGMCMC(params, 0.2, N, network=module, feature_set="energy_rms", gradient_scale=3.0)
    monkeypatch.setattr("learned_samplers.learned.sampler._AT_ONCE_ON_CPU", 3)

    def flat_loss(x):
        return torch.cos(x).sum() + 0.1 * (x[1] * x[7]) ** 2

    def closure():
        sampler.zero_grad()
        loss = flat_loss(torch.cat([p.flatten() for p in params]))
        loss.backward()
        return loss

    x = torch.cat([p.detach().flatten() for p in params])
    r = torch.zeros_like(x)
    torch.manual_seed(3)
    for _ in range(4):
        sampler.step(closure)
    torch.manual_seed(3)
    phi = [(w.detach(), b.detach()) for w, b in layers_of(module)]
    for _ in range(4):
        noise = torch.cat([torch.randn_like(p).flatten() for p in params])
        x, r = meta_sgmcmc_rule(
            x,
            torch.func.grad(flat_loss)(x),
            noise,
            r,
            energy=N * flat_loss(x),
            phi=phi,
            lr=0.2,
            num_data=N,
            temperature=1.0,
            prior_precision=0.0,
            momentum_decay=0.1,
            gradient_scale=3.0,
            segments=Segments((6, 4)),
            feature_set="energy_rms",
        )
    torch.testing.assert_close(torch.cat([p.detach().flatten() for p in params]), x, rtol=1e-10, atol=1e-12)


def test_scaled_inputs_do_not_see_the_scale_of_the_loss():
    """A hundred times the loss with a hundredth of N and of lr: the same gradients of the energy, the same chain."""

    def chain(feature_set, factor):
        p = torch.tensor([0.3, -0.8, 0.5], dtype=torch.float64, requires_grad=True)
        sampler = MetaSGMCMC(
            [p], 0.1 / factor, N / factor, network=network(), feature_set=feature_set, energy_scale=0.0
        )

        def closure():
            sampler.zero_grad()
            loss = factor * torch.cos(p).sum()
            loss.backward()
            return loss

        torch.manual_seed(1)
        for _ in range(5):
            sampler.step(closure)
        return p.detach()

    torch.testing.assert_close(chain("energy_rms", 100.0), chain("energy_rms", 1.0), rtol=1e-9, atol=1e-12)
    assert (chain("energy", 100.0) - chain("energy", 1.0)).abs().max() > 1e-3


def test_the_feature_set_is_that_of_the_weights(tmp_path):
    path = tmp_path / "rms.safetensors"
    card = make_card(
        sampler="MetaSGMCMC",
        form="signed",
        feature_set="energy_rms",
        features=list(META_FEATURE_SETS["energy_rms"]),
        scales={},
        defaults={"lr": 0.1},
    )
    weights.save(path, network(dtype=torch.float32), card)

    def make(**options):
        return MetaSGMCMC([torch.zeros(3, requires_grad=True)], num_data=10, **{"network": None, **options})

    assert make(network=path).settings.feature_set == "energy_rms"
    assert make(lr=0.1).settings.feature_set == "energy"
    with pytest.raises(ValueError, match="weights for feature_set 'energy_rms', asked for 'energy'"):
        make(network=path, feature_set="energy")
    with pytest.raises(ValueError, match="feature_set must be one of 'energy', 'energy_rms', got 'paper'"):
        make(lr=0.1, feature_set="paper")
    with pytest.raises(ValueError, match="other settings: feature_set is 'energy' there"):
        make(network=path).load_state_dict(make(network=network(dtype=torch.float32), lr=0.1).state_dict())
