"""``torch.compile(sampler.step)``: one graph, no recompilation under a scheduler."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from learned_samplers import (
    L2E,
    PSGLD,
    SGHMC,
    SGLD,
    SGLRW,
    SGNHT,
    CyclicalSGMCMC,
    EntropyMCMC,
    ScaleAdaptedSGHMC,
)
from learned_samplers.learned.network import build_network

pytestmark = pytest.mark.filterwarnings("ignore")  # inductor and its threads warn of their own affairs


def _network(feature_set):
    return build_network(feature_set, (6,), zero_last=False, generator=torch.Generator().manual_seed(1))


MAKERS = {
    "SGLD": lambda p, lr: SGLD(p, lr, 100, prior_precision=1.0),
    "PSGLD": lambda p, lr: PSGLD(p, lr, 100, eps=0.1),
    "SGHMC": lambda p, lr: SGHMC(p, lr, 100, prior_precision=1.0),
    "SGNHT": lambda p, lr: SGNHT(p, lr, 100),
    "CyclicalSGMCMC": lambda p, lr: CyclicalSGMCMC(p, lr, 100, cycle_length=4, exploration_ratio=0.5),
    "SGLRW": lambda p, lr: SGLRW(p, lr, 100, prior_precision=1.0),
    "EntropyMCMC": lambda p, lr: EntropyMCMC(p, lr, 100, guide_variance=0.1),
    "ScaleAdaptedSGHMC": lambda p, lr: ScaleAdaptedSGHMC(
        p, lr, 100, adaptation_steps=6, adaptation_temperature=0.0, eps=0.1
    ),
    "L2E": lambda p, lr: L2E(p, lr, 100, network=_network("paper")),
    "L2E-adaptive": lambda p, lr: L2E(p, lr, 100, network=_network("adaptive"), feature_set="adaptive"),
}


def _params():
    torch.manual_seed(0)
    params = [torch.randn(s).requires_grad_() for s in [(4, 3), (5,)]]
    for p in params:
        p.grad = torch.randn_like(p)
    return params


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("name", MAKERS)
def test_one_graph_and_no_recompilation_under_a_scheduler(name, foreach):
    torch._dynamo.reset()
    counters.clear()
    sampler = MAKERS[name](_params(), torch.tensor(0.1))
    for group in sampler.param_groups:
        group["foreach"] = foreach
    step = torch.compile(sampler.step, fullgraph=True, backend="aot_eager")
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(sampler, T_max=40)
    graphs = []
    for _ in range(16):
        step()
        scheduler.step()
        graphs.append(counters["stats"]["unique_graphs"])
    # The first step creates the state, the second finds it there; from then on nothing is compiled again.
    assert graphs[-1] == graphs[1] <= 2, graphs
    assert sampler.step_count == 16


@pytest.mark.parametrize("name", ["SGLD", "SGHMC", "L2E"])
def test_compiled_by_inductor_at_temperature_zero_equals_eager(name):
    torch._dynamo.reset()
    eager, compiled = _params(), _params()
    a, b = MAKERS[name](eager, torch.tensor(0.1)), MAKERS[name](compiled, torch.tensor(0.1))
    for sampler in (a, b):
        sampler.param_groups[0]["temperature"] = 0.0
    step = torch.compile(b.step, fullgraph=True)
    for _ in range(3):
        a.step()
        step()
    for x, y in zip(eager, compiled, strict=True):
        assert torch.allclose(x, y, atol=1e-6)


def test_compiled_noise_has_the_right_spread():
    torch._dynamo.reset()
    p = torch.zeros(50_000, requires_grad=True)
    p.grad = torch.zeros_like(p)
    sampler = SGLD([p], torch.tensor(0.5), 100, temperature=0.3)
    step = torch.compile(sampler.step, fullgraph=True)
    step()
    assert p.var().item() == pytest.approx(2 * 0.5 * 0.3 / 100, rel=0.03)
