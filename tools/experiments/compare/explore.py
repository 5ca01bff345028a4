"""Do samplers explore? The L2E paper's protocol, at a size for a CPU. Written down before the first run:

*Digits*: 808 training images, an MLP with 50 hidden units, T = 1, prior N(0, 1/3), minibatches of 64; 6,200 epochs
(74,400 gradients) a run, of which 1,200 are burn-in, then 100 samples 50 epochs apart; cycles of 50 epochs, one sample
at the end of each; HMC with as many full gradients; an ensemble of 100 networks that share them; six seeds.

*Fashion-MNIST*: one convolution of 16 channels at 28×28, T = 1, prior N(0, 1/27), minibatches of 128; 600 epochs
(252,600 gradients), of which 100 are burn-in, then ten samples 50 epochs apart; cycles of 50 epochs; an ensemble of
ten; three seeds; out of distribution MNIST and notMNIST.

Learning rates are those of version 0.x on the same network (chosen there by validation NLL), else a method's own;
nothing is chosen here. Barriers, divergences and disagreement are of test images (at most 1,000), over 1,000 lines
drawn from the pairs of 100 samples, over all pairs of ten. Predictions are compared with the average over HMC's chains
of the other seeds. (Until 27 November 2026 HMC had a twelfth of its gradients, by the harness's count.)

**The criterion**: a sampler *explores* if the median barrier over all pairs of its samples is above 0.1 nats where that
of cyclical SGMCMC is below 0.02, while a sample alone has an NLL within 5 % of that of a sample of `SGHMC` (or below).
**The control**: `SGHMC` at the rate at which its steps are as long (‖Δθ‖², over the second half of the first seed's
run) as those of `L2E`, which was measured with commit 3bd4aa08.

To be deleted when the reports quote no numbers of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.harness.runs.methods import Row
from experiments.harness.runs.settings import Settings

CONTROL = "SGHMC, steps as long as L2E's"


def _protocol(
    per_epoch: int, epochs: int, burn_in: int, samples: int, **settings: Any
) -> tuple[Settings, tuple[int, ...]]:
    cycles: dict[str, Any] = dict(cycles=epochs // 50, burn_in_cycles=burn_in // 50, num_samples=samples, lines=1000)
    posterior: dict[str, Any] = dict(burn_in=burn_in / epochs, ensemble_size=samples, temperature=1.0)
    return Settings(**posterior, **cycles, **settings), (epochs * per_epoch,)


DIGITS = _protocol(
    *(12, 6200, 1200, 100), model="mlp", hidden=(50,), prior_precision=3.0, leapfrog_steps=30, ood=("photos",)
)
_FASHION: dict[str, Any] = dict(dataset="fashion_mnist", model="cnn", channels=16, depth=1, batch_size=128)
FASHION = _protocol(*(421, 600, 100, 10), **_FASHION, prior_precision=27.0, ood=("mnist", "notmnist"))

#: In the order in which they are run; rates that are not given are a method's own.
DIGITS_ROWS: dict[str, Row] = {
    "SGHMC": Row("SGHMC", 0.05),
    "CyclicalSGMCMC": Row("CyclicalSGMCMC", 0.07),
    "L2E": Row("L2E", 0.001),
    "AdaptedL2E": Row("AdaptedL2E", 0.003),
    "CyclicalAdaptedL2E": Row("CyclicalAdaptedL2E", 0.003),
    "AdaptedWhitenedSGHMC": Row("AdaptedWhitenedSGHMC", 0.003),
    # The harness counts a gradient of all data as those of an epoch of minibatches.
    "HMC": Row("HMC", 0.03, times=12),
    "DeepEnsemble": Row("DeepEnsemble", 0.15),
    CONTROL: Row("SGHMC", 0.00099),
    "L2EPaper": Row("L2EPaper", 0.02),
    "CyclicalL2E": Row("CyclicalL2E", 0.001),
    "L2E, network l2e": Row("L2E", 0.005, changes={"networks": ("L2E=l2e",)}),
    "WhitenedSGHMC": Row("WhitenedSGHMC", 0.0006),
    "MetaSGMCMC": Row("MetaSGMCMC", 0.015),
    "KineticL2E": Row("KineticL2E", 0.015),
    "AdaptedSGHMC": Row("AdaptedSGHMC", 0.009),
    "PSGLD": Row("PSGLD", 0.003),
    "BAOA": Row("BAOA", 0.05),
    "SGLD": Row("SGLD", 0.1),
    "SGLRW": Row("SGLRW", 0.1),
    "SGNHT": Row("SGNHT", 0.05),
    "EntropyMCMC": Row("EntropyMCMC", 0.1),
    "MCLMC": Row("MCLMC", 0.05),
    "L2E, network l2e-sparse": Row("L2E", 0.001, changes={"networks": ("L2E=l2e-sparse",)}),
}
FASHION_ROWS: dict[str, Row] = {
    "SGHMC": Row("SGHMC", 0.1),
    "CyclicalSGMCMC": Row("CyclicalSGMCMC", 0.2),
    "L2E": Row("L2E", 0.001),
    "AdaptedL2E": Row("AdaptedL2E", 0.003),
    "CyclicalAdaptedL2E": Row("CyclicalAdaptedL2E", 0.003),
    "AdaptedWhitenedSGHMC": Row("AdaptedWhitenedSGHMC", 0.003),
    "L2EPaper": Row("L2EPaper", 0.05),
    "DeepEnsemble": Row("DeepEnsemble", 0.1),
    CONTROL: Row("SGHMC", 0.2),
}


def explores(row: Mapping[str, float], cyclical: Mapping[str, float], sghmc: Mapping[str, float]) -> bool:
    """The criterion of the protocol."""
    far = row["barrier"] > 0.1 and cyclical["barrier"] < 0.02
    return far and row["single_nll"] <= 1.05 * sghmc["single_nll"]


def criterion(by_budget: Mapping[int, Mapping[str, Mapping[str, float]]]) -> str:
    """Rows that explore, by their means."""
    (means,) = by_budget.values()
    rows = {name: row for name, row in means.items() if {"barrier", "single_nll"} <= row.keys()}
    if not {"CyclicalSGMCMC", "SGHMC"} <= rows.keys():
        return ""
    names = [name for name, row in rows.items() if explores(row, rows["CyclicalSGMCMC"], rows["SGHMC"])]
    return f"By the criterion of the protocol explore: {', '.join(names) or 'none'}."
