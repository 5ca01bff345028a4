"""Collecting: which states are kept, memory bound, buffers, bad input, resuming."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from learned_samplers import SGHMC, SGLD, CyclicalSGMCMC
from learned_samplers.posterior.collect import PosteriorSamples


class Counter(nn.Module):
    """One weight that the optimizer below sets to its step count, so that a sample says when it was taken."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))


class CountingSampler(torch.optim.Optimizer):
    """Writes its step count into every parameter; samples in the last ``phase`` steps of every ``cycle_length``."""

    def __init__(self, params, cycle_length=1, phase=1):
        super().__init__(params, {})
        self.step_count, self.cycle_length, self.phase = 0, cycle_length, phase

    @property
    def is_sampling(self):
        return (self.step_count - 1) % self.cycle_length >= self.cycle_length - self.phase

    @property
    def cycle(self):
        return (self.step_count - 1) // self.cycle_length

    @torch.no_grad()
    def step(self, closure=None):
        self.step_count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.fill_(self.step_count)


def collect(steps, sampler_options=None, **options):
    model = Counter()
    sampler = CountingSampler(model.parameters(), **(sampler_options or {}))
    posterior = PosteriorSamples(model, sampler, **options)
    for _ in range(steps):
        sampler.step()
    return posterior


@pytest.mark.parametrize(
    ("steps", "sampler", "options", "reason"),
    [
        (0, {}, {}, "the sampler has not made a step since this was made"),
        (60, {}, dict(burn_in=2000), "of 60 steps none is kept, for burn_in=2000 are left out"),
        (60, dict(cycle_length=5000), {}, "after 60 steps the sampler is not sampling"),
        (60, {}, dict(burn_in=20, thinning=50), "40 steps were made since step 20, and thinning=50 keeps the last"),
        (7, dict(cycle_length=10, phase=6), dict(thinning=5), "3 steps were made since step 4"),
    ],
)
def test_without_a_sample_the_error_says_why(tmp_path, steps, sampler, options, reason):
    posterior = collect(steps, sampler, **options)
    with pytest.raises(RuntimeError, match="no sample to predict with: " + reason):
        posterior.predict(torch.zeros(1))
    with pytest.raises(RuntimeError, match="no sample to save: " + reason):
        posterior.save(tmp_path / "none.safetensors")
    assert not list(tmp_path.iterdir())


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def batch_norm_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def data(count=32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def train(model, sampler, steps):
    x, y = data()
    for _ in range(steps):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        sampler.step()


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# -- which states -------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(steps=st.integers(0, 60), burn_in=st.integers(0, 30), thinning=st.integers(1, 20))
def test_keeps_every_thinning_th_step_after_burn_in(steps, burn_in, thinning):
    posterior = collect(steps, burn_in=burn_in, thinning=thinning)
    expected = [t for t in range(1, steps + 1) if t > burn_in and (t - burn_in) % thinning == 0]
    assert posterior.steps == expected
    assert [sample["weight"].tolist() for sample in posterior] == [[t, t] for t in expected]
    assert posterior.cycles == [t - 1 for t in expected]


def test_cyclical_sampler_contributes_alike_in_every_cycle():
    # Cycles of 10 steps of which the last 5 sample; every 2nd of those is due: positions 7 and 9.
    posterior = collect(40, {"cycle_length": 10, "phase": 5}, thinning=2)
    assert posterior.steps == [7, 9, 17, 19, 27, 29, 37, 39]
    assert posterior.cycles == [0, 0, 1, 1, 2, 2, 3, 3]


def test_burn_in_inside_a_sampling_phase_restarts_the_count():
    assert collect(20, {"cycle_length": 10, "phase": 5}, burn_in=6, thinning=2).steps == [8, 10, 17, 19]


def test_thinning_longer_than_the_sampling_phase_is_an_error():
    with pytest.raises(ValueError, match="thinning=6 is longer than the sampler's sampling phase of 5 steps"):
        collect(20, {"cycle_length": 10, "phase": 5}, thinning=6)


def test_the_real_cyclical_sampler_is_read_right():
    model = small_model()
    sampler = CyclicalSGMCMC(model.parameters(), lr=0.01, num_data=32, cycle_length=10, exploration_ratio=0.6)
    posterior = PosteriorSamples(model, sampler, burn_in=10, thinning=2)
    train(model, sampler, 30)
    assert posterior.steps == [18, 20, 28, 30]
    assert posterior.cycles == [1, 1, 2, 2]


def test_plain_optimizer_counts_its_own_steps_and_copies_are_taken():
    model = small_model()
    sampler = torch.optim.SGD(model.parameters(), lr=0.1)
    with PosteriorSamples(model, sampler, burn_in=4, thinning=3) as posterior:
        train(model, sampler, 10)
        assert posterior.steps == [7, 10]
        assert same(posterior[-1], dict(model.named_parameters()))
        assert not same(posterior[0], dict(model.named_parameters()))
    train(model, sampler, 3)
    assert len(posterior) == 2, "detached by the context manager"


@settings(max_examples=60, deadline=None)
@given(steps=st.integers(1, 200), max_samples=st.integers(1, 9), thinning=st.integers(1, 3))
def test_max_samples_bounds_and_keeps_even_spacing(steps, max_samples, thinning):
    posterior = collect(steps, thinning=thinning, max_samples=max_samples)
    due = steps // thinning
    assert len(posterior) <= max_samples
    if due >= max_samples:
        assert len(posterior) >= max_samples / 2
    spacing = {b - a for a, b in zip([0, *posterior.steps], posterior.steps)}
    assert len(spacing) <= 1, posterior.steps
    assert [sample["weight"][0].item() for sample in posterior] == posterior.steps


def test_max_samples_spreads_over_cycles():
    posterior = collect(160, {"cycle_length": 10, "phase": 4}, thinning=2, max_samples=8)
    assert posterior.cycles == [1, 3, 5, 7, 9, 11, 13, 15]


# -- storage dtype, parameters, buffers -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_of_storage(dtype):
    model = small_model()
    sampler = torch.optim.SGD(model.parameters(), lr=0.1)
    posterior = PosteriorSamples(model, sampler, dtype=dtype)
    train(model, sampler, 1)
    for name, parameter in model.named_parameters():
        assert posterior[0][name].dtype == dtype
        assert torch.equal(posterior[0][name], parameter.to(dtype))
    assert posterior.predict(data()[0]).dtype == torch.float32


def test_frozen_parameters_are_not_sampled_and_may_not_change():
    model = small_model()
    model[0].requires_grad_(False)
    sampler = torch.optim.SGD(model[2].parameters(), lr=0.1)
    posterior = PosteriorSamples(model, sampler)
    train(model, sampler, 2)
    assert posterior.parameter_names == ["2.weight", "2.bias"]
    with torch.no_grad():
        model[0].weight.add_(1)
    with pytest.raises(ValueError, match=r"'0\.weight' is not sampled but changed.*give it to the sampler"):
        train(model, sampler, 1)
    assert len(posterior) == 2


def test_running_statistics_need_a_policy():
    model = batch_norm_model()
    sampler = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"running statistics.*buffers='snapshot'.*buffers='reestimate'"):
        PosteriorSamples(model, sampler)
    sampler.step()  # nothing was attached
    with pytest.raises(ValueError, match="buffers='reestimate', but the model has no normalisation layer"):
        PosteriorSamples(small_model(), torch.optim.SGD(small_model().parameters(), lr=1), buffers="reestimate")


def test_snapshot_keeps_the_buffers_of_each_sample():
    model = batch_norm_model()
    sampler = torch.optim.SGD(model.parameters(), lr=0.1)
    posterior = PosteriorSamples(model, sampler, buffers="snapshot")
    x, _ = data()
    expected = []
    for _ in range(3):
        train(model, sampler, 1)
        model.eval()
        expected.append(model(x).softmax(1).detach())
        model.train()
    torch.testing.assert_close(posterior.predict_samples(x), torch.stack(expected), atol=1e-6, rtol=0)


def test_constant_buffers_need_no_policy_but_must_stay_constant():
    model = small_model()
    model.register_buffer("mask", torch.ones(3))
    sampler = torch.optim.SGD(model.parameters(), lr=0.1)
    posterior = PosteriorSamples(model, sampler)
    train(model, sampler, 2)
    model.mask.zero_()
    with pytest.raises(ValueError, match=r"'mask' is not sampled but changed.*choose buffers='snapshot'"):
        train(model, sampler, 1)
    assert posterior.steps == [1, 2]


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"burn_in": -1}, ValueError, "burn_in must be at least 0, got -1"),
        ({"burn_in": 1.5}, TypeError, "burn_in must be an integer, got 1.5"),
        ({"thinning": 0}, ValueError, "thinning must be at least 1, got 0"),
        ({"thinning": True}, TypeError, "thinning must be an integer, got True"),
        ({"max_samples": 0}, ValueError, "max_samples must be at least 1, got 0"),
        ({"dtype": torch.int8}, TypeError, "dtype must be a floating-point torch.dtype or None, got torch.int8"),
        ({"buffers": "copy"}, ValueError, "buffers must be one of .*, got 'copy'"),
        ({"model": "net"}, TypeError, "model must be a torch.nn.Module, got str"),
        ({"sampler": None}, TypeError, "sampler must be a torch.optim.Optimizer, got NoneType"),
    ],
)
def test_bad_arguments_are_named(options, error, message):
    model = small_model()
    arguments = {"model": model, "sampler": torch.optim.SGD(model.parameters(), lr=0.1), **options}
    with pytest.raises(error, match=message):
        PosteriorSamples(**arguments)


def test_parameters_of_another_model_are_refused():
    other = nn.Linear(2, 5)
    sampler = torch.optim.SGD([*small_model().parameters(), *other.parameters()], lr=0.1)
    with pytest.raises(ValueError, match=r"parameter 0 of group 0.*shape \(8, 4\), is not a parameter of model"):
        PosteriorSamples(small_model(), sampler)


def test_a_state_that_is_not_finite_is_refused():
    model = small_model()
    sampler = torch.optim.SGD(model.parameters(), lr=0.1)
    posterior = PosteriorSamples(model, sampler, dtype=torch.float16)
    with torch.no_grad():
        model[0].bias.fill_(1e6)  # finite, but not in float16
    with pytest.raises(ValueError, match=r"'0\.bias' is not finite at step 1 \(stored as torch\.float16\)"):
        sampler.step()
    assert len(posterior) == 0


# -- resuming ---------------------------------------------------------------------------------------------------------


def make(path=None, **options):
    model = small_model()
    sampler = SGHMC(model.parameters(), lr=0.01, num_data=32, generator=torch.Generator().manual_seed(7))
    return model, sampler, PosteriorSamples(model, sampler, burn_in=3, thinning=2, path=path, **options)


RESUME = """
import sys, torch
sys.path[:0] = {paths!r}
torch.set_num_threads(1)
from test_posterior import make, train
for folder, file in {runs!r}:
    model, sampler, posterior = make(folder, max_samples=4)
    checkpoint = torch.load(file, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    sampler.load_state_dict(checkpoint["sampler"])
    posterior.load_state_dict(checkpoint["posterior"])
    train(model, sampler, 9)
    posterior.save(file + ".result")
"""


def test_another_process_goes_on_collecting_the_same(tmp_path):
    model, sampler, whole = make(max_samples=4)
    train(model, sampler, 20)
    runs = [(None, str(tmp_path / "memory.pt")), (str(tmp_path / "samples"), str(tmp_path / "disk.pt"))]
    for folder, file in runs:
        model, sampler, posterior = make(folder, max_samples=4)
        train(model, sampler, 11)
        parts = {"model": model, "sampler": sampler, "posterior": posterior}
        torch.save({name: part.state_dict() for name, part in parts.items()}, file)
        posterior.detach()
    here = Path(__file__).parent
    script = RESUME.format(paths=[str(here.parents[2]), str(here)], runs=runs)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
    for _, file in runs:
        resumed = PosteriorSamples.load(file + ".result", small_model())
        assert resumed.steps == whole.steps == [7, 11, 15, 19]
        assert all(same(a, b) for a, b in zip(resumed, whole))


def test_going_back_without_the_collector_is_an_error():
    model, sampler, posterior = make()
    train(model, sampler, 5)
    checkpoint = sampler.state_dict(), posterior.state_dict()
    train(model, sampler, 5)
    sampler.load_state_dict(checkpoint[0])
    with pytest.raises(RuntimeError, match="at step 6, but step 10 has been seen"):
        train(model, sampler, 1)
    posterior.load_state_dict(checkpoint[1])
    train(model, sampler, 4)
    assert posterior.steps == [5, 7, 9]


def test_a_wrong_state_dict_changes_nothing():
    model, sampler, posterior = make()
    train(model, sampler, 9)
    state = posterior.state_dict()
    other_model = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3))
    other = PosteriorSamples(other_model, torch.optim.SGD(other_model.parameters(), lr=1), burn_in=3, thinning=2)
    before = other.state_dict()
    with pytest.raises(ValueError, match=r"shapes\['0\.weight'\]=\[9, 4\] differs from \[8, 4\] in the state dict"):
        other.load_state_dict(state)
    _, _, thicker = make()
    with pytest.raises(ValueError, match="thinning=2 differs from 5"):
        thicker.load_state_dict({**state, "settings": {**state["settings"], "thinning": 5}})
    with pytest.raises(ValueError, match=r"not a state dict of PosteriorSamples \(KeyError"):
        thicker.load_state_dict({"settings": state["settings"]})
    broken = [{**sample, "0.bias": torch.zeros(7)} for sample in state["samples"]]
    with pytest.raises(ValueError, match=r"the sample of step 5"):
        thicker.load_state_dict({**state, "samples": broken})
    with pytest.raises(ValueError, match="lists 3 samples and holds 2"):
        thicker.load_state_dict({**state, "samples": state["samples"][:2]})
    assert len(thicker) == 0
    assert other.state_dict() == before


def test_a_parameter_that_joins_the_sampler_later_is_named_at_the_first_sample():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    sampler = SGLD(model[1].parameters(), 0.01, 10)
    posterior = PosteriorSamples(model, sampler, burn_in=2)
    for step in range(3):
        if step == 1:
            sampler.add_param_group({"params": list(model[0].parameters())})
        sampler.zero_grad()
        model(torch.ones(4, 2)).square().mean().backward()
        if step == 2:
            with pytest.raises(ValueError, match=r"'0\.weight' is sampled at step 3 but was not when"):
                sampler.step()
        else:
            sampler.step()
    assert len(posterior) == 0


def test_a_collector_is_not_copied_away_from_its_sampler():
    model = nn.Linear(2, 1)
    sampler = SGLD(model.parameters(), 0.01, 10)
    posterior = PosteriorSamples(model, sampler)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy((model, sampler, posterior))
