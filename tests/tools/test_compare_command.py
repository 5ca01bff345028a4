"""The command tools/compare.py: interrupts, how it tunes, and presets."""

import math
from dataclasses import replace
from pathlib import Path

import compare
import pytest
import torch
from experiments.compare.comparison import Comparison
from experiments.compare.options import parse_compare
from experiments.compare.presets import PRESETS
from experiments.harness.output import explained
from experiments.harness.runs.methods import METHODS
from experiments.harness.runs.result import Result
from experiments.harness.runs.runner import Runs
from experiments.harness.runs.settings import Settings
from experiments.harness.study import Study

from meta_tasks.datasets import ImageData
from tests.tools.compare_cases import TINY


def test_an_interrupt_says_that_finished_runs_are_kept(tmp_path):
    kept = f"interrupted; finished runs are kept in {tmp_path}, the same command goes on from there"
    with pytest.raises(SystemExit, match=kept), explained(tmp_path):
        raise KeyboardInterrupt


def study_of(arguments, run, monkeypatch):
    """A study of a comparison whose runs are results that ``run`` makes of method, settings, learning rate and seed."""

    def fake(self, settings, method, lr, seed, *names, test):
        nll = run(method, settings, lr, seed)
        return Result(
            method, lr, seed, {}, validation_nll=nll, diverged="so" if nll is None else None, row=str(settings)
        )

    monkeypatch.setattr(Runs, "run", fake)
    monkeypatch.setattr(Runs, "discard_samples", lambda self, result: None)
    options = parse_compare(arguments)
    return Study(Comparison(options), options)


def test_a_comparison_extends_and_halves(tmp_path, monkeypatch):
    """With the validation NLL a known function of learning rate and temperature."""
    options = [*TINY, "--sampler", "PSGLD", "--budgets", "10", "20", "40", "--grid", "3", "--tries", "6", "--keep", "2"]
    options += ["--extensions", "2", "--tune-seeds", "2", "--values", "temperature=1,.1", "--out", str(tmp_path)]
    calls = []

    def run(method, settings, lr, seed):
        calls.append((settings.steps, lr, settings.temperature, seed))
        # The best rate goes down as the budget grows; the cold posterior is better at all of them.
        return abs(math.log(lr * settings.steps / 0.02)) + settings.temperature + 0.01 * seed

    study = study_of(options, run, monkeypatch)
    images = study.experiment.images
    final = 3  # runs at each budget
    assert study.options.planned_gradients(images) == ((6 + 2) * 2 + final) * 10 + ((2 + 2) * 2 + final) * (20 + 40)
    chosen = [study.tuning(problem, "PSGLD").chosen for problem in study.experiment.problems()]
    assert [setting.lr for setting in chosen] == [0.002, 0.001, 0.0005]
    assert {setting.also for setting in chosen} == {(("temperature", 0.1),)}
    for budget, tries in ((10, 8), (20, 4), (40, 4)):
        of_budget = [call for call in calls if call[0] == budget]
        assert len(of_budget) == len(set(of_budget)) == 2 * tries
        assert {seed for *_, seed in of_budget} == {1000, 1001}, "not the seeds of the final runs"


def test_a_method_as_it_comes_has_the_rate_of_each_budget(tmp_path, monkeypatch):
    options = [*TINY, "--sampler", "AdaptedAsItComes", "--budgets", "20", "200", "--temperature", "0.01"]
    study = study_of([*options, "--out", str(tmp_path)], lambda *_: 1.0, monkeypatch)
    assert 20 <= study.experiment.images.num_data / 16 < 200
    problems = study.experiment.problems()
    assert [study.tuning(problem, "AdaptedAsItComes").chosen.lr for problem in problems] == [0.003, 0.002]


def test_a_method_whose_settings_diverge_tries_as_many_as_the_others(tmp_path, monkeypatch):
    options = [*TINY, "--sampler", "PSGLD", "SGD", "--budgets", "10", "20", "--tries", "4", "--keep", "3"]
    tried = []

    def run(method, settings, lr, seed):
        tried.append((method, settings.steps))
        broken = method == "PSGLD" and tried.count((method, 10)) > 1 and settings.steps == 10
        return None if broken else lr

    study = study_of([*options, "--extensions", "1", "--tune-seeds", "1", "--out", str(tmp_path)], run, monkeypatch)
    for problem in study.experiment.problems():
        for method in ("PSGLD", "SGD"):
            study.tuning(problem, method)
    assert {name: tried.count(name) for name in tried} == {
        (method, budget): tries for method in ("PSGLD", "SGD") for budget, tries in ((10, 5), (20, 4))
    }


@pytest.mark.parametrize(
    ("words", "temperatures"),
    [([], (1.0, 0.1, 0.01)), (["--temperature", "0.1"], (0.1,)), (["--temperature=0.1"], (0.1,))],
)
def test_a_setting_that_is_given_is_not_tuned_even_where_it_is_the_usual_one(words, temperatures):
    assert Settings().temperature == 0.1
    assert parse_compare(words).tried()["temperature"] == temperatures
    both = parse_compare([*words, "--values", "temperature=1"])
    assert both.tried()["temperature"] == (1.0,), "what is to be tuned goes first"


# --- options ------------------------------------------------------------------------------------------------------


def test_a_preset_sets_the_defaults_and_options_override_it():
    for arguments in (["--preset", "cifar10"], ["--preset=cifar10"]):
        options = parse_compare(arguments)
        assert options.settings == PRESETS["cifar10"].settings
        assert options.budgets == (1000, 5000)
        assert options.folder() == Path("runs/compare_cifar10")
    options = parse_compare(["--depth", "1", "--preset", "cifar10", "--budgets", "7", "--seeds", "1"])
    assert options.settings == replace(PRESETS["cifar10"].settings, depth=1)
    assert (options.budgets, options.seeds) == ((7,), 1)
    assert parse_compare([]).settings == Settings()


def images(number):
    x = torch.zeros(1, 1, 1, 1).expand(number, -1, -1, -1)
    y = torch.zeros(1, dtype=torch.int64).expand(number)
    return ImageData("data", 2, x, y, x[:1], y[:1], x[:1], y[:1])


def alternatives(num_data, *arguments):
    return parse_compare(["--preset", "cifar10", *arguments]).alternatives(images(num_data))


@pytest.mark.parametrize(("name", "tries", "rates"), [("cifar10_ladder", 8, 4), ("resnet_ladder", 4, 3)])
def test_a_ladder_gives_every_method_as_many_settings_rates_and_values(name, tries, rates):
    options, data = parse_compare(["--preset", name]), images(40_960)
    for method in options.sampler:
        settings = options.candidates(method, data, options.all_budgets(data)[0])
        assert (len(settings), len({setting.lr for setting in settings})) == (tries, rates)
        values = {key: {dict(setting.also)[key] for setting in settings} for key, _ in settings[0].also}
        assert {len(tried) for key, tried in values.items() if key != "momentum_decay"} == {2}
    assert not set(options.tuning_seeds()) & set(options.seed_list())


def test_what_is_tried_beside_learning_rates():
    assert alternatives(100)["temperature"] == (1.0, 0.1, 0.01)
    assert alternatives(100, "--values", "temperature=.5,1,.5", "burn-in=.5,.8")["temperature"] == (0.5, 1.0)
    assert alternatives(100, "--values", "burn-in=.5,.8")["burn_in"] == (0.5, 0.8)
    assert alternatives(100, "--temperature", "0.3")["temperature"] == (0.3,), "an option takes the place of several"
    # On CIFAR-10 the prior's is 4.88e-4: 5e-4 would be a second run of the same in the place of another setting.
    decays = ["--values", "weight_decay=0,5e-4,5.2e-4"]
    assert alternatives(40_960, *decays)["prior_precision"] == (20.0, 0.0)
    assert alternatives(10_000, *decays)["prior_precision"] == (20.0, 0.0, 5.0)


def test_the_help_text_names_methods_and_fits_two_screens(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        compare.main(["--help"])
    text = capsys.readouterr().out
    assert all(f" {name}" in text for name in METHODS)
    assert len(text.splitlines()) < 160
