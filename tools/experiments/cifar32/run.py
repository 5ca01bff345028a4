"""One run of the table at 32×32, resumable from epoch to epoch, and its scores."""

from __future__ import annotations

import json
import math
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.cifar32.methods import DERIVED, METHODS, PRIOR, Method
from learned_samplers.metrics import accuracy, ece, nll
from meta_tasks.networks.residual import resnet20_frn

BATCH = 80
SAMPLES = 10


@cache
def data(root: Path) -> dict[str, Tensor]:
    """Images, standardised by the training images, and labels: of ``cifar10.npz`` and of a sheet of CIFAR-100."""
    with np.load(root / "cifar10.npz") as archive:
        found = {name: torch.from_numpy(archive[name]) for name in archive.files}
    found = {name: x.flatten().long() if "labels" in name else x for name, x in found.items()}
    found["cifar100_images"] = torch.from_numpy(_sheet(root / "cifar100.webp"))
    train = found["train_images"].float()
    mean, deviation = train.mean((0, 1, 2)), train.std((0, 1, 2))
    for name, x in found.items():
        if "images" in name:
            found[name] = ((x.float() - mean) / deviation).permute(0, 3, 1, 2).contiguous()
    return found


def _sheet(path: Path) -> np.ndarray:
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    pixels = np.asarray(Image.open(path).convert("RGB"))
    rows, columns = pixels.shape[0] // 32, pixels.shape[1] // 32
    return pixels.reshape(rows, 32, columns, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)


def file_of(out: Path, name: str, lr: float, epochs: int, seed: int) -> Path:
    words = "".join(c if c.isalnum() else "_" for c in name)
    return out / f"{words}-{f'{lr:g}'.replace('.', '_')}-{epochs}-{seed}"  # no dot: suffixes are added


def run(name: str, lr: float, epochs: int, seed: int, root: Path, out: Path) -> dict[str, Any]:
    """The result of a run, from its file if it is there; else run it, from its last whole epoch on."""
    place = file_of(out, name, lr, epochs, seed)
    done = place.with_suffix(".json")
    if not done.exists():
        out.mkdir(parents=True, exist_ok=True)
        method = (METHODS | DERIVED)[name]
        kept, spent = _train(method, lr, epochs, seed, root, place)
        arrays: dict[str, Any] = {name: x.numpy().astype(np.float16) for name, x in kept.items()}
        np.savez(place.with_suffix(".npz"), **arrays)
        result = {"method": name, "lr": lr, "epochs": epochs, "seed": seed, "seconds": round(spent, 1)}
        written = result | scores(kept, data(root))
        done.write_text(json.dumps(written, indent=1) + "\n")
        place.with_suffix(".pt").unlink(missing_ok=True)
    return json.loads(done.read_text())


def scores(probs: dict[str, Tensor], known: dict[str, Tensor]) -> dict[str, Any]:
    """Of predictions (samples, images, classes): on the validation images, and on the open half of the test images."""
    return {
        **_of("validation", probs["val"], known["val_labels"]),
        **_of("open_test", probs["test"][:, ::2], known["test_labels"][::2]),
        "samples": len(probs["val"]),
    }


def closed_scores(place: Path, known: dict[str, Tensor]) -> dict[str, Any]:
    """Of the kept predictions of a finished run, on the half of the test images that is opened once."""
    with np.load(place.with_suffix(".npz")) as archive:
        return _of("closed_test", torch.from_numpy(archive["test"])[:, 1::2], known["test_labels"][1::2])


def _of(name: str, probs: Tensor, labels: Tensor) -> dict[str, Any]:
    mean = probs.float().mean(0)
    value = nll(mean, labels) if mean.isfinite().all() else math.inf
    return {
        f"{name}_nll": value if math.isfinite(value) else None,
        f"{name}_accuracy": round(accuracy(mean, labels), 4),
        f"{name}_ece": round(ece(mean, labels), 4),
    }


class _Network:
    """A network with its optimizer, for a part of a run or for all of it."""

    def __init__(self, method: Method, lr: float, num_data: int, steps: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.method, self.lr, self.num_data, self.steps, self.done = method, lr, num_data, steps, 0
        self.model = resnet20_frn((3, 32, 32), 10)
        self.params: list[Tensor] = list(self.model.parameters())
        self.optimizer = method.make(self.params, lr, num_data, steps)
        self.average = [p.detach().clone() for p in self.params] if method.average == "ema" else None
        self.loss = torch.compile(lambda x, y: nn.functional.cross_entropy(self.model(x), y))

    def step(self, x: Tensor, y: Tensor) -> None:
        method = self.method
        if method.cosine or method.cycles > 1:
            share = self.done % self.steps / self.steps
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr * max(0.5 * (1 + math.cos(math.pi * share)), 1e-3)

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            with torch.enable_grad():
                loss = self.loss(x, y)
                loss.backward()
            return loss

        if method.average == "draws":
            self.optimizer.step(closure)  # type: ignore[arg-type]
        else:
            closure()
            if not method.sampler:  # the prior, for plain optimizers
                with torch.no_grad():
                    torch._foreach_add_(
                        [p.grad for p in self.params if p.grad is not None], self.params, alpha=PRIOR / self.num_data
                    )
            self.optimizer.step()
        self.done += 1
        if self.average is not None:
            weight = max(10 / self.steps, 1 / self.done)
            torch._foreach_lerp_(self.average, [p.detach() for p in self.params], weight)

    @torch.no_grad()
    def predict(self, known: dict[str, Tensor], kept: dict[str, list[Tensor]]) -> None:
        own = [p.detach().clone() for p in self.params]
        if self.average is not None:
            torch._foreach_copy_([p.data for p in self.params], self.average)
        for name, found in kept.items():
            batches = known[f"{name}_images"].split(500)
            found.append(torch.cat([self.model(x).softmax(1) for x in batches]).half())
        torch._foreach_copy_([p.data for p in self.params], own)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average,
            "done": self.done,
            "rng": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.average, self.done = state["average"], state["done"]
        torch.set_rng_state(state["rng"])


def _train(
    method: Method, lr: float, epochs: int, seed: int, root: Path, place: Path
) -> tuple[dict[str, Tensor], float]:
    """Predictions (samples, images, classes) by name of the images, and the seconds that it took."""
    known, saved = data(root), place.with_suffix(".pt")
    images, labels = known["train_images"], known["train_labels"]
    per_epoch, part = len(images) // BATCH, epochs // (method.networks * method.cycles)
    state: dict[str, Any] = torch.load(saved, weights_only=True) if saved.exists() else {"epoch": 0, "spent": 0.0}
    kept: dict[str, list[Tensor]] = state.get("kept", {"val": [], "test": [], "cifar100": []})
    spent, network = state["spent"], None
    for epoch in range(state["epoch"], epochs):
        began = time.perf_counter()
        number = epoch // part if method.networks > 1 else 0
        if network is None or (method.networks > 1 and epoch % part == 0):
            network = _Network(method, lr, len(images), part * per_epoch, 1000 * seed + number)
            if "network" in state and epoch == state["epoch"] and (method.networks == 1 or epoch % part):
                network.load_state_dict(state["network"])
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(10_000 * seed + epoch))
        for i, batch in enumerate(order[: per_epoch * BATCH].split(BATCH)):
            network.step(images[batch], labels[batch])
            total = epoch * per_epoch + i + 1
            if method.average == "draws":
                if total == epochs * per_epoch:
                    for _ in range(SAMPLES):
                        with network.optimizer.sampled_params():  # type: ignore[attr-defined]
                            network.predict(known, kept)
            elif _keeps(method, total, epochs * per_epoch, part * per_epoch):
                network.predict(known, kept)
        spent += time.perf_counter() - began
        state = {"epoch": epoch + 1, "spent": spent, "kept": kept, "network": network.state_dict()}
        torch.save(state, saved.with_suffix(".part"))
        saved.with_suffix(".part").replace(saved)
    return {name: torch.stack(x) for name, x in kept.items()}, spent


def _keeps(method: Method, step: int, total: int, part: int) -> bool:
    """Whether the network after this step is one of those averaged."""
    if method.average != "trajectory":
        return step % part == 0
    if method.cycles > 1:  # two a cycle, at its end
        return step % part == 0 or step % part == int(0.95 * part)
    gap = total // (5 * SAMPLES)
    return step > total - SAMPLES * gap and (total - step) % gap == 0
