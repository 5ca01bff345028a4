"""The runs that rows of the L2E paper share: their commands, scales, and cells of their tables."""

from __future__ import annotations

from experiments.papers.rows import Cell

COMPARE = "python tools/compare.py --preset"
FRESH = "--keep 3 --weight-decays 0 --seed 20 --seeds 6 --sampler SGHMC PSGLD CyclicalSGMCMC L2E --l2e-network l2e"
CIFAR = ("CIFAR-10, seeds 20 to 25", "5000 gradients")
FASHION = ("Fashion-MNIST, seeds 20 to 25", "5000 gradients")
# As the paper tunes: learning rates by one seed, then three seeds.
TUNED = "--tries 6 --extensions 0 --tune-seeds 1 --l2e-network l2e --device cuda"
FULL = f"{COMPARE} cifar10_full {TUNED}"
META = (
    "--family digits --feature-set adaptive --hidden 16 16 --pairs 8 --sigma .02 --learning-rate .005 --averaging .95 "
    "--horizon 200 200 --evaluate-every 0 --iterations 100"
)
PAPER = "python tools/meta_train.py --folder runs/paper --family paper --horizon 3000 3000 --pairs 1 --device cuda"
GPU = "The full presets want a GPU; CIFAR-100 and Tiny-ImageNet were not at hand (their loaders are tested)."
SMALL_CIFAR = "16×16 pixels, a CNN of two convolutions, 5,000 minibatches of 64, six seeds"


def fresh(under: tuple[str, str], sampler: str, column: str) -> Cell:
    return Cell("compare_fresh_seeds", under, sampler, column)


NT = (
    f"{COMPARE} mnist_nt --budgets 300 --tries 8 --grid 4 --extensions 2 --tune-seeds 2 --seeds 3 "
    "--sampler SGHMC MetaSGMCMC L2E KineticL2E --l2e-network l2e"
)


def nt(sampler: str, table: str = "compare_mnist_nt_learned") -> Cell:
    return Cell(table, ("300 gradients",), sampler, "NLL")


def af(sampler: str) -> Cell:
    return nt(sampler, "compare_mnist_nt_af_learned")


def data(sampler: str) -> Cell:
    return nt(sampler, "compare_mnist_nt_data_learned")


CHAINS = (
    f"{COMPARE} digits --tries 4 --grid 4 --extensions 1 --keep 1 --tune-seeds 2 --seeds 3 --validations 20 "
    "--convergence --layers --plane --sampler SGHMC CyclicalSGMCMC L2E KineticL2E DeepEnsemble --l2e-network l2e"
)
DIGITS = "The digits, an MLP of three layers, 2,000 gradients, three seeds; five settings tried at 400, two at 2,000"


def chain(row: str, column: str) -> Cell:
    return Cell("compare_digits_chains", ("2000 gradients",), row, column)


GONG = (
    f"{COMPARE} cifar10_gong --size 16 --budgets 300 --tries 3 --grid 3 --extensions 0 --tune-seeds 1 --seeds 2 "
    "--sampler SGHMC MetaSGMCMC L2E --l2e-network l2e"
)
GONG_SCALE = "16×16 pixels, 300 minibatches of 500 (3.7 epochs), three settings tried, two seeds"


def gong(sampler: str, column: str) -> Cell:
    return Cell("compare_cifar10_gong", ("300 gradients",), sampler, column)


MEASURES = (
    f"{COMPARE} cifar10 --budgets 1000 --tries 2 --grid 2 --extensions 0 --tune-seeds 1 --seeds 2 --weight-decays 0 "
    "--ood photos --reference cifar10_test_probs.npy --corruptions --corruption-images 100 --convergence --plane "
    "--sampler SGHMC CyclicalSGMCMC L2E DeepEnsemble --l2e-network l2e"
)
MEASURES_SCALE = "16×16 pixels, a CNN of two convolutions, 1,000 minibatches of 64, two settings tried, two seeds"


def measures(column: str, *names: str, heading: str = "") -> tuple[tuple[str, Cell], ...]:
    """A column of that run's tables for some methods; the heading stands before the first."""
    cells = ((name, Cell("compare_cifar10_tables", ("1000 gradients",), name, column)) for name in names)
    called = {"CyclicalSGMCMC": "cyclical SGMCMC", "DeepEnsemble": "deep ensemble"}
    return tuple(
        (f"{heading} {called.get(name, name)}" if name == names[0] else called.get(name, name), cell)
        for name, cell in cells
    )
