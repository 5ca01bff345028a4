"""Whatever is raised within a step, the chain is where it was: parameters, state, noise, counts; every sampler."""

import copy

import pytest
import torch

from learned_samplers import SGHMC, SGLD, AdaptedSGHMC, WhitenedSGHMC
from learned_samplers.base import step
from learned_samplers.base.guards import outside
from learned_samplers.base.guards.broken_off import Attempt
from learned_samplers.learned.native.kernel import ENVIRONMENT_VARIABLE
from tests.harness import NEED_CLOSURE, NEED_DRAWS, SAMPLERS, closure_for, running, same

EVERY = pytest.mark.parametrize("name", SAMPLERS)
NAN, INF = float("nan"), float("inf")


class Interrupted(BaseException):
    """Not an Exception, as a KeyboardInterrupt is not."""


#: Those that may call the closure more than once in a step.
SEVERAL = NEED_CLOSURE | NEED_DRAWS


@pytest.mark.parametrize(
    ("name", "evaluation"), [(name, k) for name in SAMPLERS for k in ((1, 2, 3) if name in SEVERAL else (1,))]
)
@pytest.mark.parametrize("first", [True, False])
def test_an_error_in_any_evaluation(first, name, evaluation):
    """The closure fails at its first, second or third call (the probe, the trajectory), in the first step or later."""
    model, sampler, unchanged = running(name, 0 if first else 3)
    ordinary, calls = closure_for(model, sampler), []

    def closure():
        calls.append(1)
        if len(calls) == evaluation:
            raise Interrupted
        return ordinary()

    try:
        sampler.step(closure)
    except Interrupted:
        assert unchanged()
        assert not (first and any(sampler.state.values()))
    else:
        assert len(calls) < evaluation


@EVERY
def test_an_interruption_before_the_update_changes_nothing(name, monkeypatch):
    """Also not what a sampler counts in its groups."""
    model, sampler, unchanged = running(name)

    def interrupt(attempt):
        raise Interrupted

    monkeypatch.setattr(Attempt, "begins_update", interrupt)
    with pytest.raises(Interrupted):
        sampler.step(closure_for(model, sampler))
    assert unchanged()


@EVERY
def test_a_step_that_may_overflow_is_undone_with_all_that_it_wrote(name, monkeypatch):
    """Weights, states, noise, and what a sampler counts in its groups, although they have moved already."""
    model, sampler, unchanged = running(name)
    monkeypatch.setattr(step, "_SAFE", dict.fromkeys((torch.float32, torch.float64), -1.0))
    advance_group = sampler.advance

    def advance(group, inputs):
        advance_group(group, inputs)
        raise Interrupted

    monkeypatch.setattr(sampler, "advance", advance)
    with pytest.raises(Interrupted):
        sampler.step(closure_for(model, sampler))
    assert unchanged()


def _with_slope(p):
    def closure():
        p.grad = None
        loss = p.float().square().mean()
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("name", ["SGHMC", "L2E", "AdaptedSGHMC", "KineticL2E"])
@pytest.mark.parametrize("other", [torch.zeros(2), torch.zeros(40), torch.zeros(2_000_000), torch.zeros(16).double()])
def test_a_parameter_of_another_shape_or_dtype_than_in_its_first_step_is_refused(name, other):
    p = torch.nn.Parameter(torch.zeros(16))
    sampler = SAMPLERS[name]([p])
    sampler.step(_with_slope(p))
    momentum = sampler.state[p]["momentum"].clone()
    p.data, p.grad = other.clone(), None
    with pytest.raises(ValueError, match=r"had the shape \(16,\) in its first step, and the dtype torch.float32"):
        sampler.step(_with_slope(p))
    assert torch.equal(sampler.state[p]["momentum"], momentum)
    assert not p.any()


@pytest.mark.parametrize("name", ["HMC", "KineticL2E"])
def test_a_sampler_that_half_precision_breaks_is_not_given_it_by_a_later_conversion(name):
    p = torch.nn.Parameter(torch.zeros(16))
    sampler = SAMPLERS[name]([p])
    p.data = p.data.bfloat16()
    with pytest.raises(ValueError, match=f"{name} cannot sample parameters of torch.bfloat16"):
        sampler.step(_with_slope(p))
    assert not p.any()


def test_a_cycle_that_fails_to_begin_leaves_the_state_of_parameters_without_gradient():
    a, b = (torch.nn.Parameter(torch.randn(3, 4)) for _ in range(2))
    sampler = AdaptedSGHMC(
        [a, b],
        num_data=10,
        warmup=WhitenedSGHMC,
        warmup_steps=4,
        cycle_length=6,
        missing_gradient="skip",
        temperature=0.0,
    )
    for _ in range(6):
        a.grad, b.grad = torch.randn(3, 4), torch.randn(3, 4)
        sampler.step()
    before = {p: {name: x.clone() for name, x in sampler.state[p].items()} for p in (a, b)}
    a.grad, b.grad = torch.full((3, 4), 3e38), None
    with pytest.raises(FloatingPointError, match="nothing was changed"):
        sampler.step()
    for p, state in before.items():
        assert set(sampler.state[p]) == set(state)
        assert all(torch.equal(x, sampler.state[p][name]) for name, x in state.items())


# ---------------------------------------------------------------- gradients and parameters that cannot be


def _spoilt(change):
    def spoil(model, loss):
        change(model)
        return loss

    return spoil


#: What a closure leaves, the error, and what it must name.
SPOILT = [
    (_spoilt(lambda model: model[2].weight.grad[0].fill_(NAN)), FloatingPointError, r"'2\.weight'"),
    (_spoilt(lambda model: model[0].bias.grad[2].fill_(-INF)), FloatingPointError, r"'0\.bias'"),
    (_spoilt(lambda model: setattr(model[0].bias, "grad", None)), ValueError, r"'0\.bias' has no gradient"),
    (
        _spoilt(lambda model: setattr(model[2].weight, "grad", model[2].weight.grad.to_sparse())),
        TypeError,
        r"'2\.weight' is sparse",
    ),
    (lambda model, loss: loss * NAN, FloatingPointError, "loss that is not finite: nan"),
    (lambda model, loss: loss + INF, FloatingPointError, "loss that is not finite: inf"),
]


@EVERY
def test_bad_gradients_change_nothing(name):
    model, sampler, unchanged = running(name)
    ordinary = closure_for(model, sampler)
    for spoil, error, message in SPOILT:
        with pytest.raises(error, match=message):
            sampler.step(lambda spoil=spoil: spoil(model, ordinary()))
        assert unchanged()
    sampler.step(ordinary)
    assert sampler.step_count == 4


#: Those that square the gradient, or multiply it by more than lr: 1e25 is too much for them in single precision.
SQUARING = {"PSGLD", "PSGLD-probe", "L2E-adaptive", "L2E-paper"}
SQUARING |= {"L2E-matrix", "IVON", "IVON-draws"}
SQUARING |= {"AdaptedSGHMC", "AdaptedSGHMC-whitened", "AdaptedSGHMC-adam", "AdaptedSGHMC-matrix"}


@EVERY
def test_huge_gradients_are_no_error_unless_the_step_overflows(name, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "0")  # compiled code sums squares in double precision
    p = torch.zeros(3, requires_grad=True)
    sampler = SAMPLERS[name]([p], lr=1e-30)

    def closure():
        p.grad = torch.full_like(p, 1e25)  # its norm overflows in single precision
        return torch.tensor(1.0)

    if name in SQUARING:
        noise = torch.get_rng_state()
        with pytest.raises(FloatingPointError, match="would not be finite after this step"):
            sampler.step(closure)
        assert torch.equal(p.detach(), torch.zeros(3))
        assert torch.equal(torch.get_rng_state(), noise)
        assert not any(state for state in sampler.state.values())
    else:
        sampler.step(closure)
        assert p.isfinite().all()
    assert sampler.step_count == (name not in SQUARING)


@EVERY
@pytest.mark.parametrize("value", [NAN, INF, 3e38])
def test_a_parameter_that_is_not_finite_or_would_overflow_is_noticed(name, value, monkeypatch):
    """The gradient is finite: nothing but the parameter itself tells."""
    monkeypatch.setattr(outside, "layers_of", lambda params: {})  # it looks at all objects of the tests' process
    p = torch.zeros(5, requires_grad=True)
    sampler = SAMPLERS[name]([p], prior_precision=1.0)

    def closure():
        p.grad = torch.full_like(p, 0.1)
        return torch.tensor(1.0)

    for _ in range(2):
        sampler.step(closure)
    with torch.no_grad():
        p[2] = value
    before, noise, state = p.detach().clone(), torch.get_rng_state(), copy.deepcopy(sampler.state_dict())
    try:
        sampler.step(closure)
    except FloatingPointError:
        assert torch.equal(p.nan_to_num(7.0), before.nan_to_num(7.0))
        assert torch.equal(torch.get_rng_state(), noise)
        assert same(sampler.state_dict(), state)
    else:  # a large number is one all the same; what may not be is the step's result
        assert value == 3e38
        assert p.isfinite().all()
    if value != 3e38:
        with pytest.raises(FloatingPointError, match=r"parameter number 0 of shape \(5,\)"):
            sampler.step(closure)


def test_of_many_parameters_each_is_looked_at_within_eight_steps():
    params = [torch.zeros(2, requires_grad=True) for _ in range(100)]
    sampler = SGLD(params, 0.1, 100)
    for p in params:
        p.grad = torch.zeros_like(p)
    sampler.step()
    with torch.no_grad():
        params[77][1] = NAN
    with pytest.raises(FloatingPointError, match="parameter number 77"):  # noqa: PT012
        for _ in range(8):
            sampler.step()


def test_a_frozen_parameter_with_an_old_gradient_stays_and_has_no_part_in_the_temperatures():
    a, b = (torch.ones(3, requires_grad=True) for _ in range(2))
    sampler = SGHMC([a, b], lr=0.1, num_data=100)
    a.grad = b.grad = torch.ones(3)
    sampler.step()
    alone = SGHMC([a], lr=0.1, num_data=100)
    alone.state[a] = sampler.state[a]
    b.requires_grad_(False)
    b.grad = torch.full((3,), 1e6)
    assert sampler.temperatures() == alone.temperatures()
    before = b.clone()
    sampler.step()
    assert torch.equal(b, before)
