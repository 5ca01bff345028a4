"""Methods that train one network and average around it: running averages, Gaussians, the last layer's Laplace."""

from __future__ import annotations

import warnings

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from experiments.images.log import Diverged, Log
from experiments.images.methods import ImageMethod
from experiments.images.minibatches import Minibatches
from experiments.images.settings import Settings
from experiments.images.training import (
    annealing,
    build_network,
    minibatch_run,
    parameter_groups,
    point_runs,
    sampler_run,
)
from learned_samplers.approximations import SWAG, laplace_samples
from learned_samplers.base.optional import require
from learned_samplers.posterior.collect import PosteriorSamples, SampleCollection
from meta_tasks.datasets import ImageData


def averaged_run(
    method: ImageMethod, settings: Settings, lr: float, data: ImageData, steps: int, minibatches: Minibatches, log: Log
) -> SampleCollection:
    """The running average of the weights over a run of an optimizer, at a constant rate or `annealing`."""
    model = build_network(settings, data)
    optimizer = method.build(parameter_groups(model), settings, lr, data.num_data, steps)
    decay = 1 - 1 / max(2, settings.average_length * steps)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    optimizer.register_step_post_hook(lambda *_: average.update_parameters(model))
    schedule = annealing(optimizer, settings, lr, steps)
    minibatch_run(model, optimizer, data, steps, minibatches, log, schedule=schedule, compiled=settings.compiled)
    return PosteriorSamples.from_samples(model, [average.module.state_dict()])


def gaussian_run(
    method: ImageMethod, settings: Settings, lr: float, data: ImageData, steps: int, minibatches: Minibatches, log: Log
) -> SampleCollection:
    """Draws from the Gaussian that a run has fitted: an optimizer's own (at a decaying rate), or else SWAG's."""
    model = build_network(settings, data)
    optimizer = method.build(parameter_groups(model), settings, lr, data.num_data, steps)
    if hasattr(optimizer, "sampled_params"):
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        minibatch_run(model, optimizer, data, steps, minibatches, log, schedule=cosine, compiled=settings.compiled)
        return SampleCollection.from_draws(model, optimizer.sampled_params, settings.num_samples)
    # Fitted to twice as many states as a chain gives samples, evenly over the rest of the run.
    burn_in = int(settings.burn_in * steps)
    swag = SWAG(model, optimizer, burn_in, max(1, (steps - burn_in) // (2 * settings.num_samples)))
    schedule = annealing(optimizer, settings, lr, steps)
    minibatch_run(model, optimizer, data, steps, minibatches, log, schedule=schedule, compiled=settings.compiled)
    return SampleCollection.from_draws(model, swag.sampled_params, settings.num_samples)


def last_layer_run(
    method: ImageMethod, settings: Settings, lr: float, data: ImageData, steps: int, minibatches: Minibatches, log: Log
) -> SampleCollection:
    """Draws of the last layer's weights from its Laplace approximation around one trained network.

    The Gauss–Newton matrix of the training images, of the whole layer, and a prior precision by the marginal
    likelihood, as `laplace-torch` does by itself; the training is that of a single network.
    """
    model = point_runs(method, settings, lr, data, steps, minibatches, log).model.eval()
    images = DataLoader(TensorDataset(data.train_x, data.train_y), batch_size=settings.batch_size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of laplace-torch and of what it imports
        laplace = require("laplace", "laplace").Laplace(
            model, "classification", subset_of_weights="last_layer", hessian_structure="full"
        )
        try:
            laplace.fit(images)
            laplace.optimize_prior_precision()
            return laplace_samples(model, laplace, settings.num_samples)
        except RuntimeError as error:  # a matrix that is not positive definite
            raise Diverged(f"the last layer's Laplace approximation: {error}") from error


#: What runs a method of each kind that takes minibatches.
MINIBATCH_RUNS = {
    "optimizer": point_runs,
    "ensemble": point_runs,
    "average": sampler_run,
    "running_average": averaged_run,
    "gaussian": gaussian_run,
    "last_layer": last_layer_run,
    "sampler": sampler_run,
}
