"""A step of eight chains side by side beside that of one network alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from experiments.benchmarks.timing import Step, TimingOptions, interleaved, lower_decile, write_table
from experiments.harness.options import at_least
from experiments.harness.tables import markdown
from learned_samplers import BAOA, HMC, L2E, MCLMC, SGHMC, WhitenedSGHMC
from learned_samplers.posterior import Chains

FEATURES, COUNT = 5, 8
#: Each with whether its chains have tensors of their own.
SAMPLERS: dict[str, tuple[Callable[..., Any], bool]] = {
    "SGHMC": (SGHMC, False),
    "BAOA": (BAOA, False),
    "MCLMC": (MCLMC, False),
    "HMC, 10 leapfrog steps": (partial(HMC, leapfrog_steps=10), False),
    "WhitenedSGHMC": (WhitenedSGHMC, True),
    "L2E": (L2E, True),
}


@dataclass(frozen=True)
class ChainsBenchmark(TimingOptions):
    """Time per step of eight chains of an MLP 16-16 (tanh, normal likelihood of two outputs) and of one network."""

    # Rows a step.
    rows: int = 1202
    # Names of samplers, as in the table; none times all of them.
    samplers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "rows")
        if unknown := set(self.samplers) - set(SAMPLERS):
            raise ValueError(f"samplers must be of {', '.join(SAMPLERS)}, got {', '.join(sorted(unknown))}")


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))


def trainer(model: nn.Module, make: Callable[..., Any], x: Tensor, y: Tensor) -> Step:
    """One whole step on these rows."""
    sampler = make(model.parameters(), lr=1e-6, num_data=len(x), prior_precision=1.0)

    def closure() -> Tensor:
        sampler.zero_grad()
        out = model(x)
        scale = nn.functional.softplus(out[..., 1]) + 0.01
        losses = (scale.log() + 0.5 * ((y - out[..., 0]) / scale).square()).mean(-1)
        losses.sum().backward()
        return losses if sampler.reads_loss else losses.sum()

    return lambda: sampler.step(closure)


def benchmark_chains(options: ChainsBenchmark, command: str = "python tools/benchmark.py chains") -> None:
    """Measure, and write the table."""
    head = options.prepare()
    x = torch.randn(options.rows, FEATURES, device=options.device)
    y = torch.randn(options.rows, device=options.device)
    table = []
    for name in options.samplers or SAMPLERS:
        make, separate = SAMPLERS[name]
        models = {
            "one": network().to(options.device),
            "eight": Chains([network() for _ in range(COUNT)], separate=separate).to(options.device),
        }
        steps = {key: trainer(model, make, x, y) for key, model in models.items()}
        found = {key: lower_decile(times) for key, times in interleaved(steps, options, name).items()}
        numbers = {"one, ms": f"{found['one']:.2f}", "eight, ms": f"{found['eight']:.2f}"}
        table.append({"sampler": name, **numbers, "eight / one": f"{found['eight'] / found['one']:.1f}"})
    write_table(options.out, command, f"{head}, {options.rows} rows\n\n{markdown(table)}")
