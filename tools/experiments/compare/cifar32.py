"""CIFAR-10 at 32×32 at equal epochs. Protocol:

ResNet-20-FRN of width 16, 40,960 training images without augmentation, batch 80, prior N(0, 1/5) in every optimizer,
samplers at T = 0.1, pixels standardised. Three rates a method, by the NLL of the averaged prediction of the 9,040
validation images after five epochs; a row that derives from another one takes its rate. Fifty epochs in all for every
row: an ensemble's members, chains and cycles share them. Ten samples (or snapshots) of the last fifth are averaged, two
a chain or cycle. Scores are of the test images with an even index; the odd ones are closed until every row has its
second seed, and are then opened once (``--half odd``). With ``--reference`` predictions are compared with those of HMC.

The rows of reports/results.md were run by this protocol with commit 3bd4aa08; rows that are missing there come first.
A run of 50 epochs takes one to two hours of a CPU's core: with ``--state FOLDER`` it goes on from there after a stop.
"""

from __future__ import annotations

from typing import Any

from experiments.harness.runs.methods import Row
from experiments.harness.runs.settings import Settings

PER_EPOCH = 512  # minibatches
SETTINGS = Settings(
    dataset="cifar10",
    model="resnet20_frn",
    standardise=True,
    ood=("cifar100", "photos"),
    batch_size=80,
    temperature=0.1,
    prior_precision=5.0,
    burn_in=0.8,
    num_samples=10,
    cycles=5,
    exploration_ratio=0.8,
    ensemble_size=5,
    half="even",
    compiled=True,
)
BUDGETS = (50 * PER_EPOCH,)
_COLD: dict[str, Any] = {"temperature": 0.0}

ROWS: dict[str, Row] = {
    "AdaptedSGHMC(warmup=L2E), as it comes": Row("AdaptedL2EAsItComes"),
    "5 chains of AdaptedSGHMC(warmup=L2E)": Row("AdaptedL2EChains"),
    "5 networks by Shampoo": Row("ShampooEnsemble", rate_of="Shampoo, cosine"),
    "Shampoo, cosine": Row("Shampoo"),
    "SOAP, moving average": Row("SOAPEMA"),
    "L2E": Row("L2E"),
    "AdaptedSGHMC(warmup=WhitenedSGHMC)": Row("PlannedWhitenedSGHMC"),
    "Shampoo, trajectory": Row("ShampooAverage"),
    "SGHMC": Row("SGHMC"),
    "SGD, cosine": Row("SGD"),
    "5 networks by SGD": Row("DeepEnsemble", rate_of="SGD, cosine"),
    "AdaptedSGHMC(warmup=L2E) in cycles": Row("CyclicalAdaptedL2E", 0.003),
    "CyclicalSGMCMC": Row("CyclicalSGMCMC", rate_of="SGHMC"),
    "L2E in cycles": Row("CyclicalL2E", rate_of="L2E"),
    "Muon, trajectory": Row("MuonAverage"),
    "Adam, moving average": Row("AdamEMA"),
    "IVON": Row("IVON"),
    "AdaptedSGHMC(warmup=WhitenedSGHMC), T = 0": Row(
        "PlannedWhitenedSGHMC", rate_of="AdaptedSGHMC(warmup=WhitenedSGHMC)", changes=_COLD
    ),
    "L2E, T = 0": Row("L2E", rate_of="L2E", changes=_COLD),
    "SGHMC, T = 0": Row("SGHMC", rate_of="SGHMC", changes=_COLD),
}
#: Temperature, burn-in, friction and weight decay are the protocol's; rates alone are tuned.
OPTIONS: dict[str, Any] = dict(
    tune_budget=5 * PER_EPOCH,
    values=("temperature=0.1", "burn_in=0.8", "momentum_decay=0.1", "weight_decay=0.0001220703125", "final_lr=1"),
    **dict(tries=3, grid=3, extensions=0, tune_seeds=1, seed=1, seeds=2),
)
