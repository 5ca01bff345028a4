"""Refusals of the tools before anything runs, by the name of the argument that the message must contain."""

from __future__ import annotations

import compare
import meta_train
import numpy as np
import pytest
import ship
from experiments.bandits.experiment import BanditOptions
from experiments.bandits.posteriors import Budget
from experiments.benchmarks.memory import MemoryBenchmark
from experiments.benchmarks.step import StepBenchmark
from experiments.function_space.images import MNIST, ImageProtocol
from experiments.function_space.sine import SineProblem
from experiments.function_space.uci import UCI
from experiments.multi_task.experiment import TaskOptions
from experiments.multi_task.methods import Settings
from experiments.toys.bias import Bias
from experiments.toys.regression import Regression
from torch import nn

from tests.meta_tasks.datasets.imdb_archive import write_archive
from tests.tools.test_meta_train import CHAINS, TINY

NAN = float("nan")
#: Options → wrong values, each alone.
OPTIONS = {
    StepBenchmark: dict(rounds=1, long_rounds=-2, threads=0, samplers=("SGHCM",), networks=("VGG",)),
    MemoryBenchmark: dict(weights=100),
    UCI: dict(splits=0, hmc_trajectories=3, folds=6, hidden=0),
    MNIST: dict(seeds=0),
    ImageProtocol: dict(rates=(), epochs=0),
    SineProblem: dict(particles=1, trajectories=9, lr=NAN),
    TaskOptions: dict(seeds=0, rates=(0.1, -1.0), method=("MGDA", "MGDA"), extensions=-1),
    Settings: dict(epochs=0, train=0, momentum=1.0, warm_up=1.0, halve_every=0.0, temperature=-1.0),
    Bias: dict(samplers=("Adam",), coordinates=0),
    BanditOptions: dict(seeds=0, method=("FSVGD", "FSVGD")),
    Budget: dict(contexts=0, sghmc_lr=-1.0, fsvgd_lr=float("inf"), hidden=(0,)),
    Regression: dict(batch_size=2000, samples=1, hidden=(5, 0), lr=NAN, burn_in=-1, leapfrog_steps=0),
}


@pytest.mark.parametrize(
    ("options", "name", "value"), [(options, *wrong) for options, values in OPTIONS.items() for wrong in values.items()]
)
def test_bad_options_are_named(options, name, value):
    with pytest.raises(ValueError, match=name):
        options(**{name: value})


def test_a_clock_that_does_not_see_the_device_is_refused():
    with pytest.raises(ValueError, match="clock"):
        StepBenchmark(clock="processor", device="cuda")


def network():
    return nn.Linear(3, 5)


def not_one():
    return 3


OWN = f"{__file__}:"
TEXTS = "--dataset imdb --data imdb --length 12 --validation 4 --batch-size 4"
TABLE, MLP = "--dataset npz:TABLE.npz --batch-size 9", "--model mlp"
#: Words of a command; the message names the last option, or what stands after the arrow. With given settings:
GIVEN = (
    *("--lr -0.1", "--sampler SGD sgd", "--seeds 0", "--epochs 50 --steps 100 → epochs", "--ood photo"),
    *("--prior-precision inf", "--sampler L2E --networks L2E=nowhere", "--networks SGHMC=l2e", "--networks l2e"),
    *("--dataset digit", "--device gpu", "--model unet", "--model nothing.py:network → nothing.py"),
    *("--model math:nothing", f"--model {OWN}not_one", f"--model {OWN}network --hidden 3", f"{MLP} --depth 2"),
    f"{MLP} --dataset npz:FLOATS.npz --batch-size 9 → regression",
    *(f"{TABLE} --model {OWN}network → logits", f"{TABLE} --model cnn", f"{TABLE} {MLP} --augment"),
    *("--dataset npz:/nowhere/x.npz → /nowhere/x.npz", "--steps 0", "--batch-size 5000", "--burn-in 1"),
    *("--temperature -1", "--momentum-decay 0", "--sampler HMC → num_samples", "--sampler HMC --epochs 700 --augment"),
    *("--sampler CyclicalSGMCMC --cycles 5000", "--sampler DeepEnsemble --ensemble-size 5000"),
    *("--sampler SWAG --burn-in 0.9999", "--sampler AdaptedSGHMC --burn-in 0", "--sampler SGLRW --temperature 0"),
    *(f"--reference {file}.npy" for file in ("ONES", "SHORT", "NAN", "TEXT")),
    *("--reference nowhere.npy → nowhere.npy", f"{TEXTS} --model cnn", f"{TEXTS} --model cnn_lstm --size 8"),
    *(f"{TEXTS} --model cnn_lstm --ood photos", f"{TEXTS} --model cnn_lstm --length 5", "--length 12"),
    "--model cnn_lstm",
)
#: Of comparisons that tune.
TUNED = (
    *("--preset imagenet", "--grid 0", "--tune-seeds 0", "--keep 0", "--tries 0", "--extensions -1", "--jobs 0"),
    *("--corruptions -1", "--convergence --num-samples 7", f"{TABLE} {MLP} --corruptions 5", "--values lr=1"),
    *("--values temperature", "--values temperature=-1", "--values momentum_decay=0 → momentum_decay"),
    *("--values exploration_ratio=1 → exploration_ratio", "--values weight_decay=inf", "--budgets 5 5"),
    *("--budgets 5 --steps 5 → budgets", "--preset digits --epochs 3", "--budgets 4 400 → num_samples"),
    *("--validation 0", "--tune-budget 0", "--minutes -1", "--state-minutes 0", "--half left", "--lines 0"),
)


def words_of(case):
    """Arguments, and the name that the message has."""
    words, _, named = case.partition(" → ")
    arguments = words.split()
    return arguments, named or [word for word in arguments if word.startswith("--")][-1].strip("-").replace("-", "_")


def refused(tmp_path, capsys, arguments, named):
    with pytest.raises(SystemExit) as caught:
        compare.main([*arguments, "--out", "out"])
    assert caught.value.code
    assert named.replace("_", "") in f"{caught.value.code} {capsys.readouterr().err}".replace("_", "").replace("-", "")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("case", [*GIVEN, *TUNED])
def test_wrong_options_are_named_before_anything_is_trained(tmp_path, monkeypatch, capsys, case):
    monkeypatch.chdir(tmp_path)
    x, y = np.zeros((60, 3), np.float32), np.arange(60) % 3
    for name, targets in {"TABLE": y, "FLOATS": y + 0.5}.items():
        np.savez(name, x_train=x, y_train=targets, x_test=x, y_test=targets)
    ones = np.ones((899, 10))
    arrays = {"ONES": ones, "SHORT": ones[:3] / 10, "NAN": ones * np.nan, "TEXT": np.array(["a"])}
    for name, array in arrays.items():
        np.save(name, array)
    if "imdb" in case:
        (tmp_path / "imdb").mkdir()
        write_archive(tmp_path / "imdb")
    arguments, named = words_of(case)
    arguments += [] if {"--dataset", "--preset", "--model"} & {*arguments} else ["--model", "mlp"]
    arguments += ["--given-settings"] if case in GIVEN else []
    arguments += [] if "--sampler" in arguments else ["--sampler", "SGHMC", "SGD"]
    refused(tmp_path, capsys, arguments, named)


def test_a_row_of_another_preset_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    refused(tmp_path, capsys, ["--sampler", "L2E, T = 0"], "sampler")


META_TRAIN = (
    *("--sampler MetaSGMCMC → method", "--minutes nan", "--minutes -3", "--horizon 4 4 → samples", "--sigma 0"),
    *("--horizon 20 10 → shortest", "--method nres --window 50", "--method nres --window 2", "--feature-set all"),
    *("--pairs-per-task 3", "--datasets digits nosuch → dataset_names", "--sizes 0 → size", "--small-data-share 1.5"),
    *("--small-data 50 20", "--datasets cifar10 → dataset_names", "--form paper --num-data-in-training 3"),
    *("--start-feature gradients → gradients", "--start-feature gradient --start-weights a.safetensors"),
    *("--start-weights a.safetensors → a.safetensors", "--linear --start-feature gradient --direction-share 0"),
    "--linear --start-feature gradient --start-weights a.safetensors → a.safetensors",
    *("--linear --sampler KineticL2E → linear", "--tell-horizon 0.5", "--family cpu → --datasets digits"),
    *("--num-data-in-training 0", "--sampler KineticL2E --mean-scale -1", "--beta-scale -1", "--hidden 8 0"),
    *("--labels 0 99", "--labels 1 1", "--datasets digits photos → photos", "--momentum-decays 0.1 3", "--lrs 0.1 0"),
    *("--held-out-lrs -1", "--family gaussians → gaussians", "--default-lr 0", "--workers 0"),
    "--horizon 20 20 --samples 10 --evaluate-every 1 → horizon",
)
OF_CHAINS = (
    *("--objective bma", "--evaluate-every 5", "--loss-every 7 → every", "--feature-set adaptive", "--curl-clip 0"),
    *("--friction-scale -1", "--labels 0 1", "--device cuda:7", "--data /nowhere"),
)


@pytest.mark.parametrize(
    ("base", "case"), [*((TINY, case) for case in META_TRAIN), *((CHAINS, case) for case in OF_CHAINS)]
)
def test_impossible_meta_trainings_are_refused_in_one_line(tmp_path, monkeypatch, base, case):
    monkeypatch.setenv("LEARNED_SAMPLERS_DATA", str(tmp_path / "none"))
    arguments, named = words_of(case)
    with pytest.raises(SystemExit, match=f"error: .*{named}"):
        meta_train.main(["--folder", str(tmp_path), *base, *arguments])
    assert not list(tmp_path.glob("checkpoint*"))


@pytest.mark.parametrize(("option", "value"), [("--lr", "-1"), ("--coordinates", "0"), ("--energy", "nan")])
def test_numbers_that_no_law_is_measured_with_are_refused(tmp_path, capsys, option, value):
    with pytest.raises(SystemExit):
        ship.main([str(tmp_path / "any.safetensors"), "new", option, value, "--out", str(tmp_path / "out")])
    assert option[2:] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
