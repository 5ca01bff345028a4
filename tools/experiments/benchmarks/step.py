"""Time per step of each sampler beside torch's optimizers, and of chains side by side."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from experiments.benchmarks.timing import (
    COMPILED,
    NUM_DATA,
    SAMPLERS,
    Step,
    TimingOptions,
    milliseconds,
    step_of,
    uncompiled,
    write_table,
)
from experiments.harness.options import at_least
from experiments.harness.runs.methods import soap
from experiments.harness.runs.muon import Muon, Shampoo
from experiments.harness.tables import markdown
from learned_samplers import L2E, SGHMC, AdaptedSGHMC, MetaSGMCMC, Sampler, table
from learned_samplers.posterior import Chains
from meta_tasks.networks import architectures

# Networks of whole training steps: architecture, side of the images, the architecture's own options.
NETWORKS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "CNN, 16×16": ("cnn", 16, {"channels": 8, "depth": 2}),
    "ResNet-20-FRN of width 8, 16×16": ("resnet20_frn", 16, {"width": 8}),
    "ResNet-20-FRN, 32×32": ("resnet20_frn", 32, {}),
}
LR_TRAINED = 1e-6
WITHOUT_CODE = ", without compiled code"  # after the name of a sampler


@dataclass(frozen=True)
class StepBenchmark(TimingOptions):
    """Time per step of every sampler, on the tensors of a ResNet-20 and on 10 million parameters in 200 tensors.

    And of whole training steps: of convolutional networks at batch 64, beside the optimizers that samplers are compared
    with, and of an MLP 784-20-10 at batch 500 for the samplers whose update needs the loss.
    """

    long_rounds: int = 15  # Rounds on 10 million parameters; 0 leaves these out.
    uncompiled: bool = False  # Also time the samplers that have compiled code without it.
    # Names of samplers, as in the table; none times all of them. Those of torch are always there.
    samplers: tuple[str, ...] = ()
    networks: tuple[str, ...] = tuple(NETWORKS)  # Networks whose training steps are timed.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.long_rounds:
            at_least(2, self, "long_rounds")
        for name, choices in (("samplers", SAMPLERS), ("networks", NETWORKS)):
            if unknown := set(getattr(self, name)) - set(choices):
                raise ValueError(f"{name} must be of {'; '.join(choices)}, got {'; '.join(sorted(unknown))}")


def parameters_with_gradients(shapes: list[tuple[int, ...]], device: str) -> list[Tensor]:
    params: list[Tensor] = [nn.Parameter(torch.randn(s, device=device) * 0.05) for s in shapes]
    for p in params:
        p.grad = torch.randn_like(p) * 0.01
    return params


def contestants(make: Callable[[], list[Tensor]], options: StepBenchmark) -> dict[str, Step]:
    """Name → one step on the parameters that ``make`` makes."""
    steps: dict[str, Step] = {
        "torch SGD(momentum)": torch.optim.SGD(make(), 1e-9, momentum=0.9).step,
        "torch Adam": torch.optim.Adam(make(), 1e-9).step,
    }
    plain = make()
    steps["randn_like of every parameter"] = lambda: [torch.randn_like(p) for p in plain]
    for name in options.samplers or SAMPLERS:
        steps[name] = step_of(SAMPLERS[name](make()))
        if options.uncompiled and name in COMPILED:
            steps[name + WITHOUT_CODE] = uncompiled(step_of(SAMPLERS[name](make())))
    return steps


def trainer(model: nn.Module, make: Callable[[Any], Any], batch: Callable[[], tuple[Tensor, Tensor]]) -> Step:
    """A whole training step: a minibatch, forward, backward, update."""
    sampler = make(model.parameters())

    def closure() -> Tensor:
        x, y = batch()
        sampler.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    def step() -> Tensor:
        if isinstance(sampler, Sampler):  # some need the loss
            return sampler.step(closure)
        loss = closure()
        sampler.step()
        return loss

    return step


def _adapted(params: Any, warmup_steps: int) -> Sampler:
    return AdaptedSGHMC(params, LR_TRAINED, NUM_DATA, warmup=L2E, warmup_steps=warmup_steps)


_TRAINED: dict[str, Any] = {"lr": LR_TRAINED, "num_data": NUM_DATA}
#: Name → maker of the optimizer of whole training steps.
TRAINED: dict[str, Callable[[Any], Any]] = {
    "SGHMC": functools.partial(table.SAMPLERS["SGHMC"], **_TRAINED),
    "torch Adam": lambda params: torch.optim.Adam(params, LR_TRAINED),
    "Muon": lambda params: Muon(params, LR_TRAINED),
    "Shampoo": lambda params: Shampoo(params, LR_TRAINED),
    "SOAP": lambda params: soap(params, LR_TRAINED, 0.0),
    "L2E": functools.partial(table.SAMPLERS["L2E"], **_TRAINED),
    "L2E, network l2e": functools.partial(table.SAMPLERS["L2E"], network="l2e", **_TRAINED),
    "KineticL2E": functools.partial(table.SAMPLERS["KineticL2E"], **_TRAINED),
    "AdaptedSGHMC(warmup=L2E), warming up": functools.partial(_adapted, warmup_steps=10**9),
    "AdaptedSGHMC(warmup=L2E), frozen": functools.partial(_adapted, warmup_steps=1),
}


def training_steps(network: str, device: str, batch: int = 64) -> dict[str, Step]:
    """Name → one training step of a network of `NETWORKS`, on images made of noise."""
    name, size, settings = NETWORKS[network]
    x, y = torch.randn(batch, 3, size, size, device=device), torch.randint(10, (batch,), device=device)
    build = functools.partial(architectures.build, name, (3, size, size), 10, **settings)
    missing = set() if importlib.util.find_spec("pytorch_optimizer") else {"SOAP"}
    made = {key: make for key, make in TRAINED.items() if key not in missing}
    return {key: trainer(build().to(device), make, lambda: (x, y)) for key, make in made.items()}


def mlp_steps(device: str, num_images: int = 20_000) -> dict[str, Step]:
    """Name → one training step of the MNIST MLP 784-20-10 at batch 500, on images held as a tensor."""
    images, labels = torch.rand(num_images, 784, device=device), torch.randint(10, (num_images,), device=device)

    def batch() -> tuple[Tensor, Tensor]:
        chosen = torch.randint(num_images, (500,), device=device)
        return images[chosen], labels[chosen]

    def timed(sampler: Callable[..., Any]) -> Step:
        model = nn.Sequential(nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 10)).to(device)
        return trainer(model, lambda params: sampler(params, 1e-3, NUM_DATA), batch)

    plain, learned = timed(SGHMC), timed(MetaSGMCMC)
    return {"SGHMC": plain, "MetaSGMCMC": learned, f"MetaSGMCMC{WITHOUT_CODE}": uncompiled(timed(MetaSGMCMC))}


def benchmark_steps(options: StepBenchmark, command: str = "python tools/benchmark.py step") -> None:
    """Measure, and write the tables; those that are finished are written when the command is stopped."""
    parts = [options.prepare() + f", {options.long_rounds} on 10 million parameters" * bool(options.long_rounds)]
    resnet = [tuple(p.shape) for p in architectures.build("resnet20_frn", (3, 32, 32), 10).parameters()]
    cases: dict[str, tuple[list[tuple[int, ...]], int]] = {
        "ResNet-20": (resnet, options.rounds),
        "10 million in 200 tensors": ([(250, 200)] * 200, options.long_rounds),
    }
    try:
        columns: dict[str, dict[str, float]] = {}
        for title, (shapes, rounds) in cases.items():
            if rounds:
                make = functools.partial(parameters_with_gradients, shapes, options.device)
                columns[title] = milliseconds(contestants(make, options), options, title, rounds=rounds)
                parts[1:] = [_table("SGD + noise", columns, ("torch SGD(momentum)", "randn_like of every parameter"))]
        columns, parts = {}, [*parts, ""]
        for network in options.networks:
            title = f"training step, {network}"
            columns[network] = milliseconds(training_steps(network, options.device), options, title)
            parts[-1] = "Training step, batch 64:\n\n" + _table("SGHMC", columns, ("SGHMC",))
        title = "training step, MLP 784-20-10, batch 500"
        times = milliseconds(mlp_steps(options.device), options, title)
        parts.append(_table("SGHMC", {title: times}, ("SGHMC",)))
    finally:
        write_table(options.out, command, "\n\n".join(filter(None, parts)))


def _table(base: str, columns: dict[str, dict[str, float]], of: tuple[str, ...]) -> str:
    """Milliseconds, and the ratio to the sum of the base's in each column."""
    rows = []
    for name in next(iter(columns.values()), ()):
        cells = {title: f"{t[name]:.2f} ({t[name] / sum(t[key] for key in of):.2f}×)" for title, t in columns.items()}
        rows.append({f"ms per step (× of {base})": name, **cells})
    return markdown(rows)


# ---------------------------------------------------------------- chains side by side

FEATURES, COUNT = 5, 8
#: Samplers whose networks may lie along a leading axis, and others, whose chains have tensors of their own.
SIDE_BY_SIDE = ("SGHMC", "MCLMC", "HMC", "WhitenedSGHMC", "L2E")


@dataclass(frozen=True)
class ChainsBenchmark(TimingOptions):
    """Time per step of eight chains of an MLP 16-16 (tanh, normal likelihood of two outputs) and of one network."""

    rows: int = 1202  # Rows a step.
    samplers: tuple[str, ...] = ()  # Names of samplers; none times those of the table.

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "rows")
        if unknown := set(self.samplers) - set(table.SAMPLERS):
            raise ValueError(f"samplers must be of {', '.join(table.SAMPLERS)}, got {', '.join(sorted(unknown))}")


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))


def regression_step(model: nn.Module, name: str, x: Tensor, y: Tensor) -> Step:
    """A whole step on these rows."""
    leapfrog: dict[str, Any] = {"leapfrog_steps": 10} if name == "HMC" else {}
    sampler = table.SAMPLERS[name](model.parameters(), lr=1e-6, num_data=len(x), prior_precision=1.0, **leapfrog)

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
    x, y = torch.randn(options.rows, FEATURES, device=options.device), torch.randn(options.rows, device=options.device)
    rows = []
    for name in options.samplers or SIDE_BY_SIDE:
        chains = Chains([network() for _ in range(COUNT)], separate=not table.SAMPLERS[name].stacked)
        models = {"one": network().to(options.device), "eight": chains.to(options.device)}
        steps = {key: regression_step(model, name, x, y) for key, model in models.items()}
        times = milliseconds(steps, options, name)
        cells = {f"{key}, ms": f"{value:.2f}" for key, value in times.items()}
        rows.append({"sampler": name, **cells, "eight / one": f"{times['eight'] / times['one']:.1f}"})
    write_table(options.out, command, f"{head}, {options.rows} rows\n\n{markdown(rows)}")
