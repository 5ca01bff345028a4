"""SWAG: a Gaussian fitted to the weights that an optimizer passes through."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from learned_samplers.base import validation
from learned_samplers.posterior import compiled
from learned_samplers.posterior.store import compare_settings


class SWAG:
    """Fits a Gaussian to an optimizer's trajectory (Maddox et al., NeurIPS 2019), a baseline beside samplers.

    Attaches itself to the optimizer's ``step``, as `PosteriorSamples` does; train as ever, at a learning rate that is
    constant and large enough for the weights to wander, then draw::

        swag = SWAG(model, optimizer, burn_in=1000, thinning=50)
        ...  # train
        samples = SampleCollection.from_draws(model, swag.sampled_params, 30)
        probabilities = samples.predict(test_inputs)

    With θ̄ and V the mean and variance of the states collected and D̂ the matrix whose columns are the last K ≤ ``rank``
    deviations θ_i − θ̄_i (θ̄_i the mean so far), a draw is

        θ = θ̄ + √(V/2)·z₁ + D̂·z₂/√(2(K−1)),    z₁, z₂ ~ N(0, I)

    Memory: ``rank`` + 2 times the weights. What it fits is the noise of the optimizer, which is the posterior's only by
    luck: heuristic. Only parameters of the optimizer's groups are drawn. For networks with running statistics draw with
    ``buffers="reestimate"`` and call `SampleCollection.reestimate_buffers`.

    Args:
        model: the network.
        optimizer: any ``torch.optim.Optimizer`` over parameters of ``model``.
        burn_in: steps before the first state that is collected, ≥ 0.
        thinning: steps between two collected states, ≥ 1; an epoch in the paper.
        rank: columns kept for the low-rank part, ≥ 2.
        generator: source of the draws; the default is torch's global generator.

    Raises:
        TypeError, ValueError: an argument that cannot be used, by name and value; ValueError also from the optimizer's
            ``step``: a parameter has joined since, by a new group or as it was unfrozen. Nothing was collected then.
        FloatingPointError: from the optimizer's ``step``: a weight is not finite. Likewise.
    """

    badge = "heuristic"

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        burn_in: int = 0,
        thinning: int = 1,
        *,
        rank: int = 20,
        generator: torch.Generator | None = None,
    ) -> None:
        validation.module("model", model)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
        validation.integer("burn_in", burn_in, least=0)
        validation.integer("thinning", thinning)
        validation.integer("rank", rank, least=2)
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator or None, got {generator!r}")
        self._model = model
        self._optimizer: Callable[[], Optimizer | None] = weakref.ref(optimizer)  # not kept alive, with its state
        self._params = self._trained(optimizer)
        for name, p in self._params.items():
            validation.parameter(f"parameter {name!r}", p)
        self.burn_in, self.thinning, self.rank, self.generator = burn_in, thinning, rank, generator
        self._steps = self._count = 0
        # In half precision what a state adds to a running mean would round away.
        self._mean = {
            name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
            for name, p in self._params.items()
        }
        self._variance = {name: torch.zeros_like(mean) for name, mean in self._mean.items()}
        self._deviations: list[dict[str, Tensor]] = []
        self._token, self._key = torch.zeros(1), compiled.register(self._after_compiled_step)
        self._handle = optimizer.register_step_post_hook(self._on_step)

    def __len__(self) -> int:
        """Number of states collected."""
        return self._count

    def _trained(self, optimizer: Optimizer) -> dict[str, nn.Parameter]:
        """Return the parameters that the optimizer trains; ValueError if there is none, or one of another model."""
        moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
        trained = {name: p for name, p in self._model.named_parameters() if id(p) in moved and p.requires_grad}
        if len(moved - {id(p) for p in self._model.parameters()}) or not trained:
            raise ValueError(f"optimizer must move parameters of model ({type(self._model).__name__}) and no others")
        return trained

    def _refuse_joined(self) -> None:
        optimizer = self._optimizer()
        assert optimizer is not None  # it takes the step
        joined = [name for name in self._trained(optimizer) if name not in self._params]
        if joined:
            raise ValueError(
                f"{joined[0]!r} is trained at step {self._steps} but was not when SWAG was made: make it once all "
                "parameters are with the optimizer and require gradients"
            )

    def _on_step(self, optimizer: Any, args: Any = None, kwargs: Any = None) -> None:
        tensors = [p.detach() for p in self._params.values()]
        if torch.compiler.is_compiling():  # steps are counted here: those that the optimizer knows are of no matter
            torch.ops.learned_samplers.collect(self._token, tensors, self._key, 0, True, 0)
        else:
            self._after_step(tensors)

    def _after_compiled_step(self, step: int, sampling: bool, cycle: int, tensors: list[Tensor]) -> None:
        self._after_step(tensors)

    @torch.no_grad()
    def _after_step(self, tensors: list[Tensor]) -> None:
        self._steps += 1
        since = self._steps - self.burn_in
        if since <= 0 or since % self.thinning:
            return
        self._refuse_joined()
        weights = dict(zip(self._params, tensors, strict=True))
        for name, p in weights.items():
            if not p.isfinite().all():
                raise FloatingPointError(f"{name!r} is not finite at step {self._steps}: not collected")
        self._count += 1
        for name, p in weights.items():
            # Welford's form: mean(θ²) − θ̄² would lose every digit where the weights wander little.
            change = p - self._mean[name]
            self._mean[name].add_(change, alpha=1 / self._count)
            self._variance[name].lerp_(change.mul_(p - self._mean[name]), 1 / self._count)
        self._deviations.append({name: p - self._mean[name] for name, p in weights.items()})
        del self._deviations[: -self.rank]

    def _normal(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=like.dtype, device=like.device)

    @contextmanager
    def sampled_params(self, scale: float = 1.0) -> Iterator[None]:
        """Inside the block the model's parameters are a draw; afterwards they are as before.

        Args:
            scale: factor on the covariance; 0 gives the mean θ̄, that is stochastic weight averaging (SWA).

        Raises:
            RuntimeError: fewer than two states were collected.
        """
        validation.non_negative("scale", scale)
        if self._count < 2:
            raise RuntimeError(f"SWAG needs at least two states for a covariance, {self._count} collected")
        before = {name: p.detach().clone() for name, p in self._params.items()}
        try:
            self._draw(scale)
            yield
        finally:
            with torch.no_grad():
                for name, value in before.items():
                    self._params[name].copy_(value)

    @torch.no_grad()
    def _draw(self, scale: float) -> None:
        """Write a draw into the parameters, one after the other."""
        first = next(iter(self._mean.values()))
        common = self._normal(first, (len(self._deviations),)) * math.sqrt(0.5 * scale / (len(self._deviations) - 1))
        for name, p in self._params.items():
            drawn = self._mean[name].clone()
            drawn.addcmul_((self._variance[name] * (0.5 * scale)).sqrt_(), self._normal(drawn, tuple(p.shape)))
            for weight, deviation in zip(common.tolist(), self._deviations, strict=True):
                drawn.add_(deviation[name], alpha=weight)
            p.copy_(drawn)

    def detach(self) -> None:
        """Stop collecting; what was collected stays usable. Calling it again does nothing."""
        self._handle.remove()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "SWAG hangs on its optimizer's step and cannot be copied or pickled: copy model and optimizer, make a new "
            "one of these, and load this one's state_dict() into it"
        )

    def _settings(self) -> dict[str, Any]:
        source = None if self.generator is None else "its own"
        return {"burn_in": self.burn_in, "thinning": self.thinning, "rank": self.rank, "generator": source}

    def state_dict(self) -> dict[str, Any]:
        """Return what was collected, the settings, and the state of ``generator``; loads with ``weights_only=True``."""
        return {
            "settings": self._settings(),
            "generator": None if self.generator is None else self.generator.get_state(),
            "steps": self._steps,
            "count": self._count,
            "mean": {name: t.clone() for name, t in self._mean.items()},
            "variance": {name: t.clone() for name, t in self._variance.items()},
            "deviations": [dict(deviation) for deviation in self._deviations],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`, with the same draws where both have a ``generator``.

        Raises:
            ValueError: the state is no such state, or of another network or of other settings, or holds numbers that
                cannot be. Nothing has changed then.
        """
        try:
            noise, steps, count = state["generator"], int(state["steps"]), int(state["count"])
            mean, variance, deviations = (
                self._copies(state["mean"]),
                self._copies(state["variance"]),
                state["deviations"],
            )
            deviations = [self._copies(deviation) for deviation in deviations]
            compare_settings(self._settings(), state["settings"], "the state dict")
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a state dict of SWAG ({type(error).__name__}: {error})") from error
        for part in (mean, variance, *deviations):
            bad = [name for name, t in part.items() if not t.isfinite().all()]
            if bad:
                raise ValueError(f"state has values of {bad[0]!r} that are not finite")
        below = [name for name, t in variance.items() if (t < 0).any()]
        if below:
            raise ValueError(f"state has a negative variance of {below[0]!r}")
        if steps < count or len(deviations) < min(count, 2) or count < len(deviations):
            numbers = f"steps={steps}, count={count}, {len(deviations)} deviations"
            raise ValueError(f"state does not fit itself: {numbers}")
        if self.generator is not None:  # the last that can fail
            try:
                self.generator.set_state(noise.cpu())
            except (AttributeError, TypeError, RuntimeError) as error:
                raise ValueError(f"the state dict's generator is broken: {error}") from error
        self._steps, self._count = steps, count
        self._mean, self._variance, self._deviations = mean, variance, deviations[-self.rank :]

    def _copies(self, part: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copy a saved tensor for each parameter, in the dtype and on the device of the means."""
        if {name: tuple(t.shape) for name, t in part.items()} != {
            name: tuple(p.shape) for name, p in self._mean.items()
        }:
            raise ValueError("state is of a network with other parameters or shapes")
        return {name: t.to(self._mean[name], copy=True) for name, t in part.items()}
