"""The way to ArviZ: every coordinate in its place, for both kinds of the package."""

from types import SimpleNamespace

import numpy as np
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
