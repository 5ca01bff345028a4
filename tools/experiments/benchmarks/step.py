"""Time per step of each sampler beside torch's optimizers."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from experiments.benchmarks.samplers import COMPILED, NUM_DATA, SAMPLERS, step_of, uncompiled
from experiments.benchmarks.timing import Step, TimingOptions, interleaved, lower_decile, write_table
from experiments.harness.options import at_least
from experiments.harness.runs.methods import soap
from experiments.harness.runs.muon import Muon, Shampoo
from learned_samplers import L2E, SGHMC, AdaptedSGHMC, KineticL2E, MetaSGMCMC, Sampler
from learned_samplers.base.matrices import ROOT_EVERY
from meta_tasks.networks import architectures

# Networks of whole training steps: architecture, side of the images, the architecture's own options.
NETWORKS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "CNN, 16×16": ("cnn", 16, {"channels": 8, "depth": 2}),
    "ResNet-20-FRN of width 8, 16×16": ("resnet20_frn", 16, {"width": 8}),
    "ResNet-20-FRN, 32×32": ("resnet20_frn", 32, {}),
}
LR_TRAINED = 1e-6
# After the name of a sampler that is timed without its compiled code.
WITHOUT_CODE = ", without compiled code"
# Steps after which a sampler has done all that it does: those that whiten decompose covariances in turns.
PERIODS = {"L2E": ROOT_EVERY, "WhitenedSGHMC": ROOT_EVERY}


@dataclass(frozen=True)
class StepBenchmark(TimingOptions):
    """Time per step of every sampler, on the tensors of a ResNet-20 and on 10 million parameters in 200 tensors.

    And of whole training steps: of convolutional networks at batch 64, beside the optimizers that samplers are compared
    with, and of an MLP 784-20-10 at batch 500 for the samplers whose update needs the loss.
    """

    # Rounds on 10 million parameters; 0 leaves these out.
    long_rounds: int = 15
    # Also time the samplers that have compiled code without it.
    uncompiled: bool = False
    # Names of samplers, as in the table; none times all of them. Those of torch are always there.
    samplers: tuple[str, ...] = ()
    # Networks whose training steps are timed.
    networks: tuple[str, ...] = tuple(NETWORKS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.long_rounds:
            at_least(2, self, "long_rounds")
        for name, known in (("samplers", SAMPLERS), ("networks", NETWORKS)):
            if unknown := set(getattr(self, name)) - set(known):
                raise ValueError(f"{name} must be of {'; '.join(known)}, got {'; '.join(sorted(unknown))}")


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
    """One whole training step: a minibatch, forward, backward, update."""
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


#: Name → what makes the optimizer of whole training steps.
TRAINED: dict[str, Callable[[Any], Any]] = {
    "SGHMC": lambda params: SGHMC(params, LR_TRAINED, NUM_DATA),
    "torch Adam": lambda params: torch.optim.Adam(params, LR_TRAINED),
    "Muon": lambda params: Muon(params, LR_TRAINED),
    "Shampoo": lambda params: Shampoo(params, LR_TRAINED),
    "SOAP": lambda params: soap(params, LR_TRAINED, 0.0),
    "L2E": lambda params: L2E(params, LR_TRAINED, NUM_DATA),
    "L2E, network l2e": lambda params: L2E(params, LR_TRAINED, NUM_DATA, network="l2e"),
    "KineticL2E": lambda params: KineticL2E(params, LR_TRAINED, NUM_DATA),
    "AdaptedSGHMC(warmup=L2E), warming up": lambda params: AdaptedSGHMC(
        params, LR_TRAINED, NUM_DATA, warmup=L2E, warmup_steps=10**9
    ),
    "AdaptedSGHMC(warmup=L2E), frozen": lambda params: AdaptedSGHMC(
        params, LR_TRAINED, NUM_DATA, warmup=L2E, warmup_steps=1
    ),
}


def training_steps(network: str, device: str, batch: int = 64) -> dict[str, Step]:
    """Name → one training step of a network of `NETWORKS`, on images made of noise."""
    name, size, own = NETWORKS[network]
    x, y = torch.randn(batch, 3, size, size, device=device), torch.randint(10, (batch,), device=device)
    build = functools.partial(architectures.build, name, (3, size, size), 10, **own)
    missing = set() if importlib.util.find_spec("pytorch_optimizer") else {"SOAP"}
    made = {key: make for key, make in TRAINED.items() if key not in missing}
    return {key: trainer(build().to(device), make, lambda: (x, y)) for key, make in made.items()}


def mlp_steps(device: str, num_images: int = 20_000) -> dict[str, Step]:
    """Name → one training step of the MNIST MLP 784-20-10 at batch 500, on images held as a tensor."""
    images = torch.rand(num_images, 784, device=device)
    labels = torch.randint(10, (num_images,), device=device)

    def batch() -> tuple[Tensor, Tensor]:
        chosen = torch.randint(num_images, (500,), device=device)
        return images[chosen], labels[chosen]

    def timed(sampler: Callable[..., Any], **settings: Any) -> Step:
        model = nn.Sequential(nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 10)).to(device)
        return trainer(model, lambda params: sampler(params, 1e-3, NUM_DATA, **settings), batch)

    return {
        "SGHMC": timed(SGHMC),
        "MetaSGMCMC": timed(MetaSGMCMC),
        f"MetaSGMCMC{WITHOUT_CODE}": uncompiled(timed(MetaSGMCMC)),
    }


def benchmark_steps(options: StepBenchmark, command: str = "python tools/benchmark.py step") -> None:
    head = options.prepare()
    if options.long_rounds:
        head += f", {options.long_rounds} on 10 million parameters"
    resnet = [tuple(p.shape) for p in architectures.build("resnet20_frn", (3, 32, 32), 10).parameters()]
    cases: dict[str, tuple[list[tuple[int, ...]], int]] = {
        "ResNet-20": (resnet, options.rounds),
        "10 million in 200 tensors": ([(250, 200)] * 200, options.long_rounds),
    }
    columns = {}
    for title, (shapes, rounds) in cases.items():
        if rounds:
            make = functools.partial(parameters_with_gradients, shapes, options.device)
            columns[title] = milliseconds(contestants(make, options), rounds, options, title)
    base = {t: times["torch SGD(momentum)"] + times["randn_like of every parameter"] for t, times in columns.items()}
    tables = [_table("SGD + noise", columns, base)]
    columns = {}
    for network in options.networks:
        steps = training_steps(network, options.device)
        rounds, periods = max(2, options.rounds // ROOT_EVERY), dict.fromkeys(steps, ROOT_EVERY)
        columns[network] = milliseconds(steps, rounds, options, f"training step, {network}", periods)
    if columns:
        tables.append(
            "Training step, batch 64:\n\n" + _table("SGHMC", columns, {t: c["SGHMC"] for t, c in columns.items()})
        )
    title = "training step, MLP 784-20-10, batch 500"
    times = milliseconds(mlp_steps(options.device), options.rounds, options, title)
    tables.append(_table("SGHMC", {title: times}, {title: times["SGHMC"]}))
    write_table(options.out, command, "\n\n".join([head, *tables]))


def milliseconds(
    steps: dict[str, Step], rounds: int, options: StepBenchmark, title: str, periods: Mapping[str, int] = PERIODS
) -> dict[str, float]:
    """Milliseconds of each, the tenth percentile of interleaved rounds.

    A round of a sampler that does something in every k-th step alone is k steps (its period), of which this is the
    mean.
    """
    turns = {name: periods.get(name.removesuffix(WITHOUT_CODE), 1) for name in steps}
    rounds_of = {name: functools.partial(_times, step, turns[name]) for name, step in steps.items()}
    times = interleaved(rounds_of, options, title, rounds=rounds)
    return {name: lower_decile(values) / turns[name] for name, values in times.items()}


def _times(step: Step, number: int) -> None:
    for _ in range(number):
        step()


def _table(of: str, columns: dict[str, dict[str, float]], base: dict[str, float]) -> str:
    """Milliseconds, and the ratio to a base of each column."""
    lines = [f"| ms per step (× of {of}) | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for name in next(iter(columns.values()), ()):
        cells = [f"{times[name]:.2f} ({times[name] / base[title]:.2f}×)" for title, times in columns.items()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
