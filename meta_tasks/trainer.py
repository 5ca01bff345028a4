"""Meta-training: composes a task family, a rule, an objective and an estimator, and owns everything around them.

The trainer knows no sampler and no task by name. All of its state is the meta-parameters, Adam's moments, the number
of iterations, the log, and the unrolls that an estimator keeps; everything random follows from (seed, iteration, pair).
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from meta_tasks.checkpoint import Checkpoints, check_same
from meta_tasks.estimators import Estimator, Job
from meta_tasks.evaluation import HeldOutEvaluation, Score
from meta_tasks.monitoring import Monitor
from meta_tasks.objectives import objective_named
from meta_tasks.rules import SamplerRule
from meta_tasks.task_family import TaskFamily
from meta_tasks.workers import Evaluator, Executor, JobResult, SerialExecutor

__all__ = ["Iteration", "Trainer", "TrainerSettings"]


@dataclass(frozen=True)
class TrainerSettings:
    """Settings of the outer loop; the defaults are the paper's where it states them.

    Args:
        iterations: outer iterations in all.
        learning_rate, beta1, beta2: of Adam on the meta-parameters.
        averaging: d of the running average of the meta-parameters, φ̄ ← d·φ̄ + (1−d)·φ after each iteration, which is
            what is evaluated and written out: it takes away most of the noise that the steps leave in φ. 0: φ itself.
        max_gradient_norm: the meta-gradient is scaled down to this Euclidean norm; None leaves it.
        seed: of everything.
        objective: "bma", "ce", or "stein_kl" for truncated back-propagation.
        checkpoint_minutes: minutes between checkpoints (0: after every iteration).
        keep_checkpoints: how many to keep.
        evaluate_every: iterations between evaluations on held-out tasks; 0 for none.

    Raises:
        ValueError: a value is out of range, or an unknown objective.
    """

    iterations: int = 1000
    learning_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    averaging: float = 0.98
    max_gradient_norm: float | None = 1.0
    seed: int = 0
    objective: str = "bma"
    checkpoint_minutes: float = 5.0
    keep_checkpoints: int = 3
    evaluate_every: int = 50

    def __post_init__(self) -> None:
        objective_named(self.objective)
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {self.iterations}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        if self.max_gradient_norm is not None and not self.max_gradient_norm > 0:
            raise ValueError(f"max_gradient_norm must be positive or None, got {self.max_gradient_norm}")
        if not 0 <= self.averaging < 1:
            raise ValueError(f"averaging must lie in [0, 1), got {self.averaging}")
        for name in ("checkpoint_minutes", "evaluate_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    @property
    def outer_loop(self) -> dict[str, Any]:
        """The settings that change the result, which a resumed run must share (it may run longer)."""
        free = ("iterations", "checkpoint_minutes", "keep_checkpoints", "evaluate_every")
        return {key: value for key, value in asdict(self).items() if key not in free}


@dataclass
class Iteration:
    """What one iteration showed: ``number`` of iterations done, mean and median finite meta-loss, norm of the raw
    gradient, mean and root mean square of L₊ − L₋, failed members, member-steps a second, and the jobs' results."""

    number: int
    loss: float
    median_loss: float
    gradient_norm: float
    mean_difference: float
    rms_difference: float
    failed: int
    member_steps_per_second: float
    results: list[JobResult]


class Trainer:
    """One meta-training run.

    Args:
        family, rule, estimator: what to train on, what to train, how to estimate its gradient.
        settings: of the outer loop.
        folder: of the run: checkpoints and TensorBoard logs; None keeps nothing. Checkpoints found there are resumed.
        make_executor: makes what evaluates the jobs; one after the other in this process by default.
        evaluation: on held-out tasks; None leaves it out.
        main: whether this process writes checkpoints and logs (of several ranks, one does).

    Raises:
        ValueError: the folder's checkpoints are of another sampler, family, estimator or setting; says which and how
            they differ.
    """

    def __init__(
        self, family: TaskFamily, rule: SamplerRule, estimator: Estimator, settings: TrainerSettings, *,
        folder: Path | None = None, make_executor: Callable[[Evaluator], Executor] = SerialExecutor,
        evaluation: HeldOutEvaluation | None = None, main: bool = True,
    ) -> None:  # fmt: skip
        self.family, self.rule, self.estimator, self.settings = family, rule, estimator, settings
        self.evaluation, self.main = evaluation, main
        self.weights = torch.nn.Parameter(rule.initial_weights(settings.seed))
        self.averaged = self.weights.detach().clone()
        self.optimizer = torch.optim.Adam(
            [self.weights], lr=settings.learning_rate, betas=(settings.beta1, settings.beta2)
        )
        self.iteration, self.seconds = 0, 0.0
        self.history: dict[str, list[float]] = {}
        self.scores: dict[str, Any] = {}
        self._interrupted = False
        self.checkpoints = Checkpoints(folder, settings.keep_checkpoints) if folder is not None else None
        saved = self.checkpoints.load() if self.checkpoints is not None else None
        evaluator = estimator.evaluator(family, rule, settings.objective, settings.seed)
        if saved is not None:
            self._restore(saved)  # before any process is started, so that a wrong folder costs nothing
        self.executor = make_executor(evaluator)
        if saved is not None:
            self.executor.load_state_dict(saved["unrolls"], self._jobs())
        self.monitor = Monitor(folder, self.iteration) if folder is not None and main else None

    def specification(self) -> dict[str, Any]:
        """Plain values that fix the result of the run: sampler, family, estimator, outer loop."""
        return {
            "sampler": self.rule.specification(), "tasks": self.family.specification(),
            "estimator": self.estimator.specification(), "outer_loop": self.settings.outer_loop,
        }  # fmt: skip

    def _jobs(self) -> list[Job]:
        return self.estimator.jobs(self.settings.seed, self.iteration)

    # ---------------------------------------------------------------- running

    def run(self, minutes: float | None = None, progress: bool = False) -> str:
        """Iterate until all iterations are done, the time is up, or Ctrl-C (or SIGTERM); saves at the end.

        Args:
            minutes: bound on the time of this call; the iteration that is running is finished.
            progress: whether to show a progress bar.

        Returns:
            "finished", "time is up" or "interrupted".
        """
        from tqdm import tqdm

        started = saved = time.monotonic()
        saved_at = self.iteration
        bar = tqdm(total=self.settings.iterations, initial=self.iteration, disable=not progress, unit="it")
        with self._signals(), bar:
            while self.iteration < self.settings.iterations:
                now = time.monotonic()
                # The clocks and signals of several ranks differ; all do what the first one decides.
                interrupted, over, save = self.executor.agree(
                    (
                        self._interrupted,
                        minutes is not None and now - started > 60 * minutes,
                        self.iteration > saved_at and now - saved > 60 * self.settings.checkpoint_minutes,
                    )
                )
                if interrupted or over:
                    self._save()
                    return "interrupted" if interrupted else "time is up"
                if save:
                    self._save()
                    saved, saved_at = now, self.iteration
                if self.iteration == 0:
                    self._evaluate()
                done = self.step()
                bar.set_postfix(loss=f"{done.loss:.3f}", steps_per_s=f"{done.member_steps_per_second:.0f}")
                bar.update()
                if self.settings.evaluate_every and self.iteration % self.settings.evaluate_every == 0:
                    self._evaluate()
        self._save()
        return "finished"

    def step(self) -> Iteration:
        """One outer iteration: estimate the meta-gradient, clip it, let Adam move the meta-parameters."""
        started = time.monotonic()
        jobs = self._jobs()
        results = self.executor.run(jobs, self.weights.detach())
        losses = torch.cat([result.losses for result in results])
        gradient = self.estimator.estimate(self.settings.seed, jobs, results, len(self.weights))
        norm = gradient.norm().item()
        if norm > 0:  # no pair counted, or the rule has no effect yet: Adam's moments stay as they are
            limit = self.settings.max_gradient_norm
            if limit is not None and norm > limit:
                gradient = gradient * (limit / norm)
            self.weights.grad = gradient.to(self.weights.dtype)
            self.optimizer.step()
        self.averaged.lerp_(self.weights.detach(), 1 - self.settings.averaging)
        self.iteration += 1
        elapsed = time.monotonic() - started
        self.seconds += elapsed
        # Only perturbations come in pairs.
        differences = losses[losses.isfinite().all(1)].diff(dim=1).neg().flatten()
        done = Iteration(
            number=self.iteration,
            loss=losses.nanmean().item(),
            median_loss=losses.nanmedian().item(),
            gradient_norm=norm,
            mean_difference=differences.mean().item() if len(differences) else math.nan,
            rms_difference=differences.square().mean().sqrt().item() if len(differences) else math.nan,
            failed=sum(result.failed for result in results),
            member_steps_per_second=sum(result.member_steps for result in results) / elapsed,
            results=results,
        )
        for key in ("loss", "median_loss", "gradient_norm", "rms_difference", "failed", "member_steps_per_second"):
            self.history.setdefault(key, []).append(float(getattr(done, key)))
        if self.monitor is not None:
            self.monitor.iteration(done)
        return done

    def _evaluate(self) -> None:
        if self.evaluation is None or not self.settings.evaluate_every or not self.main:
            return
        from tqdm import tqdm

        if "baselines" not in self.scores:
            tqdm.write("scoring the hand-designed samplers on held-out tasks, once, before the first iteration")
            self.scores["baselines"] = {name: asdict(each) for name, each in self.evaluation.baselines().items()}
        score = self.evaluation.score(self.rule, self.averaged)
        self.scores.setdefault("sampler", []).append({"iteration": self.iteration, **asdict(score)})
        others = ", ".join(f"{name} {each['nll']:.4f}" for name, each in self.scores["baselines"].items())
        tqdm.write(f"iteration {self.iteration}: held-out NLL {score.nll:.4f} ({others})")
        if self.monitor is not None:
            baselines = {name: Score(**each) for name, each in self.scores["baselines"].items()}
            self.monitor.evaluation(self.iteration, score, baselines, self.rule.figures(self.averaged))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run after the current iteration; a second Ctrl-C ends it at once."""

        def note(number: int, frame: Any) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True

        self._interrupted = False
        try:
            old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # only the main thread may set handlers
            old = {}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """End worker processes and the log."""
        self.executor.close()
        if self.monitor is not None:
            self.monitor.close()

    # ---------------------------------------------------------------- checkpoints

    def _save(self) -> None:
        unrolls = self.executor.state_dict()  # every rank takes part in this one
        if self.checkpoints is None or not self.main:
            return
        self.checkpoints.save(
            self.iteration,
            {
                "specification": self.specification(), "weights": self.weights.detach(), "averaged": self.averaged,
                "optimizer": self.optimizer.state_dict(), "seconds": self.seconds, "history": self.history,
                "scores": self.scores, "unrolls": unrolls,
            },
        )  # fmt: skip

    def _restore(self, saved: dict[str, Any]) -> None:
        assert self.checkpoints is not None
        check_same(saved["specification"], self.specification(), str(self.checkpoints.folder))
        with torch.no_grad():
            self.weights.copy_(saved["weights"])
            self.averaged.copy_(saved["averaged"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.iteration, self.seconds = saved["iteration"], saved["seconds"]
        self.history, self.scores = saved["history"], saved["scores"]
