"""``torch.compile(sampler.step)``: one graph, no recompilation under a scheduler."""

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from learned_samplers import SGLD
from tests.harness import LEARNED, STOCHASTIC

pytestmark = pytest.mark.filterwarnings("ignore")  # inductor and its threads warn of their own affairs


#: The hand-designed samplers, and L2E with its two kinds of features.
MAKERS = {
    name: make
    for name, make in STOCHASTIC.items()
    if name in ("L2E", "L2E-adaptive") or (name not in LEARNED and "-" not in name)
}

#: Those whose step has phases: the step from which none is new, and how many graphs there are.
PHASES = {"WhitenedSGHMC": (11, 4), "AdaptedSGHMC": (4, 4)}


def _params():
    torch.manual_seed(0)
    params = [torch.randn(s).requires_grad_() for s in [(4, 3), (5,)]]
    for p in params:
        p.grad = torch.randn_like(p)
    return params


@pytest.mark.parametrize(
    ("name", "foreach"), [*((name, None) for name in MAKERS), ("SGHMC", False), ("WhitenedSGHMC", False)]
)
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
    last, most = PHASES.get(name, (1, 2))
    assert graphs[-1] == graphs[last] <= most, graphs
    assert sampler.step_count == 16


MEAN = {"prior_precision": 40.0, "prior_mean": [torch.full((4, 3), 2.0), torch.full((5,), 2.0)]}


@pytest.mark.parametrize(
    ("name", "backend", "settings"),
    [("SGHMC", "inductor", {}), *(("L2E", "aot_eager", {}), ("SGLD", "aot_eager", MEAN), ("SGHMC", "aot_eager", MEAN))],
)
def test_compiled_at_temperature_zero_equals_eager(name, backend, settings):
    """The prior's mean is compiled with the step."""
    torch._dynamo.reset()
    cold = {"temperature": 0.0, **settings}
    at_zero = {key: value for key, value in cold.items() if key != "prior_mean"}
    eager, compiled, elsewhere = (MAKERS[name](_params(), torch.tensor(0.1), **more) for more in (cold, cold, at_zero))
    step = torch.compile(compiled.step, fullgraph=True, backend=backend)
    for _ in range(4):
        eager.step()
        step()
        elsewhere.step()
    for x, y, z in zip(*(sampler.param_groups[0]["params"] for sampler in (eager, compiled, elsewhere)), strict=True):
        assert torch.allclose(x, y, atol=1e-6)
        assert torch.allclose(x, z, atol=0.01) == (not settings), "the mean has no effect"


def test_compiled_noise_has_the_right_spread():
    torch._dynamo.reset()
    p = torch.zeros(50_000, requires_grad=True)
    p.grad = torch.zeros_like(p)
    sampler = SGLD([p], torch.tensor(0.5), 100, temperature=0.3)
    step = torch.compile(sampler.step, fullgraph=True)
    step()
    assert p.var().item() == pytest.approx(2 * 0.5 * 0.3 / 100, rel=0.03)


def test_a_step_of_half_precision_is_not_compiled_and_names_the_option():
    torch._dynamo.reset()
    p = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    p.grad = torch.ones_like(p)
    sampler = SGLD([p], torch.tensor(0.1), 100)
    step = torch.compile(sampler.step, fullgraph=True, backend="aot_eager")
    # torch 2.6 raises too, without saying what was raised in the step.
    message = "" if torch.__version__.startswith("2.6.") else "master_weights: a step of half-precision parameters"
    with pytest.raises(Exception, match=message):
        step()
    assert torch.equal(p, torch.ones_like(p))
    sampler.step()  # not compiled, it goes on
    assert sampler.state[p]["master"].dtype == torch.float32
