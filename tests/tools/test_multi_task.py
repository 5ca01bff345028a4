"""tools/multi_task.py: networks against plain modules, choices by validation alone, and the command end to end."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import multi_task
import numpy as np
import pytest
import torch
from _multi_task_methods import METHODS, Settings, make_sampler, uses_features
from _multi_task_networks import LeNet, ResNet18
from _multi_task_runner import Result, bins, closure, halved, new_result, run, score
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from tqdm import tqdm

from learned_samplers import metrics
from meta_tasks.datasets import MultiTaskData
from meta_tasks.datasets.celeba import FIRST_TEN
from tests.meta_tasks.celeba_archive import write_celeba

EVERY = tuple(METHODS)


@pytest.fixture(autouse=True)
def _restore_threads():
    """The script sets torch's number of threads for the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Sources in MNIST's layout, and CelebA's: a class of the former is a bright bar at its own height."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for name in ("MNIST", "FashionMNIST"):
        raw = folder / name / "raw"
        raw.mkdir(parents=True)
        for prefix, count in (("train", 200), ("t10k", 40)):
            y = np.arange(count) % 10
            x = random.integers(0, 40, (count, 28, 28), dtype=np.uint8)
            for image, label in zip(x, y, strict=True):
                image[4 + 2 * label : 6 + 2 * label] = 255
            for kind, array in (("images-idx3", x), ("labels-idx1", y.astype(np.uint8))):
                header = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
                (raw / f"{prefix}-{kind}-ubyte").write_bytes(header + array.tobytes())
    write_celeba(folder)
    return folder


@pytest.fixture(autouse=True)
def _few_held_out(monkeypatch):
    """The sources here have too few images for 6,000 of them to be held out."""
    plain = multi_task.load_overlaid
    monkeypatch.setattr(multi_task, "load_overlaid", lambda *args, **more: plain(*args, validation=50, **more))


def data(count=40, seed=0):
    """One minibatch in every split, the labels of which can be read off the images."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(10, (count, 2), generator=generator)
    x = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
    for image, (a, b) in zip(x, y.tolist(), strict=True):
        image[0, :14, 2 * a : 2 * a + 3], image[0, 14:, 2 * b : 2 * b + 3] = 255, 255
    return MultiTaskData("multi_mnist", ("top left", "bottom right"), 10, x, y, x, y, x, y)


# ---------------------------------------------------------------- networks


@pytest.mark.parametrize(("side", "first", "count"), [(28, 5, 22_350), (36, 9, 31_910), (28, 9, None), (30, 5, None)])
def test_lenet_is_the_plain_one(side, first, count):
    network = LeNet((1, side, side), 2, 10, 3, first)
    if count is not None:
        assert network.num_parameters == count
    module = LeNet.one(1, network.trunk["7.weight"].shape[-1], first)
    x = torch.rand(6, 1, side, side)
    ours = network.latents(x)
    for m in range(3):
        own = {name: p[m] for name, p in network.trunk.items()}
        torch.testing.assert_close(ours[m], functional_call(module, own, (x,)))
    assert [tuple(z.shape) for z in network.outputs(ours)] == [(3, 6, 10)] * 2
    head = network.heads[1]
    torch.testing.assert_close(network.outputs(ours)[1][2], F.linear(ours[2], head["weight"][2], head["bias"][2]))
    assert not torch.equal(network.trunk["0.weight"][0], network.trunk["0.weight"][1]), "particles must start apart"


def test_lenets_gradients_are_those_of_the_plain_one():
    network = LeNet((1, 28, 28), 2, 10, 2)
    module = LeNet.one(1, 320, 5)
    x = torch.rand(4, 1, 28, 28)
    ours = torch.autograd.grad(network.latents(x).square().sum(), list(network.trunk.values()))
    own = [{name: p[m].detach().requires_grad_() for name, p in network.trunk.items()} for m in range(2)]
    plain = [torch.autograd.grad(functional_call(module, p, (x,)).square().sum(), list(p.values())) for p in own]
    for mine, theirs in zip(ours, zip(*plain, strict=True), strict=True):
        torch.testing.assert_close(mine, torch.stack(theirs), rtol=1e-4, atol=1e-4)


def test_resnet_particles_do_not_see_each_other_or_the_batch():
    network = ResNet18((3, 32, 32), 10, 2, 2)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in network.module.modules())
    assert next(network.module.buffers(), None) is None
    assert 11.1e6 < network.num_parameters < 11.4e6
    x = torch.rand(3, 3, 32, 32)
    latents = network.latents(x)
    assert latents.shape == (2, 3, 512)
    torch.testing.assert_close(network.latents(x[:1]), latents[:, :1], rtol=1e-4, atol=1e-5)
    grads = torch.autograd.grad(latents[0].sum(), list(network.trunk.values()))
    assert all(g[1].abs().max() == 0 for g in grads)
    assert any(g[0].abs().max() > 0 for g in grads)
    with pytest.raises(ValueError, match="ResNet-18 takes colour images, got 1"):
        ResNet18((1, 32, 32), 2, 2, 1)


def test_state_and_inputs():
    network, other = LeNet((1, 28, 28), 2, 10, 2), LeNet((1, 28, 28), 2, 10, 2)
    kept = network.state()
    x = data().train_x
    network.standardise(x)
    inputs = network.inputs(x)
    assert abs(inputs.mean()) < 1e-3
    assert abs(inputs.std() - 1) < 1e-3
    assert other.inputs(x).max() == 1
    before = network.predict(inputs)
    assert before.shape == (2, 2, 40, 10)
    torch.testing.assert_close(before.sum(-1), torch.ones(2, 2, 40))
    other.load_state(kept)
    assert torch.equal(other.predict(inputs), before)
    with torch.no_grad():
        network.heads[0]["bias"] += 1
    assert not torch.equal(kept["heads.0.bias"], network.heads[0]["bias"]), "a state must be a copy"


# ---------------------------------------------------------------- methods


def test_methods_are_what_they_are_called():
    settings = Settings(target_weights="gradients", gradient_normalisation="particle")
    network = LeNet((1, 28, 28), 2, 10, 2)
    made = {name: make_sampler(name, network.groups(), 0.1, "posterior", 50, settings) for name in METHODS}
    kinds = [type(sampler).__name__ for sampler in made.values()]
    assert kinds == ["LinearScalarisation", "MGDA", "ParetoMTL", "MOOSVGD", "MTSGD", "MTSGD", "MTSGD"]
    rules = {
        name: (sampler.target_weights, sampler.kernel_on, sampler.gradient_normalisation)
        for name, sampler in made.items()
        if name in ("mt_sgd", "mt_sgd_code", "svgd")
    }
    assert rules == {
        "mt_sgd": ("gradients", "parameters", "particle"),
        "mt_sgd_code": ("gradients", "features", "coordinate"),
        "svgd": ("equal", "parameters", "none"),
    }
    assert all(sampler.param_groups[0]["num_data"] == 50 for sampler in made.values())
    assert make_sampler("svgd", network.groups(), 0.1, "mean_loss", 50, settings).param_groups[0]["num_data"] == 1
    assert all(sampler.base_optimizer.param_groups[0]["momentum"] == 0.9 for sampler in made.values())
    featured = Settings(kernel_on="features", target_weights="gradients")
    assert [name for name in METHODS if uses_features(name, settings)] == ["mt_sgd_code"]
    assert [name for name in METHODS if uses_features(name, featured)] == ["mt_sgd", "mt_sgd_code", "svgd"]


def test_closure():
    network, batch = LeNet((1, 28, 28), 2, 10, 2), data(5)
    x, y = network.inputs(batch.train_x), batch.train_y
    losses = closure(network, x, y, False, "outputs")
    outputs = network.outputs(network.latents(x))
    expected = [[F.cross_entropy(outputs[k][m], y[:, k]) for m in range(2)] for k in range(2)]
    for k in range(2):
        torch.testing.assert_close(losses[k], torch.stack(expected[k]))
    for kind, shape in (("outputs", (2, 2, 5, 10)), ("latents", (2, 5, 50))):
        again, features = closure(network, x, y, True, kind)
        assert torch.equal(again, losses)
        assert features.shape == shape
        assert features.requires_grad


def test_halvings():
    # The paper: every 15 of 100 epochs.
    assert [halved(epoch / 100, 0.15) for epoch in (0, 14, 15, 29, 30, 99)] == [1, 1, 0.5, 0.5, 0.25, 1 / 64]
    assert halved(0.99, 1.0) == 1


# ---------------------------------------------------------------- one run


def one(method="svgd", lr=0.1, epochs=2, out=None, test=True, seed=0, batches=None, **settings):
    own = Settings(**{"particles": 2, "batch_size": 20, "epochs": epochs, **settings})
    with tqdm(disable=True) as bar:
        return run(own, method, lr, "posterior", epochs, seed, batches or data(), out, bar=bar, test=test)


def test_a_run_learns_and_is_read_back(tmp_path):
    first = one("linear", 0.05, epochs=25, out=tmp_path, halve_every=1.0)
    assert first.steps == 50
    assert min(first.scores["accuracy"]) > 0.8
    assert first.validation_nll == min(sum(scores["nll"]) / 2 for scores in first.curve)
    assert first.best_epoch == 1 + int(np.argmin([sum(scores["nll"]) for scores in first.curve]))
    # Validation and test images are the same here.
    best = first.curve[first.best_epoch - 1]
    assert all(first.scores[key] == pytest.approx(values) for key, values in best.items())
    path = tmp_path / "runs" / f"{first.name}.json"
    stamp = path.stat().st_mtime_ns
    assert one("linear", 0.05, epochs=25, out=tmp_path, halve_every=1.0) == first
    assert path.stat().st_mtime_ns == stamp, "a finished run was done again"
    assert list((tmp_path / "tensorboard" / first.name).glob("events.out.tfevents.*"))
    assert one("linear", 0.05, epochs=25, out=tmp_path, halve_every=0.5).curve != first.curve
    path.write_text("{")
    with pytest.raises(ValueError, match="is not the result of a run"):
        one("linear", 0.05, epochs=25, out=tmp_path)


def test_the_best_epoch_counts_not_the_last(tmp_path):
    """A rate that ruins the particles after they had learnt: what is scored is what was best."""
    validation = data(40, seed=1)
    plain = data()
    parts = {f"{split}_{kind}": getattr(validation, f"{split}_{kind}") for split in ("val", "test") for kind in "xy"}
    mixed = MultiTaskData(
        "multi_mnist", plain.tasks, 10, train_x=plain.train_x, train_y=plain.train_y.roll(1, 0), **parts
    )
    result = one("linear", 0.1, epochs=12, out=tmp_path, batches=mixed, halve_every=1.0)
    curve = [sum(scores["nll"]) for scores in result.curve]
    assert curve[-1] > 1.2 * min(curve), "labels at random must overfit"
    assert result.best_epoch < 12
    assert sum(result.scores["nll"]) == pytest.approx(min(curve), rel=1e-5)


def test_scores_can_come_later(tmp_path):
    tuned = one(out=tmp_path, test=False)
    assert tuned.scores == {}
    assert tuned.bins == []
    scored = one(out=tmp_path)
    assert scored.curve == tuned.curve
    assert one(out=tmp_path / "again").scores == scored.scores


@pytest.mark.parametrize("method", EVERY)
def test_every_method_is_reproducible_and_moves(tmp_path, method):
    first, second = one(method, epochs=1, out=tmp_path / "1"), one(method, epochs=1, out=tmp_path / "2")
    assert (first.scores, first.curve, first.weights) == (second.scores, second.curve, second.weights)
    other = one(method, epochs=1, seed=1, out=tmp_path / "1")
    assert other.scores != first.scores
    assert first.curve != one(method, lr=1e-9, epochs=1, out=tmp_path / "3").curve
    assert len(first.weights) == 2
    if method != "pareto_mtl":
        assert sum(first.weights) == pytest.approx(1, abs=1e-4)


def test_a_run_that_diverges_says_so(tmp_path):
    result = one(lr=1e12, out=tmp_path)
    assert "finite" in result.diverged
    assert result.validation_nll is None
    assert one(lr=1e12, out=tmp_path) == result


def test_scores_are_the_metrics():
    p = torch.rand(2, 50, 10).softmax(-1)
    y = torch.randint(10, (50, 2))
    scores = score(p, y)
    for k in range(2):
        assert scores["ece"][k] == metrics.ece(p[k], y[:, k], num_bins=10)
        assert scores["brier"][k] == metrics.brier(p[k], y[:, k])
        assert scores["accuracy"][k] == metrics.accuracy(p[k], y[:, k])
    sizes = bins(p[0], y[:, 0])
    assert sum(sizes["num_examples"]) == 50
    assert not any(math.isnan(value) for values in sizes.values() for value in values)


def test_runs_have_names_of_their_own():
    def named(**changes):
        run = {"dataset": "a", "method": "svgd", "lr": 0.1, "energy": "posterior", "epochs": 1, "seed": 0}
        return new_result(Settings(), **{**run, **changes}).name

    changed = [{"dataset": "b"}, {"method": "mgda"}, {"lr": 0.2}, {"energy": "mean_loss"}, {"epochs": 2}, {"seed": 1}]
    assert len({named(), *(named(**change) for change in changed)}) == 7


# ---------------------------------------------------------------- the command


TINY = ["--particles", "2", "--epochs", "1", "--batch-size", "25", "--seeds", "2", "--rates", "0.02", "0.1"]
TINY += ["--extensions", "0", "--train", "100", "--validation", "40", "--test", "30", "--device", "cpu"]


def test_the_command_on_two_data_sets(root, tmp_path, capsys):
    arguments = [*TINY, "--dataset", "multi_mnist", "multi_fashion_mnist", "--data", str(root), "--out", str(tmp_path)]
    multi_task.main(arguments)
    printed = capsys.readouterr().out
    content = json.loads((tmp_path / "results.json").read_text())
    assert list(content["data sets"]) == ["multi_mnist", "multi_fashion_mnist"]
    for methods in content["data sets"].values():
        assert tuple(methods) == EVERY
        for name, each in methods.items():
            assert [r["seed"] for r in each["runs"]] == [0, 1]
            assert len({(r["lr"], r["energy"]) for r in each["runs"]}) == 1
            assert len(each["tuning"]) == (4 if METHODS[name].repels else 2)
            best = min(each["tuning"], key=lambda trial: trial["validation_nll"])
            assert (best["lr"], best["energy"]) == (each["runs"][0]["lr"], each["runs"][0]["energy"])
            assert each["mean"]["accuracy, top left"] == pytest.approx(
                np.mean([100 * r["scores"]["accuracy"][0] for r in each["runs"]])
            )
    table = (tmp_path / "table.md").read_text()
    assert table.startswith("`python tools/multi_task.py --particles 2")
    assert all(method.label in table and method.label in printed for method in METHODS.values())
    assert "multi_fashion_mnist, bottom right" in table
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    # The losers of the tuning never see a test image.
    runs = [Result(**json.loads(path.read_text())) for path in (tmp_path / "runs").iterdir()]
    chosen = {
        (dataset, method, each["runs"][0]["lr"], each["runs"][0]["energy"])
        for dataset, methods in content["data sets"].items()
        for method, each in methods.items()
    }
    for result in runs:
        assert bool(result.scores) == ((result.dataset, result.method, result.lr, result.energy) in chosen)
    # Again, from what is on disk.
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    multi_task.main(arguments)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()} == stamps


CELEBA = ["--preset", "celeba", "--size", "32", "--train", "16", "--epochs", "1", "--batch-size", "8", "--seeds", "1"]
CELEBA += ["--rates", "0.01", "--method", "mt_sgd", "--energies", "posterior", "--device", "cpu"]


def small_trunk():
    """A stand-in whose ten gradients are not of 11 million numbers each."""
    layers = [nn.Conv2d(3, 8, 5, stride=4), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(392, 512))


@pytest.mark.parametrize(
    ("particles", "attributes"), [(5, FIRST_TEN), (2, ("Bald", "Bangs"))], ids=["ten tasks", "resnet18"]
)
def test_celeba_two_steps(root, tmp_path, monkeypatch, particles, attributes):
    if len(attributes) == 10:
        monkeypatch.setattr(ResNet18, "one", staticmethod(small_trunk))
    own = ["--data", str(root), "--out", str(tmp_path), "--particles", str(particles), "--attributes", *attributes]
    multi_task.main([*CELEBA, *own])
    content = json.loads((tmp_path / "results.json").read_text())["data sets"]["celeba"]
    (result,) = content["mt_sgd"]["runs"]
    assert result["steps"] == 2
    assert result["diverged"] is None
    assert len(result["scores"]["ece"]) == len(result["weights"]) == len(attributes)
    assert f"celeba, {attributes[-1]}" in (tmp_path / "table.md").read_text()


def test_presets():
    cpu, paper, celeba = (multi_task.parse(["--preset", name]) for name in ("cpu", "paper", "celeba"))
    assert cpu.settings.train < 20_000
    assert (paper.settings.epochs, paper.settings.batch_size, paper.rates) == (100, 256, (1e-3,))
    assert paper.settings.train is None
    assert len(paper.method) == 7
    assert celeba.dataset == ("celeba",)
    assert (celeba.settings.network, celeba.settings.train, len(celeba.settings.attributes)) == ("resnet18", 40_000, 10)
    assert "pareto_mtl" not in celeba.method
    changed = multi_task.parse(["--preset", "cpu", "--epochs", "9", "--first-kernel", "9", "--size", "36"])
    assert (changed.settings.epochs, changed.settings.train) == (9, cpu.settings.train)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--seeds", "0"], "seeds must be at least 1, got 0"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--train", "0"], "train must be at least 1, got 0"),
        (["--rates", "0.1", "-1"], "rates must be positive"),
        (["--momentum", "1"], r"momentum must lie in \[0, 1\)"),
        (["--halve-every", "0"], r"halve_every must lie in \(0, 1\]"),
        (["--kernel-on", "features"], "kernel_on=features needs target_weights=gradients"),
        (["--dataset", "celeba"], "pareto_mtl has preferences for two tasks"),
        (["--method", "mgda", "mgda"], "method must name some, each once"),
        (["--data", "/nowhere", "--preset", "celeba"], "celeba: no list_attr_celeba.txt"),
        (["--size", "12", "--dataset", "multi_mnist", "--train", "10"], "too small for a first kernel of 5"),
    ],
)
def test_bad_options(root, tmp_path, capsys, arguments, match):
    common = ["--out", str(tmp_path)] + ([] if "--data" in arguments else ["--data", str(root)])
    with pytest.raises(SystemExit) as caught:
        multi_task.main([*common, *arguments])
    said = " ".join(f"{caught.value.code} {capsys.readouterr().err}".replace("│", " ").split())
    assert re.search(match, said), said
    assert not list(Path(tmp_path).rglob("*.json"))
