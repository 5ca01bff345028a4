"""The saved state of a collector: read, and checked before anything changes."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from learned_samplers.posterior.snapshots import on_device
from learned_samplers.posterior.store import Entry, Progress, compare_settings, validate_counts
from learned_samplers.posterior.tensor_files import Tensors, require_finite


@dataclass(frozen=True)
class SavedState:
    """The content of `PosteriorSamples.state_dict`.

    shapes: of what is sampled; frozen_since: names that were frozen when it was saved; progress, entries: as in
    `Store`; samples: their tensors, None of a folder; fixed, frozen: as in `Store`.
    """

    shapes: dict[str, Any]
    frozen_since: set[str]
    progress: Progress
    entries: list[Entry]
    samples: list[Tensors] | None
    fixed: Tensors | None
    frozen: dict[str, str]

    @staticmethod
    def of(state: Mapping[str, Any], settings: Mapping[str, Any], order: list[list[str]]) -> SavedState:
        """Read a state dict.

        Args:
            state: the state dict.
            settings: those of the collector that loads it.
            order: the names of its sampler's parameters, by group.

        Raises:
            ValueError: it is none, is of other settings, or beside a sampler with parameters in another order.
        """
        try:
            compare_settings({**settings, "shapes": None}, {**state["settings"], "shapes": None}, "the state dict")
            samples, fixed = state["samples"], state["fixed"]
            saved = SavedState(
                dict(state["settings"]["shapes"]),
                set(state["frozen_since"]),
                Progress(**state["progress"]),
                [Entry(**entry) for entry in state["entries"]],
                None if samples is None else [dict(sample) for sample in samples],
                None if fixed is None else dict(fixed),
                dict(state["frozen"]),
            )
            _compare_order(order, [list(names) for names in state["order"]])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a state dict of PosteriorSamples ({type(error).__name__}: {error})") from error
        if saved.samples is not None and len(saved.samples) != len(saved.entries):
            raise ValueError(f"the state dict lists {len(saved.entries)} samples and holds {len(saved.samples)}")
        validate_counts("the state dict", saved.progress, *saved.entries)
        return saved

    def refuse_unknown(self, known: Container[str]) -> None:
        """Raise ValueError unless what is not sampled, and each sample, are tensors of the network, by its names."""
        for tensors in [self.fixed or {}, *(self.samples or [])]:
            for name, tensor in tensors.items():
                if name not in known or not isinstance(tensor, torch.Tensor):
                    raise ValueError(f"the state dict holds {name!r}, which is no tensor of the network")

    def validated_samples(self, shapes: Mapping[str, Any], device: torch.device) -> dict[Entry, Tensors]:
        """Return the samples on a device; ValueError unless they are finite and of these shapes."""
        if self.samples is None:
            return {}
        validated: dict[Entry, Tensors] = {}
        for entry, sample in zip(self.entries, self.samples, strict=True):
            sample_shapes = {name: list(sample[name].shape) for name in shapes if name in sample}
            compare_settings({"shapes": shapes}, {"shapes": sample_shapes}, f"the sample of step {entry.step}")
            require_finite(f"the sample of step {entry.step}", sample, shapes)
            validated[entry] = on_device(sample, device)
        return validated

    def refuse_frozen(self, sampled: Mapping[str, Any]) -> None:
        """Raise ValueError where what was sampled is not among what is sampled now, and was not frozen then."""
        frozen = [name for name in self.shapes if name not in sampled and name not in self.frozen_since]
        if frozen:
            raise ValueError(
                f"{frozen[0]!r} is sampled in the state dict and frozen here, or not with the sampler ({len(frozen)} "
                "such in all): unfreeze it by requires_grad_(True) and give it to the sampler before the run goes on "
                "(Lightning's BackboneFinetuning freezes its backbone again when a run is resumed)"
            )


def _compare_order(ours: list[list[str]], theirs: list[list[str]]) -> None:
    """Raise ValueError where groups of the same lengths hold the same names in another order."""
    if [*map(len, ours)] != [*map(len, theirs)]:  # a sampler refuses a state of other groups than its own
        return
    names, saved_names = ([name for group in groups for name in group] for groups in (ours, theirs))
    swapped = [pair for pair in zip(saved_names, names, strict=True) if pair[0] != pair[1]]
    if swapped and sorted(names) == sorted(saved_names):
        raise ValueError(
            f"the state dict was saved beside a sampler with its parameters in another order: {swapped[0][0]!r} where "
            f"this one has {swapped[0][1]!r}. A sampler's saved state numbers its parameters, so each would get the "
            "momentum of another: give the sampler its parameters in that order"
        )
