"""The pure rules with their settings given as further keywords, which keeps the cases of these tests short."""

from __future__ import annotations

from functools import wraps


def keywords(function, settings_class, **fixed):
    """``function`` with the fields of ``settings_class`` among its keywords; ``fixed`` are settings too."""

    @wraps(function)
    def call(*tensors, **given):
        if "settings" in given:
            return function(*tensors, **given)
        own = {name: given.pop(name) for name in settings_class.names() if name in given}
        return function(*tensors, settings=settings_class(**{**fixed, **own}), **given)

    return call
