"""tools/toy.py: its commands end to end on a few steps, against closed forms where there are some."""

from __future__ import annotations

import json
import shlex

import pytest
import torch
from experiments.toys import bias, regression
from experiments.toys.regression import RANGES, GapRegression, Regression
from toy import main


def test_the_bias_of_linear_steps_is_the_closed_form_and_figures_are_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bias, "_GRID", sorted({*bias._GRID[::3], *bias._SHOWN}))
    main(["bias", "--samplers", "SGLD", "SGHMC", "AdaptedSGHMC", "EntropyMCMC", "--out", str(tmp_path)])
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]["bias"]
    curves = {name: run["curves"] for name, (run,) in runs.items()}
    a = bias.DECAY
    for x, error, _ in curves["SGLD"]["full gradients"]:
        assert error == pytest.approx(1 / (1 - x / 2) - 1, rel=1e-6)
    for x, error, _ in curves["SGLD"]["minibatches"]:
        assert 1 + error == pytest.approx(1.02 / (1 - x / 2), rel=1e-6)
    for x, error, _ in curves["SGHMC"]["full gradients"]:
        assert 1 + error == pytest.approx(2 * (2 - a) / (4 - 2 * a - x), rel=1e-6)
    assert max(abs(error) for _, error, _ in curves["AdaptedSGHMC"]["full gradients"]) < 1e-6
    # The joint law of weights and guide, T·H⁻¹(I − hH/2)⁻¹.
    for which, label in enumerate(("weights, full gradients", "guide, full gradients")):
        for x, error, _ in curves["EntropyMCMC"][label][::4]:
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


# ---------------------------------------------------------------- one dimension

SMALL = shlex.split(
    "regression --num-data 60 --hidden 8 --samples 4 --burn-in 20 --thinning 2 --batch-size 20 --ensemble-steps 5 "
    "--hmc-burn-in 4 --hmc-thinning 1 --leapfrog-steps 3"
)


def test_the_loss_is_the_likelihood():
    runs, model = GapRegression(Regression(num_data=50, batch_size=10)), torch.nn.Linear(1, 1)
    assert [int(((runs.x >= low) & (runs.x <= high)).sum()) for low, high in RANGES] == [29, 21]
    expected = -torch.distributions.Normal(model(runs.x), 0.1).log_prob(runs.y).mean()
    constant = torch.tensor(0.1 * (2 * torch.pi) ** 0.5).log()
    torch.testing.assert_close(runs.loss(model, runs.x, runs.y) + constant, expected)


def test_the_regression_writes_a_figure_and_numbers(tmp_path, capsys, monkeypatch):
    main([*SMALL, "--out", str(tmp_path)])
    content = json.loads((tmp_path / "results.json").read_text())
    methods = content["runs"]["regression"]
    assert list(methods) == ["HMC", "L2E", "AdaptedSGHMC(warmup=L2E)", "SGHMC", "deep ensemble"]
    assert all(run["deviation in the gap"] > 0 for (run,) in methods.values())
    assert "--hidden 8" in content["command"]
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert "σ in the gap" in capsys.readouterr().out
    # Numbers that are no JSON are not written.
    monkeypatch.setattr(regression, "deviations", lambda *_: {"deviation in the gap": float("nan")})
    with pytest.raises(SystemExit, match=r"error: .*JSON"):
        main([*SMALL, "--out", str(tmp_path / "other")])
    assert not (tmp_path / "other" / "results.json").exists()


def test_unknown_weights_are_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(GapRegression, "hmc", lambda *_: pytest.fail("HMC has run"))
    with pytest.raises(SystemExit, match="nonsense"):
        main([*SMALL, "--network", "nonsense", "--out", str(tmp_path)])
