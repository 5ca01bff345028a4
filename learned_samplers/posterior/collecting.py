"""Collecting posterior samples of a network's weights while a sampler runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from learned_samplers.base import validation
from learned_samplers.posterior.collection import SampleCollection
from learned_samplers.posterior.prediction import normalisation_buffers
from learned_samplers.posterior.storage import Entry, FolderStore, MemoryStore, Progress, Tensors, compare_settings

POLICIES = ("refuse", "snapshot", "reestimate")


class PosteriorSamples(SampleCollection):
    r"""Collects the weights that a sampler visits, and predicts with their average.

    Attaches itself to the sampler's ``step``; the training loop stays as it is::

        sampler = SGHMC(model.parameters(), lr=0.1, num_data=len(train_set))
        posterior = PosteriorSamples(model, sampler, burn_in=1000, thinning=100)
        ...  # train
        probabilities = posterior.predict(test_inputs)

    **Which states are kept.** A state is due at step t if t > ``burn_in``, ``sampler.is_sampling`` (true for samplers
    without it), and (t − t₀) mod ``thinning`` = 0. Here t₀ is ``burn_in``, or the last step before t at which the
    sampler was not sampling if that came later. So a cyclical sampler's steps are counted from the start of each
    sampling phase, and every phase of n steps gives ⌊n / ``thinning``⌋ states, in each cycle the same ones; a whole
    phase that gives none raises ValueError as it ends. Steps are ``sampler.step_count``, or, for optimizers without it
    (any of ``torch.optim``: its trajectory is averaged then), those seen since this object was made.

    **Memory.** With ``max_samples`` = M the collection is thinned as it grows: when a state is due and M are held,
    every second one is dropped and from then on only every second state that is due is kept. The kept ones are evenly
    spaced among those that were due (over the whole run, so over all cycles), and once M were due M/2 to M are held.

    **On disk.** With ``path`` every sample goes to the file ``step-<step>.safetensors`` of that folder as it is
    collected, and ``index.json`` lists them; each write is whole or absent. A folder that exists is continued, at its
    last sample; load the state dict saved beside the sampler's to continue exactly.

    **Parameters.** Those in the sampler's groups are sampled. The model's others (frozen ones) are stored once and must
    not change between samples; a tied parameter is one parameter.

    **Buffers.** ``"refuse"``: the model has no normalisation layer with running statistics, and its buffers, if any,
    are constant: stored once, and a change between samples is an error. ``"snapshot"``: every sample holds a copy of
    all buffers; the running statistics are then those of the trajectory and lag behind the weights. ``"reestimate"``:
    every sample's running statistics are computed from data by :meth:`reestimate_buffers` before predicting.

    Args:
        model: the network whose parameters the sampler moves.
        sampler: any ``torch.optim.Optimizer`` over parameters of ``model``.
        burn_in: steps before the first state that may be kept, ≥ 0.
        thinning: steps between two states that are due, ≥ 1.
        max_samples: bound on the number of samples held, ≥ 1; None for no bound.
        dtype: floating-point dtype of storage, such as ``torch.bfloat16``; None for each tensor's own.
        device: where samples are stored (or read to, with ``path``).
        path: folder to stream to; None keeps the samples in memory.
        buffers: see above.

    Raises:
        TypeError, ValueError: an argument that cannot be used, by name and value: among them a model with running
            statistics and no policy for them, and a parameter of the sampler that is not in the model.
        OSError: from ``sampler.step``, when a sample cannot be written (a full disk, say); the folder and the samples
            held are then as they were, and the run may go on.
        RuntimeError: from ``sampler.step``, when the sampler has gone back to a step already seen.
    """

    def __init__(
        self,
        model: nn.Module,
        sampler: Optimizer,
        burn_in: int = 0,
        thinning: int = 1,
        *,
        max_samples: int | None = None,
        dtype: torch.dtype | None = None,
        device: str | torch.device = "cpu",
        path: str | os.PathLike[str] | None = None,
        buffers: str = "refuse",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        if not isinstance(sampler, Optimizer):
            raise TypeError(f"sampler must be a torch.optim.Optimizer, got {type(sampler).__name__}")
        validation.whole("burn_in", burn_in, least=0)
        validation.whole("thinning", thinning)
        if max_samples is not None:
            validation.whole("max_samples", max_samples)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"dtype must be a floating-point torch.dtype or None, got {dtype!r}")
        self.burn_in, self.thinning, self.max_samples, self.dtype = burn_in, thinning, max_samples, dtype
        self.device = torch.device(device)
        self.buffers = _check_policy(model, buffers)
        sampled = _sampled_parameters(model, sampler)
        settings = {
            "burn_in": burn_in,
            "thinning": thinning,
            "max_samples": max_samples,
            "dtype": None if dtype is None else str(dtype),
            "buffers": buffers,
            "shapes": {name: list(parameter.shape) for name, parameter in sampled.items()},
        }
        store = MemoryStore() if path is None else FolderStore(path, settings, self.device)
        super().__init__(model, store, settings)
        self._progress = store.progress
        self._counts = not hasattr(sampler, "step_count")
        self._handle = sampler.register_step_post_hook(self._on_step)

    # -- collecting -----------------------------------------------------------------------------------------------

    def _on_step(self, sampler: Any, args: Any = None, kwargs: Any = None) -> None:
        before = self._progress
        step = before.last_step + 1 if self._counts else int(sampler.step_count)
        if step <= before.last_step:
            raise RuntimeError(
                f"the sampler is at step {step}, but step {before.last_step} has been seen: when a sampler goes back "
                "to a checkpoint, load the state dict that PosteriorSamples had then as well"
            )
        if not getattr(sampler, "is_sampling", True):
            self._progress = replace(before, last_step=step, phase_start=step)
            length = before.last_step - before.phase_start
            if before.phase_start >= self.burn_in and 0 < length < self.thinning:
                raise ValueError(
                    f"thinning={self.thinning} is longer than the sampler's sampling phase of {length} steps, so that "
                    "no state of a cycle would ever be kept"
                )
            return
        self._progress = replace(before, last_step=step)
        count = step - max(self.burn_in, before.phase_start)
        if count > 0 and count % self.thinning == 0:
            self._keep(step, int(getattr(sampler, "cycle", 0)))

    def _keep(self, step: int, cycle: int) -> None:
        """Keep the present state if it survives ``max_samples``; on any error nothing but the step count has moved."""
        number, stride, entries = self._progress.candidates + 1, self._progress.stride, self._store.entries
        if number % stride == 0 and self.max_samples is not None and len(entries) >= self.max_samples:
            stride *= 2
            entries = [entry for entry in entries if entry.number % stride == 0]
        progress = replace(self._progress, candidates=number, stride=stride)
        added: dict[int, Tensors] = {}
        fixed = self._store.fixed
        try:
            if number % stride == 0:
                added = {step: self._snapshot(step)}
                entries = [*entries, Entry(step, cycle, number)]
            if added or stride != self._progress.stride:
                self._store.commit(entries, added, progress)
        except BaseException:
            self._store.fixed = fixed
            raise
        self._progress = progress

    def _snapshot(self, step: int) -> Tensors:
        """Copies of what is sampled; checks that the rest of the model is what it was at the first sample."""
        tensors = dict((*self.model.named_parameters(), *self.model.named_buffers()))
        names = self.parameter_names
        if self.buffers == "snapshot":
            names = [*names, *(name for name, _ in self.model.named_buffers())]
        sample = {name: self._stored(tensors[name], self.dtype) for name in names}
        for name, tensor in sample.items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise ValueError(f"{name!r} is not finite at step {step} (stored as {tensor.dtype}): not collected")
        varying = set(names) | set(normalisation_buffers(self.model) if self.buffers == "reestimate" else ())
        rest = {name: tensor for name, tensor in tensors.items() if name not in varying}
        fixed = self._store.fixed
        if fixed is None:
            fixed = {name: self._stored(tensor, None) for name, tensor in rest.items()}
            self._store.set_fixed(fixed)
        for name, tensor in rest.items():
            if not torch.equal(fixed[name], tensor.detach().to(self.device)):
                remedy = "give it to the sampler or leave it alone"
                if not isinstance(tensor, nn.Parameter):
                    remedy = f"choose buffers='snapshot' instead of {self.buffers!r}"
                raise ValueError(f"{name!r} is not sampled but changed since the first sample (step {step}): {remedy}")
        return sample

    def _stored(self, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
        chosen = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return tensor.detach().to(self.device, chosen, copy=True)

    def detach(self) -> None:
        """Stop collecting; what was collected stays usable. Calling it again does nothing."""
        self._handle.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.detach()

    # -- resuming -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on collecting in another process, loadable with ``torch.load(weights_only=True)``.

        Holds the samples themselves, or with ``path`` only which files they are. Save it together with the sampler's.
        """
        count = len(self)
        samples = None if isinstance(self._store, FolderStore) else [self._store.read(k) for k in range(count)]
        return {
            "settings": dict(self._settings),
            "progress": asdict(self._progress),
            "entries": [asdict(entry) for entry in self._store.entries],
            "samples": samples,
            "fixed": self._store.fixed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back (or on) to where :meth:`state_dict` was called; all is checked before anything changes.

        With ``path``, files of samples later than that are left in the folder and replaced when their steps come
        again. If ``max_samples`` has thinned the folder since, it stays as thinned as it is; the run ends with the same
        samples.

        Raises:
            ValueError: the state is of a collection with other settings or another network, is incomplete, or names a
                file that is missing.
        """
        try:
            compare_settings(self._settings, state["settings"], "the state dict")
            progress = Progress(**state["progress"])
            entries = [Entry(**entry) for entry in state["entries"]]
            samples, fixed = state["samples"], state["fixed"]
            if samples is not None and len(samples) != len(entries):
                raise ValueError(f"the state dict lists {len(entries)} samples and holds {len(samples)}")
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a state dict of PosteriorSamples ({type(error).__name__}: {error})") from error
        in_folder = isinstance(self._store, FolderStore)
        if (samples is None) != in_folder:
            kinds = ("on disk", "in memory")
            raise ValueError(
                f"the state dict's samples are {kinds[not in_folder]}, this collection's {kinds[in_folder]}"
            )
        if in_folder:
            stride = max(progress.stride, self._store.progress.stride)
            progress = replace(progress, stride=stride)
            entries = [entry for entry in entries if entry.number % stride == 0]
        added = {} if samples is None else {entry.step: dict(s) for entry, s in zip(entries, samples, strict=True)}
        for step, sample in added.items():
            shapes = {name: list(sample[name].shape) for name in self.parameter_names if name in sample}
            compare_settings({"shapes": self._settings["shapes"]}, {"shapes": shapes}, f"the sample of step {step}")
            added[step] = {name: tensor.to(self.device) for name, tensor in sample.items()}
        if fixed is not None:
            fixed = {name: tensor.to(self.device) for name, tensor in fixed.items()}
            # First, because writing it can fail; alone it changes nothing that is read.
            self._store.set_fixed(fixed)
        self._store.commit(entries, added, progress, delete=False)
        self._store.fixed = fixed
        self._progress = progress
        self._reestimated = {}


def _check_policy(model: nn.Module, buffers: str) -> str:
    if buffers not in POLICIES:
        raise ValueError(f"buffers must be one of {POLICIES}, got {buffers!r}")
    statistics = normalisation_buffers(model)
    if statistics and buffers == "refuse":
        raise ValueError(
            f"the model has running statistics ({statistics[0]!r} and {len(statistics) - 1} more buffers) that belong "
            "to the weights they were computed with: choose buffers='snapshot' to keep them with each sample, or "
            "buffers='reestimate' to compute them from data before predicting; got buffers='refuse'"
        )
    if buffers == "reestimate" and not statistics:
        raise ValueError("buffers='reestimate', but the model has no normalisation layer with running statistics")
    return buffers


def _sampled_parameters(model: nn.Module, sampler: Optimizer) -> dict[str, nn.Parameter]:
    """The model's parameters that the sampler moves, in the model's order."""
    moved = {id(p): (g, k) for g, group in enumerate(sampler.param_groups) for k, p in enumerate(group["params"])}
    sampled = {name: parameter for name, parameter in model.named_parameters() if id(parameter) in moved}
    strangers = set(moved) - {id(parameter) for parameter in sampled.values()}
    if strangers:
        group, position = min(moved[stranger] for stranger in strangers)
        names = sampler.param_groups[group].get("param_names")
        label = f" ({names[position]!r})" if names else ""
        shape = tuple(sampler.param_groups[group]["params"][position].shape)
        raise ValueError(
            f"sampler: parameter {position} of group {group}{label}, shape {shape}, is not a parameter of model "
            f"({type(model).__name__}); {len(strangers)} such in all"
        )
    return sampled
