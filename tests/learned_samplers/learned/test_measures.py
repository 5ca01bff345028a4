"""Measures of a learned sampler: against finite differences, samplers whose answer is known, and its own rule."""

import math

import pytest
import torch

from learned_samplers import SGHMC
from learned_samplers.base.matrices import state_lengths
from learned_samplers.base.segments import Segments
from learned_samplers.learned.averages import update_averages
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.features import Features, NetworkOnChain, Run, network_at
from learned_samplers.learned.l2e import L2ESettings, l2e_rule
from learned_samplers.learned.measures import assumption_violation, flat_states, term_contributions
from learned_samplers.learned.network import build_network
from tests.harness import closure_for, small_network
from tests.learned_samplers.learned.cases import network, phi_of
from tests.learned_samplers.learned.flat_keywords import L2E, keywords

assumption_violation, term_contributions = (
    keywords(measure, L2ESettings) for measure in (assumption_violation, term_contributions)
)
l2e_paper_rule = keywords(l2e_rule, L2ESettings, form="paper")
l2e_residual_rule = keywords(l2e_rule, L2ESettings)

SEGMENTS = Segments((30, 12), ((5, 6), (12,)))
RULES = {"residual": l2e_residual_rule, "paper": l2e_paper_rule}
HYPER = dict(lr=0.2, num_data=80.0, alpha_scale=0.3, beta_scale=0.7)
MORE = dict(temperature=0.8, prior_precision=2.0, momentum_decay=0.15)


def weights(feature_set="paper"):
    return phi_of(network(feature_set, dtype=torch.float64))


def linear(by_parameter, by_momentum):
    """α = by_momentum·r̂ and β = by_parameter·θ̂ of the normalised inputs, through ReLU pairs."""
    module = build_network("paper", (4,), dtype=torch.float64)
    with torch.no_grad():
        module[0].weight.zero_()
        for row, (column, sign) in enumerate([(1, 1.0), (1, -1.0), (2, 1.0), (2, -1.0)]):
            module[0].weight[row, column] = sign
        module[-1].weight.copy_(
            torch.tensor([[0, 0, by_momentum, -by_momentum], [by_parameter, -by_parameter, 0, 0]], dtype=torch.float64)
        )
    return phi_of(module)


def state(leading=(), feature_set="paper", seed=1):
    generator = torch.Generator().manual_seed(seed)
    theta, g, r = (torch.randn(*leading, 42, generator=generator, dtype=torch.float64) for _ in range(3))
    averages = torch.zeros(*leading, FEATURE_SETS[feature_set].num_averages, 42, dtype=torch.float64)
    chain = dict(parameter=0.2 * theta, gradient=0.1 * g, momentum=r, averages=averages, segments=SEGMENTS)
    if FEATURE_SETS[feature_set].matrix:
        chain["covariances"] = torch.zeros(*leading, sum(state_lengths(SEGMENTS)), dtype=torch.float64)
    return chain


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
@pytest.mark.parametrize("form", RULES)
def test_the_derivatives_are_finite_differences_at_fixed_scales(form, feature_set):
    s, phi = state(feature_set=feature_set), weights(feature_set)
    measure = assumption_violation(**s, **HYPER, **MORE, phi=phi, form=form, feature_set=feature_set, step=3)
    settings = L2ESettings(feature_set=feature_set)
    run = dict(settings=settings, lr=0.2, num_data=80.0, step=3, prior_precision=MORE["prior_precision"])
    before = s["parameter"], s["gradient"], s["averages"], SEGMENTS
    at, _ = network_at(phi, *before, covariances=s.get("covariances"), **run)
    at(s["momentum"])
    h, eps = 1e-7, math.sqrt(0.2 / 80)

    def difference(head, by_parameter):
        move = (h, 0.0) if by_parameter else (0.0, h)
        ends = [at.held(s["parameter"] + k * move[0], s["momentum"] + k * move[1])[head] for k in (1, -1)]
        return (ends[0] - ends[1]) / (2 * h)

    per_step = 0.3 if form == "residual" else 0.3 * eps
    torch.testing.assert_close(measure.alpha_by_momentum, per_step * difference(0, False), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(measure.beta_by_parameter, 0.7 * eps * difference(1, True), rtol=1e-5, atol=1e-8)
    assert measure.violation.max() > 0
    assert 0 < measure.relative <= 1


def test_an_energy_has_no_violation_and_its_mirror_image_all_of_it():
    """g = c·θ·r has ∂α/∂r = ∂β/∂θ = c; turning the sign of one of them is as wrong as can be."""
    s = state()
    s["segments"] = Segments((42,))
    eps, scale = math.sqrt(0.2 / 80), {k: s[k].square().mean().add(1e-5).sqrt() for k in ("parameter", "momentum")}
    ratio = float(0.7 * eps * scale["momentum"] / (0.3 * scale["parameter"]))
    for sign, expected in ((1.0, 0.0), (-1.0, 1.0)):
        phi = linear(by_parameter=1.0, by_momentum=sign * ratio)
        measure = assumption_violation(**s, **HYPER, phi=phi, form="residual")
        assert measure.relative.item() == pytest.approx(expected, abs=1e-12)
        size = 0.7 * eps / scale["parameter"].item()
        torch.testing.assert_close(measure.beta_by_parameter, torch.full((42,), size, dtype=torch.float64))


@pytest.mark.parametrize("friction_scale", [0.0, 0.4])
def test_friction_that_beta_does_not_feel_counts_as_alpha(friction_scale):
    """A step adds to r, beyond gradient, prior and noise, −ε·∂g/∂θ − a·∂g/∂r, with ∂g/∂r = r + s_β·β."""
    s, phi = state(), weights()
    measure = assumption_violation(**s, **HYPER, **MORE, phi=phi, friction_scale=friction_scale)
    averages = update_averages(s["averages"], s["gradient"])
    before = s["parameter"], s["gradient"], averages, SEGMENTS
    at = NetworkOnChain(phi, Features(*before, FEATURE_SETS["paper"], Run(0.2, 80.0, 1)))
    at(s["momentum"])

    def alpha(momentum):
        alpha, beta = at.held(s["parameter"], momentum)
        added = -0.3 * alpha - 0.15 * momentum - 0.15 * friction_scale * 0.7 * beta
        return -(added + 0.15 * (momentum + 0.7 * beta))

    difference = (alpha(s["momentum"] + 1e-7) - alpha(s["momentum"] - 1e-7)) / 2e-7
    torch.testing.assert_close(measure.alpha_by_momentum, difference, rtol=1e-5, atol=1e-8)
    felt = assumption_violation(**s, **HYPER, **MORE, phi=phi)
    assert (measure.alpha_by_momentum - felt.alpha_by_momentum).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("residual", {}),
        ("residual", {"friction_scale": 0.4}),
        ("residual", {"num_data_in_training": 20.0}),
        ("paper", {}),
    ],
)
def test_terms_are_what_the_rule_loses_without_them(form, options):
    """Each term is also the change of the rule's own new momentum when that term alone is switched off."""
    s, phi = state(), weights()
    terms = term_contributions(**s, **HYPER, **MORE, **options, phi=phi, form=form)

    def momentum_of(noise=None, **changed):
        values = {**s, **HYPER, **MORE, **options, "phi": phi, **changed}
        theta, gradient, *kept = (values.pop(name) for name in ("parameter", "gradient", "momentum", "averages"))
        return RULES[form](theta, gradient, noise, *kept, **values)[1]

    def rms(x):
        return x.square().mean().sqrt()

    momentum = momentum_of()
    torch.testing.assert_close(terms["alpha"], rms(momentum - momentum_of(alpha_scale=0.0)))
    torch.testing.assert_close(terms["learned_friction"], rms(momentum - momentum_of(friction_scale=0.0)))
    torch.testing.assert_close(terms["prior"], rms(momentum - momentum_of(prior_precision=0.0)))
    torch.testing.assert_close(terms["noise"], rms(momentum - momentum_of(noise=torch.ones(42).double())))
    torch.testing.assert_close(terms["gradient"], rms(math.sqrt(0.2 * 80) * s["gradient"]))
    assert ("friction" in terms) == (form == "residual")


def next_parameter(state):
    """Where `l2e_rule` takes θ from a state of `flat_states`."""
    values = {key: value for key, value in state.items() if key != "form"}
    theta, gradient, *kept = (values.pop(name) for name in ("parameter", "gradient", "momentum", "averages"))
    return l2e_rule(theta, gradient, None, *kept, **values)[0]


def test_the_states_of_an_optimizer_are_what_its_next_step_uses():
    model, module = small_network(), build_network("adaptive", (6,), zero_last=False)
    groups = [{"params": [model[0].weight], "lr": 0.03}, {"params": [*model[2].parameters(), model[0].bias]}]
    sampler = L2E(groups, 0.1, 100, network=module, feature_set="adaptive", temperature=0.0)
    closure = closure_for(model, sampler)
    with pytest.raises(ValueError, match="sampler"):
        flat_states(sampler)
    for _ in range(3):
        sampler.step(closure)
    closure()
    states = flat_states(sampler)
    assert [s["segments"].lengths for s in states] == [(15,), (10, 2, 5)]
    assert [s["lr"] for s in states] == [0.03, 0.1]
    assert all(0 < assumption_violation(**s).relative <= 1 for s in states)
    assert all(term_contributions(**s)["noise"] == 0 for s in states)
    expected = torch.cat([next_parameter(s) for s in states])
    sampler.step()
    after = torch.cat([p.detach().flatten() for group in sampler.param_groups for p in group["params"]])
    torch.testing.assert_close(after, expected)
    with pytest.raises(TypeError, match="SGHMC"):
        flat_states(SGHMC(model.parameters(), 0.1, 100))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_states_are_those_of_the_weights_that_the_rule_moves(dtype):
    """With a prior around the first weights, and where the rule moves float32 copies."""
    p = torch.full((50,), 3.0, dtype=dtype, requires_grad=True)
    settings = {"network": "l2e", "prior_precision": 10.0, "temperature": 0.0, "lr": 1e-3}
    sampler = L2E([{"params": [p], "prior_mean": "initial"}], num_data=1000, **settings)
    for step in range(3):
        p.grad = torch.full((50,), 0.01 * (1 + step), dtype=dtype)
        if step < 2:
            sampler.step()
    (state,) = flat_states(sampler)
    torch.testing.assert_close(state["parameter"], sampler.state[p].get("master", p.detach()).float() - 3.0)
    assert term_contributions(**state)["prior"] < 0.01 * term_contributions(**state)["gradient"]
    expected = next_parameter(state)
    sampler.step()
    torch.testing.assert_close(sampler.state[p].get("master", p.detach()).float(), expected + 3.0)
