"""The first run of a network under a sample: does it read the sample's weights, give logits, keep rows apart?"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers.base.warning import Once
from learned_samplers.posterior.inputs import Batch
from learned_samplers.posterior.network import network_of
from learned_samplers.posterior.outputs import ENOUGH, OutputFormat
from learned_samplers.posterior.replica import reads_of
from learned_samplers.posterior.tensor_files import Tensors

#: Examples on which a network is tried before its first predictions.
FEW = ENOUGH

#: Runs the network on a batch with these weights of a sample in the place of its own.
Call = Callable[[Tensors, Batch], Any]


class Trial:
    """Tries a model on few examples before its first predictions, and remembers what came out."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.reads_weights = False
        self._gives_logits: set[str] = set()
        self._rows_were_compared = False
        self._tells_of_rows, self._tells_of_probabilities = Once(), dict[str, Once]()

    def run(
        self,
        call: Call,
        state: Callable[[], Tensors],
        batch: Batch,
        transform: Callable[[Any], Tensor],
        form: OutputFormat,
        *,
        is_split: bool,
    ) -> None:
        """Raise ValueError if the network does not read the sampled weights, or gives no logits though it should.

        Args:
            call: runs the network.
            state: returns a sample, on the network's device and in its dtypes.
            batch: the first examples.
            transform: from the network's output to the prediction.
            form: the meaning of that output.
            is_split: whether there are more batches: then a row whose prediction depends on the rows beside it gets a
                warning.
        """
        asks_for_logits = form.can_recognise(batch.length) and form.output not in self._gives_logits
        compares_rows = is_split and not self._rows_were_compared
        if self.reads_weights and not asks_for_logits and not compares_rows:
            return
        sample = state()
        parts = [batch] if batch.in_one_piece else [batch.first(FEW), batch]
        for part in parts:
            reads = reads_of(network_of(self.model), sample)
            try:
                with reads:
                    output = call(sample, part)
                prediction = transform(output)
            except Exception:  # there may be networks that need the whole batch; the prediction raises any other error
                continue
            if asks_for_logits:
                form.refuse_probabilities(output, self._tells_of_probabilities.setdefault(str(form.output), Once()))
                self._gives_logits.add(str(form.output))
            self._refuse_own_weights(reads.names)
            self.reads_weights = self.reads_weights or reads.watches
            if compares_rows:
                self._compare_rows(lambda rows: transform(call(sample, rows)), part, prediction)
            return

    def _refuse_own_weights(self, names: list[str]) -> None:
        if names:
            raise ValueError(
                f"forward of {type(network_of(self.model)).__name__} does not read all sampled weights, {names[0]!r} "
                "for one, from its modules, but through an object that is none of them, where predict cannot put those "
                "of a sample: each sample would predict with the network's own. Let forward look them up at each call, "
                "as in self.layer.weight. The samples themselves are sound"
            )

    def _compare_rows(self, predict: Callable[[Batch], Tensor], batch: Batch, predictions: Tensor) -> None:
        """Warn where half of the rows alone get other predictions than among all of these rows."""
        half = batch.first(max(1, batch.length // 2))
        self._rows_were_compared = half.length < batch.length
        if not self._rows_were_compared:
            return
        try:
            first, second = predict(half), predict(half)
        except Exception:
            alike = False
        else:
            limit = rounding(self.model)
            is_random = distance(first, second) > limit
            alike = is_random or distance(first, predictions[: len(first)]) <= limit
        if not alike and self._tells_of_rows():
            warnings.warn(
                "the prediction of a row depends on the rows that share its batch, as with a graph or with a batch "
                "norm without running statistics, and batch_size decides which these are: batch_size=None runs all "
                "rows in one piece",
                stacklevel=5,
            )


def rounding(model: nn.Module) -> float:
    """Largest distance of two predictions that rounding explains, relative to their size."""
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    largest = max((torch.finfo(dtype).eps for dtype in dtypes), default=torch.finfo(torch.float32).eps)
    if torch.float32 in dtypes and next(model.parameters()).device.type != "cpu":
        # Convolutions of single precision round to 10 bits there, and another kernel may be chosen.
        largest = max(largest, 2**-13)
    return float(largest**0.5)


def distance(first: Tensor, second: Tensor) -> float:
    """Largest difference where both are finite, relative to the largest value; 0 of what is no real numbers."""
    if first.shape != second.shape or not first.is_floating_point():
        return 0.0
    finite = first.isfinite() & second.isfinite()
    if not bool(finite.any()):
        return 0.0
    first, second = first[finite].double(), second[finite].double()
    return float((first - second).abs().max() / second.abs().max().clamp_min(torch.finfo(torch.float64).tiny))
