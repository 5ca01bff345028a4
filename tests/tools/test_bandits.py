"""Thompson sampling: networks side by side, posteriors that learn, and the command end to end."""

from __future__ import annotations

import json
from dataclasses import replace

import bandits
import pytest
import torch
from bandits import main, play
from experiments.bandits.posteriors import (
    METHODS,
    Bootstrap,
    Budget,
    Chains,
    FunctionSpace,
    History,
    Uniform,
    forward,
    prior_draw,
)
from experiments.bandits.problems import wheel

SMALL = Budget(contexts=300, members=4, hidden=(16,), steps=10, batch_size=32, measurement_points=8)
LEARNING = [FunctionSpace, Bootstrap, Chains]


def rounds(count=300, seed=0, delta=0.5):
    return wheel(delta, count, torch.Generator().manual_seed(seed))


def test_members_are_networks_of_their_own():
    tensors = prior_draw((3, 5, 4, 2), 6, torch.Generator().manual_seed(0))
    x = torch.randn(7, 3)
    found = forward(tensors, x)
    for m in range(6):
        hidden = (x @ tensors[0][m] + tensors[1][m]).relu()
        hidden = (hidden @ tensors[2][m] + tensors[3][m]).relu()
        torch.testing.assert_close(found[m], hidden @ tensors[4][m] + tensors[5][m])


def test_prior_has_its_variance():
    tensors = prior_draw((50, 40, 3), 400, torch.Generator().manual_seed(0))
    assert [tuple(t.shape) for t in tensors] == [(400, 50, 40), (400, 1, 40), (400, 40, 3), (400, 1, 3)]
    assert [t.var().item() for t in tensors] == pytest.approx([2 / 50, 2 / 50, 2 / 40, 2 / 40], rel=0.1)


@pytest.mark.parametrize("make", LEARNING)
def test_likelihood_is_of_the_arm_that_was_chosen(make):
    bandit = rounds(20)
    posterior = make(bandit.contexts, 5, 0.3, SMALL, torch.Generator().manual_seed(0))
    history = History(bandit.contexts)
    arms = torch.arange(20) % 5
    history.add(arms[:12], bandit.rewards[:12, 0])
    batch = torch.tensor([0, 5, 11, 5])
    predictions = torch.randn(4, 4, 5)
    losses = posterior.losses(predictions, history, batch)
    for b, t in enumerate(batch):
        normal = torch.distributions.Normal(predictions[:, b, arms[t]], 0.3)
        constant = torch.tensor(0.3 * (2 * torch.pi) ** 0.5).log()
        torch.testing.assert_close(losses[:, b], -normal.log_prob(bandit.rewards[t, 0]) - constant)
    assert history.minibatch(200, torch.Generator()).max() == 11


def test_a_member_is_drawn_for_every_context():
    bandit = rounds(2000)
    posterior = Bootstrap(bandit.contexts, 5, 0.3, SMALL, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for m in range(4):  # member m likes arm m
            posterior.tensors[-1][m, 0, m] = 1e3
    counts = posterior.choose(bandit.contexts).bincount(minlength=5)
    assert counts[4] == 0
    assert (counts[:4] - 500).abs().max() < 4.5 * (2000 * 3 / 16) ** 0.5


def test_bootstrap_counts_are_poisson():
    bandit = rounds(2000)
    counts = Bootstrap(bandit.contexts, 5, 0.3, SMALL, torch.Generator().manual_seed(0)).counts
    assert counts.shape == (4, 2000)
    assert counts.mean().item() == pytest.approx(1, abs=4.5 / 8000**0.5)
    assert counts.var().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("make", [FunctionSpace, Chains])
def test_the_number_of_data_is_that_of_what_was_seen(make):
    bandit = rounds(50)
    posterior = make(bandit.contexts, 5, 0.3, SMALL, torch.Generator().manual_seed(0))
    history = History(bandit.contexts)
    history.add(torch.zeros(30, dtype=torch.long), bandit.rewards[:30, 0])
    posterior.update(history)
    assert {group["num_data"] for group in posterior.sampler.param_groups} == {30.0}
    assert all(t.isfinite().all() for t in posterior.tensors)


def test_prior_of_the_chains_is_that_of_the_first_draws():
    """With next to no data (a noise without limit) the chains stay draws of the prior."""
    bandit = rounds(10)
    budget = replace(SMALL, members=200, sghmc_lr=5e-5)
    posterior = Chains(bandit.contexts, 5, 30.0, budget, torch.Generator().manual_seed(0))
    history = History(bandit.contexts)
    history.add(torch.zeros(1, dtype=torch.long), torch.zeros(1))
    before = [t.detach().clone() for t in posterior.tensors]
    for _ in range(20):
        posterior.update(history)
    for old, new, into in zip(before, posterior.tensors, (2, 2, 16, 16), strict=True):
        assert (old * new).mean() / old.square().mean() < 0.5  # they have moved
        assert new.var().item() == pytest.approx(2 / into, rel=0.15)


@pytest.mark.parametrize("make", LEARNING)
def test_posteriors_learn_the_wheel(make):
    """Well below uniform choice; a posterior that is never trained (the planted fault) is not."""
    bandit, budget = rounds(), replace(SMALL, steps=20, bootstrap_lr=1e-2)
    learned = bandit.relative_regret(play(bandit, make, budget, 50.0, 5.0, 1))[-1].item()

    class Untrained(make):
        def update(self, history):
            pass

    fault = bandit.relative_regret(play(bandit, Untrained, budget, 50.0, 5.0, 1))[-1].item()
    assert learned < 60 < fault


def test_play_tries_every_arm_first_and_repeats_itself():
    bandit = rounds(100)
    arms = play(bandit, FunctionSpace, SMALL, 50.0, 5.0, 3)
    assert arms[:15].tolist() == list(range(5)) * 3
    assert torch.equal(arms, play(bandit, FunctionSpace, SMALL, 50.0, 5.0, 3))
    assert not torch.equal(arms, play(bandit, FunctionSpace, SMALL, 50.0, 5.0, 4))


def test_play_sees_no_reward_of_another_arm():
    """Rewards of arms that are not chosen, and of rounds to come, may be anything."""
    bandit = rounds(100)
    arms = play(bandit, Bootstrap, SMALL, 50.0, 5.0, 3)
    seen = torch.zeros_like(bandit.rewards, dtype=torch.bool).scatter(1, arms[:, None], True)
    hidden = torch.where(seen, bandit.rewards, float("nan"))
    assert torch.equal(play(replace(bandit, rewards=hidden), Bootstrap, SMALL, 50.0, 5.0, 3), arms)


def test_fewer_rounds_than_first_pulls():
    assert play(rounds(7), Uniform, SMALL, 50.0, 5.0, 0).tolist() == [0, 1, 2, 3, 4, 0, 1]


COMMAND = ["--contexts", "60", "--members", "3", "--hidden", "8", "--steps", "3", "--seeds", "2"]


def test_command(tmp_path, capsys, monkeypatch):
    arguments = [*COMMAND, "--problem", "wheel_0.5", "wheel_0.9", "--out", str(tmp_path)]
    main(arguments)
    content = json.loads((tmp_path / "results.json").read_text())
    assert {name: set(methods) for name, methods in content["runs"].items()} == {
        problem: set(METHODS) for problem in ("wheel_0.5", "wheel_0.9")
    }
    run = content["runs"]["wheel_0.9"]["fsvgd"][1]
    assert run["rounds"][-1] == 60
    assert sum(run["arms"]) == 60
    assert "| wheel, δ = 0.5" in (tmp_path / "table.md").read_text()
    assert "over 2 seeds; published" in (tmp_path / "table.md").read_text()
    assert "7.54 ± 0.41" in capsys.readouterr().out
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert len(list((tmp_path / "tensorboard").iterdir())) == 16
    # All of it is on disk now.
    monkeypatch.setattr(bandits, "play", None)
    main(arguments)
    assert json.loads((tmp_path / "results.json").read_text())["runs"] == content["runs"]


def test_expected_rewards(tmp_path):
    options = bandits.parse([*COMMAND, "--problem", "wheel_0.5", "--expected-rewards", "--out", str(tmp_path)])
    bandit = bandits.Runs(options).bandit("wheel_0.5", 0)
    assert torch.equal(bandit.rewards, bandit.expected)
    noisy = bandits.Runs(replace(options, expected_rewards=False)).bandit("wheel_0.5", 0)
    assert torch.equal(noisy.contexts, bandit.contexts)
    assert not torch.equal(noisy.rewards, bandit.rewards)


def test_without_the_mushrooms_the_wheel_goes_on(tmp_path, capsys):
    arguments = [*COMMAND, "--method", "uniform", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    main([*arguments, "--problem", "mushroom", "wheel_0.7"])
    printed = capsys.readouterr()
    assert "left out: mushroom: no " in printed.err
    assert "agaricus-lepiota.data" in printed.err
    assert "| mushroom" not in printed.out
    with pytest.raises(SystemExit, match="no problem is left"):
        main([*arguments, "--problem", "mushroom"])


def test_presets(monkeypatch):
    assert bandits.parse(["--preset", "paper"]).budget.contexts == 40_000
    options = bandits.parse(["--preset", "paper", "--members", "5"])
    assert (options.budget.contexts, options.budget.members) == (40_000, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--contexts", "0"], "contexts must be at least 1, got 0"),
        (["--sghmc-lr", "-1"], "sghmc_lr must be positive, got -1.0"),
        (["--hidden", "0"], "hidden must hold positive widths, got (0,)"),
        (["--seeds", "0"], "seeds must be at least 1, got 0"),
        (["--method", "uniform", "uniform"], "method must hold names, each once"),
    ],
)
def test_bad_arguments_are_refused_by_name(capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    text = f"{caught.value.code} {capsys.readouterr().err}"
    assert message in " ".join(text.replace("│", " ").split())


def test_the_figure_of_one_problem_and_one_seed(tmp_path):
    run = {"rounds": [1, 2], "relative_regret": [50.0, 0.0], "arms": [2], "seconds": 0.1}
    bandits.figure(tmp_path / "one.png", {"wheel_0.5": {"fsvgd": [run]}})
    assert (tmp_path / "one.png").stat().st_size > 5_000
