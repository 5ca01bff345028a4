"""Collecting posterior samples of a network's weights while a sampler runs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer

from learned_samplers.base import validation
from learned_samplers.base.guards import broken_off
from learned_samplers.base.guards.replicas import writes
from learned_samplers.posterior.collection import SampleCollection
from learned_samplers.posterior.compiled import HookedSteps
from learned_samplers.posterior.network import parameters_of, refuse_scripted, tensors_of
from learned_samplers.posterior.normalisation import validate_policy
from learned_samplers.posterior.on_disk import FolderStore, RecordsStore
from learned_samplers.posterior.resume import SavedState
from learned_samplers.posterior.snapshots import (
    Snapshots,
    on_device,
    sampled_parameters,
    unwrapped,
    validate_device,
    validate_dtype,
)
from learned_samplers.posterior.store import (
    Entry,
    MemoryStore,
    Progress,
    shapes_to_go_on,
)
from learned_samplers.posterior.tensor_files import Tensors
from learned_samplers.posterior.verdict import Origin, kinetic_of, temperature_of
from learned_samplers.posterior.watch import Watch


class PosteriorSamples(SampleCollection, HookedSteps):
    r"""Collects the weights that a sampler visits, and predicts with their average.

    Attaches itself to the sampler's ``step``::

        sampler = SGHMC(model.parameters(), lr=0.1, num_data=len(train_set))
        posterior = PosteriorSamples(model, sampler, burn_in=1000, thinning=100)  # and train
        probabilities = posterior.predict(test_inputs)

    **Which states are kept.** After ``burn_in`` steps every ``thinning``-th state, while the sampler is sampling. A
    state is due at step t if t > ``burn_in``, ``sampler.is_sampling`` (true for samplers without it), and (t − t₀) mod
    ``thinning`` = 0. Here t₀ is ``burn_in``, or the last step before t at which the sampler was not sampling if that
    came later. So a cyclical sampler's steps are counted from the start of each sampling phase: every phase of n steps
    gives the same ⌊n / ``thinning``⌋ states, and one that gives none raises ValueError at its end. Steps are
    ``sampler.step_count``. For an optimizer without it, such as those of ``torch.optim``, whose trajectory is then
    averaged, they are counted from when this object was made. A sampler with ``sampled_params()`` (`IVON`) is asked for
    a fresh draw, which takes numbers from its random number generator.

    **Memory.** With ``max_samples`` = M the collection is thinned as it grows: when a state is due and M are held,
    every second one is dropped, and only every second one is kept from then on. So M/2 to M are held, evenly spaced.

    **On disk.** With ``path`` every sample goes to the file ``step-<step>.safetensors`` of that folder as it is
    collected, and a line of ``index.jsonl`` names it; each write is whole or absent, and has a checksum. A folder that
    exists is continued: load the state dict saved beside the sampler's, or call :meth:`restart` to begin again. Without
    either a sampler goes on if its ``step_count`` is beyond the last sample's, and any other optimizer is refused at
    its first step. One collector at a time writes to a folder, until :meth:`detach` or the end of the process.

    **Parameters.** Those in the sampler's groups that require a gradient are sampled. The first sample settles which
    these are: a layer that joins later is an error, and one that is frozen later gets one warning. The model's other
    parameters are stored once and must not change between samples. Names are those of the plain network, without what
    DDP, FSDP, Fabric or ``torch.compile`` add.

    **Buffers.** ``"refuse"``: no normalisation layer in training mode has running statistics, and buffers are constant:
    stored once, and a change between samples is an error. ``"snapshot"``: every sample holds a copy of all buffers; the
    running statistics are then those of the trajectory and lag behind the weights. ``"reestimate"``: every sample's
    running statistics are computed from data by :meth:`reestimate_buffers` before predicting. Layers in evaluation mode
    (a frozen backbone) keep theirs, which are stored once; a layer's mode must be the same at all samples.

    Args:
        model: the network whose parameters the sampler moves.
        sampler: any ``torch.optim.Optimizer`` over parameters of ``model``; one that Accelerate or Lightning has
            wrapped is unwrapped.
        burn_in: steps before the first state that may be kept, ≥ 0.
        thinning: steps between two states that are due, ≥ 1.
        max_samples: bound on the number of samples held, ≥ 1; None for no bound.
        dtype: floating-point dtype in which sampled parameters are stored, such as ``torch.bfloat16``; None for each
            one's own, which buffers have always. A weight beyond its largest number is an error.
        device: where samples are stored (or read to, with ``path``).
        path: folder to stream to; None keeps the samples in memory. Of several processes the first one writes.
        buffers: see above.
        store_frozen: False leaves parameters with ``requires_grad=False`` (a base model under LoRA, a frozen backbone)
            out of what is stored.

    Raises:
        TypeError, ValueError: an argument that cannot be used, by name and value: among them a model with running
            statistics and no policy for them, and a parameter of the sampler that is not in the model.
        OSError: from ``sampler.step``, when a sample cannot be written (a full disk, say); the folder and the samples
            held are then as they were, and the run may go on.
        RuntimeError: another collector writes to ``path``; or, from ``sampler.step``, the sampler has gone back to a
            step already seen, or counts no steps where ``path`` holds a chain.
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
        store_frozen: bool = True,
    ) -> None:
        validation.module("model", model)
        refuse_scripted(model)  # here already, before a folder is opened
        sampler = unwrapped(sampler)
        if not isinstance(sampler, Optimizer):
            raise TypeError(f"sampler must be a torch.optim.Optimizer, got {type(sampler).__name__}")
        validation.integer("burn_in", burn_in, least=0)
        validation.integer("thinning", thinning)
        if max_samples is not None:
            validation.integer("max_samples", max_samples)
        validation.truth("store_frozen", store_frozen)
        self.burn_in, self.thinning, self.max_samples = burn_in, thinning, max_samples
        self.dtype = validate_dtype(dtype)
        self.device, self.path = validate_device(device), None if path is None else Path(path)
        self.buffers = validate_policy(model, buffers)
        sampled = sampled_parameters(model, sampler)
        settings: dict[str, Any] = {
            "burn_in": burn_in,
            "thinning": thinning,
            "max_samples": max_samples,
            "dtype": None if dtype is None else str(dtype),
            "buffers": buffers,
            "shapes": {name: list(parameter.shape) for name, parameter in sampled.items()},
            "origin": asdict(Origin.of(sampler, model)),
        }
        store: MemoryStore | FolderStore = MemoryStore()
        if path is not None:
            store = FolderStore(path, settings, self.device) if writes(sampler) else RecordsStore(path)
        if isinstance(store, FolderStore):
            try:
                settings["shapes"] = shapes_to_go_on(
                    settings["shapes"], store.settings["shapes"], parameters_of(model), str(path)
                )
            except BaseException:
                store.close()
                raise
        super().__init__(model, store, settings)
        self._store: MemoryStore | FolderStore = store
        self._snapshots = Snapshots(
            model, list(settings["shapes"]), buffers, store_frozen=store_frozen, dtype=dtype, device=self.device
        )
        self._progress = store.progress
        self._has_stepped = False
        self._watch = Watch()
        self._frozen_since: set[str] = set()
        self._sampler: Optimizer | None = sampler
        self._order()
        self._counts = not hasattr(sampler, "step_count")
        self._step_is_known = not (self._counts and self._progress.last_step)
        self._hook(sampler)

    # -- collecting -----------------------------------------------------------------------------------------------

    def _after_step(self, step: int, sampling: bool, cycle: int, tensors: Tensors | None = None) -> None:
        before = self._progress
        if not self._step_is_known and self.path is not None:
            place = f"({type(self._sampler).__name__}) counts no steps, so that its place in a chain is not known"
            raise RuntimeError(self._another_chain(place))
        step = before.last_step + 1 if self._counts else step
        if step <= before.last_step:
            raise RuntimeError(self._gone_back(step))
        self._has_stepped = True
        if not sampling:
            self._progress = replace(before, last_step=step, phase_start=step)
            length = before.last_step - before.phase_start
            if before.phase_start >= self.burn_in and 0 < length < self.thinning:
                raise ValueError(
                    f"thinning={self.thinning} is longer than the sampler's sampling phase of {length} steps, so "
                    "no state of a cycle would ever be kept"
                )
            return
        self._progress = replace(before, last_step=step)
        count = step - max(self.burn_in, before.phase_start)
        if count > 0 and count % self.thinning == 0:
            self._keep(step, cycle, tensors)

    def _gone_back(self, step: int) -> str:
        seen = self._progress.last_step
        if self.path is not None and not self._has_stepped:
            return self._another_chain(f"is at step {step}")
        return (
            f"the sampler is at step {step}, but step {seen} has been seen: when a sampler goes back to a checkpoint, "
            "load the state dict that PosteriorSamples had then as well"
        )

    def _another_chain(self, place: str) -> str:
        """Describe, for an error, that a sampler, at ``place``, does not go on where the folder's chain ends."""
        return (
            f"the sampler {place}, but {self.path} holds a chain up to step {self._progress.last_step}: to continue "
            "it, load the state dicts of the sampler and of PosteriorSamples from their checkpoint; to begin it again, "
            f"call restart() on this object, or delete {self.path}"
        )

    def _keep(self, step: int, cycle: int, tensors: Tensors | None) -> None:
        """Keep the present state, or a draw from the present Gaussian, if it survives ``max_samples``.

        On any error nothing but the step count has moved.
        """
        number, stride, entries = self._progress.candidates + 1, self._progress.stride, self._store.entries
        if number % stride == 0 and self.max_samples is not None and len(entries) >= self.max_samples:
            stride *= 2
            entries = [entry for entry in entries if entry.number % stride == 0]
        progress = replace(self._progress, candidates=number, stride=stride)
        added: dict[Entry, Tensors] = {}
        chain = int(getattr(self._sampler, "chain", 0))
        entry = Entry(step, cycle, number, chain, temperature_of(self._sampler), kinetic_of(self._sampler))
        before = self._store.fixed, self._store.frozen
        self._follow_sampler(step, may_join=tensors is None)
        try:
            if number % stride == 0:
                with torch.no_grad(), getattr(self._sampler, "sampled_params", nullcontext)():
                    added = {entry: self._snapshots.take(step, tensors)}
                if self._store.fixed is None:
                    self._store.set_fixed(*self._snapshots.first_unsampled())
                self._snapshots.validate_unsampled(self._store, step)
                entries = [*entries, entry]
            if added or stride != self._progress.stride:
                self._store.commit(entries, added, progress)
        except BaseException:
            if added and entry in self._store.entries:  # broken off when it was on the disk already
                self._progress = progress
            else:
                self._store.fixed, self._store.frozen = before
            raise
        self._progress = progress
        if added and self._sampler is not None:
            self._watch.kept(self._sampler, step, number)

    def _why_empty(self) -> str:
        why = self._progress.why_empty(self.burn_in, self.thinning)
        warmup = self._sampler.param_groups[0].get("warmup_steps") if self._sampler is not None else None
        total = getattr(self._sampler, "total_steps", None)
        if warmup and self._progress.phase_start == self._progress.last_step:
            why += f"; it warms up for {warmup} steps" + (f" of total_steps={total}" if total else "")
        return why

    def _follow_sampler(self, step: int, *, may_join: bool) -> None:
        """Before the first sample take what the sampler samples now; later refuse what joined, say what froze."""
        assert self._sampler is not None
        present = sampled_parameters(self.model, self._sampler)
        if present.keys() == set(self._snapshots.names):
            return
        if not self._store.entries and self._store.fixed is None and may_join:
            self._sample_these({name: list(parameter.shape) for name, parameter in present.items()})
            self._store.set_settings(self._settings)
            return
        joined = [name for name in present if name not in self._snapshots.names]
        if joined:
            since = f"at the first sample, of step {self.steps[0]}" if self.steps else "when PosteriorSamples was made"
            raise ValueError(
                f"{joined[0]!r} is sampled at step {step} but was not {since}: choose burn_in so that all layers "
                "are unfrozen and with the sampler before the first sample"
            )
        frozen = [name for name in self._snapshots.names if name not in present and name not in self._frozen_since]
        if frozen:
            self._frozen_since |= set(frozen)
            others = f" (and {len(frozen) - 1} more)" if frozen[1:] else ""
            warnings.warn(
                f"{frozen[0]!r}{others} was sampled before and is frozen at step {step}, or no longer with the "
                "sampler: its values are the same in every sample from here on. Unfreeze it by requires_grad_(True), "
                "or begin a new collection",
                stacklevel=2,
            )

    def _frozen_now(self) -> set[str]:
        """Return the names that earlier samples hold and the sampler no longer moves."""
        if self._sampler is None:
            return set(self._snapshots.names)
        moved = {id(p) for group in self._sampler.param_groups for p in group["params"] if p.requires_grad}
        parameters = parameters_of(self.model)
        return {name for name in self._snapshots.names if id(parameters[name]) not in moved}

    def _sample_these(self, shapes: dict[str, list[int]]) -> None:
        self._settings["shapes"] = shapes
        self._snapshots.names = list(shapes)
        self._remember_varying()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "PosteriorSamples is attached to its sampler and cannot be copied or pickled: posterior.save(path) writes "
            "its samples to a file; to go on collecting, copy model and sampler, make a new PosteriorSamples, and load "
            "the state_dict() of this one into it"
        )

    def detach(self) -> None:
        """Stop collecting, and let others write to the folder; what was collected stays usable. May be repeated."""
        self._order()
        self._handle.remove()
        self._store.close()
        self._sampler = None

    def restart(self) -> None:
        """Drop all samples and begin again at step 0, for a chain that died before its first checkpoint."""
        self._store.clear()
        self._begin_from(Progress())

    def _begin_from(self, progress: Progress) -> None:
        self._progress, self._reestimated, self._step_is_known = progress, {}, True
        self._snapshots.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.detach()

    # -- resuming -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on collecting, loadable with ``torch.load(weights_only=True)``.

        Holds the samples themselves, or with ``path`` only which files they are. Save it together with the sampler's.

        Raises:
            RuntimeError: a step of the sampler was broken off in the middle.
        """
        broken_off.refuse(self._sampler)
        return {
            "settings": dict(self._settings),
            "progress": asdict(self._progress),
            "entries": [asdict(entry) for entry in self._store.entries],
            "samples": None if self.path is not None else [self._store.read(k) for k in range(len(self))],
            "fixed": self._store.fixed,
            "frozen": dict(self._store.frozen),
            "frozen_since": sorted(self._frozen_since & self._frozen_now()),
            "order": self._order(),
        }

    def _order(self) -> list[list[str]]:
        """Return the names of the sampler's parameters, by group and in the order in which its saved state has them."""
        if self._sampler is not None:
            names = {id(p): name for name, p in parameters_of(self.model).items()}
            groups = [[id(p) for p in group["params"]] for group in self._sampler.param_groups]
            self._last_order = [[names[p] for p in group if p in names] for group in groups]
        return self._last_order

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the collection of :meth:`state_dict`; everything is checked before anything changes.

        With ``path``, files of samples later than that are left in the folder and replaced when their steps come
        again. If ``max_samples`` has thinned the folder since, it stays as thinned as it is; the run ends with the same
        samples.

        Raises:
            ValueError: the state is of a collection with other settings or another network, or beside a sampler with
                its parameters in another order (whose state would give each the momentum of another); it is
                incomplete, names a file that is missing, or holds weights that are not finite.
        """
        saved = SavedState.of(state, self._settings, self._order())
        begins = bool(saved.entries) or saved.fixed is not None
        shapes = self._shapes_of(saved) if begins else dict(self._settings["shapes"])
        on_disk = self.path is not None
        if (saved.samples is None) != on_disk:
            where = ("in memory", "on disk")
            raise ValueError(f"the state dict's samples are {where[not on_disk]}, this collection's {where[on_disk]}")
        entries, progress = saved.entries, saved.progress
        if on_disk:
            progress = replace(progress, stride=max(progress.stride, self._store.progress.stride))
            entries = [entry for entry in entries if entry.number % progress.stride == 0]
        saved.refuse_unknown(tensors_of(self.model))
        added = saved.validated_samples(shapes, self.device)
        self._store.require(entries)
        fixed = None if saved.fixed is None else on_device(saved.fixed, self.device)
        if fixed is not None:
            # First, because writing it can fail; alone it changes nothing that is read.
            self._store.set_fixed(fixed, saved.frozen)
        self._store.commit(entries, added, progress, delete=False)
        self._store.fixed, self._store.frozen = fixed, saved.frozen
        self._frozen_since = saved.frozen_since
        self._sample_these(shapes)
        self._begin_from(progress)

    def _shapes_of(self, saved: SavedState) -> dict[str, list[int]]:
        """Return the shapes of what a state dict's samples hold, if the chain can go on with them."""
        ours = dict(self._settings["shapes"])
        if self._sampler is not None:
            ours = {name: list(p.shape) for name, p in sampled_parameters(self.model, self._sampler).items()}
        shapes = shapes_to_go_on(ours, saved.shapes, parameters_of(self.model), "the state dict")
        saved.refuse_frozen(ours)
        return shapes
