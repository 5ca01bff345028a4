"""tools/toy.py: its commands end to end on a few steps, against closed forms where there are some."""

from __future__ import annotations

import json
import shlex

import pytest
import torch
from experiments.toys import bias, regression
from experiments.toys.learning_coefficient import Coefficients
from experiments.toys.regression import RANGES, Regression, Runs, summary, training_data
from toy import main


def test_the_bias_of_linear_steps_is_the_closed_form_and_figures_are_written(tmp_path, capsys):
    main(["bias", "--samplers", "SGLD", "SGHMC", "AdaptedSGHMC", "EntropyMCMC", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "results.json").read_text())["curves"]
    a = bias.DECAY
    for x, error, _ in found["SGLD"]["full gradients"]:
        assert error == pytest.approx(1 / (1 - x / 2) - 1, rel=1e-6)
    for x, error, _ in found["SGLD"]["minibatches"]:
        assert 1 + error == pytest.approx(1.02 / (1 - x / 2), rel=1e-6)
    for x, error, _ in found["SGHMC"]["full gradients"]:
        assert 1 + error == pytest.approx(2 * (2 - a) / (4 - 2 * a - x), rel=1e-6)
    assert max(abs(error) for _, error, _ in found["AdaptedSGHMC"]["full gradients"]) < 1e-6
    # The joint law of weights and guide, T·H⁻¹(I − hH/2)⁻¹.
    for which, label in enumerate(("weights, full gradients", "guide, full gradients")):
        for x, error, _ in found["EntropyMCMC"][label][::10]:
            pull, k = 1 / bias.GUIDE_VARIANCE, x / bias.H
            curvature = torch.tensor([[k + pull, -pull], [-pull, pull]], dtype=torch.double)
            law = torch.linalg.inv(curvature @ (torch.eye(2, dtype=torch.double) - bias.H / 2 * curvature))
            target = 1 / k + bias.GUIDE_VARIANCE * which
            assert error == pytest.approx(float(law[which, which]) / target - 1, rel=1e-5)
    assert (tmp_path / "SGHMC_dark.png").exists()
    assert "unstable" not in capsys.readouterr().out


def test_a_simulated_bias_agrees_with_the_exact_one():
    options = bias.Bias(coordinates=2000)
    exact = {x: error for x, error, _ in bias.exact(bias.maker("SGLD"), options)}
    for x, error, spread in bias.simulated(bias.maker("SGLD"), options):
        if x in exact:
            assert abs(error - exact[x]) < 5 * spread
    with pytest.raises(ValueError, match="is not linear"):
        bias.exact(bias.maker("PSGLD"), options)


def test_the_coefficients_of_deep_linear_networks_against_the_closed_form(tmp_path, capsys):
    main(["coefficient", "--budgets", "40", "160", "--networks", "1", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "results.json").read_text())["estimates"]
    errors = {
        (row["sampler"], row["lr"], row["gradients"]): row["estimates"][0] / row["known"][0] - 1
        for row in rows
        if row["estimates"][0] is not None
    }
    assert errors["BAOA", 1.0, 40] < -0.3  # far too few gradients: the chains still spread
    assert abs(errors["BAOA", 1.0, 160]) < 0.25
    assert "devinterp" in (tmp_path / "table.md").read_text()
    assert "of 1 settled" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"budgets.*\(3,\)"):
        Coefficients(budgets=(3,))


# ---------------------------------------------------------------- one dimension

SMALL = shlex.split(
    "regression --num-data 60 --hidden 8 --samples 4 --burn-in 20 --thinning 2 --batch-size 20 --ensemble-steps 5 "
    "--hmc-burn-in 4 --hmc-thinning 1 --leapfrog-steps 3"
)


def test_data_lie_on_the_intervals_by_their_length_and_the_loss_is_their_likelihood():
    x, y = training_data(Regression(num_data=700))
    assert x.shape == y.shape == (700, 1)
    assert [int(((x >= low) & (x <= high)).sum()) for low, high in RANGES] == [400, 300]
    assert (y - x.sin()).std().item() == pytest.approx(0.1, rel=0.1)
    runs, model = Runs(Regression(num_data=50, batch_size=10)), torch.nn.Linear(1, 1)
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


def test_the_regression_writes_a_figure_and_numbers(tmp_path, capsys, monkeypatch):
    main([*SMALL, "--out", str(tmp_path)])
    content = json.loads((tmp_path / "results.json").read_text())
    assert list(content["methods"]) == ["HMC", "L2E", "AdaptedSGHMC(warmup=L2E)", "SGHMC", "deep ensemble"]
    assert all(row["std_gap"] > 0 for row in content["methods"].values())
    assert "--hidden 8" in content["command"]
    assert (tmp_path / "regression.png").stat().st_size > 10_000
    assert "std_gap" in capsys.readouterr().out
    # Numbers that are no JSON are not written.
    monkeypatch.setattr(regression, "summary", lambda *_: {"HMC": {"std_data": float("nan")}})
    with pytest.raises(SystemExit, match=r"error: .*JSON"):
        main([*SMALL, "--out", str(tmp_path / "other")])
    assert not (tmp_path / "other" / "results.json").exists()


def test_unknown_weights_are_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(Runs, "hmc", lambda *_: pytest.fail("HMC has run"))
    with pytest.raises(SystemExit, match="nonsense"):
        main([*SMALL, "--network", "nonsense", "--out", str(tmp_path)])
