"""Thompson sampling on contextual bandits, with posteriors by f-SVGD, bootstrap and SGHMC.

    python tools/bandits.py                                       # 5,000 rounds: about a quarter of an hour of one core
    python tools/bandits.py --problem mushroom --method fsvgd sghmc --seeds 1
    python tools/bandits.py --preset paper                        # 40,000 rounds, larger networks: hours

Mushrooms (data root: mushroom/agaricus-lepiota.data; left out, with a line that says so, where the file is missing) and
the wheel with several radii. A network predicts what every arm pays; in every round a member of the posterior is drawn,
and the arm that it thinks best is taken. What counts is the cumulative regret in percent of that of uniform choice.

Under --out: table.md, results.json, figure.png, every run (an interrupted command goes on where it was) and TensorBoard
curves.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from experiments.bandits.posteriors import METHODS, Budget, History, Posterior
from experiments.bandits.problems import Bandit, mushroom, read_mushrooms, wheel
from experiments.common.checks import check_at_least_one
from experiments.common.figure import new_figure
from experiments.common.kept import kept
from experiments.common.output import command_line, counted, write_outputs
from experiments.images.report import markdown, spread
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

#: The wheel's radii δ by the problem's name.
WHEELS = {f"wheel_{delta}": delta for delta in (0.5, 0.7, 0.9, 0.95, 0.99)}
#: For each kind of problem by what rewards are divided before the network sees them, and the standard deviation of the
#: noise that the likelihood assumes, in units of the reward. The wheel's own, .01, is too small to learn from.
SCALES = {"mushroom": (10.0, 1.0), "wheel": (50.0, 5.0)}
#: What the f-SVGD poster reports after 40,000 rounds; it does not say for which wheel.
PUBLISHED = {
    "mushroom": {"fsvgd": "4.39 ± 0.39", "bootstrap": "2.71 ± 0.22"},
    "wheel": {"fsvgd": "7.54 ± 0.41", "bootstrap": "42.16 ± 7.80"},
}
PRESETS = {
    "cpu": Budget(),
    "paper": Budget(contexts=40_000, members=20, hidden=(100, 100)),
}
POINTS = 200  # of a regret curve that are kept


@dataclass(frozen=True)
class Options:
    """Thompson sampling on contextual bandits, with posteriors by f-SVGD, bootstrap and SGHMC.

    Raises:
        ValueError: an argument out of range, by name and value.
    """

    # A whole budget. Options given beside it take their place.
    preset: Literal[*PRESETS] = "cpu"
    # Problems to play.
    problem: tuple[Literal["mushroom", *WHEELS], ...] = ("mushroom", *WHEELS)
    # Posteriors to play them with.
    method: tuple[Literal[*METHODS], ...] = tuple(METHODS)
    # Rounds, networks and training.
    budget: Annotated[Budget, tyro.conf.OmitArgPrefixes] = field(default_factory=Budget)
    # Pay every reward's expectation, without noise: what is lost to learning luck by heart.
    expected_rewards: bool = False
    # First seed: of the rounds, the networks and the choices.
    seed: int = 0
    # Number of seeds, counted up from --seed.
    seeds: int = 3
    # CPU threads of torch.
    threads: int = 1
    # Folder of the data files; by default the one that LEARNED_SAMPLERS_DATA names, else ~/.cache/learned_samplers.
    data: str | None = None
    # Folder for the results; by default one under runs/.
    out: Path | None = None

    def __post_init__(self) -> None:
        check_at_least_one(self, "seeds", "threads")
        for name in ("problem", "method"):
            if not getattr(self, name) or len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ValueError(f"{name} must hold names, each once, got {getattr(self, name)}")

    def folder(self) -> Path:
        suffix = "_expected" if self.expected_rewards else ""
        return self.out or Path("runs") / f"bandits_{self.preset}{suffix}"


def play(
    bandit: Bandit, make: Callable[..., Posterior], budget: Budget, scale: float, noise: float, seed: int
) -> Tensor:
    """The arms that Thompson sampling chooses, (n,).

    Args:
        bandit: its rounds.
        make: the posterior, one of `METHODS`.
        budget: of training.
        scale, noise: see `SCALES`.
        seed: of the networks, the minibatches and the choices.
    """
    rounds, arms = bandit.expected.shape
    generator = torch.Generator().manual_seed(seed)
    posterior = make(bandit.contexts, arms, noise / scale, budget, generator)
    history = History(bandit.contexts)
    chosen = torch.zeros(rounds, dtype=torch.long)
    first = min(budget.initial_pulls * arms, rounds)
    # Between two updates the posterior does not change, so that these rounds are played at once.
    for start, end in pairwise([0, *range(first, rounds, budget.interval), rounds]):
        now = torch.arange(end) % arms if start == 0 else posterior.choose(bandit.contexts[start:end])
        chosen[start:end] = now
        history.add(now, bandit.rewards[start:end].gather(1, now[:, None])[:, 0] / scale)
        posterior.update(history)
    return chosen


class Runs:
    """Every method on every problem."""

    def __init__(self, options: Options):
        self.options = options
        self.problems = list(options.problem)
        self.mushrooms: tuple[Tensor, Tensor] | None = None
        if "mushroom" in self.problems:
            try:
                self.mushrooms = read_mushrooms(options.data)
            except FileNotFoundError as error:
                print(f"left out: {error}", file=sys.stderr)
                self.problems.remove("mushroom")
        if not self.problems:
            raise ValueError("no problem is left")

    def bandit(self, problem: str, seed: int) -> Bandit:
        generator = torch.Generator().manual_seed(seed)
        rounds = self.options.budget.contexts
        if problem == "mushroom":
            assert self.mushrooms is not None
            bandit = mushroom(*self.mushrooms, rounds, generator)
        else:
            bandit = wheel(WHEELS[problem], rounds, generator)
        return replace(bandit, rewards=bandit.expected) if self.options.expected_rewards else bandit

    def run(self, problem: str, method: str, seed: int) -> dict[str, Any]:
        """``relative_regret`` in percent after ``rounds``, ``arms``: how often each was taken, and ``seconds``."""
        budget, (scale, noise) = self.options.budget, SCALES[problem.partition("_")[0]]
        name = f"{problem}_{method}_seed{seed}"

        def make() -> dict[str, Any]:
            bandit, start = self.bandit(problem, seed), time.perf_counter()
            # Another stream than that of the rounds.
            arms = play(bandit, METHODS[method][1], budget, scale, noise, seed + 10_000)
            seconds = time.perf_counter() - start
            curve = bandit.relative_regret(arms)
            rounds = torch.linspace(1, len(curve), min(POINTS, len(curve))).round().long()
            with SummaryWriter(str(self.options.folder() / "tensorboard" / name)) as writer:
                for at in rounds.tolist():
                    writer.add_scalar(f"relative_regret/{problem}", curve[at - 1], at)
            counts = arms.bincount(minlength=bandit.expected.shape[1])
            return {
                "rounds": rounds.tolist(),
                "relative_regret": curve[rounds - 1].tolist(),
                "arms": counts.tolist(),
                "seconds": seconds,
            }

        settings = {
            "problem": problem, "method": method, "seed": seed, "scale": scale, "noise": noise, **asdict(budget),
        }  # fmt: skip
        if self.options.expected_rewards:
            settings["expected_rewards"] = True
        return kept(self.options.folder() / "runs" / f"{name}.json", settings, make)

    def all(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Problem → method → its runs, one a seed."""
        options = self.options
        runs: dict[str, dict[str, list[dict[str, Any]]]] = {p: {m: [] for m in options.method} for p in self.problems}
        with tqdm(total=len(self.problems) * len(options.method) * options.seeds, mininterval=1) as bar:
            for seed in range(options.seed, options.seed + options.seeds):
                for problem in self.problems:
                    for method in options.method:
                        bar.set_description(f"{problem}, {METHODS[method][0]}, seed {seed}")
                        runs[problem][method].append(self.run(problem, method, seed))
                        bar.update()
        return runs


def title(problem: str) -> str:
    return f"wheel, δ = {WHEELS[problem]}" if problem in WHEELS else problem


def table(runs: dict[str, dict[str, list[dict[str, Any]]]]) -> list[dict[str, str]]:
    """A row a problem: the methods' relative regrets after the last round, and what is published."""
    rows = []
    for problem, methods in runs.items():
        row = {"problem": title(problem)}
        for method, results in methods.items():
            row[METHODS[method][0]] = spread([r["relative_regret"][-1] for r in results], 2)
        published = PUBLISHED[problem.partition("_")[0]]
        row["published"] = ", ".join(f"{METHODS[m][0]} {text}" for m, text in published.items())
        rows.append(row)
    return rows


def figure(path: Path, runs: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    """A panel a problem: relative regret against rounds, the mean over seeds and its standard deviation."""
    columns = min(3, len(runs))
    rows = -(-len(runs) // columns)
    fig = new_figure(3.6 * columns + 0.3, 2.9 * rows + 0.5)
    axes = fig.subplots(rows, columns, squeeze=False).flatten()
    colours = dict(zip(METHODS, ("#D55E00", "#0072B2", "#009E73", "0.5"), strict=True))
    for ax, (problem, methods) in zip(axes, runs.items()):
        for method, results in methods.items():
            curves = torch.tensor([r["relative_regret"] for r in results])
            # The first pulls are the same for all; before one of them costs anything there is nothing on this axis.
            begun = int((curves > 0).all(0).int().argmax())
            curves, x = curves[:, begun:], results[0]["rounds"][begun:]
            mean = curves.mean(0)
            ax.plot(x, mean, color=colours[method], label=METHODS[method][0])
            if len(results) > 1:
                std = curves.std(0)
                low = (mean - std).clamp_min(1)
                ax.fill_between(x, low, mean + std, color=colours[method], alpha=0.2, linewidth=0)
        ax.set(title=title(problem), yscale="log", ylim=(1, 200), xlabel="rounds", ylabel="regret, % of uniform")
        ax.set_yticks((1, 2, 5, 10, 20, 50, 100, 200), minor=False)
        ax.set_yticks((), minor=True)
        ax.yaxis.set_major_formatter("{x:g}")
        ax.grid(True, color="0.9", linewidth=0.8)
        ax.set_axisbelow(True)
    for ax in axes[len(runs) :]:
        ax.remove()
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    fig.savefig(path, dpi=110)


def parse(arguments: Sequence[str] | None) -> Options:
    """The options; those of the preset are the defaults of the others."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", default="cpu")
    name = first.parse_known_args(arguments)[0].preset
    default = Options()
    if name in PRESETS:
        default = replace(default, preset=name, budget=PRESETS[name])
    return tyro.cli(Options, args=arguments, default=default, description=__doc__)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    try:
        options = parse(arguments)
        experiment = Runs(options)
    except ValueError as error:
        sys.exit(f"error: {error}")
    torch.set_num_threads(options.threads)
    out = options.folder()
    out.mkdir(parents=True, exist_ok=True)
    try:
        runs = experiment.all()
    except KeyboardInterrupt:
        sys.exit(f"interrupted; finished runs are kept in {out}, the same command goes on from there")
    command = command_line("bandits", arguments)
    text = markdown(table(runs))
    note = (
        f"cumulative regret after {options.budget.contexts:,} rounds in % of uniform choice, mean ± standard deviation "
        f"over {counted(options.seeds, 'seed')}{', rewards without noise' if options.expected_rewards else ''}; "
        "published: after 40,000 rounds"
    )
    settings = {"budget": asdict(options.budget), "scales": SCALES, "expected_rewards": options.expected_rewards}
    write_outputs(out, command, f"{text}\n\n{note}", {"settings": settings, "runs": runs})
    figure(out / "figure.png", runs)
    print(f"\n{text}\n\n{note}\nwritten to {out}; TensorBoard: {sys.executable} -m tensorboard.main --logdir {out}")


if __name__ == "__main__":
    main()
