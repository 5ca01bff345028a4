"""Two contextual bandits of Riquelme, Tucker and Snoek (ICLR 2018): mushrooms, and the wheel."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.harness.uci_data import mushroom_file

#: Rewards of the mushrooms: eating an edible one, eating a poisonous one (either, with equal chances), not eating.
EDIBLE, POISONOUS, LEFT = 5.0, (5.0, -35.0), 0.0
#: Rewards of the wheel: of the safe arm, of the four others, of the one that pays in the outer ring; and their noise.
SAFE, OTHER, RING, NOISE = 1.2, 1.0, 50.0, 0.01
#: Attributes of a mushroom, each a letter, beside its class.
ATTRIBUTES = 22


@dataclass(frozen=True)
class Bandit:
    """Rounds of a bandit, drawn beforehand, so that every method meets the same ones.

    Attributes:
        contexts: (n, d).
        rewards: (n, A), what each arm would pay in each round.
        expected: (n, A), its expectation.
    """

    contexts: Tensor
    rewards: Tensor
    expected: Tensor

    def regret(self, arms: Tensor) -> Tensor:
        """Expected loss against the best arm of the chosen ones, (n,) indices, in each round, (n,)."""
        chosen = self.expected.gather(1, arms[:, None])[:, 0]
        return self.expected.amax(1) - chosen

    def uniform_regret(self) -> Tensor:
        """The expected regret of a uniformly chosen arm, each round, (n,)."""
        return self.expected.amax(1) - self.expected.mean(1)

    def relative_regret(self, arms: Tensor) -> Tensor:
        """Cumulative regret in percent of that of choosing uniformly, after every round, (n,)."""
        return 100 * self.regret(arms).cumsum(0) / self.uniform_regret().cumsum(0)


def read_mushrooms(root: str | os.PathLike[str] | None = None) -> tuple[Tensor, Tensor]:
    """The attributes of the 8,124 mushrooms, one-hot (8124, 117), and whether each is edible, (8124,).

    A column is one value of one attribute that occurs; "?" (a missing stalk root) is a value like the others.
    """
    path = mushroom_file(root)
    rows = []
    for number, line in enumerate(path.read_text(encoding="ascii", errors="replace").splitlines(), start=1):
        fields = line.strip().split(",")
        if fields == [""]:
            continue
        if len(fields) != ATTRIBUTES + 1 or fields[0] not in ("e", "p") or any(len(f) != 1 for f in fields):
            raise ValueError(
                f"{path}, line {number}: a mushroom is e or p and {ATTRIBUTES} letters with commas, got {line[:80]!r}"
            )
        rows.append(fields)
    if not rows:
        raise ValueError(f"{path} holds no mushroom")
    columns = []
    for attribute in range(1, ATTRIBUTES + 1):
        values = [row[attribute] for row in rows]
        columns += [torch.tensor([value == one for value in values]) for one in sorted(set(values))]
    return torch.stack(columns, dim=1).float(), torch.tensor([row[0] == "e" for row in rows])


def mushroom(features: Tensor, edible: Tensor, rounds: int, generator: torch.Generator) -> Bandit:
    """Mushrooms drawn with replacement; arm 0 leaves one, arm 1 eats it."""
    chosen = torch.randint(len(features), (rounds,), generator=generator)
    good = edible[chosen]
    lucky = torch.rand(rounds, generator=generator) < 0.5
    eaten = torch.where(good, EDIBLE, torch.where(lucky, POISONOUS[0], POISONOUS[1]))
    mean = torch.where(good, EDIBLE, sum(POISONOUS) / 2)
    left = torch.full_like(eaten, LEFT)
    return Bandit(features[chosen], torch.stack([left, eaten], 1), torch.stack([left, mean], 1))


def wheel(delta: float, rounds: int, generator: torch.Generator) -> Bandit:
    """Contexts uniform in the unit disc; arm 0 is safe, and each other one pays in its quadrant outside radius δ."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}")
    radius = torch.rand(rounds, generator=generator).sqrt()
    angle = 2 * math.pi * torch.rand(rounds, generator=generator)
    contexts = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    expected = torch.full((rounds, 5), OTHER)
    expected[:, 0] = SAFE
    quadrant = (angle / (math.pi / 2)).long().clamp_max(3)
    outside = (radius > delta).nonzero()[:, 0]
    expected[outside, 1 + quadrant[outside]] = RING
    return Bandit(contexts, expected + NOISE * torch.randn(rounds, 5, generator=generator), expected)
