"""A state dict continues the chain bit for bit, and those of others are refused and change nothing."""

import copy
import io
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from learned_samplers import SGHMC, SGLD
from tests.harness import SAMPLERS, closure_for, flat, reloaded, run, running, same, small_network

EVERY = pytest.mark.parametrize("name", SAMPLERS)


def further(model, sampler):
    """Seven steps more."""
    for _ in range(7):
        sampler.step(closure_for(model, sampler))
    return {"theta": flat(model), "noise": torch.randn(3), "count": sampler.step_count}


def further_of(name, saved):
    """Seven steps more of a saved chain."""
    model = small_network(seed=99)
    sampler = SAMPLERS[name](model.parameters(), lr=1.0)
    model.load_state_dict(saved["model"])
    sampler.load_state_dict(saved["sampler"])
    return further(model, sampler)


_RESUME = """
import sys, torch
from tests.learned_samplers.base.test_saved_state import further_of
torch.set_num_threads(int(sys.argv[3]))  # the order of the sums in a matrix product depends on it
chains = torch.load(sys.argv[1], weights_only=True)
torch.save({name: further_of(name, saved) for name, saved in chains.items()}, sys.argv[2])
"""


def test_every_sampler_resumes_bit_for_bit_in_another_process(tmp_path):
    saved, states = {}, {}
    for name in SAMPLERS:
        model, sampler, _ = run(name, 8)
        saved[name] = copy.deepcopy({"model": model.state_dict(), "sampler": sampler.state_dict()})
        states[name] = further(model, sampler)
    torch.save(saved, tmp_path / "saved.pt")
    arguments = [str(tmp_path / "saved.pt"), str(tmp_path / "out.pt"), str(torch.get_num_threads())]
    subprocess.run([sys.executable, "-c", _RESUME, *arguments], cwd=Path(__file__).parents[3], check=True, timeout=300)
    there = torch.load(tmp_path / "out.pt", weights_only=True)
    assert not [name for name in SAMPLERS if not same(there[name], states[name]) or states[name]["count"] != 15]


#: Chains by name, whether in half precision, and their settings; the resumed one is made without those of the prior.
CHAINS = [(name, torch.float32, {}) for name in SAMPLERS]
CHAINS += [(name, torch.bfloat16, {}) for name in ("SGLD", "SGHMC", "SGNHT", "PSGLD", "L2E")]
CHAINS += [(name, torch.float32, {"prior_mean": "initial"}) for name in ("SGLD", "SGHMC")]


@pytest.mark.parametrize(("name", "dtype", "settings"), CHAINS)
def test_resumes_with_a_generator_of_its_own(name, dtype, settings):
    """With masters of half precision, and with the prior's mean, which the state brings along."""
    model, twin = small_network().to(dtype), small_network(seed=4).to(dtype)

    def make(net, **more):
        return SAMPLERS[name](
            net.parameters(), generator=torch.Generator().manual_seed(5), prior_precision=20.0, **more
        )

    def go(net, chain):
        for _ in range(4):
            chain.step(closure_for(net, chain))

    sampler = make(model, **settings)
    go(model, sampler)
    resumed = reloaded(model, sampler, twin, make)
    go(model, sampler)
    go(twin, resumed)
    assert torch.equal(flat(twin), flat(model))
    assert same(resumed.state_dict(), sampler.state_dict())
    if dtype == torch.bfloat16:
        without = copy.deepcopy(sampler.state_dict())
        del without["state"][0]["master"]
        with pytest.raises(ValueError, match="master"):
            resumed.load_state_dict(without)


@EVERY
def test_copies_and_pickles_continue_alike(name):
    """With generators of their own, so that all draw the same; what guards remember begins anew in a copy."""
    model = small_network()
    sampler = SAMPLERS[name](model.parameters(), generator=torch.Generator().manual_seed(2))
    for _ in range(3):
        sampler.step(closure_for(model, sampler))
    ends = []
    sampler.zero_grad()
    for _, copied in (copy.deepcopy((model, sampler)), pickle.loads(pickle.dumps((model, sampler))), (model, sampler)):
        net = small_network()
        for p, q in zip(net.parameters(), copied.param_groups[0]["params"], strict=True):
            p.data = q.data  # its closure writes into the copy's own tensors
            q.grad = None

        def closure(net=net, other=copied):
            loss = closure_for(net, other)()
            for p, q in zip(net.parameters(), other.param_groups[0]["params"], strict=True):
                q.grad, p.grad = p.grad, None
            return loss

        assert copied.step_count == 3
        copied.step(closure)
        assert copied.state_dict()["sampler"]["name"] == type(sampler).__name__
        ends.append(torch.cat([p.detach().flatten().clone() for p in copied.param_groups[0]["params"]]))
    assert torch.equal(ends[0], ends[2])
    assert torch.equal(ends[1], ends[2])


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_noise_of_a_gpu_that_is_not_there_cannot_be_resumed_silently():
    sampler = SGLD([torch.zeros(3, requires_grad=True)], 0.1, 10)
    saved = sampler.state_dict()
    saved["sampler"]["rng"]["cuda:0"] = torch.zeros(16, dtype=torch.uint8)
    del saved["sampler"]["checksum"]
    with pytest.warns(UserWarning, match="noise of cuda:0"):
        sampler.load_state_dict(saved)


@EVERY
def test_two_chains_from_one_state_do_not_share_it(name):
    model, sampler, _ = running(name)
    saved = sampler.state_dict()
    second = SAMPLERS[name](copy.deepcopy(model).parameters(), lr=1.0)
    second.load_state_dict(saved)
    for p, q in zip(model.parameters(), second.param_groups[0]["params"], strict=True):
        for key, value in sampler.state[p].items():
            assert torch.equal(value, second.state[q][key])
            assert value.numel() == 0 or value.data_ptr() != second.state[q][key].data_ptr()


@pytest.mark.parametrize("late", ["joined", "unfrozen"])
def test_a_state_between_joining_and_the_first_step_can_be_loaded(late):
    def chain():
        a, b = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
        if late == "joined":
            return a, b, SGHMC([a], lr=0.1, num_data=10)
        b.requires_grad_(False)
        return a, b, SGHMC([a, b], lr=0.1, num_data=10)

    def join(b, sampler):
        if late == "joined":
            sampler.add_param_group({"params": [b]})
        else:
            b.requires_grad_(True)

    a, b, sampler = chain()
    a.grad = torch.ones(3)
    sampler.step()
    join(b, sampler)
    saved = sampler.state_dict()
    _, again, resumed = chain()
    join(again, resumed)
    resumed.load_state_dict(saved)
    assert resumed.step_count == 1
    assert not resumed.state.get(again)
    del saved["state"][0]
    with pytest.raises(ValueError, match="holds \\[\\] for parameter number 0"):
        resumed.load_state_dict(saved)


@pytest.mark.parametrize(("name", "mine"), [("num_data", 5000), ("temperature", 0.1), ("prior_precision", 3.0)])
def test_a_state_of_another_posterior_is_said_to_be_one(name, mine):
    model = small_network()

    def make():
        return SGHMC([{"params": model[0].parameters()}, {"params": model[2].parameters()}], 0.01, 64)

    older, newer = make(), make()
    for group in newer.param_groups[name == "prior_precision" :]:
        group[name] = mine
    told = older.param_groups[0][name]
    with pytest.warns(UserWarning, match=f"{name}={told:g}, which has taken the place of {mine:g}") as caught:
        newer.load_state_dict(older.state_dict())
    assert len(caught) == 1
    assert newer.param_groups[0][name] == told
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        newer.load_state_dict(older.state_dict())


def test_numbers_of_numpy_load_with_weights_only():
    model = small_network()
    settings = {"temperature": np.float32(0.5), "prior_precision": np.geomspace(1, 2, 3)[1]}
    sampler = SGHMC(model.parameters(), np.logspace(-3, -1, 5)[2], np.int64(500), **settings)
    sampler.step(closure_for(model, sampler))
    file = io.BytesIO()
    torch.save(sampler.state_dict(), file)
    file.seek(0)
    (group,) = torch.load(file, weights_only=True)["param_groups"]
    assert (group["lr"], group["num_data"], group["temperature"]) == (0.01, 500, 0.5)
    assert group["prior_precision"] == 2**0.5


@EVERY
def test_keys_that_a_state_does_not_have_keep_the_values_of_the_sampler(name):
    _, sampler, _ = running(name)
    saved = copy.deepcopy(sampler.state_dict())
    del saved["sampler"]["settings_checksum"]  # as of before
    for key in ("master_weights", "missing_gradient"):
        del saved["param_groups"][0][key]
    sampler.load_state_dict(saved)
    assert sampler.param_groups[0]["missing_gradient"] == "error"


@pytest.mark.parametrize("name", ["SGLD", "SGHMC", "L2E", "AdaptedSGHMC"])
@pytest.mark.parametrize(("there", "here"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_a_state_of_another_precision_is_said_to_be_one(name, there, here):
    def make(dtype):
        model = small_network().to(getattr(torch, dtype))
        sampler = SAMPLERS[name](model.parameters())
        return sampler, closure_for(model, sampler)

    sampler, closure = make(there)
    sampler.step(closure)
    error = UserWarning if (name, there) == ("SGLD", "float32") else ValueError  # it has no state that could not fit
    with pytest.raises(error, match=f"saved from {there} parameters.* {here}"):
        make(here)[0].load_state_dict(sampler.state_dict())
    if there == "float32":
        with pytest.warns(UserWarning, match="saved from float32 parameters.*float64.*other noise"):
            make("float64")[0].load_state_dict(sampler.state_dict())


@pytest.mark.parametrize("name", ["SGHMC", "L2E", "HMC"])
@pytest.mark.parametrize("weights_first", [True, False])
def test_a_state_without_the_weights_that_were_saved_with_it_warns_at_the_next_step(name, weights_first):
    model, sampler, _ = running(name)
    saved, weights = copy.deepcopy((sampler.state_dict(), model.state_dict()))

    def resume(net):
        chain = SAMPLERS[name](net.parameters(), lr=1.0)
        chain.load_state_dict(saved)
        return chain

    wide = small_network(seed=99).double()
    with pytest.warns(UserWarning, match="saved from float32"):
        chain = resume(wide)
    with pytest.warns(UserWarning, match="weights are not those"):
        chain.step(closure_for(wide, chain))
    new = small_network(seed=99)
    chain = resume(new)
    with pytest.warns(UserWarning, match="weights are not those"):
        chain.step(closure_for(new, chain))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chain.step(closure_for(new, chain))  # it is told once
        network = small_network(seed=99)
        if weights_first:
            network.load_state_dict(weights)
        chain = resume(network)
        network.load_state_dict(weights)
        chain.step(closure_for(network, chain))


@pytest.mark.parametrize("name", ["SGHMC", "L2E", "AdaptedSGHMC-matrix", "HMC"])
def test_one_flipped_bit_of_a_saved_tensor_is_refused_and_changes_nothing(name):
    _, sampler, unchanged = running(name)
    state = copy.deepcopy(sampler.state_dict())
    tensors = [x for tensors in state["state"].values() for x in tensors.values()]
    for x in [*tensors, *state["sampler"]["rng"].values()]:
        flat = x.contiguous().view(-1).view(torch.uint8)
        flat[len(flat) // 2] ^= 1
        with pytest.raises(ValueError, match=r"damaged|is not finite|random"):
            sampler.load_state_dict(state)
        flat[len(flat) // 2] ^= 1
    assert unchanged()
    sampler.load_state_dict(state)


def test_a_state_of_a_sampler_that_has_stepped_since_is_refused_and_an_older_one_without_a_checksum_loads():
    model, sampler, _ = running("SGHMC")
    state = sampler.state_dict()
    sampler.step(closure_for(model, sampler))
    with pytest.raises(ValueError, match="deepcopy"):
        sampler.load_state_dict(state)
    del state["sampler"]["checksum"]
    sampler.load_state_dict(state)


@pytest.mark.parametrize("name", ["shapes", "dtypes", "weight_sums", "without_state", "replicated", "checksum"])
@pytest.mark.parametrize("value", [None, "x", 1.5])
def test_what_a_state_says_of_its_sampler_is_checked_before_anything_changes(name, value):
    _, sampler, unchanged = running("SGHMC")
    state = copy.deepcopy(sampler.state_dict())
    state["param_groups"][0]["lr"] = 0.7
    state["sampler"][name] = value
    with pytest.raises(ValueError, match=f"state_dict's {name} must be of type"):
        sampler.load_state_dict(state)
    assert unchanged()


DAMAGE = [
    (("state", 0), None, "got NoneType as the state of parameter 0"),
    (("state", 0), [], "got list as the state of parameter 0"),
    (("state", 0), torch.zeros(3), "got Tensor as the state of parameter 0"),
    (("state", 99), {}, "got dict as the state of parameter 99"),
    (("param_groups", 0, "params"), 1, "list of integers as the params"),
    (("param_groups", 0, "params"), [[]], "list of integers as the params"),
    (("sampler", "name"), torch.zeros(3), "of another optimizer"),
]


@pytest.mark.parametrize(("place", "value", "named"), DAMAGE)
@pytest.mark.parametrize("name", ["SGLD", "SGHMC", "MCLMC", "HMC"])
def test_a_damaged_layout_is_refused_by_name_and_changes_nothing(name, place, value, named):
    _, sampler, unchanged = running(name)
    state = copy.deepcopy(sampler.state_dict())
    part = state
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    with pytest.raises(ValueError, match=named):
        sampler.load_state_dict(state)
    assert unchanged()


def saved_to_a_file(sampler):
    """A state as it comes back from torch.save."""
    file = io.BytesIO()
    torch.save(sampler.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", ["SGHMC", "HMC", "L2E"])
@pytest.mark.parametrize("key", ["lr", "step", "temperature", "num_data"])
def test_a_setting_that_changed_in_a_file_is_refused_and_older_files_load(name, key):
    _, sampler, unchanged = running(name)
    state = saved_to_a_file(sampler)
    state["param_groups"][0][key] += 1
    with pytest.raises(ValueError, match=r"param_groups .* are not those that were saved"):
        sampler.load_state_dict(state)
    assert unchanged()
    state["param_groups"][0][key] -= 1
    del state["sampler"]["settings_checksum"]  # as of before, which loads whatever it holds
    sampler.load_state_dict(state)


def test_settings_that_a_hand_or_a_scheduler_changes_are_saved_as_they_are():
    model, sampler, _ = running("SGHMC")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sampler, T_max=9)
    sampler.step(closure_for(model, sampler))
    schedule.step()
    group = sampler.param_groups[0]
    group["temperature"], group["lr"] = np.float64(0.5), torch.tensor(group["lr"])
    state = saved_to_a_file(sampler)
    group["temperature"] = 1.0
    with pytest.warns(UserWarning, match="saved with temperature=0.5"):
        sampler.load_state_dict(state)
    assert sampler.param_groups[0]["temperature"] == 0.5
    sampler.param_groups[0]["lr"] = 0.02
    sampler.load_state_dict(saved_to_a_file(sampler))
    assert sampler.param_groups[0]["lr"] == 0.02
