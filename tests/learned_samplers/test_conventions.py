"""The converter: round trips, and chains written in the other convention that turn out to be the same."""

import math

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from learned_samplers import SGHMC, SGLD
from learned_samplers.conventions import PARAMETRISATIONS, convert

positive = st.floats(1e-6, 1e3)


@hypothesis.given(
    lr=positive,
    decay=st.floats(0.001, 1.0),
    temperature=positive,
    prior=positive,
    n=st.floats(1.0, 1e7),
    target=st.sampled_from(sorted(PARAMETRISATIONS)),
)
def test_there_and_back(lr, decay, temperature, prior, n, target):
    ours = dict(lr=lr, momentum_decay=decay, temperature=temperature, prior_precision=prior)
    if target == "welling_teh":
        del ours["momentum_decay"]  # which it has not
    there = convert("learned_samplers", target, num_data=n, **ours)
    assert set(there) <= set(PARAMETRISATIONS[target])
    back = convert(target, "learned_samplers", num_data=n, **there)
    for key, value in back.items():
        assert value == pytest.approx(ours[key], rel=1e-6)
    assert set(ours) - set(back) <= {"momentum_decay"}


def _chain(make, start, gradient, n, steps=5):
    x = start.clone().requires_grad_()
    sampler = make([x])
    torch.manual_seed(0)
    for _ in range(steps):
        x.grad = gradient(x.detach()) / n
        sampler.step()
    return x.detach()


def _gradient(x):
    """Gradient of the negative log-likelihood, summed over the data."""
    return 30.0 * torch.sin(x) + 7.0 * x


START, N, PRIOR = torch.linspace(-1, 1, 6, dtype=torch.float64), 500, 3.0


def welling_teh(x, memory, step_size, prior_precision):
    return x - step_size / 2 * (_gradient(x) + prior_precision * x) + math.sqrt(step_size) * torch.randn_like(x), None


def chen(x, v, learning_rate, momentum_decay, prior_precision):
    noise = math.sqrt(2 * momentum_decay * learning_rate) * torch.randn_like(x)
    v = (1 - momentum_decay) * v - learning_rate * (_gradient(x) + prior_precision * x) + noise
    return x + v, v


def ma(x, r, step_size, friction, temperature):
    noise = math.sqrt(2 * friction * step_size * temperature) * torch.randn_like(x)
    r = r - step_size * _gradient(x) - step_size * friction * r + noise
    return x + step_size * r, r


@pytest.mark.parametrize(
    ("theirs", "make", "given"),
    [
        (welling_teh, SGLD, dict(step_size=1e-3, prior_precision=PRIOR)),
        (chen, SGHMC, dict(learning_rate=1e-4, momentum_decay=0.2, prior_precision=PRIOR)),
        (ma, SGHMC, dict(step_size=0.01, friction=15.0, temperature=0.3)),
    ],
)
def test_a_chain_written_in_their_convention_is_ours(theirs, make, given):
    ours = convert(theirs.__name__, "learned_samplers", num_data=N, **given)
    chain = _chain(lambda p: make(p, num_data=N, **ours), START, _gradient, N)
    x, memory = START.clone(), torch.zeros_like(START)
    torch.manual_seed(0)
    for _ in range(5):
        x, memory = theirs(x, memory, **given)
    assert torch.allclose(chain, x)


def test_sgd_with_weight_decay_at_temperature_zero():
    given_ = dict(lr=0.05, momentum=0.8, weight_decay=0.01, temperature=0.0)
    ours = convert("torch_sgd", "learned_samplers", num_data=N, **given_)
    chain = _chain(lambda p: SGHMC(p, num_data=N, **ours), START, _gradient, N)
    theirs = _chain(lambda p: torch.optim.SGD(p, 0.05, momentum=0.8, weight_decay=0.01), START, _gradient, N)
    assert torch.allclose(chain, theirs)


def test_l2es_table():
    ours = convert("l2e", "learned_samplers", num_data=50_000, step_size=2e-5, momentum_decay=0.05)
    assert ours["lr"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(source="adam", target="chen", lr=0.1), "source"),
        (dict(source="chen", target="adam", learning_rate=0.1), "target"),
        (dict(source="chen", target="ma", lr=0.1), "quantity of 'chen'.*'lr'"),
        (dict(source="chen", target="ma", momentum_decay=0.1), "learning_rate must be given"),
        (dict(source="torch_sgd", target="ma", lr=0.1, momentum=1.0), "momentum_decay that 'torch_sgd' implies"),
        (dict(source="ma", target="chen", step_size=0.1, friction=100.0), "momentum_decay"),
        (dict(source="ma", target="chen", step_size=-0.1), "step_size"),
        (dict(source="chen", target="welling_teh", learning_rate=0.1, momentum_decay=0.1), "has no momentum"),
        (dict(source="chen", target="ma", learning_rate=0.1, temperature=-1), "temperature must not be negative"),
        (dict(source="torch_sgd", target="ma", lr=0.1, weight_decay=-1e-4), "weight_decay must not be negative"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        convert(num_data=100, **arguments)
