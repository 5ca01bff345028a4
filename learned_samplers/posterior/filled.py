"""A tensor that is filled part by part."""

from __future__ import annotations

import torch
from torch import Tensor


class Filled:
    """A tensor that is filled part by part, and allocated at the first one, so that it is never held twice.

    Args:
        leading: the sizes of its first axes; those of the others are the parts'. The last of these is a guess: where
            there are more it grows (by half, and is copied), where there are fewer its end is cut off.
    """

    def __init__(self, *leading: int) -> None:
        self.leading, self.filled, self._whole = leading, 0, torch.empty(0)

    def __setitem__(self, place: tuple[slice, ...], part: Tensor) -> None:
        axis, stop, trailing = len(self.leading) - 1, place[-1].stop, part.shape[len(self.leading) :]
        if self._whole.ndim <= axis or not self._whole.numel():
            self._whole = part.new_empty(*self.leading[:-1], max(self.leading[-1], stop), *trailing)
        if self._whole.shape[axis + 1 :] != trailing:
            raise ValueError(
                f"the network's outputs are shaped {tuple(self._whole.shape[axis + 1 :])} an example in one "
                f"batch and {tuple(trailing)} in another: pad the inputs to one length, or take predict_batches"
            )
        if stop > self._whole.shape[axis]:
            known = self._whole
            self._whole = known.new_empty(*self.leading[:-1], max(stop, known.shape[axis] * 3 // 2), *trailing)
            self._whole.narrow(axis, 0, known.shape[axis]).copy_(known)
        self._whole[place] = part
        self.filled = max(self.filled, stop)

    def __getitem__(self, place: tuple[slice, ...]) -> Tensor:
        return self._whole[place]

    def whole(self) -> Tensor:
        """The tensor, once every part was set."""
        axis = len(self.leading) - 1
        cut = self.filled < self._whole.shape[axis]
        return self._whole.narrow(axis, 0, self.filled).clone() if cut else self._whole
