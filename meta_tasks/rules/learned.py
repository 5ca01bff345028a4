"""The learned samplers' update rules as the inner loop runs them: L2E in its forms, Kinetic-L2E, and Meta-SGMCMC."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from learned_samplers.learned.features import feature_set_named, features, update_averages
from learned_samplers.learned.kinetic.rule import KINETIC_FEATURES, kinetic_mean, l2e_kinetic_rule
from learned_samplers.learned.l2e.measures import term_contributions
from learned_samplers.learned.l2e.rule import l2e_paper_rule, l2e_residual_rule
from learned_samplers.learned.meta_sgmcmc.network import META_FEATURES, build_meta_network, meta_features
from learned_samplers.learned.meta_sgmcmc.rule import meta_sgmcmc_rule
from learned_samplers.learned.network import Phi, apply_network, build_network, flatten, layers_of, shapes_of, unflatten
from learned_samplers.learned.preconditioned.rule import l2e_precond_rule
from learned_samplers.learned.weights import load as load_weights
from meta_tasks.random_streams import generator
from meta_tasks.rules.base import SamplerRule, State, arguments_of

__all__ = ["KineticRule", "L2ERule", "MetaSGMCMCRule", "NetworkRule"]

_L2E_RULES: dict[str, Callable[..., Any]] = {
    "residual": l2e_residual_rule,
    "paper": l2e_paper_rule,
    "preconditioner": l2e_precond_rule,
}


class NetworkRule(SamplerRule):
    """A rule whose meta-parameters are the weights of one coordinate-wise network, laid end to end.

    Args:
        inputs: name of the network's feature set, or number of its inputs.
        outputs: number of its outputs.
        hidden: widths of its hidden layers.
        zero_last: whether the last layer starts at zero.
        options: further keyword arguments of the pure rule.
    """

    def __init__(
        self, inputs: str | int, outputs: int, hidden: Sequence[int], zero_last: bool, options: dict[str, Any]
    ) -> None:
        self._inputs, self._outputs, self._zero_last = inputs, outputs, zero_last
        self.hidden, self.options = tuple(hidden), options
        self._shapes = shapes_of(layers_of(build_network(inputs, self.hidden, outputs)))
        self.num_weights = sum(out * (into + 1) for out, into in self._shapes)

    def initial_weights(self, seed: int) -> Tensor:
        stream = generator(seed, "network")
        network = build_network(self._inputs, self.hidden, self._outputs, zero_last=self._zero_last, generator=stream)
        return flatten(layers_of(network)).detach().clone()

    def prepare(self, weights: Tensor) -> Phi:
        return [(weight.contiguous(), bias.contiguous()) for weight, bias in unflatten(weights, self._shapes)]

    def network(self, weights: Tensor) -> nn.Module:
        """The network of meta-parameters (n,), as the optimizer takes it."""
        network = build_network(self._inputs, self.hidden, self._outputs)
        nn.utils.vector_to_parameters(weights.detach().cpu(), network.parameters())
        return network

    def card(self) -> dict[str, Any]:
        """The fields of a weight card that say which sampler the network belongs to."""
        raise NotImplementedError


class L2ERule(NetworkRule):
    """`learned_samplers.L2E` in its residual or its paper form, or `learned_samplers.PrecondL2E`.

    Args:
        form: "residual" or "preconditioner" (the last layer starts at zero: the sampler is SGHMC), or "paper" (Eq. 6;
            starts at random).
        feature_set: name of what the network sees, see `learned_samplers.learned.features`.
        hidden: widths of the network's hidden layers.
        start: the path of a weight file to start from, whose features and units this rule must have (what it has
            besides starts without effect); or (feature, gain): β = −gain·feature exactly, α = 0. With
            "average_0.9_to_rms", of the adaptive sets, that is Adam with the learning rate s_β·√(lr/N)·gain beside
            SGHMC's momentum.
        options: further keyword arguments of the rule, such as ``alpha_scale``, ``beta_scale`` or ``output_bound``.

    Raises:
        ValueError: an unknown form or feature set; a ``start`` with a feature that the set has not, without two units
            in every hidden layer, or of a sampler of another form, with other scales, or with features or units that
            this one has not.
    """

    name = "l2e"
    state_names = ("momentum", "averages")
    _rules: ClassVar[dict[str, Any]] = _L2E_RULES

    def __init__(
        self, form: str = "residual", feature_set: str = "paper", hidden: Sequence[int] = (32, 32), *,
        start: tuple[str, float] | Path | None = None, **options: Any,
    ) -> None:  # fmt: skip
        if form not in self._rules:
            raise ValueError(f"form must be one of {', '.join(map(repr, self._rules))}, got {form!r}")
        super().__init__(feature_set, 2, hidden, form != "paper", options)
        self.form, self.feature_set = form, feature_set
        self._num_averages = feature_set_named(feature_set).num_averages
        self.start = start
        self._started: Phi | None = None
        self._digest = ""
        if isinstance(start, Path):
            self._start_from(start)
        elif start is not None:
            self._check_start(start[0])

    def _check_start(self, feature: str) -> None:
        names = feature_set_named(self.feature_set).names
        if feature not in names:
            raise ValueError(f"start: {feature!r} is not a feature of {self.feature_set!r}, which has {names}")
        if min(self.hidden, default=0) < 2:
            raise ValueError(f"start needs two units in every hidden layer, got hidden={self.hidden}")

    def _start_from(self, path: Path) -> None:
        network, card = load_weights(path)
        if card["form"] != self.form:
            raise ValueError(f"start: {path} has form {card['form']}, here it is {self.form}")
        names = feature_set_named(self.feature_set).names
        if missing := [name for name in card["features"] if name not in names]:
            raise ValueError(f"start: {path} sees {', '.join(missing)}, which {self.feature_set!r} has not")
        units, own = ([shape[0] for shape in shapes[:-1]] for shapes in (card["layers"], self._shapes))
        if len(units) != len(own) or any(a > b for a, b in zip(units, own)):
            raise ValueError(f"start: {path} has hidden layers of {units} units, which do not fit into {own}")
        theirs, here = self._filled(card["scales"]), self._filled(self.options)
        # decay_time is a schedule over the run, not a unit of the outputs: a second stage may add it.
        if other := [n for n in (theirs | here) if theirs.get(n) != here.get(n) and n != "decay_time"]:
            theirs, here = ({name: scales.get(name) for name in other} for scales in (theirs, here))
            raise ValueError(f"start: {path} was trained with the scales {theirs}, here they are {here}")
        self._digest = card["sha256"]
        self._started = [(weight.detach(), bias.detach()) for weight, bias in layers_of(network)]
        self._started_inputs = [names.index(name) for name in card["features"]]

    def _widened(self, started: Phi, fresh: Tensor) -> Tensor:
        """The same function with the rule's own inputs and units: the further ones are fresh, and nothing sees them."""
        inputs, layers = self._started_inputs, [(w.clone(), b.clone()) for w, b in unflatten(fresh, self._shapes)]
        for (weight, bias), (old_weight, old_bias) in zip(layers, started, strict=True):
            units = len(old_bias)
            weight[:units], bias[:units] = 0.0, old_bias
            weight[:units, inputs] = old_weight
            inputs = list(range(units))
        return flatten(layers)

    def _filled(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options of the rule, with its own values where they leave one out."""
        arguments = inspect.signature(_L2E_RULES[self.form]).parameters.values()
        return {each.name: each.default for each in arguments if each.default is not each.empty} | options

    def initial_weights(self, seed: int) -> Tensor:
        weights = super().initial_weights(seed)
        if self._started is not None:
            return self._widened(self._started, weights)
        if self.start is None or isinstance(self.start, Path):
            return weights
        feature, gain = self.start
        layers = [(weight.clone(), bias.clone()) for weight, bias in self.prepare(weights)]
        # The first two units of each layer carry the feature's positive and negative part through the ReLUs.
        (first, bias), *middle, (last, last_bias) = layers
        first[:2], bias[:2] = 0.0, 0.0
        first[0, feature_set_named(self.feature_set).names.index(feature)] = 1.0
        first[1] = -first[0]
        for weight, bias in middle:
            weight[:2], bias[:2] = 0.0, 0.0
            weight[0, 0] = weight[1, 1] = 1.0
        last.zero_(), last_bias.zero_()
        last[1, 0], last[1, 1] = -gain, gain
        return flatten(layers)

    def specification(self) -> dict[str, Any]:
        return {
            "sampler": self.name, "form": self.form, "feature_set": self.feature_set, "hidden": list(self.hidden),
            **self._start_specification(), **self.options,
        }  # fmt: skip

    def _start_specification(self) -> dict[str, Any]:
        if isinstance(self.start, Path):
            return {"start": f"weights with SHA-256 {self._digest}"}
        return {} if self.start is None else {"start": list(self.start)}

    def initial_state(self, parameter: Tensor) -> State:
        members, d = parameter.shape
        return torch.zeros_like(parameter), parameter.new_zeros(members, self._num_averages, d)

    def update(self, prepared, parameter, gradient, noise, state, *, segments, hyper, step, hessian_product=None):
        parameter, *state = self._rules[self.form](
            parameter, gradient, noise, *state, phi=prepared, segments=segments, step=step,
            feature_set=self.feature_set, **arguments_of(hyper), **self.options,
        )  # fmt: skip
        return parameter, tuple(state)

    def output_scales(self, prepared, parameter, gradient, state, *, segments, hyper, step):
        """As they enter the step, in units of the momentum: α, and β in the velocity.

        Of the preconditioner's form: log Q and log D before they are clipped.
        """
        momentum, averages = state
        scales = self._filled(self.options)
        if self.form == "preconditioner":
            averages = update_averages(averages, gradient, self.feature_set)
            x = features(
                parameter, momentum, gradient, averages, segments, self.feature_set,
                lr=hyper.lr, num_data=hyper.num_data, step=step,
            )  # fmt: skip
            outputs = apply_network(prepared, x, output_bound=self.options.get("output_bound"))
            named = zip(("curl", "friction"), outputs, strict=True)
            return {f"log_{name}": scales[f"{name}_scale"] * y.square().mean(-1).sqrt() for name, y in named}
        terms = term_contributions(
            parameter, gradient, momentum, averages, phi=prepared, segments=segments, form=self.form,
            **arguments_of(hyper), **{**scales, "feature_set": self.feature_set, "step": step},
        )  # fmt: skip
        return {"alpha": terms["alpha"], "beta": terms["learned_velocity"]}

    def card(self) -> dict[str, Any]:
        """The fields of a weight card that say which sampler the network belongs to."""
        return {
            "sampler": "PrecondL2E" if self.form == "preconditioner" else "L2E", "form": self.form,
            "feature_set": self.feature_set, "features": list(feature_set_named(self.feature_set).names),
            "scales": dict(self.options), "badge": "heuristic",
        }  # fmt: skip

    def figures(self, weights: Tensor) -> dict[str, Any]:
        from meta_tasks.rules.contours import output_contours, output_names

        bound, names = self.options.get("output_bound"), output_names(self.form)
        return {"contours": output_contours(self.prepare(weights), self.feature_set, bound, names=names)}


class KineticRule(NetworkRule):
    """`learned_samplers.KineticL2E`, with the Hessian-vector product by a finite difference of gradients.

    Args:
        hidden: widths of the network's hidden layers.
        options: further keyword arguments of the rule, ``mean_scale`` or ``output_bound``.
    """

    name = "kinetic_l2e"
    state_names = ("momentum",)
    needs_hessian = True

    def __init__(self, hidden: Sequence[int] = (32, 32), **options: Any) -> None:
        super().__init__(len(KINETIC_FEATURES), 1, hidden, True, options)

    def specification(self) -> dict[str, Any]:
        return {"sampler": self.name, "hidden": list(self.hidden), **self.options}

    def update(self, prepared, parameter, gradient, noise, state, *, segments, hyper, step, hessian_product=None):
        parameter, momentum = l2e_kinetic_rule(
            parameter, gradient, noise, state[0], hessian_product=hessian_product, phi=prepared, segments=segments,
            **arguments_of(hyper), **self.options,
        )  # fmt: skip
        return parameter, (momentum,)

    def output_scales(self, prepared, parameter, gradient, state, *, segments, hyper, step):
        mean = kinetic_mean(
            parameter, gradient, phi=prepared, segments=segments, num_data=hyper.num_data,
            prior_precision=hyper.prior_precision, **self.options,
        )  # fmt: skip
        return {"mean": mean.square().mean(-1).sqrt()}

    def card(self) -> dict[str, Any]:
        return {
            "sampler": "KineticL2E", "form": "kinetic", "feature_set": "kinetic", "features": list(KINETIC_FEATURES),
            "scales": dict(self.options), "badge": "O(h)",
        }  # fmt: skip


class MetaSGMCMCRule(NetworkRule):
    """`learned_samplers.MetaSGMCMC`, with the networks' inputs detached, as the paper trains it.

    Args:
        form: "signed" or "absolute".
        hidden: widths of the hidden layers of each of its two networks.
        feature_set: "energy" or "energy_rms", see `learned_samplers.MetaSGMCMC`.
        options: further keyword arguments of the rule, such as ``energy_scale`` or ``correction``.

    Raises:
        ValueError: an unknown form or feature set.
    """

    name = "meta_sgmcmc"
    state_names = ("momentum",)
    needs_loss = True

    def __init__(
        self, form: str = "signed", hidden: Sequence[int] = (10,), *, feature_set: str = "energy", **options: Any
    ) -> None:
        if form not in ("signed", "absolute"):
            raise ValueError(f"form must be one of 'signed', 'absolute', got {form!r}")
        super().__init__(len(META_FEATURES), 2, [2 * width for width in hidden], True, options)
        self.features = meta_features(feature_set)
        self.form, self.feature_set, self._widths = form, feature_set, tuple(hidden)

    def initial_weights(self, seed: int) -> Tensor:
        network = build_meta_network(self._widths, generator=generator(seed, "network"))
        return flatten(layers_of(network)).detach().clone()

    def specification(self) -> dict[str, Any]:
        seen = {} if self.feature_set == "energy" else {"feature_set": self.feature_set}
        return {"sampler": self.name, "form": self.form, **seen, "hidden": list(self._widths), **self.options}

    def update(
        self, prepared, parameter, gradient, noise, state, *, segments, hyper, step, hessian_product=None, loss=None
    ):
        energy = hyper.num_data * loss + 0.5 * hyper.prior_precision * parameter.square().sum(-1)
        parameter, momentum = meta_sgmcmc_rule(
            parameter, gradient, noise, state[0], energy=energy, phi=prepared, form=self.form, detach_inputs=True,
            segments=segments if self.feature_set == "energy_rms" else None, **arguments_of(hyper), **self.options,
        )  # fmt: skip
        return parameter, (momentum,)

    def card(self) -> dict[str, Any]:
        return {
            "sampler": "MetaSGMCMC", "form": self.form, "feature_set": self.feature_set,
            "features": list(self.features),
            "scales": {key: value for key, value in self.options.items() if key != "correction"}, "badge": "O(h)",
        }  # fmt: skip

    def figures(self, weights: Tensor) -> dict[str, Any]:
        from meta_tasks.rules.contours import meta_contours

        names = ("curl_clip", "friction_scale")
        given = {name: value for name, value in self.options.items() if name in names}
        return {"contours": meta_contours(self.prepare(weights), absolute=self.form == "absolute", **given)}
