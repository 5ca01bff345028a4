"""Refusals of `check_sampler` and `suggest_lr`: an error of its class that names the argument or the sampler."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from learned_samplers import HMC, MCLMC, PSGLD, SGHMC, SGLD, CyclicalSGMCMC, check_sampler, suggest_lr
from learned_samplers.approximations import IVON
from learned_samplers.checks.law import Law
from learned_samplers.checks.targets import Kernel, gaussian
from learned_samplers.particles import SVGD
from tests.harness import small_data, small_network
from tests.learned_samplers.checks.own_samplers import Langevin, N, Own, bent

KERNEL = Kernel("mine", lambda energy, start, lr, seed: lambda: start)
HUGE = 10**30  # which no number of torch can hold


def sgld(p):
    return SGLD(p, 0.1, N)


class NoArgument(Own):
    def step(self):
        pass


class CallsBackward(Own):
    def step(self, closure=None):
        self.zero_grad()
        closure().backward()


class Never(bent(Langevin)):
    is_sampling = False


@pytest.mark.parametrize(
    ("factory", "arguments", "error", "named"),
    [
        (lambda p: torch.optim.SGD(p, 0.1), {}, ValueError, "num_data"),
        (lambda p: p, {}, TypeError, "factory"),
        (SGLD, {}, TypeError, "factory.*class SGLD.*num_data"),
        (SGLD([torch.zeros(1, requires_grad=True)], 0.1, N), {}, TypeError, "factory.*a SGLD"),
        (lambda p: SVGD(p, 0.1), {}, ValueError, "SVGD"),
        (lambda p: SGLD(p, 0.1, N, temperature=0), {}, ValueError, "temperature"),
        (sgld, {"tolerance": 0}, ValueError, "tolerance"),
        *((sgld, {"seed": x}, TypeError, "seed") for x in ("x", None, 2.5, True)),
        *((sgld, {"seed": x}, ValueError, "seed") for x in (-1, HUGE)),
        *((sgld, {name: HUGE}, ValueError, name) for name in ("steps", "coordinates", "num_data", "prior_precision")),
        *((sgld, {"prior_precision": x}, ValueError, "prior_precision") for x in (-1, float("nan"))),
        (sgld, {"num_data": -1}, ValueError, "num_data"),
        *((sgld, {"per_chain": x}, ValueError, "per_chain") for x in ("x", 1)),
        *((sgld, {"dtype": x}, TypeError, "dtype") for x in ("float32", torch.int64, torch.complex64, None)),
        (sgld, {"refinement": 1}, ValueError, "refinement"),
        (sgld, {"gradient_noise": -1}, ValueError, "gradient_noise"),
        *((sgld, {"curvature": [0.1, x]}, ValueError, r"curvature\[1\]") for x in (0.0, HUGE, float("inf"))),
        *((sgld, {"stiffness": [x]}, TypeError, r"stiffness\[0\]") for x in ("x", True)),
        (sgld, {"stiffness": ()}, ValueError, "stiffness"),
        (sgld, {"stiffness": (5e-7, 0.5)}, ValueError, "stiffness 5e-07.*steps="),  # before any is run
        (sgld, {"stiffness": torch.tensor([0.1, 0.2])}, TypeError, "stiffness.*Tensor"),
        (sgld, {"curvature": 0.1}, TypeError, "curvature.*float"),
        (sgld, {"steps": -1}, ValueError, "steps"),
        (sgld, {"steps": 1}, ValueError, "steps"),
        (lambda p: SGLD(p, 0.1, N, prior_precision=1.0, prior_mean="initial"), {}, ValueError, "prior_mean"),
        *((sgld, {"without_replacement": x}, ValueError, "without_replacement") for x in (0, 1)),
        *((sgld, {"without_replacement": x}, TypeError, "without_replacement") for x in (2.5, True)),
        *((sgld, {"coordinates": x}, ValueError, "coordinates") for x in (1, (1, 1), (), (4, 0))),
        *((sgld, {"coordinates": x}, TypeError, "coordinates") for x in ((4, 2.0), "40")),
        (lambda p: HMC(p, 0.1, N), {"coordinates": (4, 5)}, ValueError, "coordinates"),
        (lambda p: IVON(p, 0.1, N), {}, ValueError, "IVON"),
        (lambda p: MCLMC(p, 0.1, N), {}, ValueError, "MCLMC"),
        (Never, {"steps": 20, "coordinates": 50}, ValueError, "Never.*is_sampling"),
        *((NoArgument, {"per_chain": x}, TypeError, r"NoArgument\.step") for x in (False, True)),
        *((CallsBackward, {"per_chain": x, "coordinates": 10}, RuntimeError, r"backward\(\)") for x in (False, True)),
    ],
)
def test_check_sampler(factory, arguments, error, named):
    with pytest.raises(error, match=named) as caught:
        check_sampler(factory, **arguments)
    if factory in (NoArgument, CallsBackward):
        assert isinstance(caught.value.__cause__, error)


@pytest.mark.parametrize(
    ("settings", "error", "named"),
    [
        ({"sampler": lambda p: PSGLD(p, 0.1, N)}, ValueError, "PSGLD"),
        ({"sampler": lambda p: HMC(p, 0.1, N)}, ValueError, "HMC"),
        ({"sampler": lambda p: IVON(p, 0.1, N)}, ValueError, "IVON"),
        ({"sampler": lambda p: MCLMC(p, 0.1, N)}, ValueError, "MCLMC"),
        ({"sampler": lambda p: CyclicalSGMCMC(p, lr=0.1, num_data=N, cycle_length=10)}, ValueError, "CyclicalSGMCMC"),
        ({"sampler": lambda p: torch.optim.SGD(p, 0.1)}, ValueError, "num_data"),
        ({"sampler": lambda p: SGLD(p, 0.1, N, temperature=0.0)}, ValueError, "temperature"),
        *(({"seed": x}, TypeError, "seed") for x in ("x", None, 2.5, True)),
        *(({"seed": x}, ValueError, "seed") for x in (-1, HUGE)),
        *(({name: HUGE}, ValueError, name) for name in ("iterations", "batch_size", "chunk_size")),
        ({"model": "net"}, TypeError, "model"),
        ({"loss": "mean"}, TypeError, "loss"),
        ({"batch_size": 4, "allowed_heat": 1e-12}, ValueError, "SGLD has .* a heat above 0% at every lr"),
        ({"allowed_bias": 0.0}, ValueError, "allowed_bias"),
        ({"iterations": 0}, ValueError, "iterations"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"allowed_heat": 0.1}, ValueError, "batch_size"),
        ({"allowed_heat": -0.1, "batch_size": 4}, ValueError, "allowed_heat"),
        ({"data": torch.zeros(3)}, TypeError, "data"),
        ({"data": (torch.zeros(3, 3), torch.zeros(2))}, ValueError, "data"),
        ({"loss": lambda output, _: -output.square().mean(), "model": nn.Linear(3, 1)}, ValueError, "curvature"),
        ({"loss": lambda output, _: output.sum().mul(torch.inf)}, FloatingPointError, "loss"),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, ValueError, "loss.*mean"),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, ValueError, "loss.*one number"),
        ({"sampler": SGHMC}, TypeError, "sampler.*class SGHMC"),
        ({"model": nn.Flatten()}, ValueError, "model"),
    ],
)
def test_suggest_lr(settings, error, named):
    arguments = dict(model=small_network(), loss=nn.functional.cross_entropy, data=small_data(), sampler=sgld)
    with pytest.raises(error, match=named):
        suggest_lr(**{**arguments, **settings})


NORMAL = gaussian((1.0,))


@pytest.mark.parametrize(
    ("sampler", "settings", "error", "named"),
    [
        (sgld, {"order": "O(1)"}, ValueError, "order"),
        (sgld, {"seconds": 0}, ValueError, "seconds"),
        (sgld, {"seed": "x"}, TypeError, "seed"),
        (sgld, {"lr": 0.1}, ValueError, "lr is for kernels"),
        (sgld, {"target": "normal"}, TypeError, "target.*str"),
        (sgld, {"target": NORMAL, "lr": 0.1}, ValueError, "lr is for kernels"),
        (sgld, {"target": NORMAL, "steps": 1}, ValueError, "steps"),
        (sgld, {"target": NORMAL, "chains": 1}, ValueError, "chains"),
        (sgld, {"target": NORMAL, "num_data": 0}, ValueError, "num_data"),
        (sgld, {"target": NORMAL, "coordinates": 5}, TypeError, "coordinates"),
        (KERNEL, {}, ValueError, "lr must be given for the kernel mine"),
        (KERNEL, {"lr": 0}, ValueError, "lr"),
        (torch.optim.SGD, {}, TypeError, r"sampler must be a function .* lambda params: SGD\(params"),
        (lambda p: SVGD(p, 0.1), {}, ValueError, "law.holds cannot check SVGD"),
        (lambda p: MCLMC(p, 0.1, N), {"target": NORMAL}, ValueError, "law.holds cannot check MCLMC"),
        (3, {}, TypeError, "sampler must make a sampler"),
    ],
)
def test_law(sampler, settings, error, named):
    with pytest.raises(error, match=named):
        Law().holds(sampler, **settings)


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"energy": 3}, TypeError, "energy"),
        ({"start": torch.zeros(3)}, TypeError, "start"),
        ({"moments": {}}, ValueError, "moments"),
        ({"moments": [1.0]}, ValueError, "moments"),
        ({"moments": {"x": (1.0, 1.0)}}, TypeError, r"moments\['x'\]\[0\]"),
        ({"moments": {"x": (torch.sum, float("nan"))}}, ValueError, r"moments\['x'\]\[1\]"),
    ],
)
def test_targets(changes, error, named):
    with pytest.raises(error, match=named):
        replace(NORMAL, **changes)


@pytest.mark.parametrize("error", [TypeError, RuntimeError])
def test_errors_of_the_step_itself_stay(error):
    class Broken(Own):
        def move(self, p, lr, n):
            raise error("not of the protocol")

    with pytest.raises(error, match=r"^not of the protocol$"):
        check_sampler(Broken)


def test_many_steps_are_run_when_they_are_asked_for():
    assert check_sampler(lambda p: SGHMC(p, 0.1, N), stiffness=(5e-7, 0.5), steps=20, coordinates=8000)
