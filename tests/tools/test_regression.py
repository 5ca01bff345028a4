"""tools/regression.py in small: what it samples, writes and refuses."""

import json
import shlex

import pytest
import torch
from experiments.toys import regression
from experiments.toys.regression import RANGES, Options, Runs, summary, training_data
from regression import main

SMALL = shlex.split(
    "--num-data 60 --hidden 8 --samples 4 --burn-in 20 --thinning 2 --batch-size 20 --ensemble-steps 5 --hmc-burn-in 4 "
    "--hmc-thinning 1 --leapfrog-steps 3"
)


def test_data_lie_on_the_intervals_by_their_length():
    x, y = training_data(Options(num_data=700))
    assert x.shape == y.shape == (700, 1)
    counts = [int(((x >= low) & (x <= high)).sum()) for low, high in RANGES]
    assert counts == [400, 300]
    assert (y - x.sin()).std().item() == pytest.approx(0.1, rel=0.1)


def test_the_loss_is_the_negative_log_likelihood_without_its_constant():
    runs = Runs(Options(num_data=50, batch_size=10))
    model = torch.nn.Linear(1, 1)
    expected = -torch.distributions.Normal(model(runs.x), 0.1).log_prob(runs.y).mean()
    constant = torch.tensor(0.1 * (2 * torch.pi) ** 0.5).log()
    torch.testing.assert_close(runs.loss(model, runs.x, runs.y) + constant, expected)


def test_summary_measures_spread_by_region():
    grid = torch.linspace(-7, 6, 261)[:, None]
    offsets = torch.tensor([-1.0, 1.0])[:, None]
    inside_gap = (grid[:, 0].abs() < 1).float()
    row = summary({"a": grid[:, 0].sin() + offsets * inside_gap}, grid, {"a": 3.0})["a"]
    assert row["std_gap"] == pytest.approx(2**0.5)
    assert row["std_outside"] == 0
    assert row["rmse_data"] == pytest.approx(0, abs=1e-6)


def test_the_command_writes_a_figure_and_numbers(tmp_path, capsys):
    main([*SMALL, "--out", str(tmp_path)])
    content = json.loads((tmp_path / "regression.json").read_text())
    assert list(content["methods"]) == ["HMC", "L2E", "SGHMC", "deep ensemble"]
    assert all(row["std_gap"] > 0 for row in content["methods"].values())
    assert "--hidden 8" in content["command"]
    assert (tmp_path / "regression.png").stat().st_size > 10_000
    assert "in the gap" in capsys.readouterr().out


def test_unknown_weights_are_refused_before_anything_runs(monkeypatch):
    monkeypatch.setattr(Runs, "hmc", lambda *_: pytest.fail("HMC has run"))
    with pytest.raises(SystemExit, match="nonsense"):
        main([*SMALL, "--network", "nonsense"])


def test_what_goes_wrong_in_a_run_is_one_line(tmp_path, monkeypatch):
    """And no file is left that is no JSON."""
    monkeypatch.setattr(Runs, "ensemble", lambda self: Infinite(self.stochastic("SGHMC")))
    with pytest.raises(SystemExit, match="error: deep ensemble: the predictions are not finite"):
        main([*SMALL, "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


class Infinite:
    """A collection whose predictions have overflowed."""

    def __init__(self, samples):
        self.samples = samples

    def predict_samples(self, *arguments, **options):
        return self.samples.predict_samples(*arguments, **options) * torch.inf


def test_numbers_that_are_no_json_are_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(regression, "summary", lambda *_: {"HMC": {"std_data": float("nan")}})
    with pytest.raises(SystemExit, match=r"error: .*JSON"):
        main([*SMALL, "--out", str(tmp_path)])
    assert not (tmp_path / "regression.json").exists()
