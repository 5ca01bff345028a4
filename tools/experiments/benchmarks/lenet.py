"""Ways to compute the gradients of five LeNets on two tasks: what `experiments.multi_task.networks.LeNet` rests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn import functional as F

from experiments.benchmarks.timing import interleaved, lower_decile, write_table
from experiments.harness.options import at_least, at_least_one
from experiments.harness.tables import markdown
from experiments.multi_task.networks import LeNet

TASKS = 2


@dataclass(frozen=True)
class LeNetBenchmark:
    """Milliseconds of the processor for a forward pass and the gradients of every task, computed in several ways."""

    # Images in the minibatch.
    batch_size: int = 32
    # Number of particles.
    particles: int = 5
    # Each way is timed once a round.
    rounds: int = 20
    # CPU threads of torch.
    threads: int = 1
    # File for the Markdown table, besides the terminal.
    out: Path | None = None

    def __post_init__(self) -> None:
        at_least_one(self, "batch_size", "particles", "threads")
        at_least(2, self, "rounds")


class Variants:
    """One problem, and the variants of its forward pass: each gives the heads' inputs, (M, B, 50)."""

    def __init__(self, options: LeNetBenchmark) -> None:
        self.network = LeNet((1, 28, 28), TASKS, 10, options.particles)
        self.module = LeNet.one(1, 320, 5)
        self.x = torch.rand(options.batch_size, 1, 28, 28)
        self.y = torch.randint(10, (TASKS, options.batch_size))

    def chosen(self) -> Tensor:
        return self.network.latents(self.x)

    def loop(self) -> Tensor:
        trunk = self.network.trunk
        slices = zip(*(p.unbind(0) for p in trunk.values()), strict=True)
        return torch.stack(
            [functional_call(self.module, dict(zip(trunk, one, strict=True)), (self.x,)) for one in slices]
        )

    def vectorised(self) -> Tensor:
        return vmap(lambda p: functional_call(self.module, p, (self.x,)))(self.network.trunk)

    def grouped(self) -> Tensor:
        """Both layers as convolutions on channels-last activations, the second with a group for each particle."""
        w1, b1, w2, b2, w3, b3 = self.network.trunk.values()
        last = torch.channels_last
        x = self.x.contiguous(memory_format=last)
        hidden = F.conv2d(x, w1.flatten(0, 1).contiguous(memory_format=last), b1.flatten())
        hidden = F.max_pool2d(hidden, 2).relu()
        hidden = F.conv2d(hidden, w2.flatten(0, 1).contiguous(memory_format=last), b2.flatten(), groups=len(b1))
        hidden = F.max_pool2d(hidden, 2).relu().contiguous().view(len(x), len(b1), -1).transpose(0, 1)
        return torch.baddbmm(b3[:, None], hidden, w3.mT).relu()

    def gradients(self, latents: Callable[[], Tensor], batched: bool) -> list[Tensor]:
        """Of every task by the trunk and its head: a backward pass each, or one for all."""
        outputs = self.network.outputs(latents())
        losses = [
            F.cross_entropy(logits.flatten(0, 1), y.repeat(len(logits))) * len(logits)
            for logits, y in zip(outputs, self.y, strict=True)
        ]
        trunk, heads = list(self.network.trunk.values()), [list(head.values()) for head in self.network.heads]
        if batched:
            every = trunk + [p for head in heads for p in head]
            return list(torch.autograd.grad(torch.stack(losses), every, torch.eye(TASKS), is_grads_batched=True))
        passes = [
            torch.autograd.grad(loss, trunk + head, retain_graph=k < TASKS - 1)
            for k, (loss, head) in enumerate(zip(losses, heads, strict=True))
        ]
        return [torch.stack(pieces) for pieces in zip(*(grads[: len(trunk)] for grads in passes), strict=True)]


def contestants(options: LeNetBenchmark) -> dict[str, Callable[[], list[Tensor]]]:
    """Name → a forward pass and the gradients."""
    variants = Variants(options)
    named = {
        "patches × weights, then a grouped convolution": variants.chosen,
        "two grouped convolutions": variants.grouped,
        "loop over particles": variants.loop,
        "vmap over particles": variants.vectorised,
    }
    return {
        f"{name}; {'one batched pass' if batched else 'a pass a task'}": (
            lambda variant=variant, batched=batched: variants.gradients(variant, batched)  # type: ignore[misc]
        )
        for name, variant in named.items()
        for batched in (False, True)
    }


def benchmark_lenet(options: LeNetBenchmark, command: str = "python tools/benchmark.py lenet") -> None:
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    times = interleaved(contestants(options), options.rounds, "LeNet", warm_up=2, clock="processor")
    fastest = {name: lower_decile(values) for name, values in times.items()}
    table = markdown([{"computed by": name, "ms": f"{value:.1f}"} for name, value in fastest.items()])
    write_table(options.out, command, f"torch {torch.__version__}, {options}\n\n{table}")
