"""What the tools refuse, before anything runs: each row names the argument that the message must contain."""

from __future__ import annotations

import pytest
import torch
from experiments.bandits.experiment import BanditOptions
from experiments.bandits.posteriors import Budget
from experiments.benchmarks.inner import InnerBenchmark
from experiments.benchmarks.memory import MemoryBenchmark
from experiments.benchmarks.step import StepBenchmark
from experiments.function_space.images import MNIST, ImageProtocol
from experiments.function_space.sine import Sine
from experiments.function_space.uci_runs import UCI
from experiments.multi_task.comparison import TaskOptions
from experiments.multi_task.methods import Settings
from experiments.toys.bias import Bias
from experiments.toys.regression import Options as Regression
from experiments.toys.trajectories import Posterior

ROWS = [
    (StepBenchmark, {"clock": "processor", "device": "cuda"}, "clock"),
    (StepBenchmark, {"rounds": 1}, "rounds"),
    (StepBenchmark, {"long_rounds": 1}, "long_rounds"),
    (StepBenchmark, {"long_rounds": -2}, "long_rounds"),
    (StepBenchmark, {"threads": 0}, "threads"),
    (StepBenchmark, {"sizes": (16, 0)}, "sizes"),
    (StepBenchmark, {"samplers": ("SGHCM",)}, "samplers"),
    (MemoryBenchmark, {"weights": 100}, "weights"),
    (InnerBenchmark, {"processes": 0}, "processes"),
    (InnerBenchmark, {"device": "cuda"}, "device"),
    (UCI, {"splits": 0}, "splits"),
    (UCI, {"hmc_trajectories": 3}, "hmc_trajectories"),
    (UCI, {"folds": 6}, "folds"),
    (MNIST, {"seeds": 0}, "seeds"),
    (ImageProtocol, {"rates": ()}, "rates"),
    (ImageProtocol, {"epochs": 0}, "epochs"),
    (Sine, {"particles": 1}, "particles"),
    (Sine, {"trajectories": 9}, "trajectories"),
    (Sine, {"lr": float("nan")}, "lr"),
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
    (Posterior, {"steps": 210}, "steps"),
    (BanditOptions, {"seeds": 0}, "seeds"),
    (BanditOptions, {"method": ("Uniform", "Uniform")}, "method"),
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


@pytest.mark.parametrize(("options", "wrong", "named"), ROWS)
def test_bad_options_are_named(options, wrong, named, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=named):
        options(**wrong)
