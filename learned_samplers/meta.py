"""The package `meta_tasks` under a name that collides with no other: the same modules, imported when asked for."""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import meta_tasks


class _Alias(MetaPathFinder, Loader):
    """Finds ``learned_samplers.meta.x`` as ``meta_tasks.x``: loaded once, so that its classes exist once."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.startswith(f"{__name__}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(meta_tasks.__name__ + spec.name.removeprefix(__name__))
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put the alias's there


sys.meta_path.insert(0, _Alias())
sys.modules[__name__] = meta_tasks
