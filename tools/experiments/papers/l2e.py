"""Learning to Explore for Stochastic Gradient MCMC (Kim et al., ICML 2024)."""

from __future__ import annotations

from experiments.papers.l2e_figures import FIGURES
from experiments.papers.l2e_runs import (
    CIFAR,
    COMPARE,
    FASHION,
    FRESH,
    FULL,
    GONG,
    GONG_SCALE,
    GPU,
    MEASURES,
    MEASURES_SCALE,
    META,
    NT,
    PAPER,
    SMALL_CIFAR,
    TUNED,
    af,
    data,
    fresh,
    gong,
    measures,
    nt,
)
from experiments.papers.rows import Cell, Quote, Row

REFERENCE = "agreement with the reference"
STEP_16, STEP_32 = (Quote("results.md", ms) for ms in ("88.34 (1.08×)", "309.48 (1.02×)"))
RIVALS = ("L2E", "SGHMC", "CyclicalSGMCMC", "DeepEnsemble")

ROWS = (
    Row(
        "Figure 1",
        "L2E predicts better than cyclical SGMCMC, Meta-SGMCMC and ensembles, at any number of samples",
        f"{COMPARE} cifar10 {FRESH}",
        (
            ("CIFAR-10, NLL: L2E", fresh(CIFAR, "L2E", "NLL")),
            ("cyclical SGMCMC", fresh(CIFAR, "cyclical SGMCMC", "NLL")),
            ("Fashion-MNIST: L2E", fresh(FASHION, "L2E", "NLL")),
            ("cyclical SGMCMC", fresh(FASHION, "cyclical SGMCMC", "NLL")),
        ),
        f"{SMALL_CIFAR}; Fashion-MNIST 28×28, one convolution",
        FULL,
        f"{GPU} A single tuned run of the full preset is 1.6 million gradients.",
    ),
    Row(
        "Figure 2",
        "L2E's samples lie in different modes: small cosine similarity, error barriers on the lines between them",
        f"{COMPARE} fashion_mnist {FRESH}",
        (
            ("cosine similarity of L2E's samples, Fashion-MNIST", fresh(FASHION, "L2E", "cosine")),
            ("CIFAR-10", fresh(CIFAR, "L2E", "cosine")),
            ("barrier, CIFAR-10", fresh(CIFAR, "L2E", "barrier [nats]")),
        ),
        f"**Not seen**: one mode, and on the digits one basin in the plane of Figure 2(b) (docs/meta_training.md, by "
        f"`--plane`). {SMALL_CIFAR}",
        FULL + " --plane",
        "Samples here are hundreds of steps apart, not 50 epochs.",
    ),
    Row(
        "Table 1",
        "L2E's predictions are nearest to HMC's (agreement .946 on CIFAR-10)",
        MEASURES,
        (
            *measures("agreement with the reference", *RIVALS, heading="agreement:"),
            *measures("total variation", "L2E", "SGHMC", heading="total variation:"),
            *(
                (f"{heading}{name}", Cell("compare_cifar10_hmc", ("5120 gradients",), row, REFERENCE))
                for heading, name, row in (
                    ("agreement, HMC's own network (ResNet-20, 32×32), ten epochs: ", "L2E", "L2E [l2e-gated]"),
                    ("", "SGHMC", "SGHMC"),
                    ("", "cyclical SGMCMC", "CyclicalSGMCMC"),
                )
            ),
        ),
        "**Seen** from afar: at this length agreement follows accuracy. The first six: "
        f"{MEASURES_SCALE}; the last three of one seed.",
        f"{FULL} --reference cifar10_test_probs.npy",
        "Ten epochs stand for 5,100: `docs/results.md` has all rows, an ensemble of three among them.",
    ),
    Row(
        "Table 2",
        "L2E tells other data sets from its own best (AUROC .944, CIFAR-10 against SVHN)",
        MEASURES,
        measures("AUROC photos", *RIVALS, heading="AUROC, CIFAR-10 against patches of photographs:"),
        f"**Not seen**: none is better than chance. {MEASURES_SCALE}",
        f"{FULL} --ood cifar100 svhn tiny_imagenet",
        "SVHN, CIFAR-100 and Tiny-ImageNet were not at hand.",
    ),
    Row(
        "Table 3",
        "Under corruption (CIFAR-10-C) ensembles are best, L2E is ahead of HMC",
        MEASURES,
        (
            *measures("5", *RIVALS, heading="accuracy at severity 5:"),
            ("NLL: L2E", Quote("tables/compare_cifar10_tables.md", "1.665 ± 0.031")),
            ("SGHMC", Quote("tables/compare_cifar10_tables.md", "1.760 ± 0.059")),
        ),
        "A re-creation of the corruptions, 100 test images. Too short for the claim: a member of the ensemble has 200 "
        f"gradients, and HMC is not there. {MEASURES_SCALE}",
        f"{FULL} --corruptions --corruption-images 10000 --corruption-files",
        "The published files, which `--corruption-files` reads, were not at hand.",
    ),
    Row(
        "Table 4",
        "L2E has more effective samples a second than cyclical SGMCMC on three sets of four, and more parameters with "
        "cR̂ < 1.1 on all",
        f"{COMPARE} cifar10 {FRESH}",
        (
            ("ESS/s of the labels' log-probability: L2E", fresh(CIFAR, "L2E", "ESS/s")),
            ("cyclical SGMCMC", fresh(CIFAR, "cyclical SGMCMC", "ESS/s")),
            ("SGHMC", fresh(CIFAR, "SGHMC", "ESS/s")),
            *measures("cR̂ < 1.1", *RIVALS[:3], heading="cR̂ < 1.1 after 1,000 gradients:"),
        ),
        f"ESS of predictions, not of parameters; SGHMC has more. {SMALL_CIFAR}; cR̂ as in Tables 1 to 3, two "
        "seeds: **seen**, and on the digits (Figure 11)",
        FULL + " --convergence",
        "Effective samples of parameters; other data sets.",
    ),
    Row(
        "Table 5",
        "Kinetic-L2E, whose energy exists, predicts as well as L2E",
        NT,
        (("NLL, MNIST NT, 300 steps: Kinetic-L2E", nt("KineticL2E")), ("L2E", nt("L2E"))),
        "**Not seen**: the shipped `kinetic-l2e` was meta-trained for 19 iterations. As Table 9",
        f"{FULL} --sampler L2E KineticL2E",
        "A longer meta-training of Kinetic-L2E.",
    ),
    Row(
        "Table 6",
        "On text (IMDB, CNN-LSTM) L2E is ahead of an ensemble and of HMC: .873, NLL .301",
        f"{COMPARE} imdb --budgets 600 --tries 4 --grid 4 --extensions 1 --tune-seeds 1 --seeds 2 "
        "--sampler SGHMC L2E Adam --l2e-network l2e",
        tuple(
            (label, Cell("compare_imdb", ("600 gradients",), method, column))
            for label, method, column in (
                ("NLL: L2E", "L2E", "NLL"),
                ("Adam", "Adam", "NLL"),
                ("SGHMC", "SGHMC", "NLL"),
                ("accuracy: L2E", "L2E", "accuracy"),
                ("Adam", "Adam", "accuracy"),
            )
        ),
        "a quarter of the width, 5,000 words, 600 minibatches of 64 (1.9 epochs), two seeds, five settings each",
        f"{COMPARE} imdb_full {TUNED}",
        "2,600 epochs; the first 100 words of each review are kept; HMC's samples are not there.",
    ),
    Row("Table 7", "How L2E differs from Meta-SGMCMC", between="No numbers: both samplers are here."),
    Row(
        "Table 8",
        "On Gong et al.'s CIFAR-10 network L2E is ahead of what Meta-SGMCMC reports (NT 78.12 %)",
        GONG,
        (
            ("NLL: L2E", gong("L2E", "NLL")),
            ("Meta-SGMCMC", gong("MetaSGMCMC", "NLL")),
            ("SGHMC", gong("SGHMC", "NLL")),
            ("accuracy: L2E", gong("L2E", "accuracy")),
            ("Meta-SGMCMC", gong("MetaSGMCMC", "accuracy")),
        ),
        f"**Seen** from afar: {GONG_SCALE}",
        f"{COMPARE} cifar10_gong --budgets 16400 --seeds 20 --sampler SGHMC MetaSGMCMC L2E --l2e-network l2e",
        "Length; chains; Meta-SGMCMC's weights are of another training. NT+AF and NT+Data (`--activation sigmoid`, "
        "`--labels 5 6 7 8 9`) are not run.",
    ),
    Row(
        "Table 9",
        "On MNIST L2E is ahead of Meta-SGMCMC (NT 98.39 against 98.36 %, NLL 558 against 640)",
        NT,
        (
            ("NLL, NT, 300 steps: L2E", nt("L2E")),
            ("Meta-SGMCMC", nt("MetaSGMCMC [meta-sgmcmc-mnist]")),
            ("Kinetic-L2E", nt("KineticL2E")),
            ("SGHMC", nt("SGHMC")),
            ("NT+AF: L2E", af("L2E")),
            ("Meta-SGMCMC", af("MetaSGMCMC [meta-sgmcmc-mnist]")),
            ("Kinetic-L2E", af("KineticL2E")),
            ("SGHMC", af("SGHMC")),
            ("NT+Data: L2E", data("L2E")),
            ("Meta-SGMCMC", data("MetaSGMCMC [meta-sgmcmc-mnist-0-4]")),
            ("Kinetic-L2E", data("KineticL2E")),
            ("SGHMC", data("SGHMC")),
        ),
        "**Seen** at 2.8 epochs, three chains, each alone; temperatures tuned",
        f"{COMPARE} mnist_nt --budgets 10800 --seeds 20 --sampler SGHMC MetaSGMCMC L2E KineticL2E --l2e-network l2e",
        "100 epochs and 20 chains. L2E has seen MNIST in its training (so the paper leaves its NT+Data out), "
        "Meta-SGMCMC nothing else.",
    ),
    Row(
        "Table 10",
        "With augmentation an ensemble is best on CIFAR-10; tempering helps the samplers in part",
        f"{COMPARE} cifar10 --augment --budgets 1000 --tries 4 --grid 4 --extensions 1 --tune-seeds 1 --seeds 2 "
        "--sampler CyclicalSGMCMC L2E DeepEnsemble --l2e-network l2e",
        tuple(
            (label, Cell("compare_cifar10_augmented", ("1000 gradients",), method, "NLL"))
            for label, method in (
                ("NLL: L2E", "L2E"),
                ("cyclical SGMCMC", "CyclicalSGMCMC"),
                ("deep ensemble", "DeepEnsemble"),
            )
        ),
        "Too short for the claim: 1.6 epochs, a fifth of them for each of an ensemble; samplers take T = .01",
        f"{COMPARE} cifar10_augmented_full {TUNED}",
        GPU,
    ),
    Row(
        "Table 11",
        "A larger family of tasks, and learning an energy instead of D and Q, both help",
        f"python tools/meta_train.py --folder runs/residual {META} --lrs .02 .05",
        (
            ("log-ratio of the NLL to the start, lr .02: learned energy", Quote("meta_training.md", "−.86 ± .04")),
            ("learned D and Q", Quote("meta_training.md", "−.40 ± .02")),
            ("`small-l2e` on CIFAR-10, 1,000 gradients", Quote("learned_samplers.md", "1.315 ± .016")),
            ("5,000", Quote("learned_samplers.md", "1.176 ± .013")),
        ),
        "100 iterations on the digits family, 48 fresh tasks. That the smaller family is behind is **not seen**: "
        "`l2e`, of a larger one, has 1.389 and 1.206",
        PAPER,
        "Small-L2E (`small-l2e`) has not been compared at the paper's scale.",
    ),
    Row(
        "Tables 12 to 14",
        "The settings of the runs",
        scale="no numbers",
        full=FULL,
        between="In the presets with `full`; rates are tuned.",
    ),
    Row(
        "Table 15",
        "An epoch of L2E costs 1.2 to 1.6 times that of cyclical SGMCMC",
        "python tools/benchmark.py step",
        (
            ("training step beside SGHMC's, which costs what cyclical SGMCMC's does: `l2e`, 16×16", STEP_16),
            ("32×32", STEP_32),
        ),
        "**Less here**: one core, ResNet-20-FRN of width 16, batch 64; 1.28 and 1.10 times with the default weights, "
        "which whiten (docs/results.md, Speed)",
        FULL + " --dry-run",
        "Seconds a gradient of whole networks: --dry-run prints them for the machine at hand.",
    ),
    *FIGURES,
)
