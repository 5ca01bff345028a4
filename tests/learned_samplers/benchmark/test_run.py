"""Distances are small for draws of the reference and grow with planted faults; a row comes out of the command."""

import json

import numpy as np
import pytest
import torch

from learned_samplers import SGHMC, SGLD
from learned_samplers.benchmark import run as module
from learned_samplers.benchmark.__main__ import main, named, table
from learned_samplers.benchmark.run import barrier, benchmark, measures, rates, run
from learned_samplers.benchmark.targets import TARGETS


def exact(faulty_mean=0.0, faulty_deviation=1.0, draws=4000):
    target = TARGETS["regression"]()
    mean, deviation = target.reference()
    z = np.random.default_rng(0).standard_normal((draws, len(mean)))
    return measures(mean + deviation * (faulty_mean + faulty_deviation * z), target, 1000, 2.0)


def test_exact_draws_are_near_and_faults_are_seen():
    right = exact()
    assert right["mean_error"] < 0.03
    assert right["deviation_error"] < 0.03
    assert right["ess"] == pytest.approx(4000, rel=0.15)
    assert right["ess_per_1000_gradients"] == right["ess"]
    assert right["ess_per_second"] == right["ess"] / 2
    assert exact(faulty_mean=0.5)["mean_error"] == pytest.approx(0.5, abs=0.03)
    assert exact(faulty_deviation=2.0)["deviation_error"] == pytest.approx(np.log(2), abs=0.03)


def test_total_variation_of_a_classifier():
    target = TARGETS["digits MLP"]()
    mean, _ = target.reference()
    uniform = np.full((30, 1000), 0.1)
    expected = np.abs(mean.reshape(100, 10) - 0.1).sum(1).mean() / 2
    assert measures(uniform, target, 1000, 1.0)["total_variation"] == pytest.approx(expected)
    assert measures(uniform, target, 1000, 1.0)["ess"] == 0


def test_a_sampler_comes_near_and_a_hot_one_does_not():
    target = TARGETS["regression"]()

    def hot(params, **settings):
        return SGHMC(params, temperature=4.0, **settings)

    right, wrong = (run(sampler, target, 0.05, 3000) for sampler in (SGHMC, hot))
    assert right["gradients"] == 3000
    assert right["deviation_error"] < 0.2
    assert wrong["deviation_error"] == pytest.approx(np.log(2), abs=0.2)


def test_gradients_are_counted_where_a_step_takes_several():
    result = run(named("HMC", 1000), TARGETS["regression"](), 0.02, 1000)
    assert 1000 <= result["gradients"] < 1010


def test_a_diverged_rate_is_no_answer_and_the_best_one_wins():
    result = benchmark(SGLD, TARGETS["regression"](), 1000)
    assert list(result["tried"]) == ["0.01", "0.05", "0.2"]
    assert result["lr"] in (0.01, 0.05)
    assert "diverged" in run(SGLD, TARGETS["regression"](), 5.0, 1000)


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (0.05, ["0.01", "0.05", "0.2"]),
        (0.8, ["0.01", "0.05", "0.2", "0.8", "3.2"]),
        (99.0, ["0.01", "0.05", "0.2", "0.8", "3.2", "12.8"]),
        (0.0025, ["0.000625", "0.0025", "0.01", "0.05", "0.2"]),
    ],
)
def test_the_largest_or_smallest_rate_is_not_taken_for_the_best(best, tried, monkeypatch):
    def quadratic(sampler, target, lr, gradients, seed):
        return {"lr": lr, "mean_error": abs(np.log(lr / best)), "deviation_error": 0.0}

    monkeypatch.setattr(module, "run", quadratic)
    result = benchmark(SGLD, TARGETS["regression"](), 1000)
    assert list(result["tried"]) == tried
    assert result["lr"] == pytest.approx(min(best, 12.8))


def test_a_rate_that_a_sampler_refuses_says_why():
    class Refusing(torch.optim.SGD):
        def step(self, closure):
            raise ValueError("lr is far too large")

    def refusing(params, num_data, **settings):
        return Refusing(params, settings["lr"])

    assert run(refusing, TARGETS["regression"](), 1.0, 1000)["diverged"] == "lr is far too large"
    entropy = run(named("EntropyMCMC", 1000), TARGETS["regression"](), 100.0, 1000)  # refuses it when it is made
    assert "lr must be below num_data·guide_variance" in entropy["diverged"]


def test_rates_begin_at_a_default():
    target = TARGETS["digits MLP"]()
    assert rates(SGHMC, target) == rates(named("SGHMC", 2000), target) == module.RATES
    assert rates(named("WhitenedSGHMC", 2000), target) == pytest.approx((0.0005 / 3, 0.0005, 0.0015))


def test_what_plans_a_run_knows_its_length():
    target = TARGETS["digits MLP"]()
    adapted = named("AdaptedSGHMC", 2000)([p.requires_grad_() for p in target.start(torch.Generator())], num_data=200)
    assert adapted.total_steps == 2000
    assert rates(named("AdaptedSGHMC", 2000), target)[1] == pytest.approx(adapted.param_groups[0]["lr"])
    cyclical = named("CyclicalSGMCMC", 2000)([torch.zeros(2, requires_grad=True)], 0.1, 200)
    assert cyclical.param_groups[0]["cycle_length"] == 100


def test_the_barrier_between_two_modes():
    target = TARGETS["deep linear"]()
    states = [[torch.ones(3)] for _ in range(10)] + [[torch.tensor([-1.0, -1.0, 1.0])] for _ in range(10)]
    middle = float(target.loss([torch.tensor([0.0, 0.0, 1.0])], torch.arange(50)))
    ends = float(target.loss([torch.ones(3)], torch.arange(50)))
    assert barrier(states, target) == pytest.approx(middle - ends, rel=1e-5)


def test_the_command_writes_a_row_and_the_table(tmp_path, capsys):
    main(["SGLD", "--gradients", "1000", "--targets", "regression", "--out", str(tmp_path)])
    main(["learned_samplers.SGLD", "--gradients", "1000", "--targets", "regression", "--out", str(tmp_path)])
    assert capsys.readouterr().out.count("sampler: SGLD | regression: ") == 2
    content = json.loads((tmp_path / "SGLD.json").read_text())
    assert content["budget"] == 1000
    assert set(content["targets"]) == {"regression"}
    main(["--table", str(tmp_path)])
    assert capsys.readouterr().out.startswith("| sampler | regression |\n|---|---|\n| SGLD | ")


def test_a_function_of_a_file_of_ones_own_is_entered(tmp_path, monkeypatch, capsys):
    source = "import torch\ndef make(params, lr, num_data, prior_precision):\n    return torch.optim.SGD(params, lr)\n"
    (tmp_path / "a_strangers.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    main(["a_strangers:make", "--gradients", "800", "--targets", "regression", "--out", str(tmp_path)])
    assert capsys.readouterr().out.startswith("sampler: make | regression: ")


def test_keywords_that_a_sampler_lacks_are_named():
    with pytest.raises(TypeError, match=r"made from \(params, lr=, num_data=, prior_precision=\)"):
        run(torch.optim.SGD, TARGETS["regression"](), 0.1, 1000)


def test_a_table_of_two_budgets_is_refused(tmp_path):
    for budget in (800, 900):
        (tmp_path / f"{budget}.json").write_text(json.dumps({"budget": budget, "targets": {}}))
    with pytest.raises(ValueError, match="one budget"):
        table(tmp_path)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("SGLDD", ValueError, "got 'SGLDD'"),
        ("no_such_file:Mine", ValueError, "No module named 'no_such_file'"),
        ("torch.nn.Linear", TypeError, "class of optimizers"),
    ],
)
def test_what_is_no_sampler_is_refused(name, error, message):
    with pytest.raises(error, match=message):
        named(name, 1000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SGHMC", "--gradients", "100"], "gradients must be at least 800"),
        (["SGHMC", "--out", "{}"], "SGHMC.json is no file of this command"),
        (["--table", "{}"], "SGHMC.json is no file of this command"),
        (["--table", "{}/none"], "table must be a folder with JSON files"),
    ],
)
def test_what_cannot_be_measured_ends_in_one_line(arguments, message, tmp_path, capsys):
    (tmp_path / "SGHMC.json").write_text('{"sampler": "SG')
    with pytest.raises(SystemExit):
        main([word.format(tmp_path) for word in arguments])
    assert message in capsys.readouterr().err.splitlines()[-1]
