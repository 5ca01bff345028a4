"""Extension of griffe, which reads docstrings for the site: signature and arguments of classes that declare settings.

Both are made when such a class is created, so that its source has neither.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parents[1]))

import learned_samplers.table  # noqa: F401  (imports every sampler)
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.settings import Configurable


class DeclaredSettings(griffe.Extension):
    """Docstring and signature of the imported class, in place of those in the source."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Change a class of the source if it declares settings and leaves the constructor to its base."""
        imported = getattr(sys.modules.get(cls.module.path), cls.name, None)
        if not (inspect.isclass(imported) and issubclass(imported, Configurable) and imported.declared):
            return
        if cls.docstring is not None:
            cls.docstring.value = inspect.cleandoc(imported.__doc__ or "")
        if imported.__init__ is Sampler.__init__:
            cls.set_member("__init__", constructor_of(imported))


def constructor_of(imported: type) -> griffe.Function:
    """Constructor with the parameters of a class's signature."""
    parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
    for name, parameter in inspect.signature(imported).parameters.items():
        default = None if parameter.default is inspect.Parameter.empty else repr(parameter.default)
        kind = griffe.ParameterKind[parameter.kind.name.lower()]
        parameters.append(griffe.Parameter(name, kind=kind, default=default))
    return griffe.Function("__init__", parameters=griffe.Parameters(*parameters))
