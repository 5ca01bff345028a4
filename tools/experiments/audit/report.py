"""The report: failures of ours first, then one table of all samplers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.harness.tables import markdown

#: Relative deviation of a temperature that counts as a failure of ours.
_BOUND = 0.05

_TEXT = """# The laws of others' samplers, and of ours

Which distribution does a sampler leave behind, at the settings of its own example? The target is a Gaussian whose
answer is known: pairs of weights with correlation 0.8, where the mean loss has the curvatures 2/9 (soft axis) and 2
(stiff axis). *Temperature* is the variance along an axis over that of the posterior, soft / stiff. It is 1 / 1 for a
sampler of the posterior; 5 / 5 has five times its variance. A stiff value above a soft one is the bias of the step
size, and falls with it; ours run with the settings of the table of samplers, at lr 0.05 where they have no default.

*Settled*: "exact" where the step is linear and its law is solved; else 1,000 chains are simulated, to some 2 to 3 %:
"yes" where they have forgotten their start and two windows agree, "no" where the number is not yet the law's. IVON,
ours and ivon-opt's, has not settled: its curvature takes 1/(1 − β₂) steps, more than were run.

The 1,000 pairs are rows of one tensor, so that a sampler that normalises over a tensor (`L2E`, `WhitenedSGHMC`) sees
2,000 weights at once. `PSGLD`, `WhitenedSGHMC`, `CyclicalSGMCMC` (here with cycles of five steps), `IVON` and `L2E`
have the badge "heuristic": they claim no law. `PrecondL2E` ships no weights, and is `SGHMC` to rounding.

*Schedule*: variance along the soft axis over three cosine cycles from lr to 0, over that at constant lr; 1 is ideal.
*Resumes*: saved and loaded mid-way, it goes on bit for bit. *Weight decay* w: the prior precision λ that it stands
for, over N·w. *Burn-in* of 40 steps: steps after which its state stops to adapt, with one tensor of weights and with
four."""


def cell(law: Mapping[str, Any]) -> str:
    """Temperatures along both axes."""
    return " / ".join(f"{heat:.3g}" for heat in law["temperature"]) if law["temperature"] else "diverges"


def row(package: str, result: Mapping[str, Any]) -> dict[str, str]:
    """A line of the table."""
    name = {"ours": "", "source": "(written from its source) "}.get(package, f"{package} ")
    settled = [
        "–" if not law["temperature"] else "exact" if law.get("exact") else "yes" if law["settled"] else "no"
        for law in result["laws"]
    ]
    decay, schedule = result.get("weight_decay", {}), result.get("schedule")
    return {
        "sampler": f"{name}{result['sampler']}",
        "lr": " / ".join(dict.fromkeys(f"{lr:.3g}" if lr else "tuned" for lr in result["lr"])),
        "temperature, N = 1,000": cell(result["laws"][0]),
        "N = 50,000": cell(result["laws"][1]),
        "settled": " / ".join(dict.fromkeys(settled)),
        "schedule": f"{schedule:.2f}" if schedule else "–",
        "resumes": {True: "yes", False: "no"}.get(result.get("resumes"), "–"),  # type: ignore[arg-type]
        "weight decay": f"{decay['ratio']:.2f}" + ", in `p.grad`" * decay["touches_grad"] if decay else "–",
        "burn-in": " / ".join(map(str, result.get("burn_in", ["–"]))),
    }


def failures(result: Mapping[str, Any]) -> list[str]:
    """Return in words what a sampler does not do."""
    words = [
        f"temperature {cell(law)} at N = {n}"
        for n, law in zip(("1,000", "50,000"), result["laws"], strict=True)
        if not law["temperature"] or any(abs(heat - 1) > _BOUND for heat in law["temperature"])
    ]
    if not result["resumes"]:
        words.append("it does not resume bit for bit")
    for value, what in (
        (result.get("schedule"), "under a schedule"),
        (result.get("weight_decay", {}).get("ratio"), "of the prior's precision"),
    ):
        if value is not None and abs(value - 1) > 2 * _BOUND:
            words.append(f"{value:.2f} {what}")
    return words


def report(content: Mapping[str, Any]) -> str:
    """The page."""
    measured = {package: result for package, result in content["packages"].items() if "rows" in result}
    rows = [(package, result) for package in measured for result in measured[package]["rows"]]
    wrong = [f"- `{r['sampler']}`: {'; '.join(words)}." for p, r in rows if p == "ours" and (words := failures(r))]
    versions = {name: v for result in measured.values() for name, v in result["versions"].items()}
    lines = []
    for package, r in rows:
        head = "" if package == "source" else f"{package} {versions.get(package, '')}, "
        lines += [f"- **{head}{r['sampler']}** ({r['example']}): {r['posterior']}."] * (package != "ours")
    lines += [f"- {p} was not measured: {r['failed']}." for p, r in content["packages"].items() if "failed" in r]
    parts = [
        f"{_TEXT}\n\n`{content['command']}`",
        f"## Failures of ours\n\nMore than {100 * _BOUND:.0f} % off, in this test at these step sizes:",
        "\n".join(wrong),
        "## All samplers",
        markdown([row(*pair) for pair in rows]),
        "## Whose settings, and how to get the posterior from each",
        "\n".join(lines),
        f"pysgmcmc and csgmcmc have no package on the registry: their rules are written from their source. The command "
        f"took {content['minutes']:.0f} minutes of two cores, with the installing from cached downloads; the "
        f"measuring is {sum(r['seconds'] for _, r in rows) / 60:.0f} CPU-minutes. "
        f"{', '.join(f'{name} {v}' for name, v in sorted(versions.items()))}; sgmcmcjax needs jax below 0.4.30, and "
        f"has it. Rows in `reports/audit.json`.",
    ]
    return "\n\n".join(parts) + "\n"
