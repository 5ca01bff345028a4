"""The training loop, and what of a run predicts: its last weights, an ensemble, averages, fitted Gaussians, samples."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from experiments.harness.devices import compiled
from experiments.harness.runs.log import LOGS, VALIDATIONS, Log
from experiments.harness.runs.methods import Plan, RunMethod
from experiments.harness.runs.minibatches import Minibatches
from experiments.harness.runs.networks import build_network, parameter_groups
from experiments.harness.runs.settings import Settings
from learned_samplers.approximations import SWAG
from learned_samplers.classical.cycles import cyclical_phase
from learned_samplers.posterior.collect import PosteriorSamples, SampleCollection
from learned_samplers.posterior.normalisation import normalisation_buffers
from meta_tasks.datasets import ArrayData, ImageData

FULL_BATCH_CHUNK = 4096  # examples run at once for a gradient over the whole training set
MOVING_SHARE = 0.1  # of the budget that a moving average of the weights remembers


@dataclass(frozen=True)
class Training:
    """One run of a method, before it is run: ``steps`` minibatch gradients, in the end `samples`."""

    method: RunMethod
    settings: Settings
    lr: float
    data: ImageData
    steps: int
    minibatches: Minibatches
    log: Log

    def samples(self) -> SampleCollection:
        """Train; the weights whose predictions are averaged.

        Raises:
            Diverged, FloatingPointError: the run did.
        """
        return AVERAGES[self.method.averaging](self)

    def plan(self, steps: int) -> Plan:
        """What the method is built for."""
        return self.method.plan(self.settings, self.lr, self.data.num_data, steps)

    def begin(self, steps: int) -> tuple[nn.Module, Any]:
        """A fresh network, and its optimizer or sampler for so many steps."""
        model = build_network(self.settings, self.data)
        return model, self.method.build(parameter_groups(model), self.plan(steps))

    def annealing(self, optimizer: Any, steps: int) -> LRScheduler | None:
        """Half a cosine from the rate to its share `final_lr`; None where the rate is constant."""
        share = self.settings.final_lr
        return None if share == 1 else CosineAnnealingLR(optimizer, steps, share * self.lr)

    def loop(self, model: nn.Module, optimizer: Any, steps: int, schedule: Any, first_step: int = 0) -> None:
        """The ordinary training loop, `steps` minibatches long."""
        log, cost = self.log, self.method.gradients_per_step
        model.train()
        network = compiled(model, model) if self.settings.compiled else model
        for step, (inputs, labels) in zip(range(first_step + 1, first_step + steps + 1), self.minibatches):
            # IVON's gradient is taken at a draw from its Gaussian; that of all others at the weights.
            with getattr(optimizer, "sampled_params", nullcontext)():
                optimizer.zero_grad(set_to_none=True)
                outputs = network(inputs)
                loss = cross_entropy(outputs, labels)
                loss.backward()
            log.add(loss, outputs, labels)
            before = None
            if step % log.every == 0:
                log.write(step * cost, optimizer)
                before = [p.detach().clone() for p in model.parameters()]
            if getattr(optimizer, "needs_closure", False):
                self._step_with_closure(model, optimizer, inputs, labels, loss)
            else:
                optimizer.step()
                log.count_gradients()
            if before is not None:
                log.moved(step * cost, before, model)
            if schedule is not None:
                schedule.step()
            if step % log.validate_every == 0:
                log.validate(step * cost, model)

    def _step_with_closure(self, model: nn.Module, optimizer: Any, x: Tensor, y: Tensor, loss: Tensor) -> None:
        """A step whose closure returns the loss whose gradients are there already, and then computes it anew."""
        calls = 0

        def closure() -> Tensor:
            nonlocal calls
            calls += 1
            if calls == 1:
                return loss
            optimizer.zero_grad(set_to_none=True)
            again = cross_entropy(model(x), y)
            again.backward()
            return again

        optimizer.step(closure)
        self.log.count_gradients(calls)


def _last_weights(run: Training) -> SampleCollection:
    """One trained network, or the members of an ensemble, which share the steps."""
    members = run.settings.ensemble_size if run.method.averaging == "ensemble" else 1
    states, first_step = [], 0
    for member in range(members):
        share = run.steps // members + (member < run.steps % members)
        model, optimizer = run.begin(share)
        run.loop(model, optimizer, share, CosineAnnealingLR(optimizer, share), first_step)
        first_step += share
        states.append(model.state_dict())
    return PosteriorSamples.from_samples(model, states)


def _snapshots(run: Training) -> SampleCollection:
    """The posterior samples of one chain, or the snapshots of an optimizer's trajectory."""
    if run.method.full_batch:
        return _full_batch(run)
    steps = run.steps // run.method.gradients_per_step
    model, sampler = run.begin(steps)
    cyclical = run.method.cyclical
    schedule = run.method.schedule(sampler, run.plan(steps)) if cyclical else run.annealing(sampler, steps)
    with PosteriorSamples(model, sampler, **collection(run.method, run.settings, steps)) as samples:
        run.loop(model, sampler, steps, schedule)
    return samples


def _moving_average(run: Training) -> SampleCollection:
    """The moving average of the weights over a run of an optimizer."""
    model, optimizer = run.begin(run.steps)
    decay = 1 - 1 / max(2, MOVING_SHARE * run.steps)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    optimizer.register_step_post_hook(lambda *_: average.update_parameters(model))
    run.loop(model, optimizer, run.steps, run.annealing(optimizer, run.steps))
    return PosteriorSamples.from_samples(model, [average.module.state_dict()])


def _gaussian_draws(run: Training) -> SampleCollection:
    """Draws from the Gaussian that a run has fitted: an optimizer's own (at a decaying rate), or else SWAG's."""
    model, optimizer = run.begin(run.steps)
    count = run.settings.num_samples
    if hasattr(optimizer, "sampled_params"):
        run.loop(model, optimizer, run.steps, CosineAnnealingLR(optimizer, run.steps))
        return SampleCollection.from_draws(model, optimizer.sampled_params, count)
    # Fitted to twice as many states as a chain gives samples, evenly over the rest of the run.
    burn_in = int(run.settings.burn_in * run.steps)
    swag = SWAG(model, optimizer, burn_in, max(1, (run.steps - burn_in) // (2 * count)))
    run.loop(model, optimizer, run.steps, run.annealing(optimizer, run.steps))
    return SampleCollection.from_draws(model, swag.sampled_params, count)


def _full_batch(run: Training) -> SampleCollection:
    """The posterior samples of HMC, whose acceptance rate after burn-in the log gets."""
    settings, data, log = run.settings, run.data, run.log
    trajectories = settings.trajectories(data.num_data)
    model, sampler = run.begin(trajectories)

    def closure() -> Tensor:
        sampler.zero_grad(set_to_none=True)
        total = torch.zeros((), device=data.train_x.device)
        for x, y in zip(data.train_x.split(FULL_BATCH_CHUNK), data.train_y.split(FULL_BATCH_CHUNK)):
            loss = cross_entropy(model(x), y) * (len(y) / data.num_data)
            loss.backward()
            total += loss.detach()
        return total

    cost = (settings.leapfrog_steps + 1) * settings.steps_per_epoch(data.num_data)
    every = max(1, trajectories // LOGS)
    with PosteriorSamples(model, sampler, **collection(run.method, settings, trajectories)) as samples:
        for trajectory in range(1, trajectories + 1):
            loss = sampler.step(closure).item()
            if trajectory % every == 0:
                log.writer.add_scalar("train/loss", loss, trajectory * cost)
                log.writer.add_scalar("hmc/acceptance_rate", sampler.acceptance_rate, trajectory * cost)
            if trajectory % max(1, trajectories // VALIDATIONS) == 0:
                log.validate(trajectory * cost, model)
            log.count_gradients(cost)
    log.acceptance_rate = sampler.acceptance_rate
    return samples


#: What of a run predicts, by `RunMethod.averaging`.
AVERAGES: dict[str, Callable[[Training], SampleCollection]] = {
    "none": _last_weights,
    "ensemble": _last_weights,
    "snapshots": _snapshots,
    "moving": _moving_average,
    "gaussian": _gaussian_draws,
    "samples": _snapshots,
}


def collection(method: RunMethod, settings: Settings, steps: int) -> dict[str, Any]:
    """Burn-in and thinning, in steps (trajectories for HMC), that give `num_samples` evenly spaced samples; of a
    cyclical method about so many over its sampling phases.

    Raises:
        ValueError: there are not so many steps.
    """
    if not method.cyclical:
        thinning = round(steps * (1 - settings.burn_in)) // settings.num_samples
        if not thinning:
            raise ValueError(
                f"num_samples={settings.num_samples} exceeds the steps after burn-in: "
                f"burn_in={settings.burn_in} of {steps} steps (trajectories for HMC)"
            )
        return {"burn_in": steps - thinning * settings.num_samples, "thinning": thinning}
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


def validate_run(method: RunMethod, settings: Settings, lr: float, data: ImageData) -> None:
    """Raise what a run with these settings would raise before its first step: ValueError or TypeError, by name."""
    method.card(settings)
    settings = method.settings(settings, data.num_data)
    if settings.augment and (isinstance(data, ArrayData) or method.full_batch):
        what = f"{method.name} takes the whole training set" if method.full_batch else "these are no images"
        raise ValueError(f"augment cannot be applied: {what}")
    steps = settings.budget(data.num_data) // method.gradients_per_step
    model = build_network(settings, data)
    with torch.no_grad():  # outputs that do not fit are refused here
        outputs = model(data.train_x[:2])
    if getattr(outputs, "shape", None) != (2, data.num_classes):
        got = tuple(getattr(outputs, "shape", ())) or type(outputs).__name__
        raise ValueError(f"model={settings.model!r} must return logits (n, {data.num_classes}), got {got}")
    if data.num_classes > 1 and bool((outputs >= 0).all()) and bool(((outputs.sum(1) - 1).abs() < 1e-4).all()):
        raise ValueError(f"model={settings.model!r} must return logits, got probabilities: leave its softmax out")
    if method.averaging in ("samples", "snapshots", "gaussian") and (statistics := normalisation_buffers(model)):
        raise ValueError(
            f"model={settings.model!r} has running statistics ({statistics[0]}), which belong to one set of weights: "
            "take GroupNorm or LayerNorm, or a loop of your own (PosteriorSamples, buffers='reestimate')"
        )
    if method.full_batch:
        steps = settings.trajectories(data.num_data)
    elif method.averaging == "ensemble" and steps < settings.ensemble_size:
        raise ValueError(f"ensemble_size={settings.ensemble_size} exceeds the budget of {steps} steps")
    elif method.averaging == "gaussian" and steps - int(settings.burn_in * steps) < 2:
        raise ValueError(f"burn_in={settings.burn_in} of {steps} steps leaves fewer than two to fit a Gaussian to")
    plan = method.plan(settings, lr, data.num_data, steps)
    method.schedule(method.build(parameter_groups(model), plan), plan)
    if method.averaging in ("samples", "snapshots"):
        collection(method, settings, steps)
