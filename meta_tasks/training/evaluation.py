"""Evaluation on fixed held-out tasks, against hand-designed samplers at the same budget; and early stopping by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from meta_tasks.inner_loop.batching import Run, unrolls_of
from meta_tasks.inner_loop.schedule import Horizon, Schedule
from meta_tasks.objectives import BMALoss
from meta_tasks.random_streams import derive_seed
from meta_tasks.rules.base import SamplerRule, steps_for
from meta_tasks.rules.classical import CyclicalRule, PSGLDRule, SGHMCRule
from meta_tasks.tasks.family import ImageTaskFamily
from meta_tasks.tasks.task import TaskConfig

__all__ = ["EarlyStopping", "HeldOutEvaluation", "Score"]


_EXPLORATION = 0.8
_BURN_IN = 0.5
_SPLIT = "val"


@dataclass(frozen=True)
class Score:
    """BMA negative log-likelihood in nats and accuracy, means over tasks and chains, at each task's best lr.

    ``share_failed``: of all runs, at any lr, those that became non-finite.
    """

    nll: float
    accuracy: float
    share_failed: float


class HeldOutEvaluation:
    """Runs a sampler on tasks that meta-training never draws, and the baselines once.

    The tasks come from the family under a name that no iteration has, their training images are of the training split
    and their loss is computed on the validation split: no test image has a say in what is meta-trained. Every sampler
    takes the same number of gradients (one whose step costs two takes half as many steps), collects the same number of
    states, and gets the same grid of learning rates, of which each task's best counts.

    Args:
        family: to draw the tasks from.
        steps: gradients each run takes.
        samples: states collected, after the burn-in; by the cyclical baseline at the end of its own cycles.
        tasks: number of tasks.
        chains: runs of each, with other seeds.
        lrs: the grid.
        baseline_lrs: that of the hand-designed samplers; by default the same.
        seed: of tasks and runs; the same through a whole meta-training.
        burn_in: share of the sampler's runs before states are collected: what it is trained with. The baselines keep
            theirs: half of a run, and the cyclical one its cycles.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        family: ImageTaskFamily,
        steps: int,
        *,
        samples: int = 10,
        tasks: int = 3,
        chains: int = 2,
        lrs: Sequence[float] = (0.02, 0.05, 0.1, 0.2),
        baseline_lrs: Sequence[float] | None = None,
        seed: int = 0,
        burn_in: float = _BURN_IN,
    ) -> None:
        if not hasattr(family, "config"):
            raise TypeError(f"family must be an ImageTaskFamily, got {type(family).__name__}")
        for name, value in (("steps", steps), ("samples", samples), ("tasks", tasks), ("chains", chains)):
            validation.integer(name, value)
        if not lrs:
            raise ValueError(f"lrs must be one learning rate at least, got {tuple(lrs)}")
        self.family, self.steps, self.samples, self.lrs = family, steps, samples, tuple(lrs)
        self.baseline_lrs = self.lrs if baseline_lrs is None else tuple(baseline_lrs)
        validation.fraction("burn_in", burn_in, open_right=True)
        self.burn_in = burn_in
        for name in ("lrs", "baseline_lrs"):
            for lr in getattr(self, name):
                validation.positive(name, lr)
        self.chains, self.seed = chains, seed
        self.configs = [self._config(i) for i in range(tasks)]

    def _config(self, number: int) -> TaskConfig:
        drawn = self.family.config("held-out", self.seed, number)
        return replace(drawn, split=_SPLIT, validation_size=1000, weight_scale_spread=0.0)

    def check(self, rule: SamplerRule) -> None:
        """Raise now the errors that `record` would raise in mid-run.

        Raises:
            ValueError: the gradients do not pay for the states of the rule or of a baseline.
        """
        schedule = self._schedule(rule)
        rule.for_run(schedule.steps, "held-out")
        self._cyclical()

    def _schedule(self, rule: SamplerRule, burn_in: float | None = None) -> Schedule:
        steps = steps_for(rule, self.steps)
        return Horizon(steps, steps, self.samples, self.burn_in if burn_in is None else burn_in).schedule_of(steps)

    def _cyclical(self) -> Schedule:
        cycles = self.samples // 2 if self.samples % 2 == 0 else 1
        return Schedule.cyclical(self.steps, cycles, self.samples, _EXPLORATION)

    def record(self, scores: dict[str, Any], rule: SamplerRule, weights: Tensor, iteration: int) -> Score:
        """Score a sampler, print the score, and write it into the scores of a whole meta-training.

        Args:
            scores: plain values, kept in checkpoints: "specification", "baselines" (scored here if there are none),
                "sampler" (a list, by "iteration").
            rule, weights: the sampler.
            iteration: of the meta-training.
        """
        from tqdm import tqdm

        if "baselines" not in scores:
            tqdm.write("scoring the hand-designed samplers on held-out tasks, once")
            scores["baselines"] = {name: asdict(score) for name, score in self.baselines().items()}
            scores["specification"] = self.specification()
        score = self.score(rule, weights)
        scores.setdefault("sampler", []).append({"iteration": iteration, **asdict(score)})
        baselines = ", ".join(f"{name} {values['nll']:.4f}" for name, values in scores["baselines"].items())
        tqdm.write(f"iteration {iteration}: held-out NLL {score.nll:.4f} ({baselines})")
        return score

    def score(
        self,
        rule: SamplerRule,
        weights: Tensor | None = None,
        schedule: Schedule | None = None,
        lrs: Sequence[float] | None = None,
    ) -> Score:
        """The score of a sampler with meta-parameters (n,), over its own grid of learning rates or another.

        Args:
            schedule: of a sampler that has its own cycles, or none; by default that of the one that is trained.

        Raises:
            ValueError: the gradients do not pay for the states.
        """
        best, share_failed = self._best(rule, weights, schedule, lrs)
        nll, error = torch.tensor(best).mean(0).tolist()
        return Score(nll, 1 - error, share_failed)

    def losses(self, rule: SamplerRule, weights: Tensor) -> Tensor:
        """NLL of each task at its best learning rate, (tasks,), behind a progress bar.

        Those of two samplers differ by the sampler alone.

        Args: as of `score`.

        Raises:
            ValueError: as `score`.
        """
        from meta_tasks.progress import progress  # tqdm comes when a bar is shown

        bar = progress(self.configs, desc=f"held-out tasks, {rule.name}", unit="task")
        return torch.tensor(self._best(rule, weights, configs=bar)[0])[:, 0]

    def _best(
        self,
        rule: SamplerRule,
        weights: Tensor | None,
        schedule: Schedule | None = None,
        lrs: Sequence[float] | None = None,
        configs: Iterable[TaskConfig] | None = None,
    ) -> tuple[list[tuple[float, float]], float]:
        """NLL and error of each task at its best lr, and the share of the runs that failed."""
        lrs = self.lrs if lrs is None else lrs
        schedule = self._schedule(rule) if schedule is None else schedule
        weights = torch.zeros(0) if weights is None else weights
        best, failed = [], 0
        for number, config in enumerate(self.configs if configs is None else configs):
            nll, accuracy = self._run(rule, weights, schedule, number, config, lrs)
            failed += int(nll.isnan().sum())
            best.append(min(self._mean(*of_lr) for of_lr in zip(nll, accuracy, strict=True)))
        return best, failed / (len(self.configs) * len(lrs) * self.chains)

    def _run(
        self,
        rule: SamplerRule,
        weights: Tensor,
        schedule: Schedule,
        number: int,
        config: TaskConfig,
        lrs: Sequence[float],
    ) -> tuple[Tensor, Tensor]:
        """NLL and accuracy of every chain at every learning rate, (lrs, chains)."""
        keys = ("held-out", self.seed, number)
        tasks = [self.family.make(replace(config, lr=lr), *keys) for lr in lrs]
        of_run = rule.for_run(schedule.steps, *keys)
        seeds = tuple(derive_seed(*keys, chain) for chain in range(self.chains))
        nll, accuracy = torch.empty(2, len(lrs), self.chains, dtype=torch.float64)
        runs = [Run(task, of_run, seeds) for task in tasks]
        for numbers, unroll in unrolls_of(runs, BMALoss, schedule, members_per_group=1):
            unroll.advance(weights.expand(len(unroll.parameter), -1))
            objective = unroll.objective
            assert isinstance(objective, BMALoss)
            nll[numbers] = unroll.losses().view(-1, self.chains)
            accuracy[numbers] = objective.accuracy().cpu().view(-1, self.chains)
        return nll, accuracy

    def _mean(self, nll: Tensor, accuracy: Tensor) -> tuple[float, float]:
        """Mean NLL and error of the chains; infinity and 1 if one of them failed."""
        if nll.isnan().any():
            return float("inf"), 1.0
        return nll.mean().item(), 1 - accuracy.mean().item()

    def baselines(self) -> dict[str, Score]:
        """SGHMC, pSGLD and cyclical SGMCMC (over SGHMC, exploration ratio 0.8, two states of each of samples/2 cycles).

        The grid of pSGLD, whose learning rates are on the scale of RMSprop's, is a twentieth of the others'.
        """
        schedule, lrs = self._cyclical(), self.baseline_lrs
        assert schedule.cycle_length is not None
        cyclical = CyclicalRule(schedule.cycle_length, _EXPLORATION)
        runs: list[tuple[SamplerRule, Schedule]] = [
            (rule, self._schedule(rule, _BURN_IN)) for rule in (SGHMCRule(), PSGLDRule())
        ]
        return {rule.name: self.score(rule, schedule=steps, lrs=lrs) for rule, steps in [*runs, (cyclical, schedule)]}

    def specification(self) -> dict[str, Any]:
        """Plain values that fix the scores, for checkpoints."""
        return {
            "steps": self.steps,
            "burn_in": self.burn_in,
            "samples": self.samples,
            "tasks": len(self.configs),
            "chains": self.chains,
            "lrs": list(self.lrs),
            "baseline_lrs": list(self.baseline_lrs),
            "seed": self.seed,
            "split": _SPLIT,
        }


class EarlyStopping:
    """Keeps the weights with the lowest held-out NLL, and says when they were the last for too long.

    They are kept whatever the patience, which a resumed run may change.

    Args:
        patience: evaluations in a row without a lower NLL after which the training ends; 0 for never.

    Attributes:
        weights: with the lowest held-out NLL so far; None before the first evaluation.
        score: theirs, see `HeldOutEvaluation.record`.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.weights: Tensor | None = None
        self.score: Mapping[str, Any] | None = None

    @property
    def result(self) -> Tensor | None:
        """The weights that a training with this patience has to show; None for its last ones."""
        return self.weights if self.patience else None

    def look(self, scores: Mapping[str, Any], weights: Tensor) -> None:
        """Take the weights that the last of the scores is of, if its NLL is lower than that of those kept.

        Args:
            scores: see `HeldOutEvaluation.record`.
            weights: copied.
        """
        last = scores["sampler"][-1]
        if self.score is None or last["nll"] < self.score["nll"]:
            self.score, self.weights = last, weights.detach().clone()

    def over(self, scores: Mapping[str, Any]) -> bool:
        """True if ``patience`` evaluations have passed since that of the weights kept."""
        if not self.patience or self.score is None:
            return False
        return sum(score["iteration"] > self.score["iteration"] for score in scores["sampler"]) >= self.patience

    def card(self) -> dict[str, Any]:
        """For the weight card, which of the iterations the weights are of; nothing with patience 0."""
        if not self.patience or self.score is None:
            return {}
        return {"patience": self.patience, "best_iteration": self.score["iteration"]}

    def state_dict(self) -> dict[str, Any]:
        """The weights and their score, for checkpoints."""
        return {"weights": self.weights, "score": self.score}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.weights, self.score = saved["weights"], saved["score"]
