"""The loop of every experiment: what is tuned, kept, lost, and left when the time is up."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from experiments.harness.options import RunOptions
from experiments.harness.runs.checkpoint import TimeIsUp
from experiments.harness.study import Experiment, Measure, carry_out
from experiments.harness.tuning import Choice


@dataclass(frozen=True)
class Options(RunOptions):
    """Seeds and a folder."""

    lost: tuple[str, ...] = ()  # Methods that always diverge.
    out: Path = Path("runs/squares")  # Folder.


class Squares(Experiment):
    """(lr − 0.2)² plus the seed; of two problems and two methods, one of which is tuned."""

    measures = (Measure("value", "value", 2), Measure("value", "worst", 2, of=max))
    made = 0

    def problems(self):
        return ("one", "two")

    def methods(self, problem):
        return ("tuned", "fixed")

    def choices(self, problem, method):
        return [Choice(lr) for lr in (0.1, 0.2, 0.5)] if method == "tuned" else (Choice(0.1),)

    def run(self, job, store):
        type(self).made += 1
        if job.method in self.options.lost:
            raise FloatingPointError("too far")
        if job.seed == 99:
            raise TimeIsUp
        value = (job.choice.lr - 0.2) ** 2 + job.seed
        return {"value": value, "score": value}


@pytest.fixture(autouse=True)
def _nothing_made_yet():
    Squares.made = 0


def squares(folder, **more):
    options = Options(out=folder, seeds=2, **more)
    return carry_out(Squares(options), options, "python tools/squares.py")


def test_the_best_choice_is_repeated_over_seeds_and_nothing_is_made_twice(tmp_path):
    findings = squares(tmp_path)
    assert [run["value"] for run in findings.runs["two"]["tuned"]] == [0, 1]
    assert Squares.made == 2 * (3 + 2 + 2)
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["chosen"][0] == {"problem": "one", "method": "tuned", "lr": 0.2}
    assert len(content["tuning"]) == 2 * 3
    assert "| tuned  |  lr 0.2 | 0.50 ± 0.71 |  1.00 |" in (tmp_path / "table.md").read_text()
    Squares.made = 0
    assert squares(tmp_path).runs == findings.runs
    assert Squares.made == 0


def test_what_diverges_costs_its_row_or_is_counted(tmp_path):
    findings = squares(tmp_path, lost=("tuned",))
    assert list(findings.runs["one"]) == ["fixed"]
    assert Squares.made == 2 * (3 + 2), "a lost method has no final runs"
    why = "- one: tuned has no row, it diverged at every learning rate of [0.1, 0.2, 0.5]"
    assert why in (tmp_path / "table.md").read_text()
    squares(tmp_path / "counted", lost=("fixed",))
    assert "| fixed (2 of 2 diverged) |" in (tmp_path / "counted" / "table.md").read_text()


class Endless(Squares):
    """Its second problem takes longer than there is time."""

    def methods(self, problem):
        return ("fixed",)

    def seeds(self, problem, method):
        return (1,) if problem == "one" else (99,)


def test_a_command_whose_time_is_up_leaves_its_table(tmp_path, capsys):
    options = Options(out=tmp_path)
    findings = carry_out(Endless(options), options, "python tools/squares.py")
    assert list(findings.runs) == ["one"]
    assert "the time is up; the same command goes on from" in capsys.readouterr().out
    assert (tmp_path / "table.md").is_file()
