"""Running one network under many sets of weights, without touching the network's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils.data import DataLoader

from learned_samplers.posterior.inputs import ADVICE, Batch, Inputs, as_batches, second_input
from learned_samplers.posterior.names import Caller, buffers_of, network_of, tensors_of
from learned_samplers.posterior.outputs import Reading
from learned_samplers.posterior.storage import chunks
from learned_samplers.posterior.tensor_files import Tensors
from learned_samplers.posterior.trial import Trial

log = logging.getLogger(__name__)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The whole model in evaluation mode; afterwards every module is in the mode in which it was found.

    A module's own ``train`` is not called: some change weights in it, as LoRA layers do that merge their adapters.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


def refuse_merged(model: nn.Module, sampled: Callable[[], Iterable[str]]) -> None:
    """Raise ValueError if a layer has added a sampled adapter to the weight beside it, as ``eval`` does with loralib's.

    A sample's own adapter would then not be seen at all. ``sampled`` gives the names of the sampled weights.
    """
    merged = {name: each for name, each in model.named_modules() if getattr(each, "merged", False) is True}
    tensors = tensors_of(model) if merged else {}
    own = {id(tensors[name]) for name in sampled() if name in tensors} if merged else set()
    for name, module in merged.items():
        if any(id(p) in own for p in module.parameters()):
            raise ValueError(
                f"model: its layer {name!r} has merged its adapter into its weight (merged=True), which hides the "
                "samples of the adapter: unmerge it first, by model.train() or as its library does"
            )


def vmap_is_faster(model: nn.Module) -> bool:
    """Whether samples are stacked for vmap when ``vectorize`` is None."""
    # vmap turns convolutions into grouped ones, which took 1.5 to 5 times as long as a loop on a CPU.
    convolutions = any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules())
    return not (convolutions and next(model.parameters()).device.type == "cpu")


class Runner:
    """Runs a model under several sets of weights: as one with vmap, or one after the other where vmap cannot.

    Whether vmap can run the model is found out once and remembered.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.vmap_fails = False
        self._trial = Trial(model)
        self._second = second_input(network_of(model))

    def predictions(
        self,
        read: Callable[[int], Tensors],
        indices: Sequence[int],
        fixed: Mapping[str, Tensor],
        x: Inputs,
        transform: Callable[[Any], Tensor],
        reading: Reading,
        *,
        batch_size: int,
        sample_chunk: int,
        vectorize: bool | None,
        targets: bool | None,
    ) -> Generator[Tensor, None, None]:
        """Yield predictions of shape (k, N, ...) for consecutive chunks of at most ``sample_chunk`` samples.

        A chunk of samples is read and stacked once and then run over all batches of ``x``. ``transform`` goes from the
        network's output to the prediction, ``reading`` says what that output is.
        """
        model = self.model
        refuse_merged(model, lambda: read(indices[0]))
        reference = next(model.parameters())
        batches = as_batches(x, batch_size, reference.dtype, targets=targets, second=self._second)
        if targets is None and isinstance(x, DataLoader):
            self._second = ""  # said once
        home = next(iter((*batches[0].args, *batches[0].kwargs.values()))).device
        dtypes = {name: tensor.dtype for name, tensor in tensors_of(model).items()}
        buffers = buffers_of(model)
        static = {name: tensor.to(reference.device, dtypes[name]) for name, tensor in {**buffers, **fixed}.items()}
        call = Caller(model)

        def raw(state: Tensors, batch: Batch) -> Any:
            # A network may write into its buffers; what it writes must reach neither the samples nor the model.
            merged = {
                name: tensor.clone() if name in buffers else tensor for name, tensor in {**static, **state}.items()
            }
            return call(merged, batch.args, batch.kwargs)

        def forward(state: Tensors, batch: Batch) -> Tensor:
            return transform(raw(state, batch))

        def sample(index: int) -> Tensors:
            return {name: tensor.to(reference.device, dtypes[name]) for name, tensor in read(index).items()}

        with evaluation_mode(model), torch.no_grad():
            self._trial(raw, sample, indices, static, batches[0].to(reference.device), transform, reading)
            for part in chunks(len(indices), sample_chunk):
                states = [read(indices[position]) for position in part]
                stacked = {
                    name: torch.stack([state[name] for state in states]).to(reference.device, dtypes[name])
                    for name in states[0]
                }
                pieces = []
                for batch in batches:
                    try:
                        predictions = self._run(forward, stacked, batch.to(reference.device), vectorize)
                    except (RuntimeError, IndexError) as error:
                        shapes = [tuple(t.shape[1:]) for t in (*batch.args, *batch.kwargs.values())]
                        error.add_note(f"(x was read as {batch.length} examples of shape {shapes[0]}; {ADVICE})")
                        raise
                    if predictions.ndim < 2 or predictions.shape[1] != batch.length:
                        raise ValueError(
                            f"the network and output= turned {batch.length} examples into a tensor of shape "
                            f"{tuple(predictions.shape[1:])}; its first axis must run over the examples ({ADVICE})"
                        )
                    pieces.append(predictions.to(home))
                yield torch.cat(pieces, dim=1)

    def _run(
        self, forward: Callable[[Tensors, Batch], Tensor], stacked: Tensors, batch: Batch, vectorize: bool | None
    ) -> Tensor:
        if vectorize is None:
            vectorize = vmap_is_faster(self.model) and not self.vmap_fails
            required = False
        else:
            required = vectorize
        if not vectorize:
            return _one_by_one(forward, stacked, batch)
        try:
            return vmap(lambda state: forward(state, batch))(stacked)
        except Exception as error:
            # Whose fault is it? If the network runs plainly on this batch then it is vmap that cannot run it.
            if not required:
                predictions = _one_by_one(forward, stacked, batch)
                self.vmap_fails = True
                log.debug("vmap cannot run %s (%s): one sample after the other", type(self.model).__name__, error)
                return predictions
            forward({name: tensor[0] for name, tensor in stacked.items()}, batch)
            raise RuntimeError(
                f"torch.func.vmap cannot run {type(self.model).__name__} ({type(error).__name__}: {error}); "
                "leave vectorize out, or pass vectorize=False, to run the samples one after the other"
            ) from error


def _one_by_one(forward: Callable[[Tensors, Batch], Tensor], stacked: Tensors, batch: Batch) -> Tensor:
    count = len(next(iter(stacked.values())))
    return torch.stack([forward({name: tensor[k] for name, tensor in stacked.items()}, batch) for k in range(count)])
