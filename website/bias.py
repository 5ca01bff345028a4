"""What a page says of its sampler's bias: the figure of `python tools/toy.py bias`, or the law in its cards."""

from __future__ import annotations

from pathlib import Path

import pretrained

FIGURES = Path(__file__).parents[1] / "docs/figures/bias"
#: What x is, where it is more than lr·k/N.
_AXIS = {
    "AdaptedSGHMC": "x = hᵢ²k, hᵢ the coordinate's own step, with the mass frozen",
    "CyclicalSGMCMC": "x = lr·k/N at the peak of lr, over the sampling phases of cycles of 200 steps. A phase begins "
    "near the mode, and is too short for soft directions",
    "PSGLD": "x = lr·G·k/N with the G of a chain at the posterior, lr·√(k/T). Full gradients, without Γ (the default)",
    "HMC": "x = lr·k/N, five leapfrog steps a proposal, however many are rejected",
    "MCLMC": "x = lr·k/N of the stiffest of twelve directions, the softest ten times softer. Full gradients",
    "EntropyMCMC": "x = lr·k/N, with η ten times lr/N; the guide against T/k + ηT",
}
#: Learned samplers whose law is that of another for some networks: the other, and which networks.
_LIKE = {
    "KineticL2E": ("SGHMC", "With an untrained network it is"),
    "L2E": ("SGHMC", "With an untrained network it is"),
    "PrecondL2E": ("SGHMC", "With an untrained network it is"),
    "MetaSGMCMC": ("SGHMC", "With an untrained network it is"),
}


def text(name: str) -> str:
    """The section on a sampler's bias, for a page in the folder samplers/.

    Raises:
        ValueError: a sampler that is not learned has no figure.
    """
    return learned(name) if name in _LIKE else drawn(name)


def learned(name: str) -> str:
    """What the cards of a learned sampler's weights say of the law, and whose figure is the untrained one's."""
    cards = {one: pretrained.card(one) for one in pretrained.names()}
    measured = [
        f"- [`{one}`](../cards.md#{one}): {card['law']['reason']}"
        for one, card in cards.items()
        if card["sampler"] == name and card["law"] is not None
    ]
    said = ["Variances on Gaussians with the shipped weights, at the settings of their cards:", "\n".join(measured)]
    other, when = _LIKE[name]
    like = f"{when} [that of `{other}`]({other}.md#bias-against-the-step-size)"
    like += ", in x = hᵢ²k with the coordinate's own step hᵢ." if other == "BAOA" else "."
    return "\n\n".join([*(said if measured else []), like])


def drawn(name: str) -> str:
    """The figure of a sampler, light and dark, and what it shows."""
    shown = []
    for theme in ("light", "dark"):
        picture = FIGURES / f"{name}_{theme}.png"
        if not picture.exists():
            raise ValueError(f"{name} has no {picture}: run python tools/toy.py bias --samplers {name}")
        alt = f"Relative error of the variance of {name} against its step size"
        shown.append(f"![{alt}](../figures/bias/{picture.name}#only-{theme})")
    caption = (
        f"How far the variance of a weight is from T/k on a Gaussian of curvature k: {_AXIS.get(name, 'x = lr·k/N')}.",
        "Curves without marks are exact (the Lyapunov equation of the running step) and end, dotted, where the step",
        "becomes unstable; marks are simulated, with two standard errors. *Minibatches*: gradient noise that heats",
        "`SGLD` by 2 % at the same step. `python tools/toy.py bias` draws it, [with the numbers](../tables/bias.md);",
        "[check_sampler](../tutorials/is_my_sampler_right.md) measures any other setting.",
    )
    return "\n".join(shown) + "\n\n" + " ".join(caption)
