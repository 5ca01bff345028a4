"""Collecting: which states are kept, memory bound, dtypes, compiled steps, resuming bit for bit."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from learned_samplers import SGHMC, AdaptedSGHMC, CyclicalSGMCMC, PosteriorSamples
from tests.learned_samplers.posterior.common import X, Y, collect, equal, network, same, sgd, sghmc, train


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


def count(steps, sampler_options=None, **options):
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(2))
    sampler = CountingSampler(model.parameters(), **(sampler_options or {}))
    posterior = PosteriorSamples(model, sampler, **options)
    for _ in range(steps):
        sampler.step()
    return posterior


@settings(max_examples=50, deadline=None)
@given(steps=st.integers(0, 60), burn_in=st.integers(0, 30), thinning=st.integers(1, 20))
def test_keeps_every_thinning_th_step_after_burn_in(steps, burn_in, thinning):
    posterior = count(steps, burn_in=burn_in, thinning=thinning)
    expected = [t for t in range(1, steps + 1) if t > burn_in and (t - burn_in) % thinning == 0]
    assert posterior.steps == expected
    assert [sample["weight"].tolist() for sample in posterior] == [[t, t] for t in expected]
    assert posterior.cycles == [t - 1 for t in expected]


@pytest.mark.parametrize(
    ("steps", "options", "kept", "cycles"),
    [
        # Cycles of 10 steps of which the last 5 sample; every 2nd of those is due: positions 7 and 9.
        (40, {"thinning": 2}, [7, 9, 17, 19, 27, 29, 37, 39], [0, 0, 1, 1, 2, 2, 3, 3]),
        (20, {"thinning": 2, "burn_in": 6}, [8, 10, 17, 19], [0, 0, 1, 1]),
        (160, {"thinning": 3, "max_samples": 8}, list(range(18, 159, 20)), list(range(1, 16, 2))),
    ],
)
def test_a_cyclical_sampler_contributes_alike_in_every_cycle(steps, options, kept, cycles):
    posterior = count(steps, {"cycle_length": 10, "phase": 5}, **options)
    assert (posterior.steps, posterior.cycles) == (kept, cycles)
    with pytest.raises(ValueError, match=r"thinning=6 .* 5 steps"):
        count(20, {"cycle_length": 10, "phase": 5}, thinning=6)


def test_the_real_cyclical_sampler_is_read_right():
    model = network()
    sampler = CyclicalSGMCMC(model.parameters(), lr=0.01, num_data=20, cycle_length=10, exploration_ratio=0.6)
    posterior = PosteriorSamples(model, sampler, burn_in=10, thinning=2)
    train(model, sampler, 30)
    assert (posterior.steps, posterior.cycles) == ([18, 20, 28, 30], [1, 1, 2, 2])


def test_plain_optimizer_counts_its_own_steps_and_copies_are_taken():
    model, sampler, posterior = collect(steps=0, burn_in=4, thinning=3)
    with posterior:
        train(model, sampler, 10)
        assert posterior.steps == [7, 10]
        assert same(posterior[-1], dict(model.named_parameters()))
        assert not same(posterior[0], dict(model.named_parameters()))
    train(model, sampler, 3)
    assert len(posterior) == 2, "detached by the context manager"


@settings(max_examples=60, deadline=None)
@given(steps=st.integers(1, 200), max_samples=st.integers(1, 9), thinning=st.integers(1, 3))
def test_max_samples_bounds_and_keeps_even_spacing(steps, max_samples, thinning):
    posterior = count(steps, thinning=thinning, max_samples=max_samples)
    assert len(posterior) <= max_samples
    if steps // thinning >= max_samples:
        assert len(posterior) >= max_samples / 2
    spacing = {b - a for a, b in zip([0, *posterior.steps], posterior.steps)}
    assert len(spacing) <= 1, posterior.steps
    assert [sample["weight"][0].item() for sample in posterior] == posterior.steps


@pytest.mark.parametrize(
    ("steps", "sampler", "options", "reason"),
    [
        (0, {}, {}, "not made a step"),
        (60, {}, dict(burn_in=2000), "60 steps.*burn_in=2000"),
        (60, dict(cycle_length=5000), {}, "after 60 steps .*is_sampling"),
        (60, {}, dict(burn_in=20, thinning=50), "40 steps .*since step 20, .*thinning=50"),
        (7, dict(cycle_length=10, phase=6), dict(thinning=5), "3 steps .*since step 4"),
    ],
)
def test_without_a_sample_the_error_says_why(tmp_path, steps, sampler, options, reason):
    posterior = count(steps, sampler, **options)
    for use in (lambda: posterior.predict(torch.zeros(1)), lambda: posterior.save(tmp_path / "none.safetensors")):
        with pytest.raises(RuntimeError, match="no sample .*" + reason):
            use()
    assert not list(tmp_path.iterdir())


def test_without_a_sample_a_sampler_that_warms_up_says_for_how_long():
    model = network()
    sampler = AdaptedSGHMC(model.parameters(), num_data=20, total_steps=60)
    posterior = PosteriorSamples(model, sampler)
    train(model, sampler, 3)
    with pytest.raises(RuntimeError, match=r"after 3 steps .*it warms up for 30 steps of total_steps=60"):
        posterior.save("none.safetensors")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_of_storage(dtype):
    model, sampler, posterior = collect(steps=1, dtype=dtype)
    assert same(posterior[0], {name: parameter.to(dtype) for name, parameter in model.named_parameters()})
    assert posterior.predict(X).dtype == torch.float32
    if dtype == torch.float16:
        with torch.no_grad():
            model[0].bias.fill_(1e6)  # finite, but not in float16
        with pytest.raises(ValueError, match=r"'0\.bias' is not finite at step 2 .*float16"):
            sampler.step()
        assert len(posterior) == 1


def fine_tuned(path=None, backbone=False, **options):
    """A chain over the head alone, to which :func:`unfreeze` may add the backbone; or over both."""
    model = network()
    model[0].requires_grad_(backbone)
    sampler = sgd(model)
    return model, sampler, PosteriorSamples(model, sampler, path=path, **options)


def unfreeze(model, sampler):
    """As Lightning's BackboneFinetuning does."""
    model[0].requires_grad_(True)
    sampler.add_param_group({"params": list(model[0].parameters())})


def reloaded(state, path=None, **options):
    """A collector with the samples of a state dict."""
    model, sampler, posterior = fine_tuned(path, **options)
    model.load_state_dict(state["model"])
    posterior.load_state_dict(state["posterior"])
    return model, sampler, posterior


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_joins_before_the_first_sample_is_sampled(tmp_path, on_disk):
    path = tmp_path / "samples" if on_disk else None
    model, sampler, posterior = fine_tuned(path, burn_in=3)
    train(model, sampler, 2)
    unfreeze(model, sampler)
    train(model, sampler, 4)
    assert posterior.parameter_names == [name for name, _ in model.named_parameters()]
    assert same(posterior[-1], dict(model.named_parameters()))
    assert not torch.equal(posterior[0]["0.weight"], posterior[-1]["0.weight"])
    posterior.save(tmp_path / "saved.safetensors")
    equal(PosteriorSamples.load(path or tmp_path / "saved.safetensors", network()), posterior)
    state = {"model": model.state_dict(), "posterior": posterior.state_dict()}
    posterior.detach()
    model, sampler, again = reloaded(state, path, backbone=True, burn_in=3)
    train(model, sampler, 1)
    assert again.steps == [4, 5, 6, 7]
    again.detach()
    with pytest.raises(ValueError, match=r"'0\.weight' is sampled in the state dict and frozen here.*requires_grad_"):
        reloaded(state, path, burn_in=3)


def test_what_joins_after_it_is_refused_by_name():
    model, sampler, posterior = fine_tuned()
    train(model, sampler, 2)
    state = {"model": model.state_dict(), "posterior": posterior.state_dict()}
    unfreeze(model, sampler)
    with pytest.raises(ValueError, match=r"'0\.weight' is sampled at step 3 but .* first sample, of step 1"):
        train(model, sampler, 1)
    assert posterior.steps == [1, 2]
    with pytest.raises(ValueError, match=r"'0\.weight' is sampled here but not in the state dict.*freeze it"):
        reloaded(state, backbone=True)


def test_what_freezes_after_it_is_said_once_also_in_a_resumed_run():
    model, sampler, posterior = fine_tuned(backbone=True)
    train(model, sampler, 2)
    model[0].requires_grad_(False)
    with pytest.warns(UserWarning, match=r"'0\.weight' \(and 1 more\) was sampled before and is frozen at step 3"):
        train(model, sampler, 1)
    train(model, sampler, 2)  # a second warning would be an error
    state = {"model": model.state_dict(), "posterior": posterior.state_dict()}
    model, sampler, again = reloaded(state)
    train(model, sampler, 2)
    assert again.steps == [1, 2, 3, 4, 5, 6, 7]
    assert len({tuple(sample["0.bias"].tolist()) for sample in again}) == 2


def test_a_collector_is_not_copied_away_from_its_sampler():
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(collect(steps=1))


def run_compiled(backend, steps=9, model=None, **options):
    model = model or network()
    # At temperature 0 no noise is drawn, which a compiled step draws from another stream.
    sampler = SGHMC(model.parameters(), lr=0.05, num_data=20, temperature=0.0)
    posterior = PosteriorSamples(model, sampler, **options)
    torch.compiler.reset()
    step = torch.compile(sampler.step, fullgraph=True, backend=backend) if backend else sampler.step
    for _ in range(steps):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        step()
    return model, posterior, step


@pytest.mark.parametrize(("backend", "on_disk"), [("eager", False), ("aot_eager", True)])
def test_a_compiled_step_is_collected_from(backend, on_disk, tmp_path):
    options = {"burn_in": 1, "thinning": 2, "max_samples": 3}
    plain = run_compiled(None, **options)[1]
    compiled = run_compiled(backend, path=tmp_path / "samples" if on_disk else None, **options)[1]
    assert compiled.steps == plain.steps == [5, 9]
    for a, b in zip(compiled, plain):
        torch.testing.assert_close(a, b)


def test_errors_of_a_compiled_step_come_through():
    model, posterior, step = run_compiled("eager", 1, dtype=torch.float16)
    with torch.no_grad():
        model[2].bias.fill_(1e6)
    with pytest.raises(ValueError, match=r"'2\.bias' is not finite at step 2"):
        step()
    assert len(posterior) == 1
    model, posterior, step = run_compiled("eager", 1, network(norm=True), buffers="snapshot")
    assert torch.equal(posterior[0]["0.weight"], model[0].weight)
    model[1].running_mean = torch.ones(8)
    with pytest.raises(RuntimeError, match=r"'1\.running_mean' was replaced"):
        step()


@pytest.mark.parametrize(("changes", "how"), [({5: False, 8: True}, "unfrozen"), ({5: False}, "frozen")])
def test_a_compiled_step_that_does_not_see_a_layer_freeze_or_join_is_refused(changes, how):
    """With gradients of zero in the place of none it goes on moving a frozen layer."""
    model, _, step = run_compiled("eager", 2, burn_in=50)
    for k in range(3, 1 + max(changes)):
        model[0].requires_grad_(changes.get(k, model[0].weight.requires_grad))
        model.zero_grad(set_to_none=how == "unfrozen")
        nn.functional.cross_entropy(model(X), Y).backward()
        if k < max(changes):
            step()
    with pytest.raises(RuntimeError, match=rf"'0\.weight' was {how}.*torch\.compiler\.reset"):
        step()


def make(path=None, **options):
    return collect(steps=0, make=sghmc, burn_in=3, thinning=2, path=path, **options)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_resumed_run_goes_on_collecting_the_same(tmp_path, on_disk):
    folder = tmp_path / "samples" if on_disk else None
    model, sampler, reference = make(max_samples=4)
    train(model, sampler, 20)
    parts = make(folder, max_samples=4)
    train(*parts[:2], 11)
    torch.save([part.state_dict() for part in parts], tmp_path / "checkpoint.pt")
    parts[2].detach()
    parts = make(folder, max_samples=4)
    for part, state in zip(parts, torch.load(tmp_path / "checkpoint.pt", weights_only=True), strict=True):
        part.load_state_dict(state)
    train(*parts[:2], 9)
    assert reference.steps == [7, 11, 15, 19]
    equal(parts[2], reference)


def test_going_back_without_the_collector_is_an_error():
    model, sampler, posterior = make()
    train(model, sampler, 5)
    checkpoint = copy.deepcopy((sampler.state_dict(), posterior.state_dict(), model.state_dict()))
    train(model, sampler, 5)
    sampler.load_state_dict(checkpoint[0])
    model.load_state_dict(checkpoint[2])
    with pytest.raises(RuntimeError, match="at step 6, but step 10 has been seen"):
        train(model, sampler, 1)
    posterior.load_state_dict(checkpoint[1])
    train(model, sampler, 4)
    assert posterior.steps == [5, 7, 9]


def test_a_wrong_state_dict_changes_nothing():
    model, sampler, posterior = make()
    train(model, sampler, 9)
    state = posterior.state_dict()
    held, another = make()[2], collect(network(9), 0, burn_in=3, thinning=2)[2]
    spoiled = copy.deepcopy(state["samples"])
    spoiled[1]["2.bias"][0] = float("nan")
    cases = [
        (another, state, r"'0\.weight' has shape \(9, 4\) here and \(8, 4\) in the state"),
        (held, {**state, "settings": {**state["settings"], "thinning": 5}}, "thinning=2 differs from 5"),
        (held, {"settings": state["settings"]}, "not a state dict of PosteriorSamples .*KeyError"),
        (held, {**state, "samples": [{**s, "0.bias": torch.zeros(7)} for s in state["samples"]]}, "sample of step 5"),
        (held, {**state, "samples": state["samples"][:2]}, "lists 3 samples and holds 2"),
        (held, {**state, "samples": spoiled}, r"step 7: '2\.bias' .*not finite"),
        (held, {**state, "samples": None}, "samples are on disk, .* in memory"),
    ]
    before = held.state_dict(), another.state_dict()
    for collector, wrong, reason in cases:
        with pytest.raises(ValueError, match=reason):
            collector.load_state_dict(wrong)
    assert (held.state_dict(), another.state_dict()) == before


def test_a_sampler_of_the_parameters_in_another_order_is_told_of():
    """Nobody else can know it of unnamed parameters of equal shapes: each would go on with the momentum of another."""

    def chain(order, named=False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        params = list(model.named_parameters() if named else model.parameters())
        sampler = SGHMC([params[i] for i in order], lr=0.1, num_data=10)
        return sampler, PosteriorSamples(model, sampler)

    sampler, posterior = chain([0, 1, 2, 3])
    states = sampler.state_dict(), posterior.state_dict()
    chain([0, 1, 2, 3])[1].load_state_dict(states[1])
    sampler, posterior = chain([2, 1, 0, 3])
    sampler.load_state_dict(states[0])  # as with torch.optim
    with pytest.raises(ValueError, match=r"another order: '0\.weight' where this one has '1\.weight'"):
        posterior.load_state_dict(states[1])
    posterior.detach()
    assert posterior.state_dict()["order"][0][0] == "1.weight"
    named = chain([0, 1, 2, 3], named=True)[0].state_dict()
    with pytest.raises(ValueError, match=r"another order: '0\.weight' where this one has '1\.weight'"):
        chain([2, 1, 0, 3], named=True)[0].load_state_dict(named)


def test_frozen_parameters_of_any_type_are_kept_as_they_are():
    model = network()
    model.register_parameter("codes", nn.Parameter(torch.arange(6, dtype=torch.uint8), requires_grad=False))
    model.register_parameter("waves", nn.Parameter(torch.ones(2, dtype=torch.complex64), requires_grad=False))
    sampler = SGHMC(model.parameters(), lr=0.1, num_data=10)
    posterior = PosteriorSamples(model, sampler, dtype=torch.bfloat16)
    train(model, sampler, 2)
    assert len(posterior) == 2
    assert posterior.predict(X).isfinite().all()
