"""The three forms of the rules' operations do the same arithmetic, with numbers and with tensor scalars."""

import pytest
import torch

from learned_samplers.base.operations import FOREACH, FUNCTIONAL, IN_PLACE

CASES = {
    "scale": lambda ops, x, y, z, c: ops.scale(x, c),
    "add": lambda ops, x, y, z, c: ops.add(x, y, c),
    "multiply": lambda ops, x, y, z, c: ops.multiply(x, y),
    "shift": lambda ops, x, y, z, c: ops.shift(x, c),
    "combine": lambda ops, x, y, z, c: ops.combine(x, y, c),
    "divide": lambda ops, x, y, z, c: ops.divide(x, y),
    "add_product": lambda ops, x, y, z, c: ops.add_product(x, y, z, c),
    "add_ratio": lambda ops, x, y, z, c: ops.add_ratio(x, y, z, c),
    "sqrt": lambda ops, x, y, z, c: ops.sqrt(z),
    "affine": lambda ops, x, y, z, c: ops.affine(x, c, 0.3),
    "mean_square": lambda ops, x, y, z, c: ops.mean_square(x, ops.affine(x, 1.0, 0.0)),
    "map": lambda ops, x, y, z, c: ops.map(torch.maximum, x, y),
}
FRESH = {"combine", "sqrt", "affine", "mean_square", "map"}


@pytest.mark.parametrize("scalar", [0.7, torch.tensor(0.7)], ids=["number", "tensor"])
@pytest.mark.parametrize("name", CASES)
def test_the_three_forms_agree(name, scalar):
    xs, ys, zs = ([torch.rand(s) + 0.5 for s in [(2, 3), (1,), ()]] for _ in range(3))
    expected = [CASES[name](FUNCTIONAL, x, y, z, scalar) for x, y, z in zip(xs, ys, zs, strict=True)]
    looped = [x.clone() for x in xs]
    in_place = [CASES[name](IN_PLACE, x, y, z, scalar) for x, y, z in zip(looped, ys, zs, strict=True)]
    listed = [x.clone() for x in xs]
    foreach = CASES[name](FOREACH, listed, ys, zs, scalar)
    for e, a, b in zip(expected, in_place, foreach, strict=True):
        assert torch.equal(a, b)
        assert torch.allclose(e, a)
    for x, loop, many in zip(xs, looped, listed, strict=True):
        if name in FRESH:
            assert torch.equal(x, loop)
            assert torch.equal(x, many)
        else:
            assert not torch.equal(x, loop)
