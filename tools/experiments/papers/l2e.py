"""Learning to Explore for Stochastic Gradient MCMC (Kim et al., ICML 2024)."""

from __future__ import annotations

from experiments.papers.rows import Cell, Quote, Row

_COMPARE = "python tools/compare.py --preset"
_FRESH = "--keep 3 --weight-decays 0 --seed 20 --seeds 6 --sampler SGHMC PSGLD CyclicalSGMCMC L2E"
_CIFAR = ("CIFAR-10, seeds 20 to 25", "5000 gradients")
_FASHION = ("Fashion-MNIST, seeds 20 to 25", "5000 gradients")
# As the paper tunes: learning rates by one seed, then three seeds.
_TUNED = "--tries 6 --extensions 0 --tune-seeds 1 --device cuda"
_FULL = f"{_COMPARE} cifar10_full {_TUNED}"
_META = (
    "--family digits --feature-set adaptive --hidden 16 16 --pairs 8 --sigma .02 --learning-rate .005 --averaging .95 "
    "--horizon 200 200 --evaluate-every 0 --iterations 100"
)
_PAPER = "python tools/meta_train.py --folder runs/paper --family paper --horizon 3000 3000 --pairs 1 --device cuda"
_GPU = "The full presets want a GPU; CIFAR-100 and Tiny-ImageNet cannot be had here (their loaders are tested)."
_SMALL_CIFAR = "16×16 pixels, a CNN of two convolutions, 5,000 minibatches of 64, six seeds"


def _fresh(under: tuple[str, str], sampler: str, column: str) -> Cell:
    return Cell("compare_fresh_seeds", under, sampler, column)


_NT = (
    f"{_COMPARE} mnist_nt --budgets 300 --tries 8 --grid 4 --extensions 2 --tune-seeds 2 --seeds 3 "
    "--sampler SGHMC MetaSGMCMC L2E KineticL2E"
)


def _nt(sampler: str, table: str = "compare_mnist_nt_learned") -> Cell:
    return Cell(table, ("300 gradients",), sampler, "NLL")


def _af(sampler: str) -> Cell:
    return _nt(sampler, "compare_mnist_nt_af_learned")


def _data(sampler: str) -> Cell:
    return _nt(sampler, "compare_mnist_nt_data_learned")


ROWS = (
    Row(
        "Figure 1",
        "L2E predicts better than cyclical SGMCMC, Meta-SGMCMC and ensembles, at any number of samples",
        f"{_COMPARE} cifar10 {_FRESH}",
        (
            ("CIFAR-10, NLL: L2E", _fresh(_CIFAR, "L2E", "NLL")),
            ("cyclical SGMCMC", _fresh(_CIFAR, "cyclical SGMCMC", "NLL")),
            ("Fashion-MNIST: L2E", _fresh(_FASHION, "L2E", "NLL")),
            ("cyclical SGMCMC", _fresh(_FASHION, "cyclical SGMCMC", "NLL")),
        ),
        f"{_SMALL_CIFAR}; Fashion-MNIST 28×28, one convolution",
        _FULL,
        f"{_GPU} A single tuned run of the full preset is 1.6 million gradients.",
    ),
    Row(
        "Figure 2",
        "L2E's samples lie in different modes: small cosine similarity, error barriers on the lines between them",
        f"{_COMPARE} fashion_mnist {_FRESH}",
        (
            ("cosine similarity of L2E's samples, Fashion-MNIST", _fresh(_FASHION, "L2E", "cosine")),
            ("CIFAR-10", _fresh(_CIFAR, "L2E", "cosine")),
            ("barrier, CIFAR-10", _fresh(_CIFAR, "L2E", "barrier [nats]")),
        ),
        f"**Not seen**: one mode. {_SMALL_CIFAR}",
        _FULL,
        "Samples here are hundreds of steps apart, not 50 epochs. The plane of Figure 2(b) is not drawn.",
    ),
    Row(
        "Table 1",
        "L2E's predictions are nearest to HMC's (agreement .946 on CIFAR-10)",
        "",
        (),
        "",
        f"{_FULL} --reference cifar10_test_probs.npy",
        "The reference is there for CIFAR-10 (Izmailov et al.); a ResNet-20 at 32×32 has to be run beside it.",
    ),
    Row(
        "Table 2",
        "L2E tells other data sets from its own best (AUROC .944, CIFAR-10 against SVHN)",
        f"{_COMPARE} cifar10 --ood photos --sampler SGHMC L2E",
        (),
        "",
        f"{_FULL} --ood cifar100 svhn tiny_imagenet",
        "SVHN, CIFAR-100 and Tiny-ImageNet cannot be had here.",
    ),
    Row(
        "Table 3",
        "Under corruption (CIFAR-10-C) ensembles are best, L2E is ahead of HMC",
        between="`meta_tasks.datasets.load_corrupted` reads the published files, which cannot be had here; no command "
        "scores on them.",
    ),
    Row(
        "Table 4",
        "L2E has more effective samples a second than cyclical SGMCMC on three sets of four, and more parameters with "
        "cR̂ < 1.1 on all",
        f"{_COMPARE} cifar10 {_FRESH}",
        (
            ("ESS/s of the labels' log-probability: L2E", _fresh(_CIFAR, "L2E", "ESS/s")),
            ("cyclical SGMCMC", _fresh(_CIFAR, "cyclical SGMCMC", "ESS/s")),
            ("SGHMC", _fresh(_CIFAR, "SGHMC", "ESS/s")),
        ),
        f"Of predictions, not of parameters; SGHMC has more. {_SMALL_CIFAR}",
        _FULL,
        "`learned_samplers.diagnostics` has cR̂; no table has been made with it.",
    ),
    Row(
        "Table 5",
        "Kinetic-L2E, whose energy exists, predicts as well as L2E",
        _NT,
        (("NLL, MNIST NT, 300 steps: Kinetic-L2E", _nt("KineticL2E")), ("L2E", _nt("L2E"))),
        "**Not seen**: the shipped `kinetic-l2e` was meta-trained for 19 iterations. As Table 9",
        f"{_FULL} --sampler L2E KineticL2E",
        "A longer meta-training of Kinetic-L2E.",
    ),
    Row(
        "Table 6",
        "On text (IMDB, CNN-LSTM) L2E is ahead of an ensemble and of HMC: .873, NLL .301",
        f"{_COMPARE} imdb --budgets 600 --tries 4 --grid 4 --extensions 1 --tune-seeds 1 --seeds 2 "
        "--sampler SGHMC L2E Adam",
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
        f"{_COMPARE} imdb_full {_TUNED}",
        "2,600 epochs; the first 100 words of each review are kept; HMC's samples are not there.",
    ),
    Row("Table 7", "How L2E differs from Meta-SGMCMC", between="No numbers: both samplers are here."),
    Row(
        "Table 8",
        "On Gong et al.'s CIFAR-10 network L2E is ahead of what Meta-SGMCMC reports (NT 78.12 %)",
        "",
        (),
        "",
        f"{_COMPARE} cifar10_gong --sampler SGHMC MetaSGMCMC L2E",
        "Not run. NT+AF and NT+Data: `--activation sigmoid`, `--labels 5 6 7 8 9`.",
    ),
    Row(
        "Table 9",
        "On MNIST L2E is ahead of Meta-SGMCMC (NT 98.39 against 98.36 %, NLL 558 against 640)",
        _NT,
        (
            ("NLL, NT, 300 steps: L2E", _nt("L2E")),
            ("Meta-SGMCMC", _nt("MetaSGMCMC [meta-sgmcmc-mnist]")),
            ("Kinetic-L2E", _nt("KineticL2E")),
            ("SGHMC", _nt("SGHMC")),
            ("NT+AF: L2E", _af("L2E")),
            ("Meta-SGMCMC", _af("MetaSGMCMC [meta-sgmcmc-mnist]")),
            ("Kinetic-L2E", _af("KineticL2E")),
            ("SGHMC", _af("SGHMC")),
            ("NT+Data: L2E", _data("L2E")),
            ("Meta-SGMCMC", _data("MetaSGMCMC [meta-sgmcmc-mnist-0-4]")),
            ("Kinetic-L2E", _data("KineticL2E")),
            ("SGHMC", _data("SGHMC")),
        ),
        "**Seen** at 2.8 epochs, three chains, each alone; temperatures tuned",
        f"{_COMPARE} mnist_nt --budgets 10800 --seeds 20 --sampler SGHMC MetaSGMCMC L2E KineticL2E",
        "100 epochs and 20 chains. L2E has seen MNIST in its training, Meta-SGMCMC nothing else.",
    ),
    Row(
        "Table 10",
        "With augmentation an ensemble is best on CIFAR-10; tempering helps the samplers in part",
        f"{_COMPARE} cifar10 --augment --budgets 1000 --tries 4 --grid 4 --extensions 1 --tune-seeds 1 --seeds 2 "
        "--sampler CyclicalSGMCMC L2E DeepEnsemble",
        tuple(
            (label, Cell("compare_cifar10_augmented", ("1000 gradients",), method, "NLL"))
            for label, method in (
                ("NLL: L2E", "L2E"),
                ("cyclical SGMCMC", "CyclicalSGMCMC"),
                ("deep ensemble", "DeepEnsemble"),
            )
        ),
        "Too short for the claim: 1.6 epochs, a fifth of them for each of an ensemble; samplers take T = .01",
        f"{_COMPARE} cifar10_augmented_full {_TUNED}",
        _GPU,
    ),
    Row(
        "Table 11",
        "A larger family of tasks, and learning an energy instead of D and Q, both help",
        f"python tools/meta_train.py --folder runs/residual {_META} --lrs .02 .05",
        (
            ("log-ratio of the NLL to the start, lr .02: learned energy", Quote("meta_training.md", "−.86 ± .04")),
            ("learned D and Q", Quote("meta_training.md", "−.40 ± .02")),
        ),
        "100 iterations on the digits family, 48 fresh tasks",
        _PAPER,
        "Small-L2E (`small-l2e`) has not been compared at the paper's scale.",
    ),
    Row(
        "Tables 12 to 14",
        "The settings of the runs",
        scale="no numbers",
        full=_FULL,
        between="In the presets with `full`; rates are tuned.",
    ),
    Row(
        "Table 15",
        "An epoch of L2E costs 1.2 to 1.6 times that of cyclical SGMCMC",
        "python tools/benchmark.py step",
        (),
        "The update alone is measured: docs/results.md, Speed",
        _FULL + " --dry-run",
        "Seconds a gradient of whole networks: --dry-run prints them for the machine at hand.",
    ),
    Row(
        "Figures 3 and 5",
        "L2E goes on moving in low-loss regions while the training loss stays",
        f"{_COMPARE} cifar10 {_FRESH}",
        (),
        "‖Δθ‖² of single steps and the training loss: `movement_<budget>.png`, TensorBoard (`chain/squared_step`) and "
        "results. Recorded since the last runs at this scale",
        _FULL,
        "No figure at this scale yet.",
    ),
    Row(
        "Figure 4",
        "What β and α answer to gradient and momentum",
        "python tools/contours.py l2e",
        (),
        "Drawn on request; no claim is read off it",
    ),
    Row(
        "Figure 6",
        "The BMA meta-loss gives better samplers than the CE one",
        f"python tools/meta_train.py --folder runs/bma {_META} --beta-scale 10 --friction-scale 0 "
        "--reference-data 50000 --start-feature average_0.9_to_rms --start-gain 2 --lrs .002 .005 --objective bma",
        (
            ("log-ratio to the start, lr .002: BMA", Quote("meta_training.md", "−.66 ± .04")),
            ("CE", Quote("meta_training.md", "−.62 ± .03")),
        ),
        "Hardly seen: 100 iterations, horizon 200",
    ),
    Row(
        "Figure 7",
        "Kinetic-L2E's samples lie in different modes",
        f"{_COMPARE} digits --sampler KineticL2E",
        between="As Table 5.",
    ),
    Row(
        "Figure 8",
        "In one dimension L2E's uncertainty between the data is nearer to HMC's than an ensemble's",
        "python tools/regression.py",
        (
            (
                "standard deviation in the gap:",
                Quote("meta_training.md", "HMC .129, L2E .031, SGHMC .043, ensemble .075"),
            ),
        ),
        "**Not seen**: L2E is surest in the gap",
    ),
    Row(
        "Figure 9",
        "Meta-SGMCMC's training is unstable in its clip and step size, L2E's is not",
        between="Not repeated as a sweep; docs/meta_sgmcmc.md and the log tell of single runs.",
    ),
    Row("Figure 10", "A picture of the procedure", between="No claim."),
    Row("Figure 11", "cR̂ layer by layer: weights converge, biases in part", between="As Table 4."),
    Row(
        "Algorithms 1 and 2",
        "Meta-training by evolution strategies over inner loops",
        "python tools/meta_train.py --folder runs/first --family digits",
        (),
        "What ships was trained so: docs/meta_training.md",
        _PAPER,
        "EMNIST and BloodMNIST cannot be had here; their loaders are torchvision's and medmnist's. `--dry-run` on a "
        "busy core: 102 hours for `paper` (16 member-steps/s), 30 for `full`, by eight tasks drawn at random.",
    ),
    Row("Appendices A, B", "Exploration; BMA against CE", between="Figures 3 to 6."),
    Row("Appendix C", "Text", between="Table 6."),
    Row("Appendix D", "Kinetic energy instead of its gradients", between="Table 5, Figure 7; the law: its card."),
    Row("Appendix E", "Comparison with Meta-SGMCMC", between="Tables 7 to 9."),
    Row("Appendices F, G, H", "Meta-objectives; one dimension; augmentation", between="Figures 6 and 8, Table 10."),
    Row(
        "Appendix I",
        "Features, tasks, outer loop",
        between="Algorithms 1 and 2.",
    ),
    Row("Appendix J", "Ablations", between="Table 11."),
    Row("Appendices K, L", "Data, networks, settings, metrics", between="Tables 12 to 15, Table 4."),
    Row(
        "Appendix M",
        "6 hours of an A6000; the tasks of its training bound L2E",
        between="Algorithms 1 and 2: --dry-run.",
    ),
)
