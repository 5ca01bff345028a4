"""Rules and samplers with their settings given as further keywords, which keeps the cases of these tests short."""

import inspect
from functools import wraps

import learned_samplers
from learned_samplers.learned import preconditioned


def keywords(function, settings_class, **fixed):
    """``function`` with the fields of ``settings_class`` among its keywords; ``fixed`` are settings too."""

    @wraps(function)
    def call(*tensors, **given):
        if "settings" in given:
            return function(*tensors, **given)
        settings = {name: given.pop(name) for name in settings_class.names() if name in given}
        return function(*tensors, settings=settings_class(**{**fixed, **settings}), **given)

    return call


def _sampler(cls):
    signature = inspect.signature(cls).parameters

    @wraps(cls, updated=())
    def make(*args, **given):
        names = [name for name in cls.settings_class.names() if name in given and name not in signature]
        settings = {name: given.pop(name) for name in names}
        return cls(*args, **given, **({"settings": settings} if settings else {}))

    return make


L2E = _sampler(learned_samplers.L2E)
KineticL2E = _sampler(learned_samplers.KineticL2E)
MetaSGMCMC = _sampler(learned_samplers.MetaSGMCMC)
PrecondL2E = _sampler(preconditioned.PrecondL2E)
