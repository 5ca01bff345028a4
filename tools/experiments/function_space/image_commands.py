"""The commands of `function_space.py` on images: the networks' errors, and adversarial examples against them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from torch import Tensor

from experiments.function_space.attacks import robust_accuracy, share_without_gradient
from experiments.function_space.image_ensembles import METHODS as IMAGE_METHODS
from experiments.function_space.image_ensembles import Classifiers, ImageProtocol, ImageRuns
from experiments.function_space.report import accuracy_figure, attack_tables, error_rows, write
from experiments.harness.methods import one_of
from experiments.harness.options import DataOptions, RunOptions, at_least_one
from experiments.harness.run_store import RunStore
from experiments.harness.tables import markdown
from meta_tasks.datasets import load as load_images

#: Nothing that we have of the paper gives the networks or epochs of its 1.21 %, or of its attack on CIFAR-10.
IMAGE_PRESETS: dict[str, dict[str, Any]] = {
    "cpu": {},
    "full": {"particles": 20, "epochs": 100, "tuning_epochs": 10},
    "cifar10": {"network": "resnet", "batch": 128, "extra": 32, "rates": (1e-3, 3e-3, 1e-2)},
    "cifar10_full": {
        **{"network": "resnet", "width": 16, "particles": 20, "epochs": 100, "tuning_epochs": 10},
        **{"batch": 128, "extra": 32, "rates": (3e-4, 1e-3, 3e-3, 1e-2)},
    },
}
#: Data set, side of the images and share or number held out, by preset; MNIST has no validation images of its own.
IMAGE_DATA: dict[str, tuple[str, int | None, float | None]] = {
    **dict.fromkeys(("cpu", "full"), ("mnist", None, 1 / 6)),
    "cifar10": ("cifar10", 16, None),
    "cifar10_full": ("cifar10", None, None),
}


@dataclass(frozen=True)
class Networks(DataOptions, RunOptions):
    """The options that name the networks of an image data set."""

    # "cpu": 5 MLPs on MNIST, 10 epochs. "full": 20 of them, 100 epochs, best on a GPU. "cifar10": 5 ResNet-20-FRN of
    # width 8 on CIFAR-10 at 16×16, 10 epochs. "cifar10_full": 20 of width 16 at 32×32, 100 epochs, for a GPU.
    preset: Literal["cpu", "full", "cifar10", "cifar10_full"] = "cpu"
    # Methods, in the order of the tables, in any letter case; PlainEnsemble is the deep ensemble without prior.
    methods: tuple[Annotated[str, one_of(IMAGE_METHODS)], ...] = IMAGE_METHODS
    # Seeds, counted up from --seed; each has its own weights and minibatches.
    seeds: int = 1
    # Networks, instead of the preset's.
    particles: int | None = None
    # Units of the MLPs' hidden layers.
    hidden: tuple[int, ...] = (400, 400)
    # Channels of the ResNets' first stage, instead of the preset's.
    width: int | None = None
    # Epochs, instead of the preset's.
    epochs: int | None = None
    # Epochs of the runs that choose the learning rate, instead of the preset's.
    tuning_epochs: int | None = None
    # Learning rates to try, instead of the preset's.
    rates: tuple[float, ...] | None = None
    # Training images; by default all that are left beside those for validation.
    limit: int | None = None
    # A data set of images by its name in meta_tasks.datasets, instead of the preset's.
    dataset: str | None = None
    # Side of the images in pixels, instead of the preset's.
    size: int | None = None
    # Folder of the networks' runs.
    runs: Path = Path("runs/function_space_mnist")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "particles", "epochs", "tuning_epochs", "limit", "width", "size")
        if self.rates is not None and (not self.rates or min(self.rates) <= 0):
            raise ValueError(f"rates must be positive, got {self.rates}")

    def image_runs(self, *, fresh: bool = False) -> ImageRuns:
        given = {key: getattr(self, key) for key in ("particles", "epochs", "tuning_epochs", "width", "rates")}
        chosen = IMAGE_PRESETS[self.preset] | {key: value for key, value in given.items() if value is not None}
        name, size, validation = IMAGE_DATA[self.preset]
        images = load_images(
            self.dataset or name,
            self.data,
            size=self.size or size,
            limit=self.limit,
            validation=validation,
            download=False,
        )
        return ImageRuns(self.runs, images, ImageProtocol(hidden=self.hidden, **chosen), fresh=fresh)


@dataclass(frozen=True)
class MNIST(Networks):
    """Classification error of f-SVGD, SVGD and a deep ensemble at the same budget."""

    # Folder of the table and the results.
    out: Path = Path("runs/function_space_mnist")


@dataclass(frozen=True)
class Attack(Networks):
    """Accuracy on adversarial examples (FGSM, and iterated) of the networks that the command mnist has trained."""

    # Largest change of a pixel, in [0, 1].
    epsilons: tuple[float, ...] = (0.0, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3)
    # Test images, the first ones.
    images: int = 1000
    # Steps of the iterated attack.
    attack_steps: int = 10
    # Folder of the table, the results and the figure.
    out: Path = Path("runs/function_space_attack")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "images", "attack_steps")


@dataclass(frozen=True)
class CIFAR10(MNIST):
    """The same for ResNets on CIFAR-10."""

    preset: Literal["cpu", "full", "cifar10", "cifar10_full"] = "cifar10"
    runs: Path = Path("runs/function_space_cifar10")
    out: Path = Path("runs/function_space_cifar10")


@dataclass(frozen=True)
class AttackCIFAR10(Attack):
    """Accuracy on adversarial examples (FGSM, and iterated) of the networks that the command cifar10 has trained."""

    # Preset of the networks.
    preset: Literal["cpu", "full", "cifar10", "cifar10_full"] = "cifar10"
    # Folder of the trained networks.
    runs: Path = Path("runs/function_space_cifar10")
    # CIFAR-10's images are lost sooner than MNIST's.
    epsilons: tuple[float, ...] = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05)
    # Folder for the results.
    out: Path = Path("runs/function_space_attack_cifar10")


def mnist(options: MNIST, command: str) -> None:
    runs = options.image_runs(fresh=options.fresh)
    results, tuning = {}, {}
    for method in options.methods:
        lr, trials = runs.tune(method)
        tuning[method] = {"lr": lr, "validation_nll": trials}
        results[method] = [runs.run(method, lr, seed) for seed in options.seed_list()]
        errors = ", ".join(f"{100 * run['error']:.2f} %" for run in results[method])
        print(f"{method}: lr {lr:g}, test error {errors}", flush=True)
    text = markdown(error_rows(results))
    write(options, command, {"tuning": tuning, "methods": results}, f"{text}\n")


def attack(options: Attack, command: str) -> None:
    runs = options.image_runs()
    x, y = runs.data.test_x[: options.images], runs.data.test_y[: options.images]
    store = RunStore(options.out, runs.store.data, fresh=options.fresh)
    own = {"epsilons": options.epsilons, "images": options.images, "attack_steps": options.attack_steps}
    results: dict[str, Any] = {}
    for method in options.methods:
        for seed in options.seed_list():
            networks = runs.load(method, seed)
            targets = {method: networks}
            if method == "DeepEnsemble":
                targets["one network of it"] = networks.members(1)

            def make(targets: dict[str, Classifiers] = targets) -> dict[str, Any]:
                return {label: under_attack(target, x, y, options) for label, target in targets.items()}

            run = store.run(f"{method}_seed{seed}", {**runs.record(method, seed)["made_of"]["settings"], **own}, make)
            for label, scores in run.items():
                for key, value in scores.items():
                    results.setdefault(label, {}).setdefault(key, []).append(value)
                print(f"{label}, seed {seed}: done", flush=True)
    accuracy_figure(options.out / "figure.png", results, options.epsilons)
    text = attack_tables(results, options.epsilons, options.attack_steps)
    write(options, command, {"methods": results}, text)


def under_attack(target: Classifiers, x: Tensor, y: Tensor, options: Attack) -> dict[str, Any]:
    """Accuracies by epsilon under both attacks, and the share of images that neither can move."""

    def accuracies(steps: int) -> list[float]:
        return [robust_accuracy(target.log_predictive, x, y, epsilon, steps=steps) for epsilon in options.epsilons]

    dead = share_without_gradient(target.log_predictive, x, y)
    return {"fgsm": accuracies(1), "iterated": accuracies(options.attack_steps), "without_gradient": dead}
