"""Chains side by side of torch optimizers, transforms of `posteriors`, and JAX kernels, as `measure` asks them.

``step(lr)`` returns their positions, (chains, 2); ``save`` is all that a package keeps of its state, and ``load`` takes
it; ``reseed`` sets the random numbers that follow.
"""

from __future__ import annotations

import copy
import inspect
import io
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.audit.measure import CHAINS, PRECISION


class TorchChain:
    """A ``torch.optim.Optimizer`` on the mean loss, whose parameters hold all chains.

    Args:
        make: from parameters, N and keywords to the optimizer; with ``decay``, a weight decay w, the loss is zero, and
            the stationary law the prior that w stands for.
        tensors: number of parameters among which the chains are divided.
    """

    def __init__(self, make: Callable[..., Any], begun: np.ndarray, n: float, tensors: int = 1, **settings: Any):
        import torch

        self.torch = torch
        torch.manual_seed(0)
        self.matrix = torch.as_tensor(PRECISION * ("decay" not in settings), dtype=torch.float32)
        first = torch.as_tensor(np.array(begun), dtype=torch.float32)
        self.params = [part.clone().requires_grad_() for part in first.chunk(tensors)]
        self.optimizer = make(self.params, n, **settings)
        if (watch := getattr(self.optimizer, "outside", None)) is not None:
            watch.watching = False  # what a sampler under test does in its own step is measured
        self.per_chain = type(self.optimizer).__name__ == "HMC"
        self.draw = getattr(self.optimizer, "sampled_params", None)

    def _closure(self) -> Any:
        losses = []
        with self.torch.no_grad():
            for p in self.params:
                p.grad = p @ self.matrix
                losses.append(0.5 * (p * p.grad).sum(1))
        self.gradients = [p.grad.clone() for p in self.params if p.grad is not None]
        loss = self.torch.cat(losses)
        return loss if self.per_chain else loss.sum()

    def _positions(self) -> np.ndarray:
        return np.concatenate([p.detach().numpy().copy() for p in self.params])

    def step(self, lr: float) -> np.ndarray:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if self.draw is not None:  # a variational Gaussian: a step, and one of its draws
            with self._drawn(train=True):
                self._closure()
            self.optimizer.step()
            with self._drawn(train=False):
                return self._positions()
        for _ in range(10_000):
            self._closure()
            self.optimizer.step(self._closure)
            if getattr(self.optimizer, "is_sampling", True):
                break
        return self._positions()

    def _drawn(self, **settings: bool) -> Any:
        draw: Any = self.draw
        return draw(**settings) if "train" in inspect.signature(draw).parameters else draw()

    def touches_gradients(self) -> bool:
        """True if the last step has changed ``p.grad``."""
        pairs = zip(self.params, self.gradients, strict=True)
        return any(p.grad is not None and not self.torch.equal(p.grad, g) for p, g in pairs)

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
        last, before = 0, self._adapted()
        for t in range(1, steps + 1):
            for p in self.params:
                p.grad = self.torch.randn_like(p)
            self.optimizer.step(lambda: None)
            after = self._adapted()
            if len(before) != len(after) or any((a != b).any() for a, b in zip(before, after, strict=True)):
                last = t
            before = after
        return last

    def _adapted(self) -> list[np.ndarray]:
        named = [item for p in self.params for item in self.optimizer.state.get(p, {}).items()]
        return [v.numpy().copy() for k, v in named if "momentum" not in k and self.torch.is_tensor(v) and v.ndim]


class StateChain:
    """Chains that are a state and a function of a seed, the state and the step size.

    Args:
        build: from first positions and N to (state, advance(seed, state, lr), positions(state)).
    """

    def __init__(self, build: Callable[..., Any], begun: np.ndarray, n: float):
        self.state, self.advance, self.positions = build(np.asarray(begun, "float32"), n)
        self.reseed(0)

    def step(self, lr: float) -> np.ndarray:
        self.state = self.advance(int(self.seeds.integers(2**31)), self.state, lr)
        return np.asarray(self.positions(self.state))

    def save(self) -> Any:
        return copy.deepcopy(self.state)

    def load(self, saved: Any) -> None:
        self.state = saved

    def reseed(self, seed: int) -> None:
        self.seeds = np.random.default_rng(seed)


def posteriors_transform(name: str, settings: dict[str, Any], begun: np.ndarray, n: float) -> Any:
    """A transform of `posteriors` on the mean log posterior, at temperature 1/N."""
    import posteriors
    import torch

    rate, matrix = [0.0], torch.as_tensor(PRECISION, dtype=torch.float32)

    def log_posterior(x: Any, batch: Any) -> Any:
        return -0.5 * ((x @ matrix) * x).sum(), torch.tensor([])

    def advance(seed: int, state: Any, lr: float) -> Any:
        torch.manual_seed(seed)
        rate[0] = lr
        return transform.update(state, None)[0]

    build = getattr(posteriors.sgmcmc, name).build
    transform = build(log_posterior, lambda step: rate[0], temperature=1 / n, **settings)
    return transform.init(torch.as_tensor(begun)), advance, lambda state: state.params.detach()


def jax_kernel(make: Callable[..., Any], begun: np.ndarray, n: float) -> Any:
    """A kernel of JAX mapped over the chains: ``make(n)`` is (init(x), step(key, state, lr), x(state)) of one."""
    import jax

    init, step, position = make(n)

    def advance(seed: Any, state: Any, lr: Any) -> Any:
        return jax.vmap(step, (0, 0, None))(jax.random.split(jax.random.key(seed), len(begun)), state, lr)

    return jax.vmap(init)(jax.numpy.asarray(begun)), jax.jit(advance), position


def log_density(n: float) -> Callable[[Any], Any]:
    """Log posterior density of a pair, in JAX's operations."""
    return lambda x: -0.5 * n * (x @ PRECISION.astype(np.float32) @ x)


def microcanonical(begun: np.ndarray, n: float) -> Any:
    """blackjax's MCLMC on all pairs at once, with L and step size from its own tuning; ``lr`` is not used."""
    import blackjax
    import jax

    def density(x: Any) -> Any:
        return jax.vmap(log_density(n))(x.reshape(-1, 2)).sum()

    kernel, key = blackjax.mcmc.mclmc.build_kernel(), jax.random.key(0)
    state = blackjax.mcmc.mclmc.init(jax.numpy.asarray(begun).ravel(), density, key)
    state, tuned, *_ = blackjax.mclmc_find_L_and_step_size(kernel, 3000, state, key, logdensity_fn=density)
    settings = density, tuned.inverse_mass_matrix, tuned.L, tuned.step_size
    advance = jax.jit(lambda seed, state, lr: kernel(jax.random.key(seed), state, *settings)[0])
    return state, advance, lambda state: state.position.reshape(-1, 2)


def numpyro_hmc(begun: np.ndarray, n: float) -> Any:
    """NumPyro's ``MCMC(HMC(...))`` with its defaults: a warm-up of 500 that finds step size and mass, then draws."""
    import jax
    from numpyro.infer import HMC, MCMC

    density, many = log_density(n), {"num_chains": len(begun), "chain_method": "vectorized", "progress_bar": False}
    mcmc = MCMC(HMC(potential_fn=lambda x: -density(x)), num_warmup=500, num_samples=1000, **many)
    mcmc.run(jax.random.PRNGKey(0), init_params=jax.numpy.asarray(begun))

    def advance(seed: int, draws: list[np.ndarray], lr: float) -> list[np.ndarray]:
        if len(draws) > 1:
            return draws[1:]
        mcmc.post_warmup_state = mcmc.last_state
        mcmc.run(mcmc.post_warmup_state.rng_key)
        return list(np.asarray(mcmc.get_samples(group_by_chain=True)).swapaxes(0, 1))

    return [], advance, lambda draws: draws[0]


def mean_field(begun: np.ndarray, n: float) -> Any:
    """bayesian-torch: a mean-field layer trained by the loss of its README, then draws of its Gaussian."""
    import torch
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
    prior = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
    dnn_to_bnn(model, {**prior, "type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5})
    rows = torch.as_tensor(np.linalg.cholesky(PRECISION).T, dtype=torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for t in range(4000):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - t / 4000)
        optimizer.zero_grad()
        (0.5 * model(rows).square().sum() + get_kl_loss(model) / 128).backward()
        optimizer.step()
    layer: Any = model[0]
    mean = layer.mu_weight.detach().numpy()
    deviation = torch.nn.functional.softplus(layer.rho_weight).detach().numpy()

    def advance(seed: int, state: Any, lr: float) -> np.ndarray:
        return mean + deviation * np.random.default_rng(seed).standard_normal((CHAINS, 2))

    return begun, advance, np.asarray
