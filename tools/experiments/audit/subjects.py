"""The samplers: of other packages at their examples' settings, of two published sources as functions, and ours."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from experiments.audit import chains
from experiments.audit.measure import PRECISION


@dataclass(frozen=True)
class Subject:
    """A sampler under test, at the settings of an example. A package is imported when its chain begins."""

    name: str  # of package and sampler, as the table shows it
    begin: partial[Any]  # from first positions, N and keywords to a chain
    lr: float  # step size of the example, in the package's units; 0 where it is tuned
    example: str  # whose settings these are
    posterior: str  # how to get the posterior from it
    data: float = 1.0  # number of data of the example, where its step size is one of the sum of the losses
    power: float = 0.0  # power of 1/N of the step size then: the stiffness is the example's at every N
    burn_in: str = ""  # keyword of the number of steps for which its state adapts
    decay: bool = False  # whether it has a weight decay, in units of the mean loss, or a prior
    skip: int = 0  # steps before anything is measured
    least: int = 0  # steps until its state can have settled
    saves: bool = True  # whether there is a state to save
    schedule: bool = True  # whether the step size may change from step to step

    def rate(self, n: float) -> float:
        """The step size at N data."""
        return self.lr * (self.data / n) ** self.power

    @property
    def make(self) -> Callable[..., Any] | None:
        """Maker of the torch optimizer, from parameters, N and keywords."""
        return self.begin.args[0] if self.begin.func is chains.TorchChain else None


def _torch(make: Callable[..., Any], *arguments: Any) -> partial[Any]:
    return partial(chains.TorchChain, partial(make, *arguments))


def _state(build: Callable[..., Any], *arguments: Any) -> partial[Any]:
    return partial(chains.StateChain, partial(build, *arguments))


def _optimizer(module: str, name: str, **settings: Any) -> Any:
    def make(params: Any, n: float, decay: float = 0.0, **more: Any) -> Any:
        return getattr(importlib.import_module(module), name)(params, weight_decay=decay, **settings, **more)

    return _torch(make)


def _ivon(params: Any, n: float) -> Any:
    import ivon

    return ivon.IVON(params, lr=0.1, ess=n, weight_decay=1e-4)


def _blackjax(name: str, *arguments: Any) -> Any:
    def make(n: float) -> Any:
        import blackjax

        algorithm = getattr(blackjax, name)(lambda x, batch: -n * (x @ PRECISION.astype("float32")), *arguments)
        return algorithm.init, lambda key, x, lr: algorithm.step(key, x, None, lr), lambda x: x

    return _state(chains.jax_kernel, make)


def _sgmcmcjax(name: str) -> Any:
    def make(n: float) -> Any:
        import jax
        from sgmcmcjax import kernels

        data, one = (jax.numpy.zeros((int(n), 1)),), chains.log_density(1.0)

        def built(lr: Any) -> Any:
            return getattr(kernels, name)(lr, lambda x, row: one(x), lambda x: 0.0, data, int(0.1 * n))

        init, _, position = built(1e-5)
        return lambda x: init(jax.random.PRNGKey(0), x), lambda key, s, lr: built(lr)[1](0, key, s), position

    return _state(chains.jax_kernel, make)


def _rule(update: Callable[..., Any], lr: float, params: Any, n: float, **settings: Any) -> Any:
    """An optimizer of ``update(p, state, lr, count, n, **settings)``."""
    import torch

    class Rule(torch.optim.Optimizer):
        count = 0

        @torch.no_grad()
        def step(self, closure: Any) -> None:  # type: ignore[override]
            closure()
            for group in self.param_groups:
                for p in group["params"]:
                    update(p, self.state[p], group["lr"], self.count, n, **settings)
            self.count += 1

    return Rule(params, {"lr": lr})


def _pysgmcmc(p: Any, state: Any, lr: float, count: int, n: float, burn_in: int = 3000) -> None:
    """SGHMC of pysgmcmc (`pysgmcmc.optimizers.sghmc`, after Springenberg et al. 2016, eq. 10) on the mean loss."""
    if not state:
        state |= {name: p.new_ones(p.shape) for name in ("tau", "g", "v_hat")} | {"momentum": p.new_zeros(p.shape)}
    tau, g, v, decay = state["tau"], state["g"], state["v_hat"], 0.05
    if count < burn_in:  # rates of the averages before they are renewed, as there
        r, ratio = 1 / (tau + 1), g * g / v
        g += r * (p.grad - g)
        v += r * (p.grad**2 - v)
        tau += 1 - tau * ratio
    inverse, scaled = v.rsqrt(), lr / math.sqrt(n)
    noise = (2 * scaled**2 * decay * inverse - scaled**4).clamp(min=1e-16).sqrt()
    state["momentum"] += (
        -(lr**2) * inverse * p.grad - decay * state["momentum"] + noise * p.new_empty(p.shape).normal_()
    )
    p += state["momentum"]


def _csgmcmc(p: Any, state: Any, lr: float, count: int, n: float, decay: float = 5e-4) -> None:
    """The update of csgmcmc's CIFAR script while it samples, with its default temperature, 1/N."""
    momentum = state.setdefault("momentum", p.new_zeros(p.shape))
    p.grad.add_(p, alpha=decay)
    momentum.mul_(1 - 0.9).sub_(lr * p.grad)
    momentum.add_(p.new_empty(p.shape).normal_(), alpha=math.sqrt(2 * lr * 0.9 / n / n))
    p.add_(momentum)


def ours() -> list[Subject]:
    """Samplers of the table."""
    import torch

    from learned_samplers.benchmark.run import default_lr
    from learned_samplers.table import SAMPLERS

    def make(entry: Any, params: Any, n: float, decay: float = 0.0) -> Any:
        return entry(params, num_data=n, **({"prior_precision": n * decay} if decay else {}))

    def subject(entry: Any) -> Subject:
        begin, lr = _torch(make, entry), default_lr(entry, [torch.zeros(2, 2, requires_grad=True)], 1000) or 0.05
        least = round(1 / (1 - entry.example.param_groups[0]["betas"][1])) if entry.name == "IVON" else 0
        return Subject(entry.name, begin, lr, "table of samplers", "", decay=True, least=least)

    return [subject(entry) for entry in SAMPLERS.values()]


_FACTOR = "`noise_factor = 1/sqrt(N)` gives temperature 1"
_COUNTED = "`burn_in_steps` counts every tensor: multiply it by their number; `state_dict` lacks the count"
_BORROWED = "no example of its own; settings of the SGHMC of its IMDB example"
_MNIST = "the Sampling Book's MNIST"
_STABLE = "as it is; N times the step times the largest curvature must be below 2, and is 5.4 on this target"
_GAUSSIAN = "a Gaussian with independent weights, for which 0.2 / 1.8 is right here"
_FRICTION = {"alpha": 1.0, "momenta": 0.0}
_ONCE: dict[str, Any] = {"schedule": False, "saves": False}


def _of_posteriors(name: str, example: str, posterior: str, **settings: Any) -> Subject:
    return Subject(name.upper(), _state(chains.posteriors_transform, name, settings), 0.1, example, posterior)


#: Package on the registry, or "source" → its samplers.
SUBJECTS: dict[str, list[Subject]] = {
    "source": [
        Subject("pysgmcmc SGHMC", _torch(_rule, _pysgmcmc, 0.01), 0.01, "its defaults",
                "as it is, with `scale_grad=N`", burn_in="burn_in", skip=3000, **_ONCE),
        Subject("csgmcmc cSGHMC", _torch(_rule, _csgmcmc, 0.5), 0.5, "its CIFAR-10 script",
                "`--temperature 1` gives temperature 1", decay=True),
    ],
    "torch-uncertainty": [
        Subject("SGLD", _optimizer("torch_uncertainty.optim", "SGLD"), 1e-3, "its defaults", _FACTOR, decay=True),
        Subject("SGHMC", _optimizer("torch_uncertainty.optim", "SGHMC"), 1e-2, "its defaults",
                f"{_FACTOR}; {_COUNTED}", decay=True, burn_in="burn_in_steps"),
    ],
    "lightning-uq-box": [
        Subject("SGLD", _optimizer("lightning_uq_box.uq_methods.sgld", "SGLD", lr=1e-4, noise_factor=0.2), 1e-4,
                "no tutorial of its own; settings of its SGLD test configuration, without the weight decay", _FACTOR,
                decay=True),
    ],
    "posteriors": [
        _of_posteriors("sgld", _BORROWED, "the mean log posterior and `temperature=1/N`"),
        _of_posteriors("sghmc", "its IMDB example", "likewise, with a friction above lr times curvature", **_FRICTION),
        _of_posteriors("baoa", _BORROWED, "likewise", **_FRICTION),
        _of_posteriors("sgnht", _BORROWED, "likewise", **_FRICTION),
    ],
    "blackjax": [
        Subject("SGLD", _blackjax("sgld"), 4.5e-5, _MNIST, _STABLE, 60_000, 1.0),
        Subject("SGLD, a tenth of that step", _blackjax("sgld"), 4.5e-6, _MNIST, "as it is", 60_000, 1.0),
        Subject("SGHMC", _blackjax("sghmc", 10), 1e-3, "its docstring, which names no N: taken for 1,000", "as it is",
                1000, 0.5),
        Subject("MCLMC", _state(chains.microcanonical), 0.0, "its tuning of 3,000 steps",
                "as it is, with `mclmc_find_L_and_step_size`", schedule=False),
    ],
    "sgmcmcjax": [
        Subject("SGLD", _sgmcmcjax("build_sgld_kernel"), 1e-5, "its README", "as it is", 10_000, 1.0),
        Subject("pSGLD", _sgmcmcjax("build_psgld_kernel"), 1e-3, "its MNIST notebook", "as it is", 60_000, 0.5),
    ],
    "numpyro": [Subject("HMC", _state(chains.numpyro_hmc), 0.0, "its defaults, a warm-up of 500", "as it is", **_ONCE)],
    "ivon-opt": [
        Subject("IVON", _torch(_ivon), 0.1, "its README",
                f"as it is, with `ess=N`, keeping `current_step` beside `state_dict`: {_GAUSSIAN}", schedule=False,
                least=100_000),
    ],
    "bayesian-torch": [
        Subject("mean field", _state(chains.mean_field), 0.01, "the loss of its README, batches of 128, Adam",
                f"add its KL times the number of weights (it is a mean over them) over N: {_GAUSSIAN}", **_ONCE),
    ],
}  # fmt: skip
