"""The records of a collection of samples, and the store that keeps them in memory; ``on_disk.py`` has the one on disk.

Stores change in one move: ``commit`` either does all of its work or leaves the store as it was.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.posterior.tensor_files import Tensors, common_unsampled, fingerprint

#: Steps, cycles and numbers beyond this are not counts of anything that has run.
LARGEST = 2**53


@dataclass(frozen=True)
class Entry:
    """A kept state: the sampler's step and cycle, its number (from 1) among the states that were due, its chain.

    ``temperature`` is the largest of the sampler's groups when the state was kept, None where that is not known: of an
    optimizer without one, of states that came without a sampler, and of collections of before it was recorded.
    ``kinetic`` is the kinetic temperature of all momenta then, likewise.
    """

    step: int
    cycle: int
    number: int
    chain: int = 0
    temperature: float | None = None
    kinetic: float | None = None


@dataclass(frozen=True)
class Progress:
    """Counters of a running collector.

    last_step: the last step seen; phase_start: the last step that was not worth keeping; candidates: the number of
    states due so far; stride: every stride-th of those is kept.
    """

    last_step: int = 0
    phase_start: int = 0
    candidates: int = 0
    stride: int = 1

    def why_empty(self, burn_in: int, thinning: int) -> str:
        """Explain, for an error, why nothing has been kept so far."""
        if not self.last_step:
            return "the sampler has not made a step since this was made"
        if self.phase_start == self.last_step:
            return (
                f"after {self.last_step} steps the sampler is not sampling (is_sampling is False while it adapts or "
                "explores), so no state was kept"
            )
        if self.last_step <= burn_in:
            return f"the sampler has made {self.last_step} steps, and none is kept before burn_in={burn_in}"
        since = max(burn_in, self.phase_start)
        made = self.last_step - since
        return f"{made} steps were made since step {since}, and thinning={thinning} keeps the last of so many"


def validate_counts(source: str, *records: Entry | Progress) -> None:
    """Raise ValueError unless all numbers of these records are counts, temperatures are none below 0, and no step
    occurs twice in a chain."""
    seen = set()
    for record in records:
        for name, value in vars(record).items():
            if name in ("temperature", "kinetic"):
                if value is not None:
                    validation.non_negative(f"{source}: {name}", value)
            elif isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
                raise ValueError(f"{source}: {name}={value!r} is not a count")
        if isinstance(record, Entry):
            if (record.chain, record.step) in seen:
                raise ValueError(f"{source}: step {record.step} occurs twice")
            seen.add((record.chain, record.step))
        elif record.stride < 1:
            raise ValueError(f"{source}: stride={record.stride} is not a count")


class Store(Protocol):
    """The source that a collection reads its samples from.

    ``fixed`` holds what is not sampled (None before the first sample), ``frozen`` the fingerprints of what is neither
    sampled nor stored and has to come with the model.
    """

    entries: list[Entry]
    progress: Progress
    fixed: Tensors | None
    frozen: dict[str, str]

    def read(self, index: int) -> Tensors:
        """The sampled tensors of one entry."""


class MemoryStore:
    """Samples as tensors in memory."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.progress = Progress()
        self.fixed: Tensors | None = None
        self.frozen: dict[str, str] = {}
        self._samples: dict[Entry, Tensors] = {}

    def read(self, index: int) -> Tensors:
        return self._samples[self.entries[index]]

    def set_fixed(self, fixed: Tensors, frozen: Mapping[str, str] | None = None) -> None:
        self.fixed, self.frozen = fixed, dict(frozen or {})

    def commit(
        self, entries: Sequence[Entry], added: Mapping[Entry, Tensors], progress: Progress, *, delete: bool = True
    ) -> None:
        """Make ``entries`` the samples held; ``added`` has the tensors of the new ones.

        ``delete`` has a meaning on disk only: whether the files of the samples that are no longer held go too.
        """
        samples = {**self._samples, **added}
        self._samples = {entry: samples[entry] for entry in entries}
        self.entries, self.progress = list(entries), progress

    def require(self, entries: Sequence[Entry]) -> None:
        """Do nothing: entries come with their tensors."""

    def set_settings(self, settings: Mapping[str, Any]) -> None:
        """Do nothing: settings are kept on disk only."""

    def clear(self) -> None:
        """Drop all samples."""
        self._samples, self.entries, self.progress = {}, [], Progress()
        self.fixed, self.frozen = None, {}

    def close(self) -> None:
        """Do nothing: no file is held open."""


class StoreView:
    """A view of samples of other stores, as these are now.

    A store on disk whose ``max_samples`` thins it later loses files that are read here.

    Args:
        chosen: of each sample its store, its position there, and the number of its chain here.
        fixed, frozen: as in `Store`.
    """

    def __init__(
        self, chosen: Sequence[tuple[Store, int, int]], fixed: Tensors | None, frozen: Mapping[str, str]
    ) -> None:
        copies = {id(store): copy.copy(store) for store, _, _ in chosen}
        self._places = [(copies[id(store)], index) for store, index, _ in chosen]
        self.entries = [replace(store.entries[index], chain=chain) for store, index, chain in chosen]
        self.progress, self.fixed, self.frozen = Progress(), fixed, dict(frozen)

    def read(self, index: int) -> Tensors:
        store, position = self._places[index]
        return store.read(position)


def merged_view(stores: Sequence[tuple[str, Store]]) -> StoreView:
    """Return the samples of several stores by name, one after the other, whose chains get new numbers."""
    chosen: list[tuple[Store, int, int]] = []
    numbers: dict[tuple[int, int], int] = {}
    for position, (_, store) in enumerate(stores):
        for index, entry in enumerate(store.entries):
            chosen.append((store, index, numbers.setdefault((position, entry.chain), len(numbers))))
    return StoreView(chosen, *common_unsampled([(name, store.fixed or {}, store.frozen) for name, store in stores]))


def warn_of_copies(store: Store) -> None:
    """Warn of chains that begin with the same sample: between copies every comparison of chains looks perfect."""
    first: dict[tuple[str, ...], int] = {}
    seen: set[int] = set()
    for index, entry in enumerate(store.entries):
        if entry.chain in seen:
            continue
        seen.add(entry.chain)
        sample = store.read(index)
        copied_chain = first.setdefault(tuple(fingerprint(sample[name]) for name in sorted(sample)), entry.chain)
        if copied_chain != entry.chain:
            warnings.warn(
                f"chains {copied_chain} and {entry.chain} begin with the same sample: a chain and its copy, or chains "
                "with the same seed, agree whatever they do, and split_rhat says nothing of them",
                stacklevel=3,
            )


def compare_settings(ours: Mapping[str, Any], theirs: Mapping[str, Any], source: str) -> None:
    """Raise ValueError naming the first setting in which a stored collection differs from this one."""
    for name, value in ours.items():
        if name == "origin":  # tells where samples come from, and hinders nobody from going on
            continue
        if name not in theirs or theirs[name] != value:
            stored = theirs.get(name, "nothing")
            if isinstance(value, dict) and isinstance(stored, dict):
                key = next(key for key in {**value, **stored} if value.get(key) != stored.get(key))
                if name == "shapes":
                    raise ValueError(_other_shape(key, value.get(key), stored.get(key), source))
                name, value, stored = f"{name}[{key!r}]", value.get(key), stored.get(key)
            raise ValueError(f"{name}={value!r} differs from {stored!r} in {source}")


def _other_shape(name: str, our_shape: list[int] | None, their_shape: list[int] | None, source: str) -> str:
    """Describe, for an error, how the tensors that are sampled under a name differ."""
    if our_shape is None or their_shape is None:
        return f"{name!r} is sampled {'here but not' if their_shape is None else 'but not here:'} in {source}"
    return f"{name!r} has shape {tuple(our_shape)} here and {tuple(their_shape)} in {source}"


def shapes_to_go_on(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], parameters: Mapping[str, Tensor], source: str
) -> dict[str, Any]:
    """Return the shapes of what a stored collection samples, if this network can go on with it.

    A layer that is sampled there and frozen here is among them: it may yet be unfrozen.

    Args:
        ours: the shapes of what is sampled here.
        theirs: the shapes of what is sampled in ``source``.
        parameters: those of the network.

    Raises:
        ValueError: another network, or what is sampled here has no values in the earlier samples.
    """
    for name, shape in theirs.items():
        model_shape = list(parameters[name].shape) if name in parameters else None
        if model_shape != shape:
            raise ValueError(_other_shape(name, model_shape, shape, source))
    for name in ours:
        if name not in theirs:
            raise ValueError(
                f"{name!r} is sampled here but not in {source}, whose samples have no values of it: freeze it as it "
                "was (requires_grad_(False)) or leave it out of the sampler, or begin a new collection"
            )
    return dict(theirs)
