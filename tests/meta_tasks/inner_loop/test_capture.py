"""The captured step: what a CUDA graph could not hold is not in the static step, and what the graph does around it.

No test but the last needs a GPU.
"""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from unittest.mock import MagicMock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from learned_samplers.base import segments
from learned_samplers.learned.native.library import ENVIRONMENT_VARIABLE
from meta_tasks.inner_loop.step import StaticStep
from meta_tasks.rules.classical import SGHMCRule
from tests.meta_tasks.inner_loop.test_step import NETWORKS, RULES, make, same, static_step, weights_of
from tests.meta_tasks.toy_tasks import image_task

#: These differentiate inside the rule, which torch cannot do on tensors that only pretend to be on a GPU.
WITH_AUTOGRAD = ("kinetic", "meta")


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    """Without the compiled update, which is for CPUs."""
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "0")


class NoHostReads(TorchDispatchMode):
    """Raises where an operation gives the host a number that a tensor holds, or its shape hangs on one."""

    forbidden = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in self.forbidden:
            raise RuntimeError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


class OneDevice(TorchDispatchMode):
    """Raises where an operation has tensors on two devices, or on another one than CUDA.

    Counts the operations that give a GPU something to do: neither views nor allocations.
    """

    idle = ("device", "empty", "empty_like", "new_empty", "_unsafe_view")

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = (each for each in tree_leaves((args, kwargs, result)) if isinstance(each, torch.Tensor))
        found = {each.device.type for each in tensors}
        if found != {"cuda"}:
            raise RuntimeError(f"{func} has tensors on {found}")
        view = any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)
        self.count += not view and func.overloadpacket.__name__ not in self.idle
        return result


@pytest.mark.parametrize("name", RULES)
def test_a_static_step_reads_nothing_back_to_the_host(name):
    step = static_step(RULES[name], 5, seed=1)
    with torch.no_grad(), NoHostReads():
        step()


class HostReader(SGHMCRule):
    def update(self, prepared, at):
        if bool((at.gradient > 1e9).any()):
            at = replace(at, gradient=at.gradient * 0)
        return super().update(prepared, at)


class HostCopy(SGHMCRule):
    def update(self, prepared, at):
        factors = torch.ones(at.gradient.shape[-1]).to(at.gradient.device)
        return super().update(prepared, replace(at, gradient=at.gradient * factors))


def _can_pretend() -> bool:
    """Whether torch can index tensors that pretend to be on a GPU without one; 2.6 asks the driver."""
    try:
        with FakeTensorMode():
            torch.empty(4, device="cuda")[torch.empty(2, dtype=torch.long, device="cuda")]
    except RuntimeError:
        return False
    return True


PRETENDING = pytest.mark.skipif(not _can_pretend(), reason="this torch cannot pretend to have a GPU")


def pretend_step(rule, network=NETWORKS[0]):
    """A static step on tensors that say they are on a GPU and hold nothing; call it inside a `FakeTensorMode`."""
    task = image_task(*network, prior_precision=2.0)
    task.device = torch.device("cuda")
    with FakeTensorMode():
        task._train = tuple(torch.empty(t.shape, dtype=t.dtype, device="cuda") for t in task._train)
        parameter = torch.empty(4, task.segments.total, device="cuda")
        prepared = rule.prepare(torch.empty(4, rule.num_weights, device="cuda"))
        step = StaticStep(
            task,
            rule,
            parameter,
            rule.initial_state(parameter, task.segments),
            prepared,
            groups=2,
            draws_noise=True,
            curve_every=3,
        )
    return step


@PRETENDING
@pytest.mark.parametrize("network", NETWORKS, ids=["cnn", "mlp"])
@pytest.mark.parametrize("name", [name for name in RULES if name not in WITH_AUTOGRAD])
def test_on_a_gpu_a_static_step_never_touches_the_host(name, network, monkeypatch):
    monkeypatch.setattr(segments, "_constants", {})
    with torch.no_grad():
        step = pretend_step(RULES[name], network)
        mode = step.parameter.fake_mode
        with mode:
            step()  # constants are copied to the device by the first call, which the warm-up before a capture makes
            with OneDevice() as watch:
                step()
    assert watch.count > 20


@PRETENDING
@pytest.mark.parametrize("rule", [HostReader(), HostCopy()], ids=["reads", "copies"])
def test_what_a_graph_could_not_hold_is_noticed(rule):
    with torch.no_grad():
        step = pretend_step(rule)
        with (
            step.parameter.fake_mode,
            OneDevice(),
            pytest.raises(Exception, match=r"_local_scalar_dense|tensors on \{"),
        ):
            step()
    if isinstance(rule, HostReader):
        with torch.no_grad(), NoHostReads(), pytest.raises(RuntimeError, match="waits for the device"):
            static_step(rule, 5, seed=1)()


class PretendCUDA:
    """In place of the parts of ``torch.cuda`` that a capture uses: a capture runs nothing, a replay what it saw."""

    def __init__(self, monkeypatch):
        self.capturing, self.log = None, []
        real = StaticStep.__call__

        def call(step):
            self.log.append("capture" if self.capturing else "call")
            if self.capturing:
                self.capturing.body = lambda: real(step)
            else:
                real(step)

        class Graph:
            def replay(graph):
                self.log.append("replay")
                graph.body()

        @contextmanager
        def capture(graph):
            self.capturing = graph
            yield
            self.capturing = None

        monkeypatch.setattr(StaticStep, "__call__", call)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", capture)
        for name in ("Stream", "current_stream"):
            monkeypatch.setattr(torch.cuda, name, MagicMock())
        for name in ("stream", "device"):
            monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())


def test_the_captured_step_is_made_once_without_a_trace_and_then_replayed(monkeypatch):
    rule = RULES["l2e-adaptive"]
    weights = weights_of(rule)
    loop, graph = make(rule, "loop"), make(rule, "static")
    pretend = PretendCUDA(monkeypatch)
    graph.stepping = "graph"  # no task on a CPU may ask for it
    for steps in (5, None):
        loop.advance(weights, steps)
        graph.advance(weights, steps)
        assert same(loop, graph)
        weights = weights + 0.05
    assert pretend.log == ["call"] * 3 + ["capture"] + ["replay"] * 12
    assert graph._captured is None  # its memory is free


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", RULES)
def test_a_captured_step_replays_the_static_one(name):
    rule = RULES[name]
    weights = weights_of(rule)
    runs = {}
    for stepping in ("static", "graph"):
        task = image_task(lr=0.05, prior_precision=2.0, device="cuda")
        runs[stepping] = make(rule, stepping, task)
        runs[stepping].advance(weights, 5)
        runs[stepping].advance(weights + 0.05)
    torch.testing.assert_close(runs["graph"].parameter, runs["static"].parameter, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(runs["graph"].losses(), runs["static"].losses(), rtol=1e-4, atol=1e-5)
    assert runs["graph"].failed_at == runs["static"].failed_at
