"""Arrays of every layout and byte order are read."""

import numpy as np
import pandas as pd
import pytest
import torch

from learned_samplers import SampleCollection, metrics

RNG = np.random.default_rng(0)
PROBS, LABELS = RNG.dirichlet(np.ones(3), size=20), RNG.integers(0, 3, size=20)
MEAN, TARGETS = RNG.normal(size=(2, 20))
FORMS = {
    "reversed": lambda array: array[::-1].copy()[::-1],
    "swapped": lambda array: array.astype(array.dtype.newbyteorder("S")),
    "every second": lambda array: np.repeat(array, 2, axis=0)[::2],
    "transposed": lambda array: np.asfortranarray(array),
}


@pytest.mark.parametrize("form", FORMS)
def test_arrays_of_every_form_are_read(form):
    change = FORMS[form]
    assert metrics.nll(change(PROBS), change(LABELS)) == metrics.nll(PROBS, LABELS)
    assert metrics.gaussian_crps(change(MEAN), np.array(0.5), change(TARGETS)) == metrics.gaussian_crps(
        MEAN, 0.5, TARGETS
    )
    warmer = metrics.with_temperature(change(PROBS), 2.0)
    assert torch.equal(warmer, metrics.with_temperature(PROBS, 2.0))
    model = torch.nn.Linear(3, 2)
    samples = SampleCollection.from_samples(model, [model.state_dict()])
    assert torch.equal(samples.predict(change(PROBS)), samples.predict(PROBS))


def test_tables_are_read_by_position_whatever_their_index_says():
    index = np.arange(len(PROBS))[::-1] + 5
    found = metrics.nll(pd.DataFrame(PROBS, index), pd.Series(LABELS, index))
    assert found == metrics.nll(PROBS, LABELS)
