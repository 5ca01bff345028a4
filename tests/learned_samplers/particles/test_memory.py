"""Memory of a step grows as M·d: no operation makes a tensor larger than the gradients of all targets, and each of them
has a deterministic form on CUDA."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from learned_samplers.particles import FSVGD, RBF, SVGD, kernels
from tests.learned_samplers.particles.particle_problems import EVERY, energies

M, D = 24, 200


#: Raise under ``torch.use_deterministic_algorithms(True)`` on CUDA, in some releases of torch.
RANDOM_ON_CUDA = {"kthvalue", "median", "nanmedian", "histc", "cumsum", "put_", "scatter_reduce"}


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation makes, views left out, and their names."""

    def __init__(self):
        super().__init__()
        self.numel, self.names = 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.names.add(func.overloadpacket.__name__)
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.numel = max(self.numel, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


def largest(sampler, closure):
    with Largest() as mode:
        sampler.step(closure)
    assert not mode.names & RANDOM_ON_CUDA
    return mode.numel


def problem(name):
    x = torch.randn(M, D, generator=torch.Generator().manual_seed(0)).requires_grad_()
    return x, lambda: energies(name, x[:, :2]) + 0.1 * x.square().sum(1)


@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_larger_than_the_gradients(name, monkeypatch):
    monkeypatch.setattr(kernels, "_BLOCK", 7 * M)
    x, closure = problem(name)
    targets = 1 if name == "SVGD" else 2
    assert largest(EVERY[name]([x], 0.1), closure) <= targets * M * D


def test_function_space():
    """Here the kernel is on the outputs."""
    w = torch.randn(M, D, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def closure():
        outputs = w * 1.0
        return outputs.square().sum(1), outputs

    assert largest(FSVGD([w], 0.1, 20), closure) <= M * D


def test_what_is_random_on_cuda_would_be_found():
    x, closure = problem("SVGD")
    with pytest.raises(AssertionError, match="median"):
        largest(SVGD([x], 0.1, kernel=lambda points: RBF(float(torch.pdist(points).median(0).values))(points)), closure)


def test_differences_of_all_pairs_would_be_found():
    """The planted fault: the textbook's kernel, which makes all M²·d differences."""

    def pairwise(points):
        (points[:, None] - points[None]).square().sum(-1)
        return RBF()(points)

    x, closure = problem("SVGD")
    assert largest(SVGD([x], 0.1, kernel=pairwise), closure) == M * M * D
