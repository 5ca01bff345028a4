"""The learned rules: what they say of themselves, where they start, and what of their outputs is logged."""

import math

import pytest
import torch

import pretrained
from learned_samplers.base.segments import Segments
from learned_samplers.learned.averages import update_averages
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.l2e import L2ESettings
from learned_samplers.learned.network import apply_network
from learned_samplers.learned.weights import save
from meta_tasks.inner_loop.schedule import Schedule
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.objectives import BMALoss
from meta_tasks.rules.base import Hyperparameters, MemberStep
from meta_tasks.rules.classical import SGHMCRule
from meta_tasks.rules.learned import L2ERule, PrecondL2ERule
from tests.learned_samplers.learned.cases import features
from tests.meta_tasks.toy_tasks import image_task


def test_a_rule_says_what_it_is_and_gives_its_network():
    rule = L2ERule("paper", "adaptive", (8, 4), beta_scale=0.5)
    assert rule.specification() == {"sampler": "L2E", "hidden": [8, 4], **rule.settings.as_dict()}
    assert rule.settings == L2ESettings(form="paper", feature_set="adaptive", beta_scale=0.5)
    assert L2ERule(hidden=(8, 4), settings=rule.settings).specification() == rule.specification()
    weights = torch.randn(rule.num_weights)
    network = rule.network(weights)
    assert torch.equal(torch.nn.utils.parameters_to_vector(network.parameters()), weights)
    (first, bias), *_ = rule.prepare(weights[None])
    assert torch.equal(first[0], network[0].weight)
    assert torch.equal(bias[0], network[0].bias)


@pytest.mark.parametrize("hidden", [None, ()])
def test_a_start_is_the_feature_itself(hidden):
    """With Adam's direction as the start, a step is that of SGHMC and of Adam (decays 0.9 and 0.99) side by side."""
    rule = L2ERule(
        "residual", "adaptive", hidden, start=("average_0.9_to_rms", 2.0), beta_scale=3.0, friction_scale=0.0
    )
    assert rule.specification()["start"] == ["average_0.9_to_rms", 2.0]
    phi = rule.prepare(rule.initial_weights(0)[None])
    x = torch.randn(1, 26, 7)
    alpha, beta = apply_network(phi, x)
    names = FEATURE_SETS["adaptive"].names
    torch.testing.assert_close(beta[0], -2.0 * x[0, names.index("average_0.9_to_rms")])
    assert not alpha.any()

    hyper = Hyperparameters(lr=0.01, num_data=50, temperature=0.0)
    torch.manual_seed(0)
    start, sghmc = torch.randn(1, 7), torch.zeros(1, 7)
    theta = start
    adam = theta[0].clone().requires_grad_()
    optimizer = torch.optim.Adam([adam], 3.0 * 2.0 * math.sqrt(0.01 / 50), betas=(0.9, 0.99), eps=0.0)
    theta, reference = theta.clone(), theta.clone()
    state = rule.initial_state(theta, Segments((7,)))
    for step in range(5):
        gradient = torch.randn(1, 7)
        common = (Segments((7,)), hyper, step)
        theta, state = rule.update(phi, MemberStep(theta, gradient, None, state, *common))
        reference, (sghmc,) = SGHMCRule().update(None, MemberStep(reference, gradient, None, (sghmc,), *common))
        adam.grad = gradient[0]
        optimizer.step()
    torch.testing.assert_close(theta[0], adam.detach() + reference[0] - start[0], rtol=1e-4, atol=1e-6)


def weight_file(folder, rule, weights=None):
    path, weights = folder / "first.safetensors", torch.randn(rule.num_weights) if weights is None else weights
    meta = dict(tasks={}, horizon={}, estimator={}, seed=0, commit="", command="", iterations=0)
    card = {"name": "first", "meta_training": meta, "curve": [], "metrics": {}, "licence": "MIT"}
    save(path, rule.network(weights), {**rule.card(), **card, "defaults": {"lr": 0.1, "momentum_decay": 0.1}})
    return path, weights


def test_a_weight_file_is_a_start_with_the_scales_that_it_was_trained_with(tmp_path):
    """Left out is the rule's own value, in the card as in the options: s_α = 0.1, f = 1."""
    path, weights = weight_file(tmp_path, L2ERule("residual", "paper", (4,), beta_scale=3, friction_scale=1.0))
    for same in ({"beta_scale": 3.0}, {"beta_scale": 3, "alpha_scale": 0.1, "num_data_in_training": None}):
        second = L2ERule("residual", "paper", (4,), start=path, **same)
        assert torch.equal(second.initial_weights(5), weights)
    assert "SHA-256" in second.specification()["start"]
    shipped = dict(beta_scale=10.0, friction_scale=0.0, num_data_in_training=50_000.0)
    L2ERule("residual", "adaptive", (16, 16), start=pretrained.path("l2e"), **shipped)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"form": "paper"}, "form residual, here it is paper"),
        ({"hidden": (3,)}, r"hidden layers of \[4\] units"),
        ({"hidden": (8, 8)}, r"hidden layers of \[4\] units"),
        ({"beta_scale": 1.0}, "'beta_scale': 3}, here .*'beta_scale': 1"),
        ({"alpha_scale": 2.0}, "'alpha_scale': 0.1}, here .*'alpha_scale': 2"),
        ({"friction_scale": 0.0}, "'friction_scale': 1.0}, here .*'friction_scale': 0"),
        ({"num_data_in_training": 9.0}, "'num_data_in_training': None}, here .*'num_data_in_training': 9"),
    ],
)
def test_a_weight_file_of_something_else_is_no_start(tmp_path, changes, named):
    path, _ = weight_file(tmp_path, L2ERule("residual", "paper", (4,), beta_scale=3, friction_scale=1.0))
    keywords = {"form": "residual", "hidden": (4,), "beta_scale": 3.0, "friction_scale": 1.0, **changes}
    with pytest.raises(ValueError, match=rf"start: .*first\.safetensors.*{named}"):
        L2ERule(feature_set="paper", start=path, **keywords)


def test_a_start_keeps_its_function_in_a_wider_network_that_sees_more(tmp_path):
    path, weights = weight_file(tmp_path, narrow := L2ERule("residual", "adaptive", (4, 3)))
    wide = L2ERule("residual", "matrix", (6, 5), start=path)
    x = torch.randn(1, FEATURE_SETS["matrix"].size, 9)
    columns = [FEATURE_SETS["matrix"].names.index(name) for name in FEATURE_SETS["adaptive"].names]
    assert columns[-1] > len(columns)  # the context does not stand where it stood
    expected = apply_network(narrow.prepare(weights[None]), x[:, columns])
    started = wide.initial_weights(5)
    for got, wanted in zip(apply_network(wide.prepare(started[None]), x), expected, strict=True):
        torch.testing.assert_close(got, wanted)
    # The further units are there to be learned with: what they see is not zero.
    (first, _), (second, _), (last, _) = wide.prepare(started[None])
    assert first[0, 4:].all()
    assert second[0, 3:].all()
    assert not last[0, :, 3:].any()
    with pytest.raises(ValueError, match=r"sees .*log_kick, .*time_1000, .*which 'paper' has not"):
        L2ERule("residual", "paper", (6, 5), start=path)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("residual", {}),
        ("residual", {"beta_scale": 3.0, "num_data_in_training": 5.0}),
        ("paper", {"alpha_scale": 0.5, "beta_scale": 0.7}),
    ],
)
def test_the_scales_of_the_outputs_are_those_of_what_the_step_adds(form, options, steps):
    """α and β by what a step without noise and without friction on β does beyond the known terms."""
    rule = L2ERule(form, "adaptive", (8,), friction_scale=0.0, **options)
    task = image_task(lr=0.2, temperature=0.0, prior_precision=2.0, momentum_decay=0.3)
    torch.manual_seed(0)
    weights = (rule.initial_weights(0) + 0.3 * torch.randn(rule.num_weights)).expand(2, -1)
    unroll = Unroll(task, rule, BMALoss, Schedule(6, 0, 1), [1])
    unroll.advance(weights, steps)
    before, momentum = unroll.parameter.clone(), unroll.state[0].clone()
    gradient = task.loss_and_gradient(before, unroll._indices())[1]
    unroll.advance(weights, 1)
    moved, step_size = unroll.state[0], math.sqrt(0.2 / task.hyperparameters.num_data)
    drift = step_size * (task.hyperparameters.num_data * gradient + 2.0 * before)
    velocity = (unroll.parameter - before) / step_size
    if form == "residual":
        alpha, beta = 0.7 * momentum - drift - moved, velocity - moved
    else:
        alpha, beta = momentum - drift - moved, velocity
    for name, term in (("alpha", alpha), ("beta", beta)):
        expected = term.square().mean(-1).sqrt()
        assert (expected > 1e-3).all()
        torch.testing.assert_close(unroll.output_scales[name], expected, rtol=2e-3, atol=1e-5)


def test_the_scales_of_the_preconditioner_are_those_of_its_logarithms():
    rule = PrecondL2ERule("adaptive", (8,), curl_scale=0.5)
    task = image_task(lr=0.05, temperature=0.0)
    torch.manual_seed(0)
    weights = rule.initial_weights(0) + 0.1 * torch.randn(rule.num_weights)
    unroll = Unroll(task, rule, BMALoss, Schedule(6, 0, 1), [1], members_per_group=1)
    unroll.advance(weights[None], 3)
    before, (momentum, averages) = unroll.parameter.clone(), [tensor.clone() for tensor in unroll.state]
    gradient = task.loss_and_gradient(before, unroll._indices())[1]
    unroll.advance(weights[None], 1)
    x = features(
        before,
        momentum,
        gradient,
        update_averages(averages, gradient, "adaptive"),
        task.segments,
        "adaptive",
        lr=0.05,
        num_data=task.hyperparameters.num_data,
        step=3,
    )
    q, d = apply_network(rule.prepare(weights[None]), x)
    torch.testing.assert_close(unroll.output_scales["log_curl"], 0.5 * q.square().mean(-1).sqrt())
    torch.testing.assert_close(unroll.output_scales["log_friction"], d.square().mean(-1).sqrt())


def test_a_share_of_the_runs_is_told_how_long_it_is():
    rule = L2ERule(feature_set="matrix", hidden=(4,), tell_horizon=0.25)
    told = [rule.for_run(70, 3, "episode", i).settings.total_steps for i in range(400)]
    assert set(told) == {None, 70}
    assert 70 < sum(length == 70 for length in told) < 130  # 100 expected, standard deviation 9
    assert told == [rule.for_run(70, 3, "episode", i).settings.total_steps for i in range(400)]
    assert rule.settings.total_steps is None
    assert rule.specification()["tell_horizon"] == 0.25
    assert "tell_horizon" not in L2ERule(feature_set="matrix").specification()
    assert "total_steps" not in rule.for_run(70, 0).card()["scales"]
    assert L2ERule(feature_set="matrix").for_run(70, 0).settings.total_steps is None
