"""One chain or several, beside ensembles: CIFAR-10 at 16×16 at equal gradients. Protocol:

A CNN of two convolutions on 5,000 images, minibatches of 50, prior N(0, 1/20) in every optimizer, samplers at T = 0.1.
A row's chains or networks share its budget: 5, 15 or 50 epochs. Chains are `AdaptedSGHMC(warmup=L2E)` as it comes, ten
samples in all. Networks have a cosine to zero; every row of them tries seven rates at 15 epochs on one seed of its own,
by the NLL of the validation images (three at first; for five rows the largest of them was the best). Scores are of
three further seeds.

The same with a ResNet: `--model resnet20_frn --width 8 --channels None --depth None`, rivals by Shampoo and SOAP alone.
"""

from __future__ import annotations

from typing import Any

from experiments.harness.runs.methods import Row
from experiments.harness.runs.settings import Settings

PER_EPOCH = 100  # minibatches
SETTINGS = Settings(
    dataset="cifar10",
    size=16,
    limit=5000,
    ood=("cifar100",),
    model="cnn",
    channels=8,
    depth=2,
    batch_size=50,
    temperature=0.1,
    prior_precision=20.0,
    num_samples=10,
    lines=1,
)
BUDGETS = (5 * PER_EPOCH, 15 * PER_EPOCH, 50 * PER_EPOCH)


def _several(what: str, method: str, *counts: int) -> dict[str, Row]:
    return {f"{count} {what}": Row(method, changes={"ensemble_size": count}) for count in counts}


ROWS: dict[str, Row] = {
    "1 chain": Row("AdaptedL2EAsItComes"),
    **_several("chains", "AdaptedL2EChains", 2, 3, 5, 10),
    "1 network by Shampoo": Row("Shampoo"),
    **_several("networks by Shampoo", "ShampooEnsemble", 3, 5),
    **_several("networks by Muon", "MuonEnsemble", 5),
    **_several("networks by SOAP", "SOAPEnsemble", 5),
    **_several("networks by SGD", "DeepEnsemble", 5),
    **_several("networks by Adam", "AdamEnsemble", 5),
}
#: Temperature, friction and weight decay are the protocol's; rates alone are tuned.
OPTIONS: dict[str, Any] = dict(
    tune_budget=BUDGETS[1],
    values=("temperature=0.1", "momentum_decay=0.1", "weight_decay=0.004", "final_lr=1"),
    **dict(tries=7, grid=7, extensions=0, tune_seeds=1, seed=1, seeds=3),
)
