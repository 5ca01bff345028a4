"""Optimizers around a sampler, and weights that something else moves, are told once; swaps and loads are not."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

from learned_samplers import SGHMC, SGLD
from learned_samplers.base.guards.outside import HABIT, WATCHED, OutsideChanges

N = 100


class Around(torch.optim.Optimizer):
    """An optimizer around another, as those of pytorch_optimizer: it shares the groups of the one inside."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.defaults = optimizer.defaults
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}
        self._patch_step_function()
        self.count = 0

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @property
    def state(self):
        return self.optimizer.state


class Lookahead(Around):
    """Every fifth step half of the way back, written into ``.data``, which raises no version."""

    @torch.no_grad()
    def step(self, closure=None):
        if not self.count:
            self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]
        self.optimizer.step(closure)
        self.count += 1
        if self.count % 5 == 0:
            for p, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
                slow.lerp_(p, 0.5)
                p.data.copy_(slow)


class OrthoGrad(Around):
    """Takes off each gradient what lies along the weights."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.grad.sub_(p, alpha=float((p.grad * p).sum() / p.square().sum().clamp_min(1e-30)))
        self.optimizer.step(closure)


def watched(sampler):
    """A sampler that is watched: by its own step, or by hooks."""
    if not hasattr(sampler, "outside"):
        sampler.outside = watch = OutsideChanges()
        sampler.register_step_pre_hook(lambda s, *_: watch(s) if watch.watching else None)
        sampler.register_step_post_hook(lambda s, *_: watch.note(s) if watch.watching else None)
    return sampler


def run(sampler, p, steps, between=lambda t: None):
    """The messages of a run on a Gaussian of variance 1/N."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t in range(steps):
            p.grad = p.detach().clone()
            sampler.step()
            between(t)
    return [str(w.message) for w in caught]


@pytest.mark.parametrize("make", [SGLD, SGHMC])
@pytest.mark.parametrize("wrapper", [Lookahead, OrthoGrad])
def test_an_optimizer_around_a_sampler_is_named_once(wrapper, make):
    p = torch.randn(50, requires_grad=True)
    (message,) = run(wrapper(watched(make([p], 0.1, N))), p, 200)
    assert message.startswith(f"{wrapper.__name__}.step takes the step of {make.__name__}")
    assert f"check_sampler(lambda params: {wrapper.__name__}(...))" in message


def test_the_wrappers_here_do_take_the_law():
    """The planted faults: a variance far from 1.03/N, which a sampler alone has."""
    share = {}
    for name, wrap in {"alone": lambda s: s, "Lookahead": Lookahead, "OrthoGrad": OrthoGrad}.items():
        torch.manual_seed(0)
        p = torch.zeros(2000, requires_grad=True)
        sampler, total = wrap(SGLD([p], 0.1, N)), []
        run(sampler, p, 100)
        run(sampler, p, 200, lambda t, p=p, total=total: total.append(float(p.detach().square().mean())))
        share[name] = N * sum(total) / len(total)
    assert share["alone"] == pytest.approx(1 / (1 - 0.05), rel=0.03)
    assert share["Lookahead"] < 0.7
    assert share["OrthoGrad"] > 10


class Held:
    """Object that moves the weights in passing and is no optimizer."""

    def __init__(self, sampler):
        self.optimizer, self.param_groups, self.count = sampler, sampler.param_groups, 0

    step = Lookahead.step


def test_weights_that_move_between_steps_are_told_once():
    def clamp(t):
        p.data.clamp_(-0.05, 0.05)

    def decay(t):
        with torch.no_grad():
            p.mul_(0.99)

    for between in (clamp, decay):
        p = torch.randn(50, requires_grad=True)
        sampler = watched(SGLD([p], 0.1, N))
        (message,) = run(sampler, p, 50, between)
        assert f"SGLD have changed {HABIT} times between two of its {HABIT} steps" in message
    p = torch.randn(50, requires_grad=True)
    (message,) = run(Held(watched(SGLD([p], 0.1, N))), p, 50)
    assert f"{HABIT} times between two of its 15 steps" in message
    late = torch.randn(50, requires_grad=True)
    assert not run(watched(SGLD([late], 0.1, N)), late, 2 * WATCHED, lambda t: t < WATCHED or late.data.mul_(0.9))


@pytest.mark.parametrize("shape", [(), (50,), (3, 4), (2, 3, 4, 5)])
def test_a_change_of_the_last_of_several_parameters_is_seen(shape):
    params = [torch.randn(4, 4, requires_grad=True), torch.randn(3, requires_grad=True)]
    params.append(torch.randn(shape, requires_grad=True))
    sampler = watched(SGLD(params, 0.1, N))
    params[0].grad, params[1].grad = torch.zeros(4, 4), torch.zeros(3)
    assert len(run(sampler, params[2], 10, lambda t: params[2].data.mul_(2.0))) == 1


def test_what_a_loop_may_do_is_not_told():
    p = torch.randn(50, requires_grad=True)
    sampler = watched(SGLD([p], 0.1, N))
    saved = copy.deepcopy(sampler.state_dict()), p.detach().clone()

    def evaluate(t):  # with averaged weights, which are swapped in and out at every step
        weights = p.detach().clone()
        with torch.no_grad():
            p.copy_(torch.zeros(50))
        p.data.copy_(weights)

    assert not run(sampler, p, 30, evaluate)

    def load(t):
        if t == 10:
            sampler.load_state_dict(saved[0])
            p.data.copy_(saved[1])
        if t == 20:  # and another chain begins elsewhere
            torch.nn.init.normal_(p)

    assert not run(sampler, p, 30, load)


def test_other_precision_and_frozen_parameters_are_no_change():
    p, frozen = torch.randn(5, requires_grad=True), torch.zeros(3)
    sampler = watched(SGLD([frozen, p], 0.1, N))

    def thaw(t):
        frozen.add_(1.0)

    assert not run(sampler, p, 10, thaw)
    watch = sampler.outside
    watch.noted = watch.noted.double()
    watch(sampler)
    assert watch.changes == 0


class Several(torch.optim.Optimizer):
    """Steps a sampler and another optimizer in turn, as for a network with a head that is not sampled."""

    def __init__(self, sampler, other, *, in_list):
        self.sampler, self.others = sampler, [other] if in_list else other
        super().__init__([*sampler.param_groups[0]["params"], *other.param_groups[0]["params"]], {})

    def step(self, closure=None):
        self.sampler.step(closure)
        (self.others[0] if isinstance(self.others, list) else self.others).step()


@pytest.mark.parametrize("in_list", [False, True])
def test_an_optimizer_that_holds_several_is_no_wrapper(in_list):
    p, head = torch.randn(50, requires_grad=True), torch.zeros(3, requires_grad=True)
    head.grad = torch.ones(3)
    both = Several(watched(SGLD([p], 0.1, N)), torch.optim.Adam([head]), in_list=in_list)
    assert not run(both, p, 30)
    both = Several(watched(SGLD([p], 0.1, N)), torch.optim.Adam([head]), in_list=in_list)
    (message,) = run(both, p, 30, lambda t: p.data.clamp_(-0.05, 0.05))
    assert f"SGLD have changed {HABIT} times" in message


def embedding_run(between, module=None, steps=30):
    """The messages of a run of a small network that begins with an embedding."""
    torch.manual_seed(0)
    table = module or torch.nn.Embedding(6, 4, max_norm=0.5)
    model = torch.nn.Sequential(table, torch.nn.Linear(4, 1))
    sampler = watched(SGLD(model.parameters(), 0.1, N))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t in range(steps):
            sampler.zero_grad()
            model(torch.tensor([0, 1, 2])).square().mean().backward()
            sampler.step()
            between(t, model)
    return [str(w.message) for w in caught]


def test_an_embedding_that_shortens_its_rows_is_not_told_and_a_clamp_beside_it_is():
    assert not embedding_run(lambda t, model: None)

    def clamp(t, model):
        model[1].bias.data.clamp_(-1e-3, 1e-3)

    def renorm(t, model):
        model[0].weight.data.renorm_(2, 0, 0.5)

    assert len(embedding_run(clamp)) == 1
    assert len(embedding_run(renorm, torch.nn.Embedding(6, 4))) == 1, "by hand, and not by the embedding"


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_weights_that_come_back_rounded_are_not_told_and_a_clamp_of_rounded_ones_is(half):
    def rounded(t, model):
        model.to(half).float()

    def clamped(t, model):
        rounded(t, model)
        model[1].weight.data.clamp_(-0.1, 0.1)

    assert not embedding_run(rounded, torch.nn.Embedding(6, 4))
    assert len(embedding_run(clamped, torch.nn.Embedding(6, 4))) == 1
