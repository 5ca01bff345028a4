"""Running one network under many sets of weights, stacked for vmap or one after the other."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils.data import DataLoader

from learned_samplers.posterior.filled import Filled
from learned_samplers.posterior.inputs import ADVICE, Batch, Batches, Inputs, second_input
from learned_samplers.posterior.network import buffers_of, dtype_of, network_of, refuse_merged, tensors_of
from learned_samplers.posterior.outputs import OutputFormat
from learned_samplers.posterior.replica import ReplicatedNetwork
from learned_samplers.posterior.store import Entry
from learned_samplers.posterior.tensor_files import Tensors
from learned_samplers.posterior.trial import Call, Trial
from learned_samplers.posterior.verdict import ROWS

log = logging.getLogger(__name__)

#: Bytes of a loader's inputs, and of sums, that are held at once so that more samples than a chunk are read less often;
#: one batch may take more.
HELD = 2**25

#: How torch's warning begins that an operation has no batching rule for vmap; it ends in "please file us an issue".
NO_BATCHING_RULE = "There is a performance drop because we have not yet implemented the batching rule"

#: Filters of warnings belong to all threads: two of them must not set and restore these at once.
_filters = threading.Lock()
os.register_at_fork(after_in_child=lambda: globals().update(_filters=threading.Lock()))


def vmap_is_faster(model: nn.Module) -> bool:
    """Return whether samples are stacked for vmap when ``vectorize`` is None."""
    # vmap turns convolutions into grouped ones, which took 1.5 to 5 times as long as a loop on a CPU.
    convolutions = any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules())
    return not (convolutions and next(model.parameters()).device.type == "cpu")


class Piece(NamedTuple):
    """Predictions (k, n, ...) of a few samples for one batch, and which of the samples and of the examples they are."""

    samples: slice
    rows: slice
    values: Tensor


#: Turns the network's output into a prediction.
Transform = Callable[[Any], Tensor]
#: Batches that are run together under each chunk of samples, and which of the examples each is.
Group = list[tuple[slice, Batch]]


class Runner:
    """Runs a model under several sets of weights: as one with vmap, or one after the other where vmap cannot.

    What is found out about the model is remembered: whether vmap can run it, whether its forward takes a gradient, and
    what its first batch told.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.trial = Trial(model)
        self.vmap_fails = False
        self.vmap_loops: bool | None = None
        self.takes_gradient = False
        self._second = second_input(network_of(model))

    def network(self) -> ReplicatedNetwork:
        """Return what runs the model with other tensors in the place of its own."""
        return ReplicatedNetwork(self.model)

    def batches(self, x: Inputs, batch_size: int | None, targets: bool | None) -> Batches:
        """Return the batches of ``x`` in the model's dtype."""
        dtype = dtype_of(self.model)
        second, self._second = self._second, "" if targets is None and isinstance(x, DataLoader) else self._second
        return Batches(x, batch_size, dtype, targets=targets, second=second)  # said once

    def called(self, network: ReplicatedNetwork, state: Tensors, batch: Batch) -> Any:
        """Return what the network gives for a batch with these tensors, without a graph unless the inputs have one."""
        if not self.takes_gradient:
            try:
                return network(state, batch.args, batch.kwargs)
            except RuntimeError as error:
                if "does not require grad" not in str(error):
                    raise
        # Its forward differentiates, by its inputs as a force field does, so that it needs a graph of its own.
        self.takes_gradient = True
        with torch.enable_grad():
            detached = batch if batch.requires_grad else batch.detached()
            return network(state, detached.args, detached.kwargs)

    def stacked(
        self, call: Call, transform: Transform, states: Tensors, batch: Batch, vectorize: bool | None
    ) -> Tensor:
        """Return the predictions of several samples, whose tensors are stacked, for one batch."""

        def sample(k: int) -> Tensor:
            return transform(call({name: tensor[k] for name, tensor in states.items()}, batch))

        def one_by_one() -> Tensor:
            count = len(next(iter(states.values())))
            predictions = Filled(count)
            for k in range(count):
                predictions[(slice(k, k + 1),)] = sample(k)[None]
            return predictions.whole()

        wanted = self.together_is_faster() and not self.vmap_fails if vectorize is None else vectorize
        if not wanted:
            return one_by_one()
        try:
            return self.together(call, transform, states, batch, may_loop=vectorize is True)
        except Exception as error:
            # Whose fault is it? If the network runs plainly on this batch then it cannot run the samples as one.
            if vectorize is None:
                predictions = one_by_one()
                self.vmap_fails = True
                log.debug("vmap cannot run %s (%s): one sample after the other", type(self.model).__name__, error)
                return predictions
            sample(0)
            raise RuntimeError(
                f"torch.func.vmap cannot run {type(self.model).__name__} ({type(error).__name__}: {error}); "
                "leave vectorize out, or pass vectorize=False, to run the samples one after the other"
            ) from error

    def together_is_faster(self) -> bool:
        """Return whether samples are run as one when ``vectorize`` is None."""
        return vmap_is_faster(self.model)

    def together(self, call: Call, transform: Transform, states: Tensors, batch: Batch, *, may_loop: bool) -> Tensor:
        """Return the predictions of several samples for one batch, run as one."""
        return self._by_vmap(lambda state: transform(call(state, batch)), states, may_loop=may_loop)

    def _by_vmap(self, forward: Callable[[Tensors], Tensor], states: Tensors, *, may_loop: bool) -> Tensor:
        """Return ``vmap(forward)(states)``, without torch's request to report an operation without a batching rule.

        torch runs such an operation in a loop of its own; unless it may, that is an error. Filters of warnings belong
        to all threads, so that they are set at the first run only, or wherever such an operation is known.
        """
        if self.vmap_loops is None:
            try:
                with _filters, warnings.catch_warnings():
                    warnings.filterwarnings("error", NO_BATCHING_RULE)
                    predictions: Tensor = vmap(forward)(states)
            except UserWarning:
                if not may_loop:
                    raise
                self.vmap_loops = True
            else:
                self.vmap_loops = False
                return predictions
        if self.vmap_loops:
            with _filters, warnings.catch_warnings():
                warnings.filterwarnings("ignore", NO_BATCHING_RULE)
                return vmap(forward)(states)
        return vmap(forward)(states)


class Run:
    """A model under some samples, on the batches of one input.

    Where the inputs require a gradient, and gradients are enabled, the predictions have a graph to them.

    Args:
        runner: of the model.
        batches: the inputs.
        read: from an index to a sample.
        indices: the samples.
        fixed: the tensors that all samples share.
        transform: from the network's output to the prediction.
        form: the meaning of that output.
        sample_chunk: samples run at once.
        vectorize: whether by vmap; None chooses.

    Attributes:
        count: the number of samples.
        expected: the number of examples, as far as the input says it.
        chunks: the positions of the samples that are stacked and run at once.
        sums: bytes that the caller holds for each example of a group.
        entries: the records of the samples, where the caller knows them.
        first_inputs: the first rows, once they were run.
    """

    sums: float = 0
    entries: Sequence[Entry] = ()
    first_inputs: Inputs = None

    def __init__(
        self,
        runner: Runner,
        batches: Batches,
        read: Callable[[int], Tensors],
        indices: Sequence[int],
        fixed: Mapping[str, Tensor],
        transform: Transform,
        form: OutputFormat,
        *,
        sample_chunk: int,
        vectorize: bool | None,
    ) -> None:
        refuse_merged(runner.model, lambda: read(indices[0]))
        self.count, self.expected, self._batches = len(indices), batches.length, batches
        self.chunks = [
            slice(start, min(start + sample_chunk, self.count)) for start in range(0, self.count, sample_chunk)
        ]
        self._runner, self._read, self._indices = runner, read, indices
        self._transform, self._form, self._vectorize = transform, form, vectorize
        self._network = runner.network()
        self._device = next(runner.model.parameters()).device
        self._dtypes = {name: tensor.dtype for name, tensor in tensors_of(runner.model).items()}
        buffers = {name: tensor.detach() for name, tensor in buffers_of(runner.model).items()}
        self._buffers = set(buffers)
        self._static = self._placed({**buffers, **fixed})
        self._only_chunk: Tensors | None = None
        self._is_tried = False

    def groups(self) -> Iterator[Group]:
        """Yield the batches: as many together as `HELD` allows where samples are read again for each group, else one.

        Nothing of this object is open while a loader is asked for its next batch.
        """
        group: Group = []
        held, start = 0.0, 0
        for batch in self._batches:
            inputs = sum(tensor.nbytes for tensor in batch.tensors) if self._batches.read else 0
            size = inputs + batch.length * self.sums
            group.append((slice(start, start + batch.length), batch))
            held, start = held + size, start + batch.length
            del batch  # the next one of a loader is read before this name is bound again
            if held + size > HELD or (size and len(self.chunks) == 1):
                yield group
                group, held = [], 0.0
        if group:
            yield group

    def all_pieces(self) -> Iterator[Piece]:
        """Yield the predictions for all batches, group by group."""
        for group in self.groups():
            yield from self.pieces(group)
            group.clear()

    def pieces(self, group: Group) -> Iterator[Piece]:
        """Yield predictions for a group of batches, chunk of samples by chunk of samples and batch by batch.

        A chunk is read and stacked once, and then run over all of these batches. What is held is one piece.
        """
        if not self._is_tried:
            self._try_out(group[0][1])
            self.first_inputs = group[0][1].inputs_of_first(ROWS)
        for samples in self.chunks:
            states = self._states(samples)
            for rows, batch in group:
                values = self._predicted(states, batch)
                if batch.in_one_piece:  # which has as many rows as the network says
                    rows = slice(rows.start, rows.start + values.shape[1])
                yield Piece(samples, rows, values)

    def _try_out(self, batch: Batch) -> None:
        with torch.no_grad():
            self._runner.trial.run(
                self._call,
                lambda: {name: w.clone() for name, w in self._placed(self._read(self._indices[0])).items()},
                batch.detached().to(self._device),
                self._transform,
                self._form,
                is_split=self._batches.splits,
            )
        self._is_tried = True

    def _placed(self, tensors: Mapping[str, Tensor]) -> Tensors:
        for name in tensors:
            if name not in self._dtypes:
                raise ValueError(
                    f"the samples hold {name!r}, which the network no longer has: predict with it as it was sampled"
                )
        return {name: tensor.to(self._device, self._dtypes[name]) for name, tensor in tensors.items()}

    def _states(self, samples: slice) -> Tensors:
        if self._only_chunk is not None:
            return self._only_chunk
        states = [self._read(index) for index in self._indices[samples]]
        stacked = self._placed({name: torch.stack([state[name] for state in states]) for name in states[0]})
        if len(self.chunks) == 1:
            self._only_chunk = stacked
        return stacked

    def _call(self, state: Tensors, batch: Batch) -> Any:
        # A network may write into its buffers; what it writes must reach neither the samples nor the model.
        values = {**self._static, **state}
        copied = {name: tensor.clone() if name in self._buffers else tensor for name, tensor in values.items()}
        return self._runner.called(self._network, copied, batch)

    def _predicted(self, states: Tensors, batch: Batch) -> Tensor:
        has_graph = torch.is_grad_enabled() and batch.requires_grad
        try:
            with nullcontext() if has_graph else torch.no_grad():
                predictions = self._runner.stacked(
                    self._call,
                    self._transform,
                    states,
                    (batch if has_graph else batch.detached()).to(self._device),
                    self._vectorize,
                )
        except (RuntimeError, IndexError) as error:
            first = batch.tensors[0]
            shape, dtype = tuple(first.shape[1:]), str(first.dtype).removeprefix("torch.")
            error.add_note(f"(x was read as {batch.length} examples of shape {shape} and dtype {dtype}; {ADVICE})")
            raise
        if predictions.ndim < 2 or (predictions.shape[1] != batch.length and not batch.in_one_piece):
            raise ValueError(
                f"the network and output= turned {batch.length} examples into a tensor of shape "
                f"{tuple(predictions.shape[1:])}; its first axis must run over the examples ({ADVICE})"
            )
        return (predictions if has_graph else predictions.detach()).to(batch.tensors[0].device)
