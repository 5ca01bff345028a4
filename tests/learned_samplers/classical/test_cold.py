"""At temperature 0 a sampler is the torch optimizer that it is named after."""

from functools import partial

import pytest
import torch
from torch.optim import SGD, RMSprop

from learned_samplers import PSGLD, SGHMC, SGLD
from tests.harness import closure_for, flat, small_network


def end_of(make, steps=30):
    """The weights after some steps of an optimizer, with one noise for all."""
    model = small_network()
    optimizer = make(model.parameters())
    torch.manual_seed(2)
    for _ in range(steps):
        closure_for(model, optimizer)()
        optimizer.step()
    return flat(model)


def cold(cls, lr, num_data, **settings):
    return partial(cls, lr=lr, num_data=num_data, temperature=0, **settings)


@pytest.mark.parametrize(
    ("ours", "theirs", "tolerance"),
    [
        (cold(SGLD, 0.3, 100), partial(SGD, lr=0.3), 0),
        (cold(PSGLD, 0.01, 100, decay=0.9, eps=1e-6), partial(RMSprop, lr=0.01, alpha=0.9, eps=1e-6), 0),
        *(
            (cold(SGHMC, 0.1, 5000, momentum_decay=decay), partial(SGD, lr=0.1, momentum=1 - decay), 2e-6)
            for decay in (0.05, 0.5, 1.0)
        ),
        # The prior is a weight decay of λ/N.
        (cold(SGLD, 0.1, 50, prior_precision=2.0), partial(SGD, lr=0.1, weight_decay=0.04), 2e-6),
        (cold(SGHMC, 0.1, 50, prior_precision=2.0), partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.04), 2e-6),
        (cold(SGHMC, 0.1, 50, momentum_decay=1.0), cold(SGLD, 0.1, 50), 1e-6),
    ],
)
def test_a_cold_sampler_is_its_optimizer(ours, theirs, tolerance):
    """Bit for bit where the arithmetic is the same."""
    torch.testing.assert_close(end_of(ours), end_of(theirs), atol=tolerance, rtol=5 * tolerance)


def test_sghmc_without_memory_is_sgld_with_noise_too():
    ours, theirs = partial(SGHMC, lr=0.1, num_data=50, momentum_decay=1.0), partial(SGLD, lr=0.1, num_data=50)
    assert torch.allclose(end_of(ours, 5), end_of(theirs, 5), atol=1e-5)
