"""A step is planned once: how many calls and kernels it takes from then on, and when it is planned anew."""

import pytest
import torch

from learned_samplers import L2E, SGHMC, SGLD, AdaptedSGHMC
from learned_samplers.base import noise
from meta_tasks.networks import architectures
from tests.harness import UNBIASED
from tests.trace import Dispatched, calls

VIEWS = {"alias", "detach", "select", "slice", "split_with_sizes", "view", "_record_function_enter_new"}
VIEWS |= {"_record_function_exit"}


def with_gradients(shapes):
    params = [torch.randn(shape, requires_grad=True) for shape in shapes]
    for p in params:
        p.grad = 0.1 * torch.randn_like(p)
    return params


def planned(sampler):
    """The sampler after so many steps that nobody watches it any more."""
    for _ in range(103):
        sampler.step()
    return sampler


def counted(sampler, steps=10):
    """The most calls, and the most kernels with views, of some steps."""
    most_calls = max(calls(sampler.step) for _ in range(steps))
    kernels = 0
    for _ in range(steps):
        with Dispatched() as dispatched:
            sampler.step()
        kernels = max(kernels, len(dispatched.names))
    return most_calls, kernels


@pytest.mark.parametrize("cls", [SGLD, SGHMC, UNBIASED])
def test_launches_do_not_depend_on_the_number_of_tensors(cls, monkeypatch):
    """As on a GPU, where the noise of all is drawn at once, and one transfer says whether all is finite."""
    monkeypatch.setattr(noise, "waits_for_launches", lambda x: True)
    launches = []
    for number in (3, 30):
        sampler = planned(cls(with_gradients([(4, 5), (6,)] * number), lr=1e-6, num_data=500, prior_precision=1.0))
        with Dispatched() as dispatched:
            sampler.step()
        launches.append([name for name in dispatched.names if name not in VIEWS])
    assert launches[0] == launches[1]
    assert len(launches[0]) <= 16


@pytest.mark.parametrize("cls", [SGLD, SGHMC, UNBIASED])
def test_calls_of_a_cheap_sampler_do_not_depend_on_the_number_of_tensors(cls):
    few, many = (
        counted(planned(cls(with_gradients([(4, 5), (6,)] * number), lr=1e-6, num_data=500)), steps=3)
        for number in (3, 30)
    )
    assert abs(many[0] - few[0]) <= 1
    assert few[0] <= 230
    assert many[1] - few[1] <= 3 * 54  # on a CPU each has its own noise, and a view in each of two norms


@pytest.mark.parametrize(
    ("make", "most_calls", "most_kernels"),
    [
        (lambda params: SGHMC(params, 1e-6, 50_000), 240, 55),
        (lambda params: L2E(params, 1e-6, 50_000), 830, 260),
        (lambda params: AdaptedSGHMC(params, 1e-6, 50_000, warmup=L2E, warmup_steps=10**6), 1120, 340),
    ],
    ids=["SGHMC", "L2E", "AdaptedSGHMC"],
)
def test_a_step_on_a_convolutional_network(make, most_calls, most_kernels):
    """Of 76,000 weights in 12 tensors."""
    params = list(architectures.build("cnn", (3, 16, 16), 10, channels=34, depth=4).parameters())
    for p in params:
        p.grad = 0.01 * torch.randn_like(p)
    taken, kernels = counted(planned(make(params)))
    assert taken <= most_calls
    assert kernels <= most_kernels


def test_it_is_planned_anew_where_a_tensor_is_another():
    """A state that is loaded, one that is replaced or laid elsewhere by hand, a parameter that moves in some steps."""

    def chain():
        torch.manual_seed(0)
        sampler = L2E(with_gradients([(4, 5), (4,), (3, 4), (3,)]), 1e-3, 500, missing_gradient="skip")
        for _ in range(5):
            sampler.step()
        return sampler

    plain, disturbed = chain(), chain()
    disturbed.load_state_dict(plain.state_dict())
    for state in disturbed.state.values():
        for name, x in state.items():
            state[name] = x.clone()
    ends = []
    for sampler in (plain, disturbed):
        torch.manual_seed(1)
        params = sampler.param_groups[0]["params"]
        for skips in (False, True, False, False):
            gradient = params[1].grad
            params[1].grad = None if skips else gradient
            for state in sampler.state.values() if sampler is disturbed else ():
                for x in state.values():
                    x.data = x.data.clone()
            sampler.step()
            params[1].grad = gradient
        ends.append(torch.cat([p.detach().flatten() for p in params]))
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], torch.cat([p.detach().flatten() for p in chain().param_groups[0]["params"]]))
