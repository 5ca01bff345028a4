"""The outer loop of meta-training: `Trainer`, with Adam, a running average, checkpoints, logs and evaluation.

The trainer knows no sampler and no task by name. All of its state is the meta-parameters, Adam's moments, the number
of iterations, the log, and the unrolls that an estimator keeps; everything random follows from (seed, iteration, pair).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from learned_samplers.base import validation
from meta_tasks.estimators import Estimator, Evaluator, Job, JobResult
from meta_tasks.rules.base import SamplerRule
from meta_tasks.tasks.family import TaskFamily
from meta_tasks.training.checkpoint import Checkpoints, check_same
from meta_tasks.training.evaluation import EarlyStopping, HeldOutEvaluation
from meta_tasks.training.monitoring import Iteration, Monitor, ZeroGradients
from meta_tasks.training.process import Stopped, StopSignals, default_device_cpu, of_first_rank
from meta_tasks.training.settings import TrainerSettings
from meta_tasks.training.workers import Executor, SerialExecutor

__all__ = ["Trainer"]


class Trainer:
    """A meta-training run: Adam on a sampler's meta-parameters φ, with gradients from an estimator.

        φ ← Adam(φ, clip(estimate of ∇L)),    φ̄ ← d·φ̄ + (1 − d)·φ

    `run` trains; `weights` is φ. The result is `averaged`, φ̄, or with ``settings.patience`` the φ̄ that did best on
    the held-out tasks: `result`.

    Args:
        family, rule, estimator: what to train on, what to train, how to estimate its gradient.
        settings: of the outer loop.
        folder: of the run: checkpoints and TensorBoard logs; None keeps nothing. Checkpoints found there are resumed;
            of several ranks, all continue from what the first one finds, for another machine's folder may be its own.
        make_executor: makes what evaluates the jobs; one after the other in this process by default.
        evaluation: on held-out tasks; None leaves it out.
        main: whether this process writes checkpoints and logs (of several ranks, one does). It locks the folder until
            `close`, or the end of the process.

    Raises:
        RuntimeError: another run is writing to the folder; says which process on which host.
        ValueError: the folder's checkpoints are of another sampler, family, estimator or setting, or of other data,
            held-out tasks or dtype (says which and how they differ), or the held-out runs are too short for their
            states.
    """

    @default_device_cpu()
    def __init__(
        self,
        family: TaskFamily,
        rule: SamplerRule,
        estimator: Estimator,
        settings: TrainerSettings,
        *,
        folder: Path | None = None,
        make_executor: Callable[[Evaluator], Executor] = SerialExecutor,
        evaluation: HeldOutEvaluation | None = None,
        main: bool = True,
    ) -> None:
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
        self.stopping = EarlyStopping(settings.patience)
        if settings.patience and (evaluation is None or not settings.evaluate_every):
            raise ValueError(f"patience={settings.patience} counts evaluations on held-out tasks, and there are none")
        # Whether weights and unrolls are of one and the same iteration, and which one was saved last.
        self._consistent, self._saved_at = True, 0
        self._zeros = ZeroGradients()
        #: Context in which the first signal abandons an iteration.
        self._interruptible: Callable[[], AbstractContextManager[None]] = nullcontext
        if evaluation is not None and settings.evaluate_every:
            evaluation.check(rule)
        self.checkpoints = Checkpoints(folder, settings.keep_checkpoints) if folder is not None else None
        saved = of_first_rank(self._open)
        try:
            # What the checkpoints are of; a family says the names of its data sets alone.
            self._data = {} if folder is None else family.data_fingerprints()
            if saved is not None:
                self._restore(saved)  # before any process is started, so that a wrong folder costs nothing
            self.executor = make_executor(estimator.evaluator(family, rule, settings.objective, settings.seed))
            if saved is not None:
                self.executor.load_state_dict(saved["unrolls"], self._jobs())
            self.monitor = Monitor(folder, self.iteration) if folder is not None and main else None
        except BaseException:
            self._release()
            raise

    def _open(self) -> dict[str, Any] | None:
        """Lock the folder, where this process writes to it, and read its newest checkpoint."""
        if self.checkpoints is None:
            return None
        if self.main:
            self.checkpoints.lock()
        try:
            return self.checkpoints.load()
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.release()

    def _jobs(self) -> list[Job]:
        return self.estimator.jobs(self.settings.seed, self.iteration)

    def specification(self) -> dict[str, Any]:
        """Plain values that fix the result of the run: sampler, family, estimator, outer loop."""
        return {
            "sampler": self.rule.specification(),
            "tasks": self.family.specification(),
            "estimator": self.estimator.specification(),
            "outer_loop": self.settings.outer_loop,
        }

    @property
    def result(self) -> torch.Tensor:
        """The meta-parameters that the run has to show, see the class."""
        best = self.stopping.result
        return self.averaged if best is None else best

    # ---------------------------------------------------------------- running

    @default_device_cpu()
    def run(self, minutes: float | None = None, progress: bool = False) -> str:
        """Iterate until all iterations are done, the time is up, or Ctrl-C (or SIGTERM); saves at the end.

        A signal abandons the iteration that is running, and what was before it is saved; of several ranks, which go in
        step, the iteration is finished. Where an iteration fails, those before it are saved, if nothing that they need
        was lost with it; the error says.

        Args:
            minutes: bound on the time of this call (≥ 0); the iteration that is running is finished.
            progress: whether to show a progress bar.

        Returns:
            "finished", "time is up", "interrupted", or where patience ran out, that.
        """
        if minutes is not None:
            validation.non_negative("minutes", minutes)
        from meta_tasks.progress import progress as progress_bar  # tqdm comes when a bar is shown

        bar = progress_bar(total=self.settings.iterations, initial=self.iteration, disable=not progress, unit="it")
        saving = "stopping: the iterations before this one are saved; a second Ctrl-C ends at once"
        with StopSignals(saving if self.main else "") as signals, bar:
            if not self.executor.collective:
                self._interruptible = signals.interruptible
            try:
                return self._iterate(minutes, signals, bar)
            except Stopped:
                return "interrupted"
            except Exception as failure:
                failure.add_note(self._save_after_failure())
                raise
            finally:
                self._interruptible = nullcontext

    def _iterate(self, minutes: float | None, signals: StopSignals, bar: Any) -> str:
        started = saved = time.monotonic()
        while self.iteration < self.settings.iterations:
            now = time.monotonic()
            over = minutes is not None and now - started >= 60 * minutes
            due = self.iteration > self._saved_at and now - saved > 60 * self.settings.checkpoint_minutes
            # The clocks and signals of several ranks differ; all do what the first one decides.
            reasons = {
                f"no better after {self.settings.patience} evaluations: stopped": self.stopping.over(self.scores),
                "interrupted": bool(signals.received),
                "time is up": over,
            }
            *ends, due = self.executor.agree((*reasons.values(), due))
            for reason, holds in zip(reasons, ends):
                if holds:
                    self._save()
                    return reason
            if due:
                self._save()
                saved = now
            if self._unscored():
                self._report()
            done = self.step()
            bar.set_postfix(loss=f"{done.loss:.3f}", steps_per_s=f"{done.member_steps_per_second:.0f}")
            bar.update()
            self._report()
        self._save()
        return "finished"

    @default_device_cpu()
    def step(self) -> Iteration:
        """Take one outer iteration: estimate the meta-gradient, clip it, let Adam move the meta-parameters.

        Raises:
            RuntimeError: an iteration before it failed, and the unrolls that this one would continue are gone.
        """
        if not self._consistent:
            raise RuntimeError(
                "an iteration of this Trainer failed, and the unrolls that it would go on with are gone: make a new "
                "Trainer of the same folder, which goes on from the last checkpoint"
            )
        started = time.monotonic()
        jobs = self._jobs()
        results = self._run(jobs)
        losses = torch.cat([result.losses for result in results])
        gradient = self.estimator.estimate(self.settings.seed, jobs, results, len(self.weights))
        norm = gradient.norm().item()
        limit = self.settings.max_gradient_norm
        if limit is not None and norm > limit:
            gradient = gradient * (limit / norm)
        gradient = gradient.to(self.weights.dtype)
        self._consistent = False
        if not bool(gradient.isfinite().all()):  # in the moments of Adam it would stay for ever
            warnings.warn(
                f"the meta-gradient of iteration {self.iteration} is not finite in {gradient.dtype} (its norm is "
                f"{norm:g}): no step is taken. max_gradient_norm bounds it, or a limit of the shaping",
                stacklevel=2,
            )
        elif norm > 0:  # no pair counted, or the rule has no effect yet: Adam's moments stay as they are
            self.weights.grad = gradient
            self.optimizer.step()
            with torch.no_grad():
                self.weights.copy_(self.rule.constrained(self.weights))
        self.averaged.lerp_(self.weights.detach(), 1 - self.settings.averaging)
        self.iteration += 1
        elapsed = time.monotonic() - started
        self.seconds += elapsed
        done = Iteration.of(results, losses, number=self.iteration, gradient_norm=norm, seconds=elapsed)
        for key in ("loss", "median_loss", "gradient_norm", "rms_difference", "failed", "member_steps_per_second"):
            self.history.setdefault(key, []).append(float(getattr(done, key)))
        self._consistent = True
        if self.monitor is not None:
            self.monitor.iteration(done)
        if self.main:
            self._zeros.see(done)
        return done

    def _run(self, jobs: list[Job]) -> list[JobResult]:
        """The jobs' results; where a signal abandons them, the iterations before them are saved."""
        keeps = _keeps_unrolls(jobs)
        may_stop = self._interruptible is not nullcontext
        before = self.executor.state_dict() if keeps and may_stop and self.checkpoints is not None else {}
        # Unrolls that continue move with the jobs: if these fail, what is left of them belongs to no iteration.
        self._consistent = not keeps
        try:
            with self._interruptible():
                return self.executor.run(jobs, self.weights.detach())
        except Stopped:
            self.executor.abandon()
            self._write(before)
            raise

    def _unscored(self) -> bool:
        """True if a score is due that no run has computed, at the start or where a signal came before it."""
        scored = any(score["iteration"] == self.iteration for score in self.scores.get("sampler", ()))
        return self.iteration == 0 or (self._evaluates() and not scored)

    def _evaluates(self) -> bool:
        every = self.settings.evaluate_every
        return self.evaluation is not None and self.main and every > 0 and self.iteration % every == 0

    def _report(self) -> None:
        """Held-out score and figures, each where it is due."""
        draw = self.settings.figures_every
        if self.evaluation is not None and self._evaluates():
            try:
                with self._interruptible():
                    score = self.evaluation.record(self.scores, self.rule, self.averaged, self.iteration)
            except Stopped:
                self._save()
                raise
            self.stopping.look(self.scores, self.averaged)
            if self.monitor is not None:
                self.monitor.evaluation(self.iteration, score, self.scores["baselines"])
        if self.monitor is not None and draw and self.iteration % draw == 0:
            self.monitor.figures(self.iteration, self.rule.figures(self.averaged))

    def close(self) -> None:
        """End worker processes and the log, and let others write to the folder."""
        self.executor.close()
        if self.monitor is not None:
            self.monitor.close()
        self._release()

    # ---------------------------------------------------------------- checkpoints

    def _save(self) -> None:
        if not self._consistent:
            return  # `step` refuses to go on, and what is left belongs to no iteration
        self._write(self.executor.state_dict())  # every rank takes part in this one

    def _save_after_failure(self) -> str:
        """Save the last completed iteration if its state is whole; says in words what was done."""
        if self.checkpoints is None or not self.main:
            return "this process keeps no checkpoints"
        keeps = _keeps_unrolls(self._jobs())
        # An executor that has failed may have other answers waiting, and the other ranks do not answer at all.
        if not self._consistent or (keeps and self.executor.collective):
            return "not saved since the last checkpoint: the unrolls that it would go on with are gone"
        if self.iteration == self._saved_at:
            return f"nothing to save since iteration {self.iteration}"
        try:
            self._write(self.executor.state_dict() if keeps else {})
        except Exception as error:
            return f"and the run could not be saved: {type(error).__name__}: {error}"
        return f"saved after iteration {self.iteration}"

    def _write(self, unrolls: dict[int, Any]) -> None:
        if self.checkpoints is None or not self.main:
            return
        payload = {
            "specification": self.specification(),
            "data": self._data,
            "weights": self.weights.detach(),
            "averaged": self.averaged,
            "best": self.stopping.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "seconds": self.seconds,
            "history": self.history,
            "scores": self.scores,
            "unrolls": unrolls,
        }
        self.checkpoints.save(self.iteration, payload)
        self._saved_at = self.iteration

    def _restore(self, saved: dict[str, Any]) -> None:
        folder = "the first rank's folder" if self.checkpoints is None else str(self.checkpoints.folder)
        specification = saved["specification"]
        if specification["sampler"]["sampler"] == self.rule.name:
            specification = {**specification, "sampler": self.rule.current(specification["sampler"])}
        check_same(specification, self.specification(), folder)
        check_same({"dtype": str(saved["weights"].dtype)}, {"dtype": str(self.weights.dtype)}, folder)
        if self.evaluation is not None and (of := saved["scores"].get("specification")) is not None:
            check_same({"held_out": of}, {"held_out": self.evaluation.specification()}, folder)
        if self.checkpoints is not None:
            check_same({"data": saved["data"]}, {"data": self._data}, folder)
        with torch.no_grad():
            self.weights.copy_(saved["weights"])
            self.averaged.copy_(saved["averaged"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.iteration, self.seconds = saved["iteration"], saved["seconds"]
        self.history, self.scores = saved["history"], saved["scores"]
        self.stopping.load_state_dict(saved["best"])
        self._saved_at = self.iteration


def _keeps_unrolls(jobs: Iterable[Job]) -> bool:
    """True if any of the jobs is a part of an unroll that later ones continue."""
    return any(job.slot is not None for job in jobs)
