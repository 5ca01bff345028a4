"""Differentiable samplers: ``higher`` unrolls the chain, and gradients flow through every step of it.

``import learned_samplers.differentiable`` (it needs ``pip install '.[higher]'``) makes the samplers of
this package known to ``higher``; where ``higher`` was imported first, ``import learned_samplers`` does. Then
``higher.innerloop_ctx(model, sampler)`` works, with the same rules as the samplers', out of place and on the autograd
tape. Gradients flow to initial parameters, to hyperparameters given as ``override={"lr": [tensor]}``, and to the data.
Of a sampler that needs a closure, whitens or warms up it raises an error that says why. One of your own is made known
by ``register(MySampler)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from learned_samplers.base.guards.precision import has_master
from learned_samplers.base.optional import require
from learned_samplers.base.sampler import Sampler
from learned_samplers.learned.meta_sgmcmc import MetaSGMCMC

if TYPE_CHECKING:
    import higher
else:
    higher = require("higher", "higher")


class DifferentiableSampler(higher.optim.DifferentiableOptimizer):
    """Runs a sampler's pure rule on the autograd tape; the noise comes from the same generator as the sampler's own."""

    #: True if ``step(loss)`` gives the rule all that the sampler needs its closure for.
    loss_is_enough = False

    def __init__(self, sampler: Sampler, *args: Any, **kwargs: Any):
        name = type(sampler).__name__
        if sampler.needs_closure and not self.loss_is_enough:
            raise ValueError(f"{name} needs a closure at each step, which higher does not give")
        if any(has_master(group, p) for group in sampler.param_groups for p in group["params"]):
            raise ValueError(
                f"{name} keeps float32 copies of half-precision parameters, which higher has not: take "
                "float32 parameters, or master_weights=False, which rounds every step"
            )
        if sampler.not_differentiable:
            raise ValueError(f"{name} cannot be differentiated through: {sampler.not_differentiable}")
        if (prior := next(filter(None, sampler.group_priors), None)) is not None:
            raise ValueError(f"the twin of {name} in higher would not draw its prior, {prior!r}")
        if sampler.schedule is not None:
            raise ValueError(
                f"a CyclicalSchedule is attached to {name}, and would not follow the steps of its twin "
                "in higher: take CyclicalSGMCMC"
            )
        super().__init__(sampler, *args, **kwargs)
        self._sampler = sampler

    def _update(self, grouped_grads: Any, **kwargs: Any) -> None:
        sampler = self._sampler
        for index, (group, grads) in enumerate(zip(self.param_groups, grouped_grads, strict=True)):
            hyper = sampler.hyper(group, keep_tensors=True) | self._inputs(index)
            for i, (p, gradient) in enumerate(zip(group["params"], grads, strict=True)):
                if gradient is None:
                    self._missing(index, i)
                    continue
                state = self.state[index][i]
                for name in sampler.state_names:
                    if name not in state:
                        state[name] = sampler.initial_state(group, p.detach(), name)
                noise = sampler.noise_for([p.detach()], hyper)
                before = [state[name] for name in sampler.state_names]
                mean = None if group["prior_mean"] is None else group["prior_mean"][i]
                centred = p if mean is None else p - mean
                moved, *after = sampler.rule(centred, gradient, noise and noise[0], *before, **hyper)
                group["params"][i] = moved if mean is None else moved + mean
                state.update(zip(sampler.state_names, after, strict=True))
            group["step"] += 1

    def _inputs(self, index: int) -> dict[str, Any]:
        """Further keyword arguments of the rule, for the group of that index."""
        return {}

    def _missing(self, index: int, number: int) -> None:
        """Raise ValueError where a parameter without a gradient is one that the sampler itself would not skip."""
        group = self._sampler.param_groups[index]
        if group["missing_gradient"] == "error" and group["params"][number].requires_grad:
            name = self._sampler.name_of(group, number)
            raise ValueError(
                f"the loss does not depend on parameter {name}: set requires_grad=False to keep it fixed, or give "
                "missing_gradient='skip' to leave it out of such steps"
            )


class DifferentiableMetaSGMCMC(DifferentiableSampler):
    """The differentiable `MetaSGMCMC`: its energy comes from the loss given to ``step``, one for all or one a chain.

    Gradients also flow to the weights of ``sampler.network``. ``step(loss, detach_inputs=True)`` cuts those through the
    networks' inputs, as the truncated back-propagation of the paper does. Losses (M,) of parameters with a leading axis
    of M chains are summed for the gradient, so that each chain has its own.
    """

    loss_is_enough = True

    def step(self, loss: torch.Tensor, *args: Any, detach_inputs: bool = False, **kwargs: Any) -> Any:
        self._loss, self._detach = loss, detach_inputs
        return super().step(loss.sum(), *args, **kwargs)

    def _update(self, grouped_grads: Any, **kwargs: Any) -> None:
        assert isinstance(self._sampler, MetaSGMCMC)
        self._energies = self._sampler.energies(self._loss, self.param_groups)
        super()._update(grouped_grads, **kwargs)

    def _inputs(self, index: int) -> dict[str, Any]:
        return {"energy": self._energies[index], "detach_inputs": self._detach}


def register(sampler: type[Sampler]) -> None:
    """Make a class of samplers known to ``higher``; its rule must be out of place with the default ``ops``."""
    twin = DifferentiableMetaSGMCMC if issubclass(sampler, MetaSGMCMC) else DifferentiableSampler
    higher.register_optim(sampler, twin)


def _subclasses(cls: type[Sampler]) -> Iterator[type[Sampler]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


for _sampler in _subclasses(Sampler):  # importing this module imports the package, and so all of its samplers
    register(_sampler)
