"""Particles as posterior samples: their predictions, their independence of what follows, errors by name."""

import pytest
import torch
from torch import nn

from learned_samplers import PosteriorSamples, metrics
from learned_samplers.particles import SVGD, particle_samples
from tests.learned_samplers.particles.particle_problems import stacked_mlp


def test_prediction_is_the_average_over_the_particles():
    network, params = stacked_mlp(4)
    x = torch.randn(7, 3)
    samples = particle_samples(network, params)
    outputs = torch.stack(
        [torch.func.functional_call(network, {n: p[m] for n, p in params.items()}, (x,)) for m in range(4)]
    )
    torch.testing.assert_close(samples.predict(x), outputs.softmax(-1).mean(0).detach())
    torch.testing.assert_close(samples.predict(x, output="regression"), outputs.mean(0).detach())
    assert samples.predict_samples(x).shape == (4, 7, 2)
    assert 0 <= metrics.ece(samples.predict(x), torch.randint(2, (7,))) <= 1


def test_they_stay_when_the_particles_move_on(tmp_path):
    network, params = stacked_mlp(3)
    x, y = torch.randn(16, 3), torch.randint(2, (16,))
    sampler = SVGD(params.values(), 0.5, num_data=16)

    def closure():
        logits = torch.vmap(lambda p: torch.func.functional_call(network, p, (x,)))(params)
        losses = nn.functional.cross_entropy(logits.flatten(0, 1), y.repeat(3), reduction="none")
        return losses.view(3, 16).mean(1)

    samples = particle_samples(network, params)
    before = samples.predict(x)
    weights = [p.detach().clone() for p in network.parameters()]
    sampler.step(closure)
    assert torch.equal(samples.predict(x), before)
    moved = particle_samples(network, params)
    assert not torch.allclose(moved.predict(x), before)
    assert all(torch.equal(p, o) for p, o in zip(network.parameters(), weights, strict=True))
    moved.save(tmp_path / "particles.safetensors")
    again = PosteriorSamples.load(tmp_path / "particles.safetensors", network)
    assert torch.equal(again.predict(x), moved.predict(x))


def test_buffers_of_every_particle():
    networks = [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)) for _ in range(2)]
    x = torch.randn(32, 3)
    for scale, one in enumerate(networks, start=1):
        one(scale * x)
    params, buffers = torch.func.stack_module_state(networks)
    for one in networks:
        one.eval()
    expected = torch.stack([one(x) for one in networks]).mean(0).detach()
    samples = particle_samples(networks[0], {**params, **buffers})
    torch.testing.assert_close(samples.predict(x, output="regression"), expected)
    with pytest.raises(ValueError, match="running statistics"):
        particle_samples(networks[0], params)
