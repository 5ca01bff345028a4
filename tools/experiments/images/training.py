"""The training loops: minibatches for optimizers and samplers, whole trajectories for HMC."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from experiments.harness import compiling
from experiments.images import own_models
from experiments.images.likelihood import Likelihood, likelihood_of, outputs_of
from experiments.images.log import LOGS, VALIDATIONS, Log
from experiments.images.methods import ImageMethod
from experiments.images.minibatches import Minibatches
from experiments.images.own_models import is_own
from experiments.images.settings import Settings
from learned_samplers import HMC, CyclicalSchedule
from learned_samplers.base.optional import require
from learned_samplers.classical.cyclical import cyclical_phase
from learned_samplers.posterior.collect import PosteriorSamples, SampleCollection
from meta_tasks.datasets import ArrayData, ImageData, TokenData
from meta_tasks.networks import architectures, build_text, text_networks

FULL_BATCH_CHUNK = 4096  # images run at once for a gradient over the whole training set


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """One parameter group for each part of the network, so that temperatures are reported part by part."""
    groups: list[dict[str, Any]] = []
    seen: set[int] = set()
    for name, child in model.named_children():
        params = [p for p in child.parameters() if id(p) not in seen]
        seen.update(map(id, params))
        if params:
            label = f"{name}_{type(child).__name__}" if name.isdigit() else name
            groups.append({"params": params, "name": label})
    rest = [p for p in model.parameters() if id(p) not in seen]  # those that belong to the network itself
    return [*groups, {"params": rest, "name": "own"}] if rest else groups


def minibatch_run(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: ImageData,
    steps: int,
    minibatches: Minibatches,
    log: Log,
    *,
    first_step: int = 0,
    schedule: torch.optim.lr_scheduler.LRScheduler | CyclicalSchedule | None = None,
    gradients_per_step: int = 1,
    compiled: bool = False,
) -> None:
    """The ordinary training loop, `steps` minibatches long; the network's steps are `compiled` where that is asked."""
    model.train()
    network = compiling.compiled(model, model) if compiled else model
    for step, (images, labels) in zip(range(first_step + 1, first_step + steps + 1), minibatches):
        # IVON's gradient is taken at a draw from its Gaussian; that of all others at the weights.
        with getattr(optimizer, "sampled_params", nullcontext)():
            optimizer.zero_grad(set_to_none=True)
            logits = network(images)
            loss = log.likelihood.loss(logits, labels)
            loss.backward()
        log.add(loss, logits, labels)
        before = None
        if step % log.every == 0:
            log.write(step * gradients_per_step, model, optimizer)
            before = [p.detach().clone() for p in model.parameters()]
        if getattr(optimizer, "needs_closure", False):
            closure: Any = Reevaluation(model, optimizer, images, labels, loss, log.likelihood)
            optimizer.step(closure)
            log.count_gradients(closure.calls)
        else:
            optimizer.step()
            log.count_gradients()
        if before is not None:
            log.moved(step * gradients_per_step, before, model)
        if schedule is not None:
            schedule.step()
        if step % log.validate_every == 0:
            log.validate(step * gradients_per_step, model)


class Reevaluation:
    """A closure whose first call returns the loss whose gradients are there already; `calls` counts gradients."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        x: Tensor,
        y: Tensor,
        loss: Tensor,
        likelihood: Likelihood,
    ) -> None:
        self.model, self.optimizer, self.x, self.y, self.loss, self.calls = model, optimizer, x, y, loss, 0
        self.likelihood = likelihood

    def __call__(self) -> Tensor:
        self.calls += 1
        if self.calls > 1:
            self.optimizer.zero_grad(set_to_none=True)
            self.loss = self.likelihood.loss(self.model(self.x), self.y)
            self.loss.backward()
        return self.loss


def point_runs(
    method: ImageMethod, settings: Settings, lr: float, data: ImageData, steps: int, minibatches: Minibatches, log: Log
) -> SampleCollection:
    """One trained network, or the members of an ensemble, which share the steps."""
    members = settings.ensemble_size if method.kind == "ensemble" else 1
    states, first_step = [], 0
    for member in range(members):
        share = steps // members + (member < steps % members)
        model = build_network(settings, data)
        optimizer = method.build(parameter_groups(model), settings, lr, data.num_data, share)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, share)
        minibatch_run(
            model,
            optimizer,
            data,
            share,
            minibatches,
            log,
            first_step=first_step,
            schedule=schedule,
            compiled=settings.compiled,
        )
        first_step += share
        states.append(model.state_dict())
    return PosteriorSamples.from_samples(model, states)


def sampler_run(
    method: ImageMethod, settings: Settings, lr: float, data: ImageData, steps: int, minibatches: Minibatches, log: Log
) -> SampleCollection:
    """The posterior samples of one chain, or the snapshots of an optimizer's trajectory."""
    cost = method.gradients_per_step
    steps //= cost
    model = build_network(settings, data)
    sampler = method.build(parameter_groups(model), settings, lr, data.num_data, steps)
    if method.cyclical:  # whose rate falls in every cycle, and over them stays what it is
        schedule: Any = method.schedule(sampler, settings, steps)
    else:
        schedule = annealing(sampler, settings, lr, steps)
    kept = cyclical_collection(settings, steps) if method.cyclical else collection(settings, steps)
    with PosteriorSamples(model, sampler, **kept) as samples:
        log.follow(samples, sampler)
        minibatch_run(
            model,
            sampler,
            data,
            steps,
            minibatches,
            log,
            schedule=schedule,
            gradients_per_step=cost,
            compiled=settings.compiled,
        )
    return samples


def annealing(
    optimizer: torch.optim.Optimizer, settings: Settings, lr: float, steps: int
) -> torch.optim.lr_scheduler.LRScheduler | None:
    """Half a cosine from `lr` to its share `final_lr`; None where the rate is constant."""
    if settings.final_lr == 1:
        return None
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, settings.final_lr * lr)


def collection(settings: Settings, steps: int) -> dict[str, Any]:
    """Burn-in and thinning that give `num_samples` evenly spaced samples of so many steps (trajectories for HMC).

    Raises:
        ValueError: there are not so many steps after burn-in.
    """
    thinning = round(steps * (1 - settings.burn_in)) // settings.num_samples
    if not thinning:
        raise ValueError(
            f"num_samples={settings.num_samples} exceeds the steps after burn-in: "
            f"burn_in={settings.burn_in} of {steps} steps (trajectories for HMC)"
        )
    return {"burn_in": steps - thinning * settings.num_samples, "thinning": thinning}


def cyclical_collection(settings: Settings, steps: int) -> dict[str, Any]:
    """Burn-in and thinning, in steps, that give about `num_samples` samples over the sampling phases.

    Raises:
        ValueError: the sampling phases are too short.
    """
    length = steps // settings.cycles
    phase = sum(cyclical_phase(step, length, settings.exploration_ratio)[1] for step in range(1, length + 1))
    sampling_cycles = settings.cycles - settings.burn_in_cycles
    each = max(1, settings.num_samples // sampling_cycles)
    if phase < each:
        raise ValueError(
            f"num_samples={settings.num_samples} over {sampling_cycles} cycles needs {each} steps in a sampling phase, "
            f"which has {phase} (of {length} steps a cycle, exploration_ratio={settings.exploration_ratio})"
        )
    return {"burn_in": settings.burn_in_cycles * length, "thinning": phase // each}


def hmc_run(
    method: ImageMethod, settings: Settings, lr: float, data: ImageData, log: Log
) -> tuple[SampleCollection, float]:
    """The posterior samples of HMC, and its acceptance rate after burn-in."""
    trajectories = settings.trajectories(data.num_data)
    model = build_network(settings, data)
    sampler = method.build(parameter_groups(model), settings, lr, data.num_data, trajectories)
    assert isinstance(sampler, HMC)

    def closure() -> Tensor:
        sampler.zero_grad(set_to_none=True)
        total = torch.zeros((), device=data.train_x.device)
        for x, y in zip(data.train_x.split(FULL_BATCH_CHUNK), data.train_y.split(FULL_BATCH_CHUNK)):
            loss = log.likelihood.loss(model(x), y) * (len(y) / data.num_data)
            loss.backward()
            total += loss.detach()
        return total

    cost = (settings.leapfrog_steps + 1) * settings.steps_per_epoch(data.num_data)
    every = max(1, trajectories // LOGS)
    with PosteriorSamples(model, sampler, **collection(settings, trajectories)) as samples:
        for trajectory in range(1, trajectories + 1):
            loss = sampler.step(closure).item()
            if trajectory % every == 0:
                log.writer.add_scalar("train/loss", loss, trajectory * cost)
                log.writer.add_scalar("hmc/acceptance_rate", sampler.acceptance_rate, trajectory * cost)
                log.writer.add_scalar("train/learning_rate", sampler.param_groups[0]["lr"], trajectory * cost)
            if trajectory % (every * max(1, LOGS // VALIDATIONS)) == 0:
                log.validate(trajectory * cost, model)
            log.count_gradients(cost)
    return samples, sampler.acceptance_rate


def build_network(settings: Settings, data: ImageData) -> nn.Module:
    """A freshly initialised network on the device of the data."""
    outputs, shape = outputs_of(data, settings), data.input_shape
    if is_own(settings.model):
        words = {"vocabulary": len(data.vocabulary)} if isinstance(data, TokenData) else {}
        network = own_models.build(settings.model, shape, outputs, **words)
    elif isinstance(data, TokenData) != (settings.model in text_networks()):
        fitting = f"{', '.join(text_networks())}" if isinstance(data, TokenData) else "a network for images"
        raise ValueError(f"model={settings.model!r} does not read {data.name}: take {fitting}, or your own")
    elif isinstance(data, TokenData):
        network = build_text(settings.model, len(data.vocabulary), shape[0], outputs, **settings.network_options())
    elif not isinstance(data, ArrayData):
        network = architectures.build(settings.model, shape, outputs, **settings.network_options())
    elif settings.model == "mlp":
        network = architectures.mlp((1, 1, math.prod(shape)), outputs, **settings.network_options())  # type: ignore
    else:
        raise ValueError(f"model={settings.model!r} is for images, the inputs have shape {shape}: take mlp or your own")
    return network.to(data.train_x.device)


def own_network(settings: Settings, data: ImageData) -> dict[str, str]:
    """What a run with a network of a user's own depends on: its code, and what it is when it is new; {} for others."""
    if not is_own(settings.model):
        return {}
    new = own_models.fingerprint_of(lambda: build_network(settings, data), data.train_x)
    return {"model_code": own_models.code_of(settings.model), "model_network": new}


def validate_run(method: ImageMethod, settings: Settings, lr: float, data: ImageData) -> None:
    """Raise what a run with these settings would raise before its first step: ValueError or TypeError, by name."""
    method.network_digest(settings.with_weights(data.num_data))
    if settings.augment and (isinstance(data, ArrayData) or method.kind == "full_batch"):
        what = f"{method.name} takes the whole training set" if method.kind == "full_batch" else "these are no images"
        raise ValueError(f"augment cannot be applied: {what}")
    steps = settings.budget(data.num_data) // method.gradients_per_step
    model = build_network(settings, data)
    with torch.no_grad():  # outputs and targets that do not fit are refused here
        likelihood_of(data, settings).loss(model(data.train_x[:2]), data.train_y[:2])
    groups = parameter_groups(model)
    if method.kind == "full_batch":
        steps = settings.trajectories(data.num_data)
        collection(settings, steps)
    elif method.kind == "ensemble" and steps < settings.ensemble_size:
        raise ValueError(f"ensemble_size={settings.ensemble_size} exceeds the budget of {steps} steps")
    elif method.kind == "last_layer":
        try:
            require("laplace", "laplace")
        except ModuleNotFoundError as error:
            raise ValueError(f"{method.name}: {error}") from error
        if not data.num_classes:
            raise ValueError(f"{method.name} is for classes, and {data.name} is a regression")
    elif method.kind == "gaussian" and steps - int(settings.burn_in * steps) < 2:
        raise ValueError(f"burn_in={settings.burn_in} of {steps} steps leaves fewer than two to fit a Gaussian to")
    optimizer = method.build(groups, settings, lr, data.num_data, steps)
    method.schedule(optimizer, settings, steps)
    if method.cyclical:
        cyclical_collection(settings, steps)
    elif method.kind in ("sampler", "average"):
        collection(settings, steps)
