"""Refusals of the rooms of meta-training: an error of its class that names the argument, before anything is done."""

import math

import pytest
import torch

from learned_samplers.learned.l2e import L2ESettings
from meta_tasks import datasets
from meta_tasks.datasets import MultiTaskData, load, match
from meta_tasks.estimators import AntitheticES, NoiseReuseES, Shaping, TruncatedBackpropagation
from meta_tasks.inner_loop import ChainUnroll, Horizon, Schedule, Unroll
from meta_tasks.networks import BatchedModule, BatchedResidual, batched_network_for, build, build_text
from meta_tasks.objectives import BMALoss, objective_named, stein_score
from meta_tasks.rules.base import Hyperparameters, steps_for
from meta_tasks.rules.classical import SGHMCRule
from meta_tasks.rules.learned import KineticRule, L2ERule, MetaSGMCMCRule, PrecondL2ERule
from meta_tasks.tasks import GaussianFamily, GaussianTask, ImageTask, TaskConfig, family_named
from meta_tasks.training import Checkpoints, HeldOutEvaluation, Trainer, TrainerSettings
from tests.meta_tasks.datasets.test_loading import SMALL_COLOUR, make_image_data
from tests.meta_tasks.toy_tasks import LearnableSGD, QuadraticFamily, QuadraticTask, random_images

HORIZON = Horizon(20, 20, samples=4)
COLD = Hyperparameters(0.1, 100, temperature=0.0)


def es(*arguments, **keywords):
    return AntitheticES(*arguments or (0.1, 4, HORIZON), **keywords)


def tbptt(**changes):
    return TruncatedBackpropagation(Horizon(12, 20, samples=4), **{"window": 12, **changes})


def task(**changes):
    return ImageTask(TaskConfig("noise", "mlp", {}, **changes), random_images(), 0)


def held_out(*arguments, **keywords):
    return HeldOutEvaluation(family_named("digits"), *arguments, **{"tasks": 1, **keywords})


def trainer(evaluation=None, rule=None, estimator=None, **settings):
    made = TrainerSettings(**settings)
    return Trainer(QuadraticFamily(), rule or LearnableSGD(), estimator or es(), made, evaluation=evaluation)


def unroll(**changes):
    made = {"task": QuadraticTask(), "rule": LearnableSGD(), "objective": BMALoss, "schedule": Schedule(12, 6, 2)}
    return Unroll(**{**made, "seeds": [1], **changes})


def multi(**changes):
    x, y = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, 2, dtype=torch.long)
    tensors = {f"{split}_{name}": tensor for split in ("train", "val", "test") for name, tensor in (("x", x), ("y", y))}
    return MultiTaskData("made", 5, tasks=("a", "b"), **{**tensors, **changes})


def without_validation(**changes):
    data = random_images()
    empty = {"val_x": data.val_x[:0], "val_y": data.val_y[:0]}
    return ImageTask(TaskConfig("noise", "mlp", {}), type(data)(**{**vars(data), **empty}), 0)


#: (error, what its message says, what is done)
DATASETS = [
    (ValueError, "limit=5", lambda: load("digits", limit=5)),
    (ValueError, "limit=5000", lambda: load("digits", limit=5000)),
    (ValueError, "limit", lambda: load("digits", limit=0)),
    (TypeError, "limit", lambda: load("digits", limit=10.5)),
    (ValueError, "size", lambda: load("digits", size=-1)),
    (TypeError, "size", lambda: load("digits", size=True)),
    (ValueError, "size=500", lambda: load("photos", size=500)),
    (ValueError, "validation", lambda: load("digits", validation=1.0)),
    (ValueError, "validation", lambda: load("digits", validation=-3)),
    (ValueError, "validation=3", lambda: load("digits", validation=3)),
    (TypeError, "validation", lambda: load("digits", validation="0.1")),
    (ValueError, "name='digit'", lambda: load("digit")),
    (TypeError, "name", lambda: load(3)),
    (ValueError, "name='digit'", lambda: datasets.out_of_distribution("digit")),
    (ValueError, "name='chestmnist'", lambda: load("chestmnist")),
    (ValueError, "name='organmnist3d'", lambda: load("organmnist3d")),
    (FileNotFoundError, "absent.npz", lambda: load("npz:/absent.npz")),
    (ValueError, "like", lambda: match(SMALL_COLOUR, (2, 8, 8))),
    (ValueError, "classes", lambda: datasets.keep_labels(SMALL_COLOUR, (1, 3))),
    (TypeError, "train_x", lambda: make_image_data(train_x=torch.zeros(4, 3, 6, 6, dtype=torch.uint8))),
    (ValueError, "val_x", lambda: make_image_data(val_x=torch.zeros(4, 1, 6, 6))),
    (ValueError, "val_y", lambda: make_image_data(val_y=torch.zeros(3, dtype=torch.int64))),
    (ValueError, "test_y", lambda: make_image_data(test_y=torch.tensor([0, 1, 2, 3]))),
    (TypeError, "train_x", lambda: multi(train_x=torch.zeros(2, 1, 4, 4))),
    (ValueError, "val_y", lambda: multi(val_y=torch.zeros(2, 3, dtype=torch.long))),
    (ValueError, "test_y", lambda: multi(test_y=torch.full((2, 2), 5))),
]
SMALLEST = {"cnn": 2, "lenet": 12, "gong_cnn": 10, "resnet": 8, "resnet20_frn": 8, "resnet_frn": 4}
NETWORKS = [
    *((ValueError, f"{n}×{n}", lambda k=k, n=n: build(k, (1, n - 1, n + 5), 10)) for k, n in SMALLEST.items()),
    *((ValueError, f"{n}×{n}", lambda k=k, n=n: build(k, (1, n + 5, n - 1), 10)) for k, n in SMALLEST.items()),
    (ValueError, "name='vgg'", lambda: build("vgg", (1, 8, 8), 10)),
    (ValueError, "input_shape", lambda: build("cnn", (8, 8), 10)),
    (ValueError, "input_shape", lambda: build("cnn", (1, 8, 0), 10)),
    (ValueError, "num_classes", lambda: build("cnn", (1, 8, 8), 1)),
    (TypeError, "hidden", lambda: build("cnn", (1, 8, 8), 10, hidden=(3,))),
    (ValueError, "depth", lambda: build("cnn", (1, 8, 8), 10, depth=0)),
    (TypeError, "residual", lambda: build("cnn", (1, 8, 8), 10, residual=1)),
    (ValueError, "hidden", lambda: build("mlp", (1, 8, 8), 10, hidden=50)),
    (ValueError, "hidden", lambda: build("mlp", (1, 8, 8), 10, hidden=(5, -1))),
    (ValueError, "activation", lambda: build("mlp", (1, 8, 8), 10, activation="sin")),
    (TypeError, "depth", lambda: build("lenet", (1, 28, 28), 10, depth=1)),
    (ValueError, "depth", lambda: build("resnet", (1, 8, 8), 10, depth=21)),
    (TypeError, "width", lambda: build("resnet20_frn", (1, 8, 8), 10, width=0.5)),
    (ValueError, "blocks", lambda: build("resnet_frn", (1, 8, 8), 10, blocks=())),
    (ValueError, "name='cnn'", lambda: build_text("cnn", 20, 30, 2)),
    (ValueError, "length=7", lambda: build_text("cnn_lstm", 20, 7, 2)),
    (TypeError, "depth", lambda: build_text("cnn_lstm", 20, 30, 2, depth=2)),
    (ValueError, "width", lambda: build_text("transformer", 20, 30, 2, width=6)),
    (ValueError, "depth", lambda: build_text("transformer", 20, 30, 2, depth=0)),
    (ValueError, "BatchNorm1d keeps buffers", lambda: BatchedModule(lambda: torch.nn.BatchNorm1d(3))),
    (TypeError, "build", lambda: BatchedResidual(batched_network_for("cnn", (1, 8, 8), 4).build)),
]
RULES = [
    (ValueError, "gradients=1", lambda: steps_for(KineticRule(), 1)),
    (ValueError, "gradients=0", lambda: steps_for(SGHMCRule(), 0)),
    (ValueError, "form", lambda: L2ERule("new")),
    (ValueError, "feature_set", lambda: L2ERule("paper", "all")),
    (ValueError, "settings and beta_scale", lambda: L2ERule(settings=L2ESettings(), beta_scale=2.0)),
    (ValueError, "'average_0.9_to_rms'", lambda: L2ERule("residual", "paper", start=("average_0.9_to_rms", 2.0))),
    (ValueError, "hidden", lambda: L2ERule("residual", "paper", (8, 1), start=("gradient", 2.0))),
    (ValueError, "start", lambda: PrecondL2ERule(start=("gradient", 2.0))),
    *((ValueError, "tell_horizon", lambda x=x: L2ERule(feature_set="matrix", tell_horizon=x)) for x in (-0.1, 1.5)),
    (ValueError, "tell_horizon", lambda: L2ERule(feature_set="adaptive", tell_horizon=0.5)),
    (ValueError, "probe_size", lambda: KineticRule(probe_size=1.0)),
    (FileNotFoundError, "no such weight file: l2e", lambda: L2ERule(feature_set="adaptive", start="l2e")),
    (TypeError, "start must be a weight file, or", lambda: L2ERule(feature_set="adaptive", start=("gradient",))),
    (ValueError, "start's gain", lambda: L2ERule(feature_set="adaptive", start=("gradient", math.nan))),
    (TypeError, "hidden", lambda: L2ERule(hidden=3)),
    (TypeError, "hidden", lambda: L2ERule(hidden=(3.5,))),
    (ValueError, "hidden", lambda: L2ERule(hidden=(0,))),
]
TASKS = [
    (ValueError, "dataset_names='minst'", lambda: family_named("cpu", dataset_names=("minst",))),
    (ValueError, "dataset_names", lambda: family_named("cpu", dataset_names=())),
    (ValueError, "'cifar10'", lambda: family_named("cpu", dataset_names=("mnist", "cifar10"))),
    (ValueError, "small_data_share", lambda: family_named("cpu", small_data_share=1.5)),
    *((ValueError, "small_data", lambda x=x: family_named("cpu", small_data=x)) for x in ((50, 10), (2,), (1, 2, 3))),
    (TypeError, "lrs", lambda: family_named("cpu", lrs=0.1)),
    (TypeError, "architectures", lambda: family_named("cpu", architectures=("mlp",))),
    (ValueError, "architectures", lambda: family_named("cpu", architectures=(("vgg", {}),))),
    (ValueError, "sizes", lambda: family_named("cpu", sizes=(0,))),
    (ValueError, "validation_size", lambda: family_named("cpu", validation_size=0)),
    (TypeError, "grayscale", lambda: family_named("cpu", grayscale="no")),
    (ValueError, "lrs", lambda: family_named("cpu", lrs=(0.1, -0.1))),
    (ValueError, "labels", lambda: family_named("cpu", labels=(4,))),
    (ValueError, "temperatures", lambda: family_named("digits", temperatures=(1.0, -1.0))),
    (ValueError, "prior_precisions", lambda: family_named("digits", prior_precisions=(-2.0,))),
    (ValueError, "momentum_decays", lambda: family_named("digits", momentum_decays=(3.0,))),
    (ValueError, "batch_sizes", lambda: family_named("digits", batch_sizes=(0,))),
    (ValueError, "task family", lambda: family_named("gpu")),
    (ValueError, "classes", lambda: task(classes=(1,))),
    (ValueError, "classes", lambda: task(classes=(1, 1))),
    (ValueError, "classes", lambda: task(classes=(1, 7))),
    (ValueError, "batch_size", lambda: task(batch_size=0)),
    (ValueError, "num_data", lambda: task(num_data=0)),
    (ValueError, "split", lambda: task(split="train")),
    (ValueError, "temperature", lambda: task(temperature=-1.0)),
    (ValueError, "momentum_decay", lambda: task(momentum_decay=0.0)),
    (ValueError, "no val images", without_validation),
    (ValueError, "lrs", lambda: GaussianFamily(lrs=())),
    (ValueError, "lrs", lambda: GaussianFamily(lrs=(-0.1,))),
    (ValueError, "momentum_decays", lambda: GaussianFamily(momentum_decays=(2.0,))),
    (ValueError, "num_data", lambda: GaussianFamily(num_data=0)),
    (ValueError, "curvatures", lambda: GaussianFamily(curvatures=(2.0, 1.0))),
    (ValueError, "noise", lambda: GaussianFamily(noise=-1.0)),
    (ValueError, "precision", lambda: GaussianTask(torch.zeros(2), -torch.eye(2), Hyperparameters())),
]
INNER_LOOP = [
    (ValueError, "thinning=50", lambda: Schedule(100, 60, 50)),
    (ValueError, "burn_in=100", lambda: Schedule(100, 100, 1)),
    (ValueError, "steps", lambda: Schedule(0, 0, 1)),
    (TypeError, "steps", lambda: Schedule(10.5, 1, 1)),
    (ValueError, "burn_in", lambda: Schedule(10, -1, 1)),
    (ValueError, "thinning", lambda: Schedule(10, 1, 0)),
    (ValueError, "longest=50", lambda: Horizon(100, 50)),
    (ValueError, "samples=6", lambda: Horizon(10, 50, samples=6)),
    (ValueError, "burn_in", lambda: Horizon(10, 50, burn_in=1.0)),
    (ValueError, "samples=10", lambda: Schedule.ending(100, 9, 10)),
    (ValueError, "cycles=3", lambda: Schedule.cyclical(100, 3, 10, 0.8)),
    (ValueError, "sampling phase", lambda: Schedule.cyclical(100, 10, 40, 0.8)),
    (ValueError, "weights", lambda: unroll().advance(torch.zeros(2, 3))),
    (ValueError, "steps=13", lambda: unroll().advance(torch.zeros(2, 2), 13)),
    (ValueError, "at least one member", lambda: unroll(seeds=[])),
    (ValueError, "no collected state", lambda: unroll().losses()),
    (ValueError, "parameters (2, 6)", lambda: unroll().load_state_dict(unroll(task=QuadraticTask(d=6)).state_dict())),
    (
        ValueError,
        "temperature=0.0",
        lambda: ChainUnroll(
            GaussianTask(torch.zeros(2), torch.eye(2), COLD), MetaSGMCMCRule(), Schedule(10, 0, 5), [1, 2]
        ),
    ),
]
OBJECTIVES = [
    (ValueError, "objective", lambda: objective_named("kl")),
    (ValueError, "samples", lambda: stein_score(torch.zeros(1, 3))),
    (ValueError, "samples", lambda: stein_score(torch.zeros(3))),
    (ValueError, "ridge", lambda: stein_score(torch.zeros(4, 3), 0.0)),
]
ESTIMATORS = [
    (ValueError, "limit", lambda: Shaping("mean", -1.0)),
    (ValueError, "shaping", lambda: Shaping("log")),
    (ValueError, "sigma", lambda: es(0.0, 4, HORIZON)),
    (ValueError, "pairs", lambda: es(0.1, 0, HORIZON)),
    (ValueError, "pairs_per_task=3", lambda: es(pairs_per_task=3)),
    (ValueError, "tasks_per_job=3", lambda: es(tasks_per_job=3)),
    (ValueError, "tasks_per_job", lambda: es(tasks_per_job=0)),
    (ValueError, "window", lambda: NoiseReuseES(0.1, 4, HORIZON, 21)),
    (ValueError, "window=4", lambda: NoiseReuseES(0.1, 4, HORIZON, 4)),
    (ValueError, "'gaussians'", lambda: es().evaluator(GaussianFamily(), L2ERule(hidden=(4,)), "bma", 0)),
    (TypeError, "window", lambda: NoiseReuseES(0.1, 4, HORIZON, 10.5)),
    (TypeError, "horizon must be a Horizon", lambda: es(0.1, 4, 20)),
    (ValueError, "window", lambda: tbptt(window=13)),
    (TypeError, "window", lambda: tbptt(window=10.5)),
    (TypeError, "every", lambda: tbptt(every=1.5)),
    (TypeError, "curvature", lambda: tbptt(curvature="no")),
    (ValueError, "every", lambda: tbptt(every=16)),
    (ValueError, "chains", lambda: tbptt(chains=0)),
    (ValueError, "objective", lambda: trainer(estimator=tbptt(), rule=MetaSGMCMCRule())),
    (ValueError, "'SGHMC'", lambda: trainer(estimator=tbptt(), rule=SGHMCRule(), objective="stein_kl")),
    (ValueError, "'stein_kl'", lambda: trainer(objective="stein_kl")),
]
TRAINING = [
    (ValueError, "iterations", lambda: TrainerSettings(iterations=0)),
    (ValueError, "learning_rate", lambda: TrainerSettings(learning_rate=0.0)),
    (ValueError, "max_gradient_norm", lambda: TrainerSettings(max_gradient_norm=-1.0)),
    (ValueError, "objective", lambda: TrainerSettings(objective="kl")),
    (ValueError, "beta1", lambda: TrainerSettings(beta1=1.5)),
    (ValueError, "seed", lambda: TrainerSettings(seed=-1)),
    (ValueError, "keep_checkpoints", lambda: TrainerSettings(keep_checkpoints=0)),
    (ValueError, "averaging", lambda: TrainerSettings(averaging=1.0)),
    (ValueError, "checkpoint_minutes", lambda: TrainerSettings(checkpoint_minutes=-1.0)),
    (ValueError, "figures_every", lambda: TrainerSettings(figures_every=-1)),
    (ValueError, "patience", lambda: TrainerSettings(patience=-1)),
    (ValueError, "patience=2", lambda: trainer(patience=2)),
    (ValueError, "minutes", lambda: trainer().run(minutes=math.nan)),
    (ValueError, "minutes", lambda: trainer().run(minutes=-3.0)),
    (ValueError, "lrs", lambda: held_out(40, lrs=())),
    (TypeError, "steps", lambda: held_out(20.5)),
    (ValueError, "samples", lambda: held_out(20, samples=0)),
    (TypeError, "chains", lambda: held_out(20, chains=1.5)),
    (TypeError, "family", lambda: HeldOutEvaluation(GaussianFamily(), 20)),
    (ValueError, "lrs", lambda: held_out(40, lrs=(0.1, -1.0))),
    (ValueError, "baseline_lrs", lambda: held_out(40, baseline_lrs=(0.0,))),
    (ValueError, "sampling phase", lambda: trainer(held_out(20, samples=8))),
    (ValueError, "samples=11", lambda: trainer(held_out(20, samples=11))),
    (ValueError, "samples=4", lambda: trainer(held_out(14, samples=4), rule=KineticRule())),
]


@pytest.mark.parametrize(
    ("error", "named", "call"), [*DATASETS, *NETWORKS, *RULES, *TASKS, *INNER_LOOP, *OBJECTIVES, *ESTIMATORS, *TRAINING]
)
def test_what_cannot_be_is_refused_by_name(error, named, call):
    with pytest.raises(error) as caught:
        call()
    assert named in str(caught.value)


def test_checkpoints_are_kept(tmp_path):
    with pytest.raises(ValueError, match="keep"):
        Checkpoints(tmp_path, keep=0)
