"""Chains of torch optimizers, of transforms of `posteriors`, and of JAX kernels, as `measure` asks them."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.audit.measure import PRECISION


class TorchChain:
    """A ``torch.optim.Optimizer`` on the mean loss, whose parameters hold all chains.

    Args:
        make: from parameters, N and keywords to the optimizer.
        decay: a weight decay w, with a loss that is zero: its stationary law is the prior that w stands for.
        tensors: number of parameters among which the chains are divided.
    """

    def __init__(self, make: Callable[..., Any], begun: np.ndarray, n: float, tensors: int = 1, **settings: Any):
        import torch

        self.torch, self.n = torch, n
        torch.manual_seed(0)
        self.flat = "decay" in settings
        self.matrix = torch.as_tensor(PRECISION * (not self.flat), dtype=torch.float32)
        first = torch.as_tensor(np.array(begun), dtype=torch.float32)
        self.params = [part.clone().requires_grad_() for part in first.chunk(tensors)]
        self.optimizer = make(self.params, n, **settings)
        if (watch := getattr(self.optimizer, "outside", None)) is not None:
            watch.watching = False  # what a sampler under test does in its own step is measured
        self.per_chain = type(self.optimizer).__name__ == "HMC"

    def _closure(self) -> Any:
        losses = []
        with self.torch.no_grad():
            for p in self.params:
                p.grad = p @ self.matrix
                losses.append(0.5 * (p * p.grad).sum(1))
        self.gradients = [p.grad.clone() for p in self.params if p.grad is not None]
        loss = self.torch.cat(losses)
        return loss if self.per_chain else loss.sum()

    def step(self, lr: float) -> np.ndarray:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        draw = getattr(self.optimizer, "sampled_params", None)
        for _ in range(10_000):
            if draw is not None:
                self._draw(draw)
            else:
                self._closure()
                self.optimizer.step(self._closure)
            if getattr(self.optimizer, "is_sampling", True):
                break
        if self.drawn is not None:
            return self.drawn
        return np.concatenate([p.detach().numpy() for p in self.params])

    def touches_gradients(self) -> bool:
        """True if the last step has changed ``p.grad``."""
        pairs = zip(self.params, self.gradients, strict=True)
        return any(p.grad is not None and not self.torch.equal(p.grad, g) for p, g in pairs)

    drawn: np.ndarray | None = None

    def _draw(self, draw: Any) -> None:
        """A step of IVON, and a draw of its Gaussian."""
        for training in (True, False):
            try:
                block = draw(train=training)
            except TypeError:  # ours draws alike in training and after it
                block = draw()
            with block:
                if training:
                    self._closure()
                else:
                    self.drawn = np.concatenate([p.detach().numpy().copy() for p in self.params])
            if training:
                self.optimizer.step()

    def save(self) -> Any:
        kept = io.BytesIO()
        self.torch.save([[p.detach() for p in self.params], self.optimizer.state_dict()], kept)
        return kept.getvalue()

    def load(self, saved: Any) -> None:
        values, state = self.torch.load(io.BytesIO(saved), weights_only=False)
        for p, value in zip(self.params, values, strict=True):
            p.data.copy_(value)
        self.optimizer.load_state_dict(state)

    def reseed(self, seed: int) -> None:
        self.torch.manual_seed(seed)

    def adapts_until(self, steps: int) -> int:
        """The last step, under gradients drawn at random, that changes a state other than the momentum."""
        last, torch = 0, self.torch
        for t in range(1, steps + 1):
            before = self._adapted()
            for p in self.params:
                p.grad = torch.randn_like(p)
            self.optimizer.step(lambda: None)
            after = self._adapted()
            if before and any(not torch.equal(a, b) for a, b in zip(before, after, strict=True)):
                last = t
        return last

    def _adapted(self) -> list[Any]:
        states = [self.optimizer.state.get(p, {}) for p in self.params]
        return [
            value.clone()
            for state in states
            for name, value in state.items()
            if "momentum" not in name and self.torch.is_tensor(value) and value.ndim
        ]


class PosteriorsChain:
    """A transform of `posteriors` on the mean log posterior, at temperature 1/N."""

    def __init__(self, build: Callable[..., Any], begun: np.ndarray, n: float):
        import torch

        self.torch, self.matrix = torch, torch.as_tensor(PRECISION, dtype=torch.float32)
        torch.manual_seed(0)
        self.lr = 0.0
        self.transform = build(self._log_posterior, lambda step: self.lr, 1 / n)
        self.state = self.transform.init(torch.as_tensor(np.array(begun), dtype=torch.float32))

    def _log_posterior(self, x: Any, batch: Any) -> Any:
        return -0.5 * ((x @ self.matrix) * x).sum(), self.torch.tensor([])

    def step(self, lr: float) -> np.ndarray:
        self.lr = lr
        self.state, _ = self.transform.update(self.state, None)
        return self.state.params.detach().numpy()

    def save(self) -> Any:
        return copy.deepcopy(self.state)

    def load(self, saved: Any) -> None:
        self.state = saved

    def reseed(self, seed: int) -> None:
        self.torch.manual_seed(seed)


class JaxChain:
    """A kernel of JAX, mapped over the chains.

    Args:
        make: from N to (init(position), step(key, state, lr), position(state)), each of one chain.
    """

    key: Any

    def __init__(self, make: Callable[..., Any], begun: np.ndarray, n: float):
        import jax

        self.jax = jax
        init, step, self.position = make(n)
        self.state = jax.vmap(init)(jax.numpy.asarray(begun, "float32"))
        self.advance = jax.jit(
            lambda key, state, lr: jax.vmap(step, (0, 0, None))(jax.random.split(key, len(begun)), state, lr)
        )
        self.reseed(0)

    def step(self, lr: float) -> np.ndarray:
        self.key, key = self.jax.random.split(self.key)
        self.state = self.advance(key, self.state, lr)
        return np.asarray(self.position(self.state))

    def save(self) -> Any:
        leaves, tree = self.jax.tree_util.tree_flatten(self.state)
        return pickle.dumps([np.asarray(leaf) for leaf in leaves]), tree

    def load(self, saved: Any) -> None:
        leaves, tree = pickle.loads(saved[0]), saved[1]
        self.state = self.jax.tree_util.tree_unflatten(tree, [self.jax.numpy.asarray(leaf) for leaf in leaves])

    def reseed(self, seed: int) -> None:
        self.key = self.jax.random.key(seed)


def log_density(n: float) -> Callable[[Any], Any]:
    """Log posterior density of a pair, in JAX's operations."""
    return lambda x: -0.5 * n * (x @ PRECISION.astype(np.float32) @ x)


def gradient_estimate(n: float) -> Callable[[Any, Any], Any]:
    """Gradient of the log posterior, with an unused minibatch."""
    return lambda x, batch: -n * (x @ PRECISION.astype(np.float32))
