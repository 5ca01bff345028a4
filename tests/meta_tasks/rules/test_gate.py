"""The gate on a trained network: what it starts as, what it does to β, and what it refuses."""

import pytest
import torch

import pretrained
from learned_samplers import L2E
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.network import apply_network, layers_of
from learned_samplers.learned.weights import load, save
from meta_tasks.inner_loop.schedule import Schedule
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.objectives import BMALoss
from meta_tasks.rules.gate import L2EGateRule
from meta_tasks.rules.learned import L2ERule, rule_from_card
from tests.meta_tasks.rules.test_learned import weight_file
from tests.meta_tasks.toy_tasks import image_task

SHIPPED = pretrained.path("l2e")
NEW, OLD = FEATURE_SETS["adaptive_run"].names, FEATURE_SETS["adaptive_data"].names


def outputs(rule, weights, x):
    """α and β of one network at features (F, n)."""
    return [y[0] for y in apply_network(rule.prepare(weights[None]), x[None])]


def test_at_zero_it_is_the_trained_network():
    rule = L2EGateRule(SHIPPED)
    assert rule.num_weights == len(FEATURE_SETS["adaptive_run"].context) + 1 == 16
    assert (rule.hidden, rule.settings.gated) == ((17, 17), True)
    trained, card = load(SHIPPED)
    old = rule_from_card(card)
    torch.manual_seed(0)
    x = torch.randn(len(NEW), 50)
    expected = apply_network([(w[None], b[None]) for w, b in layers_of(trained)], x[[NEW.index(n) for n in OLD]][None])
    for got, wanted in zip(outputs(rule, rule.initial_weights(3), x), expected, strict=True):
        torch.testing.assert_close(got, wanted[0], rtol=1e-4, atol=1e-4)  # γ = 6 − 6
    task = image_task(lr=0.01, temperature=1.0)
    ends = []
    for each, weights in ((old, torch.nn.utils.parameters_to_vector(trained.parameters())), (rule, torch.zeros(16))):
        unroll = Unroll(task, each, BMALoss, Schedule(6, 0, 1), [1])
        unroll.advance(weights.detach().expand(2, -1))
        ends.append(unroll.parameter)
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-3, atol=1e-4)


def test_a_gate_is_linear_in_the_context_and_multiplies_beta_alone():
    rule, context = L2EGateRule(SHIPPED), FEATURE_SETS["adaptive_run"].context
    torch.manual_seed(1)
    x, weights = torch.randn(len(NEW), 50), 0.3 * torch.randn(16)
    rows = [NEW.index(name) for name in context]
    gamma = (weights[:-1] @ x[rows] + weights[-1]).clamp(-6, 6)
    (alpha, beta), (same, gated) = outputs(rule, torch.zeros(16), x), outputs(rule, weights, x)
    torch.testing.assert_close(same, alpha, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gated, beta * gamma.exp(), rtol=1e-3, atol=1e-4)
    assert gamma.std() > 0.1
    network = rule.network(weights)
    assert [tuple(w.shape) for w, _ in layers_of(network)] == [(17, len(NEW)), (17, 17), (3, 17)]
    again = apply_network([(w[None], b[None]) for w, b in layers_of(network)], x[None])
    torch.testing.assert_close(again[1][0], gated)


def test_members_have_gates_of_their_own():
    rule = L2EGateRule(SHIPPED)
    weights = torch.stack([torch.zeros(16), torch.full((16,), 0.1)])
    x = torch.randn(len(NEW), 5)
    both = apply_network(rule.prepare(weights), x.expand(2, -1, -1))
    for member in range(2):
        torch.testing.assert_close(both[1][member], outputs(rule, weights[member], x)[1])
    assert not torch.equal(both[1][0], both[1][1])


def test_the_optimizer_takes_it_and_its_run_can_be_told():
    """A gate that closes with the progress of the run: β's part of a step shrinks by e^{−c·progress}."""
    rule = L2EGateRule(SHIPPED)
    weights = torch.zeros(16)
    weights[FEATURE_SETS["adaptive_run"].context.index("progress")] = -3.0
    network = rule.network(weights)
    moved = {}
    for total in (None, 4):
        p = torch.nn.Parameter(torch.ones(6))
        settings = rule.settings.as_dict() | {"total_steps": total}
        settings = type(rule.settings)(**settings)
        sampler = L2E([p], 1e-3, 1000, network=network, settings=settings, temperature=0.0)
        torch.manual_seed(0)
        for _ in range(4):
            p.grad = torch.rand(6) + 0.5
            before = p.detach().clone()
            sampler.step()
        moved[total] = (p.detach() - before).norm()
    assert moved[4] < 0.5 * moved[None]


def test_its_tasks_and_its_start_stand_in_the_specification():
    rule = L2EGateRule(SHIPPED, tell_horizon=0.5)
    assert rule.specification()["learned"] == "gate"
    assert "SHA-256" in rule.specification()["start"]
    assert rule.for_run(200, 3).settings.total_steps in (None, 200)
    assert rule.card()["scales"]["gated"] is True


def test_a_gate_is_where_the_next_one_begins(tmp_path):
    first, weights = L2EGateRule(SHIPPED), torch.linspace(-0.5, 0.5, 16)
    meta = dict(tasks={}, horizon={}, estimator={}, seed=0, commit="", command="", iterations=0)
    card = {"name": "gate", "meta_training": meta, "curve": [], "metrics": {}, "licence": "MIT"}
    card["defaults"] = {"lr": 0.1, "momentum_decay": 0.1}
    save(tmp_path / "gate.safetensors", first.network(weights), {**first.card(), **card})
    second, more = L2EGateRule(tmp_path / "gate.safetensors"), torch.linspace(0.3, -0.2, 16)
    assert second.hidden == (17, 17)
    torch.testing.assert_close(second.prepare(more[None]), first.prepare((weights + more)[None]))


def test_what_cannot_have_a_gate_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must be a network of L2E in the residual form, got L2E, paper"):
        L2EGateRule(pretrained.path("l2e-paper"))
    path, _ = weight_file(tmp_path, L2ERule("residual", "lean", (4, 4), gated=True))
    with pytest.raises(ValueError, match="a gate of its own that is not linear in the context"):
        L2EGateRule(path, "lean")
    path, _ = weight_file(tmp_path, L2ERule("residual", "adaptive", (4, 4)))
    with pytest.raises(ValueError, match=r"start: .* sees gradient_to_rms.*which 'paper' has not"):
        L2EGateRule(path, "paper")
