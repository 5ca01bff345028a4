"""A user's own rule: SGHMC whose rate and friction are meta-parameters, as a sampler and as a plain optimizer."""

import pytest
import torch

from learned_samplers.classical.sghmc import sghmc_rule
from meta_tasks.estimators import AntitheticES
from meta_tasks.inner_loop import Horizon
from meta_tasks.rules.base import SamplerRule, arguments_of
from meta_tasks.tasks import family_named
from meta_tasks.training import HeldOutEvaluation, Trainer, TrainerSettings


class TunedSGHMC(SamplerRule):
    """SGHMC at lr·exp(φ₀) and with a = sigmoid(φ₁ − 2)."""

    name = "TunedSGHMC"
    state_names = ("momentum",)
    num_weights = 2
    by_member = True  # nothing below is of one task: members of several may share a batch

    def prepare(self, weights):
        return weights[:, :1].exp(), torch.sigmoid(weights[:, 1:] - 2)

    def update(self, prepared, at):
        factor, decay = prepared  # (P, 1) each, as sghmc_rule takes them
        settings = arguments_of(at.hyper, lr=at.hyper.lr * factor, momentum_decay=decay)
        parameter, momentum = sghmc_rule(*at.tensors, **settings)
        return parameter, (momentum,)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_learns_what_it_is_to_learn(temperature):
    """At temperature 0 it is an optimizer, SGD with momentum: so plain learned optimizers are trained."""
    network = ("mlp", {"hidden": (16,), "activation": "relu"})
    choices = dict(lrs=(0.001,), prior_precisions=(1.0,), temperatures=(temperature,))
    family = family_named("digits", architectures=(network,), **choices)
    estimator = AntitheticES(0.2, 8, Horizon(60, 60, samples=5), tasks_per_job=8)
    settings = TrainerSettings(iterations=20, learning_rate=0.2, averaging=0.5, evaluate_every=0)
    trainer = Trainer(family, TunedSGHMC(), estimator, settings)
    assert trainer.run() == "finished"
    # On tasks that training never draws, at the rate that they come with.
    evaluation = HeldOutEvaluation(family, 60, samples=5, tasks=2, chains=4, lrs=(0.001,))
    before = evaluation.losses(trainer.rule, trainer.rule.initial_weights(0))
    after = evaluation.losses(trainer.rule, trainer.averaged)
    assert (after < 0.5 * before).all()
    assert trainer.averaged[0] > 1.0  # the rate was far too low
