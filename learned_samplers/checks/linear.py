"""Finds the linear map z' = A·z + B·ξ of a sampler's step by running the optimizer, and solves for its stationary law.

On a quadratic potential most samplers move every coordinate by the same small linear map of z = (θ, state…). Running
the real ``step`` on basis vectors with the noise switched off gives A; on zero, with one draw at a time set to one,
B. No formula of the sampler enters. A step that is not read here is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from learned_samplers.checks.protocol import take_step, unwatched

_LIKE = {torch.randn_like}
_SHAPED = {torch.randn}
_IN_PLACE = {Tensor.normal_}


class ScriptedNoise(TorchFunctionMode):
    """While active, the j-th call of torch's normal generators gives the constant ``values[j]``, or zero.

    Each moves torch's generator on, as a draw does: samplers look whether it has been set back. ``most`` is the size of
    the largest draw: one of more numbers than there are coordinates is several noises at once, which are told apart by
    nothing, and a chain must not be read with them.
    """

    def __init__(self, values: Mapping[int, float] | None = None):
        super().__init__()
        self.values, self.count, self.most = values or {}, 0, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _LIKE | _SHAPED | _IN_PLACE:
            return func(*args, **kwargs)
        torch.rand(())
        value = float(self.values.get(self.count, 0.0))
        self.count += 1
        if func in _IN_PLACE:
            law = dict(zip(("mean", "std"), args[1:], strict=False)) | kwargs
            drawn = args[0].fill_(law.get("mean", 0.0) + law.get("std", 1.0) * value)
        else:
            kwargs.pop("generator", None)
            like = func in _LIKE
            drawn = torch.full_like(args[0], value, **kwargs) if like else torch.ones(*args, **kwargs).mul_(value)
        self.most = max(self.most, drawn.numel())
        return drawn


@dataclass(frozen=True)
class LinearStep:
    """z' = A·z + B·ξ + b·ζ for one coordinate, with the names of z's components; ζ is the minibatch's noise."""

    names: tuple[str, ...]
    transition: np.ndarray  # A, (m, m)
    noise: np.ndarray  # B, (m, draws), the sampler's own
    gradient_noise: np.ndarray  # b, (m,), what noise of one standard deviation on the gradient adds
    offset: np.ndarray  # step(0) without noise, (m,)

    def stationary_mean(self) -> np.ndarray:
        """(I − A)⁻¹·step(0), (m,), where the noise has no mean of its own."""
        return np.linalg.solve(np.eye(len(self.offset)) - self.transition, self.offset)

    @property
    def spectral_radius(self) -> float:
        return float(np.abs(np.linalg.eigvals(self.transition)).max())

    def stationary_covariance(self, batches_per_epoch: int | None = None) -> np.ndarray:
        """Σ with Σ = AΣAᵀ + BBᵀ + bbᵀ, (m, m); infinite if the step is unstable.

        With M = ``batches_per_epoch`` the minibatches are drawn without replacement: their noises within an epoch add
        up to zero, so that two of them have the covariance −1/(M−1). The law then depends on the position within the
        epoch; returned is the mean of the M covariances.
        """
        if self.spectral_radius >= 1:
            return np.full_like(self.transition, np.inf)
        thermal = self.noise @ self.noise.T
        if batches_per_epoch is None:
            pushed = thermal + np.outer(self.gradient_noise, self.gradient_noise)
            return _stationary(self.transition, pushed)
        # After t steps of an epoch that starts at z: z_t = Aᵗz + noise, whose covariance is Q_t − w_t·w_tᵀ/M, with Q_t
        # the covariance of independent noises of variance M/(M−1) and w_t = Σ_s Aˢb.
        share = batches_per_epoch / (batches_per_epoch - 1)
        step = thermal + share * np.outer(self.gradient_noise, self.gradient_noise)
        power, independent, common = np.eye(len(step)), np.zeros_like(step), np.zeros(len(step))
        phases = []
        for _ in range(batches_per_epoch):
            power = self.transition @ power
            independent = self.transition @ independent @ self.transition.T + step
            common = self.transition @ common + self.gradient_noise
            phases.append((power, independent - share / batches_per_epoch * np.outer(common, common)))
        start = _stationary(*phases[-1])
        return np.mean([power @ start @ power.T + noise for power, noise in phases], axis=0)


def _stationary(transition: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Σ with Σ = AΣAᵀ + Q, solved in units in which weights and momenta are of one size."""
    from scipy.linalg import solve_discrete_lyapunov  # slow to import

    unit = np.sqrt(np.diagonal(noise + transition @ noise @ transition.T))
    unit = np.where(unit > 0, unit, 1.0)
    units = np.outer(unit, unit)
    return units * solve_discrete_lyapunov(transition * unit / unit[:, None], noise / units)


def read_linear_step(
    factory: Callable[[list[Tensor]], torch.optim.Optimizer],
    slope: float,
    gradient_noise: float = 0.0,
    rescale_lr: float = 1.0,
) -> LinearStep | None:
    """The map of one coordinate of the sampler that ``factory`` makes, or None if its step is not linear.

    None as well where the next step is another map (a schedule, noise at every second step, a momentum or a noise that
    is kept outside of ``state``), where a draw does not enter in proportion (its sign has unit variance, and is no
    normal number) or holds several noises of a coordinate, or where the sampler does not sample yet (``is_sampling``).

    Args:
        factory: makes the sampler from a list of parameters.
        slope: the gradient of the mean loss is ``slope`` · θ.
        gradient_noise: standard deviation of the noise on that gradient.
        rescale_lr: factor on every group's lr.
    """
    names = _probe_state(factory, slope)
    if names is None:
        return None

    def run(
        start: np.ndarray, values: Mapping[int, float] | None = None, push: float = 0.0, steps: int = 1
    ) -> tuple[np.ndarray, ScriptedNoise]:
        """Steps from columns ``start`` (m, n), draws counted over all; returns the columns after them."""
        theta = torch.zeros(start.shape[1], dtype=torch.float64, requires_grad=True)
        sampler = factory([theta])
        unwatched(sampler)
        with ScriptedNoise():  # a first step from zero, so that the state exists
            take_step(sampler, _closure(theta, slope))
        for group in sampler.param_groups:
            group["lr"] = group["lr"] * rescale_lr
        with torch.no_grad():
            theta.copy_(torch.from_numpy(start[0]))
            for name, row in zip(names[1:], start[1:], strict=True):
                sampler.state[theta][name].copy_(torch.from_numpy(row))
        with ScriptedNoise(values) as script:
            for _ in range(steps):
                take_step(sampler, _closure(theta, slope, push))
        rows = [theta.detach(), *(sampler.state[theta][name] for name in names[1:])]
        return np.stack([row.numpy().copy() for row in rows]), script

    m = len(names)
    zero, script = run(np.zeros((m, 1)))
    if script.most > 1:
        return None
    offset, draws = zero[:, 0], script.count
    transition = run(np.eye(m))[0] - zero
    numbers = np.random.default_rng(0)
    probes = numbers.normal(size=(m, 4)) * 3.0
    if not _close(run(probes)[0], transition @ probes + zero):
        return None
    columns = [run(np.zeros((m, 1)), {j: 1.0})[0][:, 0] - offset for j in range(draws)]
    noise = np.stack(columns, axis=1) if columns else np.zeros((m, 1))
    # The next step must be the same map, of a start and of all draws of both steps at once, whatever their size: it
    # must not know more of the first than z does, and effects must add up. Three times: each draw is small and large.
    for start in probes.T[:3, :, None]:
        first, second = numbers.uniform(-6.0, 6.0, size=(2, noise.shape[1], 1))
        values = dict(enumerate(np.concatenate([first[:draws], second[:draws]]).ravel()))
        twice, script = run(start, values, steps=2)
        between = transition @ start + zero + noise @ first
        if script.count != 2 * draws or not _close(twice, transition @ between + zero + noise @ second):
            return None
    pushed = run(np.zeros((m, 1)), push=gradient_noise)[0][:, 0] - offset
    return LinearStep(names, transition, noise, pushed, offset)


def _close(measured: np.ndarray, expected: np.ndarray) -> bool:
    return np.allclose(measured, expected, rtol=1e-9, atol=1e-12)


def _closure(theta: Tensor, slope: float, push: float = 0.0) -> Callable[[], Any]:
    """Sets the gradient of the mean loss ½·slope·θ², pushed by a constant, and returns that loss."""

    def closure() -> Any:
        theta.grad = theta.detach() * slope + push
        return 0.5 * slope * theta.detach().square().sum()

    return closure


def _probe_state(factory: Any, slope: float) -> tuple[str, ...] | None:
    """("theta", names of the per-coordinate state…); None if coordinates share some of it, or it does not sample."""
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    sampler = factory([theta])
    unwatched(sampler)
    take_step(sampler, _closure(theta, slope))
    if not getattr(sampler, "is_sampling", True):
        return None
    state = {name: value for name, value in sampler.state[theta].items() if isinstance(value, Tensor)}
    if any(value.shape != theta.shape for value in state.values() if value.numel() > 1 or value.dim()):
        return None
    return ("theta", *(name for name, value in state.items() if value.shape == theta.shape))
