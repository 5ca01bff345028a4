"""The numbers of one iteration (`Iteration`), their TensorBoard log (`Monitor`), and what a run is warned of."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.optional import require
from meta_tasks.estimators.base import JobResult
from meta_tasks.training.evaluation import Score

__all__ = ["Iteration", "Monitor", "ZeroGradients"]


@dataclass
class Iteration:
    """Numbers of one iteration of the outer loop, for the log.

    Attributes:
        number: iterations done so far, this one included.
        loss: mean of the finite meta-losses.
        median_loss: their median.
        gradient_norm: Euclidean norm of the meta-gradient before it is clipped.
        mean_difference: mean of L(φ + η) − L(φ − η); NaN without pairs.
        rms_difference: root mean square of the same.
        failed: members that became non-finite.
        member_steps_per_second: speed of all processes together.
        results: of the jobs.
    """

    number: int
    loss: float
    median_loss: float
    gradient_norm: float
    mean_difference: float
    rms_difference: float
    failed: int
    member_steps_per_second: float
    results: list[JobResult]

    @classmethod
    def of(
        cls, results: list[JobResult], losses: Tensor, *, number: int, gradient_norm: float, seconds: float
    ) -> Iteration:
        """From the jobs' results, their meta-losses side by side, and the seconds that they took."""
        # Only perturbations come in pairs.
        differences = losses[losses.isfinite().all(1)].diff(dim=1).neg().flatten()
        return cls(
            number=number,
            loss=losses.nanmean().item(),
            median_loss=losses.nanmedian().item(),
            gradient_norm=gradient_norm,
            mean_difference=differences.mean().item() if len(differences) else math.nan,
            rms_difference=differences.square().mean().sqrt().item() if len(differences) else math.nan,
            failed=sum(result.failed for result in results),
            member_steps_per_second=sum(result.member_steps for result in results) / seconds,
            results=results,
        )


def _for_the_log(write: Callable[..., None]) -> Callable[..., None]:
    """A disk that is full or gone ends the log, and not the training, whose checkpoints say so themselves."""

    @functools.wraps(write)
    def guarded(self: Monitor, *args: Any, **kwargs: Any) -> None:
        if self._ended:
            return
        try:
            write(self, *args, **kwargs)
        except OSError as error:
            self._ended = True
            warnings.warn(f"the TensorBoard log ends here, the run goes on: {error}", stacklevel=3)

    return guarded


class Monitor:
    """Writes a run's losses, scores and figures to TensorBoard files in a folder.

    Where one cannot be written (the disk is full, or gone), that is warned of, and no more is logged.

    Args:
        folder: of the run.
        start: iteration at which the run starts or is resumed; what an earlier process logged beyond it is dropped.
    """

    def __init__(self, folder: Path, start: int) -> None:
        require("tensorboard", "meta")
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        self._ended = False
        self._writer = SummaryWriter(str(folder), purge_step=start + 1)

    @_for_the_log
    def iteration(self, done: Iteration) -> None:
        """Losses (overall and by kind of task), gradient, failures, speed, output scales and inner curves."""
        add, number = self._writer.add_scalar, done.number
        values: dict[str, list[float]] = {
            "meta_loss/all": [done.loss],
            "meta_loss/median": [done.median_loss],
            "gradient/norm": [done.gradient_norm],
            "gradient/mean_loss_difference": [done.mean_difference],
            "gradient/rms_loss_difference": [done.rms_difference],
            "inner_loop/failed_members": [done.failed],
            "inner_loop/member_steps_per_second": [done.member_steps_per_second],
        }
        for result in done.results:
            for kind, losses in zip(result.kinds, result.losses.chunk(len(result.kinds)), strict=True):
                values.setdefault(f"meta_loss/{kind}", []).append(losses.nanmean().item())
            for name, value in result.scales.items():
                values.setdefault(f"output_scale/{name}", []).append(value)
        for name, numbers in values.items():
            add(name, torch.tensor(numbers, dtype=torch.float64).nanmean(), number)
        if done.number % 10 == 1 and any(map(any, done.results[0].curves.values())):
            from matplotlib.figure import Figure

            figure = Figure(figsize=(5, 3), layout="constrained")
            axes = figure.add_subplot(xlabel="stretch of the inner loop", ylabel="minibatch NLL (nats)", yscale="log")
            for result in done.results:
                for kind, curve in result.curves.items():
                    axes.plot(curve, label=kind)
            if len(axes.lines) <= 12:  # more leave no room for the axes
                axes.legend(fontsize="x-small")
            self._writer.add_figure("inner_loop/curves", figure, number)

    @_for_the_log
    def evaluation(self, iteration: int, score: Score, baselines: dict[str, dict[str, float]]) -> None:
        """The held-out score beside the baselines'."""
        for name, values in {"sampler": asdict(score), **baselines}.items():
            self._writer.add_scalar(f"held_out_nll/{name}", values["nll"], iteration)
            self._writer.add_scalar(f"held_out_accuracy/{name}", values["accuracy"], iteration)
        self._writer.add_scalar("held_out_nll/failed_share", score.share_failed, iteration)
        self._writer.flush()

    @_for_the_log
    def figures(self, iteration: int, figures: dict[str, Any]) -> None:
        """matplotlib figures of the rule's network, by name."""
        for name, figure in figures.items():
            self._writer.add_figure(f"network/{name}", figure, iteration)

    @_for_the_log
    def close(self) -> None:
        """Write what is buffered, and close the log."""
        self._writer.close()


class ZeroGradients:
    """Warns once where the meta-gradient is exactly 0 for several iterations in a row: nothing is learned then."""

    LIMIT = 3

    def __init__(self) -> None:
        self._in_a_row = 0

    def see(self, done: Iteration) -> None:
        """Count an iteration."""
        self._in_a_row = self._in_a_row + 1 if done.gradient_norm == 0 else 0
        if self._in_a_row == self.LIMIT:
            warnings.warn(
                f"the meta-gradient was exactly 0 in {self.LIMIT} iterations in a row ({done.failed} runs failed in "
                "the last): nothing is learned where all fail, where every output of the sampler is clipped, or where "
                "none has an effect, as with alpha_scale=0 and beta_scale=0",
                stacklevel=3,
            )
