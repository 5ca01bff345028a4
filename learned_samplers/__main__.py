"""``python -m learned_samplers``: the version, the samplers with their badges, and the weights that ship."""

from __future__ import annotations

import inspect
import os
import sys

import torch

import learned_samplers
from learned_samplers.learned import weights
from learned_samplers.learned.card import badge_in
from learned_samplers.learned.native.library import native_library
from learned_samplers.learned.sampler import LearnedSampler


def samplers() -> list[tuple[str, str, str]]:
    """Name, badge and first sentence of every sampler that the package exports."""
    found = []
    for name in sorted(learned_samplers.__all__, key=str.lower):
        each = getattr(learned_samplers, name)
        if isinstance(each, type) and issubclass(each, torch.optim.Optimizer) and each is not learned_samplers.Sampler:
            badge = "by its card" if issubclass(each, LearnedSampler) else getattr(each, "badge", None)
            sentence = (inspect.getdoc(each) or "").split("\n")[0]
            found.append((name, badge if isinstance(badge, str) else "by its settings", sentence))
    return found


def shipped() -> list[tuple[str, str, str]]:
    """Name, badge, and sampler with measured law of each of the shipped weights."""
    found = []
    for name in weights.shipped_names():
        card = weights.load_card(weights.shipped_path(name))
        law = "not measured" if card["law"] is None else card["law"]["reason"]
        found.append((name, badge_in(card), f"{card['sampler']}; law: {law}"))
    return found


def _table(rows: list[tuple[str, str, str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    return "\n".join(f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows)


def main() -> None:
    """Print all of it."""
    compiled = "compiled" if native_library() is not None else "in torch (no compiled code here)"
    print(f"learned-samplers {learned_samplers.__version__}, torch {torch.__version__}; L2E's update is {compiled}\n")
    print(f"Samplers (name, invariant law, what it is)\n\n{_table(samplers())}\n")
    print(f"Shipped weights (name, invariant law, sampler and measurement)\n\n{_table(shipped())}\n")
    print("One of them in full: import pretrained; print(pretrained.card('l2e'))")


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at its end
