"""What the integrations refuse: an error of its class that names the argument."""

import pytest
import torch

from learned_samplers import SGLD
from learned_samplers.integrations.tensorboard import ChainLog
from tests.learned_samplers.integrations.test_second_training import HuggingFace, Lightning


def sampler():
    return SGLD([torch.zeros(1, requires_grad=True)], 0.1, 10)


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: ChainLog(torch.optim.SGD(sampler().param_groups), None), TypeError, "sampler.*SGD"),
        (lambda: ChainLog(sampler(), None, every=0), ValueError, "every.*0"),
        (lambda: HuggingFace(missing="ignore"), ValueError, "missing.*'ignore'"),
        (lambda: Lightning(missing="ignore"), ValueError, "missing.*'ignore'"),
        (lambda: Lightning(optimizer=-1), ValueError, "optimizer.*-1"),
        (lambda: Lightning(thickness=3).train(), TypeError, "thickness"),
        (lambda: HuggingFace(thickness=3).train(), TypeError, "thickness"),
    ],
)
def test_refusals(call, error, named):
    with pytest.raises(error, match=named):
        call()
