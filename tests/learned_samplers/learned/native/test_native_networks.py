"""The compiled steps of several members: one network for all, one for each, and nothing else."""

import pytest
import torch

from learned_samplers import KineticL2E
from learned_samplers.base.segments import Segments
from learned_samplers.learned.native.kinetic import half_step
from meta_tasks.rules.base import Hyperparameters, MemberStep
from meta_tasks.rules.learned import KineticRule, L2ERule, MetaSGMCMCRule

SEGMENTS = Segments((20, 30))


def rules():
    start = ("average_0.9_to_rms", 1.0)
    yield L2ERule(feature_set="adaptive", hidden=(8, 8), start=start, beta_scale=10.0, friction_scale=0.0)
    yield MetaSGMCMCRule()


def moved(rule, weights, members, native, monkeypatch):
    monkeypatch.setenv("LEARNED_SAMPLERS_NATIVE", "1" if native else "0")
    torch.manual_seed(0)
    theta, gradient = torch.randn(members, 50), torch.randn(members, 50)
    state, noise = rule.initial_state(theta, SEGMENTS), torch.randn(members, 50)
    energy = torch.rand(members)
    at = MemberStep(theta.clone(), gradient, noise, state, SEGMENTS, Hyperparameters(0.01, 1000), 0, energy)
    with torch.no_grad():
        return rule.update(rule.prepare(weights), at)[0]


@pytest.mark.parametrize("rule", list(rules()), ids=lambda rule: rule.name)
def test_one_network_with_an_axis_of_length_one_is_that_of_all(rule, monkeypatch):
    weights = rule.initial_weights(0) + 0.1 * torch.randn(rule.num_weights)
    one = moved(rule, weights[None], 6, True, monkeypatch)
    assert torch.allclose(one, moved(rule, weights[None], 6, False, monkeypatch), rtol=1e-4, atol=1e-6)


def test_a_half_step_of_kinetic_l2e_does_the_same(monkeypatch):
    rule = KineticRule()
    weights = rule.initial_weights(0) + 0.1 * torch.randn(rule.num_weights)
    theta, gradient, noise, momentum = torch.randn(4, 6, 50)
    hyper = {"lr": 0.01, "num_data": 1000, "temperature": 1.0, "prior_precision": 1.0, "momentum_decay": 0.1}

    def run(native):
        monkeypatch.setenv("LEARNED_SAMPLERS_NATIVE", "1" if native else "0")
        with torch.no_grad():
            phi = rule.prepare(weights[None])
            given = theta.clone(), gradient, noise, momentum.clone()
            return half_step(*given, phi=phi, segments=SEGMENTS, settings=rule.settings, **hyper)

    for one, other in zip(run(True), run(False), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def test_another_number_of_networks_is_refused(monkeypatch):
    rule = next(rules())
    with pytest.raises(ValueError, match="one network or 6, one for each member, got 2"):
        moved(rule, rule.initial_weights(0).expand(2, -1).contiguous(), 6, True, monkeypatch)


def test_kinetic_steps_do_not_depend_on_the_default_dtype():
    def run():
        torch.manual_seed(0)
        p = torch.nn.Parameter(torch.randn(50, dtype=torch.float32))
        sampler = KineticL2E([p], num_data=100, generator=torch.Generator().manual_seed(1))

        def closure():
            sampler.zero_grad()
            loss = p.square().mean()
            loss.backward()
            return loss

        for _ in range(3):
            sampler.step(closure)
        return p.detach()

    expected = run()
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.allclose(run(), expected, rtol=1e-5)
    finally:
        torch.set_default_dtype(torch.float32)
