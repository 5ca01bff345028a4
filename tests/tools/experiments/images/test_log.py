"""The curves of a run: ‖Δθ‖² is that of the very step, and the loss beside it that of the minibatches before."""

from __future__ import annotations

import pytest
import torch
from experiments.images.log import Log
from experiments.images.runner import ImageRuns, store_for
from experiments.images.settings import Settings
from experiments.images.training import minibatch_run
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from meta_tasks.datasets import ImageData


def test_squared_steps_are_those_of_the_optimizer(tmp_path):
    x, y = torch.rand(20, 1, 2, 2), torch.arange(20) % 2
    data = ImageData("tiny", 2, x, y, x[:4], y[:4], x[:4], y[:4])
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    steps, losses = [], []

    def noting(*_):
        steps.append(0.25 * sum(p.grad.square().sum().item() for p in model.parameters()))

    optimizer.register_step_pre_hook(noting)
    batches = [(x[i : i + 5], y[i : i + 5]) for i in (0, 5, 10, 15)] * 60
    with SummaryWriter(str(tmp_path)) as writer, tqdm(disable=True) as bar:
        log = Log(writer, bar, data, 200)
        add = log.add
        log.add = lambda loss, logits, labels: (losses.append(loss.item()), add(loss, logits, labels))
        minibatch_run(model, optimizer, data, 200, batches, log)
    assert [point[0] for point in log.movement_curve] == list(range(2, 201, 2))
    for step, squared, loss in log.movement_curve:
        assert squared == pytest.approx(steps[step - 1], rel=1e-4)
        assert loss == pytest.approx(sum(losses[step - 2 : step]) / 2, rel=1e-4)


@pytest.mark.parametrize(("method", "gradients"), [("SGD", 40), ("KineticL2E", 40), ("HMC", 36)])
def test_gradients_are_counted_where_no_bar_is_shown(tmp_path, method, gradients):
    """With TQDM_DISABLE=1, that is; a trajectory of two leapfrog steps takes three passes of four minibatches."""
    settings = Settings(steps=40, limit=320, model="mlp", hidden=(8,), num_samples=2, leapfrog_steps=2, batch_size=80)
    data = settings.load_data(None)
    with tqdm(disable=True, total=60) as bar:
        result = ImageRuns(data, {}, store_for(tmp_path, data)).run(settings, method, 0.001, 0, bar=bar)
    assert result.diverged is None
    assert result.gradient_evaluations == gradients
    assert bar.total == 60 - (40 - gradients), "what was not spent is taken off"
