"""What the modules of a network hold beside their weights, put back after a run."""

from __future__ import annotations

from typing import Any

from torch import nn

_ABSENT = object()
#: Tables of hooks and the like, which no forward writes into.
_OF_TORCH = set(vars(nn.Module())) - {"_parameters", "_buffers", "_modules"}


class Attributes:
    """The present attributes of all modules of a network, to be put back by :meth:`restore`.

    A forward may leave tensors in its modules: attention weights for a figure, a cache, or the weight that the hooks of
    ``weight_norm`` and ``prune`` compute. Those of a run under vmap cannot be used after it, and those of one sample
    are wrong for the next. Lists and dictionaries are remembered one level deep; values of tensors are not.
    """

    def __init__(self, network: nn.Module) -> None:
        self._dictionaries: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        for module in network.modules():
            own = vars(module)
            self._dictionaries.append((own, dict(own)))
            for name, value in own.items():
                if isinstance(value, dict) and name not in _OF_TORCH:
                    self._dictionaries.append((value, dict(value)))
                elif isinstance(value, list):
                    self._lists.append((value, list(value)))

    def restore(self) -> None:
        """Put everything back that is not as it was."""
        for now, before in self._dictionaries:
            if len(now) != len(before) or any(now.get(key, _ABSENT) is not value for key, value in before.items()):
                now.clear()
                now.update(before)
        for items, kept in self._lists:
            if len(items) != len(kept) or any(a is not b for a, b in zip(items, kept, strict=True)):
                items[:] = kept
