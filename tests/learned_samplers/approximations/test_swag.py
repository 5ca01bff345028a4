"""SWAG draws from the Gaussian of a trajectory whose moments are known, and its draws are samples like all others."""

from __future__ import annotations

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from learned_samplers import SGHMC, SampleCollection
from learned_samplers.approximations import SWAG
from tests.harness import closure_for, flat, small_data, small_network


class Vector(nn.Module):
    """A network of one parameter, moved by hand."""

    def __init__(self, size):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return x + self.theta


def walked(states, rank=20, **settings):
    model = Vector(states.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    swag = SWAG(model, optimizer, rank=rank, **settings)
    for state in states:
        with torch.no_grad():
            model.theta.copy_(state)
        model.theta.grad = torch.zeros_like(model.theta)
        optimizer.step()
    return model, swag


def draws_of(model, swag, count, **settings):
    drawn = []
    for _ in range(count):
        with swag.sampled_params(**settings):
            drawn.append(model.theta.detach().clone())
    return torch.stack(drawn)


def test_the_draws_have_the_moments_of_the_formula():
    states = torch.randn(30, 4, dtype=torch.float64) @ torch.randn(4, 4, dtype=torch.float64) + 3.0
    model = Vector(4).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    swag = SWAG(model, optimizer, rank=7)
    for state in states:
        with torch.no_grad():
            model.theta.copy_(state)
        model.theta.grad = torch.zeros_like(model.theta)
        optimizer.step()
    drawn = draws_of(model, swag, 40_000)
    means = states.cumsum(0) / torch.arange(1, 31)[:, None]
    deviations = (states - means)[-7:]
    expected = 0.5 * torch.diag(states.var(0, unbiased=False)) + 0.5 * deviations.T @ deviations / 6
    assert torch.allclose(drawn.mean(0), states.mean(0), atol=0.05)
    assert torch.allclose(drawn.T.cov(), expected, atol=0.04 * expected.diag().max().item())
    assert torch.equal(model.theta.detach(), states[-1])  # as before the draws
    assert torch.allclose(draws_of(model, swag, 1, scale=0.0)[0], states.mean(0))


def test_burn_in_and_thinning_choose_the_states():
    states = torch.arange(1.0, 13.0)[:, None].expand(12, 3)
    model, swag = walked(states, burn_in=4, thinning=2)
    assert len(swag) == 4  # steps 6, 8, 10, 12
    assert torch.allclose(draws_of(model, swag, 1, scale=0.0)[0], torch.full((3,), 9.0))


def test_a_resumed_swag_draws_alike():
    states = torch.randn(10, 5)
    model, swag = walked(states, rank=3)
    buffer = io.BytesIO()
    torch.save(swag.state_dict(), buffer)
    buffer.seek(0)
    other_model, other = walked(torch.zeros(0, 5), rank=3)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    torch.manual_seed(1)
    one = draws_of(model, swag, 3)
    torch.manual_seed(1)
    assert torch.equal(one, draws_of(other_model, other, 3))
    with pytest.raises(ValueError, match="other parameters"):
        walked(torch.zeros(0, 4), rank=3)[1].load_state_dict(swag.state_dict())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda swag: torch.save(swag, io.BytesIO())])
def test_a_copy_would_draw_the_present_weights_for_ever_and_is_refused(copied):
    _, swag = walked(torch.randn(10, 5))
    with pytest.raises(TypeError, match=r"cannot be copied or pickled.* state_dict\(\)"):
        copied(swag)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"burn_in": 2}, "burn_in=2 differs from 0 in the state dict"),
        ({"thinning": 5}, "thinning=5 differs from 1 in the state dict"),
        ({"rank": 3}, "rank=3 differs from 20 in the state dict"),
        ({"generator": torch.Generator()}, "generator='its own' differs from None in the state dict"),
    ],
)
def test_a_run_is_not_resumed_with_other_settings(own, message):
    saved = walked(torch.randn(10, 5))[1].state_dict()
    _, other = walked(torch.randn(4, 5), **own)
    before = len(other)
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(saved)
    assert len(other) == before
    for key in ("settings", "generator"):  # as states were before they said it
        del saved[key]
    other.load_state_dict(saved)
    assert len(other) == 10


def test_a_resumed_generator_does_not_repeat_its_draws():
    states = torch.randn(10, 5)
    model, swag = walked(states, generator=torch.Generator().manual_seed(3))
    first = draws_of(model, swag, 2)
    buffer = io.BytesIO()
    torch.save(swag.state_dict(), buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    next_ones = draws_of(model, swag, 2)
    other_model, other = walked(torch.zeros(0, 5), generator=torch.Generator().manual_seed(3))
    other.load_state_dict(saved)
    resumed = draws_of(other_model, other, 2)
    assert torch.equal(resumed, next_ones)
    assert not torch.equal(resumed, first)


@pytest.mark.parametrize("sampler", [True, False])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_step_is_collected_from(backend, sampler):
    """That of torch's optimizers breaks its graph by itself."""

    def fitted(compile_step):
        torch.compiler.reset()
        model = small_network()
        optimizer = (
            SGHMC(model.parameters(), 0.5, 16, temperature=0.0) if sampler else torch.optim.SGD(model.parameters(), 0.5)
        )
        swag = SWAG(model, optimizer, burn_in=4, thinning=2, rank=3)
        step = optimizer.step
        if compile_step:
            step = torch.compile(step, fullgraph=sampler, backend=backend)
        for _ in range(12):
            closure_for(model, optimizer)()
            step()
        return swag

    plain, compiled = fitted(False).state_dict(), fitted(True).state_dict()
    assert (compiled["steps"], compiled["count"], len(compiled["deviations"])) == (12, 4, 3)
    for part in ("mean", "variance"):
        for name, value in plain[part].items():
            torch.testing.assert_close(compiled[part][name], value)
    assert all(value.any() for value in plain["variance"].values())


def test_its_draws_are_samples_that_predict_and_save(tmp_path):
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    swag = SWAG(model, optimizer, burn_in=10)
    for _ in range(40):
        optimizer.step(closure_for(model, optimizer))
    before = flat(model)
    samples = SampleCollection.from_draws(model, swag.sampled_params, 8)
    x = small_data()[0]
    probabilities = samples.predict(x)
    assert torch.equal(flat(model), before)
    assert torch.allclose(probabilities.sum(1), torch.ones(16))
    assert samples.predict_samples(x).std(0).max() > 0
    samples.save(tmp_path / "swag.safetensors")
    again = SampleCollection.load(tmp_path / "swag.safetensors", small_network(3))
    assert torch.allclose(again.predict(x), probabilities)


def test_batch_normalisation_is_refused_or_computed_anew():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    swag = SWAG(model, optimizer)
    for _ in range(6):
        optimizer.step(closure_for(model, optimizer))
    with pytest.raises(ValueError, match="running statistics"):
        SampleCollection.from_draws(model, swag.sampled_params, 4)
    samples = SampleCollection.from_draws(model, swag.sampled_params, 4, buffers="reestimate")
    with pytest.raises(RuntimeError, match="re-estimated"):
        samples.predict(small_data()[0])
    samples.reestimate_buffers(small_data()[0])
    assert samples.predict(small_data()[0]).shape == (16, 2)


def test_an_average_of_weights_by_torch_predicts_as_a_collection_of_one():
    """How the documentation makes EMA and SWA baselines."""
    model = small_network()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(20):
        optimizer.step(closure_for(model, optimizer))
        average.update_parameters(model)
    samples = SampleCollection.from_samples(model, [average.module.state_dict()])
    x = small_data()[0]
    assert torch.allclose(samples.predict(x), average(x).softmax(1))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("joins", ["group", "unfrozen"])
def test_a_parameter_that_joins_later_is_refused_when_a_state_is_due(joins, compiled):
    """In every draw it had the value of the last step."""
    model = small_network()
    model[0].requires_grad_(False)
    early = model[2].parameters() if joins == "group" else model.parameters()
    optimizer = torch.optim.SGD(early, lr=0.5)
    swag = SWAG(model, optimizer, burn_in=2, thinning=2)
    torch.compiler.reset()
    step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
    for _ in range(4):
        closure_for(model, optimizer)()
        step()
    assert len(swag) == 1
    mean = swag.state_dict()["mean"]
    model[0].requires_grad_(True)
    if joins == "group":
        optimizer.add_param_group({"params": model[0].parameters()})
    closure_for(model, optimizer)()
    step()  # no state is due
    closure_for(model, optimizer)()
    with pytest.raises(ValueError, match=r"'0\.weight' is trained at step 6 but was not when SWAG was made: make it"):
        step()
    assert len(swag) == 1
    assert all(torch.equal(value, mean[name]) for name, value in swag.state_dict()["mean"].items())
    swag.detach()
    step()


def test_misuse():
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    swag = SWAG(model, optimizer)
    with pytest.raises(RuntimeError, match="at least two states"), swag.sampled_params():
        pass
    with pytest.raises(ValueError, match="rank"):
        SWAG(model, optimizer, rank=1)
    with pytest.raises(TypeError, match="optimizer"):
        SWAG(model, model)
    with pytest.raises(ValueError, match="and no others"):
        SWAG(small_network(), optimizer)
    optimizer.step(closure_for(model, optimizer))
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.raises(FloatingPointError, match=r"0\.weight"):
        optimizer.step()
    assert len(swag) == 1
    swag.detach()
    optimizer.step()
    assert len(swag) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_have_their_mean(dtype):
    """In their own precision one part in a thousand of a mean rounds away: it stayed at 1 where it is 1.25."""
    model = nn.Linear(10, 4, bias=False).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    swag = SWAG(model, optimizer)
    torch.manual_seed(0)
    for step in range(1200):
        with torch.no_grad():
            target = ((1.0 if step < 600 else 1.5) + 0.05 * torch.randn(4, 10)).to(dtype)
            model.weight.grad = model.weight - target
        optimizer.step()
    with swag.sampled_params(scale=0.0):
        assert model.weight.dtype == dtype
        assert model.weight.float().mean().item() == pytest.approx(1.25, abs=0.01)


def test_complex_weights_are_refused():
    model = Vector(3)
    model.theta = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(TypeError, match=r"'theta' must be a real floating-point tensor, got dtype torch\.complex64"):
        SWAG(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variance": {"theta": torch.tensor([1.0, float("nan")])}}, "values of 'theta' that are not finite"),
        ({"variance": {"theta": torch.tensor([1.0, -1.0])}}, "a negative variance of 'theta'"),
        ({"mean": None}, "not a state dict of SWAG"),
        ({"deviations": [torch.zeros(2)]}, "not a state dict of SWAG"),
        ({"generator": torch.zeros(3, dtype=torch.uint8)}, "generator is broken"),
        ({"settings": "all"}, "not a state dict of SWAG"),
        ({"count": 0}, "does not fit itself: steps=4, count=0, 4 deviations"),
        ({"deviations": []}, "does not fit itself: steps=4, count=4, 0 deviations"),
        ({"steps": 1}, "does not fit itself: steps=1, count=4, 4 deviations"),
    ],
)
def test_a_state_that_cannot_be_is_refused_and_nothing_has_changed(change, message):
    _, swag = walked(torch.randn(4, 2), generator=torch.Generator())
    before = swag.state_dict()
    with pytest.raises(ValueError, match=message):
        swag.load_state_dict({**before, **change})
    for nothing in ({}, None, [1.0]):
        with pytest.raises(ValueError, match="not a state dict of SWAG"):
            swag.load_state_dict(nothing)
    assert len(swag) == 4
    assert torch.equal(swag.state_dict()["generator"], before["generator"])
    assert torch.equal(swag.state_dict()["variance"]["theta"], before["variance"]["theta"])


def test_swag_does_not_keep_the_optimizer_alive():
    """Its state may be twice as large as the weights."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    swag = SWAG(model, optimizer)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert (gone(), len(swag)) == (None, 0)
