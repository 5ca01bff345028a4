"""The step between fixed buffers: the loop's numbers bit for bit, and nothing remembered between calls."""

import copy
import inspect
import math

import pytest
import torch
from torch.utils._pytree import tree_leaves

from meta_tasks.inner_loop.schedule import Schedule
from meta_tasks.inner_loop.step import StaticStep, stepping_for
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.objectives import BMALoss
from meta_tasks.rules.classical import CyclicalRule, LearnableSGD, PSGLDRule, SGHMCRule
from meta_tasks.rules.learned import KineticRule, L2ERule, MetaSGMCMCRule, PrecondL2ERule
from tests.meta_tasks.toy_tasks import QuadraticTask, image_task

SCHEDULE = Schedule(12, 6, 2)
RULES = {
    "sghmc": SGHMCRule(),
    "psgld": PSGLDRule(),
    "learnable_sgd": LearnableSGD(),
    "l2e": L2ERule("residual"),
    "l2e-adaptive": L2ERule("residual", "adaptive", beta_scale=2.0, friction_scale=0.0, reference_data=500),
    "l2e-decaying": L2ERule("residual", "paper", beta_scale=2.0, decay_time=3.0),
    "l2e-paper": L2ERule("paper", alpha_scale=0.5, beta_scale=0.5),
    "precond": PrecondL2ERule("scaled"),
    "kinetic": KineticRule(),
    "meta": MetaSGMCMCRule("signed", (4,)),
}
NETWORKS = [("cnn", {"channels": 4, "depth": 2, "residual": True}), ("mlp", {"hidden": (6,)})]


def weights_of(rule, members=4, sigma=0.1):
    stream = torch.Generator().manual_seed(0)
    noise = torch.randn(members, rule.num_weights, generator=stream)
    return rule.initial_weights(0) + sigma * noise


def make(rule, stepping, task=None, seeds=(1, 2), **settings):
    task = task or image_task(lr=0.05, prior_precision=2.0, momentum_decay=0.2)
    return Unroll(task, rule, BMALoss, SCHEDULE, seeds, stepping=stepping, curve_every=3, **settings)


def same(one, other):
    """Two unrolls are in the same state, bit for bit, and so are their random streams and results."""
    mine, theirs = one.state_dict(), other.state_dict()
    for a, b in zip(tree_leaves(mine), tree_leaves(theirs), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert one.output_scales.keys() == other.output_scales.keys()
    assert all(torch.equal(scale, other.output_scales[name]) for name, scale in one.output_scales.items())
    return True


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", RULES)
def test_the_static_form_takes_the_steps_of_the_loop(name, temperature):
    rule = RULES[name]
    task = image_task(lr=0.05, temperature=temperature, prior_precision=2.0, weight_scale_spread=0.3)
    weights = weights_of(rule)
    loop, static = make(rule, "loop", task), make(rule, "static", task)
    start = static.parameter.clone()
    for steps in (5, 1, None):  # the meta-parameters change on the way, as they do for noise-reuse ES
        loop.advance(weights, steps)
        static.advance(weights, steps)
        assert same(loop, static)
        weights = weights + 0.05
    assert torch.equal(loop.losses(), static.losses())
    assert (static.parameter - start).abs().max() > 1e-3


@pytest.mark.parametrize("network", NETWORKS, ids=["cnn", "mlp"])
def test_every_network_and_epoch_boundaries(network):
    # 60 images in batches of 16: an epoch has three steps
    rule, task = RULES["l2e-adaptive"], image_task(*network, lr=0.05)
    loop, static = make(rule, "loop", task), make(rule, "static", task)
    loop.advance(weights_of(rule))
    static.advance(weights_of(rule))
    assert same(loop, static)


def test_a_run_that_was_cut_in_two_goes_on_in_either_form():
    rule = RULES["l2e-adaptive"]
    weights = weights_of(rule)
    whole = make(rule, "loop")
    whole.advance(weights)
    for first, second in (("static", "static"), ("static", "loop"), ("loop", "static")):
        begun, ended = make(rule, first), make(rule, second)
        begun.advance(weights, 7)
        saved = copy.deepcopy(begun.state_dict())
        begun.advance(weights)
        ended.load_state_dict(saved)
        ended.advance(weights)
        assert same(ended, whole)


@pytest.mark.parametrize("bad", [200.0, math.nan])
def test_a_member_that_fails_is_reported_and_poisons_nobody(bad):
    rule, task = LearnableSGD(), image_task("mlp", {"hidden": (6,)}, lr=0.05)
    weights = torch.tensor([[0.0, 0.0], [bad, 0.0], [0.2, 0.0], [0.3, 0.0]])
    loop, static = make(rule, "loop", task), make(rule, "static", task)
    for steps in (4, None):
        loop.advance(weights, steps)
        static.advance(weights, steps)
        assert static.failed_at == loop.failed_at
        assert static.failed_at[1] >= 1
    assert static.losses()[1].isnan()
    others = [0, 2, 3]
    assert torch.equal(static.losses()[others], loop.losses()[others])
    assert torch.equal(static.parameter, loop.parameter)
    assert torch.equal(static.curves()[others], loop.curves()[others])


def buffers_of(step):
    changed = (step.parameter, *step.state, step.step, step.failed_at, step.stretch, step.gradient)
    return [each.clone() for each in changed]


def static_step(rule, number, seed):
    """A static step at random members, minibatch, noise, meta-parameters and step number."""
    torch.manual_seed(seed)
    task = image_task(lr=0.05, prior_precision=2.0)
    parameter = torch.stack([task.initial(seed + i) for i in range(4)])
    state = tuple(torch.rand_like(each) for each in rule.initial_state(parameter, task.segments))
    prepared = rule.prepare(weights_of(rule) + 0.1 * seed)
    step = StaticStep(task, rule, parameter, state, prepared, groups=2, draws_noise=True, curve_every=3)
    refill(step, rule, number, seed)
    return step


def refill(step, rule, number, seed):
    torch.manual_seed(seed + 100)
    parameter = torch.randn_like(step.parameter)
    state = tuple(torch.rand_like(each) for each in step.state)
    prepared = rule.prepare(weights_of(rule) + 0.1 * seed)
    step.load(parameter, state, prepared, step=number, failed_at=[-1, 3, -1, -1], stretch=torch.rand(4))
    step.draw([torch.randperm(60)[:16] for _ in range(2)], [torch.Generator().manual_seed(seed + i) for i in range(2)])


@pytest.mark.parametrize("name", ["l2e-adaptive", "kinetic", "learnable_sgd"])
def test_a_call_sees_its_buffers_and_nothing_else(name):
    rule = RULES[name]
    reused, fresh = static_step(rule, 3, seed=1), static_step(rule, 40, seed=2)
    for _ in range(2):
        reused()
    refill(reused, rule, 40, seed=2)
    reused(), fresh()
    assert all(torch.equal(a, b) for a, b in zip(buffers_of(reused), buffers_of(fresh), strict=True))
    unused = {("noise", "learnable_sgd"), ("step", "learnable_sgd"), ("step", "kinetic")}
    # each of the inputs matters: a step that had kept one of them from before would differ
    for change in ("indices", "noise", "step", "prepared"):
        if (change, name) in unused:
            continue
        other = static_step(rule, 40, seed=2)
        if change == "indices":
            other.indices.copy_(other.indices.flip(0))
        elif change == "step":
            other.step.fill_(41)
        else:
            for each in tree_leaves(getattr(other, change)):
                each.mul_(1.5)
        other()
        assert not torch.equal(other.parameter, fresh.parameter), change


def test_a_rehearsal_leaves_no_trace():
    step = static_step(RULES["l2e-adaptive"], 5, seed=1)
    before = buffers_of(step)
    step.rehearse(3)
    assert all(torch.equal(a, b) for a, b in zip(before, buffers_of(step), strict=True))
    step()
    assert not torch.equal(before[0], step.parameter)


def test_the_stepping_is_chosen_by_device_and_rule():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert stepping_for("auto", SGHMCRule(), cpu) == "loop"
    assert stepping_for("auto", SGHMCRule(), cuda) == "graph"
    assert stepping_for("loop", SGHMCRule(), cuda) == "loop"
    assert stepping_for("auto", CyclicalRule(4), cuda) == "loop"
    assert stepping_for("auto", L2ERule("residual", "whitened"), cuda) == "loop"  # not every step renews the root
    with pytest.raises(
        ValueError, match="stepping='static': the rule 'CyclicalSGMCMC' changes with the step on the host"
    ):
        make(CyclicalRule(4), "static")
    with pytest.raises(ValueError, match="stepping='graph' needs a CUDA device, the task is on cpu"):
        make(SGHMCRule(), "graph")
    with pytest.raises(ValueError, match="must be one of 'loop', 'static', 'graph', 'auto', got 'fast'"):
        make(SGHMCRule(), "fast")
    # A capture must be asked for: it has never run on a GPU.
    assert Unroll(image_task(), SGHMCRule(), BMALoss, SCHEDULE, [1]).stepping == "loop"
    assert inspect.signature(Unroll).parameters["stepping"].default == "loop"


def test_a_task_of_few_images_has_smaller_minibatches():
    loop, static = (make(LearnableSGD(), name, QuadraticTask(), seeds=(1,)) for name in ("loop", "static"))
    for each in (loop, static):
        each.advance(torch.zeros(2, 2))
    assert same(loop, static)
    loop, static = (make(SGHMCRule(), name, image_task(num_data=9)) for name in ("loop", "static"))
    for each in (loop, static):
        each.advance(torch.zeros(4, 0))
    assert static.task.hyperparameters.num_data == 9
    assert same(loop, static)
