"""Learning to Explore for Stochastic Gradient MCMC (Kim et al., ICML 2024): figures from the third on, appendices."""

from __future__ import annotations

from experiments.papers.l2e_runs import CHAINS, DIGITS, FULL, META, PAPER, chain
from experiments.papers.rows import Quote, Row

FIGURES = (
    Row(
        "Figures 3 and 5",
        "L2E goes on moving in low-loss regions while the training loss stays",
        CHAINS,
        (("", Quote("meta_training.md", "L2E's squared step is .36, SGHMC's .13, cyclical SGMCMC's .04")),),
        f"**Seen**, at training losses of .051, .10 and .07; part of it is L2E's higher temperature. {DIGITS}",
        FULL,
        "‖Δθ‖² of single steps and the training loss of any comparison: `movement_<budget>.png`.",
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
        f"python tools/meta_train.py --folder runs/bma {META} --beta-scale 10 --friction-scale 0 "
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
        CHAINS,
        (
            ("cosine similarity of Kinetic-L2E's samples", chain("KineticL2E [kinetic-l2e]", "cosine")),
            ("barrier", chain("KineticL2E [kinetic-l2e]", "barrier [nats]")),
        ),
        f"**Not seen**: one mode. {DIGITS}",
        f"{FULL} --sampler KineticL2E --plane",
        "As Table 5.",
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
        between="Not repeated as a sweep of meta-trainings; docs/meta_sgmcmc.md and the log tell of single runs.",
    ),
    Row("Figure 10", "A picture of the procedure", between="No claim."),
    Row(
        "Figure 11",
        "cR̂ layer by layer: weights converge, biases in part",
        CHAINS,
        (
            ("share with cR̂ < 1.1: L2E", chain("L2E [l2e]", "cR̂ < 1.1")),
            ("SGHMC", chain("SGHMC", "cR̂ < 1.1")),
            ("cyclical SGMCMC", chain("CyclicalSGMCMC", "cR̂ < 1.1")),
            ("L2E's first weights", chain("1.weight", "L2E [l2e]")),
            ("first biases", chain("1.bias", "L2E [l2e]")),
        ),
        f"**Not seen**: half of neither have converged, ten samples a chain. {DIGITS}",
        f"{FULL} --convergence --layers",
        "Length.",
    ),
    Row(
        "Algorithms 1 and 2",
        "Meta-training by evolution strategies over inner loops",
        "python tools/meta_train.py --folder runs/first --family digits",
        (),
        "What ships was trained so: docs/meta_training.md",
        PAPER,
        "EMNIST and BloodMNIST were not at hand; their loaders are torchvision's and medmnist's. `--dry-run` on a "
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
