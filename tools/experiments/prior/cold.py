"""Does a cold posterior still predict better once the prior has been chosen for each temperature?

The protocol, written before the runs. Priors: one precision for all weights, or a tenth of it in the last layer; four
values of it around the network's usual decay. Temperatures 1 and 0.1. Each has a whole run; for each temperature the
validation rows choose the prior, and its test NLL is what counts. `SGHMC` on the digits, with `HMC` at the prior that
was chosen at T = 1; `AdaptedSGHMC(warmup=L2E)` as it comes on the two others.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.prior.suggestions import TASKS, Problem, Task, densities, problem, run, sghmc
from learned_samplers import HMC, L2E, AdaptedSGHMC

FACTORS, TEMPERATURES = (3.0, 1.0, 0.3, 0.1), (1.0, 0.1)
#: Tasks and how many seeds each has.
SEEDS = {"digits, MLP": 4, "CIFAR-10, CNN": 2, "CIFAR-10, ResNet": 1}
#: Trajectories of HMC, the first third of which is dropped, and leapfrog steps of each.
TRAJECTORIES, LEAPFROGS = 450, 30


def by_layer(model: nn.Module, precision: float, share: float) -> dict[str, float]:
    """The precision by name, times ``share`` for the weight of the last layer."""
    last = [name for name, p in model.named_parameters() if p.dim() > 1][-1]
    return {last: share * precision, "*": precision}


def adapted(parameters: Any, task: Task, data: Problem, **settings: Any) -> AdaptedSGHMC:
    """The recommended sampler as it comes."""
    return AdaptedSGHMC(parameters, num_data=len(data.train[1]), total_steps=task.steps, warmup=L2E, **settings)


def hmc(data: Problem, prior: dict[str, float], seed: int) -> float:
    """Test NLL of HMC's average."""
    torch.manual_seed(seed)
    model, rows = data.network(), data.train
    sampler = HMC(
        model.named_parameters(), 0.03, len(rows[1]), prior_precision=prior, leapfrog_steps=LEAPFROGS, adapt_steps=100
    )

    def closure() -> torch.Tensor:
        sampler.zero_grad()
        loss = data.loss(model(rows[0]), rows[1])
        loss.backward()
        return loss

    kept = []
    for trajectory in range(TRAJECTORIES):
        sampler.step(closure)
        if trajectory >= TRAJECTORIES // 3:
            kept.append(densities(model, data.test, data.loss))
    return -(torch.stack(kept).logsumexp(0) - math.log(len(kept))).mean().item()


def one(name: str, seed: int, root: str | None, out: Path) -> dict[str, Any]:
    """NLL on validation and test rows at every prior and temperature, kept in a file."""
    file = out / f"cold_{name.replace(', ', '_')}_{seed}.json"
    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"runs": {}}
    task, data = TASKS[name], problem(name, seed, root)
    model = data.network()
    priors = {(f, share): by_layer(model, f * task.prior_precision, share) for f in FACTORS for share in (1.0, 0.1)}

    for temperature in TEMPERATURES:
        for (factor, share), prior in priors.items():
            key = f"{temperature} {factor} {share}"
            if key not in result["runs"]:
                make = sghmc if name.startswith("digits") else adapted
                result["runs"][key] = run(task, data, prior, temperature, seed, make)
                file.write_text(json.dumps(result))
    if name.startswith("digits") and "hmc" not in result:
        _, key = min((result["runs"][key][0], key) for key in result["runs"] if key.startswith("1.0 "))
        _, factor, share = map(float, key.split())
        result["hmc"] = hmc(data, priors[factor, share], seed)
        file.write_text(json.dumps(result))
    return result


def table(root: str | None, out: Path) -> list[str]:
    """For each task the test NLL at both temperatures, by the prior that the validation rows chose."""
    lines = ["| task, seeds | prior | T = 1 | T = 0.1 | T = 0.1 over T = 1 | HMC, T = 1 |", "|" + "---|" * 6]
    for name, seeds in SEEDS.items():
        results = [one(name, seed, root, out) for seed in range(seeds)]
        for prior in ("the usual decay", "one precision, chosen", "by layer, chosen"):
            by_temperature = [[_of(result, prior, t) for result in results] for t in TEMPERATURES]
            ratios = [math.log(cold / warm) for warm, cold in zip(*by_temperature, strict=True)]
            error = np.std(ratios, ddof=1) / len(ratios) ** 0.5 if len(ratios) > 1 else math.nan
            means = " | ".join(f"{np.mean(values):.3f}" for values in by_temperature)
            exact = [result["hmc"] for result in results if "hmc" in result]
            beside = f"{np.mean(exact):.3f}" if exact and prior.startswith("by") else ""
            lines.append(
                f"| {name}, {seeds} | {prior} | {means} | {math.exp(np.mean(ratios)):.2f} ± {error:.2f} | {beside} |"
            )
    return lines


def _of(result: dict[str, Any], prior: str, temperature: float) -> float:
    """Test NLL under a prior at a temperature."""
    runs = {tuple(map(float, key.split())): values for key, values in result["runs"].items()}
    allowed = [key for key in runs if key[0] == temperature]
    if prior.startswith("the"):
        return runs[temperature, 1.0, 1.0][1]
    if prior.startswith("one"):
        allowed = [key for key in allowed if key[2] == 1.0]
    return min((runs[key][0], runs[key][1]) for key in allowed)[1]
