"""Independent random streams by name: the same keys give the same numbers, in any process and in any order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["Minibatches", "choose", "derive_seed", "generator", "log_uniform"]

_T = TypeVar("_T")


def derive_seed(*keys: int | str) -> int:
    """A 63-bit seed from integers and words, for instance ``derive_seed(seed, iteration, pair, "noise")``.

    Different keys give unrelated seeds (BLAKE2b), so that (seed, iteration, pair) fixes every random choice of a
    pair without any state that would have to travel between processes. Torch's generator on a CPU uses 32 of the bits.
    """
    text = "/".join(f"{type(key).__name__}:{key}" for key in keys)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(*keys: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A ``torch.Generator`` seeded with `derive_seed` of the keys."""
    return torch.Generator(device).manual_seed(derive_seed(*keys))


def log_uniform(low: float, high: float, stream: torch.Generator) -> float:
    """A number whose logarithm is uniform between those of ``low`` and ``high``, both positive."""
    share = torch.rand((), generator=stream, dtype=torch.float64).item()
    return low * (high / low) ** share


def choose(choices: Sequence[_T], stream: torch.Generator) -> _T:
    """Draw one of the choices, all equally likely."""
    return choices[int(torch.randint(len(choices), (), generator=stream))]


class Minibatches:
    """Minibatches of an endless sequence of epochs, each a fresh permutation of the training set.

    What an ordinary ``DataLoader(shuffle=True, drop_last=True)`` gives, but without state: the minibatch of step t
    depends on (seed, t) only, so that a run resumes anywhere.

    Args:
        seed: of the permutations.
        num_data: N, number of training points.
        batch_size: points in a minibatch; N if it is larger.
        device: where the indices are drawn and stay.
    """

    def __init__(self, seed: int, num_data: int, batch_size: int, device: torch.device | str = "cpu") -> None:
        self.seed, self.num_data, self.device = seed, num_data, torch.device(device)
        self.batch_size = min(batch_size, num_data)
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def rows(self, first: int, count: int) -> Tensor:
        """Indices (count, batch_size) into the training set of the minibatches ``first`` = 0, 1, … and after it."""
        an_epoch = self.num_data // self.batch_size
        pieces, stop = [], first + count
        while first < stop:
            epoch, position = divmod(first, an_epoch)
            number = min(an_epoch - position, stop - first)
            start = position * self.batch_size
            pieces.append(self._permutation(epoch)[start : start + number * self.batch_size])
            first += number
        return torch.cat(pieces).view(count, self.batch_size)

    def _permutation(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            stream = generator(self.seed, "epoch", epoch, device=self.device)
            self._order = torch.randperm(self.num_data, generator=stream, device=self.device)
            self._epoch = epoch
        return self._order
