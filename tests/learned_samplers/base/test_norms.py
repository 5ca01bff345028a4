"""Norms of many tensors: every one counts, at whatever size, dtype and layout."""

import math

import pytest
import torch

from learned_samplers.base import norms

SMALL, LARGE = (3, 4), (norms._LARGE + 5,)
KINDS = {
    "small": [torch.ones(shape) for shape in (SMALL, (1,), (), (2, 3, 1))],
    "doubles beside": [torch.ones(SMALL), torch.ones(SMALL, dtype=torch.float64), torch.ones(5)],
    "large beside": [torch.ones(LARGE), torch.ones(SMALL), torch.ones(LARGE)],
    "half beside": [torch.ones(SMALL, dtype=torch.bfloat16), torch.ones(SMALL), torch.ones(4, dtype=torch.float16)],
    "strided": [torch.ones(6, 5).mT, torch.ones(8, 8)[::2, 1::3], torch.ones(2, 2)],
    "empty beside": [torch.ones(0, 3), torch.ones(SMALL)],
    "nothing": [],
}


@pytest.mark.parametrize("kind", KINDS)
def test_joint_norms_are_those_of_all_tensors(kind):
    tensors = [(1 + i) * x for i, x in enumerate(KINDS[kind])]
    joint, nothing = norms.joint_norms(tensors, [])
    expected = math.hypot(*norms.norms(tensors)) if tensors else 0.0
    assert math.hypot(*(value for _, value in joint)) == pytest.approx(expected, rel=1e-6)
    assert {dtype for dtype, _ in joint} == {x.dtype for x in tensors}
    assert not nothing


@pytest.mark.parametrize("kind", [name for name, tensors in KINDS.items() if tensors])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_number_that_is_not_finite_is_seen_wherever_it_is(kind, value):
    for i, x in enumerate(KINDS[kind]):
        for place in {0, x.numel() - 1} if x.numel() else ():
            tensors = [one.clone() for one in KINDS[kind]]
            tensors[i][torch.arange(x.numel()).view(x.shape) == place] = value
            assert not all(math.isfinite(norm) for _, norm in norms.joint_norms(tensors)[0])
