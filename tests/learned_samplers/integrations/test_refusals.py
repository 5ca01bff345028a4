"""Refusals of the integrations: an error of its class that names the argument."""

from types import SimpleNamespace

import pytest
import torch

from learned_samplers import SGLD
from learned_samplers.integrations.tensorboard import ChainLog
from tests.learned_samplers.integrations.test_second_training import HuggingFace, Lightning


def sampler():
    return SGLD([torch.zeros(1, requires_grad=True)], 0.1, 10)


def beside_adam(**options):
    """Manual optimisation: Adam trains the first layer, a sampler the second."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3))
    optimizers = [torch.optim.Adam(model[0].parameters()), SGLD(model[1].parameters(), 0.1, 10)]
    trainer = SimpleNamespace(optimizers=optimizers, gradient_clip_val=None, global_step=0)
    collect = Lightning(**options).collect
    collect.on_train_start(trainer, model)
    return collect.posterior


def test_the_part_that_a_sampler_moves_is_collected():
    assert beside_adam(optimizer=1, network="1").parameter_names == ["weight", "bias"]


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: ChainLog(torch.optim.SGD(sampler().param_groups), None), TypeError, "sampler.*SGD"),
        (lambda: ChainLog(sampler(), None, every=0), ValueError, "every.*0"),
        (lambda: HuggingFace(missing="ignore"), ValueError, "missing.*'ignore'"),
        (lambda: Lightning(missing="ignore"), ValueError, "missing.*'ignore'"),
        (lambda: Lightning(optimizer=-1), ValueError, "optimizer.*-1"),
        (lambda: Lightning(thickness=3).train(), TypeError, "thickness"),
        (lambda: beside_adam(), ValueError, r"'1\.weight'.*optimizer=1, network='1'"),
        (lambda: beside_adam(optimizer=1), ValueError, r"'0\.weight'.*optimizer=1, network='1'"),
        (lambda: beside_adam(optimizer=2), ValueError, "optimizer.*2"),
        (lambda: beside_adam(network="2"), ValueError, "network.*'2'"),
        (lambda: HuggingFace(thickness=3).train(), TypeError, "thickness"),
    ],
)
def test_refusals(call, error, named):
    with pytest.raises(error, match=named):
        call()
