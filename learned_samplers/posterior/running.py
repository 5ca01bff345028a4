"""Running one network under many sets of weights, without touching its own, and a check that it takes them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils.data import DataLoader

from learned_samplers.posterior.inputs import ADVICE, Batch, Batches, Inputs, second_input
from learned_samplers.posterior.network import (
    FunctionalNetwork,
    attributes_kept,
    buffers_of,
    evaluation_mode,
    network_of,
    refuse_merged,
    tensors_of,
)
from learned_samplers.posterior.outputs import ENOUGH, Filled, OutputFormat
from learned_samplers.posterior.tensor_files import Tensors

log = logging.getLogger(__name__)

#: Examples on which a network is tried before its first predictions.
FEW = ENOUGH

#: Bytes of a loader's inputs, and of sums, that are held at once so that more samples than a chunk are read less often;
#: one batch may take more.
HELD = 2**25

#: How torch's warning begins that an operation has no batching rule for vmap; it ends in "please file us an issue".
NO_BATCHING_RULE = "There is a performance drop because we have not yet implemented the batching rule"

#: Runs the network on a batch with these weights of a sample in the place of its own.
Call = Callable[[Tensors, Batch], Any]


def vmap_is_faster(model: nn.Module) -> bool:
    """Whether samples are stacked for vmap when ``vectorize`` is None."""
    # vmap turns convolutions into grouped ones, which took 1.5 to 5 times as long as a loop on a CPU.
    convolutions = any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules())
    return not (convolutions and next(model.parameters()).device.type == "cpu")


class Piece(NamedTuple):
    """Predictions (k, n, ...) of a few samples for one batch, and which of the samples and of the examples they are."""

    samples: slice
    rows: slice
    values: Tensor


#: Batches that are run together under each chunk of samples, and which of the examples each is.
Group = list[tuple[slice, Batch]]


class Runner:
    """Runs a model under several sets of weights: as one with vmap, or one after the other where vmap cannot.

    What is found out about the model is remembered: whether vmap can run it, and what its first batch told.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.vmap_fails = False
        self._second = second_input(network_of(model))
        self._uses_weights = False
        self._gives_logits: set[str] = set()

    def batches(self, x: Inputs, batch_size: int, targets: bool | None) -> Batches:
        """The batches of ``x`` in the model's dtype."""
        dtype = next(self.model.parameters()).dtype
        second, self._second = self._second, "" if targets is None and isinstance(x, DataLoader) else self._second
        return Batches(x, batch_size, dtype, targets=targets, second=second)  # said once

    def stacked(
        self, forward: Callable[[Tensors, Batch], Tensor], states: Tensors, batch: Batch, vectorize: bool | None
    ) -> Tensor:
        """The predictions of several samples, whose tensors are stacked, for one batch."""

        def sample(k: int) -> Tensor:
            return forward({name: tensor[k] for name, tensor in states.items()}, batch)

        def one_by_one() -> Tensor:
            count = len(next(iter(states.values())))
            found = Filled(count)
            for k in range(count):
                found[(slice(k, k + 1),)] = sample(k)[None]
            return found.whole()

        wanted = vmap_is_faster(self.model) and not self.vmap_fails if vectorize is None else vectorize
        if not wanted:
            return one_by_one()
        try:
            # An operation without a batching rule runs in a loop of torch's own, which asks users to report it. Here
            # it is an error, and the loop below is taken; where vmap is required nothing is said.
            with warnings.catch_warnings():
                warnings.filterwarnings("error" if vectorize is None else "ignore", NO_BATCHING_RULE)
                return vmap(lambda state: forward(state, batch))(states)
        except Exception as error:
            # Whose fault is it? If the network runs plainly on this batch then it is vmap that cannot run it.
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

    def try_out(
        self,
        call: Call,
        sample: Callable[[int], Tensors],
        indices: Sequence[int],
        fixed: Tensors,
        batch: Batch,
        transform: Callable[[Any], Tensor],
        form: OutputFormat,
    ) -> None:
        """Once, on few examples: ValueError if the network takes no sampled weights, or does not give logits.

        ``sample`` goes from an index to a sample, on the network's device and in its dtypes; the others are as for
        :func:`require_weights_used`.
        """
        unknown = form.can_recognise(batch.length) and form.output not in self._gives_logits
        # Of the network's own weights both ways give the same: nothing to see yet, and the prediction is right.
        ends = (sample(index) for index in dict.fromkeys((indices[0], indices[-1])))
        other = None if self._uses_weights else next((s for s in ends if not _is_present(self.model, s)), None)
        if other is None and not unknown:
            return
        state = other if other is not None else sample(indices[0])
        for part in (batch.first(FEW), batch):
            try:
                raw = call(state, part)
                transform(raw)
            except Exception:  # there may be networks that need the whole batch; the prediction raises any other error
                continue
            if unknown:
                form.refuse_probabilities(raw)
                self._gives_logits.add(str(form.output))
            if other is not None:
                require_weights_used(self.model, call, other, fixed, part, transform)
                self._uses_weights = True
            return


class Run:
    """A model under some samples, on the batches of one input.

    Args:
        runner: of the model.
        batches: the inputs.
        read: from an index to a sample.
        indices: the samples.
        fixed: the tensors that all samples share.
        transform: from the network's output to the prediction.
        form: what that output is.
        sample_chunk: samples run at once.
        vectorize: whether by vmap; None chooses.

    Attributes:
        count: the number of samples.
        expected: the number of examples, as far as the input says it.
        chunks: the positions of the samples that are stacked and run at once.
        sums: bytes that the caller holds for each example of a group.
    """

    sums: float = 0

    def __init__(
        self,
        runner: Runner,
        batches: Batches,
        read: Callable[[int], Tensors],
        indices: Sequence[int],
        fixed: Mapping[str, Tensor],
        transform: Callable[[Any], Tensor],
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
        self._network = FunctionalNetwork(runner.model)
        self._device = next(runner.model.parameters()).device
        self._dtypes = {name: tensor.dtype for name, tensor in tensors_of(runner.model).items()}
        self._buffers = buffers_of(runner.model)
        self._static = self._placed({**self._buffers, **fixed})
        self._only_chunk: Tensors | None = None
        self._is_tried = False

    def groups(self) -> Iterator[Group]:
        """Yield the batches: as many together as `HELD` allows where samples are read again for each group, else one.

        Nothing of this object is open while a loader is asked for its next batch.
        """
        group: Group = []
        held, start = 0.0, 0
        for batch in self._batches:
            own = sum(tensor.nbytes for tensor in batch.tensors) if self._batches.read else 0
            size = own + batch.length * self.sums
            group.append((slice(start, start + batch.length), batch))
            held, start = held + size, start + batch.length
            del batch  # the next one of a loader is read before this name is bound again
            if held + size > HELD or (size and len(self.chunks) == 1):
                yield group
                group, held = [], 0.0
        if group:
            yield group

    def all_pieces(self) -> Generator[Piece, None, None]:
        """Yield the predictions for all batches, group by group."""
        for group in self.groups():
            with closing(self.pieces(group)) as pieces:
                yield from pieces
            group.clear()

    def pieces(self, group: Group) -> Generator[Piece, None, None]:
        """Yield predictions for a group of batches, chunk of samples by chunk of samples and batch by batch.

        A chunk is read and stacked once, and then run over all of these batches. What is held is one piece.
        """
        with evaluation_mode(self._runner.model), torch.no_grad():
            if not self._is_tried:
                self._runner.try_out(
                    self._call,
                    lambda index: self._placed(self._read(index)),
                    self._indices,
                    self._static,
                    group[0][1].to(self._device),
                    self._transform,
                    self._form,
                )
                self._is_tried = True
            for samples in self.chunks:
                states = self._states(samples)
                for rows, batch in group:
                    yield Piece(samples, rows, self._predicted(states, batch))

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
        return self._network(copied, batch.args, batch.kwargs)

    def _predicted(self, states: Tensors, batch: Batch) -> Tensor:
        try:
            found = self._runner.stacked(
                lambda state, batch: self._transform(self._call(state, batch)),
                states,
                batch.to(self._device),
                self._vectorize,
            )
        except (RuntimeError, IndexError) as error:
            first = batch.tensors[0]
            shape, kind = tuple(first.shape[1:]), str(first.dtype).removeprefix("torch.")
            error.add_note(f"(x was read as {batch.length} examples of shape {shape} and dtype {kind}; {ADVICE})")
            raise
        if found.ndim < 2 or found.shape[1] != batch.length:
            raise ValueError(
                f"the network and output= turned {batch.length} examples into a tensor of shape "
                f"{tuple(found.shape[1:])}; its first axis must run over the examples ({ADVICE})"
            )
        return found.to(batch.tensors[0].device)


def _is_present(model: nn.Module, state: Mapping[str, Tensor]) -> bool:
    """Whether these are the model's own weights."""
    tensors = tensors_of(model)
    return all(torch.equal(tensors[name], value) for name, value in state.items())


def require_weights_used(
    model: nn.Module, call: Call, state: Tensors, fixed: Tensors, batch: Batch, transform: Callable[[Any], Tensor]
) -> None:
    """Raise ValueError where the network with a sample's weights copied into it predicts something else than ``call``.

    Weights that its forward finds in a list, a closure or under another name are replaced by no ``functional_call``,
    and every sample would predict with the network's own. The network is afterwards what it was, to the bit. Nothing
    is said where the predictions are no real numbers, or are random in a way that torch's seed does not govern.

    Args:
        call: runs the network with the sample's tensors in place of its own, without touching these.
        state: the sample, other weights than the network's, on its device and in its dtypes.
        fixed: the tensors that all samples share.
        batch: the examples.
        transform: from the network's output to the prediction.
    """
    network = network_of(model)
    device = next(network.parameters()).device

    def predicted(values: Tensors) -> Tensor:
        with _same_random_numbers(device):
            return transform(call(values, batch))

    first = predicted(state)
    try:
        with attributes_kept(network), _copied(network, {**fixed, **state}), _same_random_numbers(device):
            second = transform(network(*batch.args, **batch.kwargs))
    except Exception:  # weights that cannot be written to, say
        return
    if first.shape != second.shape or not first.is_floating_point():
        return
    limit = _rounding(network, device)
    apart = _distance(first, second)
    if apart <= limit or _distance(first, predicted(state)) > limit:
        return
    own = {name: tensor.detach() for name, tensor in tensors_of(network).items()}
    changed = [name for name, value in state.items() if not torch.equal(own[name], value)]
    missed = (name for name in changed if torch.equal(predicted({**state, name: own[name]}), first))
    name = next(missed, changed[0])
    raise ValueError(
        f"forward of {type(network).__name__} does not read all sampled weights, {name!r} perhaps, from its modules, "
        "but from a list, a closure or a replaced forward, where predict cannot put those of a sample: with a sample's "
        f"weights copied into the network its output differs by {apart:.2g} of its size. Let forward look them up at "
        "each call, as in self.layer.weight. The samples themselves are sound"
    )


@contextmanager
def _same_random_numbers(device: torch.device) -> Iterator[None]:
    """Within it torch's random numbers go on from where they are now, and after it they go on from there again."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


@contextmanager
def _copied(network: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Within it the network's tensors hold these values, and afterwards their own, its buffers whatever happens."""
    buffers = buffers_of(network)
    kept: list[tuple[Tensor, Tensor]] = []
    try:
        for name, tensor in tensors_of(network).items():
            value = values.get(name, tensor)
            if name in buffers or not torch.equal(tensor, value):
                # Through .data, which raises no version: the gradient of a loss of before can still be taken.
                kept.append((tensor.data, tensor.detach().clone()))
                tensor.data.copy_(value)
        yield
    finally:
        for tensor, own in kept:
            tensor.copy_(own)


def _rounding(network: nn.Module, device: torch.device) -> float:
    """How far apart two predictions may be by rounding, relative to their size."""
    dtypes = {parameter.dtype for parameter in network.parameters() if parameter.is_floating_point()}
    largest = max((torch.finfo(dtype).eps for dtype in dtypes), default=torch.finfo(torch.float32).eps)
    if device.type != "cpu" and largest < 2**-13:
        # Convolutions of single precision round to 10 bits there, and another kernel may be chosen.
        largest = 2**-13 if torch.float32 in dtypes else largest
    return float(largest**0.5)


def _distance(first: Tensor, second: Tensor) -> float:
    """The largest difference where both are finite, relative to the largest value."""
    finite = first.isfinite() & second.isfinite()
    if not bool(finite.any()):
        return 0.0
    first, second = first[finite].double(), second[finite].double()
    return float((first - second).abs().max() / second.abs().max().clamp_min(torch.finfo(torch.float64).tiny))
