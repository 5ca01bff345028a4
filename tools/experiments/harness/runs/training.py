"""The training loop, and the part of a run that predicts: last weights, an ensemble, averages, Gaussians, samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from experiments.harness.devices import Replayed, compiled
from experiments.harness.runs.checkpoint import Checkpoint
from experiments.harness.runs.log import VALIDATIONS, Log
from experiments.harness.runs.methods import Plan, RunMethod
from experiments.harness.runs.minibatches import Minibatches
from experiments.harness.runs.networks import build_network, parameter_groups
from experiments.harness.runs.settings import Settings
from learned_samplers import HMC, CyclicalSchedule
from learned_samplers.approximations import IVON, SWAG
from learned_samplers.classical.budget import warmup_of
from learned_samplers.classical.cycles import cyclical_phase
from learned_samplers.posterior.collect import PosteriorSamples, SampleCollection
from learned_samplers.posterior.normalisation import normalisation_buffers
from meta_tasks.datasets import ArrayData, ImageData

Schedule = LRScheduler | CyclicalSchedule
FULL_BATCH_CHUNK = 4096  # examples run at once for a gradient over the whole training set
MOVING_SHARE = 0.1  # of the budget that a moving average of the weights remembers


@dataclass(frozen=True)
class Training:
    """A run of a method, before it is run: `steps` minibatch gradients, in the end `samples`."""

    method: RunMethod
    plan: Plan
    data: ImageData
    minibatches: Minibatches
    log: Log
    checkpoint: Checkpoint = field(default_factory=Checkpoint)

    @property
    def settings(self) -> Settings:
        return self.plan.settings

    @property
    def steps(self) -> int:
        return self.plan.steps

    def samples(self) -> SampleCollection:
        """Train; the weights whose predictions are averaged."""
        return AVERAGES[self.method.averaging](self)

    def begin(self, steps: int) -> tuple[nn.Module, Optimizer]:
        """A fresh network, and its optimizer or sampler for so many steps."""
        model = build_network(self.settings, self.data)
        return model, self.method.build(parameter_groups(model), replace(self.plan, steps=steps))

    def annealing(self, optimizer: Optimizer, steps: int) -> LRScheduler | None:
        """Half a cosine from the rate to its share `final_lr`; None where the rate is constant."""
        share = self.settings.final_lr
        return None if share == 1 else CosineAnnealingLR(optimizer, steps, share * self.plan.lr)

    def loop(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        steps: int,
        schedule: Schedule | None = None,
        member: int = 0,
        **parts: Any,
    ) -> None:
        """The ordinary training loop, `steps` minibatches long; it goes on from the state of an earlier command."""
        log, cost, device = self.log, self.method.gradients_per_step, self.data.train_x.device
        parts = {"model": model, "optimizer": optimizer, "log": log, **parts}
        if schedule is not None:
            parts["schedule"] = schedule
        begun = self.checkpoint.begin(member, parts, device)
        first_step = log.gradients // cost - begun  # of the members before this one
        self.minibatches.advance(first_step + begun)
        model.train()
        evaluate = self._evaluation(model)
        for step in range(first_step + begun + 1, first_step + steps + 1):
            inputs, labels = next(self.minibatches)
            # IVON's gradient is taken at a draw from its Gaussian; that of all others at the weights.
            with getattr(optimizer, "sampled_params", nullcontext)():
                loss = evaluate(inputs, labels)
            log.add(loss)
            if step % log.every == 0:
                log.look(step * cost, optimizer)
            if getattr(optimizer, "needs_closure", False):
                self._step_with_closure(model, optimizer, inputs, labels, loss)
            else:
                optimizer.step()
                log.count_gradients()
            if schedule is not None:
                schedule.step()
            if step % log.validate_every == 0:
                log.validate(model)
            self.checkpoint.keep(member, step - first_step, parts, device)

    def _evaluation(self, model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
        """Function (inputs, labels) → loss, which leaves the gradients of the weights."""
        network = compiled(model, model) if self.settings.compiled else model
        params: list[Tensor] = [p for p in model.parameters() if p.requires_grad]

        def evaluate(inputs: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(network(inputs), labels)

        if self.settings.compiled and self.data.train_x.is_cuda:
            return Replayed(evaluate, params)

        def plain(inputs: Tensor, labels: Tensor) -> Tensor:
            for p in params:
                p.grad = None
            loss = evaluate(inputs, labels)
            loss.backward()
            return loss

        return plain

    def _step_with_closure(self, model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, loss: Tensor) -> None:
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

        optimizer.step(closure)  # type: ignore[arg-type]  # a tensor, as torch's own examples have it
        self.log.count_gradients(calls)

    def members(self) -> list[tuple[int, int]]:
        """Number and steps of each network that shares the run and is not finished yet."""
        count, steps = self.settings.ensemble_size, self.steps // self.method.gradients_per_step
        shares = [steps // count + (member < steps % count) for member in range(count)]
        return list(enumerate(shares))[len(self.checkpoint.members) :]


def _last_weights(run: Training) -> SampleCollection:
    """A trained network."""
    model, optimizer = run.begin(run.steps)
    run.loop(model, optimizer, run.steps, CosineAnnealingLR(optimizer, run.steps))
    return PosteriorSamples.from_samples(model, [model.state_dict()])


def _ensemble(run: Training) -> SampleCollection:
    """Networks that share the steps."""
    for member, steps in run.members():
        model, optimizer = run.begin(steps)
        run.loop(model, optimizer, steps, CosineAnnealingLR(optimizer, steps), member)
        run.checkpoint.members.append({name: x.detach().cpu().clone() for name, x in model.state_dict().items()})
    return PosteriorSamples.from_samples(model, run.checkpoint.members)


def _chains(run: Training) -> SampleCollection:
    """Posterior samples of chains that share the steps, one after the other, each with its warm-up as it comes."""
    settings = run.settings
    for member, steps in run.members():
        model, sampler = run.begin(steps)
        count = settings.num_samples // settings.ensemble_size
        burn_in = warmup_of(steps, run.data.num_data)
        thinning = (steps - burn_in) // count
        with PosteriorSamples(model, sampler, steps - thinning * count, thinning) as samples:
            run.loop(model, sampler, steps, None, member, samples=samples)
        run.checkpoint.members.append({f"{k}": dict(samples[k]) for k in range(len(samples))})
    states = [state for chain in run.checkpoint.members for state in chain.values()]
    return PosteriorSamples.from_samples(model, states)


def _snapshots(run: Training) -> SampleCollection:
    """The posterior samples of one chain, or the snapshots of an optimizer's trajectory."""
    if run.method.full_batch:
        return _full_batch(run)
    steps = run.steps // run.method.gradients_per_step
    model, sampler = run.begin(steps)
    schedule: Schedule | None = run.annealing(sampler, steps)
    if run.method.cyclical:
        schedule = run.method.schedule(sampler, replace(run.plan, steps=steps))
    with PosteriorSamples(model, sampler, **collection(run.method, run.settings, steps)) as samples:
        run.loop(model, sampler, steps, schedule, samples=samples)
    return samples


def _moving_average(run: Training) -> SampleCollection:
    """The moving average of the weights over a run of an optimizer."""
    model, optimizer = run.begin(run.steps)
    decay = 1 - 1 / max(2, MOVING_SHARE * run.steps)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    optimizer.register_step_post_hook(lambda *_: average.update_parameters(model))
    run.loop(model, optimizer, run.steps, run.annealing(optimizer, run.steps), average=average)
    return PosteriorSamples.from_samples(model, [average.module.state_dict()])


def _gaussian_draws(run: Training) -> SampleCollection:
    """Draws from the Gaussian that a run has fitted: an optimizer's own (at a decaying rate), or else SWAG's."""
    model, optimizer = run.begin(run.steps)
    count = run.settings.num_samples
    if isinstance(optimizer, IVON):
        run.loop(model, optimizer, run.steps, CosineAnnealingLR(optimizer, run.steps))
        return SampleCollection.from_draws(model, optimizer.sampled_params, count)
    # Fitted to twice as many states as a chain gives samples, evenly over the rest of the run.
    burn_in = int(run.settings.burn_in * run.steps)
    swag = SWAG(model, optimizer, burn_in, max(1, (run.steps - burn_in) // (2 * count)))
    run.loop(model, optimizer, run.steps, run.annealing(optimizer, run.steps), swag=swag)
    return SampleCollection.from_draws(model, swag.sampled_params, count)


def _full_batch(run: Training) -> SampleCollection:
    """The posterior samples of HMC, whose acceptance rate after burn-in the log gets."""
    settings, data, log = run.settings, run.data, run.log
    trajectories = settings.trajectories(data.num_data)
    model, sampler = run.begin(trajectories)
    assert isinstance(sampler, HMC)

    def closure() -> Tensor:
        sampler.zero_grad(set_to_none=True)
        total = torch.zeros((), device=data.train_x.device)
        for x, y in zip(data.train_x.split(FULL_BATCH_CHUNK), data.train_y.split(FULL_BATCH_CHUNK)):
            loss = cross_entropy(model(x), y) * (len(y) / data.num_data)
            loss.backward()
            total += loss.detach()
        return total

    cost = (settings.leapfrog_steps + 1) * settings.steps_per_epoch(data.num_data)
    with PosteriorSamples(model, sampler, **collection(run.method, settings, trajectories)) as samples:
        parts = {"model": model, "optimizer": sampler, "samples": samples, "log": log}
        begun = run.checkpoint.begin(0, parts, data.train_x.device)
        for trajectory in range(begun + 1, trajectories + 1):
            sampler.step(closure)
            if trajectory % max(1, trajectories // VALIDATIONS) == 0:
                log.validate(model)
            log.count_gradients(cost)
            run.checkpoint.keep(0, trajectory, parts, data.train_x.device)
    log.acceptance_rate = sampler.acceptance_rate
    return samples


#: Function of a run that gives what predicts, by `RunMethod.averaging`.
AVERAGES: dict[str, Callable[[Training], SampleCollection]] = {
    "none": _last_weights,
    "ensemble": _ensemble,
    "chains": _chains,
    "snapshots": _snapshots,
    "moving": _moving_average,
    "gaussian": _gaussian_draws,
    "samples": _snapshots,
}


def collection(method: RunMethod, settings: Settings, steps: int) -> dict[str, Any]:
    """Burn-in and thinning, in steps (trajectories for HMC), that give `num_samples` evenly spaced samples; of a
    cyclical method about so many over its sampling phases.
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
    samples = max(1, settings.num_samples // sampling_cycles)
    if phase < samples:
        raise ValueError(
            f"num_samples={settings.num_samples} over {sampling_cycles} cycles needs {samples} steps in a sampling "
            f"phase, which has {phase} (of {length} steps a cycle, exploration_ratio={settings.exploration_ratio})"
        )
    return {"burn_in": settings.burn_in_cycles * length, "thinning": phase // samples}


def validate_run(method: RunMethod, settings: Settings, lr: float, data: ImageData) -> None:
    """Raise the error of a run with these settings before its first step: ValueError or TypeError, by name."""
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
    several = method.averaging in ("samples", "snapshots", "gaussian", "chains")
    if several and (statistics := normalisation_buffers(model)):
        raise ValueError(
            f"model={settings.model!r} has running statistics ({statistics[0]}), which belong to one set of weights: "
            "take GroupNorm or LayerNorm, or a loop of your own (PosteriorSamples, buffers='reestimate')"
        )
    if method.full_batch:
        steps = settings.trajectories(data.num_data)
    elif method.averaging in ("ensemble", "chains"):
        if steps < settings.ensemble_size:
            raise ValueError(f"ensemble_size={settings.ensemble_size} exceeds the budget of {steps} steps")
        steps //= settings.ensemble_size
        if method.averaging == "chains" and settings.num_samples < settings.ensemble_size:
            raise ValueError(f"ensemble_size={settings.ensemble_size} exceeds num_samples={settings.num_samples}")
    elif method.averaging == "gaussian" and steps - int(settings.burn_in * steps) < 2:
        raise ValueError(f"burn_in={settings.burn_in} of {steps} steps leaves fewer than two to fit a Gaussian to")
    plan = method.plan(settings, lr, data.num_data, steps)
    method.schedule(method.build(parameter_groups(model), plan), plan)
    if method.averaging in ("samples", "snapshots"):
        collection(method, settings, steps)


def gradient_seconds(settings: Settings, data: ImageData, repeats: int = 5) -> float:
    """Seconds of a minibatch gradient of the network on this machine, without what an optimizer adds."""
    model, batches = build_network(settings, data), Minibatches(data, settings, 0)
    start = time.perf_counter()
    for number in range(repeats + 1):
        if number == 1:  # the first one warms up
            start = time.perf_counter()
        x, y = next(batches)
        cross_entropy(model(x), y).backward()
    return (time.perf_counter() - start) / repeats
