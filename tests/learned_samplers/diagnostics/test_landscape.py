"""Angles between samples whose tensors come in different orders."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from learned_samplers.diagnostics import cosine_similarity


def test_the_order_of_the_names_does_not_matter():
    torch.manual_seed(0)
    sample = {"a": torch.randn(3, 2), "b": torch.randn(4), "c": torch.randn(1)}
    other = {name: torch.randn_like(tensor) for name, tensor in sample.items()}
    turned = [{name: one[name] for name in order} for one, order in ((sample, "abc"), (sample, "cba"), (other, "bca"))]
    expected = cosine_similarity([sample, sample, other])
    np.testing.assert_allclose(cosine_similarity(turned), expected, rtol=1e-12)
    assert expected[0, 1] == pytest.approx(1)
    assert abs(expected[0, 2]) < 0.9


def test_other_names_or_shapes_are_refused():
    sample = {"a": torch.ones(2), "b": torch.ones(2)}
    with pytest.raises(ValueError, match=r"samples\[1\] has other names than samples\[0\]: \['b', 'c'\]"):
        cosine_similarity([sample, {"a": torch.ones(2), "c": torch.ones(2)}])
    with pytest.raises(ValueError, match=r"samples\[2\] has other shapes than samples\[0\]"):
        cosine_similarity([sample, sample, {"a": torch.ones(1), "b": torch.ones(3)}])
