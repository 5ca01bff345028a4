"""Declaration of the bandits: Thompson sampling by every method on every problem."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from experiments.bandits.posteriors import INITIAL_PULLS, METHODS, Budget, History, Posterior
from experiments.bandits.problems import Bandit, mushroom, read_mushrooms, wheel
from experiments.harness.figures import grid_lines, new_figure
from experiments.harness.options import DataOptions, RunOptions, names_once, one_of
from experiments.harness.output import counted
from experiments.harness.run_store import RunStore, fingerprint
from experiments.harness.study import Experiment, Findings, Job, Measure, Stores

POINTS = 200  # of a regret curve that are kept
#: Radii δ of the wheel by the problem's name.
WHEELS = {f"wheel_{delta}": delta for delta in (0.5, 0.7, 0.9, 0.95, 0.99)}
#: Divisor of the rewards that the network sees, and the standard deviation of the noise that the likelihood assumes, in
#: units of the reward. The wheel's own noise, 0.01, is too small to learn from.
SCALES = {"mushroom": (10.0, 1.0), "wheel": (50.0, 5.0)}


@dataclass(frozen=True)
class BanditOptions(DataOptions, RunOptions):
    """Thompson sampling on contextual bandits, with posteriors by f-SVGD, bootstrap and SGHMC."""

    problem: tuple[Annotated[str, one_of(("mushroom", *WHEELS))], ...] = ("mushroom", *WHEELS)  # Problems to play.
    # Posteriors for Thompson sampling, in any letter case.
    method: tuple[Annotated[str, one_of(METHODS)], ...] = tuple(METHODS)
    # Rounds, networks and training.
    budget: Annotated[Budget, tyro.conf.OmitArgPrefixes] = field(default_factory=Budget)
    out: Path = Path("runs/bandits")  # Folder of the runs, the table, the results and the figure.

    def __post_init__(self) -> None:
        super().__post_init__()
        names_once(self, "problem", "method")


def play(
    bandit: Bandit, make: Callable[..., Posterior], budget: Budget, scale: float, noise: float, seed: int
) -> Tensor:
    """Arms that Thompson sampling chooses, (n,)."""
    rounds, arms = bandit.expected.shape
    generator = torch.Generator().manual_seed(seed)
    posterior = make(bandit.contexts, arms, noise / scale, budget, generator)
    history = History(bandit.contexts)
    chosen = torch.zeros(rounds, dtype=torch.long)
    first = min(INITIAL_PULLS * arms, rounds)
    # Between two updates the posterior does not change, so that these rounds are played at once.
    for start, end in pairwise([0, *range(first, rounds, budget.interval), rounds]):
        now = torch.arange(end) % arms if start == 0 else posterior.choose(bandit.contexts[start:end])
        chosen[start:end] = now
        history.add(now, bandit.rewards[start:end].gather(1, now[:, None])[:, 0] / scale)
        posterior.update(history)
    return chosen


class Bandits(Experiment):
    """Relative regret of every method on every problem; rounds are the same for all methods of a seed."""

    measures = (Measure("regret", "cumulative regret in % of uniform choice", 2),)
    matrix, seeds_first = True, True

    def __init__(self, options: BanditOptions) -> None:
        super().__init__(options)
        self.mushrooms = read_mushrooms(options.data) if "mushroom" in options.problem else None
        self.note = (
            f"{options.budget.contexts:,} rounds, mean ± standard deviation over {counted(options.seeds, 'seed')}"
        )

    def problems(self) -> Sequence[str]:
        return self.options.problem

    def methods(self, problem: str) -> Sequence[str]:
        return self.options.method

    def data(self, problem: str) -> str | None:
        return fingerprint(self.mushrooms) if problem == "mushroom" and self.mushrooms is not None else None

    def made_of(self, job: Job) -> dict[str, Any]:
        return {"scales": SCALES[job.problem.partition("_")[0]], **asdict(self.options.budget)}

    def bandit(self, problem: str, seed: int) -> Bandit:
        """Rounds of a problem."""
        generator, rounds = torch.Generator().manual_seed(seed), self.options.budget.contexts
        if problem == "mushroom":
            assert self.mushrooms is not None
            return mushroom(*self.mushrooms, rounds, generator)
        return wheel(WHEELS[problem], rounds, generator)

    def run(self, job: Job, store: RunStore) -> dict[str, Any]:
        """Relative regret in % after ``rounds``, and how often each arm was taken."""
        scales, start = SCALES[job.problem.partition("_")[0]], time.perf_counter()
        bandit = self.bandit(job.problem, job.seed)
        # Another stream than that of the rounds.
        arms = play(bandit, METHODS[job.method], self.options.budget, *scales, job.seed + 10_000)
        curve = bandit.relative_regret(arms)
        rounds = torch.linspace(1, len(curve), min(POINTS, len(curve))).round().long()
        return {
            "regret": curve[-1].item(),
            "rounds": rounds.tolist(),
            "relative_regret": curve[rounds - 1].tolist(),
            "arms": arms.bincount(minlength=bandit.expected.shape[1]).tolist(),
            "seconds": time.perf_counter() - start,
        }

    def figure(self, path: Path, findings: Findings, store: Stores) -> None:
        """Draw a panel a problem: relative regret against rounds, the mean over seeds and its standard deviation."""
        width = min(3, len(findings.runs))
        height = -(-len(findings.runs) // width)
        fig = new_figure(3.6 * width + 0.3, 2.9 * height + 0.5)
        axes = fig.subplots(height, width, squeeze=False).flatten()
        colours = dict(zip(METHODS, ("#D55E00", "#0072B2", "#009E73"), strict=True))
        for ax, (problem, methods) in zip(axes, findings.runs.items()):
            for method, runs in methods.items():
                curves = torch.tensor([run["relative_regret"] for run in runs])
                # The first pulls are the same for all; before one of them costs anything this axis shows nothing.
                begun = int((curves > 0).all(0).int().argmax())
                x, mean, std = runs[0]["rounds"][begun:], curves.mean(0)[begun:], curves.std(0, correction=0)[begun:]
                ax.plot(x, mean, color=colours[method], label=method)
                band = {"color": colours[method], "alpha": 0.2, "linewidth": 0}
                ax.fill_between(x, (mean - std).clamp_min(1), mean + std, **band)
            ax.set(title=problem, yscale="log", ylim=(1, 200), xlabel="rounds", ylabel="regret, % of uniform")
            ticks = (1, 2, 5, 10, 20, 50, 100, 200)
            ax.set_yticks(ticks, [str(tick) for tick in ticks])
            ax.minorticks_off()
            grid_lines(ax)
        for ax in axes[len(findings.runs) :]:
            ax.remove()
        handles, labels = axes[0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 2 * width))
        fig.savefig(path, dpi=110)
