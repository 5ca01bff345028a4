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
    value = metrics.nll(pd.DataFrame(PROBS, index), pd.Series(LABELS, index))
    assert value == metrics.nll(PROBS, LABELS)


@pytest.mark.parametrize("kind", ["inference data", "tree", "variable"])
def test_predictions_of_arviz_are_read(kind):
    """All draws where each is wanted, their mean where one prediction is."""
    xarray, arviz = pytest.importorskip("xarray"), pytest.importorskip("arviz")
    draws = RNG.dirichlet(np.ones(3), size=(2, 5, 20))
    variable = xarray.DataArray(draws, dims=("chain", "draw", "row", "class")).transpose(
        "row", "class", "chain", "draw"
    )
    dataset = xarray.Dataset({"y": variable})
    value = {
        "inference data": lambda: arviz.InferenceData(posterior_predictive=dataset),
        "tree": lambda: xarray.DataTree.from_dict({"predictions": dataset}),
        "variable": lambda: variable,
    }[kind]()
    assert metrics.nll(value, LABELS) == pytest.approx(metrics.nll(draws.mean((0, 1)), LABELS))
    flat = draws.reshape(10, 20, 3)
    assert metrics.pairwise_kld(value) == pytest.approx(metrics.pairwise_kld(flat))


def test_predictions_of_two_variables_are_refused():
    xarray = pytest.importorskip("xarray")
    variable = xarray.DataArray(PROBS[None, None], dims=("chain", "draw", "row", "class"))
    tree = xarray.DataTree.from_dict({"predictions": xarray.Dataset({"y": variable, "z": variable})})
    with pytest.raises(ValueError, match=r"one variable in predictions, got \['y', 'z'\]"):
        metrics.nll(tree, LABELS)
