"""The rows of the experiment, its runs, and what is measured of their samples."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from experiments.harness.methods import one_of
from experiments.harness.options import DataOptions, RunOptions
from experiments.harness.runs.measures import common_start
from experiments.harness.runs.methods import METHODS
from experiments.harness.runs.result import Result
from experiments.harness.runs.runner import Runs, predictions, store_for
from experiments.harness.runs.settings import Settings
from experiments.harness.tables import markdown, spread
from learned_samplers import diagnostics, metrics

LINES = 1000  # of the pairs of samples, and images
IMAGES = 1000
CONTROL = "SGHMC, steps as long as L2E's"
#: Columns: what is measured, its heading, decimals.
COLUMNS = (
    ("nll", "NLL", 4),
    ("single_nll", "NLL of a sample", 4),
    ("accuracy", "accuracy", 4),
    ("ece", "ECE", 3),
    ("barrier", "barrier [nats]", 3),
    ("near_barrier", "of neighbours", 3),
    ("cosine", "cosine", 3),
    ("disagreement", "disagreement", 4),
    ("kl", "KL", 3),
    ("ambiguity", "ambiguity [nats]", 4),
    ("converged", "cR̂ < 1.1", 3),
    ("ess", "ESS", 1),
    ("agreement", "agreement with HMC", 4),
    ("total_variation", "total variation", 4),
)


@dataclass(frozen=True)
class Row:
    """A method of the harness, with its learning rate (None: its own), the name of a learned sampler's weights, and how
    many times the budget it has."""

    method: str
    lr: float | None = None
    network: str | None = None
    times: int = 1

    def settings(self, settings: Settings) -> Settings:
        networks = settings.networks if self.network is None else (f"{self.method}={self.network}",)
        return replace(settings, networks=networks, steps=self.times * (settings.steps or 0))

    def rate(self, settings: Settings) -> float:
        return METHODS[self.method].rate(self.settings(settings)) if self.lr is None else self.lr


def _protocol(per_epoch: int, epochs: int, burn_in: int, samples: int, **own: Any) -> Settings:
    cycles: dict[str, Any] = dict(cycles=epochs // 50, burn_in_cycles=burn_in // 50, num_samples=samples)
    return Settings(
        steps=epochs * per_epoch, burn_in=burn_in / epochs, ensemble_size=samples, temperature=1.0, **cycles, **own
    )


FASHION: dict[str, Any] = dict(dataset="fashion_mnist", model="cnn", channels=16, depth=1, batch_size=128)
SETTINGS = {
    "digits": _protocol(
        *(12, 6200, 1200, 100), model="mlp", hidden=(50,), prior_precision=3.0, leapfrog_steps=30, ood=("photos",)
    ),
    "fashion": _protocol(
        *(421, 600, 100, 10),
        **FASHION,
        prior_precision=27.0,
        ood=("mnist", "notmnist"),
    ),
}
#: In the order in which they are run.
ROWS: dict[str, dict[str, Row]] = {
    "digits": {
        "SGHMC": Row("SGHMC", 0.05),
        "CyclicalSGMCMC": Row("CyclicalSGMCMC", 0.07),
        "L2E": Row("L2E"),
        "AdaptedL2E": Row("AdaptedL2E", 0.003),
        "CyclicalAdaptedL2E": Row("CyclicalAdaptedL2E", 0.003),
        "AdaptedWhitenedSGHMC": Row("AdaptedWhitenedSGHMC"),
        # The harness counts a gradient of all data as those of an epoch of minibatches.
        "HMC": Row("HMC", 0.03, times=12),
        "DeepEnsemble": Row("DeepEnsemble", 0.15),
        CONTROL: Row("SGHMC"),
        "L2EPaper": Row("L2EPaper"),
        "CyclicalL2E": Row("CyclicalL2E"),
        "L2E, network l2e": Row("L2E", 0.005, "l2e"),
        "WhitenedSGHMC": Row("WhitenedSGHMC", 0.0006),
        "MetaSGMCMC": Row("MetaSGMCMC", 0.015),
        "KineticL2E": Row("KineticL2E", 0.015),
        "AdaptedSGHMC": Row("AdaptedSGHMC", 0.009),
        "PSGLD": Row("PSGLD"),
        "BAOA": Row("BAOA", 0.05),
        "SGLD": Row("SGLD"),
        "SGLRW": Row("SGLRW"),
        "SGNHT": Row("SGNHT"),
        "EntropyMCMC": Row("EntropyMCMC"),
        "MCLMC": Row("MCLMC"),
        "L2E, network l2e-sparse": Row("L2E", network="l2e-sparse"),
    },
    "fashion": {
        "SGHMC": Row("SGHMC", 0.1),
        "CyclicalSGMCMC": Row("CyclicalSGMCMC", 0.2),
        "L2E": Row("L2E"),
        "AdaptedL2E": Row("AdaptedL2E"),
        "CyclicalAdaptedL2E": Row("CyclicalAdaptedL2E"),
        "AdaptedWhitenedSGHMC": Row("AdaptedWhitenedSGHMC"),
        "L2EPaper": Row("L2EPaper", 0.05),
        "DeepEnsemble": Row("DeepEnsemble", 0.1),
        CONTROL: Row("SGHMC"),
    },
}
SEEDS = {"digits": 6, "fashion": 3}


@dataclass(frozen=True)
class ExploreOptions(DataOptions, RunOptions):
    """Does it explore? Long chains, the barriers between their samples, and what these know."""

    # digits (minutes a chain) or fashion (half an hour and more).
    part: Annotated[str, one_of(SETTINGS)] = "digits"
    # Rows to run, by default all; the table has those that are finished.
    rows: tuple[str, ...] = ()
    # Gradients of every run, in the place of the protocol's. (For trying the command.)
    steps: int | None = None

    def chosen(self) -> dict[str, Row]:
        """The rows, in the order in which they are run.

        Raises:
            ValueError: one is not known.
        """
        known = ROWS[self.part]
        if unknown := set(self.rows) - known.keys():
            raise ValueError(f"rows must be of {'; '.join(known)}, got {', '.join(sorted(unknown))}")
        return {name: known[name] for name in known if name in (self.rows or known)}

    def settings(self) -> Settings:
        settings = SETTINGS[self.part]
        return settings if self.steps is None else replace(settings, steps=self.steps)


class Experiment:
    """The runs of one part, one seed of every row first."""

    def __init__(self, options: ExploreOptions) -> None:
        self.options, self.settings = options, options.settings()
        self.data = self.settings.load_data(options.data)
        ood = self.settings.load_ood(options.data, self.data, self.settings.ood)
        assert options.out is not None
        self.store = store_for(options.out, self.data, ood, fresh=options.fresh)
        self.runs = Runs(self.data, ood, self.store)
        self.found: dict[str, list[dict[str, Any]]] = {}
        #: Test predictions of a row's seed.
        self.predicted: dict[tuple[str, int], torch.Tensor] = {}

    def all(self) -> Iterator[str]:
        """Make every run that is not there, and give the table after each."""
        rows = self.options.chosen()
        for seed in self.options.seed_list():
            for name, row in rows.items():
                self.found.setdefault(name, []).append(self.one(name, row, seed))
                self.compare_with_hmc()
                yield table(self.found)

    def one(self, name: str, row: Row, seed: int) -> dict[str, Any]:
        """The numbers of one run."""
        settings, lr = row.settings(self.settings), row.rate(self.settings)
        if name == CONTROL:
            lr = self.control_rate()
        result = self.runs.run(settings, row.method, lr, seed, title=f"{name}, seed {seed}")
        if result.diverged is not None:
            return {"lr": lr, "diverged": result.diverged}
        made_of = {**result.made_of, "row": name}
        numbers = self.store.run(f"explored_{result.name}", made_of, lambda: self.measured(result, settings))
        numbers["ece"] = result.scores["ece"]
        self.predicted[name, seed] = predictions(result, self.store.folder)["test"].double()
        return {"lr": lr, "diverged": None, **numbers}

    def measured(self, result: Result, settings: Settings) -> dict[str, Any]:
        """What the samples of a run are like."""
        samples = self.runs.samples(result, settings)
        independent = METHODS[result.method].averaging == "ensemble"
        origin = common_start(settings, self.data, result.seed, independent=independent)
        x, y = self.data.test_x[:IMAGES], self.data.test_y[:IMAGES]
        found = diagnostics.exploration(samples, x, y, origin=origin, max_lines=LINES)
        near = found.by_separation()
        ambiguity = metrics.ambiguity(samples.predict_samples(self.data.test_x), self.data.test_y)
        numbers: dict[str, Any] = found.summary() | {
            "nll": result.scores["nll"],
            "accuracy": result.scores["accuracy"],
            "single_nll": result.scores["nll"] + ambiguity,
            "ambiguity": ambiguity,
            "near_barrier": next((each["barrier"] for each in near.values() if np.isfinite(each["barrier"])), None),
            "by_separation": {f"{k:g}": {n: v for n, v in each.items() if v == v} for k, each in near.items()},
            "seconds": result.seconds,
            "samples": len(samples),
        }
        if result.is_chain:
            numbers |= {"ess": result.ess, "converged": diagnostics.converged_share(samples)}
        for name, each in result.ood.items():
            numbers |= {f"auroc {name}": each["auroc"], f"information {name}": each.get("information_auroc")}
        return numbers

    def control_rate(self) -> float:
        """SGHMC's rate at which its steps would be as long as L2E's: ‖Δθ‖² of a settled chain grows as the rate."""
        rows, lengths = ROWS[self.options.part], []
        for name in ("SGHMC", "L2E"):
            own, first = rows[name].settings(self.settings), self.options.seed
            result = self.runs.run(own, rows[name].method, rows[name].rate(self.settings), first, title=name)
            written = EventAccumulator(self.store.board(result.name))
            written.Reload()
            curve = [each.value for each in written.Scalars("chain/squared_step")]
            lengths.append(statistics.fmean(curve[len(curve) // 2 :]))
        return float(f"{rows['SGHMC'].rate(self.settings) * lengths[1] / lengths[0]:.2g}")

    def compare_with_hmc(self) -> None:
        """Agreement and total variation of every run, with the average over HMC's chains of the other seeds."""
        for name, runs in self.found.items():
            for seed, numbers in zip(self.options.seed_list(), runs):
                others = [p for (row, each), p in self.predicted.items() if row == "HMC" and each != seed]
                if (name, seed) in self.predicted and others:
                    test, reference = self.predicted[name, seed], torch.stack(others).mean(0)
                    numbers["agreement"] = metrics.agreement(test, reference)
                    numbers["total_variation"] = metrics.total_variation(test, reference)


def explores(row: Mapping[str, float], cyclical: Mapping[str, float], sghmc: Mapping[str, float]) -> bool:
    """The criterion of the protocol."""
    far = row["barrier"] > 0.1 and cyclical["barrier"] < 0.02
    return far and row["single_nll"] <= 1.05 * sghmc["single_nll"]


def table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A row a sampler, the mean ± standard deviation over its seeds."""
    good = {name: [each for each in runs if each["diverged"] is None] for name, runs in found.items()}
    keys = ["single_nll", "barrier"]
    means = {n: {k: statistics.fmean(each[k] for each in runs) for k in keys} for n, runs in good.items() if runs}
    others = sorted({key for runs in good.values() for each in runs for key in each if " " in key})
    columns = (*COLUMNS, *((key, f"AUROC, {key}" if key.startswith("auroc") else key, 3) for key in others))
    rows = []
    for name, runs in found.items():
        cells = {"method": name, "lr": f"{runs[0]['lr']:g}", "seeds": f"{len(good[name])} of {len(runs)}"}
        for key, heading, decimals in columns:
            cells[heading.removeprefix("AUROC, auroc ")] = spread(
                [each[key] for each in good[name] if each.get(key) is not None], decimals
            )
        compared = means.keys() >= {name, "CyclicalSGMCMC", "SGHMC"}
        verdict = compared and explores(means[name], means["CyclicalSGMCMC"], means["SGHMC"])
        rows.append({**cells, "explores": ("yes" if verdict else "no") if compared else "–"})
    return markdown(rows)
