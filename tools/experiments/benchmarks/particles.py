"""Time per step of the particle samplers on multi-task networks, beside the backward passes alone and a plain loop.

Beside TorchJD's MGDA too, where that package is installed: a loop over particles, as it knows of one network.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.benchmarks.timing import Step, TimingOptions, interleaved, write_table
from experiments.harness.options import positive
from learned_samplers import MOOSVGD, MTSGD
from learned_samplers.particles import MGDA

NUM_DATA = 120_000
BACKWARD = "backward passes alone"


@dataclass(frozen=True)
class ParticleBenchmark(TimingOptions):
    """Time per step for M particles and K tasks: a shared trunk, a linear head a task, images of 28×28."""

    # Networks.
    network: tuple[Literal["lenet", "mlp"], ...] = ("mlp", "lenet")
    # Numbers of particles M.
    particles: tuple[int, ...] = (5, 20, 100)
    # Numbers of tasks K.
    tasks: tuple[int, ...] = (2, 10, 40)
    # Images in a minibatch.
    batch_size: int = 256
    # Rounds. The best of each is what counts.
    rounds: int = 10
    # Leave out combinations whose trunk gradients, of all tasks together, have more than this many million numbers.
    most_millions: float = 50.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("particles", "tasks"):
            if min(getattr(self, name), default=0) < 1:
                raise ValueError(f"{name} must hold positive integers, got {getattr(self, name)}")
        positive(self, "most_millions")


def trunk(name: str) -> nn.Module:
    """The LeNet of 22,350 parameters with its two heads of ten, or an MLP of 784-100-50."""
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU())
    layers = [nn.Conv2d(1, 10, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(320, 50), nn.ReLU())


class Problem:
    """M particles of a trunk and K heads each, one minibatch, and the closure."""

    def __init__(self, name: str, particles: int, tasks: int, options: ParticleBenchmark):
        networks = [trunk(name).to(options.device) for _ in range(particles)]
        self.network, self.vmap = networks[0], name == "mlp"
        self.trunk = dict(torch.func.stack_module_state(networks)[0])
        shape = (particles, 50, 10)
        self.heads = [(torch.randn(shape, device=options.device) / 7).requires_grad_() for _ in range(tasks)]
        self.bias = [torch.zeros(particles, 10, device=options.device, requires_grad=True) for _ in range(tasks)]
        self.x = torch.randn(options.batch_size, 1, 28, 28, device=options.device)
        self.y = torch.randint(10, (tasks, options.batch_size), device=options.device)

    def groups(self) -> list[dict[str, object]]:
        heads = [{"params": [w, b], "task": k} for k, (w, b) in enumerate(zip(self.heads, self.bias, strict=True))]
        return [{"params": list(self.trunk.values())}, *heads]

    def hidden(self) -> Tensor:
        """(M, B, 50): by vmap for the MLP, in a loop for convolutions, each the faster way."""
        if self.vmap:
            return torch.vmap(lambda p: torch.func.functional_call(self.network, p, (self.x,)))(self.trunk)
        slices = zip(*(p.unbind(0) for p in self.trunk.values()), strict=True)
        calls = [dict(zip(self.trunk, one, strict=True)) for one in slices]
        return torch.stack([torch.func.functional_call(self.network, one, (self.x,)) for one in calls])

    def losses(self) -> list[Tensor]:
        hidden = self.hidden()
        particles, batch = hidden.shape[:2]
        losses = []
        for w, b, y in zip(self.heads, self.bias, self.y, strict=True):
            logits = torch.baddbmm(b[:, None], hidden, w).flatten(0, 1)
            losses.append(F.cross_entropy(logits, y.repeat(particles), reduction="none").view(particles, batch).mean(1))
        return losses

    def backward_passes(self) -> None:
        """What every method needs: the forward pass, and one backward pass a task."""
        losses = self.losses()
        for k, loss in enumerate(losses):
            wanted = [*self.trunk.values(), self.heads[k], self.bias[k]]
            torch.autograd.grad(loss.sum(), wanted, retain_graph=k < len(losses) - 1)

    def particle(self, m: int) -> tuple[dict[str, Tensor], Tensor, list[tuple[Tensor, Tensor]], list[Tensor]]:
        """One particle as a network of its own: the trunk, what it computes, the heads, and the losses of the tasks."""
        own = {name: p[m].detach().requires_grad_() for name, p in self.trunk.items()}
        hidden = torch.func.functional_call(self.network, own, (self.x,))
        pairs = zip(self.heads, self.bias, strict=True)
        heads = [(w[m].detach().requires_grad_(), b[m].detach().requires_grad_()) for w, b in pairs]
        losses = [F.cross_entropy(torch.addmm(b, hidden, w), y) for (w, b), y in zip(heads, self.y, strict=True)]
        return own, hidden, heads, losses

    def plain_loop(self) -> None:
        """A pass forward for every particle, and one backward for every particle and task."""
        for m in range(len(self.heads[0])):
            own, _, heads, losses = self.particle(m)
            for k, (loss, head) in enumerate(zip(losses, heads, strict=True)):
                torch.autograd.grad(loss, [*own.values(), *head], retain_graph=k < len(losses) - 1)

    def torchjd_loop(self, mtl_backward: Callable[..., None], jac_to_grad: Callable[..., Any], aggregator: Any) -> None:
        """TorchJD's MGDA of every particle by itself, and a step of the size of the samplers'."""
        for m in range(len(self.heads[0])):
            own, hidden, heads, losses = self.particle(m)
            mtl_backward(losses, features=hidden, tasks_params=heads, shared_params=own.values())
            jac_to_grad(own.values(), aggregator)
            with torch.no_grad():
                for p in (*own.values(), *(p for head in heads for p in head)):
                    assert p.grad is not None
                    p.add_(p.grad, alpha=-1e-12)


def contestants(name: str, particles: int, tasks: int, options: ParticleBenchmark) -> dict[str, Step]:
    """Name → one step. The learning rate is so small that nothing moves."""
    problem = Problem(name, particles, tasks, options)
    steps: dict[str, Step] = {BACKWARD: problem.backward_passes}
    for title, cls in (("MT-SGD", MTSGD), ("MOO-SVGD", MOOSVGD), ("MGDA", MGDA)):
        sampler = cls(problem.groups(), 1e-12, NUM_DATA)
        steps[title] = lambda sampler=sampler: sampler.step(problem.losses)  # type: ignore[misc]
    steps["loop over particles and tasks, no sampler"] = problem.plain_loop
    if (peer := torchjd_mgda()) is not None:
        steps["TorchJD's MGDA"] = lambda: problem.torchjd_loop(*peer)
    return steps


def torchjd_mgda() -> tuple[Callable[..., None], Callable[..., Any], Any] | None:
    """What `Problem.torchjd_loop` needs of TorchJD (0.18 has it), or None where that is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own dependencies
            from torchjd.aggregation import MGDA as Aggregator
            from torchjd.autojac import jac_to_grad, mtl_backward
    except ImportError:
        return None
    return mtl_backward, jac_to_grad, Aggregator()


def benchmark_particles(options: ParticleBenchmark, command: str = "python tools/benchmark.py particles") -> None:
    head = f"{options.prepare()}, of which the best counts"
    lines: list[str] = []
    missing: list[str] = []
    for name in options.network:
        size = sum(p.numel() for p in trunk(name).parameters())
        for particles, tasks in [(m, k) for m in options.particles for k in options.tasks]:
            title = f"{name}, M={particles}, K={tasks}"
            if (millions := size * particles * tasks / 1e6) > options.most_millions:
                missing.append(f"{title} ({millions:.3g} million numbers in the gradients)")
                continue
            times = interleaved(contestants(name, particles, tasks, options), options, title, warm_up=1)
            best = {contestant: min(values) for contestant, values in times.items()}
            if not lines:
                lines = [f"| ms per step (× of the first) | {' | '.join(best)} |", "|---|" + "---:|" * len(best)]
            cells = [f"{value:.1f} ({value / best[BACKWARD]:.2f}×)" for value in best.values()]
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    left_out = f"\n\nLeft out: {'; '.join(missing)}." if missing else ""
    write_table(options.out, command, f"{head}\n\n" + "\n".join(lines) + left_out)
