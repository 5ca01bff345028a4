"""What `multi_task.py` will cost, from a few steps of every method on random images: its ``--dry-run``."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from experiments.harness.devices import device_name
from experiments.harness.tables import markdown
from experiments.multi_task.comparison import planned_epochs
from experiments.multi_task.methods import METHODS
from experiments.multi_task.networks import build
from experiments.multi_task.options import TaskOptions
from experiments.multi_task.runner import new_result, train
from meta_tasks.datasets import MultiTaskData

STEPS = 3  # that are timed, after as many that are not
#: Images of a timed step of ResNet-18 on a CPU, where one of 256 would take minutes; its time is taken in proportion.
FEW = 8
#: Training examples where no limit is set: pairs of `load_overlaid`, and CelebA's images.
TRAINING = {"celeba": 162_770}
PAIRS = 108_000


def stand_in(options: TaskOptions, name: str) -> MultiTaskData:
    """Random images in the shape of a data set, for a few steps."""
    settings = options.settings
    if name == "celeba":
        channels, tasks, classes = 3, settings.attributes, 2
    else:
        channels, tasks, classes = 1, ("top left", "bottom right"), 10
    parts = []
    for count in (steps_of(options) * settings.batch_size, 10, 10):
        shape = (count, channels, settings.size, settings.size)
        images = torch.randint(256, shape, dtype=torch.uint8)
        parts += [images, torch.randint(classes, (count, len(tasks)))]
    return MultiTaskData(name, tasks, classes, *parts)


def steps_of(options: TaskOptions) -> int:
    """Steps that are timed: of ResNet-18 one."""
    return 1 if options.settings.network == "resnet18" else STEPS


def seconds_per_step(options: TaskOptions, name: str, method: str, device: str) -> float:
    """Wall-clock seconds of a step, by the loop that the runs have."""
    size = options.settings.batch_size
    if options.settings.network == "resnet18" and device == "cpu" and size > FEW:
        few = replace(options, settings=replace(options.settings, batch_size=FEW))
        return seconds_per_step(few, name, method, device) * size / FEW
    settings, data = options.settings, stand_in(options, name).to(device)
    choice = options.choices(method)[0]
    torch.manual_seed(options.seed)
    shape = (settings.network, data.input_shape, len(data.tasks), data.num_classes)
    separate = METHODS[method].separate
    network = build(*shape, settings.particles, settings.first_kernel, separate=separate).to(device)
    if settings.standardise:
        network.standardise(data.train_x)
    result = new_result(settings, name, method, choice.lr, choice.energy, 1, options.seed)
    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer, tqdm(disable=True) as bar:
        for _ in range(2):  # the first allocates
            result.seconds, result.steps = 0.0, 0
            train(network, settings, result, data, writer, bar)
    if result.diverged is not None:
        raise ValueError(f"dry_run: {method} cannot be timed: {result.diverged}")
    return result.seconds / result.steps


def cost_table(options: TaskOptions, device: str) -> str:
    """The runs that are planned and what they will take here, as Markdown; no file is needed.

    Raises:
        ValueError: options that cannot be run.
    """
    rows: list[dict[str, Any]] = []
    hours = 0.0
    for name in options.dataset:
        images = options.settings.train or TRAINING.get(name, PAIRS)
        per_epoch = images // min(options.settings.batch_size, images)
        for method in options.method:
            steps, seconds = (
                planned_epochs(options, method) * per_epoch,
                seconds_per_step(options, name, method, device),
            )
            hours += steps * seconds / 3600
            row = {"data set": name, "method": method, "steps": f"{steps:,}", "ms/step": f"{1000 * seconds:.3g}"}
            rows.append({**row, "hours": f"{steps * seconds / 3600:.3g}"})
    steps = steps_of(options)
    timed = f"{steps} step{'s' * (steps > 1)} on random images"
    if options.settings.network == "resnet18" and device == "cpu":
        timed += f" ({FEW} of them, in proportion: too much by what does not grow with the minibatch)"
    return (
        f"{markdown(rows)}\n\n{hours:.3g} hours together on {device_name(device)}, at the speed of {timed}; "
        "validation after every epoch, scoring, and further learning rates come on top"
    )
