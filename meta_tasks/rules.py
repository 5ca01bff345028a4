"""Update rules as the inner loop runs them: P members, each with its own meta-parameters.

A `SamplerRule` wraps one pure rule of `learned_samplers` (the very function that the optimizer of the same name calls)
and says how a flat vector of meta-parameters becomes its network. The trainer knows nothing else of a sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from learned_samplers.cyclical import cyclical_phase
from learned_samplers.l2e_features import Segments, feature_set_named, features
from learned_samplers.l2e_network import build_network, flatten, layers_of, shapes_of, unflatten
from learned_samplers.l2e_rule import Phi, apply_network, l2e_paper_rule, l2e_residual_rule
from learned_samplers.precond_rule import l2e_precond_rule
from learned_samplers.sghmc import sghmc_rule
from meta_tasks.random_streams import generator
from meta_tasks.task import Hyperparameters

__all__ = ["CyclicalRule", "L2ERule", "LearnableSGD", "SGHMCRule", "SamplerRule"]

State = tuple[Tensor, ...]


class SamplerRule:
    """Base class: a rule without meta-parameters and without state.

    `num_weights` is n, the number of meta-parameters; meta-parameters of P members are (P, n).
    """

    name: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]] = ()
    num_weights: int = 0

    def specification(self) -> dict[str, Any]:
        """Plain values that say which sampler the meta-parameters belong to, for checkpoints and weight cards."""
        return {"sampler": self.name}

    def initial_weights(self, seed: int) -> Tensor:
        """Meta-parameters (n,) of the untrained sampler."""
        return torch.zeros(self.num_weights)

    def prepare(self, weights: Tensor) -> Any:
        """What `update` needs of the meta-parameters (P, n), computed once for many steps."""
        return None

    def initial_state(self, parameter: Tensor) -> State:
        """The state of members at parameters (P, d)."""
        return tuple(torch.zeros_like(parameter) for _ in self.state_names)

    def draws_noise(self, hyper: Hyperparameters, step: int) -> bool:
        """Whether step ``step`` = 0, 1, … draws noise."""
        return hyper.temperature > 0

    def update(
        self, prepared: Any, parameter: Tensor, gradient: Tensor, noise: Tensor | None, state: State, *,
        segments: Segments, hyper: Hyperparameters, step: int,
    ) -> tuple[Tensor, State]:  # fmt: skip
        """One step: new parameters (P, d) and state; nothing is changed in place."""
        raise NotImplementedError

    def output_scales(
        self, prepared: Any, parameter: Tensor, gradient: Tensor, state: State, *, segments: Segments,
        hyper: Hyperparameters, step: int,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Root mean squares (P,) of what the network puts out, by name; for logging."""
        return {}

    def figures(self, weights: Tensor) -> dict[str, Any]:
        """matplotlib figures of meta-parameters (n,), by name; for logging."""
        return {}


def _sghmc(hyper: Hyperparameters, **changes: float) -> dict[str, Any]:
    arguments = dict(
        lr=hyper.lr, num_data=hyper.num_data, temperature=hyper.temperature, prior_precision=hyper.prior_precision,
        momentum_decay=hyper.momentum_decay,
    )  # fmt: skip
    return {**arguments, **changes}


class SGHMCRule(SamplerRule):
    """`learned_samplers.SGHMC`."""

    name = "sghmc"
    state_names = ("momentum",)

    def update(self, prepared, parameter, gradient, noise, state, *, segments, hyper, step):
        parameter, momentum = sghmc_rule(parameter, gradient, noise, *state, **_sghmc(hyper))
        return parameter, (momentum,)


class CyclicalRule(SamplerRule):
    """`learned_samplers.CyclicalSGMCMC` over SGHMC; the task's lr is the peak.

    Args:
        cycle_length: K, in steps.
        exploration_ratio: share of a cycle without noise.
    """

    name = "cyclical"
    state_names = ("momentum",)

    def __init__(self, cycle_length: int, exploration_ratio: float = 0.8) -> None:
        self.cycle_length, self.exploration_ratio = cycle_length, exploration_ratio

    def draws_noise(self, hyper, step):
        return hyper.temperature > 0 and cyclical_phase(step + 1, self.cycle_length, self.exploration_ratio)[1]

    def update(self, prepared, parameter, gradient, noise, state, *, segments, hyper, step):
        factor, _ = cyclical_phase(step + 1, self.cycle_length, self.exploration_ratio)
        parameter, momentum = sghmc_rule(parameter, gradient, noise, *state, **_sghmc(hyper, lr=hyper.lr * factor))
        return parameter, (momentum,)


class LearnableSGD(SamplerRule):
    """The smallest meta-learner, to try the machinery with: SGD with a learned learning rate and momentum.

    With meta-parameters (φ₀, φ₁): v ← μ·v + g, θ ← θ − lr·exp(φ₀)·v, with μ = sigmoid(φ₁ − 2).
    """

    name = "learnable_sgd"
    state_names = ("momentum",)
    num_weights = 2

    def draws_noise(self, hyper, step):
        return False

    def prepare(self, weights):
        return weights[:, :1].exp(), torch.sigmoid(weights[:, 1:] - 2)

    def update(self, prepared, parameter, gradient, noise, state, *, segments, hyper, step):
        factor, decay = prepared
        momentum = decay * state[0] + gradient
        return parameter - hyper.lr * factor * momentum, (momentum,)


class L2ERule(SamplerRule):
    """`learned_samplers.L2E` in its residual or its paper form, or `learned_samplers.PrecondL2E`.

    Args:
        form: "residual" or "preconditioner" (the last layer starts at zero: the sampler is SGHMC), or "paper" (Eq. 6;
            starts at random).
        feature_set: name of what the network sees, see `learned_samplers.l2e_features`.
        hidden: widths of the network's hidden layers.
        options: further keyword arguments of the rule, such as ``alpha_scale``, ``beta_scale`` or ``output_bound``.

    Raises:
        ValueError: an unknown form or feature set.
    """

    name = "l2e"
    state_names = ("momentum", "averages")
    _rules: ClassVar[dict[str, Any]] = {
        "residual": l2e_residual_rule,
        "paper": l2e_paper_rule,
        "preconditioner": l2e_precond_rule,
    }

    def __init__(
        self, form: str = "residual", feature_set: str = "paper", hidden: Sequence[int] = (32, 32), **options: Any
    ) -> None:
        if form not in self._rules:
            raise ValueError(f"form must be one of {', '.join(map(repr, self._rules))}, got {form!r}")
        self.form, self.feature_set, self.hidden, self.options = form, feature_set, tuple(hidden), options
        self._num_averages = feature_set_named(feature_set).num_averages
        self._shapes = shapes_of(layers_of(build_network(feature_set, self.hidden)))
        self.num_weights = sum(out * (into + 1) for out, into in self._shapes)

    def specification(self) -> dict[str, Any]:
        return {
            "sampler": self.name, "form": self.form, "feature_set": self.feature_set, "hidden": list(self.hidden),
            **self.options,
        }  # fmt: skip

    def initial_weights(self, seed: int) -> Tensor:
        network = build_network(
            self.feature_set, self.hidden, zero_last=self.form != "paper", generator=generator(seed, "network")
        )
        return flatten(layers_of(network)).detach().clone()

    def prepare(self, weights: Tensor) -> Phi:
        return [(weight.contiguous(), bias.contiguous()) for weight, bias in unflatten(weights, self._shapes)]

    def initial_state(self, parameter: Tensor) -> State:
        members, d = parameter.shape
        return torch.zeros_like(parameter), parameter.new_zeros(members, self._num_averages, d)

    def update(self, prepared, parameter, gradient, noise, state, *, segments, hyper, step):
        parameter, *state = self._rules[self.form](
            parameter, gradient, noise, *state, phi=prepared, segments=segments, step=step,
            feature_set=self.feature_set, **_sghmc(hyper), **self.options,
        )  # fmt: skip
        return parameter, tuple(state)

    def output_scales(self, prepared, parameter, gradient, state, *, segments, hyper, step):
        momentum, averages = state
        x = features(
            parameter, momentum, gradient, averages, segments, self.feature_set,
            lr=hyper.lr, num_data=hyper.num_data, step=step,
        )  # fmt: skip
        alpha, beta = apply_network(prepared, x, output_bound=self.options.get("output_bound"))
        return {name: y.square().mean(-1).sqrt() for name, y in (("alpha", alpha), ("beta", beta))}

    def network(self, weights: Tensor) -> nn.Module:
        """The network of meta-parameters (n,), as the optimizer takes it."""
        network = build_network(self.feature_set, self.hidden)
        nn.utils.vector_to_parameters(weights.detach().cpu(), network.parameters())
        return network

    def card(self) -> dict[str, Any]:
        """The fields of a weight card that say which sampler the network belongs to."""
        return {
            "sampler": "PrecondL2E" if self.form == "preconditioner" else "L2E", "form": self.form,
            "feature_set": self.feature_set, "features": list(feature_set_named(self.feature_set).names),
            "scales": dict(self.options), "badge": "heuristic",
        }  # fmt: skip

    def figures(self, weights: Tensor) -> dict[str, Any]:
        from meta_tasks.figures import output_contours

        return {"contours": output_contours(self.prepare(weights), self.feature_set, self.options.get("output_bound"))}
