"""Gradients to HMC's predictions, small: the truth, the curves, the number, and that it goes on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import distance
import numpy as np
import pytest
import torch
from experiments.distance import experiment
from experiments.distance.experiment import AS_IT_COMES, DistanceOptions, Experiment, Setting, gradients_to
from experiments.distance.problems import BINS, NOISE, PARTS, load

SMALL = ["--trajectories", "5", "--budgets", "40", "80", "--seeds", "2"]


@pytest.fixture
def data(tmp_path):
    """A regression in the place of concrete: 100 rows of three inputs."""
    x = torch.randn(100, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).numpy()
    (tmp_path / "data/uci").mkdir(parents=True)
    np.savez(tmp_path / "data/uci/concrete.npz", x=x, y=np.sin(x[:, 0]), test_index=np.arange(10)[None])
    return tmp_path / "data"


def options(out: Path, data: Path | None = None, **own) -> DistanceOptions:
    own = {"trajectories": 5, "seeds": 1, "budgets": (40, 80)} | own
    return DistanceOptions(out=out, data=None if data is None else str(data), **own)


def test_one_command_writes_table_and_figure_and_repeats_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "gradients_to", lambda target, curve: None)  # so that no row stops early
    arguments = ["--out", str(tmp_path), "--parts", "digits", "--rows", "SGHMC", "AdaptedSGHMC", AS_IT_COMES, *SMALL]
    distance.main(arguments)
    found = json.loads((tmp_path / "results.json").read_text())["parts"]["digits"]
    assert len(found["hmc"]["distances"]) == 4
    assert found["target"] == pytest.approx(1.1 * sum(found["hmc"]["distances"]) / 4)
    for row in found["rows"].values():
        assert list(row["budgets"]) == ["40", "80"]
        assert all(len(each["distances"]) == 2 for each in row["budgets"].values())
    assert found["rows"][AS_IT_COMES]["budgets"]["40"]["lr"] == 0.003
    assert "not reached" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "distance.png").stat().st_size > 10_000

    monkeypatch.setattr(experiment, "batches", lambda *_: pytest.fail("a finished run was repeated"))
    distance.main(arguments)
    assert json.loads((tmp_path / "results.json").read_text())["parts"]["digits"] == found


def test_a_long_run_shows_what_a_short_one_does(tmp_path, data):
    """At each budget, whatever follows; and a wrong burn-in would be seen."""
    setting = Setting(0.01, 0.5)
    both = Experiment(options(tmp_path / "both", data), "concrete").predictions("BAOA", setting, 0, 40)
    short = Experiment(options(tmp_path / "short", data, budgets=(40,)), "concrete")
    assert torch.equal(both, short.predictions("BAOA", setting, 0, 40))
    assert not torch.equal(both, short.predictions("BAOA", Setting(0.01, 0.25), 0, 40))


def test_the_masses_are_those_of_a_normal_density(tmp_path, data):
    problem = load("concrete", str(data))
    masses = problem.probabilities(torch.tensor([0.1, -9.0]))
    middles = (BINS[1:] + BINS[:-1]) / 2
    assert masses.shape == (2, 200)
    torch.testing.assert_close(masses.sum(1), torch.ones(2, dtype=torch.float64))
    assert (masses[0] @ middles).item() == pytest.approx(0.1, abs=1e-6)
    assert (masses[0] @ (middles - 0.1) ** 2).item() == pytest.approx(NOISE**2, rel=0.01)
    assert masses[1, 0].item() == pytest.approx(1.0)
    x, y = problem.train
    outputs = problem.network()(x)
    expected = -torch.distributions.Normal(outputs, NOISE).log_prob(y).mean()
    assert problem.loss(outputs, y).item() == pytest.approx(expected.item() - math.log(NOISE * (2 * math.pi) ** 0.5))


def test_gradients_to_the_target():
    curve = {100: 0.08, 1000: 0.04, 10_000: 0.02}
    assert gradients_to(0.08, curve) == 100
    assert gradients_to(0.02, curve) == pytest.approx(10_000)
    assert gradients_to(0.04 / 2**0.5, curve) == pytest.approx(10_000 / 10**0.5)
    assert gradients_to(0.019, curve) is None


def test_the_protocol():
    assert set(DistanceOptions().parts) < set(PARTS)
    for part in PARTS.values():
        assert [len(rates) for rates in part.rates] == [3, 3]
    assert (PARTS["digits"].settings.temperature, PARTS["digits"].settings.prior_precision) == (1.0, 3.0)


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({"parts": ("digits", "iris")}, "iris"),
        ({"rows": ("SGHMM",)}, "SGHMM"),
        ({"parts": ("digits", "digits")}, "parts"),
        ({"budgets": (10,)}, "budgets"),
        ({"trajectories": 0}, "trajectories"),
    ],
)
def test_refusals(tmp_path, own, named):
    with pytest.raises(ValueError, match=named):
        options(tmp_path, **own)
