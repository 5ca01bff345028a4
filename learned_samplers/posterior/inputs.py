"""Turns a network's inputs (tensors, arrays, dictionaries, loaders) into batches of tensors."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

#: A tensor or array (N, ...), a tuple or a dictionary of them, or a DataLoader.
Inputs = Any

IN_ONE_PIECE = "batch_size=None, which runs all rows in one piece"
#: Advice where outputs are not one for each example.
ADVICE = (
    "one example alone needs a batch axis, x.unsqueeze(0), and so does each of a loader with batch_size=None; rows "
    f"that depend on each other, as in a graph, need {IN_ONE_PIECE}"
)

_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class Batch(NamedTuple):
    """Arguments of one call of the network, and the number of examples in them.

    ``in_one_piece``: rows are not told apart, and tensors may differ in length: a graph's nodes and edges.
    """

    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]
    length: int
    in_one_piece: bool = False

    def to(self, device: torch.device) -> Batch:
        """Return the same batch on a device."""
        return self._with(lambda tensor: tensor.to(device), self.length)

    def detached(self) -> Batch:
        """Return the same batch without a graph, so that a network may set ``requires_grad`` of its inputs."""
        return self._with(Tensor.detach, self.length)

    def first(self, count: int) -> Batch:
        """Return its first examples."""
        return self.rows(slice(count))

    def inputs_of_first(self, count: int) -> Inputs:
        """Return copies of its first examples, in the form in which a user gives inputs."""
        chosen = self.detached() if self.in_one_piece else self.detached().first(count)
        return {k: t.clone() for k, t in chosen.kwargs.items()} or tuple(t.clone() for t in chosen.args)

    def rows(self, chosen: slice) -> Batch:
        """Return the chosen examples."""
        return self._with(lambda tensor: tensor[chosen], len(range(self.length)[chosen]))

    def _with(self, change: Callable[[Tensor], Tensor], length: int) -> Batch:
        kwargs = {name: change(tensor) for name, tensor in self.kwargs.items()}
        return Batch(tuple(map(change, self.args)), kwargs, length, self.in_one_piece)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of its arguments."""
        return (*self.args, *self.kwargs.values())

    @property
    def requires_grad(self) -> bool:
        """True if an argument requires a gradient."""
        return any(tensor.requires_grad for tensor in self.tensors)


class Batches:
    """A network's inputs in batches, in their own order; those of a loader are read as they are taken.

    Args:
        x: a tensor or a NumPy array; a tuple of them (positional arguments of the network); a dictionary of them
            (keyword arguments); or a DataLoader, which has its own batch size, and of whose (input, target) pairs the
            inputs are taken. It is iterated once.
        batch_size: examples in a batch; None for all in one piece, whose tensors may differ in length.
        dtype: floating-point arrays are converted to it, since NumPy's default is float64.
        targets: False says that a loader's tuples hold inputs only; True and None take them for (input, target).
        second: the network's second input, if it has one; with ``targets=None`` its values may be taken for targets,
            which gets a warning.

    Attributes:
        length: the number of examples; of a loader what is expected, 0 where it does not say.
        read: whether they come from a loader, so that each takes memory of its own.
        splits: whether there may be more batches than one.

    Raises:
        TypeError, ValueError: another type, no example, different numbers of examples, or a loader that shuffles.
    """

    def __init__(
        self,
        x: Inputs,
        batch_size: int | None,
        dtype: torch.dtype | None = None,
        *,
        targets: bool | None = None,
        second: str = "",
    ) -> None:
        self.read = isinstance(x, DataLoader)
        self._x, self._size, self._dtype, self._targets, self._second = x, batch_size, dtype, targets, second
        if self.read:
            if _shuffles(x):
                raise ValueError("x must not shuffle, or predictions have no order to return in: use shuffle=False")
            self.length, self.splits = _expected(x), True
        else:
            self._x = _one_batch(x, dtype, in_one_piece=batch_size is None)
            self.length = self._x.length
            self.splits = batch_size is not None and batch_size < self.length

    def __iter__(self) -> Iterator[Batch]:
        if not self.read:
            size = self.length if self._size is None else self._size
            for start in range(0, self.length, size):
                yield self._x if self._size is None else self._x.rows(slice(start, start + size))
            return
        empty = True
        for item in _inputs_of(self._x, self._targets, self._second):
            yield _one_batch(item, self._dtype)
            empty = False
        if empty:
            raise ValueError("x must hold at least one example, got a loader without batches")


def _expected(loader: DataLoader[Any]) -> int:
    """The number of examples of a loader that makes its batches in the usual way; 0 of another one."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return 0
    count = len(loader.sampler)  # type: ignore[arg-type]
    return count - count % loader.batch_size if loader.drop_last else count


def _shuffles(loader: DataLoader[Any]) -> bool:
    """Whether a loader's sampler, its batch sampler or one that these hold is one of torch's random ones."""
    samplers = [loader.sampler, loader.batch_sampler]
    for each in samplers:  # it grows while it is gone through
        if isinstance(each, _RANDOM) or getattr(each, "shuffle", False) is True:
            return True
        held = (getattr(each, name, None) for name in ("sampler", "batch_sampler"))
        samplers += [one for one in held if one is not None and all(one is not other for other in samplers)]
    return False


def _one_batch(x: Any, dtype: torch.dtype | None, *, in_one_piece: bool = False) -> Batch:
    items = list(x.values()) if isinstance(x, Mapping) else list(x) if isinstance(x, tuple) else [x]
    if not items or not all(isinstance(item, Tensor | np.ndarray) for item in items):
        type_name = type(next((item for item in items if not isinstance(item, Tensor | np.ndarray)), x)).__name__
        advice = ": of a loader's batch [inputs, targets] give the inputs" if isinstance(x, list) else ""
        if any(hasattr(item, "to_numpy") for item in items):
            advice = ": give x.to_numpy(dtype='float32'), with the columns in the order in which it was trained on them"
        raise TypeError(
            f"x must be a tensor, an array, a tuple or dictionary of them, or a DataLoader, got {type_name}{advice}"
        )
    tensors = [_as_tensor(item, dtype) for item in items]
    lengths = [len(item) if item.ndim else 0 for item in tensors]
    if lengths[0] == 0 or (len(set(lengths)) != 1 and not in_one_piece):
        advice = f" ({ADVICE})" if any(item.ndim == 0 for item in tensors) else ""
        if len(set(lengths)) != 1:
            advice = f" (inputs that are no rows, such as the edges of a graph, need {IN_ONE_PIECE})"
        raise ValueError(
            f"x must hold at least one example, equally many in each tensor; got lengths {lengths}{advice}"
        )
    if isinstance(x, Mapping):
        return Batch((), dict(zip(map(str, x), tensors, strict=True)), lengths[0], in_one_piece)
    return Batch(tuple(tensors), {}, lengths[0], in_one_piece)


def readable(array: np.ndarray) -> np.ndarray:
    """The array as torch reads it: in one piece, and in the byte order of the machine."""
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _as_tensor(item: Tensor | np.ndarray, dtype: torch.dtype | None) -> Tensor:
    if isinstance(item, Tensor):
        return item
    tensor = torch.from_numpy(readable(item))
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def second_input(network: nn.Module) -> str:
    """The name of the second positional parameter of forward, if that looks like an input; "" otherwise."""
    try:
        parameters = list(inspect.signature(network.forward).parameters.values())
    except (TypeError, ValueError):
        return ""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    second = [each for each in parameters if each.kind in kinds][1:2]
    names_target = any(word in each.name.lower() for each in second for word in ("target", "label"))
    if not second or names_target or second[0].name == "y" or isinstance(second[0].default, bool | int | float | str):
        return ""
    return second[0].name


def _inputs_of(loader: Iterable[Any], targets: bool | None, second: str) -> Iterator[Any]:
    for item in loader:
        if targets is None and second and isinstance(item, Sequence) and len(item) == 2:
            warnings.warn(
                f"the second item of the loader's batches is used as the target, not as {second!r} of the network: "
                "pass targets=False if it is an input, targets=True if it is the target",
                stacklevel=5,
            )
            second = ""
        yield _without_target(item, targets)


def _without_target(item: Any, targets: bool | None) -> Any:
    if not isinstance(item, Sequence) or isinstance(item, str):
        return item
    if targets is False:
        return tuple(item)
    if len(item) > 2:
        raise ValueError(
            f"a batch of the loader must be inputs or (inputs, targets), got {len(item)} items: where the network "
            "takes several inputs, let the data set give ((a, b), target), or (a, b) alone and pass targets=False"
        )
    return tuple(item[0]) if isinstance(item[0], list) else item[0]  # torch's loaders make lists of tuples


class RepeatedBatches:
    """Iterates again and again over data to compute statistics from: inputs as above, or any iterable of batches.

    Here the order does not matter, so a loader may shuffle. The other arguments are as for `Batches`.
    """

    def __init__(
        self, data: Any, batch_size: int | None, dtype: torch.dtype | None = None, *, targets: bool | None, second: str
    ) -> None:
        self._dtype, self._targets, self._second = dtype, targets, second
        if not isinstance(data, Iterable):
            raise TypeError(f"data must be a tensor, a tuple of tensors or a loader, got {type(data).__name__}")
        self._split = isinstance(data, Tensor | np.ndarray | tuple | Mapping)
        # A one-shot iterator must last for every pass.
        kept = list(data) if isinstance(data, Iterator) else data
        self._batches: Iterable[Any] = Batches(data, batch_size, dtype) if self._split else kept

    def __iter__(self) -> Iterator[Batch]:
        if self._split:
            yield from self._batches
            return
        for item in _inputs_of(self._batches, self._targets, self._second):
            self._second = ""  # said once, not in every pass
            yield _one_batch(item, self._dtype)
