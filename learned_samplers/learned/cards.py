"""Weight cards: the sampler and the settings that a card belongs to, and a summary for people."""

from __future__ import annotations

import os
import textwrap
from typing import Any

from learned_samplers.learned import weights
from learned_samplers.learned.badge import badge_of
from learned_samplers.learned.sampler import REGISTRY, LearnedSampler
from learned_samplers.learned.settings import LearnedSettings

_WIDTH = 100


def registered(name: str) -> type[LearnedSampler]:
    """The learned sampler of that name.

    Raises:
        ValueError: there is none, or its module has not been imported.
    """
    if name not in REGISTRY:
        names = ", ".join(map(repr, REGISTRY))
        raise ValueError(f"sampler must be one of {names} or of an imported module of your own, got {name!r}")
    return REGISTRY[name]


def settings_from_card(card: dict[str, Any]) -> LearnedSettings:
    """The settings that the weights of a card were trained with.

    Raises:
        ValueError: the card is of no learned sampler, or has settings that its sampler has not.
    """
    return registered(card["sampler"]).settings_class.from_card(card)


def sampler_from_card(
    source: str | os.PathLike[str], params: Any, lr: float | None = None, num_data: float | None = None, **keywords: Any
) -> LearnedSampler:
    """Make the sampler that a weight file belongs to, with its settings and its recommended learning rate.

    Args:
        source: name of shipped weights, or path of a weight file with its card beside it.
        params, lr, num_data: of the sampler.
        keywords: further ones of that sampler.

    Raises:
        ValueError, FileNotFoundError, TypeError: the weights cannot be read or are of no learned sampler; and what the
            sampler raises.
    """
    path = weights.find(source)
    sampler = registered(weights.load_card(path)["sampler"])
    make: Any = sampler  # whose lr may be None: the card's
    return make(params, lr, num_data, network=path, **keywords)


class Card(dict[str, Any]):
    """A weight card: a dict that prints as `summary`."""

    def __str__(self) -> str:
        return summary(self)


def summary(card: dict[str, Any]) -> str:
    """The card in some lines: what is learned and chosen, sampler and network, use, law, training, scores, tables.

    Raises:
        ValueError: the card is of no learned sampler.
    """
    meta, layers, law = card["meta_training"], card["layers"], card["law"]
    form = f", form {card['form']!r}" if "form" in card else ""
    widths = " → ".join(str(width) for width in (layers[0][1], *(out for out, _ in layers)))
    count = sum(out * (into + 1) for out, into in layers)
    defaults = ", ".join(f"{name}={value:g}" for name, value in card["defaults"].items())
    metrics, tables = dict(card["metrics"]), card["metrics"].get("tables", {})
    metrics.pop("tables", None)
    rows: dict[str, str | list[str]] = {
        "learned": card["learned"],
        "chosen": card["chosen"],
        "sampler": f"{card['sampler']}{form}, network {widths} on the features {card.get('feature_set', '')!r}: "
        f"{count} weights",
        "use": f"{card['sampler']}(params, num_data=N, network={card['name']!r}); by default {defaults}",
        "law": "not measured" if law is None else f"{badge_in(card)}; on Gaussians {law['verdict']}: {law['reason']}",
        "trained": _training(meta),
        "command": [
            f"{meta.get('reproduce', meta['command'])} (at commit {str(meta['commit'])[:10]})",
            *_afterwards(meta),
        ],
        "scores": "; ".join(_scores(metrics)) or ("" if tables else "none in the card"),
        "tables": [f"{name}: {_spreads(numbers)}" for name, numbers in tables.items()],
        "licence": str(card["licence"]),
    }
    lines = [card["name"]]
    for name, texts in rows.items():
        for number, text in enumerate([texts] if isinstance(texts, str) else texts):
            lines += textwrap.wrap(
                text,
                _WIDTH,
                initial_indent=f"  {'' if number else name:<9}",
                subsequent_indent=" " * 11,
                break_on_hyphens=False,
                break_long_words=False,
            )
    return "\n".join(lines)


def badge_in(card: dict[str, Any]) -> str:
    """The badge that the weights have at the settings of their card."""
    group = {**card["defaults"], "temperature": (card["law"] or {}).get("temperature", 1.0)}
    claims = registered(card["sampler"]).claims_law
    measured = (card["law"] or {}).get("sha256", "")
    settings = settings_from_card(card)
    return badge_of(card["law"], settings, [group], claims_law=claims, sha256=measured)[0]


def _training(meta: dict[str, Any]) -> str:
    tasks = meta["tasks"].get("name", "")
    parts = [f"on the tasks {tasks!r}" if tasks else ""]
    if "iterations" in meta:
        parts.append(f"{meta['iterations']} iterations")
    if "hours" in meta:
        parts.append(f"{60 * meta['hours']:.0f} minutes")
    return ", ".join(part for part in parts if part) or "see the card"


def _afterwards(meta: dict[str, Any]) -> list[str]:
    """Commands that changed the weights after their training."""
    steps = (meta.get(name, {}) for name in ("carried_over", "pruned"))
    return [f"then {step['command']}" for step in steps if "command" in step]


def _spreads(numbers: dict[str, list[float]]) -> str:
    """Mean ± standard deviation of each column; the mean alone of one seed."""
    return ", ".join(f"{column} {' ± '.join(f'{value:.4g}' for value in both)}" for column, both in numbers.items())


def _scores(metrics: dict[str, Any], before: str = "") -> list[str]:
    """Each number or list of numbers of a card's metrics, with the names that lead to it."""
    scores: list[str] = []
    for name, value in metrics.items():
        where = f"{before}{name}"
        if isinstance(value, dict):
            scores += _scores(value, f"{where}, ")
        elif isinstance(value, int | float):
            scores.append(f"{where}: {value:.4g}")
        elif isinstance(value, list) and value and all(isinstance(number, int | float) for number in value):
            scores.append(f"{where}: {', '.join(f'{number:.4g}' for number in value)}")
    return scores
