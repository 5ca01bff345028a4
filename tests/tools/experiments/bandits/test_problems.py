"""The bandits against their closed forms, with faults planted in them; the mushrooms' file against bad files."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from experiments.bandits.problems import Bandit, mushroom, read_mushrooms, wheel

ROUNDS = 40_000


def features(count=200):
    generator = torch.Generator().manual_seed(3)
    return torch.rand(count, 4, generator=generator), torch.rand(count, generator=generator) < 0.4


def make(problem: str, seed: int = 0) -> Bandit:
    generator = torch.Generator().manual_seed(seed)
    if problem == "mushroom":
        return mushroom(*features(), ROUNDS, generator)
    return wheel(float(problem), ROUNDS, generator)


def largest_deviation(bandit: Bandit) -> float:
    """Number of standard errors that the rewards' means are off the expectations, among rounds with one expectation."""
    worst = 0.0
    for arm in range(bandit.expected.shape[1]):
        for value in bandit.expected[:, arm].unique():
            rewards = bandit.rewards[bandit.expected[:, arm] == value, arm].double()
            error = rewards.std() / len(rewards) ** 0.5
            difference = (rewards.mean() - value).abs().item()
            worst = max(worst, difference / max(error.item(), 1e-9))
    return worst


@pytest.mark.parametrize("problem", ["mushroom", "0.5", "0.95"])
def test_rewards_have_their_expectations(problem):
    bandit = make(problem)
    assert largest_deviation(bandit) < 4.5
    # The planted fault: the worst reward (poison, or any arm but the safe one) is a little better than it is.
    fault = torch.where(bandit.expected == bandit.expected.min(), bandit.expected + 1.5, bandit.expected)
    assert largest_deviation(replace(bandit, expected=fault)) > 4.5


@pytest.mark.parametrize("delta", [0.5, 0.7, 0.95])
def test_wheel_in_closed_form(delta):
    """A uniform arm costs 1.2 − 5.2/5 = 0.16 inside, which has probability δ², and 50 − 54.2/5 = 39.16 outside."""
    bandit = make(str(delta))
    radius = bandit.contexts.norm(dim=1)
    inside = radius <= delta
    assert radius.max() <= 1
    assert inside.double().mean().item() == pytest.approx(
        delta**2, abs=4.5 * (delta**2 * (1 - delta**2) / ROUNDS) ** 0.5
    )
    torch.testing.assert_close(
        bandit.uniform_regret()[inside], torch.full((int(inside.sum()),), 0.16), rtol=1e-5, atol=0
    )
    torch.testing.assert_close(bandit.uniform_regret()[~inside], torch.full((int((~inside).sum()),), 39.16))
    assert (bandit.expected[inside].argmax(1) == 0).all()
    # One quadrant for each of the other arms.
    best = bandit.expected[~inside].argmax(1)
    signs = bandit.contexts[~inside].sign()
    quadrants = {tuple(signs[best == arm].unique(dim=0).flatten().tolist()) for arm in range(1, 5)}
    assert quadrants == {(1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, -1.0)}
    assert (bandit.rewards - bandit.expected).std().item() == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize("problem", ["mushroom", "0.9"])
def test_regret_of_the_oracle_and_of_uniform_choice(problem):
    bandit = make(problem)
    assert (bandit.relative_regret(bandit.expected.argmax(1)) == 0).all()
    arms = bandit.expected.shape[1]
    # Each arm once over all rounds: their mean is uniform choice's expectation.
    regrets = torch.stack([bandit.relative_regret(torch.full((ROUNDS,), a)) for a in range(arms)]).double()
    torch.testing.assert_close(regrets.mean(0), torch.full((ROUNDS,), 100.0, dtype=torch.double), rtol=1e-3, atol=0)
    chosen = torch.randint(arms, (ROUNDS,), generator=torch.Generator().manual_seed(1))
    assert bandit.relative_regret(chosen)[-1].item() == pytest.approx(100, abs=3)


# ---------------------------------------------------------------- the file

LINE = "p,x,s,n,t,p,f,c,n,k,e,e,s,s,w,w,p,w,o,p,k,s,u"


def written(folder, text):
    path = folder / "mushroom" / "agaricus-lepiota.data"
    path.parent.mkdir()
    path.write_text(text)
    return folder


def test_reading_a_small_file(tmp_path):
    x, edible = read_mushrooms(written(tmp_path, f"{LINE}\ne,b{LINE[3:]}\n\n"))
    # One column a value that occurs: two caps, one value of the 21 other attributes.
    assert x.shape == (2, 23)
    assert (x.sum(1) == 22).all()
    assert x[:, :2].tolist() == [[0, 1], [1, 0]]
    assert edible.tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{LINE}\n{LINE[:-2]}\n", "line 2: a mushroom is e or p and 22 letters"),
        (f"{LINE}\nq{LINE[1:]}\n", "line 2"),
        (f"{LINE[:-1]}uu\n", "line 1"),
        ("<html>not here</html>", "line 1"),
        ("", "holds no mushroom"),
    ],
)
def test_bad_files(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_mushrooms(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"agaricus-lepiota\.data.*To get it"):
        read_mushrooms(tmp_path)
