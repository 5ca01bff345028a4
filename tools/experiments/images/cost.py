"""What a comparison will cost, from a few steps of every method."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from experiments.harness.devices import synchronize
from experiments.harness.tables import markdown
from experiments.images.likelihood import likelihood_of
from experiments.images.log import Log
from experiments.images.methods import METHODS, ImageMethod
from experiments.images.minibatches import minibatches
from experiments.images.options import CompareOptions
from experiments.images.settings import Settings
from experiments.images.training import build_network, minibatch_run, parameter_groups
from learned_samplers.base.whitening import AT_FIRST, ROOT_EVERY
from meta_tasks.datasets import ImageData, TokenData, keep_labels, shape_of
from meta_tasks.datasets.texts import SPECIAL

STEPS = 3  # of which the first, which allocates, is not timed
# Of a sampler that whitens: those in which it makes its roots at every step are not timed, and then a whole period is.
WHITENING_STEPS = (AT_FIRST, ROOT_EVERY)
STAND_IN = "random examples"


def stand_in(settings: Settings, count: int = 2048) -> ImageData:
    """Random examples in the shape of a data set whose files are missing: a step costs the same.

    Raises:
        ValueError: the shape is not known without the files.
    """
    if settings.is_text:
        words = (*SPECIAL, *map(str, range((settings.vocabulary or 20_000) - 2)))
        x = torch.randint(2, len(words), (count, settings.length or 400))
        y = torch.arange(count) % 2
        return TokenData(STAND_IN, 2, x, y, x[:64], y[:64], x[:64], y[:64], vocabulary=words)
    (channels, height, width), classes = shape_of(settings.dataset)
    height, width = (settings.size or height, settings.size or width)
    x, y = torch.rand(count, 1 if settings.grayscale else channels, height, width), torch.arange(count) % classes
    data = ImageData(STAND_IN, classes, x, y, x[:64], y[:64], x[:64], y[:64])
    return data if settings.labels is None else keep_labels(data, settings.labels)


def gradient_flops(settings: Settings, data: ImageData) -> int:
    """Floating-point operations of one minibatch gradient, by torch's counter (convolutions and matrix products)."""
    model = build_network(settings, data)
    x, y = data.train_x[: settings.batch_size], data.train_y[: settings.batch_size]
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        # oneDNN and cuDNN make one operation of an LSTM, of which the counter knows nothing; oneDNN has none in double.
        model, x = model.double(), x.double() if x.is_floating_point() else x
    with torch.backends.cudnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
        likelihood_of(data, settings).loss(model(x), y).backward()
    return counter.get_total_flops()


def seconds_per_gradient(method: ImageMethod, settings: Settings, data: ImageData) -> float:
    """Wall-clock seconds that a run takes for each gradient of its budget, measured in a few of its steps."""
    budget = settings.budget(data.num_data)
    model = build_network(settings, data)
    optimizer = method.build(parameter_groups(model), settings, method.rate(settings), data.num_data, budget)
    draws = minibatches(data, settings, seed=0)
    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer, tqdm(disable=True) as bar:
        # A budget of its own that is never reached: nothing is written, and no validation is timed.
        log = Log(writer, bar, data, 1_000_000, likelihood=likelihood_of(data, settings))
        warming = getattr(optimizer, "explorer", None)
        whitens = "whitening" in getattr(warming.optimizer if warming else optimizer, "state_names", ())
        before, timed = WHITENING_STEPS if whitens else (1, STEPS - 1)
        minibatch_run(model, optimizer, data, before, draws, log)
        synchronize(data.train_x.device)
        start = time.perf_counter()
        minibatch_run(model, optimizer, data, timed, draws, log)
        synchronize(data.train_x.device)
    return (time.perf_counter() - start) / timed / method.gradients_per_step


def cost_table(options: CompareOptions, data: ImageData, gradients: int) -> str:
    """The runs that are planned and what they will take, as Markdown; a few steps of every method are done for it.

    Args:
        gradients: of all runs of one method, see `planned_gradients`.

    Raises:
        ValueError: a method that takes the whole training set at each step.
    """
    settings = replace(options.settings, steps=max(options.all_budgets(data)))
    flops = gradient_flops(settings, data)
    rows: list[dict[str, Any]] = []
    total = 0.0
    for name in options.sampler:
        if METHODS[name].kind == "full_batch":
            raise ValueError(f"dry_run: {name} takes the whole training set at each step, whose cost is not measured")
        torch.manual_seed(options.seed)
        seconds = seconds_per_gradient(METHODS[name], settings, data)
        total += seconds * gradients
        rows.append(
            {
                "method": name,
                "gradients": str(gradients),
                "ms/gradient": f"{1000 * seconds:.2f}",
                "hours": f"{seconds * gradients / 3600:.2f}",
            }
        )
    count = gradients * len(rows)
    return (
        f"{markdown(rows)}\n\n{count} gradients of {flops / 1e9:.3g} GFLOP, {count * flops / 1e15:.3g} PFLOP together: "
        f"{total / 3600:.2f} hours at the speed measured, {count * flops / 3.6e15:.3g} at 1 TFLOP/s. Scoring, and runs "
        "at equal time, come on top."
    )
