"""Kernels of other libraries as `Kernel`: transforms of `posteriors`, kernels in the way of `blackjax`, NumPyro's.

Each takes a function that builds the other library's object from an energy and a step size; nothing is imported
before a chain begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learned_samplers.checks.targets import Energy, Kernel


def posteriors_transform(build: Callable[[Callable[..., Any], float], Any], name: str = "posteriors") -> Kernel:
    """A transform of `posteriors`: ``posteriors_transform(posteriors.sgmcmc.sgld.build)``.

    Args:
        build: from (log_posterior, lr) to a transform, with ``init(params)`` and ``update(state, batch)``.
        name: for the report.
    """

    def begin(energy: Energy, start: Tensor, lr: float, seed: int) -> Callable[[], Tensor]:
        transform = build(lambda params, batch: (-energy(params).sum(), torch.zeros(())), lr)
        state = transform.init(start.clone())

        def step() -> Tensor:
            nonlocal state
            state, _ = transform.update(state, None)
            return state.params

        return step

    return Kernel(name, begin)


def jax_kernel(build: Callable[[Callable[..., Any], float], Any], name: str = "jax") -> Kernel:
    """A kernel in the way of `blackjax`, one a chain:
    ``jax_kernel(lambda logdensity, lr: blackjax.hmc(logdensity, lr, jnp.ones(3), 10))``.

    Args:
        build: from (logdensity of one position, lr) to an object with ``init(position)`` and ``step(key, state)``,
            which returns a state or (state, info); a state is a position, or has it as ``position``.
        name: for the report.
    """

    def begin(energy: Energy, start: Tensor, lr: float, seed: int) -> Callable[[], np.ndarray]:
        import jax

        algorithm = build(lambda x: -energy(x), lr)
        state = jax.vmap(algorithm.init)(jax.numpy.asarray(start.numpy()))

        @jax.jit
        def advance(key: Any, state: Any) -> Any:
            after = jax.vmap(algorithm.step)(jax.random.split(key, len(start)), state)
            return after[0] if type(after) is tuple else after

        keys = _keys(jax, seed)

        def step() -> np.ndarray:
            nonlocal state
            state = advance(next(keys), state)
            return np.array(getattr(state, "position", state))

        return step

    return Kernel(name, begin)


def numpyro_kernel(build: Callable[[Callable[..., Any], float], Any], name: str = "numpyro") -> Kernel:
    """A kernel of NumPyro, one a chain:
    ``numpyro_kernel(lambda potential, lr: HMC(potential_fn=potential, step_size=lr, trajectory_length=1.0))``.

    There is no warm-up: what would adapt stays as it was made. (With ``num_steps`` NumPyro takes its step size from the
    trajectory's length, unless that is None.)

    Args:
        build: from (potential of one position, lr) to an ``MCMCKernel``.
        name: for the report.
    """

    def begin(energy: Energy, start: Tensor, lr: float, seed: int) -> Callable[[], np.ndarray]:
        import jax

        kernel = build(energy, lr)
        keys = _keys(jax, seed)
        positions = jax.numpy.asarray(start.numpy())
        state = kernel.init(jax.random.split(next(keys), len(start)), 0, positions, (), {})
        advance = jax.jit(lambda state: kernel.sample(state, (), {}))  # which maps over the chains of `init`

        def step() -> np.ndarray:
            nonlocal state
            state = advance(state)
            return np.array(state.z)

        return step

    return Kernel(name, begin)


def _keys(jax: Any, seed: int) -> Any:
    """JAX keys without end."""
    key = jax.random.key(seed)
    while True:
        key, fresh = jax.random.split(key)
        yield fresh
