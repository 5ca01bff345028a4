"""What is refused of options: values out of range, and values that nothing would come of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.images.methods import METHODS
from experiments.images.presets import PRESETS
from experiments.images.settings import Settings
from learned_samplers.base.validation import non_negative

# Settings of which several values are tuned, where there are some.
_TUNED = ("momentum_decay", "temperature", "exploration_ratio")


def refuse_changed(options: Any, *names: str, why: str) -> None:
    """Refuse options that were changed though nothing would come of them.

    A default that is given all the same cannot be told from one that is not.

    Raises:
        ValueError: by name and value, and ``why``.
    """
    for name in names:
        if (value := getattr(options, name)) != getattr(type(options), name):
            raise ValueError(f"{name}={value} {why}")


def check_values(options: Any) -> None:
    """Raise ValueError for the first of the values to be tuned that is out of range, by name."""
    for name in ("momentum_decays", "final_lrs"):
        if not all(0 < share <= 1 for share in getattr(options, name)):
            raise ValueError(f"{name} must lie in (0, 1], got {getattr(options, name)}")
    if not options.momentum_decays:
        raise ValueError("momentum_decays must hold one value at least, got ()")
    for name in ("weight_decays", "temperatures"):
        for value in getattr(options, name):
            non_negative(name, value)
    for name in ("exploration_ratios", "burn_ins"):
        if not all(0 <= share < 1 for share in getattr(options, name)):
            raise ValueError(f"{name} must lie in [0, 1), got {getattr(options, name)}")


def check_used(options: Any) -> None:
    """Refuse what was changed of a comparison's options and would do nothing.

    Args:
        options: a `experiments.images.options.CompareOptions`, as for the other functions here.

    Raises:
        ValueError: by name, with the option to take.
    """
    if not options.corruptions:
        why = "says which images --corruptions takes, which is not given"
        refuse_changed(options, "corruption_files", "corruption_images", why=why)
    if options.given:
        refuse_changed(options, "tries", "grid", why="is of a balanced choice of settings, and given names them")
    usual = Settings() if options.preset is None else PRESETS[options.preset.lower()][0]
    if options.budgets is not None and options.settings.epochs != usual.epochs:
        raise ValueError(
            f"budgets={options.budgets} and epochs={options.settings.epochs} exclude each other: budgets, which a "
            "preset has, are in minibatch gradients"
        )
    for name, values in _tried(options).items():
        value = getattr(options.settings, name)
        if values and value != getattr(usual, name) and value not in values:
            flag = f"--{name.replace('_', '-')}s {value:g}"
            raise ValueError(f"{name}={value} is not among {name}s={values}, which are tried: take {flag}")


def _tried(options: Any) -> Mapping[str, Sequence[float]]:
    """Of the settings whose single value no run has where several are tried: those that are tried."""
    names = list(_TUNED)
    # A setting that a command names, or another comparison chose, may leave these to the single value.
    if not options.given and options.settings_of is None:
        methods = [METHODS[name] for name in options.sampler]
        # HMC's burn-in is not tuned; a cyclical sampler has none.
        chains = [method for method in methods if method.is_chain and not method.cyclical]
        names += ["final_lr"] + ["burn_in"] * all("burn_in" in method.tunes for method in chains)
    return {name: getattr(options, f"{name}s") for name in names}
