"""tools/toy.py: its commands end to end on a few steps, and what it does not load."""

from __future__ import annotations

import json

import pytest
import torch
from experiments.toys import bias, trajectories
from toy import main


def test_four_ways_over_a_posterior_of_two_weights(tmp_path, capsys):
    main(["posterior", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "results.json").read_text())["methods"]
    assert all((tmp_path / f"strip_{theme}.png").stat().st_size > 10_000 for theme in ("light", "dark"))
    # One mode each, but for the cyclical sampler, which the figure is there to show.
    assert [round(found[name]["share"], 2) for name in ("SGD", "SGHMC", "L2E")] == [1, 1, 1]
    assert 0.2 < found["CyclicalSGMCMC"]["share"] < 0.8
    # SGHMC's spread is that of the posterior, SGD's is not.
    assert found["SGHMC"]["spread"] == pytest.approx(trajectories.exact_spread(), rel=0.4)
    assert found["SGD"]["spread"] < 0.7 * trajectories.exact_spread()
    assert "the posterior" in capsys.readouterr().out


def test_a_walk_too_short_for_two_kept_states_is_refused_and_a_cycle_without_samples_shows_none(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["posterior", "--steps", "210", "--out", str(tmp_path)])
    assert "steps must leave two states after a burn-in of 200" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    # Its second cycle has not come to its samples.
    main(["posterior", "--steps", "300", "--out", str(tmp_path)])
    table = capsys.readouterr().out
    row = next(line for line in table.splitlines() if "CyclicalSGMCMC" in line)
    assert [cell.strip() for cell in row.strip("|").split("|")[1:]] == ["0", "–", "–"]
    assert "nan" not in table


def test_the_energy_of_the_two_weights_is_that_of_the_mixture():
    """Against torch's own mixture, and the same when the weights are exchanged."""
    weights = torch.tensor([0.3, -1.1])
    parts = torch.distributions.Normal(weights, 1.0)
    mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(torch.ones(2)), parts)
    expected = -mixture.log_prob(trajectories.data()).sum() + 0.05 / 2 * weights.square().sum()
    assert trajectories.energy(weights).item() == pytest.approx(expected.item(), rel=1e-5)
    assert trajectories.energy(weights.flip(0)).item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_bias_of_linear_steps_is_the_closed_form_and_figures_are_written(tmp_path, capsys):
    main(["bias", "--samplers", "SGLD", "SGHMC", "AdaptedSGHMC", "EntropyMCMC", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "results.json").read_text())["curves"]
    a = bias.DECAY
    for x, error, _ in found["SGLD"]["full gradients"]:
        assert error == pytest.approx(1 / (1 - x / 2) - 1, rel=1e-6)
    for x, error, _ in found["SGLD"]["minibatches"]:
        assert 1 + error == pytest.approx(1.02 / (1 - x / 2), rel=1e-6)
    for curves, label in (("SGHMC", "full gradients"), ("AdaptedSGHMC", "semi-implicit, full gradients")):
        for x, error, _ in found[curves][label]:
            assert 1 + error == pytest.approx(2 * (2 - a) / (4 - 2 * a - x), rel=1e-6)
    assert max(abs(error) for _, error, _ in found["AdaptedSGHMC"]["baoa, full gradients"]) < 1e-6
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
