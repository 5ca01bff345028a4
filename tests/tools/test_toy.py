"""tools/toy.py: its commands end to end on a few steps, and what it does not load."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from experiments.toys import bias, particles, trajectories
from experiments.toys.particles import (
    LEAST,
    METHODS,
    ON_A_FRONT,
    REFERENCE,
    SEGMENTS,
    ZDT3,
    Mixtures,
    hypervolume,
    mixture_energies,
    segments_reached,
    share_in_common_region,
    zdt3,
    zdt3_front,
)
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from toy import main

from learned_samplers.particles import MGDA


@pytest.mark.parametrize(("command", "methods"), [("mixtures", METHODS), ("zdt3", ON_A_FRONT)])
def test_commands(command, methods, tmp_path, capsys):
    main([command, "--steps", "4", "--particles", "6", "--seeds", "2", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    content = json.loads((tmp_path / "results.json").read_text())
    assert set(content["methods"]) == set(methods)
    assert all(name in printed for name in methods)
    assert all(len(runs) == 2 for runs in content["methods"].values())
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert "toy.py" in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize("command", ["mixtures", "zdt3"])
def test_an_interrupted_command_goes_on(command, tmp_path, monkeypatch, capsys):
    """The second seed is run, the first one read; without runs on disk the table is the same."""
    arguments = [command, "--steps", "4", "--particles", "6"]
    main([*arguments, "--seeds", "1", "--out", str(tmp_path / "kept")])
    calls = []
    plain = particles.run
    monkeypatch.setattr(particles, "run", lambda *args, **kwargs: calls.append(1) or plain(*args, **kwargs))
    main([*arguments, "--seeds", "2", "--out", str(tmp_path / "kept")])
    methods = METHODS if command == "mixtures" else ON_A_FRONT
    assert len(calls) == len(methods)
    main([*arguments, "--seeds", "2", "--out", str(tmp_path / "anew")])
    found, anew = (json.loads((tmp_path / f / "results.json").read_text())["methods"] for f in ("kept", "anew"))
    for results in (*found.values(), *anew.values()):
        for result in results:
            del result["seconds"]
    assert found == anew


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


def test_it_does_not_load_the_image_engine():
    code = (
        "import sys, toy; print(sorted(m for m in sys.modules if m.startswith(('experiments.images', 'meta_tasks.'))))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root / "tools",
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(root)},
    )
    assert done.stdout.strip() == "['meta_tasks.fingerprints', 'meta_tasks.progress']"


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


# ---------------------------------------------------------------- the problems, against what is known of them


def test_mixtures_are_the_papers():
    x = torch.randn(20, 2) * 3
    means = [[[4.0, -4.0], [0.0, 0.5]], [[-4.0, 4.0], [0.5, 0.0]], [[-3.0, -3.0], [0.0, 0.0]]]
    for energy, mean in zip(mixture_energies(x), means, strict=True):
        parts = Independent(Normal(torch.tensor(mean), 0.5**0.5), 1)
        target = MixtureSameFamily(Categorical(torch.tensor([0.7, 0.3])), parts)
        torch.testing.assert_close(energy, -target.log_prob(x))


def test_share():
    x = torch.tensor([[0.0, 0.0], [1.0, 1.0], [4.0, -4.0], [-3.0, -3.0]])
    assert share_in_common_region(x) == 0.5
    assert Mixtures().start(0).abs().max() <= 10


def test_front_is_what_no_point_dominates():
    """Points with g = 1 outside the segments are dominated by the front, those inside are not."""
    front = torch.cat(zdt3_front(2000))
    first = torch.linspace(1e-4, 1, 500, dtype=torch.double)
    x = torch.zeros(500, 30, dtype=torch.double)
    x[:, 0] = first
    points = zdt3(x, projected=False).T
    dominated = ((front[None] < points[:, None] - 2e-3).all(-1)).any(-1)
    inside = torch.stack([(first >= low) & (first <= high) for low, high in SEGMENTS]).any(0)
    near = torch.stack([(first > low - 0.01) & (first < high + 0.01) for low, high in SEGMENTS]).any(0)
    assert not dominated[inside].any()
    assert dominated[~near].all()


def test_gradients_stay_inside_the_box():
    x = ZDT3(particles=4).start(0)
    x[0, 1:], x[1, 0], x[2, 0] = LEAST, LEAST, 1.0
    x.requires_grad_()
    plain = torch.autograd.grad(zdt3(x, projected=False)[1].sum(), x)[0]
    kept = torch.autograd.grad(zdt3(x)[1].sum(), x)[0]
    assert (plain[0, 1:] > 0).all()
    assert (kept[0, 1:] == 0).all()
    assert torch.equal(kept[3], plain[3])
    first = torch.autograd.grad(zdt3(x)[0].sum(), x)[0]
    assert first[1, 0] == 0
    assert first[2, 0] == 1


def test_hypervolume():
    assert hypervolume(torch.tensor([[0.1, 0.1]])) == pytest.approx(1.0)
    assert hypervolume(torch.tensor([[0.1, 0.6], [0.6, 0.1], [0.7, 0.7], [2.0, -1.0]])) == pytest.approx(0.75)
    assert hypervolume(torch.tensor([list(REFERENCE)])) == 0
    points = torch.rand(30, 2)
    grid = (torch.rand(200_000, 2) * 1.1)[:, None]
    estimate = sum((points[None] <= part).all(-1).any(-1).double().sum() for part in grid.split(20_000)) / 200_000
    assert hypervolume(points) == pytest.approx(estimate.item() * 1.21, abs=0.01)


def test_segments():
    middles = torch.stack([segment[200] for segment in zdt3_front()])
    assert segments_reached(middles) == [1] * 5
    assert segments_reached(middles + 1) == [0] * 5


def test_the_kernel_on_objectives_gets_them():
    """The repulsion follows the objectives: variables that they do not depend on are not pushed apart."""

    @dataclass(frozen=True)
    class Plane(Mixtures):
        def start(self, seed):
            return torch.rand(6, 2, generator=torch.Generator().manual_seed(seed))

        def energies(self, x):
            return torch.stack([x[:, 0], (1 - x[:, 0]).square() + 0 * x[:, 1]])

    found = particles.run(ON_A_FRONT["MTSGD, code's rule, kernel on objectives"], Plane(steps=2), 0)["snapshots"]
    before, after = (torch.tensor(found[step]) for step in (0, 2))
    assert (after[:, 0] != before[:, 0]).all()
    assert torch.equal(after[:, 1], before[:, 1])


def test_the_wide_kernel_and_normalised_scores_mend_the_collapse():
    """What the documentation says of exact U: with the defaults all weight is on the first objective, else not."""
    weights = {}
    for name in list(ON_A_FRONT)[:3]:
        x = ZDT3().start(0).requires_grad_()
        sampler = ON_A_FRONT[name]([x], 5e-3, base_optimizer=torch.optim.Adam)
        sampler.param_groups[0]["temperature"] = 1e-2
        for _ in range(100):
            sampler.step(lambda x=x: zdt3(x))
            ZDT3().after(x)
        weights[name] = sampler.weights[0].item()
    collapsed, normalised, wide = weights.values()
    assert collapsed > 0.999
    assert 0.3 < normalised < 0.7
    assert wide < 0.995


def test_gradient_descent_on_several_targets_needs_the_projection():
    """What the closure's projection is for: without it nearly every particle of MGDA slides to f₁ = 0."""
    share = {}
    for projected in (True, False):
        options = ZDT3(steps=600, lr=5e-3, particles=30, unprojected=not projected)
        x = torch.tensor(particles.run(MGDA, options, 0)["snapshots"][600])
        share[projected] = (x[:, 0] < 1e-3).double().mean().item()
    assert share[True] < 0.5
    assert share[False] > 0.8
