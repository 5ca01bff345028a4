"""The learned samplers' update rules as the inner loop runs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from learned_samplers.learned.cards import settings_from_card
from learned_samplers.learned.features import network_at
from learned_samplers.learned.kinetic import KineticSettings, kinetic_mean, l2e_kinetic_rule
from learned_samplers.learned.l2e import L2ESettings, l2e_rule
from learned_samplers.learned.measures import term_contributions
from learned_samplers.learned.meta_sgmcmc import MetaSGMCMCSettings, meta_sgmcmc_rule
from learned_samplers.learned.preconditioned import PreconditionedSettings, l2e_precond_rule
from meta_tasks.rules.base import arguments_of
from meta_tasks.rules.network_rule import LEARNED_RULES, CoordinateRule, NetworkRule

__all__ = [
    "LEARNED_RULES",
    "KineticRule",
    "L2ERule",
    "MetaSGMCMCRule",
    "NetworkRule",
    "PrecondL2ERule",
    "rule_from_card",
]


class L2ERule(CoordinateRule):
    """`learned_samplers.L2E` in its residual or its paper form.

    Args:
        form: "residual" (the last layer starts at zero: the sampler is SGHMC), or "paper" (Eq. 6; starts at random).
        feature_set: name of what the network sees, see `learned_samplers.learned.feature_sets`.
        hidden: widths of the network's hidden layers.
        start: the path of a weight file to start from, whose features and units this rule must have (what it has
            besides starts without effect); or (feature, gain): β = −gain·feature exactly, α = 0. With
            "average_0.9_to_rms", of the adaptive sets, that is Adam with the learning rate s_β·√(lr/N)·gain beside
            SGHMC's momentum.
        tell_horizon: share of the runs in which the network is told how many steps there are, of a feature set that
            sees the progress of a run.
        settings: in the place of form, feature set and options.
        options: further settings, such as ``alpha_scale`` or ``beta_scale``.

    Raises:
        ValueError, TypeError: a setting is out of range or of the other form; a ``start`` with a feature that the set
            has not, without two units in every hidden layer, or of another sampler or form, with other scales, or with
            features or units that this one has not.
    """

    name = "L2E"
    rule = staticmethod(l2e_rule)
    settings_class = L2ESettings
    settings: L2ESettings

    def __init__(
        self,
        form: str | None = None,
        feature_set: str | None = None,
        hidden: Sequence[int] | None = None,
        *,
        start: tuple[str, float] | Path | None = None,
        tell_horizon: float = 0.0,
        settings: L2ESettings | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            feature_set, hidden, start=start, tell_horizon=tell_horizon, settings=settings, form=form, **options
        )

    def output_scales(self, prepared, at):
        """Outputs as they enter the step, in units of the momentum: α, and β in the velocity."""
        terms = term_contributions(
            at.parameter,
            at.gradient,
            *at.state,
            phi=prepared,
            segments=at.segments,
            step=at.step,
            settings=self.settings,
            **arguments_of(at.hyper),
        )
        return {"alpha": terms["alpha"], "beta": terms["learned_velocity"]}


class PrecondL2ERule(CoordinateRule):
    """`learned_samplers.learned.preconditioned.PrecondL2E`; arguments are those of `L2ERule`, without a form."""

    name = "PrecondL2E"
    rule = staticmethod(l2e_precond_rule)
    output_names = ("log Q", "log D")
    settings_class = PreconditionedSettings
    settings: PreconditionedSettings

    def output_scales(self, prepared, at):
        """Outputs log Q and log D, before they are clipped."""
        settings, (momentum, averages) = self.settings, at.state
        run = dict(settings=settings, lr=at.hyper.lr, num_data=at.hyper.num_data, step=at.step)
        network, _ = network_at(prepared, at.parameter, at.gradient, averages, at.segments, **run)
        q, d = (y.square().mean(-1).sqrt() for y in network(momentum))
        return {"log_curl": settings.curl_scale * q, "log_friction": settings.friction_scale * d}


class KineticRule(NetworkRule):
    """`learned_samplers.KineticL2E`, with the Hessian-vector product by a finite difference of gradients.

    Args:
        hidden: widths of the network's hidden layers.
        settings: in the place of the options.
        options: settings, such as ``mean_scale``.
    """

    name = "KineticL2E"
    needs_hessian = True
    by_member = True
    fixed: ClassVar[dict[str, str]] = {
        "probe_size": "where all products with the Hessian are made with that one",
    }
    settings_class = KineticSettings
    settings: KineticSettings

    def update(self, prepared, at):
        parameter, momentum = l2e_kinetic_rule(
            *at.tensors,
            hessian_product=at.hessian_product,
            phi=prepared,
            segments=at.segments,
            settings=self.settings,
            **arguments_of(at.hyper),
        )
        return parameter, (momentum,)

    def output_scales(self, prepared, at):
        mean = kinetic_mean(
            at.parameter,
            at.gradient,
            phi=prepared,
            segments=at.segments,
            num_data=at.hyper.num_data,
            prior_precision=at.hyper.prior_precision,
            settings=self.settings,
        )
        return {"mean": mean.square().mean(-1).sqrt()}


class MetaSGMCMCRule(NetworkRule):
    """`learned_samplers.MetaSGMCMC`, with the networks' inputs detached, as the paper trains it.

    Args:
        hidden: widths of the hidden layers of each of its two networks.
        feature_set: "energy" or "energy_rms", see `learned_samplers.MetaSGMCMC`.
        settings: in the place of feature set and options.
        options: further settings, such as ``energy_scale``.

    Raises:
        ValueError, TypeError: a setting is out of range.
    """

    name = "MetaSGMCMC"
    needs_loss = True
    settings_class = MetaSGMCMCSettings
    settings: MetaSGMCMCSettings

    @staticmethod
    def hidden_of(layers: list[list[int]]) -> list[int]:
        """Return ``hidden`` as `NetworkRule.hidden_of`; the two networks lie side by side in one stack of layers."""
        return [width // 2 for width in NetworkRule.hidden_of(layers)]

    def update(self, prepared, at):
        prior = 0.5 * at.hyper.prior_precision * at.parameter.square().sum(-1)
        energy = at.hyper.num_data * at.loss + prior
        common = dict(
            energy=energy, phi=prepared, segments=at.segments, settings=self.settings, **arguments_of(at.hyper)
        )
        parameter, momentum = meta_sgmcmc_rule(*at.tensors, detach_inputs=True, **common)
        return parameter, (momentum,)

    def figures(self, weights: Tensor) -> dict[str, Any]:
        from meta_tasks.rules.contours import meta_contours

        return {"contours": meta_contours(self.prepare(weights), self.settings)}


def rule_from_card(card: dict[str, Any]) -> NetworkRule:
    """The rule of a weight card, with the settings and the layers of its weights.

    Raises:
        ValueError: the card is of no learned sampler, or has settings that its sampler has not.
    """
    settings = settings_from_card(card)
    if card["sampler"] not in LEARNED_RULES:
        raise ValueError(
            f"sampler must have a rule for the inner loop ({', '.join(LEARNED_RULES)}), got {card['sampler']!r}"
        )
    rule = LEARNED_RULES[card["sampler"]]
    return rule(hidden=rule.hidden_of(card["layers"]), settings=settings)
