"""The samplers: of other packages at the arguments of their examples, of two published sources as functions, and ours.

A package is imported when one of its samplers begins. Step sizes are in the package's units; where these are of the
sum of the losses, they are divided by N, so that the stiffness is that of the example at every N.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from experiments.audit.chains import JaxChain, PosteriorsChain, TorchChain, gradient_estimate, log_density
from experiments.audit.measure import CHAINS, PRECISION


@dataclass(frozen=True)
class Subject:
    """A sampler under test.

    Args:
        package: on the registry; "ours"; or "source" for a rule written from its published source.
        begin: from first positions, N and keywords to a `measure.Chain`.
        lr: step size of its example, as a function of N.
        burn_in: keyword of the number of steps for which its state adapts, if it has one.
        decay: whether it has a weight decay, in units of the mean loss, or a prior.
        skip: steps before anything is measured, of a long burn-in.
        saves: whether there is a state to save.
        schedule: whether the step size may change from step to step.
        posterior: how to get the posterior from it.
    """

    package: str
    name: str
    begin: Callable[..., Any]
    lr: Callable[[float], float]
    posterior: str
    source: str
    burn_in: str = ""
    decay: bool = True
    skip: int = 0
    saves: bool = True
    schedule: bool = True

    @property
    def make(self) -> Callable[..., Any] | None:
        """Maker of the torch optimizer, from parameters, N and keywords."""
        return getattr(self.begin, "make", None)


def torch_chain(make: Callable[..., Any]) -> Callable[..., Any]:
    begin = partial(TorchChain, make)
    begin.make = make  # type: ignore[attr-defined]
    return begin


def jax_chain(make: Callable[..., Any]) -> Callable[..., Any]:
    return partial(JaxChain, make)


def constant(lr: float) -> Callable[[float], float]:
    """A step size of the mean loss."""
    return lambda n: lr


def over_n(lr: float, n_example: float) -> Callable[[float], float]:
    """A step size of the sum of the losses, of an example with so many data."""
    return lambda n: lr * n_example / n


def _root_n(lr: float, n_example: float) -> Callable[[float], float]:
    """A step size whose square goes with 1/N."""
    return lambda n: lr * math.sqrt(n_example / n)


# torch-uncertainty and lightning-uq-box


def _uncertainty(name: str) -> Callable[..., Any]:
    def make(params: Any, n: float, decay: float = 0.0, **settings: Any) -> Any:
        import torch_uncertainty.optim as optim

        return getattr(optim, name)(params, weight_decay=decay, **settings)

    return torch_chain(make)


def _uq_box(params: Any, n: float, decay: float = 0.0) -> Any:
    from lightning_uq_box.uq_methods.sgld import SGLD

    return SGLD(params, lr=2e-4, noise_factor=0.01, weight_decay=decay)


# posteriors: the mean log posterior, at temperature 1/N, as its documentation recommends


def _posteriors(name: str, **settings: Any) -> Callable[..., Any]:
    def build(log_posterior: Any, lr: Any, temperature: float) -> Any:
        import posteriors

        return getattr(posteriors.sgmcmc, name).build(log_posterior, lr, temperature=temperature, **settings)

    return partial(PosteriorsChain, build)


# blackjax and sgmcmcjax


def _blackjax(name: str, *arguments: Any) -> Callable[..., Any]:
    def make(n: float) -> Any:
        import blackjax

        algorithm = getattr(blackjax, name)(gradient_estimate(n), *arguments)
        return algorithm.init, lambda key, x, lr: algorithm.step(key, x, None, lr), lambda x: x

    return jax_chain(make)


class MicrocanonicalChain(JaxChain):
    """blackjax's MCLMC on all pairs at once, with L and step size from its own tuning; ``lr`` is not used."""

    def __init__(self, begun: np.ndarray, n: float):
        import blackjax
        import jax

        one = log_density(n)

        def density(x: Any) -> Any:
            return jax.vmap(one)(x.reshape(-1, 2)).sum()

        kernel, key = blackjax.mcmc.mclmc.build_kernel(), jax.random.key(0)
        position = jax.numpy.asarray(begun, "float32").ravel()
        state = blackjax.mcmc.mclmc.init(position, density, key)
        state, tuned, *_ = blackjax.mclmc_find_L_and_step_size(kernel, 3000, state, key, logdensity_fn=density)
        scale, length, size = tuned.inverse_mass_matrix, tuned.L, tuned.step_size
        self.jax, self.state = jax, state
        self.advance = jax.jit(lambda key, s: kernel(key, s, density, scale, length, size)[0])
        self.reseed(0)

    def step(self, lr: float) -> np.ndarray:
        self.key, key = self.jax.random.split(self.key)
        self.state = self.advance(key, self.state)
        return np.asarray(self.state.position).reshape(-1, 2)


def _sgmcmcjax(name: str, *arguments: Any) -> Callable[..., Any]:
    def make(n: float) -> Any:
        import jax.numpy as jnp
        from sgmcmcjax import kernels

        data, one = (jnp.zeros((int(n), 1)),), log_density(1.0)

        def built(lr: Any) -> Any:
            return getattr(kernels, name)(lr, *arguments, lambda x, row: one(x), lambda x: 0.0, data, int(0.1 * n))

        init, _, position = built(1e-5)
        return (
            lambda x: init(_key(), x),
            lambda key, state, lr: built(lr)[1](0, key, state),
            lambda state: position(state),
        )

    return jax_chain(make)


def _key() -> Any:
    import jax

    return jax.random.PRNGKey(0)


class NumPyroChain:
    """NumPyro's ``MCMC(HMC(...))`` with its defaults: a warm-up of 500 that finds step size and mass, then draws."""

    def __init__(self, begun: np.ndarray, n: float):
        import jax
        from numpyro.infer import HMC, MCMC

        density = log_density(n)
        kernel = HMC(potential_fn=lambda x: -density(x))
        many = {"num_chains": 50, "chain_method": "vectorized"}
        self.mcmc = MCMC(kernel, num_warmup=500, num_samples=1000, progress_bar=False, **many)
        self.mcmc.run(jax.random.PRNGKey(0), init_params=jax.numpy.asarray(begun[:50], "float32"))
        self.draws: list[np.ndarray] = []

    def step(self, lr: float) -> np.ndarray:
        if not self.draws:
            self.mcmc.post_warmup_state = self.mcmc.last_state
            self.mcmc.run(self.mcmc.post_warmup_state.rng_key)
            self.draws = list(np.asarray(self.mcmc.get_samples(group_by_chain=True)).swapaxes(0, 1))
        return self.draws.pop()


# Variational Gaussians


class GaussianChain:
    """bayesian-torch: a mean-field layer trained by the loss of its README, then draws of its Gaussian."""

    def __init__(self, begun: np.ndarray, n: float):
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
        self.mean = layer.mu_weight.detach().numpy().ravel()
        self.deviation = torch.nn.functional.softplus(layer.rho_weight).detach().numpy().ravel()
        self.generator = np.random.default_rng(0)

    def step(self, lr: float) -> np.ndarray:
        return self.mean + self.deviation * self.generator.standard_normal((CHAINS, 2))


def _ivon(params: Any, n: float, decay: float = 0.0) -> Any:
    import ivon

    return ivon.IVON(params, lr=0.1, ess=n, weight_decay=decay or 1e-4)


# Rules written from their published sources, for no package of theirs is on the registry


def _pysgmcmc(params: Any, n: float, burn_in: int = 3000) -> Any:
    """SGHMC of pysgmcmc (`pysgmcmc.optimizers.sghmc`, after Springenberg et al. 2016, eq. 10) on the mean loss."""
    import torch

    class SGHMC(torch.optim.Optimizer):
        count = 0

        @torch.no_grad()
        def step(self, closure: Any) -> None:  # type: ignore[override]
            closure()
            for group in self.param_groups:
                lr, decay = group["lr"], 0.05
                for p in group["params"]:
                    state = self.state[p]
                    if not state:
                        state |= {name: torch.ones_like(p) for name in ("tau", "g", "v_hat")}
                        state["momentum"] = torch.zeros_like(p)
                    tau, g, v = state["tau"], state["g"], state["v_hat"]
                    if self.count < burn_in:  # rates of the averages before they are renewed, as there
                        r, ratio = 1 / (tau + 1), g * g / v
                        g += r * (p.grad - g)
                        v += r * (p.grad**2 - v)
                        tau += 1 - tau * ratio
                    inverse, scaled = v.rsqrt(), lr / math.sqrt(n)
                    noise = (2 * scaled**2 * decay * inverse - scaled**4).clamp(min=1e-16).sqrt()
                    state["momentum"] += -(lr**2) * inverse * p.grad - decay * state["momentum"]
                    state["momentum"] += noise * torch.randn_like(p)
                    p += state["momentum"]
            self.count += 1

    return SGHMC(params, {"lr": 0.01})


def _csgmcmc(params: Any, n: float, decay: float = 5e-4) -> Any:
    """The update of csgmcmc's CIFAR script while it samples, with its default temperature, 1/N."""
    import torch

    class SGHMC(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any) -> None:  # type: ignore[override]
            closure()
            for group in self.param_groups:
                lr, alpha, temperature = group["lr"], 0.9, 1 / n
                for p in group["params"]:
                    momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    p.grad.add_(p, alpha=decay)
                    momentum.mul_(1 - alpha).sub_(lr * p.grad)
                    momentum.add_(torch.randn_like(p), alpha=math.sqrt(2 * lr * alpha * temperature / n))
                    p.add_(momentum)

    return SGHMC(params, {"lr": 0.5})


def _ours() -> list[Subject]:
    from learned_samplers.benchmark.run import default_lr
    from learned_samplers.table import SAMPLERS

    def subject(entry: Any) -> Subject:
        def make(params: Any, n: float, decay: float = 0.0) -> Any:
            prior = {"prior_precision": n * decay} if decay else {}
            return entry(params, num_data=n, **prior)

        lr = default_lr(entry) or 0.05
        line = "the temperature is an argument, 1 by default"
        return Subject("ours", entry.name, torch_chain(make), constant(lr), line, "table of samplers")

    return [subject(entry) for entry in SAMPLERS.values()]


_FACTOR = "`noise_factor = 1/sqrt(N)` gives temperature 1"
_SMALLER = "as it is; lower the step size for less bias"
_MEAN_FIELD = "a Gaussian with independent weights, for which 0.2 / 1.8 is right here"
_FRICTION = {"alpha": 1.0, "momenta": 0.0}
_ONCE: dict[str, Any] = {"decay": False, "schedule": False}


def _subjects() -> Iterator[Subject]:
    """Every sampler of others: package, name, chain, step size, how to get the posterior, whose arguments."""
    name = "torch-uncertainty"
    yield Subject(name, "SGLD", _uncertainty("SGLD"), constant(1e-3), _FACTOR, "its defaults")
    counted = (
        f"{_FACTOR}; `burn_in_steps` counts every tensor: multiply it by their number; `state_dict` lacks the count"
    )
    make = _uncertainty("SGHMC")
    yield Subject(name, "SGHMC", make, constant(1e-2), counted, "its defaults", burn_in="burn_in_steps")
    yield Subject("lightning-uq-box", "SGLD", torch_chain(_uq_box), constant(2e-4), _FACTOR, "its SGLD tutorial")
    for name, settings, note in (
        ("sgld", {}, "the mean log posterior and `temperature=1/N`"),
        ("sghmc", _FRICTION, "likewise, with a friction above lr times curvature"),
        ("baoa", _FRICTION, "likewise"),
        ("sgnht", _FRICTION, "likewise"),
    ):
        make = _posteriors(name, **settings)
        yield Subject(
            "posteriors", name.upper(), make, constant(0.1), note, "settings of its IMDB example", decay=False
        )
    name, example = "blackjax", over_n(4.5e-6, 60_000)
    yield Subject(name, "SGLD", _blackjax("sgld"), example, _SMALLER, "the Sampling Book's MNIST", decay=False)
    make, example = _blackjax("sghmc", 10), _root_n(1e-3, 1000)
    yield Subject(name, "SGHMC", make, example, _SMALLER, "its docstring, taken for N = 1,000", decay=False)
    tuned = "as it is, with `mclmc_find_L_and_step_size`"
    yield Subject(name, "MCLMC", MicrocanonicalChain, constant(1.0), tuned, "its tuning of 3,000 steps", **_ONCE)
    name, example = "sgmcmcjax", over_n(1e-5, 10_000)
    yield Subject(name, "SGLD", _sgmcmcjax("build_sgld_kernel"), example, _SMALLER, "its README", decay=False)
    make = _sgmcmcjax("build_psgld_kernel")
    yield Subject(name, "pSGLD", make, example, _SMALLER, "`dt` of its README", decay=False)
    defaults = "its defaults, a warm-up of 500"
    yield Subject("numpyro", "HMC", NumPyroChain, constant(1.0), "as it is", defaults, saves=False, **_ONCE)
    note = f"as it is, with `ess=N`, keeping `current_step` beside `state_dict`: {_MEAN_FIELD}"
    yield Subject("ivon-opt", "IVON", torch_chain(_ivon), constant(0.1), note, "its README", **_ONCE)
    note = f"add its KL times the number of weights (it is a mean over them) over N: {_MEAN_FIELD}"
    whose = "the loss of its README, batches of 128"
    yield Subject("bayesian-torch", "mean field", GaussianChain, constant(0.01), note, whose, saves=False, **_ONCE)
    note, long = "as it is, with `scale_grad=N`", {**_ONCE, "burn_in": "burn_in", "skip": 3000, "saves": False}
    yield Subject("source", "pysgmcmc SGHMC", torch_chain(_pysgmcmc), constant(1e-2), note, "its defaults", **long)
    note = "`--temperature 1` gives temperature 1"
    yield Subject("source", "csgmcmc cSGHMC", torch_chain(_csgmcmc), constant(0.5), note, "its CIFAR-10 script")


def of_package(package: str) -> list[Subject]:
    """Subjects of a package, or ours."""
    return _ours() if package == "ours" else [s for s in _subjects() if s.package == package]
