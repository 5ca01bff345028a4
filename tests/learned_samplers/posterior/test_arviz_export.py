"""The way to ArviZ: every coordinate in its place, for both kinds of the package."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from learned_samplers.posterior import arviz_export
from tests.learned_samplers.posterior.common import collect, network


def collected(steps=6, seed=0, **options):
    return collect(network(seed=seed), steps, **options)[2]


def test_to_arviz_has_every_coordinate_in_its_place():
    first, second = collected(burn_in=1), collected(seed=1, burn_in=1)
    data = first.to_arviz(second, max_parameters=None)
    weights = data.posterior["weights"]
    assert weights.dims == ("chain", "draw", "parameter")
    assert weights.shape == (2, 5, 4 * 8 + 8 + 8 * 3 + 3)
    for c, chain in enumerate((first, second)):
        for k, sample in enumerate(chain):
            row = weights[c, k]
            assert row.sel(parameter="0.weight[7,2]").item() == sample["0.weight"][7, 2].item()
            assert row.sel(parameter="2.bias[1]").item() == sample["2.bias"][1].item()
            flat = torch.cat([tensor.ravel() for tensor in sample.values()])
            np.testing.assert_array_equal(row.values, flat.numpy().astype(np.float64))
    assert data.sample_stats["step"].values.tolist() == [[2, 3, 4, 5, 6]] * 2
    assert data.sample_stats["cycle"].values.tolist() == [[0] * 5] * 2


def test_to_arviz_of_the_other_kind(monkeypatch):
    """ArviZ 1 takes the groups in one dictionary; these tests have been run with 1.3 as well."""
    posterior = collected()
    for module in (
        SimpleNamespace(__version__="1.3.0", from_dict=lambda data, coords, dims: (data, coords, dims)),
        SimpleNamespace(
            __version__="0.23.4",
            from_dict=lambda posterior, sample_stats, coords, dims: (
                {"posterior": posterior, "sample_stats": sample_stats},
                coords,
                dims,
            ),
        ),
    ):
        monkeypatch.setattr(arviz_export, "import_arviz", lambda module=module: module)
        groups, coordinates, dimensions = posterior.to_arviz(max_parameters=2)
        assert groups["posterior"]["weights"].shape == (1, len(posterior), 2)
        assert groups["sample_stats"]["step"].tolist() == [posterior.steps]
        assert len(coordinates["parameter"]) == 2
        assert dimensions == {"weights": ["parameter"]}


def test_to_arviz_takes_some_of_the_parameters():
    posterior = collected()
    chosen = posterior.to_arviz(parameters=["2.weight"], max_parameters=4).posterior["weights"]
    assert chosen.parameter.values.tolist() == ["2.weight[0,0]", "2.weight[0,6]", "2.weight[1,4]", "2.weight[2,2]"]


def test_the_log_likelihood_is_that_of_every_row_and_loo_works():
    arviz = pytest.importorskip("arviz")
    first, second = collected(steps=20, burn_in=1), collected(steps=20, seed=1, burn_in=1)
    x, y = torch.randn(7, 4), torch.arange(7) % 3

    def log_likelihood(logits):
        return torch.distributions.Categorical(logits=logits).log_prob(y)

    data = first.to_arviz(second, inputs=x, log_likelihood=log_likelihood)
    values = data.log_likelihood["y"].values
    assert values.shape == (2, 19, 7)
    probs = second.predict_samples(x)
    np.testing.assert_allclose(values[1], probs[:, torch.arange(7), y].log().numpy(), rtol=1e-5)
    loo = arviz.loo(data)
    assert loo.n_data_points == 7
    assert loo.elpd_loo < values.mean((0, 1)).sum() + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": torch.zeros(2, 4)}, "got None for log_likelihood"),
        ({"log_likelihood": lambda logits: logits[:, 0]}, "got None for inputs"),
        ({"inputs": torch.zeros(2, 4), "log_likelihood": lambda logits: logits}, r"\(2,\), got \(2, 3\)"),
        ({"inputs": torch.zeros(2, 4), "log_likelihood": lambda logits: logits[:, 0] / 0}, "must be finite"),
    ],
)
def test_a_log_likelihood_that_is_none_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        collected().to_arviz(**options)
