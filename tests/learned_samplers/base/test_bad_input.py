"""Bad input gets an error that names it, and leaves everything as it was; one table for every sampler."""

from __future__ import annotations

import copy

import pytest
import torch

from learned_samplers import HMC, PSGLD, SGHMC, SGLD, SGNHT, CyclicalSchedule, CyclicalSGMCMC
from tests.harness import SAMPLERS, closure_for, flat, small_network

EVERY = pytest.mark.parametrize("name", SAMPLERS)
NAN, INF = float("nan"), float("inf")


def parameter():
    return torch.zeros(3, requires_grad=True)


@EVERY
@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("lr", 0.0, ValueError),
        ("lr", -0.1, ValueError),
        ("lr", NAN, ValueError),
        ("lr", "fast", TypeError),
        ("lr", torch.ones(2), TypeError),
        ("num_data", 0, ValueError),
        ("num_data", -5, ValueError),
        ("num_data", INF, ValueError),
        ("num_data", None, TypeError),
        ("temperature", -1.0, ValueError),
        ("temperature", True, TypeError),
        ("prior_precision", -1.0, ValueError),
        ("prior_precision", NAN, ValueError),
        ("foreach", "yes", ValueError),
        ("generator", 3, TypeError),
    ],
)
def test_shared_arguments(name, argument, value, error):
    with pytest.raises(error, match=argument):
        SAMPLERS[name]([parameter()], **{argument: value})


@pytest.mark.parametrize(
    ("cls", "settings", "argument", "error"),
    [
        (SGHMC, {"momentum_decay": 0.0}, "momentum_decay", ValueError),
        (SGHMC, {"momentum_decay": 1.1}, "momentum_decay", ValueError),
        (SGHMC, {"momentum_decay": -0.1}, "momentum_decay", ValueError),
        (SGHMC, {"momentum_init": "ones"}, "momentum_init", ValueError),
        (SGNHT, {"momentum_decay": 0.0}, "momentum_decay", ValueError),
        (SGNHT, {"thermostat_rate": 0.0}, "thermostat_rate", ValueError),
        (SGNHT, {"temperature": 0.0}, "temperature", ValueError),
        (PSGLD, {"decay": 1.0}, "decay", ValueError),
        (PSGLD, {"eps": 0.0}, "eps", ValueError),
        (PSGLD, {"correction": "full"}, "correction", ValueError),
        (PSGLD, {"probe_size": 0}, "probe_size", ValueError),
        (CyclicalSGMCMC, {"cycle_length": 0}, "cycle_length", ValueError),
        (CyclicalSGMCMC, {"cycle_length": 2.5}, "cycle_length", TypeError),
        (CyclicalSGMCMC, {"cycle_length": 10, "exploration_ratio": 1.0}, "exploration_ratio", ValueError),
        (CyclicalSGMCMC, {"cycle_length": 2, "exploration_ratio": 0.9}, "no sampling step", ValueError),
        (CyclicalSGMCMC, {"cycle_length": 10, "base": "adam"}, "base", ValueError),
        (CyclicalSGMCMC, {"cycle_length": 10, "momentum_decay": 2}, "momentum_decay", ValueError),
        (HMC, {"leapfrog_steps": 0}, "leapfrog_steps", ValueError),
        (HMC, {"adapt_steps": -1}, "adapt_steps", ValueError),
        (HMC, {"target_acceptance": 1.0}, "target_acceptance", ValueError),
        (HMC, {"step_jitter": 1.0}, "step_jitter", ValueError),
        (HMC, {"temperature": 0.0}, "temperature", ValueError),
    ],
)
def test_own_arguments(cls, settings, argument, error):
    with pytest.raises(error, match=argument):
        cls([parameter()], 0.1, 100, **settings)


@EVERY
@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ([], ValueError, "empty"),
        ([{"params": []}], ValueError, "empty"),
        ([torch.zeros(2, dtype=torch.complex64)], TypeError, "real floating-point"),
        ([torch.zeros(2, dtype=torch.long)], TypeError, "real floating-point"),
        ([("bias", torch.zeros(2, dtype=torch.int32))], TypeError, "'bias'"),
        ([torch.zeros(2).to_sparse()], TypeError, "dense"),
        (["weight"], TypeError, "must be a tensor"),
    ],
)
def test_parameters(name, params, error, message):
    with pytest.raises(error, match=message):
        SAMPLERS[name](params)


@EVERY
def test_a_bad_group_is_refused_whole(name):
    sampler = SAMPLERS[name]([parameter()])
    with pytest.raises(ValueError, match="lr must be greater than 0, got -3"):
        sampler.add_param_group({"params": [parameter()], "lr": -3})
    with pytest.raises(TypeError, match="param_group must be a dict"):
        sampler.add_param_group([parameter()])
    assert len(sampler.param_groups) == 1


def _running(name):
    """A sampler in the middle of a run, and a function that says whether anything of it has changed."""
    model = small_network()
    sampler = SAMPLERS[name](model.named_parameters())
    closure = closure_for(model, sampler)
    for _ in range(3):
        sampler.step(closure)
    closure()
    weights, state, noise = flat(model), copy.deepcopy(sampler.state_dict()), torch.get_rng_state()

    def unchanged():
        assert torch.equal(flat(model), weights)
        now = sampler.state_dict()
        assert now["param_groups"] == state["param_groups"]
        for key, entry in state["state"].items():
            assert all(torch.equal(value, now["state"][key][k]) for k, value in entry.items())
        assert torch.equal(torch.get_rng_state(), noise)
        return True

    return model, sampler, unchanged


def _spoil(model, sampler, spoil):
    """A closure that leaves the gradients that ``spoil`` makes."""
    ordinary = closure_for(model, sampler)

    def closure():
        loss = ordinary()
        return spoil(model, loss)

    return closure


def _nan_gradient(model, loss):
    model[2].weight.grad[0, 1] = NAN
    return loss


def _infinite_gradient(model, loss):
    model[0].bias.grad[2] = -INF
    return loss


def _no_gradient(model, loss):
    model[0].bias.grad = None
    return loss


def _sparse_gradient(model, loss):
    model[2].weight.grad = model[2].weight.grad.to_sparse()
    return loss


@EVERY
@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (_nan_gradient, FloatingPointError, r"'2\.weight' is not finite"),
        (_infinite_gradient, FloatingPointError, r"'0\.bias' is not finite"),
        (_no_gradient, ValueError, r"'0\.bias' has no gradient"),
        (_sparse_gradient, TypeError, r"'2\.weight' is sparse"),
        (lambda model, loss: loss * NAN, FloatingPointError, "loss that is not finite: nan"),
        (lambda model, loss: loss + INF, FloatingPointError, "loss that is not finite: inf"),
    ],
    ids=["nan", "inf", "none", "sparse", "nan-loss", "inf-loss"],
)
def test_bad_gradients_change_nothing(name, spoil, error, message):
    model, sampler, unchanged = _running(name)
    with pytest.raises(error, match=message):
        sampler.step(_spoil(model, sampler, spoil))
    assert unchanged()
    sampler.step(closure_for(model, sampler))
    assert sampler.step_count == 4


@EVERY
def test_huge_but_finite_gradients_are_no_error(name):
    p = parameter()
    sampler = SAMPLERS[name]([p], lr=1e-30)

    def closure():
        p.grad = torch.full_like(p, 1e25)  # its norm overflows in single precision
        return torch.tensor(1.0)

    sampler.step(closure)
    assert sampler.step_count == 1


def test_parameters_without_names_are_named_by_number_and_shape():
    p = parameter()
    sampler = SGLD([p], 0.1, 100)
    p.grad = torch.full_like(p, NAN)
    with pytest.raises(FloatingPointError, match=r"number 0 of shape \(3,\)"):
        sampler.step()


def _renamed(saved):
    key = next(iter(saved["state"][0]))
    saved["state"][0]["velocity"] = saved["state"][0].pop(key)
    return saved


def _reshaped(saved):
    key = next(iter(saved["state"][0]))
    saved["state"][0][key] = torch.zeros(7, 7)
    return saved


def _with_generator(saved):
    saved["sampler"]["rng"] = {"generator": torch.Generator().get_state()}
    return saved


def _of_fewer_parameters(saved):
    saved["param_groups"][0]["params"] = [0, 1]
    return saved


def _of_torch(saved):
    del saved["sampler"]
    return saved


def _of_another(saved):
    saved["sampler"]["name"] = "Metropolis"
    return saved


@EVERY
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_of_another, "is of Metropolis, this sampler is"),
        (_of_torch, "is of another optimizer"),
        (_of_fewer_parameters, "1 groups with 2 parameters"),
        (_with_generator, "generator"),
        (_reshaped, r"of parameter '0\.weight' has shape \(7, 7\)"),
        (_renamed, "velocity"),
    ],
)
def test_state_dicts_of_others_are_refused_and_change_nothing(name, spoil, message):
    _, sampler, unchanged = _running(name)
    saved = copy.deepcopy(sampler.state_dict())
    if spoil in (_reshaped, _renamed) and not sampler.state_names:
        saved["state"][0] = {"momentum": torch.zeros(5, 3)}  # this sampler has no state at all
        message = "momentum"
    else:
        saved = spoil(saved)
    with pytest.raises(ValueError, match=message):
        sampler.load_state_dict(saved)
    assert unchanged()


def test_a_malformed_generator_state_is_refused_before_anything_is_loaded():
    _, sampler, unchanged = _running("SGHMC")
    saved = copy.deepcopy(sampler.state_dict())
    saved["param_groups"][0]["lr"] = 7.0
    saved["sampler"]["rng"]["cpu"] = torch.zeros(3, dtype=torch.uint8)
    with pytest.raises((RuntimeError, TypeError)):
        sampler.load_state_dict(saved)
    assert unchanged()


def test_schedule_wants_a_sampler():
    with pytest.raises(TypeError, match="sampler must be a Sampler, got SGD"):
        CyclicalSchedule(torch.optim.SGD([parameter()], 0.1), 10)
    with pytest.raises(ValueError, match="no sampling step"):
        CyclicalSchedule(SGLD([parameter()], 0.1, 10), 3, 0.9)


def test_a_probe_that_fails_leaves_the_parameters():
    model = small_network()
    sampler = PSGLD(model.parameters(), 0.01, 100, correction="probe")
    ordinary = closure_for(model, sampler)
    calls = []

    def closure():
        calls.append(1)
        return ordinary() if len(calls) % 2 else ordinary() * NAN

    before = flat(model)
    with pytest.raises(FloatingPointError, match="at the probe"):
        sampler.step(closure)
    assert torch.equal(flat(model), before)
    assert sampler.step_count == 0


def test_hmc_refuses_losses_of_a_wrong_shape():
    p = torch.zeros(4, 2, requires_grad=True)

    def closure():
        p.grad = torch.zeros_like(p)
        return torch.zeros(3)

    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        HMC([p], 0.1, 10).step(closure)


def test_hmc_restores_the_state_when_the_closure_fails_on_the_way():
    model = small_network()
    sampler = HMC(model.parameters(), 0.1, 100)
    ordinary, calls = closure_for(model, sampler), []

    def closure():
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("out of data")
        return ordinary()

    before = flat(model)
    with pytest.raises(RuntimeError, match="out of data"):
        sampler.step(closure)
    assert torch.equal(flat(model), before)
    assert sampler.step_count == 0


@EVERY
@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("lr", -0.1, ValueError),
        ("lr", NAN, ValueError),
        ("lr", torch.ones(2), TypeError),
        ("num_data", 0, ValueError),
        ("temperature", -0.1, ValueError),
        ("prior_precision", "flat", TypeError),
        ("foreach", "yes", ValueError),
    ],
)
def test_a_group_changed_between_steps_is_validated_before_any_group_moves(name, key, value, error):
    model = small_network()
    sampler = SAMPLERS[name]([{"params": model[0].parameters()}, {"params": model[2].parameters()}])
    for _ in range(2):
        sampler.step(closure_for(model, sampler))
    before, noise, good = flat(model), torch.get_rng_state(), sampler.param_groups[1][key]
    sampler.param_groups[1][key] = value
    for _ in range(2):  # a second try is refused like the first
        with pytest.raises(error, match=f"{key} must"):
            sampler.step(closure_for(model, sampler))
    assert torch.equal(flat(model), before)
    assert torch.equal(torch.get_rng_state(), noise)
    sampler.param_groups[1][key] = good
    sampler.step(closure_for(model, sampler))
    assert [group["step"] for group in sampler.param_groups] == [3, 3]


def test_a_learning_rate_changed_in_place_is_validated():
    p = parameter()
    sampler = SGLD([p], torch.tensor(0.1), 100)
    p.grad = torch.zeros(3)
    sampler.step()
    sampler.param_groups[0]["lr"].fill_(-1.0)
    with pytest.raises(ValueError, match="lr must not be negative"):
        sampler.step()


def test_hyperparameters_of_a_sampler_are_validated_as_at_construction():
    p = parameter()
    sampler = SGHMC([p], 0.1, 100)
    p.grad = torch.zeros(3)
    sampler.step()
    sampler.param_groups[0]["momentum_decay"] = 1.5
    with pytest.raises(ValueError, match=r"momentum_decay must lie in \(0, 1\], got 1.5"):
        sampler.step()


def test_unchanged_hyperparameters_are_not_validated_again(monkeypatch):
    p, calls = parameter(), []
    sampler = SGLD([p], 0.1, 100)
    p.grad = torch.zeros(3)
    sampler.step()
    monkeypatch.setattr(sampler, "_validate", calls.append)
    sampler.step()
    assert not calls
    sampler.param_groups[0]["lr"] = 0.0  # where a schedule may end
    sampler.step()
    assert len(calls) == 1
