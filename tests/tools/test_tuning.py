"""The parts of tools/compare.py: grids and their extension, mean temperatures, the verdict, runs with other weights."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments.images.compare_report import BudgetReport, against_baselines, image_error, measured
from experiments.images.comparison import ranked
from experiments.images.measures import mean_temperatures, overall
from experiments.images.methods import METHODS
from experiments.images.runner import Result, run
from experiments.images.settings import Settings
from experiments.images.training import Log, sampler_run
from experiments.images.tuning import Setting, grid, nearest, series, tune
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from learned_samplers.classical.cyclical import cyclical_phase


def test_the_series_and_the_grids():
    assert [series(index) for index in range(-4, 4)] == [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]
    rates = {name: [s.lr for s in grid(METHODS[name], 6, Settings(), {"momentum_decay": (0.1,)})]
             for name in ("sghmc", "psgld", "cyclical", "l2e")}  # fmt: skip
    assert rates["sghmc"] == [0.005, 0.01, 0.02, 0.05, 0.1, 0.2]
    assert rates["l2e"] == [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02], "as wide, elsewhere"
    assert rates["psgld"] == [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01]
    both = grid(METHODS["cyclical"], 6, Settings(), {"momentum_decay": (0.05, 0.1, 0.3)})
    assert len(both) == 18
    decays = grid(METHODS["adam"], 2, Settings(), {"prior_precision": (0.0, 1.0)})
    assert {setting.prior_precision for setting in decays} == {0.0, 1.0}
    ours = grid(METHODS["l2e"], 6, Settings(momentum_decay=0.7), {"momentum_decay": (0.05, 0.1, 0.3)})
    assert len(ours) == 6, "a learned sampler has its learning rate alone"


@hypothesis_settings(deadline=None)
@given(st.integers(-30, 30), st.floats(0.75, 1.35))
def test_a_rate_finds_its_neighbour_in_the_series(index, factor):
    assert nearest(series(index)) == index
    assert nearest(series(index) * factor) == index


def candidates(*rates: float) -> list[Setting]:
    return [Setting(lr, 0.1, 1.0) for lr in rates]


@pytest.mark.parametrize(
    ("optimum", "extensions", "tried"),
    [
        (0.05, 2, [0.02, 0.05, 0.1]),  # inside: nothing to extend
        (0.1, 2, [0.02, 0.05, 0.1, 0.2]),  # at the edge: one more, which is worse
        (1.0, 2, [0.02, 0.05, 0.1, 0.2, 0.5]),  # far out: twice and no further
        (1.0, 1, [0.02, 0.05, 0.1, 0.2]),
        (1.0, 0, [0.02, 0.05, 0.1]),
        (1e-9, 2, [0.005, 0.01, 0.02, 0.05, 0.1]),
    ],
)
def test_a_grid_is_extended_where_its_best_lies_at_the_edge(optimum, extensions, tried):
    seen = []

    def evaluate(setting: Setting) -> float:
        seen.append(setting.lr)
        return abs(math.log(setting.lr / optimum))

    scores = tune(candidates(0.02, 0.05, 0.1), evaluate, extensions)
    assert sorted(s.lr for s in scores) == sorted(seen) == tried
    assert ranked(scores)[0].lr == min(tried, key=lambda lr: abs(math.log(lr / optimum)))


def test_a_diverged_neighbour_ends_the_grid_and_diverging_everywhere_is_an_error():
    scores = tune(candidates(0.02, 0.05, 0.1), lambda s: None if s.lr > 0.05 else 1 / s.lr, 2)
    assert ranked(scores)[0].lr == 0.05
    assert len(scores) == 3
    with pytest.raises(RuntimeError, match=r"diverged at every learning rate of \[0.02, 0.05\]"):
        tune(candidates(0.02, 0.05), lambda s: None, 2)


# --- measures -----------------------------------------------------------------------------------------------------


def test_temperatures_are_weighted_by_size_and_taken_after_burn_in():
    def point(step, first, second, sampling=True):
        groups = {"a": {"size": 1, "kinetic": first}, "b": {"size": 3, "kinetic": second, "configurational": None}}
        return {"step": step, "sampling": sampling, "groups": groups}

    points = [point(5, 100.0, 100.0), point(10, 1.0, 2.0), point(15, 3.0, 6.0), point(20, 50.0, 50.0, sampling=False)]
    assert overall(points[1]["groups"], "kinetic") == 1.75
    assert overall(points[1]["groups"], "configurational") is None
    assert mean_temperatures(points, after=5) == {"kinetic": {"all": 3.5, "a": 2.0, "b": 4.0}}
    assert mean_temperatures([], after=0) == {}


def report(nlls: dict[str, list[float]]) -> BudgetReport:
    runs = {
        name: [
            Result(name, 0.1, seed, {}, {}, scores={"accuracy": 1 - nll, "nll": nll, "ece": 0.1, "brier": 0.1})
            for seed, nll in enumerate(values)
        ]
        for name, values in nlls.items()
    }
    return BudgetReport(10, Path("nowhere"), Settings(), 100, runs=runs)


def test_a_learned_sampler_is_held_against_the_best_baseline():
    verdict = against_baselines(report({"sghmc": [0.5, 0.52], "psgld": [0.4, 0.44], "l2e": [0.3, 0.32], "sgd": [0.1]}))
    assert list(verdict) == ["l2e"]
    assert verdict["l2e"]["baseline"] == "psgld", "SGD is no sampler, and does not count"
    assert verdict["l2e"]["relative_nll"] == pytest.approx((0.31 - 0.42) / 0.42)
    assert verdict["l2e"]["accuracy_difference"] == pytest.approx(0.11)
    assert verdict["l2e"]["exceeds_std"] is True
    noisy = against_baselines(report({"sghmc": [0.3, 0.5], "l2e": [0.3, 0.4]}))
    assert noisy["l2e"]["exceeds_std"] is False, "0.05 is less than 0.14"
    assert against_baselines(report({"sghmc": [0.3], "l2e": [0.2]}))["l2e"]["exceeds_std"] is None
    assert against_baselines(report({"l2e": [0.3]})) == {}


def test_the_error_of_the_images_is_that_of_their_mean_difference(tmp_path):
    """Two seeds a method, three images whose log-probabilities are known."""
    folder = tmp_path / "predictions"
    folder.mkdir()
    labels = torch.tensor([0, 1, 0])
    losses = {"l2e": [[0.1, 0.2, 0.6], [0.3, 0.4, 0.8]], "sghmc": [[0.5, 0.1, 0.2], [0.7, 0.1, 0.2]]}
    results = {}
    for name, seeds in losses.items():
        results[name] = [Result(name, 0.1, seed, {}, {}, scores={"nll": 0.1}) for seed in range(2)]
        for result, values in zip(results[name], seeds, strict=True):
            true = torch.tensor(values).neg().exp()
            test = torch.stack([torch.where(labels == k, true, 1 - true) for k in range(2)], -1)
            save_file({"test": test, "test_labels": labels}, folder / f"{result.name}.safetensors")
    expected = np.std([0.2 - 0.6, 0.3 - 0.1, 0.7 - 0.2], ddof=1) / np.sqrt(3)
    assert image_error(results["l2e"], results["sghmc"], tmp_path) == pytest.approx(expected, rel=1e-5)


def test_other_weights_are_another_run_and_leave_the_baselines_alone(tmp_path, learned_weights):
    settings = Settings(steps=20, limit=320, model="mlp", hidden=(8,), num_samples=4)
    data = settings.load_data(None)
    other = replace(settings, l2e_network=learned_weights["l2e_network"])
    first, second = (run(each, "l2e", 0.05, 0, data, None, tmp_path) for each in (settings, other))
    assert first.name != second.name
    assert first.scores != second.scores
    baseline = run(settings, "sghmc", 0.05, 0, data, None, tmp_path)
    assert run(other, "sghmc", 0.05, 0, data, None, tmp_path) == baseline
    assert "l2e_network" not in baseline.settings
    assert measured(first)["ess_per_second"] > 0


def test_the_members_of_an_ensemble_share_a_budget_that_they_do_not_divide(tmp_path):
    settings = Settings(steps=23, limit=320, model="mlp", hidden=(8,), ensemble_size=4)
    result = run(settings, "adam_ensemble", 0.01, 0, settings.load_data(None), None, tmp_path)
    assert (result.gradient_evaluations, result.num_samples) == (23, 4)


def test_cyclical_l2e_has_the_rates_the_noise_and_the_samples_of_cyclical_sgmcmc(tmp_path):
    steps, kept = 80, {}
    settings = Settings(dataset="digits", model="mlp", hidden=(8,), steps=steps, num_samples=8, limit=200)
    data = settings.load_data(None)
    phases = [cyclical_phase(step, steps // settings.cycles, settings.exploration_ratio) for step in range(1, 81)]
    for name in ("cyclical", "cyclical_l2e", "l2e"):
        seen = []

        def build(*arguments, method=METHODS[name], seen=seen):
            sampler = method.build(*arguments)
            group = sampler.param_groups[0]
            sampler.register_step_pre_hook(lambda *_: seen.append((group["lr"], group["temperature"])))
            return sampler

        with SummaryWriter(str(tmp_path)) as writer:
            log = Log(writer, tqdm(disable=True), data, steps)
            samples = sampler_run(replace(METHODS[name], build=build), settings, 0.01, data, steps, log)
        kept[name] = len(samples)
        sampling = [entry["sampling"] for entry in log.temperatures]
        if name == "l2e":
            assert set(seen) == {(0.01, settings.temperature)}
            assert all(sampling)
        else:
            assert sampling == [False] + [phase for _, phase in phases[:-1]]  # written before a step, of the one before
        if name == "cyclical_l2e":
            assert [lr for lr, _ in seen] == pytest.approx([0.01 * factor for factor, _ in phases])
            assert [temperature for _, temperature in seen] == [settings.temperature * phase for _, phase in phases]
    assert kept["cyclical_l2e"] == kept["cyclical"] == 8
