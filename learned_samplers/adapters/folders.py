"""Folders of ``peft``: samples written as adapters that it reads without us, and sets of adapters read as samples."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from learned_samplers.adapters.model import active, saved_names
from learned_samplers.base.files import write_atomically
from learned_samplers.base.optional import require
from learned_samplers.posterior.network import parameters_of
from learned_samplers.posterior.store import Entry, validate_counts
from learned_samplers.posterior.tensor_files import Tensors, require_finite

INDEX = "adapters.json"
FORMAT, VERSION = "learned-samplers adapters", 1
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
#: Settings of a configuration that do not change what an adapter's weights mean.
FREE = ("base_model_name_or_path", "revision", "inference_mode", "peft_version", "lora_dropout", "auto_mapping")


def write_adapters(
    folder: Path, model: Any, samples: Sequence[Tensors], entries: Sequence[Entry], content: Mapping[str, Any]
) -> None:
    """Write samples as adapter folders with an index; the folder is there whole or not at all.

    Raises:
        ValueError: the folder exists and is not empty, or a sample holds what is not finite.
        OSError: it could not be written.
    """
    from safetensors.torch import save

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"folder={str(folder)!r} exists and is not an empty folder: choose another")
    names, present = saved_names(model), parameters_of(model)
    config = model.peft_config[active(model)]
    work = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    work.mkdir(parents=True)
    try:
        rows = []
        for k, (sample, entry) in enumerate(zip(samples, entries, strict=True)):
            require_finite(f"sample {k}", sample, sample)
            place = work / f"sample-{k:04d}"
            place.mkdir()
            values = {key: sample.get(name, present[name].detach()) for key, name in names.items()}
            data = save({key: value.cpu().contiguous().clone() for key, value in values.items()}, {"format": "pt"})
            write_atomically(place / WEIGHTS, data)
            config.save_pretrained(str(place))
            rows.append({"folder": place.name, **asdict(entry), "checksum": _checksum(data)})
        index = {"format": FORMAT, "version": VERSION, **content, "adapters": rows}
        write_atomically(work / INDEX, json.dumps(index, indent=1).encode())
        os.replace(work, folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def read_index(folder: Path) -> tuple[list[Path], list[Entry], dict[str, Any]]:
    """Return the adapter folders of a directory, their records, and what else its index holds.

    Without an index they are all folders in it that hold an adapter, by name.

    Raises:
        FileNotFoundError: no such directory, or no adapter in it.
        ValueError: a broken index, or a file that is missing or not the one that was written.
    """
    path = folder / INDEX
    if not path.is_file():
        places = sorted(place.parent for place in folder.glob(f"*/{CONFIG}"))
        if not places:
            raise FileNotFoundError(f"no adapters in {folder}: neither {INDEX} nor folders with {CONFIG}")
        return places, [Entry(k, 0, k) for k in range(1, len(places) + 1)], {}
    try:
        content = json.loads(path.read_bytes())
        if content.pop("format") != FORMAT or content.pop("version") != VERSION:
            raise ValueError(f"it is not an index of {FORMAT}, version {VERSION}")
        rows = content.pop("adapters")
        entries = [Entry(*(row[name] for name in ("step", "cycle", "number", "chain"))) for row in rows]
        validate_counts(str(path), *entries)
        places, sums = [folder / Path(row["folder"]).name for row in rows], [row["checksum"] for row in rows]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: broken index ({type(error).__name__}: {error})") from error
    for place, checksum in zip(places, sums, strict=True):
        file = place / WEIGHTS
        if not file.is_file() or _checksum(file.read_bytes()) != checksum:
            raise ValueError(f"{file}: missing, or not the file that {INDEX} names")
    return places, entries, content


def common_config(places: Sequence[Path]) -> Any:
    """Return the configuration that all adapter folders share; ValueError, by folder and setting, if they differ."""
    peft = require("peft", "adapters")
    for place in places:  # or peft would look for it on the hub
        if not (place / CONFIG).is_file():
            raise FileNotFoundError(f"{place / CONFIG}: missing")
    configs = [peft.PeftConfig.from_pretrained(str(place)) for place in places]
    for place, config in zip(places, configs, strict=True):
        refuse_other_config(config, configs[0], str(place), str(places[0]))
        bases = {c.base_model_name_or_path for c in (config, configs[0])} - {None, ""}
        if len(bases) > 1:
            raise ValueError(f"{place} and {places[0]} adapt different bases: {sorted(bases)}")
    return configs[0]


def refuse_other_config(config: Any, reference: Any, source: str, origin: str) -> None:
    """Raise ValueError if two configurations differ in what the weights mean."""
    ours, theirs = _settings(config), _settings(reference)
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            raise ValueError(
                f"{source}: {name}={ours.get(name)!r}, but {theirs.get(name)!r} in {origin}: the adapters of a "
                "collection have one configuration"
            )


def _settings(config: Any) -> dict[str, Any]:
    settings = {name: value for name, value in config.to_dict().items() if name not in FREE}
    plain = {name: sorted(value) if isinstance(value, set | list) else value for name, value in settings.items()}
    return {name: value for name, value in plain.items() if value not in (None, [], {}, False)}


def read_adapter(place: Path, names: Mapping[str, str], shapes: Mapping[str, Sequence[int]]) -> Tensors:
    """Return the weights of one adapter folder by the model's names.

    Raises:
        FileNotFoundError: no ``adapter_model.safetensors``.
        ValueError: weights that are not those of the model's adapter, by name and shape, or are not finite.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    file = place / WEIGHTS
    if not file.is_file():
        raise FileNotFoundError(f"{file}: missing; a pickled adapter_model.bin is not read")
    try:
        tensors = load(file.read_bytes())
    except SafetensorError as error:
        raise ValueError(f"{file}: truncated or not a safetensors file ({error})") from error
    for key in (*names, *tensors):
        stored: Tensor | None = tensors.get(key)
        expected = list(shapes[names[key]]) if key in names else None
        if stored is None or list(stored.shape) != expected:
            there = "is missing" if stored is None else f"has shape {list(stored.shape)}"
            raise ValueError(f"{file}: {key!r} {there}, the model's adapter has {expected or 'no such weight'}")
    sample = {name: tensors[key] for key, name in names.items()}
    require_finite(file, sample, sample)
    return sample


@contextmanager
def attached(model: Any, places: Sequence[Path]) -> Iterator[Any]:
    """The model with an adapter like those in the folders; a base gets it, in place, until an error within."""
    peft = require("peft", "adapters")
    config = common_config(places)
    if isinstance(model, peft.PeftModel):
        refuse_other_config(model.peft_config[active(model)], config, "model", str(places[0]))
        yield model
        return
    had_adapter = hasattr(model, "peft_config")
    wrapped = peft.PeftModel.from_pretrained(model, str(places[0]))
    try:
        yield wrapped
    except BaseException:
        if not had_adapter:
            wrapped.unload()
            vars(model).pop("peft_config", None)
        raise
