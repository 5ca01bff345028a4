"""Steps that find their own length."""

import torch

from learned_samplers.estimators import tuned_steps
from learned_samplers.estimators.sampling import sample, warm_up
from learned_samplers.estimators.tuned_steps import Microcanonical
from tests.learned_samplers.estimators.test_sampling import OPTIONS, linear, losses_of


def test_the_step_is_that_of_the_wanted_energy_error(monkeypatch):
    """ΔE²/d over the steps that follow is the wanted number to a factor of two, and ten times as much if asked for."""
    monkeypatch.setattr(tuned_steps, "ENERGY_VARIANCE", (0.01, 0.001))
    chains = linear()
    warm_up(chains, losses_of(chains), torch.arange(60), torch.arange(0), 60, steps=200, lr=0.1)
    errors, step = [], Microcanonical.step

    def watched(self, energy):
        step(self, energy)
        errors.append(self.error)

    monkeypatch.setattr(Microcanonical, "step", watched)
    sample(chains, losses_of(chains), 60, **OPTIONS, batch_size=None, tuning_steps=500, steps=300)
    assert 0.5 < torch.stack(errors[500:]).square().mean().item() / 13 / 0.001 < 2
