"""``torch.compile(sampler.step)``: one graph, no recompilation under a scheduler."""

import warnings

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from torch._dynamo.utils import counters

from learned_samplers import SGHMC, SGLD, AdaptedSGHMC, PosteriorSamples
from learned_samplers.priors import GammaHyperprior
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
    step = torch.compile(sampler.step, fullgraph=True, backend="eager")  # what is compiled is the others' matter
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(sampler, T_max=40)
    graphs = []
    for _ in range(16):
        step()
        scheduler.step()
        graphs.append(counters["stats"]["unique_graphs"])
    # The first step creates the state, the second finds it there; from then on nothing is compiled again.
    last, most = PHASES.get(name, (1, 2))
    assert graphs[-1] == graphs[last], graphs
    assert graphs[-1] <= most, graphs
    assert sampler.step_count == 16


MEAN = {"prior_precision": 40.0, "prior_mean": [torch.full((4, 3), 2.0), torch.full((5,), 2.0)]}


@pytest.mark.parametrize(
    ("name", "settings"),
    [("L2E", {}), ("SGHMC", MEAN)],
)
def test_compiled_at_temperature_zero_equals_eager(name, settings):
    """The prior's mean is compiled with the step."""
    torch._dynamo.reset()
    cold = {"temperature": 0.0, **settings}
    at_zero = {key: value for key, value in cold.items() if key != "prior_mean"}
    eager, compiled, elsewhere = (MAKERS[name](_params(), torch.tensor(0.1), **more) for more in (cold, cold, at_zero))
    step = torch.compile(compiled.step, fullgraph=True, backend="aot_eager")
    for _ in range(4):
        eager.step()
        step()
        elsewhere.step()
    for x, y, z in zip(*(sampler.param_groups[0]["params"] for sampler in (eager, compiled, elsewhere)), strict=True):
        assert torch.allclose(x, y, atol=1e-6)
        assert torch.allclose(x, z, atol=0.01) == (not settings), "the mean has no effect"


def test_compiled_by_inductor_a_step_moves_as_it_should_and_its_noise_has_the_right_spread(monkeypatch):
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 1)  # starts no processes
    torch._dynamo.reset()
    p = torch.zeros(50_000, requires_grad=True)
    p.grad = torch.ones_like(p)
    sampler = SGLD([p], torch.tensor(0.5), 100, temperature=0.3)
    step = torch.compile(sampler.step, fullgraph=True)
    step()
    assert p.mean().item() == pytest.approx(-0.5, abs=0.002)  # standard error 0.0002
    assert p.var().item() == pytest.approx(2 * 0.5 * 0.3 / 100, rel=0.03)


def _of(dtype=torch.float32):
    p = torch.nn.Parameter(torch.linspace(0.0, 1.0, 8).view(2, 4).to(dtype))
    p.grad = torch.ones_like(p)
    return p


#: Samplers with a step that cannot be compiled, and why.
UNCOMPILED = {
    "draws the precision": lambda: SGHMC([_of()], 0.1, 10, prior_precision=GammaHyperprior(every=1)),
    "float32 copies": lambda: SGHMC([_of(torch.bfloat16)], 0.1, 10),
    "its warm-up is by SGD": lambda: AdaptedSGHMC(
        [_of()], 0.1, 10, warmup_steps=9, warmup=lambda groups: torch.optim.SGD(groups, 0.1)
    ),
}


@pytest.mark.parametrize("reason", UNCOMPILED)
@pytest.mark.parametrize("inside", [False, True])
def test_a_step_that_cannot_be_compiled_runs_as_it_is_and_says_so_once(reason, inside):
    """With it compiles what comes later: an error in the middle of a graph is remembered for the code of all steps."""
    torch._dynamo.reset()
    ends = []
    for compiled in (True, False):
        sampler = UNCOMPILED[reason]()
        (p,) = sampler.param_groups[0]["params"]
        model = torch.nn.Module()
        model.weight = p
        posterior = PosteriorSamples(model, sampler)

        def step(sampler=sampler):
            sampler.step()

        run = step if inside else sampler.step
        run = torch.compile(run, backend="eager") if compiled else run
        torch.manual_seed(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(5):
                run()
        said = [str(w.message) for w in caught if "is not compiled" in str(w.message)]
        assert len(said) == compiled
        assert not compiled or reason in said[0]
        assert (sampler.step_count, len(posterior)) == (5, 5 * sampler.is_sampling), "hooks run once"
        ends.append(p.detach().clone())
        posterior.detach()
    assert torch.equal(*ends)
    counters.clear()
    later = SGHMC([_of()], 0.1, 10)
    torch.compile(later.step, backend="eager", fullgraph=True)()
    assert counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()
    full_graph = torch.compile(UNCOMPILED[reason]().step, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="step_that_cannot_be_compiled"):
        full_graph()
