"""The numbers of a comparison's runs, the columns of its tables, and the notes above them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from experiments.harness.runs.result import Result
from experiments.harness.study import Measure, Run
from experiments.harness.tables import finished, markdown
from learned_samplers import metrics

#: Beside the tables, whichever of them there are; tables are named by what their header holds.
NOTES = """Mean ± standard deviation over seeds. Setting: learning rate, momentum decay a, temperature T, exploration
ratio, the share of burn-in, the final lr as a share of the first, or an optimizer's weight decay as a prior's precision
λ, chosen by validation NLL: a balanced choice at the smallest budget, its best again at the larger ones. NLL in nats,
ECE in 15 bins; KLD: mean divergence between the predictions of two samples; ESS/s: effective sample size of a chain's
log-probability of the true label, the median over test images, per second of the run; cR̂ < 1.1: share of the weights
whose chain agrees between its two halves (1,000 weights of a run), and of each layer's in a table of their own; seconds
of training and collecting.
The table with tries: the settings that were tuned over, each on every tuning seed; median and worst seed; difference of
the NLL to the first row's at the same seed (same initial weights and minibatches), ± its standard error over seeds;
AUROC: of telling the data set from the test images by the largest probability, or by the mutual information of the
samples' predictions; entropy: of the predictions on it, in nats; agreement: share of the test images with the
reference's most probable class; total variation: half the sum of the probabilities' absolute differences, the mean.
The table with temperatures: after burn-in, of all weights; medians over all pairs of samples, on validation images (of
rows that are tuned of the first seed alone): barrier of the loss on the line between the two, and between neighbours,
cosine of their weights less those at the start, disagreement of the most probable class, and ambiguity: the mean loss
of the two less that of their average.
With HMC among the rows, or a reference, predictions are compared with it; with HMC, with its chains of other seeds."""
SCORES = (
    *(Measure(key, heading, 4) for key, heading in (("accuracy", "accuracy"), ("nll", "NLL"), ("ece", "ECE"))),
    Measure("brier", "Brier", 4),
    Measure("single_nll", "NLL of a sample", 4),
    Measure("kld", "KLD", 4),
    Measure("ess", "ESS", 1),
    Measure("ess_per_second", "ESS/s", 2),
    Measure("converged", "cR̂ < 1.1", 3),
    Measure("seconds", "seconds", 1),
    Measure("num_samples", "samples", 0, of=statistics.fmean),
    Measure("gradients", "gradients", 0, of=statistics.fmean),
)
#: How far predictions are from a reference's: of each number its column's heading, and the function of both.
DISTANCES = {
    "agreement": ("agreement with the reference", metrics.agreement),
    "total_variation": ("total variation", metrics.total_variation),
}
ROBUST = (
    Measure("tries", "tries", 0, of=max),
    Measure("nll", "median NLL", 4, of=statistics.median),
    Measure("nll", "worst NLL", 4, of=max),
    Measure("difference", "difference", 4, error=True),
    *(Measure(key, heading, 4) for key, (heading, _) in DISTANCES.items()),
)
#: Of an out-of-distribution data set: the key in `Result.ood`, and its column's heading.
OOD = {"auroc": "AUROC {}", "information_auroc": "AUROC {}, information", "mean_entropy": "entropy {} [nats]"}
#: Of pairs of samples, the medians of `Result.modes`.
PAIRS = (
    Measure("barrier", "barrier [nats]", 4),
    Measure("near_barrier", "of neighbours", 4),
    Measure("cosine", "cosine", 3),
    Measure("disagreement", "disagreement", 4),
    Measure("ambiguity", "ambiguity [nats]", 4),
    Measure("kl", "KL [nats]", 3),
)
HEALTH = (*(Measure(f"{name} T", f"{name} T", 3) for name in ("kinetic", "configurational")), *PAIRS)


def out_of_distribution(names: Sequence[str]) -> list[Measure]:
    """Columns of some out-of-distribution data sets."""
    return [Measure(heading.format(name), heading.format(name), 3) for name in names for heading in OOD.values()]


def numbers(result: Result, *, convergence: bool) -> Run:
    """Numbers of a run by the keys of the columns, those that exist."""
    values: Run = {"kld": result.pairwise_kld, "seconds": result.seconds, "num_samples": result.num_samples}
    values |= {"gradients": result.gradient_evaluations, "ess_per_second": result.ess_per_second}
    values["ess"] = result.ess if result.is_chain else None
    if result.ambiguity is not None and result.scores:
        values["single_nll"] = result.scores["nll"] + result.ambiguity
    if convergence and result.converged:
        values["converged"] = result.converged["all"]
    values |= {OOD[key].format(name): value for name, scores in result.ood.items() for key, value in scores.items()}
    values |= {f"{name} T": means["all"] for name, means in result.mean_temperatures.items()}
    values |= {measure.key: (result.modes or {}).get(measure.key) for measure in PAIRS}
    return {**result.scores, **{key: value for key, value in values.items() if value is not None}}


def layers(runs: dict[str, list[Result]]) -> str:
    """Table of the share of each layer's weights with cR̂ < 1.1, a column a chain, the mean over seeds; or nothing."""
    shares = {name: [run.converged for run in finished(results) if run.converged] for name, results in runs.items()}
    chains = {name: list(by_seed) for name, by_seed in shares.items() if by_seed}
    rows = [
        {"cR̂ < 1.1 of the layer": layer}
        | {name: f"{statistics.fmean(share[layer] for share in by_seed):.3f}" for name, by_seed in chains.items()}
        for layer in next(iter(chains.values()), [{}])[0]
        if layer != "all"
    ]
    return markdown(rows) if rows else ""
