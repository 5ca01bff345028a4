"""The chains, their distances from HMC, and what each method reaches at each budget."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from experiments.distance.problems import PARTS, load, made_of
from experiments.harness.options import DataOptions, RunOptions, at_least_one, each_once
from experiments.harness.run_store import RunStore, fingerprint
from experiments.harness.runs.methods import METHODS
from experiments.harness.runs.minibatches import batches
from experiments.harness.tuning import Choice, tune
from learned_samplers import HMC, metrics
from learned_samplers.classical.warmup import warmup_of
from meta_tasks.progress import progress

CHAINS = 4  # of HMC
STATES = 100  # of a chain of HMC, whose predictions set the target
SHARES = (0.25, 0.5)
HALVED, KEPT = 3000, 2  # at larger budgets than that so many rates go on, of methods that make a run a budget
EVERY = 5  # steps between states that predict
AS_IT_COMES = "AdaptedSGHMC(total_steps=, warmup=L2E), as it comes"
#: Rows of the table → the method of the harness.
ROWS = {
    "SGHMC": "SGHMC",
    "BAOA": "BAOA",
    "AdaptedSGHMC(warmup=L2E)": "AdaptedL2E",
    AS_IT_COMES: "AdaptedL2EAsItComes",
    "AdaptedSGHMC": "AdaptedWhitenedSGHMC",
    "L2E": "L2E",
}
#: Those whose one run a seed shows every budget.
LONG = ("SGHMC", "BAOA", "L2E")


@dataclass(frozen=True)
class DistanceOptions(DataOptions, RunOptions):
    """Gradients to HMC's predictions."""

    # Posteriors: digits, concrete, fashion.
    parts: tuple[str, ...] = ("digits", "concrete")
    # Methods, by default all but L2E, which has no law.
    rows: tuple[str, ...] = tuple(name for name in ROWS if name != "L2E")
    # Gradients after which predictions are compared, in the place of the protocol's.
    budgets: tuple[int, ...] | None = None
    # Trajectories of each chain of HMC, in the place of the protocol's. (For trying the command.)
    trajectories: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "trajectories")
        for name, known in (("parts", PARTS), ("rows", ROWS)):
            each_once(self, name)
            if unknown := [each for each in getattr(self, name) if each not in known]:
                raise ValueError(f"{name} must be of {'; '.join(known)}, got {', '.join(unknown)}")
        if self.budgets is not None and (not self.budgets or min(self.budgets) < 4 * EVERY):
            raise ValueError(f"budgets must be {4 * EVERY} or more each, got {self.budgets}")


@dataclass(frozen=True, order=True)
class Setting(Choice):
    """A learning rate, and the share of the gradients so far that is burn-in."""

    burn_in: float = 0.25


@dataclass(frozen=True)
class Reached:
    """What a row reaches at a budget: its best setting, distance and NLL of each seed, and all rates, best first."""

    setting: Setting
    distances: list[float]
    nll: list[float]
    rates: tuple[float, ...]


class Experiment:
    """One posterior: HMC, then every row at every budget, kept in a folder of its own."""

    def __init__(self, options: DistanceOptions, name: str) -> None:
        self.options, self.name, self.problem = options, name, load(name, options.data)
        part = self.problem.part
        trajectories = part.hmc[2] if options.trajectories is None else options.trajectories
        self.part = replace(part, budgets=tuple(sorted(options.budgets or part.budgets)))
        self.hmc = (*part.hmc[:2], trajectories)
        assert options.out is not None
        data = fingerprint([*self.problem.train, *self.problem.test])
        self.store = RunStore(options.out / name, data, fresh=options.fresh)

    # ---------------------------------------------------------------- HMC

    def chain(self, number: int) -> tuple[Tensor, Tensor]:
        """The predictions of one chain of HMC, (T, K): of all its states, and of 100 evenly spaced ones."""
        lr, leapfrog, trajectories = self.hmc
        problem, name = self.problem, f"HMC_chain{number}"
        what = made_of(self.part) | {"hmc": list(self.hmc), "chain": number, "states": STATES}

        def make() -> dict[str, Any]:
            torch.manual_seed(1000 + number)
            model, warmup = problem.network(), trajectories // 5
            own: Any = {"leapfrog_steps": leapfrog, "adapt_steps": warmup, **problem.posterior}
            sampler = HMC(model.parameters(), lr, problem.num_data, **own)
            chosen = {warmup + round((k + 1) * (trajectories - warmup) / STATES) for k in range(STATES)} - {warmup}
            every, few = torch.zeros(()).double(), torch.zeros(()).double()

            def closure() -> Tensor:
                sampler.zero_grad()
                loss = problem.loss(model(problem.train[0]), problem.train[1])
                loss.backward()
                return loss.detach()

            start = time.perf_counter()
            for step in progress(range(1, trajectories + 1), desc=f"{self.name}, HMC, chain {number}", leave=False):
                sampler.step(closure)
                if step > warmup:
                    found = problem.predict(model)
                    every = every + found
                    few = few + found * (step in chosen)
            averages = {"test": every / (trajectories - warmup), "few": few / len(chosen)}
            self.store.write_tensors(name, "predictions", averages)
            return {"acceptance_rate": sampler.acceptance_rate, "seconds": time.perf_counter() - start}

        self.store.run(name, what, make)
        known = self.store.read_tensors(name, "predictions")
        return known["test"], known["few"]

    def truth(self) -> tuple[Tensor, dict[str, list[float]]]:
        """HMC's predictions; of each chain the distances of 100 states, "distances", and of all, "all_states", from the
        average of the others, and its "nll"."""
        chains = [self.chain(number) for number in range(CHAINS)]
        total = torch.stack([every for every, _ in chains]).sum(0)
        own: dict[str, list[float]] = {"distances": [], "all_states": [], "nll": []}
        for every, few in chains:
            others = (total - every) / (CHAINS - 1)
            own["distances"].append(metrics.total_variation(few, others))
            own["all_states"].append(metrics.total_variation(every, others))
            own["nll"].append(metrics.nll(every, self.problem.test[1]))
        return total / CHAINS, own

    # ---------------------------------------------------------------- the others

    def run(self, row: str, lr: float, warmup: float, seed: int, steps: int) -> dict[str, Tensor] | None:
        """Sums of predictions over a run's states up to each of its marks, by the mark; None if it diverged.

        Args:
            warmup: share of the run in which a method warms up that does.
        """
        method, problem = METHODS[ROWS[row]], self.problem
        budgets = [b for b in self.part.budgets if b <= steps] if row in LONG else [steps]
        marks = sorted({*budgets, *(_first(b, share) for b in budgets for share in (*SHARES, warmup))})
        settings = replace(self.part.settings, burn_in=warmup)
        name = f"{ROWS[row]}_lr{lr:g}_w{warmup:g}_steps{steps}_seed{seed}"
        what = made_of(self.part) | {"lr": lr, "warmup": warmup, "seed": seed, "marks": marks, "every": EVERY}

        def make() -> dict[str, Any]:
            torch.manual_seed(seed)
            model = problem.network()
            plan = method.plan(settings, lr, problem.num_data, steps)
            sampler = method.build([{"params": list(model.parameters())}], plan)
            own = torch.Generator().manual_seed(2**32 + seed)
            x, y = problem.train
            rows = batches(problem.num_data, settings.batch_size, x.device, own)
            total = torch.zeros(len(problem.test[1]), problem.predict(model).shape[1], dtype=torch.float64)
            sums, start = {}, time.perf_counter()
            for step, index in zip(progress(range(1, steps + 1), desc=f"{self.name}, {name}", leave=False), rows):
                sampler.zero_grad()
                problem.loss(model(x[index]), y[index]).backward()
                try:
                    sampler.step()
                except FloatingPointError as error:
                    return {"diverged": str(error)}
                if step % EVERY == 0:
                    total += problem.predict(model)
                if step in marks:
                    sums[str(step)] = total.clone()
            if not total.isfinite().all():
                return {"diverged": "predictions that are not finite"}
            self.store.write_tensors(name, "predictions", sums)
            return {"diverged": None, "seconds": time.perf_counter() - start}

        found = self.store.run(name, what, make)
        return None if found["diverged"] else self.store.read_tensors(name, "predictions")

    def predictions(self, row: str, setting: Setting, seed: int, budget: int) -> Tensor | None:
        """The average over the states after burn-in, of the first ``budget`` gradients."""
        warmup = setting.burn_in if row == AS_IT_COMES else SHARES[0]
        steps = max(self.part.budgets) if row in LONG else budget
        if (sums := self.run(row, setting.lr, warmup, seed, steps)) is None:
            return None
        first = _first(budget, setting.burn_in)
        return (sums[str(budget)] - sums[str(first)]) / (budget // EVERY - first // EVERY)

    def reached(self, row: str, budget: int, truth: Tensor, known: tuple[float, ...] = ()) -> Reached | None:
        """The best setting of a row at a budget, of the ``known`` rates if there are any; None if all diverged."""

        def distance(found: Tensor | None) -> float | None:
            return None if found is None else metrics.total_variation(found, truth)

        rates = known or self.part.rates[row not in LONG]
        if row == "L2E":
            rates = (METHODS["L2E"].rate(self.part.settings),)
        num_data = self.problem.num_data
        lr = METHODS[ROWS[AS_IT_COMES]].rate_at(replace(self.part.settings, steps=budget), num_data)
        choices = [Setting(lr, warmup_of(budget, num_data) / budget)]
        if row != AS_IT_COMES:
            choices = [Setting(lr, share) for lr, share in itertools.product(rates, SHARES)]
        seeds = self.options.seed_list()
        try:
            tuning = tune(
                *(choices, lambda setting, seed: self.predictions(row, setting, seed, budget), distance),
                seeds=seeds,
                extensions=0 if known or len({c.lr for c in choices}) == 1 else 2,
            )
        except RuntimeError:
            return None
        best = [p for p in tuning.trials[tuning.chosen] if p is not None]
        nll = [metrics.nll(p, self.problem.test[1]) for p in best]
        ranked = tuple(dict.fromkeys(choice.lr for choice in tuning.ranked()))
        return Reached(tuning.chosen, [metrics.total_variation(p, truth) for p in best], nll, ranked)

    def all(self) -> Iterator[dict[str, Any]]:
        """HMC's own distances and what every row reaches, after each row: as JSON takes it."""
        truth, own = self.truth()
        target = 1.1 * statistics.fmean(own["distances"])
        found: dict[str, Any] = {"hmc": own, "target": target, "rows": {}}
        for row in self.options.rows:
            curve: dict[int, Reached] = {}
            known: tuple[float, ...] = ()
            for budget in self.part.budgets:
                reached = self.reached(row, budget, truth, known)
                if reached is None:
                    continue
                curve[budget] = reached
                known = reached.rates[:KEPT] if row not in LONG and budget >= HALVED else ()
                found["rows"][row] = {"budgets": {b: _numbers(r) for b, r in curve.items()}}
                found["rows"][row]["gradients"] = gradients_to(
                    target, {b: statistics.fmean(r.distances) for b, r in curve.items()}
                )
                yield found
                if found["rows"][row]["gradients"] is not None:
                    break


def _first(budget: int, share: float) -> int:
    """Gradients of the burn-in, in whole states."""
    return int(share * budget) // EVERY * EVERY


def _numbers(reached: Reached) -> dict[str, Any]:
    setting = reached.setting
    return {"lr": setting.lr, "burn_in": setting.burn_in, "distances": reached.distances, "nll": reached.nll}


def gradients_to(target: float, curve: dict[int, float]) -> float | None:
    """Gradients at which a curve, budget → distance, is first at the target; None if it never is.

    Between two budgets the logarithm of the distance is linear in that of the gradients; a curve that begins below the
    target has the smallest budget.
    """
    before: tuple[int, float] | None = None
    for budget, distance in sorted(curve.items()):
        if distance <= target:
            if before is None:
                return float(budget)
            share = math.log(before[1] / target) / math.log(before[1] / distance)
            return before[0] * (budget / before[0]) ** share
        before = budget, distance
    return None
