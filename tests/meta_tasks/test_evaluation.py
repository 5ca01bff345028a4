"""Held-out evaluation, logs and figures."""

import math

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from learned_samplers.l2e_features import FEATURE_SETS, Segments
from learned_samplers.l2e_rule import apply_network
from learned_samplers.weights import save
from meta_tasks.estimators import AntitheticES
from meta_tasks.evaluation import HeldOutEvaluation
from meta_tasks.figures import output_contours
from meta_tasks.learned_rules import L2ERule
from meta_tasks.rules import LearnableSGD, SGHMCRule
from meta_tasks.schedule import Horizon
from meta_tasks.task import Hyperparameters
from meta_tasks.task_family import family_named
from meta_tasks.trainer import Trainer, TrainerSettings


@pytest.fixture(scope="module")
def evaluation():
    return HeldOutEvaluation(family_named("digits"), 40, samples=4, tasks=1, lrs=(0.05, 0.2))


def test_the_untrained_sampler_scores_what_sghmc_scores(evaluation):
    rule = L2ERule("residual")
    score = evaluation.score(rule, rule.initial_weights(0))
    baselines = evaluation.baselines()
    assert score == baselines["sghmc"]
    assert set(baselines) == {"sghmc", "psgld", "cyclical"}
    assert score.nll < 2.25  # nats: better than chance (2.30) after forty steps, by no more than a little
    assert 0 < score.accuracy < 1
    assert score.share_failed == 0
    assert len({baseline.nll for baseline in baselines.values()}) == 3


def test_the_best_learning_rate_counts_and_failures_are_the_worst(evaluation):
    rule = LearnableSGD()
    # exp(φ₀) = e⁻³⁰: no learning at all; e⁸⁰: every run becomes non-finite
    still = evaluation.score(rule, torch.tensor([-30.0, 0.0]))
    wild = evaluation.score(rule, torch.tensor([80.0, 0.0]))
    both = HeldOutEvaluation(evaluation.family, 40, samples=4, tasks=1, lrs=(1e-3, 1e30)).score(rule, torch.zeros(2))
    assert still.nll == pytest.approx(2.3, abs=0.1)
    assert still.share_failed == 0
    assert wild.nll == float("inf")
    assert wild.share_failed == 1
    assert both.nll < 3
    assert both.share_failed == 0.5


def test_held_out_tasks_are_fixed_and_scored_on_the_test_split(evaluation):
    again = HeldOutEvaluation(family_named("digits"), 40, samples=4, tasks=1, lrs=(0.05, 0.2))
    assert again.configs == evaluation.configs
    assert {config.split for config in again.configs} == {"test"}
    assert again.score(SGHMCRule()) == evaluation.score(SGHMCRule())
    with pytest.raises(ValueError, match="evaluation needs tasks, chains and lrs"):
        HeldOutEvaluation(family_named("digits"), 40, lrs=())


def test_everything_is_logged(tmp_path, evaluation, capsys):
    estimator = AntitheticES(0.03, 2, Horizon(12, 12, samples=3))
    trainer = Trainer(
        family_named("digits"), L2ERule("residual"), estimator, TrainerSettings(iterations=4, evaluate_every=2),
        folder=tmp_path, evaluation=evaluation,
    )  # fmt: skip
    trainer.run()
    trainer.close()
    log = EventAccumulator(str(tmp_path), size_guidance={"images": 0})
    log.Reload()
    scalars, images = set(log.Tags()["scalars"]), set(log.Tags()["images"])
    assert scalars >= {
        "meta_loss/all", "gradient/norm", "gradient/mean_loss_difference", "gradient/rms_loss_difference",
        "inner_loop/failed_members", "inner_loop/member_steps_per_second", "output_scale/alpha", "output_scale/beta",
        "held_out_nll/sampler", "held_out_nll/sghmc", "held_out_nll/cyclical", "held_out_nll/psgld",
        "held_out_accuracy/sampler",
    }  # fmt: skip
    assert any(tag.startswith("meta_loss/digits-") for tag in scalars)
    assert images == {"network/contours", "inner_loop/curves"}
    losses = [event.value for event in log.Scalars("meta_loss/all")]
    assert losses == pytest.approx(trainer.history["loss"])
    assert [event.step for event in log.Scalars("held_out_nll/sampler")] == [0, 2, 4]
    assert [score["iteration"] for score in trainer.scores["sampler"]] == [0, 2, 4]
    assert trainer.scores["sampler"][0]["nll"] == trainer.scores["baselines"]["sghmc"]["nll"]
    nll = trainer.scores["sampler"][2]["nll"]
    printed = [line for line in capsys.readouterr().out.splitlines() if "held-out NLL" in line]
    assert len(printed) == 3
    assert printed[2].startswith(f"iteration 4: held-out NLL {nll:.4f} (sghmc ")


@pytest.mark.parametrize("feature_set", ["paper", "scaled", "adaptive"])
def test_contours_show_what_the_network_puts_out(feature_set):
    rule = L2ERule("residual", feature_set)
    torch.manual_seed(0)
    trained = rule.prepare(rule.initial_weights(0) + 0.1 * torch.randn(rule.num_weights))
    figure = output_contours(trained, feature_set)
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == ["|α|", "|β|"]
    assert len(figure.axes) == 4  # with a colour bar each
    assert len(output_contours(rule.prepare(rule.initial_weights(0)), feature_set).axes) == 2  # zero everywhere: none


def test_a_rule_says_what_it_is_and_gives_its_network():
    rule = L2ERule("paper", "scaled", (8, 4), beta_scale=0.5)
    assert rule.specification() == {
        "sampler": "l2e", "form": "paper", "feature_set": "scaled", "hidden": [8, 4], "beta_scale": 0.5,
    }  # fmt: skip
    weights = torch.randn(rule.num_weights)
    network = rule.network(weights)
    assert torch.equal(torch.nn.utils.parameters_to_vector(network.parameters()), weights)
    (first, bias), *_ = rule.prepare(weights[None])
    assert torch.equal(first[0], network[0].weight)
    assert torch.equal(bias[0], network[0].bias)
    with pytest.raises(ValueError, match="form must be one of 'residual', 'paper', 'preconditioner', got 'new'"):
        L2ERule("new")
    with pytest.raises(ValueError, match="feature_set must be one of"):
        L2ERule("paper", "all")


def test_a_start_is_the_feature_itself():
    """With Adam's direction as the start, a step is that of SGHMC and of Adam (its decays .9 and .99) side by side."""
    rule = L2ERule("residual", "adaptive", start=("average_0.9_to_rms", 2.0), beta_scale=3.0, friction_scale=0.0)
    assert rule.specification()["start"] == ["average_0.9_to_rms", 2.0]
    phi = rule.prepare(rule.initial_weights(0)[None])
    x = torch.randn(1, 25, 7)
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
    other = theta.clone()
    state = rule.initial_state(theta)
    for step in range(5):
        gradient = torch.randn(1, 7)
        theta, state = rule.update(phi, theta, gradient, None, state, segments=Segments((7,)), hyper=hyper, step=step)
        other, (sghmc,) = SGHMCRule().update(
            None, other, gradient, None, (sghmc,), segments=None, hyper=hyper, step=step
        )
        adam.grad = gradient[0]
        optimizer.step()
    torch.testing.assert_close(theta[0], adam.detach() + other[0] - start[0], rtol=1e-4, atol=1e-6)


def test_a_weight_file_is_a_start(tmp_path):
    path = tmp_path / "first.safetensors"
    first = L2ERule("residual", "paper", (4,), beta_scale=3.0)
    weights = torch.randn(first.num_weights)
    meta = dict(tasks={}, horizon={}, estimator={}, seed=0, commit="", command="", iterations=0)
    card = {"name": "first", "meta_training": meta, "curve": [], "metrics": {}, "licence": "MIT"}
    save(path, first.network(weights), {**first.card(), **card, "defaults": {"lr": 0.1, "momentum_decay": 0.1}})
    second = L2ERule("residual", "paper", (4,), start=path, beta_scale=3.0)
    assert torch.equal(second.initial_weights(5), weights)
    assert "SHA-256" in second.specification()["start"]
    with pytest.raises(ValueError, match=r"first\.safetensors has form residual, here it is paper"):
        L2ERule("paper", "paper", (4,), start=path)
    with pytest.raises(ValueError, match=r"has layers \[\[4, 9\], \[2, 4\]\], here it is \[\[8, 9\], \[2, 8\]\]"):
        L2ERule("residual", "paper", (8,), start=path)


def test_an_impossible_start_is_refused():
    with pytest.raises(ValueError, match=r"'average_0\.9_to_rms' is not a feature of 'paper'"):
        L2ERule("residual", "paper", start=("average_0.9_to_rms", 2.0))
    with pytest.raises(ValueError, match="two units in every hidden layer"):
        L2ERule("residual", "paper", (8, 1), start=("gradient", 2.0))


def test_the_baselines_have_their_own_grid():
    made = [
        HeldOutEvaluation(family_named("digits"), 20, samples=2, tasks=1, chains=1, lrs=(lr,), baseline_lrs=grid)
        for lr, grid in ((0.01, (0.2,)), (0.2, None))
    ]
    assert made[0].baselines()["sghmc"] == made[1].baselines()["sghmc"] == made[1].score(SGHMCRule())
    assert made[0].score(SGHMCRule()) != made[1].score(SGHMCRule())
    assert made[0].specification()["baseline_lrs"] == [0.2]
