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
from learned_samplers.metrics import (
    accuracy,
    agreement,
    ambiguity,
    disagreement,
    ece,
    information_auroc,
    nll,
    ood_auroc,
    total_variation,
)
from meta_tasks.datasets import load
from meta_tasks.networks.residual import resnet20_frn

BATCH = 80
SAMPLES = 10


@cache
def data(root: Path, device: str = "cpu") -> dict[str, Tensor]:
    """Images, standardised by the training images, and labels: of ``cifar10.npz``, a sheet of CIFAR-100, photographs.

    Also HMC's predictions of the test images, where they lie there as ``cifar10_test_probs.npy``.
    """
    if device != "cpu":
        return {name: x.to(device) for name, x in data(root).items()}
    with np.load(root / "cifar10.npz") as archive:
        found = {name: torch.from_numpy(archive[name]) for name in archive.files}
    found = {name: x.flatten().long() if "labels" in name else x for name, x in found.items()}
    found["cifar100_images"] = torch.from_numpy(_sheet(root / "cifar100.webp"))
    found["photos_images"] = 255 * load("photos").test_x.permute(0, 2, 3, 1)
    train = found["train_images"].float()
    mean, deviation = train.mean((0, 1, 2)), train.std((0, 1, 2))
    for name, x in found.items():
        if "images" in name:
            found[name] = ((x.float() - mean) / deviation).permute(0, 3, 1, 2).contiguous()
    if (reference := root / "cifar10_test_probs.npy").exists():
        found["hmc"] = torch.from_numpy(np.load(reference))
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


def run(
    name: str, lr: float, epochs: int, seed: int, root: Path, out: Path, device: str = "cpu", keep: bool = True
) -> dict[str, Any]:
    """The result of a run, from its file if it is there; else run it, from its last whole epoch on.

    ``keep``: also its predictions, by which the closed half is scored.
    """
    place = file_of(out, name, lr, epochs, seed)
    done = place.with_suffix(".json")
    if not done.exists():
        out.mkdir(parents=True, exist_ok=True)
        method = (METHODS | DERIVED)[name]
        kept, spent = _train(method, lr, epochs, seed, root, place, device)
        if keep:
            arrays: dict[str, Any] = {name: x.numpy() for name, x in kept.items()}
            np.savez_compressed(place.with_suffix(".npz"), **arrays)
        result = {"method": name, "lr": lr, "epochs": epochs, "seed": seed, "seconds": round(spent, 1)}
        written = result | {"device": device} | scores(kept, data(root))
        done.write_text(json.dumps(written, indent=1) + "\n")
        place.with_suffix(".pt").unlink(missing_ok=True)
    return json.loads(done.read_text())


def scores(probs: dict[str, Tensor], known: dict[str, Tensor]) -> dict[str, Any]:
    """Of predictions (samples, images, classes): on the validation images, and on the open half of the test images."""
    validation = {f"validation_{key}": x for key, x in _of(probs["val"], known["val_labels"]).items()}
    return {**validation, **_of_test(probs, known, "open"), "samples": len(probs["val"])}


def closed_scores(place: Path, known: dict[str, Tensor]) -> dict[str, Any]:
    """Of the kept predictions of a finished run, on the half of the test images that is opened once."""
    with np.load(place.with_suffix(".npz")) as archive:
        return _of_test({name: torch.from_numpy(archive[name]) for name in archive.files}, known, "closed")


def _of_test(probs: dict[str, Tensor], known: dict[str, Tensor], half: str) -> dict[str, Any]:
    """Scores on one half of the test images: its predictions, CIFAR-100 against it, samples, and HMC's predictions."""
    every = slice(0 if half == "open" else 1, None, 2)
    samples = _normalised(probs["test"][:, every])
    labels, others = known["test_labels"][every], _normalised(probs["cifar100"])
    photos = _normalised(probs["photos"]) if "photos" in probs else None  # runs of 27 November 2026 have none
    found = _of(samples, labels)
    if samples.isfinite().all() and others.isfinite().all():
        mean = samples.mean(0)
        found["auroc"] = round(ood_auroc(mean, others.mean(0)), 4)
        if photos is not None:
            found["photos_auroc"] = round(ood_auroc(mean, photos.mean(0)), 4)
        if len(samples) > 1:
            found["information_auroc"] = round(information_auroc(samples, others), 4)
            found["disagreement"] = round(disagreement(samples), 4)
            found["ambiguity"] = round(ambiguity(samples, labels), 4)
        if "hmc" in known:
            reference = _normalised(known["hmc"][every])
            found["agreement"] = round(agreement(mean, reference), 4)
            found["total_variation"] = round(total_variation(mean, reference), 4)
    return {f"{half}_test_{key}": x for key, x in found.items()}


def _normalised(probs: Tensor) -> Tensor:
    """In double precision: what was kept in half of one does not add up to 1."""
    return probs.double() / probs.double().sum(-1, keepdim=True)


def _of(probs: Tensor, labels: Tensor) -> dict[str, Any]:
    mean = _normalised(probs).mean(0)
    if not mean.isfinite().all():
        return {"nll": None, "accuracy": None, "ece": None}
    return {
        "nll": nll(mean, labels),
        "accuracy": round(accuracy(mean, labels), 4),
        "ece": round(ece(mean, labels), 4),
    }


class _Replayed:
    """A loss and its gradient as one CUDA graph: a small network waits for its launches otherwise.

    Same numbers as ``loss(x, y).backward()``; the gradients lie in the same place at each call.
    """

    def __init__(self, loss: Any, params: list[Tensor], x: Tensor, y: Tensor) -> None:
        self.params, self.x, self.y = params, x.clone(), y.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._forget()
                loss(self.x, self.y).backward()
        torch.cuda.current_stream().wait_stream(stream)
        self._forget()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.value = loss(self.x, self.y)
            self.value.backward()
        self.gradients = [p.grad for p in params]

    def _forget(self) -> None:
        for p in self.params:
            p.grad = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        for p, gradient in zip(self.params, self.gradients, strict=True):
            p.grad = gradient
        return self.value.detach()


class _Network:
    """A network with its optimizer, for a part of a run or for all of it."""

    def __init__(self, method: Method, lr: float, num_data: int, steps: int, seed: int, device: str = "cpu") -> None:
        torch.manual_seed(seed)
        self.method, self.lr, self.num_data, self.steps, self.done = method, lr, num_data, steps, 0
        self.device, self.model = device, resnet20_frn((3, 32, 32), 10).to(device)
        self.params: list[Tensor] = list(self.model.parameters())
        self.optimizer = method.make(self.params, lr, num_data, steps)
        self.average = [p.detach().clone() for p in self.params] if method.average == "ema" else None
        torch.compiler.reset()  # it compiles the same lines a few times only
        self.loss = torch.compile(lambda x, y: nn.functional.cross_entropy(self.model(x), y))
        self.replayed: _Replayed | None = None

    def step(self, x: Tensor, y: Tensor) -> None:
        method = self.method
        if method.cosine:
            share = self.done % self.steps / self.steps
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr * max(0.5 * (1 + math.cos(math.pi * share)), 1e-3)

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            if self.replayed is not None:
                return self.replayed(x, y)
            with torch.enable_grad():
                loss = self.loss(x, y)
                loss.backward()
            return loss

        if self.device != "cpu" and self.replayed is None:
            self.replayed = _Replayed(self.loss, self.params, x, y)
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
            found.append(torch.cat([self.model(x).softmax(1) for x in batches]).half().cpu())
        torch._foreach_copy_([p.data for p in self.params], own)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average,
            "done": self.done,
            "device": self.device,
            "rng": torch.get_rng_state() if self.device == "cpu" else torch.cuda.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done, average = state["done"], state["average"]
        self.average = None if average is None else [x.to(self.device) for x in average]
        if state["device"] == self.device:  # another device's noise goes on from the seed
            (torch.set_rng_state if self.device == "cpu" else torch.cuda.set_rng_state)(state["rng"])


def _train(
    method: Method, lr: float, epochs: int, seed: int, root: Path, place: Path, device: str
) -> tuple[dict[str, Tensor], float]:
    """Predictions (samples, images, classes) by name of the images, and the seconds that it took."""
    known, saved = data(root, device), place.with_suffix(".pt")
    images, labels = known["train_images"], known["train_labels"]
    per_epoch, part = len(images) // BATCH, epochs // (method.networks * method.cycles)
    state: dict[str, Any] = {"epoch": 0, "spent": 0.0}
    if saved.exists():
        state = torch.load(saved, "cpu", weights_only=True)  # it may come from another device
    kept: dict[str, list[Tensor]] = state.get("kept", {"val": [], "test": [], "cifar100": [], "photos": []})
    spent, network = state["spent"], None
    for epoch in range(state["epoch"], epochs):
        began = time.perf_counter()
        number = epoch // part if method.networks > 1 else 0
        if network is None or (method.networks > 1 and epoch % part == 0):
            network = _Network(method, lr, len(images), part * per_epoch, 1000 * seed + number, device)
            if "network" in state and epoch == state["epoch"] and (method.networks == 1 or epoch % part):
                network.load_state_dict(state["network"])
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(10_000 * seed + epoch))
        order = order.to(device)
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
    return {name: torch.stack(x).cpu() for name, x in kept.items()}, spent


def _keeps(method: Method, step: int, total: int, part: int) -> bool:
    """Whether the network after this step is one of those averaged."""
    if method.average != "trajectory":
        return step % part == 0
    if part < total:  # two a cycle or a chain, at its end
        return step % part == 0 or step % part == int(0.95 * part)
    gap = total // (5 * SAMPLES)
    return step > total - SAMPLES * gap and (total - step) % gap == 0
