"""Time per step of each sampler beside torch's optimizers and, where installed, `posteriors` and `ivon-opt`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from experiments.benchmarks.contestants import COMPILED, NUM_DATA, SAMPLERS, lean_l2e, step_of, uncompiled
from experiments.benchmarks.timing import interleaved, lower_decile, write_table
from experiments.harness.options import at_least, at_least_one
from learned_samplers import L2E, SGHMC, KineticL2E, MetaSGMCMC
from learned_samplers.base.whitening import ROOT_EVERY
from learned_samplers.learned.meta_sgmcmc.network import build_meta_network
from meta_tasks.networks import architectures

# Sides of images up to which a training step is short enough for all rounds.
_SMALL = 16
# After the name of a sampler that is timed without its compiled code.
WITHOUT_CODE = ", without compiled code"
# Steps after which a sampler has done all that it does: L2E's default weights decompose covariances now and then.
_PERIODS = {"L2E": ROOT_EVERY, "ScaleAdaptedL2E, exploring": ROOT_EVERY}


@dataclass(frozen=True)
class StepBenchmark:
    """Time per step of every sampler, on the tensors of a ResNet-20 and on 10 million parameters in 200 tensors.

    And of whole training steps: of a ResNet-20 with filter response normalisation at batch 64, and of an MLP 784-20-10
    at batch 500 for the samplers whose update needs the loss.
    """

    # Rounds: in each, every sampler takes one timed step in turn.
    rounds: int = 60
    # The same on 10 million parameters, and on images of 32×32; 0 leaves these out.
    long_rounds: int = 15
    # Also time the samplers that have compiled code without it.
    uncompiled: bool = False
    # Names of samplers, as in the table; none times all of them. Those of torch are always there.
    samplers: tuple[str, ...] = ()
    # CPU threads; by default torch's own choice.
    threads: int | None = None
    # What is timed: time on the clock, or processor time of all threads together, which other programs disturb less.
    clock: Literal["wall", "processor"] = "wall"
    # Sides of the ResNet's images; none leaves its training steps out.
    sizes: tuple[int, ...] = (16, 32)
    # Device, such as cpu or cuda.
    device: str = "cpu"
    # File for the Markdown table, besides the terminal.
    out: Path | None = None

    def __post_init__(self) -> None:
        at_least_one(self, "threads")
        at_least(2, self, "rounds")  # of which a percentile is taken
        if self.long_rounds:
            at_least(2, self, "long_rounds")
        if min(self.sizes, default=1) < 1:
            raise ValueError(f"sizes must hold positive integers, got {self.sizes}")
        if self.clock == "processor" and self.device != "cpu":
            raise ValueError(f"clock='processor' does not see what device={self.device!r} does")
        if unknown := set(self.samplers) - set(SAMPLERS):
            raise ValueError(f"samplers must be of {', '.join(SAMPLERS)}, got {', '.join(sorted(unknown))}")


def resnet20(device: str) -> list[Tensor]:
    """The 65 tensors of the CIFAR ResNet-20: BatchNorm's scale and shift beside each of 21 convolutions, one linear."""
    shapes: list[tuple[int, ...]] = [(16, 3, 3, 3), (16,), (16,)]
    channels = 16
    for width in (16, 32, 64):
        for block in range(3):
            first = channels if block == 0 else width
            shapes += [(width, first, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if first != width:
                shapes += [(width, first, 1, 1), (width,), (width,)]
        channels = width
    shapes += [(10, 64), (10,)]
    return _parameters(shapes, device)


def ten_million(device: str) -> list[Tensor]:
    return _parameters([(250, 200)] * 200, device)


def _parameters(shapes: list[tuple[int, ...]], device: str) -> list[Tensor]:
    params: list[Tensor] = [nn.Parameter(torch.randn(s, device=device) * 0.05) for s in shapes]
    for p in params:
        p.grad = torch.randn_like(p) * 0.01
    return params


def contestants(
    make: Callable[[], list[Tensor]], without_code: bool = False, samplers: tuple[str, ...] = ()
) -> dict[str, Callable[[], object]]:
    """Name → one step; each has its own parameters. ``without_code``: also without the compiled code; ``samplers``: of
    the library only these, and no peers."""
    chosen = samplers or tuple(SAMPLERS)
    steps: dict[str, Callable[[], object]] = {
        "torch SGD(momentum)": torch.optim.SGD(make(), 1e-9, momentum=0.9).step,
        "torch Adam": torch.optim.Adam(make(), 1e-9).step,
    }
    plain = make()
    steps["randn_like of every parameter"] = lambda: [torch.randn_like(p) for p in plain]
    steps |= {name: step_of(SAMPLERS[name](make())) for name in chosen}
    for name in COMPILED if without_code else ():
        if name in chosen:
            steps[f"{name}{WITHOUT_CODE}"] = uncompiled(step_of(SAMPLERS[name](make())))
    if samplers:
        return steps
    for name, peer in (("posteriors SGHMC", _posteriors_sghmc(make())), ("ivon-opt IVON", _ivon(make()))):
        if peer is not None:
            steps[name] = peer
    return steps


def resnet_steps(size: int, device: str, batch: int = 64) -> dict[str, Callable[[], object]]:
    """Name → one whole training step of ResNet-20 with filter response normalisation on images of that size."""
    x, y = torch.randn(batch, 3, size, size, device=device), torch.randint(10, (batch,), device=device)

    def trainer(make: Callable[[Any], torch.optim.Optimizer]) -> Callable[[], object]:
        torch.manual_seed(0)
        model = architectures.build("resnet20_frn", (3, 32, 32), 10).to(device)
        sampler: Any = make(model.parameters())

        def closure() -> Tensor:
            sampler.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return lambda: sampler.step(closure)

    lr, n = 1e-6, NUM_DATA
    return {
        "SGHMC": trainer(lambda params: SGHMC(params, lr, n)),
        "torch Adam": trainer(lambda params: torch.optim.Adam(params, lr)),
        "L2E": trainer(lambda params: L2E(params, lr, n)),
        "L2E, network l2e": trainer(lambda params: L2E(params, lr, n, network="l2e")),
        "L2E, lean": trainer(lambda params: lean_l2e(params, lr, n)),
        "KineticL2E": trainer(lambda params: KineticL2E(params, lr, n)),
    }


def training_steps(device: str, num_images: int = 20_000) -> dict[str, Callable[[], object]]:
    """Name → one whole training step of the MNIST MLP 784-20-10 at batch 500, on images held as a tensor.

    Draws the minibatch, goes forward and backward, and updates; each has its own network.
    """
    images = torch.rand(num_images, 784, device=device)
    labels = torch.randint(10, (num_images,), device=device)
    learned = build_meta_network((10,), zero_last=False, generator=torch.Generator().manual_seed(0))

    def trainer(cls: Callable[..., torch.optim.Optimizer], **settings: Any) -> Callable[[], object]:
        model = nn.Sequential(nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 10)).to(device)
        sampler: Any = cls(model.parameters(), 1e-3, NUM_DATA, **settings)

        def closure() -> Tensor:
            chosen = torch.randint(num_images, (500,), device=device)
            sampler.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            return loss

        return lambda: sampler.step(closure)

    exact = functools.partial(trainer, MetaSGMCMC, network=learned)
    return {
        "SGHMC": trainer(SGHMC),
        "MetaSGMCMC": exact(),
        "MetaSGMCMC, without compiled code": uncompiled(exact()),
        "MetaSGMCMC, finite differences": trainer(MetaSGMCMC, network=learned, correction="finite_difference"),
    }


def _posteriors_sghmc(params: list[Tensor]) -> Callable[[], object] | None:
    """The peer package's SGHMC on the same gradients; its own step includes no backward pass here either."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own dependencies
            import posteriors
    except ImportError:
        return None
    values = {str(i): p.detach() for i, p in enumerate(params)}
    grads = {str(i): p.grad for i, p in enumerate(params)}

    class Given(torch.autograd.Function):
        """A log posterior whose gradient is given, so that the update is timed and nothing else."""

        @staticmethod
        def forward(*tensors: Tensor) -> Tensor:
            return tensors[0].new_zeros(())

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            return tuple(grads.values())

    def log_posterior(p: dict[str, Tensor], batch: Any) -> tuple[Tensor, Tensor]:
        return Given.apply(*p.values()), torch.zeros(())

    transform = posteriors.sgmcmc.sghmc.build(log_posterior, lr=1e-9, alpha=0.1)
    state = {"now": transform.init(values)}

    def step() -> None:
        state["now"], _ = transform.update(state["now"], None, inplace=True)

    return step


def _ivon(params: list[Tensor]) -> Callable[[], object] | None:
    """The peer package's IVON, with one draw of the weights a step as its training loop has it."""
    try:
        import ivon
    except ImportError:
        return None
    optimizer = ivon.IVON(params, lr=1e-9, ess=NUM_DATA)
    grads = [p.grad for p in params]

    def step() -> None:
        with optimizer.sampled_params(train=True):
            for p, grad in zip(params, grads, strict=True):
                p.grad = grad
        optimizer.step()

    return step


def benchmark_steps(options: StepBenchmark, command: str = "python tools/benchmark.py step") -> None:
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    columns: dict[str, dict[str, float]] = {}
    cases = {
        "ResNet-20, 65 tensors": (lambda: resnet20(options.device), options.rounds),
        "10 million in 200 tensors": (lambda: ten_million(options.device), options.long_rounds),
    }
    for title, (make, rounds) in cases.items():
        if not rounds:
            continue
        columns[title] = _milliseconds(contestants(make, options.uncompiled, options.samplers), rounds, options, title)
    resnets = {
        f"{size}×{size}": _milliseconds(
            resnet_steps(size, options.device),
            options.rounds if size <= _SMALL else options.long_rounds,
            options,
            f"ResNet-20, {size}×{size}",
        )
        for size in options.sizes
        if size <= _SMALL or options.long_rounds
    }
    whole = "whole training step, MLP 784-20-10, batch 500"
    training = _milliseconds(training_steps(options.device), options.rounds, options, whole)
    tables = [_table(columns)]
    tables += [_training_table(f"training step, ResNet-20-FRN, batch 64, {k}", v) for k, v in resnets.items()]
    table = "\n\n".join([*tables, _training_table(whole, training)])
    head = (
        f"torch {torch.__version__}, {options.device}, {torch.get_num_threads()} threads, "
        f"{'processor time, ' * (options.clock == 'processor')}{options.rounds} rounds"
    )
    if options.long_rounds:
        head += f", {options.long_rounds} on 10 million parameters and on images above {_SMALL}×{_SMALL}"
    write_table(options.out, command, f"{head}\n\n{table}")
    if not options.samplers and not any("posteriors" in name for name in next(iter(columns.values()))):
        print("\n(the posteriors package is not installed: pip install posteriors)")


def _milliseconds(
    steps: dict[str, Callable[[], object]], rounds: int, options: StepBenchmark, title: str
) -> dict[str, float]:
    """Milliseconds of each, the tenth percentile of interleaved rounds, to which other processes add little.

    A round of a sampler that does something in every k-th step alone is k steps, of which this is the mean.
    """
    turns = {name: _PERIODS.get(name.removesuffix(WITHOUT_CODE), 1) for name in steps}
    rounds_of = {name: functools.partial(_times, step, turns[name]) for name, step in steps.items()}
    times = interleaved(rounds_of, rounds, title, warm_up=3, device=options.device, clock=options.clock)
    return {name: lower_decile(values) / turns[name] for name, values in times.items()}


def _times(step: Callable[[], object], number: int) -> None:
    for _ in range(number):
        step()


def _table(columns: dict[str, dict[str, float]]) -> str:
    """Milliseconds, and the ratio to SGD with momentum plus one draw for every parameter."""
    titles = list(columns)
    lines = ["| ms per step (× of SGD + noise) | " + " | ".join(titles) + " |", "|---|" + "---:|" * len(titles)]
    base = {t: columns[t]["torch SGD(momentum)"] + columns[t]["randn_like of every parameter"] for t in titles}
    for name in columns[titles[0]]:
        cells = [f"{columns[t][name]:.2f} ({columns[t][name] / base[t]:.2f}×)" for t in titles]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _training_table(title: str, times: dict[str, float]) -> str:
    """Milliseconds, and the ratio to the first row."""
    base = next(iter(times.values()))
    lines = [f"| ms per step (× of SGHMC) | {title} |", "|---|---:|"]
    return "\n".join([*lines, *(f"| {name} | {ms:.2f} ({ms / base:.2f}×) |" for name, ms in times.items())])
