"""The options of `compare.py`, and those that it shares with `sample.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Self

import torch
import tyro

from experiments.harness.devices import prepare_torch
from experiments.harness.methods import one_of
from experiments.harness.options import (
    DataOptions,
    DeviceOptions,
    RunOptions,
    at_least_one,
    each_once,
    not_negative,
    parse,
)
from experiments.images.compare_corruptions import check_images
from experiments.images.compare_notes import EARLIER, NAMED, OWN_CHOICE, settings_note
from experiments.images.earlier import earlier_settings
from experiments.images.given import count_given, given_settings
from experiments.images.measures import CONVERGENCE_DRAWS
from experiments.images.methods import METHODS, Setting, candidates
from experiments.images.option_checks import check_used, check_values, refuse_changed
from experiments.images.presets import PRESETS
from experiments.images.settings import Settings
from experiments.images.training import validate_run
from meta_tasks.datasets import ImageData, find_corrupted
from meta_tasks.datasets.files import read_npy

TUNING_SEEDS = 1000  # the first seed of the tuning, with --seed 0

MethodName = Annotated[str, one_of(METHODS)]


@dataclass(frozen=True)
class ImageOptions(DeviceOptions, DataOptions, RunOptions):
    """The options of every tool that compares methods on images.

    Raises:
        ValueError: an argument out of range, by name and value.
    """

    # Data, network, posterior and budget.
    settings: Annotated[Settings, tyro.conf.OmitArgPrefixes] = field(default_factory=Settings)
    # Predictive probabilities to compare with, an .npy file (test images, classes), HMC's for instance: the tables get
    # agreement of the most probable class and total variation.
    reference: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (steps := self.settings.steps) is not None:
            refuse_changed(self.settings, "epochs", why=f"and steps={steps} exclude each other")

    def on(self, data: ImageData) -> Self:
        """The same, with the names of the default weights for these data."""
        return replace(self, settings=self.settings.with_weights(data.num_data))

    def folder(self) -> Path:
        """Where the results go."""
        dataset = Path(self.settings.dataset.removeprefix("npz:")).stem
        model = self.settings.model.rpartition(":")[2]
        return self.out or Path("runs") / f"{dataset}_{model}"

    def load_reference(self, data: ImageData) -> torch.Tensor | None:
        """The probabilities of --reference, in double precision; None without it.

        Raises:
            ValueError, FileNotFoundError: there is no such file, or it holds no probabilities for these test images.
        """
        if self.reference is None:
            return None
        if not data.num_classes:
            raise ValueError(f"reference={str(self.reference)!r} holds probabilities, and this is a regression")
        if self.settings.division:
            raise ValueError(
                f"reference={str(self.reference)!r} is of the data's own test images, and division="
                f"{self.settings.division} has others"
            )
        try:
            found = torch.from_numpy(read_npy(self.reference)).double()
        except (ValueError, TypeError) as error:
            raise ValueError(f"reference {self.reference} is no .npy file of numbers: {error}") from error
        wanted = (len(data.test_y), data.num_classes)
        if tuple(found.shape) != wanted:
            raise ValueError(f"reference {self.reference} must have the shape {wanted}, got {tuple(found.shape)}")
        # Half precision is how large predictions are handed round.
        if not found.isfinite().all() or found.min() < 0 or (found.sum(1) - 1).abs().max() > 0.01:
            raise ValueError(f"reference {self.reference} must hold probabilities that sum to 1 for each image")
        return found / found.sum(1, keepdim=True)

    def describe(self, data: ImageData) -> str:
        """What is run, for the terminal."""
        settings = self.settings
        targets = f"{data.num_classes} classes" if data.num_classes else f"regression of {data.test_y.shape[1]}"
        return (
            f"{settings.dataset}: {data.num_data} training, {len(data.val_y)} validation, {len(data.test_y)} test "
            f"examples of {'×'.join(map(str, data.input_shape))}, {targets}\n{settings.model}, "
            f"T={settings.temperature:g}, prior precision {settings.prior_precision:g}, {data.train_x.device}"
        )


@dataclass(frozen=True)
class CompareOptions(ImageOptions):
    """Compare samplers at equal gradient evaluations, each tuned on validation data, at one or several budgets."""

    # A preset of data, network, posterior and budgets; options given beside it override its values.
    preset: Annotated[str, one_of(PRESETS)] | None = None
    # Methods to compare, in the order of the tables, in any letter case. LastLayerLaplace is among them where
    # laplace-torch is installed.
    sampler: tuple[MethodName, ...] = (
        *("SGHMC", "BAOA", "PSGLD", "CyclicalSGMCMC", "ScaleAdaptedSGHMC", "L2EStart", "L2E", "ScaleAdaptedL2E"),
        *("SGD", "Adam", "AdamEMA", "AdamAverage", "SWAG", "IVON", "DeepEnsemble", "AdamEnsemble"),
        *(("LastLayerLaplace",) if find_spec("laplace") else ()),
    )
    # Budgets in minibatch gradients, each for every run; by default the one of --steps or --epochs.
    budgets: tuple[int, ...] | None = None
    # Settings that every method tries at the smallest budget, all methods equally many: learning rates of 1, 2, 5, 10,
    # …, around its own, and with each a balanced choice of what else it tunes.
    tries: int = 18
    # Learning rates among them (more where a method tunes little else).
    grid: int = 6
    # Further settings that every method tries at each budget, one after the other: the best so far with the learning
    # rate beyond the edge of those tried or beside its own, or with another value of what else is tuned.
    extensions: int = 4
    # Settings of a method, the best ones of a budget, that are tried again at the next larger one.
    keep: int = 4
    # Momentum decays that are tuned, in (0, 1], of SGD, its ensemble and the samplers with a momentum, in the place of
    # --momentum-decay; the learned samplers keep that of their weights.
    momentum_decays: tuple[float, ...] = (0.05, 0.1, 0.3)
    # Temperatures that are tuned, of every sampler; none for --temperature alone.
    temperatures: tuple[float, ...] = (1.0, 0.1, 0.01)
    # Exploration ratios that are tuned, of cyclical samplers; none for --exploration-ratio alone.
    exploration_ratios: tuple[float, ...] = (0.5, 0.8, 0.9)
    # Shares of burn-in that are tuned, of samplers that are not cyclical and of an optimizer's averages; none for
    # --burn-in alone. A short run's first samples can be worse than none.
    burn_ins: tuple[float, ...] = ()
    # Learning rates at the end of a run that are tuned, as shares of the first one, of samplers that are not cyclical
    # and of an optimizer's averages; none for --final-lr alone.
    final_lrs: tuple[float, ...] = ()
    # Weight decays that are tuned, of SGD, Adam, their ensembles and averages, beside that of the posterior's mode,
    # λ/N: the mode of a deep network with a narrow prior can be useless where its posterior is not.
    weight_decays: tuple[float, ...] = (0.0, 5e-4)
    # Seeds over which the validation NLL of a setting is averaged; they are not those of the final runs.
    tune_seeds: int = 3
    # Run every method once more, with as many gradients as the first one's seconds allow: a table at equal time.
    equal_time: bool = False
    # Score the final runs on the 15 corruptions × 5 severities of CIFAR-10-C, made of the test images by this project's
    # own code (a re-creation): accuracy, NLL and ECE by severity, as tables and a figure.
    corruptions: bool = False
    # Test images that --corruptions takes, chosen at random once; all of them, where there are fewer.
    corruption_images: int = 1000
    # Take corrupted images from the published CIFAR-10-C (CIFAR-100-C), unpacked in the folder of the data files, not
    # from the re-creation.
    corruption_files: bool = False
    # Share of the weights with cR̂ < 1.1 between the halves of each final chain; needs eight samples of a run.
    convergence: bool = False
    # The same layer by layer, as a table of its own.
    layers: bool = False
    # Draw the test error on the plane through the first, the middle and the last sample of each method's first seed.
    plane: bool = False
    # Do a few steps of every method, say what all runs will cost, and stop.
    dry_run: bool = False
    # Tune and stop: the validation NLL of every setting of every method, as validation.md, and no run that looks at
    # test images. To choose networks by; the same command without it goes on.
    tune_only: bool = False
    # Folder of an earlier comparison, of a smaller network for instance: each method tries the --keep best settings
    # that it found there at its largest budget, in the place of a balanced choice. With --keep 1 --extensions 0 nothing
    # is tuned.
    settings_of: Path | None = None
    # Settings to try at the smallest budget in the place of a balanced choice, equally many of every method, such as
    # SGHMC:lr=0.05,temperature=1 and SGD:lr=0.1,weight-decay=5e-4. With one of each and --extensions 0 nothing is
    # tuned.
    given: tuple[str, ...] = ()
    # Times that a run's curves get the validation scores of its current weights.
    validations: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        each_once(self, "sampler")
        at_least_one(self, "grid", "tries", "tune_seeds", "keep", "validations", "corruption_images")
        wanted = {"convergence": CONVERGENCE_DRAWS, "layers": CONVERGENCE_DRAWS, "plane": 3}
        for name, least in wanted.items():
            if getattr(self, name) and self.settings.num_samples < least:
                raise ValueError(f"{name} needs num_samples of at least {least}, got {self.settings.num_samples}")
        not_negative(self, "extensions")
        if self.given and self.settings_of is not None:
            raise ValueError(f"given={self.given} and settings_of={str(self.settings_of)!r} exclude each other")
        count_given(self.given, self.sampler)
        if self.tune_only and self.nothing_to_tune():
            raise ValueError("tune_only=True leaves nothing to do where one setting is taken over as it is")
        check_values(self)
        check_used(self)
        if self.budgets is not None:
            if not self.budgets or min(self.budgets) < 1 or len(set(self.budgets)) < len(self.budgets):
                raise ValueError(f"budgets must be positive and differ, got {self.budgets}")
            if self.settings.steps is not None:
                raise ValueError(f"budgets={self.budgets} and steps={self.settings.steps} exclude each other")

    def folder(self) -> Path:
        return self.out or Path("runs") / f"compare_{self.preset or super().folder().name}"

    def all_budgets(self, data: ImageData) -> list[int]:
        """From the smallest to the largest."""
        return sorted(self.budgets or (self.settings.budget(data.num_data),))

    def alternatives(self, data: ImageData) -> dict[str, tuple[float, ...]]:
        """What is tried beside learning rates: values of the settings that `ImageMethod.tunes` names."""
        settings = self.settings
        precisions = [settings.prior_precision]
        for precision in (decay * data.num_data for decay in self.weight_decays):
            # One that is as good as another would be tried in the place of another setting.
            if all(abs(precision - other) > 0.1 * other for other in precisions):
                precisions.append(precision)
        return {
            "momentum_decay": tuple(dict.fromkeys(self.momentum_decays)),
            "temperature": tuple(dict.fromkeys(self.temperatures)) or (settings.temperature,),
            "exploration_ratio": tuple(dict.fromkeys(self.exploration_ratios)) or (settings.exploration_ratio,),
            "prior_precision": tuple(dict.fromkeys(precisions)),
            **({"burn_in": tuple(dict.fromkeys(self.burn_ins))} if self.burn_ins else {}),
            **({"final_lr": tuple(dict.fromkeys(self.final_lrs))} if self.final_lrs else {}),
        }

    def tries_at(self, budget: int, data: ImageData) -> int:
        """Settings that every method tries at a budget."""
        first = count_given(self.given, self.sampler) or self.tries
        halved = self.settings_of is not None or budget != self.all_budgets(data)[0]
        return (min(first, self.keep) if halved else first) + self.extensions

    def nothing_to_tune(self) -> bool:
        """Whether every method takes over one setting as it is."""
        if self.settings_of is not None:
            return min(self.tries, self.keep) + self.extensions == 1
        return count_given(self.given, self.sampler) == 1 and not self.extensions

    def settings_note(self) -> str:
        """The sentence of a table on where its settings come from."""
        source = NAMED if self.given else OWN_CHOICE if self.settings_of is None else EARLIER
        return settings_note(source, tuned=not self.nothing_to_tune())

    def candidates(self, method: str, data: ImageData) -> list[Setting]:
        """The settings that a method tries at the smallest budget, before the further ones."""
        if self.given:
            return given_settings(self.given, METHODS[method], data.num_data)
        if self.settings_of is not None:
            count = min(self.tries, self.keep)
            return earlier_settings(self.settings_of, METHODS[method], self.settings, data.num_data, count)
        rate = METHODS[method].rate(self.settings)
        return candidates(METHODS[method], self.tries, self.grid, self.alternatives(data), rate)

    def tuning_seeds(self) -> range:
        """Seeds of the tuning's runs."""
        return range(TUNING_SEEDS + self.seed, TUNING_SEEDS + self.seed + self.tune_seeds)

    def prepared(self) -> str:
        """The device, once torch is set up for it."""
        return prepare_torch(self.device, self.threads)

    def load(self) -> tuple[ImageData, dict[str, ImageData]]:
        """The data on their device, `validated`."""
        device = self.prepared()
        data = self.settings.load_data(self.data)
        ood = self.settings.load_ood(self.data, data, self.settings.ood)
        return self.validated(data.to(device)), {name: each.to(device) for name, each in ood.items()}

    def validated(self, data: ImageData) -> ImageData:
        """The same data; raises whatever is wrong with the options before anything is trained."""
        if not len(data.val_y):
            raise ValueError(f"tuning needs validation images, which {self.settings.dataset} lacks")
        if self.corruptions:
            check_images(data)
        if self.corruption_files:
            find_corrupted(self.settings.dataset, self.data)
        if self.plane and not data.num_classes:
            raise ValueError("plane shows the share of wrong classes, and this is a regression")
        for budget in self.all_budgets(data):
            for method in self.sampler:
                for also in dict.fromkeys(setting.also for setting in self.candidates(method, data)):
                    own: dict[str, Any] = dict(also)
                    settings = replace(self.settings, steps=budget, **own)
                    validate_run(METHODS[method], settings, METHODS[method].rate(settings), data)
        return data


def parse_compare(arguments: Sequence[str] | None, description: str | None = None) -> CompareOptions:
    """The options of `compare.py`; those of the preset, if one is named, are the defaults of the others."""
    presets = {
        name: CompareOptions(settings=settings, budgets=budgets, preset=name)
        for name, (settings, budgets) in PRESETS.items()
    }
    return parse(arguments, CompareOptions(), presets, description)
