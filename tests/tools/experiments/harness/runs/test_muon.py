"""The plain Muon and Shampoo of the comparisons: a step by hand, and torch's own where it can be compared."""

import pytest
import torch
from experiments.harness.runs.muon import Muon, Shampoo
from torch import nn

from learned_samplers.base.matrices import orthogonal


def muons_direction(ahead, covariance):
    return orthogonal([ahead])[0]


def shampoos_direction(ahead, covariance):
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors @ torch.diag((values / covariance.norm() + 1e-4) ** -0.5) @ vectors.mT
    return ahead @ root / (ahead @ root).square().mean().sqrt()


@pytest.mark.parametrize(("make", "direction"), [(Muon, muons_direction), (Shampoo, shampoos_direction)])
def test_three_steps_by_hand(make, direction):
    torch.manual_seed(0)
    weight, bias = (nn.Parameter(x) for x in (torch.randn(4, 3, 2).double(), torch.randn(4).double()))
    twin = nn.Parameter(bias.detach().clone())
    adam = torch.optim.Adam([twin], lr=0.02, betas=(0.9, 0.99), weight_decay=0.1)
    optimizer = make([{"params": [weight, bias]}], lr=0.02, weight_decay=0.1)
    theta, m, covariance = weight.detach().clone(), torch.zeros(4, 3, 2).double(), None
    for _ in range(3):
        weight.grad, bias.grad = torch.randn(4, 3, 2).double(), torch.randn(4).double()
        twin.grad = bias.grad.clone()
        g = weight.grad + 0.1 * theta
        m = 0.9 * m + 0.1 * g
        covariance = g.flatten(1).mT @ g.flatten(1) if covariance is None else covariance  # its root is kept ten steps
        theta = theta - 0.02 * 0.2 * direction((0.9 * m + 0.1 * g).flatten(1), covariance).view(4, 3, 2)
        optimizer.step()
        adam.step()
    torch.testing.assert_close(weight.detach(), theta)
    torch.testing.assert_close(bias, twin)
    optimizer.param_groups[0]["lr"] = 0.0  # a schedule reaches both parts
    before = weight.detach().clone(), bias.detach().clone()
    optimizer.step()
    assert torch.equal(weight, before[0])
    assert torch.equal(bias, before[1])


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_it_is_torchs_muon_on_a_matrix():
    """But for the precision of its iterations, which torch does in bfloat16."""
    torch.manual_seed(1)
    ours, theirs = nn.Parameter(torch.zeros(8, 5)), nn.Parameter(torch.zeros(8, 5))
    optimizers = (
        Muon([ours], lr=1.0),
        torch.optim.Muon([theirs], lr=1.0, momentum=0.9, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(3):
        gradient = torch.randn(8, 5)
        for p, optimizer in zip((ours, theirs), optimizers, strict=True):
            p.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=0, atol=0.05)
    assert ours.abs().max() > 0.3
