"""Cases of L2E's fused rule, run by `test_fused_l2e.py`: "parity" needs Triton's interpreter or a GPU, "compiled" the
compiler alone, which makes the code of a GPU that need not be there."""

import math

import pytest
import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from learned_samplers.base.segments import Segments
from learned_samplers.classical.sghmc import sghmc_rule
from learned_samplers.learned import features as l2e_features
from learned_samplers.learned.feature_sets import AVERAGE_DECAYS, FEATURE_SETS, feature_set_named
from learned_samplers.learned.l2e.rule import L2ESettings, l2e_rule
from meta_tasks.inner_loop.schedule import Schedule
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.objectives import BMALoss
from meta_tasks.rules import triton_kernels as kernels
from meta_tasks.rules import triton_l2e as fused_l2e
from meta_tasks.rules.learned import L2ERule
from meta_tasks.rules.triton_l2e import FusedL2ERule, fused_residual_rule
from tests.learned_samplers.learned.flat_keywords import keywords
from tests.meta_tasks.inner_loop.test_capture import OneDevice
from tests.meta_tasks.toy_tasks import image_task

fused_residual_rule = keywords(fused_residual_rule, L2ESettings)
l2e_residual_rule = keywords(l2e_rule, L2ESettings)

DEVICE = "cpu" if kernels.INTERPRETED else "cuda"
# Tensors of one coordinate, of a block and two, and of no whole number of blocks.
SEGMENTS = Segments((3, 130, 1, 128))


def state(feature_set, members=2, segments=SEGMENTS, seed=0):
    torch.manual_seed(seed)
    parameter, gradient, noise, momentum = (torch.randn(members, segments.total) for _ in range(4))
    averages = 0.1 * torch.rand(members, feature_set_named(feature_set).num_averages, segments.total)
    gradient = 0.1 * gradient * torch.logspace(-3, 0, segments.total)
    return [each.to(DEVICE) for each in (parameter, gradient, noise, momentum, averages)]


def network(feature_set, hidden=(32, 32), members=2, seed=0, sigma=0.3):
    rule = L2ERule("residual", feature_set, hidden)
    stream = torch.Generator().manual_seed(seed)
    weights = rule.initial_weights(0) + sigma * torch.randn(members, rule.num_weights, generator=stream)
    return rule.prepare(weights.to(DEVICE))


SETTINGS = dict(
    segments=SEGMENTS, lr=0.1, num_data=500, temperature=0.7, prior_precision=3.0, momentum_decay=0.2, alpha_scale=0.4
)
CASES = {
    "paper": dict(feature_set="paper"),
    "bounded": dict(feature_set="scaled", output_bound=0.5, step=torch.tensor(7), prior_precision=0),
    "adaptive": dict(
        feature_set="adaptive", beta_scale=3, friction_scale=0.0, reference_data=2000, step=0, temperature=0.0
    ),
    "data": dict(feature_set="adaptive_data", step=12, beta_scale=0.5, num_data=3000),
    "late": dict(feature_set="adaptive", step=3000, friction_scale=0.5, momentum_decay=1),
    "decaying": dict(feature_set="scaled", step=torch.tensor(7), decay_time=20.0, reference_data=100.0, beta_scale=9.0),
}


@pytest.mark.parametrize(
    ("case", "hidden"), [*((case, (32, 32)) for case in CASES), ("paper", (5, 20)), ("late", (5, 20))], ids=str
)
def test_parity_with_the_pure_rule(case, hidden):
    settings = {**SETTINGS, **CASES[case]}
    tensors, phi = state(settings["feature_set"]), network(settings["feature_set"], hidden)
    if settings["temperature"] == 0:
        tensors[2] = None
    kept = [None if each is None else each.clone() for each in tensors]
    fused = fused_residual_rule(*tensors, phi=phi, **settings)
    double = [None if each is None else each.double() for each in tensors]
    exact = l2e_residual_rule(*double, phi=[(w.double(), b.double()) for w, b in phi], **settings)
    still = l2e_residual_rule(*double, phi=[(0 * w.double(), 0 * b.double()) for w, b in phi], **settings)
    # rounding in single precision, of sums over 32 units (a GPU's logarithms are a little coarser); the averages of the
    # pure rule have weights in that precision
    for got, wanted, name in zip(fused, exact, ("parameter", "momentum", "averages"), strict=True):
        tolerance = 2e-5 if name == "averages" or not kernels.INTERPRETED else 4e-6
        torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance, msg=name)
    # the network's part is hundreds of times the tolerance
    assert (exact[0] - still[0]).abs().max() > 4e-3
    assert (exact[1] - still[1]).abs().max() > 4e-3 or case == "adaptive"
    assert all(a is b or torch.equal(a, b) for a, b in zip(tensors, kept, strict=True))


def test_parity_of_one_network_for_all_members_and_without_training():
    tensors = state("paper")
    phi = [(weight[0], bias[0]) for weight, bias in network("paper")]
    shared = fused_residual_rule(*tensors, phi=phi, **SETTINGS)
    each = [(w.expand(2, *w.shape).contiguous(), b.expand(2, *b.shape).contiguous()) for w, b in phi]
    for got, wanted in zip(shared, fused_residual_rule(*tensors, phi=each, **SETTINGS), strict=True):
        assert torch.equal(got, wanted)
    *hidden, (weight, bias) = each
    untrained = fused_residual_rule(*tensors, phi=[*hidden, (0 * weight, 0 * bias)], **SETTINGS)
    settings = {key: value for key, value in SETTINGS.items() if key not in ("segments", "alpha_scale")}
    for got, wanted in zip(untrained, sghmc_rule(*tensors[:4], **settings), strict=False):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("broken", ["gradient", "network"])
def test_parity_of_a_member_that_is_not_finite_with_one_alone(broken):
    tensors, phi = state("adaptive"), network("adaptive")
    fine = fused_residual_rule(*tensors, phi=phi, **SETTINGS, feature_set="adaptive")
    if broken == "gradient":
        tensors[1][0, 1] = math.nan
    else:
        phi[0][0][0, 0, 0] = math.nan
    got = fused_residual_rule(*tensors, phi=phi, **SETTINGS, feature_set="adaptive")
    assert not got[0][0].isfinite().all()
    assert not got[1][0].isfinite().all()
    for one, other in zip(got, fine, strict=True):
        assert torch.equal(one[1], other[1])


def test_parity_over_an_inner_loop(monkeypatch):
    settings = dict(feature_set="adaptive", hidden=(8, 8), beta_scale=2.0)
    pure, fused = L2ERule("residual", **settings), FusedL2ERule("residual", **settings)
    monkeypatch.setattr(fused_l2e, "l2e_rule", None)  # it must not be what runs
    if kernels.INTERPRETED:
        monkeypatch.setattr(
            FusedL2ERule, "_updated", lambda self, *given, **more: fused_l2e.fused_residual_rule(*given, **more)
        )
    stream = torch.Generator().manual_seed(0)
    weights = pure.initial_weights(0) + 0.1 * torch.randn(2, pure.num_weights, generator=stream)
    runs = []
    for rule, stepping in ((pure, "loop"), (fused, "static" if DEVICE == "cpu" else "graph")):
        task = image_task("mlp", {"hidden": (6,)}, lr=0.05, prior_precision=2.0, device=DEVICE)
        runs.append(Unroll(task, rule, BMALoss, Schedule(3, 0, 1), [1], stepping=stepping))
        runs[-1].advance(weights)
    torch.testing.assert_close(runs[1].parameter, runs[0].parameter, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(runs[1].losses(), runs[0].losses(), rtol=1e-4, atol=1e-5)
    assert (runs[0].parameter[0] - runs[0].parameter[1]).abs().max() > 1e-3


@triton.jit
def bounded_kernel(x, y, bound, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, kernels._bounded(tl.load(x + at), bound))


def test_parity_of_the_bound():
    x = torch.cat([torch.logspace(-8, 2, 127), torch.zeros(1)]).to(DEVICE)
    for sign in (1, -1):
        y = torch.empty_like(x)
        bounded_kernel[1,](sign * x, y, 0.5, N=128)
        torch.testing.assert_close(y.double(), 0.5 * torch.tanh(sign * x.double() / 0.5), rtol=1e-6, atol=0)


def test_parity_of_the_constants():
    expected = dict(
        _TINY=l2e_features._TINY,
        _SMALL=l2e_features._SMALL,
        _HALF_LOG_SCALE=0.5 * l2e_features._LOG_SCALE,
        _RATIO_BOUND=l2e_features._RATIO_BOUND,
        _LOG_RATIO_FLOOR=l2e_features._LOG_RATIO_FLOOR,
        _AVERAGES=len(AVERAGE_DECAYS),
    )
    assert {name: getattr(kernels, name).value for name in expected} == expected
    clock = [f"log_coherence_{d:g}" for d in fused_l2e._CLOCK_DECAYS], [f"time_{tau}" for tau in fused_l2e._CLOCK_TIMES]
    for names, kind in zip(clock, ("log_coherence", "time")):
        assert [each for each in FEATURE_SETS["adaptive"].context if each.startswith(kind)] == names


# One for all: the rule keeps its tables, here tensors that only say that they are on a GPU.
PRETEND = FakeTensorMode()


class Recorder:
    """In place of a kernel: keeps what it was launched with."""

    def __init__(self, kernel):
        self.kernel, self.launches = kernel, []

    def __getitem__(self, grid):
        return lambda *args, **options: self.launches.append((grid, dict(zip(self.kernel.arg_names, args)), options))

    def compile(self):
        """The kernel of the last launch for a Hopper GPU."""
        _, given, constants = self.launches[-1]
        assert {*given, *constants} == set(self.kernel.arg_names)
        kinds = {torch.float32: "*fp32", torch.int32: "*i32", int: "i32", float: "fp32"}
        signature = {
            name: kinds[value.dtype if isinstance(value, torch.Tensor) else type(value)]
            for name, value in given.items()
        }
        places = {(self.kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = ASTSource(self.kernel, {**signature, **dict.fromkeys(constants, "constexpr")}, constexprs=places)
        return triton.compile(source, target=GPUTarget("cuda", 90, 32))


@pytest.mark.parametrize("feature_set", ["paper", "adaptive"])
def test_the_kernels_are_compiled_for_a_gpu_and_launched_without_the_host(feature_set, monkeypatch):
    names = [name for name in vars(kernels) if name.endswith("_kernel")]
    recorders = {name: Recorder(getattr(kernels, name)) for name in names}
    for name, recorder in recorders.items():
        monkeypatch.setattr(kernels, name, recorder)
    bound = 2 if feature_set == "paper" else None
    rule = L2ERule("residual", feature_set)
    with torch.no_grad(), PRETEND:
        phi = rule.prepare(torch.empty(2, rule.num_weights, device="cuda"))
        parameter, gradient, noise, momentum = (torch.empty(2, SEGMENTS.total, device="cuda") for _ in range(4))
        averages = torch.empty(2, feature_set_named(feature_set).num_averages, SEGMENTS.total, device="cuda")
        tensors, step = (parameter, gradient, noise, momentum, averages), torch.zeros((), dtype=int, device="cuda")
        given = dict(phi=phi, **SETTINGS, feature_set=feature_set, output_bound=bound, step=step)
        fused_residual_rule(*tensors, **given)  # copies the tables to the device
        with OneDevice() as fused:
            fused_residual_rule(*tensors, **given)
        l2e_residual_rule(*tensors, **given)
        with OneDevice() as pure:
            l2e_residual_rule(*tensors, **given)
    # with the five kernels; how many the pure rule has depends on the number of tensors, here four
    assert fused.count <= {"paper": 2, "adaptive": 9}[feature_set]
    assert pure.count >= {"paper": 60, "adaptive": 150}[feature_set]
    assert len(names) == 5
    for recorder in recorders.values():
        assert len(recorder.launches) == 2
        assert len(recorder.compile().asm["cubin"]) > 1000
