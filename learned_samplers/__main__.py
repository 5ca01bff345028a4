"""``python -m learned_samplers``: the samplers to begin with, and the estimators; with ``--all`` all that there is."""

from __future__ import annotations

import argparse
import inspect
import os
import sys

import torch

import learned_samplers
from learned_samplers import particles
from learned_samplers.learned import weights
from learned_samplers.learned.cards import badge_in
from learned_samplers.learned.native.kernel import native_library
from learned_samplers.table import SAMPLERS

#: The samplers that most people need, in the order in which they are shown.
FIRST = [name for name, entry in SAMPLERS.items() if entry.recommended]


def samplers() -> list[tuple[str, str, str]]:
    """Name, law and first sentence of every sampler, those of `FIRST` at the top."""
    rows = {name: (name, in_words(entry.law), entry.summary) for name, entry in SAMPLERS.items()}
    for name in particles.__all__:
        cls = getattr(particles, name)
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer):
            rows[name] = (
                name,
                in_words(str(getattr(cls, "badge", "heuristic"))),
                (inspect.getdoc(cls) or "").split("\n")[0],
            )
    return [rows.pop(name) for name in FIRST] + sorted(rows.values(), key=lambda row: row[0].lower())


def shipped() -> list[tuple[str, str, str]]:
    """Name, law and sampler of each of the shipped weights."""
    cards = {name: weights.load_card(weights.shipped_path(name)) for name in weights.shipped_names()}
    return [(name, in_words(badge_in(card)), card["sampler"]) for name, card in cards.items()]


def estimators() -> str:
    """A line for each estimator, or where they cannot be imported what they need."""
    try:
        from learned_samplers import estimators as room
    except ImportError:
        return "  They need scikit-learn: in the checkout, pip install '.[estimators]'"
    classes = [name for name in room.__all__ if isinstance(getattr(room, name), type)]
    docs = [(inspect.getdoc(getattr(room, name)) or "").split("\n")[0] for name in classes]
    return "\n".join(f"  {name:<21}  {line}" for name, line in zip(classes, docs, strict=True))


def in_words(badge: str) -> str:
    """Words for what a badge says of the invariant law."""
    return "no law" if badge == "heuristic" else f"law: {badge}, measured"


def _table(rows: list[tuple[str, str, str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    return "\n".join(f"  {name:<{widths[0]}}  {law:<{widths[1]}}  {what}" for name, law, what in rows)


def main(arguments: list[str] | None = None) -> None:
    """Print what there is."""
    parser = argparse.ArgumentParser(prog="python -m learned_samplers", description=(__doc__ or "").split(": ", 1)[1])
    parser.add_argument("--all", action="store_true", help="all samplers, and the weights that ship")
    everything = parser.parse_args(arguments).all
    compiled = "compiled" if native_library() is not None else "in torch (no compiled code here)"
    print(f"learned-samplers {learned_samplers.__version__}, torch {torch.__version__}; L2E's update is {compiled}\n")
    rows = samplers()
    print(_table(rows if everything else [row for row in rows if row[0] in FIRST]))
    print(f"\nFor tables, with the extra [estimators]: learned_samplers.estimators\n\n{estimators()}")
    if everything:
        print(
            f"\nShipped weights\n\n{_table(shipped())}\n\nOne in full: import pretrained; print(pretrained.card('l2e'))"
        )
    else:
        print("\nAll samplers, and the weights that ship: python -m learned_samplers --all")


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at its end
