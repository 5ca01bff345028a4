"""tools/gaussians.py in small: who wins where, what it writes and what it refuses."""

import json
import math
from dataclasses import replace

import pytest
import torch
from experiments.toys import gaussians as runs
from gaussians import main

from meta_tasks.tasks.gaussians import GaussianFamily

SMALL = ["--dimension", "2", "--steps", "30", "--chains", "200", "--tasks", "2"]


@pytest.fixture
def few_settings(monkeypatch):
    monkeypatch.setattr(runs, "LRS", (0.02, 0.2))
    monkeypatch.setattr(runs, "DECAYS", (0.3,))


def test_table_numbers_and_figures(tmp_path, few_settings, capsys):
    main(["--network", "meta-sgmcmc", *SMALL, "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    lines = [line.split("|") for line in printed.splitlines() if line.startswith("|")]
    assert [line[1].strip() for line in lines[2:]] == ["SGLD", "SGHMC", "Meta-SGMCMC", "exact draws"]
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["command"].endswith(f"--out {tmp_path}")  # that of the command line, not of the process
    assert written["settings"]["chains"] == 200
    for line in lines[2:5]:
        assert float(line[3]) == pytest.approx(math.exp(written["scores"][line[1].strip()]["log"]), abs=6e-4)
    for name in ("figure.png", "contours.png"):
        assert (tmp_path / name).stat().st_size > 10_000


def test_a_sampler_that_diverges_has_a_row(tmp_path, few_settings, monkeypatch):
    monkeypatch.setattr("gaussians.learned", lambda options: replace(runs.learned(options), lr=200.0))
    main(["--network", "meta-sgmcmc", *SMALL, "--out", str(tmp_path)])
    assert "| Meta-SGMCMC | 200" in (tmp_path / "table.md").read_text()
    assert json.loads((tmp_path / "results.json").read_text())["scores"]["Meta-SGMCMC"]["last"] is None


def test_the_setting_that_is_better_is_chosen():
    """On posteriors of 200 chains .02 is too slow for 30 steps; a rate that explodes loses, too."""
    options = runs.Options("unused", dimension=2, steps=30, chains=200, tasks=2)
    family = GaussianFamily(dimensions=(2,), noise=0.5, correlated=True)
    tasks = [family.task("tuning", i) for i in range(2)]
    with torch.no_grad():
        chosen = runs.tuned("SGHMC", (0.3,), tasks, options)
        found = {
            lr: runs.scores(
                [runs.run(runs.Sampler("SGHMC", chosen.rule, lr, 0.3), t, options, i)[0] for i, t in enumerate(tasks)]
            )
            for lr in runs.LRS
        }
    assert found[chosen.lr]["log"] == min(each["log"] for each in found.values())
    assert found[0.02]["log"] > found[chosen.lr]["log"] + 0.1


def test_scores_of_known_curves():
    steps = torch.arange(1, 11, dtype=torch.float64)
    found = runs.scores([steps.exp().tolist(), (3 * steps).exp().tolist()])
    assert found["log"] == pytest.approx(2 * 5.5)
    assert found["third"] == pytest.approx((math.exp(3) + math.exp(9)) / 2)
    assert found["last"] == pytest.approx((math.exp(9) + math.exp(10) + math.exp(27) + math.exp(30)) / 4)


def test_exact_draws_have_the_divergence_of_a_finite_number_of_them():
    """About (d + d(d+1)/2) / 2 moments of C draws: KL ≈ 5/(2C) for d = 2."""
    family = GaussianFamily(dimensions=(2,), noise=0.5, correlated=True)
    found = runs.exact([family.task("test", i) for i in range(40)], runs.Options("unused", dimension=2, chains=500))
    assert found == pytest.approx(5 / (2 * 500), rel=0.4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chains", "10"], "chains must exceed dimension=10, got 10"),
        (["--noise", "nan"], "noise must not be negative, got nan"),
        (["--noise", "-1"], "noise must not be negative, got -1.0"),
        (["--tasks", "0"], "tasks must be at least 1, got 0"),
        ([], "has no lr and no momentum_decay in its card's defaults"),
        (["--network", "l2e"], "is of L2E, not of MetaSGMCMC"),
    ],
)
def test_refused(arguments, message, learned_weights, tmp_path, capsys):
    given = arguments if "--network" in arguments else ["--network", learned_weights["meta_sgmcmc_network"], *arguments]
    with pytest.raises(SystemExit) as refusal:
        main([*given, "--out", str(tmp_path / "new")])
    said = f"{refusal.value} {capsys.readouterr().err}"
    assert message in " ".join(said.replace("│", " ").split())
    assert not (tmp_path / "new").exists()


def test_an_error_of_the_runs_is_one_line(tmp_path, monkeypatch):
    def write(*arguments):
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr("gaussians.write", write)
    with pytest.raises(SystemExit, match=r"^error: .*No space left on device"):
        main(["--network", "meta-sgmcmc-toy", *SMALL, "--out", str(tmp_path / "new")])


@pytest.mark.parametrize("name", ["SGHMC", "Meta-SGMCMC"])
def test_early_states_are_not_the_last_ones(name):
    """A tenth of the steps: those that the curve has there, whether or not a rule moves them in place."""
    settings, task = runs.Options("meta-sgmcmc-toy", dimension=2, steps=40, chains=200), runs.tilted(0.5)
    sampler = runs.learned(settings) if name == "Meta-SGMCMC" else runs.Sampler(name, runs.SGHMCRule(), 0.1, 0.1)
    with torch.no_grad():
        curve, early = runs.run(sampler, task, settings, 0)
    assert task.divergence(early) == curve[3]
    assert curve[3] != curve[-1]


def test_the_baselines_reach_the_posterior_and_a_hot_one_does_not():
    """The measure itself: SGHMC at a small step comes near, at a large one with gradient noise it stays hot."""
    settings = runs.Options("none", dimension=3, steps=150, chains=400)
    task = runs.tilted(0.5)
    small, large = (runs.Sampler("SGHMC", runs.SGHMCRule(), lr, 0.5) for lr in (0.05, 0.9))
    assert runs.run(small, task, settings, 0)[0][-1] < 0.05
    assert runs.run(large, task, settings, 0)[0][-1] > 0.1
