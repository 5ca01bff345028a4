"""What a comparison will cost, from a few steps of every method."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from experiments.compare.options import CompareOptions
from experiments.harness.devices import synchronize
from experiments.harness.runs.likelihood import likelihood_of
from experiments.harness.runs.log import Log
from experiments.harness.runs.methods import METHODS, RunMethod
from experiments.harness.runs.minibatches import minibatches
from experiments.harness.runs.settings import Settings
from experiments.harness.runs.training import Training
from experiments.harness.tables import markdown
from learned_samplers.base.matrices import ROOT_EVERY
from meta_tasks.datasets import ImageData, TokenData, keep_labels, shape_of
from meta_tasks.datasets.texts import SPECIAL


def stand_in(settings: Settings, count: int = 2048) -> ImageData:
    """Random examples in the shape of a data set whose files are missing: a step costs the same.

    Raises:
        ValueError: the shape is not known without the files.
    """
    if settings.is_text:
        words = (*SPECIAL, *map(str, range((settings.vocabulary or 20_000) - 2)))
        x = torch.randint(2, len(words), (count, settings.length or 400))
        y = torch.arange(count) % 2
        return TokenData("random examples", 2, x, y, x[:64], y[:64], x[:64], y[:64], vocabulary=words)
    (channels, height, width), classes = shape_of(settings.dataset)
    x = torch.rand(count, channels, settings.size or height, settings.size or width)
    y = torch.arange(count) % classes
    data = ImageData("random examples", classes, x, y, x[:64], y[:64], x[:64], y[:64])
    return data if settings.labels is None else keep_labels(data, settings.labels)


def seconds_per_gradient(method: RunMethod, settings: Settings, data: ImageData) -> float:
    """Wall-clock seconds that a run takes for each gradient of its budget, measured in a few of its steps."""
    draws, lr = minibatches(data, settings, seed=0), method.rate(settings)
    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer, tqdm(disable=True) as bar:
        # A budget of its own that is never reached: nothing is written, and no validation is timed.
        log = Log(writer, bar, data, likelihood_of(data, settings), 1_000_000)
        budget = settings.budget(data.num_data)
        run = Training(method, replace(settings, compiled=False), lr, data, budget, draws, log)
        model, optimizer = run.begin(budget)
        # A sampler that whitens makes each of its roots once in a period, which is timed.
        run.loop(model, optimizer, 2, None)
        synchronize(data.train_x.device)
        start = time.perf_counter()
        run.loop(model, optimizer, ROOT_EVERY, None)
        synchronize(data.train_x.device)
    return (time.perf_counter() - start) / ROOT_EVERY / method.gradients_per_step


def cost_table(options: CompareOptions, data: ImageData, gradients: int) -> str:
    """The runs that are planned and what they will take, as Markdown; a few steps of every method are done for it.

    Args:
        gradients: of all runs of one method, see `planned_gradients`.

    Raises:
        ValueError: a method that takes the whole training set at each step.
    """
    settings = replace(options.settings, steps=max(options.all_budgets(data)))
    rows: list[dict[str, Any]] = []
    total = 0.0
    for name in options.sampler:
        if METHODS[name].full_batch:
            raise ValueError(f"dry_run: {name} takes the whole training set at each step, whose cost is not measured")
        torch.manual_seed(options.seed)
        seconds = seconds_per_gradient(METHODS[name], settings, data)
        total += seconds * gradients
        cells = {"ms/gradient": f"{1000 * seconds:.2f}", "hours": f"{seconds * gradients / 3600:.2f}"}
        rows.append({"method": name, "gradients": str(gradients), **cells})
    return f"{markdown(rows)}\n\n{total / 3600:.2f} hours together. Scoring, and runs at equal time, come on top."
