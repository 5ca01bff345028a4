"""Small tensors end to end in blocks, and back."""

import pytest
import torch

from learned_samplers.classical import layout


@pytest.mark.parametrize("axes", [0, 1])
def test_blocks_hold_small_tensors_and_give_them_back(axes, monkeypatch):
    monkeypatch.setattr(layout, "BLOCK_ON_CPU", 8 * 30)
    shapes = [(4, 3), (4, 2, 2), (4, 50), (4,), (4, 1)]
    tensors = [torch.randn(shape) for shape in shapes]
    made = layout.Layout(tensors, axes)
    laid = made.laid(tensors)
    assert [x.numel() for x in laid] == [28, 200, 8]
    assert all(len(x) == 4 for x in laid) or not axes
    for tensor, x in zip(made.apart(laid), tensors, strict=True):
        assert torch.equal(tensor, x)
    assert made.one_each([0.5] * 5) == [0.5] * 3
    sizes = made.apart([x.expand_as(y) for x, y in zip(made.one_each([1.0, 2.0, 3.0, 3.0, 3.0]), laid, strict=True)])
    assert [x.unique().item() for x in sizes] == [1.0, 2.0, 3.0, 3.0, 3.0]
    mixed = [*tensors, torch.randn(4, 2, dtype=torch.float64)]
    assert [x.dtype for x in layout.Layout(mixed, axes).laid(mixed)] == [torch.float32] * 5 + [torch.float64]
