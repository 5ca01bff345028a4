"""The parts of tools/multi_task.py: networks against plain modules, the methods, and a single run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from experiments.multi_task.methods import METHODS, Settings, make_sampler
from experiments.multi_task.networks import LeNet, SeparateNetworks
from experiments.multi_task.training import constant_particles, make_network, schedule, scores_of, train
from torch.func import functional_call
from torch.nn import functional as F

from meta_tasks.datasets import MultiTaskData

EVERY = tuple(METHODS)


def data(count=40, seed=0):
    """One minibatch in every split, the labels of which can be read off the images."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(10, (count, 2), generator=generator)
    x = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
    for image, (a, b) in zip(x, y.tolist(), strict=True):
        image[0, :14, 2 * a : 2 * a + 3], image[0, 14:, 2 * b : 2 * b + 3] = 255, 255
    return MultiTaskData("multi_mnist", 10, x, y, x, y, x, y, tasks=("top left", "bottom right"))


# ---------------------------------------------------------------- networks


@pytest.mark.parametrize("side", [28, 30, 36])
def test_lenet_is_the_plain_one(side):
    network = LeNet((1, side, side), 2, 10, 3)
    if side == 28:  # the paper's size
        assert sum(p[0].numel() for p in network.parameters().values()) == 22_350
    module = LeNet.one(1, network.trunk["7.weight"].shape[-1])
    x = torch.rand(6, 1, side, side)
    ours = network.latents(x)
    slopes = torch.autograd.grad(ours.square().sum(), list(network.trunk.values()), retain_graph=True)
    for m in range(3):
        weights = {name: p[m].detach().requires_grad_() for name, p in network.trunk.items()}
        plain = functional_call(module, weights, (x,))
        torch.testing.assert_close(ours[m], plain)
        for mine, theirs in zip(slopes, torch.autograd.grad(plain.square().sum(), list(weights.values())), strict=True):
            torch.testing.assert_close(mine[m], theirs, rtol=1e-4, atol=1e-4)
    assert [tuple(z.shape) for z in network.outputs(ours)] == [(3, 6, 10)] * 2
    head = network.heads[1]
    torch.testing.assert_close(network.outputs(ours)[1][2], F.linear(ours[2], head["weight"][2], head["bias"][2]))
    assert not torch.equal(network.trunk["0.weight"][0], network.trunk["0.weight"][1]), "particles must start apart"
    with pytest.raises(ValueError, match="too small"):
        LeNet((1, 12, 12), 2, 10, 1)


def test_separate_networks_share_nothing():
    """What one task's network learns depends on no other task: its gradients are those of a network by itself."""
    torch.manual_seed(0)
    both, x = SeparateNetworks((1, 28, 28), 2, 10, 2), torch.rand(4, 1, 28, 28)
    first, second = both.outputs(both.latents(x))
    torch.testing.assert_close(first, both.parts[0].outputs(both.parts[0].latents(x))[0])
    names, params = zip(*both.parameters().items(), strict=True)
    grads = torch.autograd.grad(first.sum(), params, allow_unused=True)
    moved = {name for name, grad in zip(names, grads, strict=True) if grad is not None and grad.any()}
    assert {name.split(".")[1] for name in moved} == {"0"}
    assert second.shape == (2, 4, 10)


# ---------------------------------------------------------------- methods


def test_methods_are_what_they_are_called():
    settings = Settings(target_weights="gradients", gradient_normalisation="particle")
    network = LeNet((1, 28, 28), 2, 10, 2)
    made = {name: make_sampler(name, network.groups(), 0.1, "posterior", 50, settings) for name in METHODS}
    kinds = [type(sampler).__name__ for sampler in made.values()]
    assert kinds == ["SingleTasks", "LinearScalarisation", "MGDA", "ParetoMTL", "MOOSVGD", "MTSGD", "MTSGD", "MTSGD"]
    rules = {
        name: (sampler.target_weights, sampler.kernel_on, sampler.gradient_normalisation)
        for name, sampler in made.items()
        if name in ("MTSGD", "MTSGDCode", "SVGD")
    }
    assert rules == {
        "MTSGD": ("gradients", "parameters", "particle"),
        "MTSGDCode": ("gradients", "features", "coordinate"),
        "SVGD": ("equal", "parameters", "none"),
    }
    assert all(sampler.param_groups[0]["num_data"] == 50 for sampler in made.values())
    assert make_sampler("SVGD", network.groups(), 0.1, "mean_loss", 50, settings).param_groups[0]["num_data"] == 1
    assert all(sampler.base_optimizer.param_groups[0]["momentum"] == 0.9 for sampler in made.values())


def test_schedule():
    # The paper: halved every 15 of 100 epochs.
    values = [schedule(epoch, 100, 0.0, 0.15) for epoch in (0, 14, 15, 29, 30, 99)]
    assert values == [1, 1, 0.5, 0.5, 0.25, 1 / 64]
    assert schedule(99, 100, 0.0, 1.0) == 1
    ramp = [schedule(step, 40, 0.1, 0.5) for step in range(6)]
    assert ramp == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])
    assert schedule(20, 40, 0.1, 0.5) == 0.5


# ---------------------------------------------------------------- one run


def one(method="SVGD", lr=0.1, epochs=2, seed=0, batches=None, **settings):
    """Numbers of the training and the test scores of its best particles."""
    options = Settings(**{"particles": 2, "batch_size": 20, "epochs": epochs, **settings})
    batches = batches or data()
    network = make_network(options, method, batches, seed)
    numbers, best = train(network, options, method, lr, "posterior", batches, seed)
    network.load_state(best)
    del numbers["seconds"]
    return numbers | scores_of(network, batches)


def test_a_run_learns_and_its_best_epoch_is_scored():
    run = one("LinearScalarisation", 0.05, epochs=25, halve_every=1.0)
    totals = [sum(scores["nll"]) for scores in run["curve"]]
    assert len(totals) == 25
    assert min(run["accuracy top left"], run["accuracy bottom right"]) > 0.8
    assert run["best_epoch"] == 1 + int(np.argmin(totals))
    assert run["score"] == pytest.approx(min(totals) / 2)
    best = run["curve"][run["best_epoch"] - 1]  # validation and test images are the same here
    for key, values in best.items():
        assert [run[f"{key} top left"], run[f"{key} bottom right"]] == pytest.approx(values)


def test_the_best_epoch_counts_not_the_last():
    """A rate that ruins the particles after they had learnt: what is scored is what was best."""
    validation, plain = data(40, seed=1), data()
    parts = {f"{split}_{array}": getattr(validation, f"{split}_{array}") for split in ("val", "test") for array in "xy"}
    mixed = MultiTaskData(
        "multi_mnist", 10, train_x=plain.train_x, train_y=plain.train_y.roll(1, 0), tasks=plain.tasks, **parts
    )
    run = one("LinearScalarisation", 0.1, epochs=12, batches=mixed, halve_every=1.0)
    curve = [sum(scores["nll"]) for scores in run["curve"]]
    assert curve[-1] > 1.2 * min(curve), "labels at random must overfit"
    assert run["best_epoch"] < 12
    assert run["nll top left"] + run["nll bottom right"] == pytest.approx(min(curve), rel=1e-5)


@pytest.mark.parametrize("method", EVERY)
def test_every_method_is_reproducible_and_moves(method):
    first = one(method, epochs=1)
    assert first == one(method, epochs=1)
    assert first["nll top left"] != one(method, epochs=1, seed=1)["nll top left"]
    assert first["curve"] != one(method, lr=1e-9, epochs=1)["curve"]
    if method == "SingleTask":  # no network has weights of several tasks
        assert first["weights"] is None
        return
    assert len(first["weights"]) == 2
    if method != "ParetoMTL":
        assert sum(first["weights"]) == pytest.approx(1, abs=1e-4)


def test_a_run_that_diverges_says_so():
    with pytest.raises(FloatingPointError, match="finite"):
        one(lr=1e12)


def test_constant_particles_are_counted():
    p = torch.rand(2, 3, 20, 10).softmax(-1)
    assert constant_particles(p) == 0
    p[:, 1] = p[:, 1, :1].clone()
    assert constant_particles(p) == 1
    p[0, 2] = p[0, 2, :1].clone()
    assert constant_particles(p) == 1, "the other task's head still sees the image"
