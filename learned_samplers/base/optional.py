"""Optional dependencies, imported when they are first used."""

from __future__ import annotations

import importlib
import warnings
from typing import Any


def require(module: str, extra: str) -> Any:
    """Import a module of an optional dependency; ``extra`` is the extra of learned-samplers that installs it.

    Raises:
        ModuleNotFoundError: it is not installed. The message says how to install it.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise  # it is there, and lacks something itself
        raise ModuleNotFoundError(
            f"{package} is needed here and is not installed: in the checkout, pip install '.[{extra}]'", name=package
        ) from error


def import_arviz() -> Any:
    """ArviZ, without the notice about its future that it prints once a day."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return require("arviz", "arviz")
