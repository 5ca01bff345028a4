"""Checks of a GPU, and how fast everything is on it, in ten minutes.

    python tools/gpu_check.py                          # on the GPU that is there
    python tools/gpu_check.py --data DATA              # with cifar10.npz and cifar100.webp: rows of the table at 32×32
    python tools/gpu_check.py --device cpu --minutes 1

Needs the library and its dependencies, nothing else (--data also tyro, torchmetrics, Pillow, scikit-learn). (a) Every
sampler steps, resumes and moves between devices; predictions and meta-training's inner loop are those of the CPU. (b)
Milliseconds of a step and a training step beside torch's Adam, on a ResNet-20 and a transformer of ten million weights.
(c) Member-steps a second of meta-training, and the hours of the L2E paper's protocol. (d) In what is left of --minutes,
with --data, the rows of `compare.py --preset cifar32`. Writes gpu_check.json and gpu_check.md under --out, after each
part. Ends with 1 if (a) found something.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import compare
import torch
from experiments.benchmarks.timing import NUM_DATA, SAMPLERS, step_of
from experiments.harness.devices import synchronize
from experiments.harness.tables import markdown, rectangular
from torch import Tensor, nn

from learned_samplers import HMC, L2E, MCLMC, SGHMC, SGLRW, AdaptedSGHMC, PosteriorSamples, SampleCollection, Sampler
from learned_samplers.approximations import IVON
from meta_tasks.datasets import ImageData
from meta_tasks.inner_loop.schedule import Schedule
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.networks import architectures
from meta_tasks.objectives import BMALoss
from meta_tasks.rules.learned import L2ERule
from meta_tasks.tasks.task import ImageTask, TaskConfig

BLOCK, LEAST = 20, 0.3  # calls that are timed together, and seconds in which they are repeated
WIDTH, HEADS, DEPTH = 320, 8, 8  # of the transformer
BATCH = 64
#: Channels, depth and batch of the inner loops, at 28×28, and how many members run side by side.
INNER = ((4, 1, 128), (8, 3, 128), (16, 5, 128))
MEMBERS = (2, 32)
PAPER = 1000 * 2 * 3000  # member-steps of the L2E paper's meta-training
ADAPTED: dict[str, Callable[[Any], Any]] = {
    "AdaptedSGHMC by L2E": lambda params: AdaptedSGHMC(params, 1e-9, NUM_DATA, warmup_steps=2, warmup=L2E)
}


# ---------------------------------------------------------------- (a) what a device can break


def trained(make: Callable[[Any], Any], device: str) -> tuple[nn.Module, Any, Callable[[int], None]]:
    """A small network, its sampler at a rate at which it moves, and ``go(steps)``."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).to(device)
    x, y = torch.randn(16, 1, 8, 8).to(device), (torch.arange(16) % 3).to(device)
    sampler = make(model.parameters())
    for group in sampler.param_groups:
        group["lr"] = 1e-3

    def closure() -> Tensor:
        sampler.zero_grad()
        with torch.enable_grad():
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
        return loss

    def go(steps: int) -> None:
        for _ in range(steps):
            if sampler.needs_closure or isinstance(sampler, IVON):
                sampler.step(closure)
            else:
                closure()
                sampler.step()

    return model, sampler, go


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()


def resumed(make: Callable[[Any], Any], device: str, model: nn.Module, sampler: Sampler, steps: int) -> Tensor:
    """The weights of a new sampler on a device after so many more steps from the state of this one."""
    state = {"model": copy.deepcopy(model.state_dict()), "sampler": copy.deepcopy(sampler.state_dict())}
    network, sampler, go = trained(make, device)
    network.load_state_dict(state["model"])
    sampler.load_state_dict(state["sampler"])
    torch.manual_seed(1)
    go(steps)
    return weights(network)


def check_sampler(make: Callable[[Any], Any], device: str) -> None:
    """Steps are finite, resume on the device, and, where no random number comes in, are those of the CPU."""
    model, sampler, go = trained(make, device)
    go(3)
    before = weights(model)
    assert before.isfinite().all(), "weights are not finite after three steps"
    there = resumed(make, device, model, sampler, 3)
    moved = resumed(make, "cpu", model, sampler, 3)
    torch.manual_seed(1)
    go(3)
    assert (weights(model) - before).abs().max() > 0, "the sampler stands still"
    torch.testing.assert_close(there, weights(model), rtol=1e-4, atol=1e-6, msg="a resumed chain goes elsewhere")
    assert moved.isfinite().all(), "weights are not finite on the CPU"
    if isinstance(sampler, HMC | MCLMC | SGLRW | IVON):  # which have no T = 0
        return
    ends = []
    for where, seed in ((device, 2), (device, 3), ("cpu", 2)):
        model, sampler, go = trained(make, where)
        for group in sampler.param_groups:
            group["temperature"] = 0.0
        torch.manual_seed(seed)
        go(3)
        ends.append(weights(model))
    if torch.equal(ends[0], ends[1]):
        torch.testing.assert_close(ends[0], ends[2], rtol=1e-3, atol=1e-5, msg="at T = 0 the CPU goes elsewhere")


def check_predict(device: str) -> None:
    """Samples collected on the device predict as on the CPU, in the network at hand and from a file."""
    model, sampler, go = trained(lambda params: SGHMC(params, 1e-3, 100), device)
    with PosteriorSamples(model, sampler, burn_in=2, thinning=2) as samples:
        go(10)
    x = torch.randn(40, 1, 8, 8)
    there = samples.predict(x.to(device)).cpu()
    with tempfile.TemporaryDirectory() as folder:
        samples.save(f"{folder}/samples.safetensors")
        loaded = SampleCollection.load(f"{folder}/samples.safetensors", copy.deepcopy(model).cpu())
    torch.testing.assert_close(loaded.predict(x), there, rtol=1e-3, atol=1e-4)


def unroll_of(shape: tuple[int, int, int], members: int, device: str, temperature: float, images: int) -> Any:
    channels, depth, batch = shape
    torch.manual_seed(0)
    x, y = torch.rand(images, 1, 28, 28), torch.arange(images) % 10
    data = ImageData("random", 10, x, y, x, y, x, y)
    options = {"channels": channels, "depth": depth}
    settings = TaskConfig("random", "cnn", options, batch_size=batch, temperature=temperature, num_data=images)
    rule = L2ERule("paper", "paper")
    unroll = Unroll(
        ImageTask(settings, data, 0, device), rule, BMALoss, Schedule(10**6, 10**6 - 1, 1), range(members // 2)
    )
    return unroll, rule.initial_weights(0).expand(members, -1)


def check_inner(device: str) -> None:
    """Meta-training's inner loop at T = 0, with all data in each minibatch, goes where it goes on the CPU."""
    ends = []
    for where in (device, "cpu"):
        unroll, rule_weights = unroll_of((4, 1, 32), 2, where, 0.0, 32)
        unroll.advance(rule_weights, 5)
        ends.append(unroll.parameter.cpu())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-3, atol=1e-4)


def checks(device: str) -> dict[str, str]:
    """Errors by what was checked; "" for what holds."""
    every = {**SAMPLERS, **ADAPTED}
    tests: dict[str, Callable[[], None]] = {n: partial(check_sampler, make, device) for n, make in every.items()}
    tests |= {"predict": partial(check_predict, device), "the inner loop": partial(check_inner, device)}
    errors = {}
    for name, test in tests.items():
        try:
            test()
            errors[name] = ""
        except Exception as error:  # all of them are to be seen
            errors[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return errors


# ---------------------------------------------------------------- (b), (c) how fast


def per_call(call: Callable[[], object], device: str) -> float:
    """Seconds of one call, the median of blocks of them; of a slow one, that of a single call."""
    call()

    def block(size: int) -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(size):
            call()
        synchronize(device)
        return (time.perf_counter() - start) / size

    times = [block(1)]
    if times[0] * BLOCK < 10 * LEAST:
        times = [block(BLOCK)]
        while sum(times) * BLOCK < LEAST:
            times.append(block(BLOCK))
    return sorted(times)[len(times) // 2]


class Transformer(nn.Module):
    """Patches of 4×4 pixels, layers of attention, and a linear read-out of the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.linear = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.layers(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


def speeds(device: str, enough: Callable[[], bool]) -> dict[str, dict[str, dict[str, float]]]:
    """Milliseconds of a step, and of a training step, of both networks and every sampler."""
    networks: dict[str, Callable[[], nn.Module]] = {
        "ResNet-20": lambda: architectures.build("resnet20_frn", (3, 32, 32), 10),
        "transformer": Transformer,
    }
    made: dict[str, Callable[[Any], Any]] = {"torch Adam": lambda params: torch.optim.Adam(params, 1e-9)}
    made |= SAMPLERS
    times: dict[str, dict[str, dict[str, float]]] = {}
    x, y = torch.randn(BATCH, 3, 32, 32, device=device), torch.randint(10, (BATCH,), device=device)
    for title, build in networks.items():
        for name, make in made.items():
            if enough():
                return times
            model = build().to(device)
            sampler = make(model.parameters())

            def closure(model: nn.Module = model) -> Tensor:
                model.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                return loss

            closure()
            row = {"training step": 1e3 * per_call(partial(sampler.step, closure), device)}
            if not getattr(sampler, "needs_closure", False):  # else a step is with its gradients
                step = sampler.step if name == "torch Adam" else step_of(sampler)
                row["step"] = 1e3 * per_call(step, device)
            row["weights"] = sum(p.numel() for p in model.parameters())
            times.setdefault(title, {})[name] = row
    return times


def meta_training(device: str, enough: Callable[[], bool]) -> dict[str, dict[str, float]]:
    """Speed by members: member-steps a second, equally many on each network, and the hours of the paper's protocol."""
    speeds: dict[str, dict[str, float]] = {}
    for members in MEMBERS:
        if enough():
            break
        taken = []
        for shape in INNER:
            unroll, rule_weights = unroll_of(shape, members, device, 1.0, 2048)
            taken.append(per_call(partial(unroll.advance, rule_weights, 1), device) / members)
        speed = len(taken) / sum(taken)
        speeds[str(members)] = {"member-steps/s": speed, "hours": PAPER / speed / 3600}
    return speeds


# ---------------------------------------------------------------- (d) the table at 32×32


def rows(device: str, data: Path, out: Path, minutes: float) -> str:
    """`tools/compare.py --preset cifar32` for so many minutes, and its tables."""
    folder, jobs = out / "cifar32", 1 if device == "cpu" else max((os.cpu_count() or 3) - 2, 1)
    words = ["--preset", "cifar32", "--data", data, "--device", device, "--minutes", minutes, "--jobs", jobs]
    if (reference := data / "cifar10_test_probs.npy").is_file():
        words += ["--reference", reference]
    try:
        compare.main([*map(str, words), "--out", str(folder)])
    except SystemExit as error:  # the page says why there are no rows
        return str(error)
    table = folder / "table.md"
    return table.read_text() if table.is_file() else "No row was finished."


# ---------------------------------------------------------------- the page


def page(results: dict[str, Any]) -> str:
    """Results as Markdown."""

    def table(rows: dict[str, dict[str, Any]], first: str) -> str:
        cells = [{k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in row.items()} for row in rows.values()]
        return markdown(rectangular([{first: name, **row} for name, row in zip(rows, cells, strict=True)]))

    wrong = {name: {"found": what} for name, what in results["checks"].items() if what}
    parts = [f"# {results['device']}, torch {results['torch']}", f"`{results['command']}`"]
    parts.append(
        f"## What a device can break\n\n{len(results['checks']) - len(wrong)} of {len(results['checks'])} hold."
    )
    parts += [table(wrong, "check")] if wrong else []
    for title, times in results.get("milliseconds", {}).items():
        parts.append(f"## {title}: milliseconds, batch {BATCH}\n\n{table(times, 'optimizer')}")
    if speeds := results.get("meta_training"):
        parts.append(f"## Meta-training, and hours for the L2E paper's protocol\n\n{table(speeds, 'members')}")
    if rows := results.get("cifar32"):
        parts.append(f"## CIFAR-10 at 32×32, ResNet-20-FRN\n\n{rows}")
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=10.0, help="all of it; (a) to (c) take what they need")
    parser.add_argument("--data", type=Path, help="folder with cifar10.npz and cifar100.webp")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check"))
    options = parser.parse_args(arguments)
    start, device = time.perf_counter(), options.device
    name = platform.processor() or "CPU" if device == "cpu" else torch.cuda.get_device_name(device)
    words = sys.argv[1:] if arguments is None else arguments
    results: dict[str, Any] = {"device": name, "torch": torch.__version__}
    results["command"] = " ".join(["python tools/gpu_check.py", *map(str, words)])

    def left(share: float = 1.0) -> float:
        return 60 * options.minutes * share - (time.perf_counter() - start)

    parts: dict[str, Callable[[], Any]] = {
        "checks": lambda: checks(device),
        "meta_training": lambda: meta_training(device, lambda: left(0.3) < 0),
        "milliseconds": lambda: speeds(device, lambda: left(0.7) < 0),
        "cifar32": lambda: rows(device, options.data, options.out, left() / 60),
    }
    if options.data is None:
        del parts["cifar32"]
    options.out.mkdir(parents=True, exist_ok=True)
    for part, make in parts.items():
        if part != "checks" and left() < 0:
            break
        results[part] = make()
        results["seconds"] = round(time.perf_counter() - start, 1)
        (options.out / "gpu_check.json").write_text(json.dumps(results, indent=1) + "\n")
        (options.out / "gpu_check.md").write_text(page(results))
    print(page(results))
    return int(any(results["checks"].values()))


if __name__ == "__main__":
    sys.exit(main())
