"""What the tools refuse before anything runs: each row names the argument that the message must contain."""

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

OPTIONS = [
    (StepBenchmark, {"clock": "processor", "device": "cuda"}, "clock"),
    (StepBenchmark, {"rounds": 1}, "rounds"),
    (StepBenchmark, {"long_rounds": 1}, "long_rounds"),
    (StepBenchmark, {"long_rounds": -2}, "long_rounds"),
    (StepBenchmark, {"threads": 0}, "threads"),
    (StepBenchmark, {"sizes": (16, 0)}, "sizes"),
    (StepBenchmark, {"samplers": ("SGHCM",)}, "samplers"),
    (MemoryBenchmark, {"weights": 100}, "weights"),
    (UCI, {"splits": 0}, "splits"),
    (UCI, {"hmc_trajectories": 3}, "hmc_trajectories"),
    (UCI, {"folds": 6}, "folds"),
    (MNIST, {"seeds": 0}, "seeds"),
    (ImageProtocol, {"rates": ()}, "rates"),
    (ImageProtocol, {"epochs": 0}, "epochs"),
    (SineProblem, {"particles": 1}, "particles"),
    (SineProblem, {"trajectories": 9}, "trajectories"),
    (SineProblem, {"lr": float("nan")}, "lr"),
    (TaskOptions, {"seeds": 0}, "seeds"),
    (TaskOptions, {"rates": (0.1, -1.0)}, "rates"),
    (TaskOptions, {"method": ("MGDA", "MGDA")}, "method"),
    (TaskOptions, {"extensions": -1}, "extensions"),
    (Settings, {"epochs": 0}, "epochs"),
    (Settings, {"train": 0}, "train"),
    (Settings, {"momentum": 1.0}, "momentum"),
    (Settings, {"warm_up": 1.0}, "warm_up"),
    (Settings, {"halve_every": 0.0}, "halve_every"),
    (Settings, {"temperature": -1.0}, "temperature"),
    (Bias, {"samplers": ("Adam",)}, "samplers"),
    (Bias, {"coordinates": 0}, "coordinates"),
    (BanditOptions, {"seeds": 0}, "seeds"),
    (BanditOptions, {"method": ("FSVGD", "FSVGD")}, "method"),
    (Budget, {"contexts": 0}, "contexts"),
    (Budget, {"sghmc_lr": -1.0}, "sghmc_lr"),
    (Budget, {"fsvgd_lr": float("inf")}, "fsvgd_lr"),
    (Budget, {"hidden": (0,)}, "hidden"),
    (Regression, {"num_data": 10, "batch_size": 20}, "batch_size"),
    (Regression, {"samples": 1}, "samples"),
    (Regression, {"hidden": (5, 0)}, "hidden"),
    (Regression, {"lr": float("nan")}, "lr"),
    (Regression, {"burn_in": -1}, "burn_in"),
    (Regression, {"leapfrog_steps": 0}, "leapfrog_steps"),
]


@pytest.mark.parametrize(("options", "wrong", "named"), OPTIONS)
def test_bad_options_are_named(options, wrong, named):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=named):
        options(**wrong)


def network():
    return nn.Linear(3, 5)


def not_one():
    return 3


OWN = f"{__file__}:"
TEXTS = ["--dataset", "imdb", "--data", "imdb", "--length", "12", "--validation", "4", "--batch-size", "4"]
GIVEN = [
    (["--lr", "-0.1"], "lr"),
    (["--sampler", "SGD", "sgd"], "sampler"),
    (["--seeds", "0"], "seeds"),
    (["--epochs", "50", "--steps", "100"], "epochs"),
    (["--ood", "photo"], "ood"),
    (["--prior-precision", "inf"], "prior_precision"),
    (["--sampler", "L2E", "--networks", "L2E=nowhere"], "networks"),
    (["--networks", "SGHMC=l2e"], "networks"),
    (["--networks", "l2e"], "networks"),
    (["--dataset", "digit"], "dataset"),
    (["--device", "gpu"], "device"),
    (["--model", "unet"], "model"),
    (["--model", "nothing.py:network"], "nothing.py"),
    (["--model", "math:nothing"], "model"),
    (["--model", f"{OWN}not_one"], "model"),
    (["--model", f"{OWN}network", "--hidden", "3"], "hidden"),
    (["--dataset", "npz:FLOATS", "--model", "mlp", "--batch-size", "9"], "regression"),
    (["--dataset", "npz:TABLE", "--model", f"{OWN}network", "--batch-size", "9"], "logits"),
    (["--dataset", "npz:TABLE", "--model", "cnn", "--batch-size", "9"], "model"),
    (["--dataset", "npz:TABLE", "--model", "mlp", "--batch-size", "9", "--augment"], "augment"),
    (["--dataset", "npz:/nowhere/x.npz"], "/nowhere/x.npz"),
    (["--model", "mlp", "--depth", "2"], "depth"),
    (["--steps", "0"], "steps"),
    (["--batch-size", "5000"], "batch_size"),
    (["--burn-in", "1"], "burn_in"),
    (["--temperature", "-1"], "temperature"),
    (["--momentum-decay", "0"], "momentum_decay"),
    (["--sampler", "HMC"], "num_samples"),
    (["--sampler", "HMC", "--epochs", "700", "--augment"], "augment"),
    (["--sampler", "CyclicalSGMCMC", "--cycles", "5000"], "cycles"),
    (["--sampler", "DeepEnsemble", "--ensemble-size", "5000"], "ensemble_size"),
    (["--sampler", "SWAG", "--burn-in", "0.9999"], "burn_in"),
    (["--sampler", "AdaptedSGHMC", "--burn-in", "0"], "burn_in"),
    (["--sampler", "SGLRW", "--temperature", "0"], "temperature"),
    *((["--reference", file], "reference") for file in ("ONES.npy", "SHORT.npy", "NAN.npy", "TEXT.npy")),
    (["--reference", "nowhere.npy"], "nowhere.npy"),
    ([*TEXTS, "--model", "cnn"], "model"),
    ([*TEXTS, "--model", "cnn_lstm", "--size", "8"], "size"),
    ([*TEXTS, "--model", "cnn_lstm", "--ood", "photos"], "ood"),
    ([*TEXTS, "--model", "cnn_lstm", "--length", "5"], "length"),
    (["--length", "12"], "length"),
    (["--model", "cnn_lstm"], "model"),
]
COMPARE = [
    (["--preset", "imagenet"], "preset"),
    (["--grid", "0"], "grid"),
    (["--tune-seeds", "0"], "tune_seeds"),
    (["--keep", "0"], "keep"),
    (["--tries", "0"], "tries"),
    (["--extensions", "-1"], "extensions"),
    (["--corruptions", "-1"], "corruptions"),
    (["--convergence", "--num-samples", "7"], "num_samples"),
    (["--dataset", "npz:TABLE", "--model", "mlp", "--corruptions", "5"], "corruptions"),
    (["--values", "lr=1"], "values"),
    (["--values", "temperature"], "values"),
    (["--values", "temperature=-1"], "values"),
    (["--values", "momentum_decay=0"], "momentum_decay"),
    (["--values", "exploration_ratio=1"], "exploration_ratio"),
    (["--values", "weight_decay=inf"], "values"),
    (["--budgets", "5", "5"], "budgets"),
    (["--budgets", "5", "--steps", "5"], "budgets"),
    (["--preset", "digits", "--epochs", "3"], "epochs"),
    (["--budgets", "4", "400"], "num_samples"),
    (["--validation", "0"], "validation"),
    (["--tune-budget", "0"], "tune_budget"),
    (["--jobs", "0"], "jobs"),
    (["--minutes", "-1"], "minutes"),
    (["--state-minutes", "0"], "state_minutes"),
    (["--half", "left"], "half"),
    (["--sampler", "L2E, T = 0"], "sampler"),
    (["--lines", "0"], "lines"),
]
ROWS = [*((True, *row) for row in GIVEN), *((False, *row) for row in COMPARE)]


@pytest.mark.parametrize(("given_settings", "arguments", "named"), ROWS)
def test_wrong_options_are_named_before_anything_is_trained(
    tmp_path, monkeypatch, capsys, given_settings, arguments, named
):
    monkeypatch.chdir(tmp_path)
    x, y = np.zeros((60, 3), np.float32), np.arange(60) % 3
    for name, targets in {"TABLE": y, "FLOATS": y + 0.5}.items():
        np.savez(name, x_train=x, y_train=targets, x_test=x, y_test=targets)
    ones = np.ones((899, 10))
    arrays = {"ONES": ones, "SHORT": ones[:3] / 10, "NAN": ones * np.nan, "TEXT": np.array(["a"])}
    for name, array in arrays.items():
        np.save(name, array)
    if "imdb" in arguments:
        (tmp_path / "imdb").mkdir()
        write_archive(tmp_path / "imdb")
    own = [] if {"--dataset", "--preset", "--model"} & {*arguments} else ["--model", "mlp"]
    own += ["--given-settings"] if given_settings else []
    own += [] if "--sampler" in arguments else ["--sampler", "SGHMC", "SGD"]
    given = [each.replace("TABLE", "TABLE.npz").replace("FLOATS", "FLOATS.npz") for each in arguments]
    with pytest.raises(SystemExit) as caught:
        compare.main([*own, *given, "--out", "out"])
    assert caught.value.code
    assert named.replace("_", "") in f"{caught.value.code} {capsys.readouterr().err}".replace("_", "").replace("-", "")
    assert not (tmp_path / "out").exists()


META_TRAIN = [
    (["--sampler", "MetaSGMCMC"], "method"),
    (["--minutes", "nan"], "minutes"),
    (["--minutes", "-3"], "minutes"),
    (["--horizon", "4", "4"], "samples"),
    (["--horizon", "20", "10"], "shortest"),
    (["--method", "nres", "--window", "50"], "window"),
    (["--method", "nres", "--window", "2"], "window"),
    (["--feature-set", "all"], "feature_set"),
    (["--pairs-per-task", "3"], "pairs_per_task"),
    (["--sigma", "0"], "sigma"),
    (["--datasets", "digits", "nosuch"], "dataset_names"),
    (["--sizes", "0"], "size"),
    (["--small-data-share", "1.5"], "small_data_share"),
    (["--small-data", "50", "20"], "small_data"),
    (["--datasets", "cifar10"], "dataset_names"),
    (["--form", "paper", "--num-data-in-training", "3"], "num_data_in_training"),
    (["--start-feature", "gradients"], "gradients"),
    (["--start-feature", "gradient", "--start-weights", "a.safetensors"], "start_weights"),
    (["--start-weights", "a.safetensors"], "a.safetensors"),
    (["--linear", "--start-feature", "gradient", "--start-weights", "a.safetensors"], "a.safetensors"),
    (["--linear", "--start-feature", "gradient", "--direction-share", "0"], "direction_share"),
    (["--linear", "--sampler", "KineticL2E"], "linear"),
    (["--tell-horizon", "0.5"], "tell_horizon"),
    (["--family", "cpu"], "--datasets digits"),
    (["--num-data-in-training", "0"], "num_data_in_training"),
    (["--sampler", "KineticL2E", "--mean-scale", "-1"], "mean_scale"),
    (["--beta-scale", "-1"], "beta_scale"),
    (["--hidden", "8", "0"], "hidden"),
    (["--labels", "0", "99"], "labels"),
    (["--labels", "1", "1"], "labels"),
    (["--datasets", "digits", "photos"], "photos"),
    (["--momentum-decays", "0.1", "3"], "momentum_decays"),
    (["--lrs", "0.1", "0"], "lrs"),
    (["--held-out-lrs", "-1"], "held_out_lrs"),
    (["--family", "gaussians"], "gaussians"),
    (["--default-lr", "0"], "default_lr"),
    (["--workers", "0"], "workers"),
    (["--horizon", "20", "20", "--samples", "10", "--evaluate-every", "1"], "horizon"),
]
OF_CHAINS = [
    (["--objective", "bma"], "objective"),
    (["--evaluate-every", "5"], "evaluate_every"),
    (["--loss-every", "7"], "every"),
    (["--feature-set", "adaptive"], "feature_set"),
    (["--friction-scale", "-1"], "friction_scale"),
    (["--curl-clip", "0"], "curl_clip"),
    (["--labels", "0", "1"], "labels"),
    (["--device", "cuda:7"], "device"),
    (["--data", "/nowhere"], "data"),
]


@pytest.mark.parametrize(
    ("base", "more", "named"), [*((TINY, *row) for row in META_TRAIN), *((CHAINS, *row) for row in OF_CHAINS)]
)
def test_impossible_meta_trainings_are_refused_in_one_line(tmp_path, monkeypatch, base, more, named):
    monkeypatch.setenv("LEARNED_SAMPLERS_DATA", str(tmp_path / "none"))
    with pytest.raises(SystemExit, match=f"error: .*{named}"):
        meta_train.main(["--folder", str(tmp_path), *base, *more])
    assert not list(tmp_path.glob("checkpoint*"))


@pytest.mark.parametrize(("option", "value"), [("--lr", "-1"), ("--coordinates", "0"), ("--energy", "nan")])
def test_numbers_that_no_law_is_measured_with_are_refused(tmp_path, capsys, option, value):
    with pytest.raises(SystemExit):
        ship.main([str(tmp_path / "any.safetensors"), "new", option, value, "--out", str(tmp_path / "out")])
    assert option[2:] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
