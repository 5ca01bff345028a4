"""The report: failures of ours first, then one table of all samplers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from experiments.harness.tables import markdown

#: Relative deviation of a temperature that counts as a failure of ours.
_BOUND = 0.05

_TEXT = """# The laws of others' samplers, and of ours

Which distribution does a sampler leave behind, at the arguments of its own example? The target is a Gaussian whose
answer is known: pairs of weights with correlation 0.8, where the mean loss has the curvatures 2/9 (soft axis) and 2
(stiff axis). *Temperature* is the variance along an axis over that of the posterior, soft / stiff. It is 1 / 1 for a
sampler of the posterior; 5 / 5 has five times its variance. A step that is linear is solved exactly; others are
simulated with 1,000 chains, to some 2 to 3 %. A stiff value above a soft one is the bias of the step size, and falls
with it; ours run with the settings of the table of samplers, at lr 0.05 where they have no default.

The 1,000 pairs are rows of one tensor, so that a sampler that normalises over a tensor (`L2E`, `WhitenedSGHMC`) sees
2,000 weights at once. `PSGLD`, `WhitenedSGHMC`, `CyclicalSGMCMC` (here with cycles of five steps), `IVON` and `L2E`
have the badge "heuristic": they claim no law. IVON, ours and ivon-opt's, is a Gaussian whose curvature takes
1/(1 − β₂) steps to settle, more than were run.

*Schedule*: variance along the soft axis over three cosine cycles from lr to 0, over that at constant lr; 1 is ideal.
*Resumes*: saved and loaded mid-way, it goes on bit for bit. *Weight decay* w: the prior precision λ that it stands for,
over N·w. *Burn-in* of 40 steps: steps after which its state stops to adapt, with one tensor of weights and with four.
"""


def cell(law: Any) -> str:
    """Temperatures along both axes."""
    if "temperature" not in law:
        return "error"
    if law["diverged"]:
        return "diverges"
    unsettled = "" if law["settled"] else " (not settled)"
    return " / ".join(f"{heat:.3g}" for heat in law["temperature"]) + unsettled


def row(package: str, result: Mapping[str, Any]) -> dict[str, str]:
    """A line of the table."""
    name = {"ours": "", "source": "(written from its source) "}.get(package, f"{package} ")
    decay = result.get("weight_decay") or {}
    ratio = decay.get("ratio")
    touches = ", in `p.grad`" if decay.get("touches_grad") else ""
    schedule, resumes, burn_in = result.get("schedule"), result.get("resumes"), result.get("burn_in")
    return {
        "sampler": f"{name}{result['sampler']}",
        "lr": " / ".join(dict.fromkeys(f"{lr:.3g}" for lr in result["lr"])),
        "temperature, N = 1,000": cell(result["laws"][0]),
        "N = 50,000": cell(result["laws"][1]),
        "schedule": f"{schedule:.2f}" if isinstance(schedule, float) else "–",
        "resumes": {True: "yes", False: "no"}.get(resumes, "–") if isinstance(resumes, bool) else "–",
        "weight decay": f"{ratio:.2f}{touches}" if isinstance(ratio, float) else "–",
        "burn-in": " / ".join(map(str, burn_in)) if burn_in and all(isinstance(b, int) for b in burn_in) else "–",
    }


def failures(result: Mapping[str, Any]) -> list[str]:
    """What a sampler does not do, in words."""
    words = []
    for n, law in zip(("1,000", "50,000"), result["laws"], strict=True):
        heats = law.get("temperature") or [math.nan, math.nan]
        if not all(abs(heat - 1) <= _BOUND for heat in heats):
            words.append(f"temperature {cell(law)} at N = {n}")
    if result.get("resumes") is not True:
        words.append("it does not resume bit for bit")
    for key, what in (("schedule", "under a schedule"), ("weight_decay", "of the prior's precision")):
        value = result.get(key)
        value = value.get("ratio") if isinstance(value, Mapping) else value
        if isinstance(value, float) and abs(value - 1) > 2 * _BOUND:
            words.append(f"{value:.2f} {what}")
    return words


def report(results: Mapping[str, Any], command: str) -> str:
    """The page."""
    measured = {package: result for package, result in results.items() if "rows" in result}
    parts = [_TEXT, f"`{command}`"]
    if "ours" in measured:
        lines = [f"- `{r['sampler']}`: {'; '.join(words)}." for r in measured["ours"]["rows"] if (words := failures(r))]
        said = f"More than {100 * _BOUND:.0f} % off, in this test at these step sizes:"
        parts.append("## Failures of ours\n\n" + ("\n".join([said, "", *lines]) if lines else "None."))
    table = [row(package, r) for package, result in measured.items() for r in result["rows"]]
    if table:
        parts.append("## All samplers\n\n" + markdown(table))
    lines = []
    for package, result in measured.items():
        if package != "ours":
            head = "" if package == "source" else f"{package} {result['versions'].get(package, '')}, "
            lines += [f"- **{head}{r['sampler']}** ({r['example']}): {r['posterior']}." for r in result["rows"]]
    if lines:
        parts.append("## How to get the posterior from each\n\n" + "\n".join(lines))
    parts.append("\n".join(f"- {p} was not measured: {r['failed']}" for p, r in results.items() if "failed" in r))
    spent = sum(r["seconds"] for result in measured.values() for r in result["rows"])
    versions = {name: v for result in measured.values() for name, v in result["versions"].items()}
    parts.append(
        f"pysgmcmc and csgmcmc have no package on the registry: their rules are written from their source. "
        f"{spent / 60:.0f} CPU-minutes; {', '.join(f'{name} {v}' for name, v in sorted(versions.items()))}. "
        f"sgmcmcjax needs jax below 0.4.30, and has it. Rows in [audit.json](audit.json)."
    )
    return "\n\n".join(filter(None, parts)).replace("\n\n\n", "\n\n").rstrip() + "\n"
