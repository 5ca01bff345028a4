"""Learned samplers' weights by the conventions of the Hugging Face hub: ``from_pretrained`` and its counterparts.

A folder, or a repository, of weights holds ``model.safetensors``, its card ``model.json``, and a page for people,
``README.md``. Imported when `LearnedSampler.from_pretrained` is called; ``huggingface_hub`` is needed for what is not
on this machine alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from learned_samplers.base.optional import require
from learned_samplers.learned import weights

try:
    from huggingface_hub import ModelHubMixin, hf_hub_download
except ModuleNotFoundError:

    class ModelHubMixin:  # type: ignore[no-redef]
        """The part of the mixin of that name that needs no hub."""

        def save_pretrained(self, save_directory: str | os.PathLike[str]) -> None:
            Path(save_directory).mkdir(parents=True, exist_ok=True)
            self._save_pretrained(Path(save_directory))

        @classmethod
        def from_pretrained(cls, name: str, **options: Any) -> Any:
            require("huggingface_hub", "hub")

        def push_to_hub(self, repo_id: str, **options: Any) -> Any:
            require("huggingface_hub", "hub")

        def _save_pretrained(self, save_directory: Path) -> None:
            raise NotImplementedError


class Weights(ModelHubMixin):
    """Weights of a learned sampler: a file and its card, which a sampler takes as ``network=``::

        weights = L2E.from_pretrained("owner/name")  # of the hub, or a shipped name, a folder, a file
        sampler = L2E(model.parameters(), num_data=N, network=weights)
        weights.save_pretrained("folder")
        weights.push_to_hub("owner/other")

    ``save_pretrained`` and ``push_to_hub`` are those of ``huggingface_hub.ModelHubMixin`` with all their options, and
    leave a ``README.md`` as it is if the folder has one. Without ``huggingface_hub`` names, folders and files do, and
    ``save_pretrained`` has no options.

    Args:
        path: of the weight file; its card lies beside it.

    Attributes:
        path: of the weight file.
        card: what the card says.

    Raises:
        FileNotFoundError, ValueError: as for `learned_samplers.learned.weights.load`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.network, self.card = weights.load(self.path)
        self._hub_mixin_config = None  # the card says it all: no config.json

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Weights({str(self.path)!r}, of {self.card['sampler']})"

    @classmethod
    def from_pretrained(cls, name: Any, **options: Any) -> Self:  # type: ignore[override]
        """Find weights by name, folder, file or repository; see `LearnedSampler.from_pretrained`."""
        if not isinstance(name, str | os.PathLike):
            raise TypeError(f"name must be a name, a path or a repository, got {name!r} of type {type(name).__name__}")
        if not _is_repository(name):
            return cls(weights.find(name))
        return super().from_pretrained(str(name), **options)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> Self:
        """Read the weights of a repository; ``options`` are the hub's."""
        card = Path(weights.IN_FOLDER).with_suffix(".json").name
        hf_hub_download(repo_id=model_id, filename=card, **options)
        return cls(hf_hub_download(repo_id=model_id, filename=weights.IN_FOLDER, **options))

    def _save_pretrained(self, save_directory: Path) -> None:
        weights.save(save_directory / weights.IN_FOLDER, self.network, self.card)
        page = save_directory / "README.md"
        if not page.exists():
            page.write_text(model_card(self.card), encoding="utf-8")


def _is_repository(name: str | os.PathLike[str]) -> bool:
    """Return whether a name is ``owner/name``, and no path of a weight file or of a file that exists."""
    if not isinstance(name, str) or name.endswith(".safetensors") or os.path.exists(name):
        return False
    owner, _, repository = name.partition("/")
    return bool(owner.strip(".") and repository) and "/" not in repository


def model_card(card: dict[str, Any]) -> str:
    """Return a card as a page for people, with the front matter that the hub reads."""
    sampler, law, meta = card["sampler"], card["law"], card["meta_training"]
    use = ", ".join(f"{name} {value:g}" for name, value in card["defaults"].items())
    licence = card["licence"].lower() if card["licence"] in ("MIT", "Apache-2.0", "BSD-3-Clause") else "other"
    measured = f"on Gaussians {law['verdict']}: {law['reason']}" if law else "not measured"
    return f"""---
library_name: learned-samplers
license: {licence}
tags:
- bayesian-deep-learning
- sgmcmc
- {sampler}
---

# {card["name"]}

Weights of `{sampler}`, a learned sampler of [learned-samplers](https://github.com/learned-samplers/learned-samplers):
a `torch.optim.Optimizer` whose steps draw weights of a network from around its posterior.

```python
from learned_samplers import {sampler}

weights = {sampler}.from_pretrained("...")  # this repository, or a folder with these files
sampler = {sampler}(model.parameters(), num_data=N, network=weights)
```

- **Learned**: {card["learned"]}
- **Chosen**: {card["chosen"]}
- **Recommended**: {use or "nothing; give lr"}
- **Invariant law**: {measured}
- **Trained by**: `{meta["command"]}` (commit {str(meta["commit"])[:10]})
- **Licence**: {card["licence"]}

`{Path(weights.IN_FOLDER).with_suffix(".json")}` has the features, the scales, the training curve and all measurements.
"""
