"""Meta-SGMCMC (Gong et al., ICLR 2019), MT-SGD (Phan et al., NeurIPS 2022) and f-SVGD (Wang et al., ICLR 2019)."""

from __future__ import annotations

from experiments.papers.l2e_runs import GONG, GONG_SCALE, gong
from experiments.papers.rows import Cell, Quote, Row

_TOY = "It comes below a KL of 1, .1 and .05 after 8, 17 and 23 steps, SGHMC after 15, 28 and 37"
_BANDS = "f-SVGD's bands are the nearest to HMC's at the data and in the gap"
_UCI = "over SVGD on seven sets of nine; over an ensemble without prior on two, **behind** it on two; not over HMC"
_MNIST = "--sampler SGLD PSGLD SGHMC MetaSGMCMC --validations 20 --keep 2 --extensions 1"
_LEARNED = "Meta-SGMCMC [meta-sgmcmc-mnist]"
_SHIPPED = "MetaSGMCMC [meta-sgmcmc-mnist]"
_MULTI = "python tools/multi_task.py --preset"
_PAIRS = "10,000 pairs, batches of 32, four epochs, three seeds"


def _nt(table: str, budget: str, sampler: str, learned: str = _LEARNED) -> Cell:
    return Cell(table, (f"{budget} gradients",), learned if sampler == "MetaSGMCMC" else sampler, "NLL")


def _chains(budget: str, sampler: str) -> Cell:
    return Cell("compare_mnist_nt_20_chains", (f"{budget} gradients",), sampler, "NLL")


META_SGMCMC = (
    Row(
        "Toy example",
        "Trained on factorised Gaussians it converges faster on correlated ones, with unknown gradient noise",
        "python tools/gaussians.py --network meta-sgmcmc-toy",
        (
            (
                "",
                Quote(
                    "meta_sgmcmc.md",
                    _TOY,
                ),
            ),
        ),
        "Seen. Five posteriors in ten dimensions",
    ),
    Row(
        "MNIST: speed improvements",
        "Faster than tuned SGHMC on a larger network (NT), another activation (NT+AF), other digits (NT+Data)",
        f"python tools/compare.py --preset mnist_nt {_MNIST}",
        (
            ("NLL at 300 steps, NT: Meta-SGMCMC", _nt("compare_mnist_nt", "300", "MetaSGMCMC")),
            ("SGHMC", _nt("compare_mnist_nt", "300", "SGHMC")),
            ("NT+AF: Meta-SGMCMC", _nt("compare_mnist_nt_af", "300", "MetaSGMCMC")),
            ("SGHMC", _nt("compare_mnist_nt_af", "300", "SGHMC")),
            (
                "NT+Data: Meta-SGMCMC",
                _nt("compare_mnist_nt_data", "300", "MetaSGMCMC", "Meta-SGMCMC [meta-sgmcmc-mnist-0-4]"),
            ),
            ("SGHMC", _nt("compare_mnist_nt_data", "300", "SGHMC")),
            (
                "NT+Data with tuned temperatures: Meta-SGMCMC",
                _nt("compare_mnist_nt_data_learned", "300", "MetaSGMCMC", "MetaSGMCMC [meta-sgmcmc-mnist-0-4]"),
            ),
            ("SGHMC", _nt("compare_mnist_nt_data_learned", "300", "SGHMC")),
        ),
        "NT+AF holds, NT over 20 seeds only with tuned temperatures (below), **NT+Data is lost**, less so with those. "
        "Three seeds",
        between="The weights were chosen by hand; a stopping rule (`meta_train.py --patience`) finds ones within 2 %.",
    ),
    Row(
        "MNIST: long-time generalisation",
        "It stays ahead far beyond the horizon of its training (98.36, 97.72, 98.62 %)",
        "python tools/compare.py --preset mnist_nt --budgets 300 3000 --tries 8 --grid 4 --extensions 0 --keep 2 "
        "--tune-seeds 1 --seeds 20 --sampler SGHMC MetaSGMCMC",
        (
            ("NLL at 3,000 steps, NT: Meta-SGMCMC", _chains("3000", _SHIPPED)),
            ("SGHMC", _chains("3000", "SGHMC")),
            ("at 300 steps: Meta-SGMCMC", _chains("300", _SHIPPED)),
            ("SGHMC", _chains("300", "SGHMC")),
        ),
        "**Not seen** at 28 epochs: ahead at 300 steps, behind at 3,000; 20 seeds, temperatures tuned",
        "python tools/compare.py --preset mnist_nt --budgets 10800 --seeds 20 --sampler SGHMC MetaSGMCMC",
        "100 epochs; NT+AF and NT+Data over 20 chains.",
    ),
    Row(
        "Understanding the learned sampler",
        "Q grows with the energy; friction falls at high energy, and rises where gradient and momentum disagree",
        "python tools/contours.py meta-sgmcmc-toy",
        (("of three effects two:", Quote("meta_sgmcmc.md", "Q grows nearly linearly with the energy")),),
        "toy weights; of the MNIST weights one, weakly",
    ),
    Row(
        "CIFAR-10 (of the paper, by way of L2E's Table 8)",
        "The same three tests with a convolutional network",
        GONG,
        (("NLL: Meta-SGMCMC", gong("MetaSGMCMC", "NLL")), ("SGHMC", gong("SGHMC", "NLL"))),
        f"**Not seen**: {GONG_SCALE}; with weights meta-trained on other networks and data",
        "python tools/compare.py --preset cifar10_gong --budgets 16400 --seeds 20 --sampler SGHMC MetaSGMCMC",
        "A meta-training on it: `gong_cnn` is an architecture of the library, no task family has it: CIFAR-10 is "
        "the unseen test.",
    ),
)


def _task(table: str, row: str, column: str) -> Cell:
    return Cell("multi_task", (table,), row, column)


def _three(what: str, table: str, row: str) -> tuple[tuple[str, Cell], ...]:
    others = ((name, _task(table, row, name)) for name in ("MOO-SVGD", "linear scalarisation"))
    return ((f"{what}: MT-SGD", _task(table, row, "MT-SGD")), *others)


_LONG = tuple(
    (label, Cell("multi_task_20000", ("accuracy %",), "multi_mnist, top left", method))
    for label, method in (
        ("20,000 steps: MT-SGD", "MTSGD"),
        ("MOO-SVGD", "MOOSVGD"),
        ("linear scalarisation", "LinearScalarisation"),
        ("single tasks", "SingleTask"),
    )
)

MT_SGD = (
    Row(
        "Figures 1 and 2",
        "How the common direction is found; how MT-SGD differs from MOO-SVGD",
        between="Pictures; no numbers.",
    ),
    Row(
        "Figure 3",
        "On three mixtures MT-SGD finds the region that they share, MOO-SVGD does not",
        "python tools/toy.py mixtures",
        (
            ("share of the particles there: MT-SGD, exact U", Quote("particles.md", "0.79 ± 0.16")),
            ("MOO-SVGD, kernel on losses", Quote("particles.md", "0.22 ± 0.01")),
            ("equal weights (SVGD)", Quote("particles.md", "1.00 ± 0.00")),
        ),
        "Seen; equal weights do it as well. Its own scale",
    ),
    Row(
        "Figure 4",
        "On ZDT3 MT-SGD's particles spread over the front",
        "python tools/toy.py zdt3",
        tuple(
            (label, Cell("zdt3", (), method, "hypervolume"))
            for label, method in (
                ("hypervolume: MT-SGD, exact U", "MT-SGD, exact U"),
                ("scores normalised by particle", "MT-SGD, exact U, scores normalised by particle"),
                ("MOO-SVGD", "MOO-SVGD, kernel on losses"),
                ("equal weights", "equal weights (SVGD)"),
            )
        ),
        "**Not seen** with the paper's rule, which collapses; its own scale",
        between="MT-SGD's settings are not published.",
    ),
    Row(
        "Figure 5",
        "On Multi-MNIST and its like MT-SGD has the best accuracy and Brier score",
        f"{_MULTI} cpu",
        _three("accuracy %, Multi-MNIST top left", "accuracy %", "multi_mnist, top left") + _LONG,
        f"Over MOO-SVGD seen in short runs and not at 20,000 steps, over linear scalarisation **not**: {_PAIRS}; the "
        "last four 20,000 pairs, batches of 16, 16 epochs, one seed (docs/multi_task.md)",
        f"{_MULTI} paper --device cuda",
        "The literature's files cannot be had; ours are made anew.",
    ),
    Row(
        "Table 1",
        "MT-SGD has the lowest calibration error",
        f"{_MULTI} cpu",
        _three("ECE %, Multi-Fashion+MNIST top left", "ECE %", "multi_fashion_mnist, top left"),
        f"Over MOO-SVGD seen, over linear scalarisation **not**: {_PAIRS}",
        f"{_MULTI} paper --device cuda",
        "As Figure 5.",
    ),
    Row(
        "Table 2",
        "On ten attributes of CelebA (ResNet-18) MT-SGD is best, ahead of single tasks",
        f"{_MULTI} celeba --dry-run",
        (),
        "not run",
        f"{_MULTI} celeba --device cuda",
        "CelebA's files were not at hand. `SingleTask` is the paper's baseline; loader and runs are tested on small "
        "files in its layout.",
    ),
    Row(
        "Algorithms 1 and 2",
        "MT-SGD, for targets and for tasks",
        "python tools/toy.py mixtures",
        (),
        "`MTSGD`, tested against autograd",
    ),
    Row("Supplement, Appendix A", "Proofs", between="The tests hold U to its formula."),
    Row(
        "Supplement, Appendix B",
        "Networks, settings, ablations",
        full=f"{_MULTI} paper --device cuda",
        between="Our text of it has Appendix A alone; the preset wants a GPU.",
    ),
)

F_SVGD = (
    Row(
        "The sine (of the paper)",
        "f-SVGD's bands are like HMC's where SVGD's are too narrow",
        "python tools/function_space.py sine --seeds 1 --steps 2000 --trajectories 300 --burn-in 100",
        (
            (
                "",
                Quote("function_space.md", _BANDS),
            ),
        ),
        "Seen on one data set: docs/function_space.md",
        "python tools/function_space.py sine",
        "More than one seed; the paper's data are not known.",
    ),
    Row(
        "Figure 1",
        "Better likelihood than strong baselines on UCI regression",
        "python tools/function_space.py uci",
        (("", Quote("function_space.md", _UCI)),),
        "2,000 steps, 20 splits",
        "python tools/function_space.py uci --preset paper",
        "The paper's epochs: the preset has not been run.",
    ),
    Row(
        "Table 1",
        "Test error on MNIST 1.21 %",
        "python tools/function_space.py mnist --seeds 3",
        (
            ("error %: f-SVGD", Quote("function_space.md", "1.28 ± 0.04")),
            ("SVGD", Quote("function_space.md", "2.22 ± 0.08")),
            ("deep ensemble, no prior", Quote("function_space.md", "1.47 ± 0.03")),
        ),
        "5 networks, 10 epochs, three seeds",
        "python tools/function_space.py mnist --preset full",
        "20 networks, 100 epochs: not run.",
    ),
    Row(
        "Figure 2",
        "More accurate on adversarial examples, MNIST and CIFAR-10",
        "python tools/function_space.py attack --seeds 3",
        (
            ("accuracy at ε = .05, FGSM: f-SVGD", Quote("function_space.md", "0.905 ± 0.003")),
            ("deep ensemble, no prior", Quote("function_space.md", "0.897 ± 0.005")),
            ("iterated, ε = .1: f-SVGD", Quote("function_space.md", "0.259 ± 0.013")),
            ("SVGD", Quote("function_space.md", "0.482 ± 0.006")),
            (
                "CIFAR-10:",
                Quote("function_space.md", "Between the four ensembles no difference is larger than the errors"),
            ),
        ),
        "FGSM seen up to ε = .075, iterated **not**; CIFAR-10 with three ResNets after 160 steps, one seed",
        full="python tools/function_space.py cifar10 --preset cifar10_full",
        between="CIFAR-10: a first look; at its own scale `attack_cifar10` with the same preset follows.",
    ),
    Row(
        "Table 2",
        "Lowest regret on the wheel, near the bootstrap on the mushrooms",
        "python tools/bandits.py",
        (
            ("regret %, wheel δ = .7: f-SVGD", Cell("bandits", (), "wheel, δ = 0.7", "f-SVGD")),
            ("bootstrap", Cell("bandits", (), "wheel, δ = 0.7", "bootstrap ensemble")),
            ("mushroom: f-SVGD", Cell("bandits", (), "mushroom", "f-SVGD")),
            ("bootstrap", Cell("bandits", (), "mushroom", "bootstrap ensemble")),
            ("40,000 rounds of the wheel δ = .7: f-SVGD", Cell("bandits_40000", (), "wheel, δ = 0.7", "f-SVGD")),
            ("bootstrap", Cell("bandits_40000", (), "wheel, δ = 0.7", "bootstrap ensemble")),
            ("SGHMC", Cell("bandits_40000", (), "wheel, δ = 0.7", "SGHMC")),
            ("40,000 mushrooms: f-SVGD", Cell("bandits_40000", (), "mushroom", "f-SVGD")),
            ("bootstrap", Cell("bandits_40000", (), "mushroom", "bootstrap ensemble")),
            ("SGHMC", Cell("bandits_40000", (), "mushroom", "SGHMC")),
        ),
        "5,000 rounds, three seeds; the last six at 40,000, one seed: f-SVGD is the best on that wheel and **behind "
        "SGHMC on the mushrooms**, where it has twice the poster's regret",
        "python tools/bandits.py --preset paper",
        "The other wheels at 40,000 rounds; more seeds. The poster does not say which δ.",
    ),
    Row("Theory", "f-POVI as a gradient flow; its minimiser has consistent marginals", between="No experiment."),
)
