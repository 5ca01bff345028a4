"""Tables: the span of a wide one, weighted scales, rounding."""

import numpy as np
import pytest

from learned_samplers.estimators.tables import Standardised, location_and_scale, rounding


def test_weighted_rows_have_the_scales_of_repeated_ones():
    x = np.random.default_rng(0).normal(3, 2, (20, 4))
    counts = np.arange(20) % 3
    for weighted, repeated in zip(location_and_scale(x, counts), location_and_scale(x.repeat(counts, 0)), strict=True):
        np.testing.assert_allclose(weighted, repeated)


def test_a_wide_table_is_seen_in_its_span_and_the_distance_from_it():
    """Lengths and angles between rows of fit are kept, and the length of new rows: all that a network of the same prior
    in every direction can tell."""
    random = np.random.default_rng(0)
    x, new = random.normal(size=(12, 500)), random.normal(size=(5, 500))
    inputs, plain = Standardised.of(x), Standardised(*location_and_scale(x))
    assert inputs(x).shape == (12, 12)  # eleven directions of centred rows, and a distance
    np.testing.assert_allclose(inputs(x) @ inputs(x).T, plain(x) @ plain(x).T, atol=1e-8)
    np.testing.assert_allclose(inputs(x)[:, -1], 0)
    np.testing.assert_allclose(inputs(new) @ inputs(x).T, plain(new) @ plain(x).T, atol=1e-8)
    np.testing.assert_allclose((inputs(new) ** 2).sum(1), (plain(new) ** 2).sum(1))
    assert Standardised.of(x[:, :20]).basis is None


def test_rounding_is_that_of_the_grid_and_zero_without_one():
    stream = np.random.default_rng(0)
    assert rounding(np.array([1.0, 3.0, 3.0, 2.0, 1.0, 3.0])) == pytest.approx(12**-0.5)
    assert rounding(np.r_[np.repeat([0.3, 0.5], 9), 0.1 + 0.2]) == pytest.approx(0.2 / 12**0.5)
    assert rounding(1.7e9 + np.repeat(np.arange(5), 9)) == pytest.approx(12**-0.5)
    assert rounding(stream.normal(size=50)) == rounding(np.ones(5)) == rounding(np.arange(3.0)) == 0
