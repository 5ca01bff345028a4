"""SWAG draws from the Gaussian of a trajectory whose moments are known, and its draws are samples like all others."""

import gc
import io
import weakref

import pytest
import torch
from torch import nn

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
    model = Vector(states.shape[1]).to(states.dtype)
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
    model, swag = walked(states, rank=7)
    drawn = draws_of(model, swag, 20_000)
    means = states.cumsum(0) / torch.arange(1, 31)[:, None]
    deviations = (states - means)[-7:]
    expected = 0.5 * torch.diag(states.var(0, unbiased=False)) + 0.5 * deviations.T @ deviations / 6
    assert torch.allclose(drawn.mean(0), states.mean(0), atol=0.05)
    assert torch.allclose(drawn.T.cov(), expected, atol=0.04 * expected.diag().max().item())
    assert torch.equal(model.theta.detach(), states[-1])  # as before the draws
    assert torch.allclose(draws_of(model, swag, 1, scale=0.0)[0], states.mean(0))


def test_a_draw_that_fails_leaves_the_weights_as_they_were(monkeypatch):
    """The second parameter's noise cannot be drawn, when the first has been written."""
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    swag = SWAG(model, optimizer)
    for _ in range(4):
        optimizer.step(closure_for(model, optimizer))
    before, normal, calls = flat(model), swag._normal, []

    def short_of_memory(like, shape):
        calls.append(shape)
        if len(calls) == 3:
            assert not torch.equal(flat(model), before)
            raise MemoryError
        return normal(like, shape)

    monkeypatch.setattr(swag, "_normal", short_of_memory)
    with pytest.raises(MemoryError):
        SampleCollection.from_draws(model, swag.sampled_params, 3)
    assert torch.equal(flat(model), before)


def test_burn_in_and_thinning_choose_the_states():
    states = torch.arange(1.0, 13.0)[:, None].expand(12, 3)
    model, swag = walked(states, burn_in=4, thinning=2)
    assert len(swag) == 4  # steps 6, 8, 10, 12
    assert torch.allclose(draws_of(model, swag, 1, scale=0.0)[0], torch.full((3,), 9.0))


@pytest.mark.parametrize("own", [False, True])
def test_a_resumed_swag_goes_on_with_its_draws(own):
    """A generator of its own goes on too, and is not begun anew."""

    def generator():
        return torch.Generator().manual_seed(3) if own else None

    model, swag = walked(torch.randn(10, 5), rank=3, generator=generator())
    first = draws_of(model, swag, 2)
    buffer, noise = io.BytesIO(), torch.get_rng_state()
    torch.save(swag.state_dict(), buffer)
    buffer.seek(0)
    following = draws_of(model, swag, 2)
    other_model, resumed_swag = walked(torch.zeros(0, 5), rank=3, generator=generator())
    resumed_swag.load_state_dict(torch.load(buffer, weights_only=True))
    torch.set_rng_state(noise)
    resumed = draws_of(other_model, resumed_swag, 2)
    assert torch.equal(resumed, following)
    assert not torch.equal(resumed, first)


@pytest.mark.parametrize(("backend", "sampler"), [("eager", True), ("aot_eager", False)])
def test_a_compiled_step_is_collected_from(backend, sampler):
    """A step of torch's optimizers breaks its graph by itself."""

    def fitted(compile_step):
        torch.compiler.reset()
        model = small_network()
        params = model.parameters()
        optimizer = SGHMC(params, 0.5, 16, temperature=0.0) if sampler else torch.optim.SGD(params, 0.5)
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


@pytest.mark.parametrize(("joins", "compiled"), [("group", False), ("unfrozen", False), ("unfrozen", True)])
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
    with pytest.raises(ValueError, match=r"'0\.weight'"):
        step()
    assert len(swag) == 1
    assert all(torch.equal(value, mean[name]) for name, value in swag.state_dict()["mean"].items())
    swag.detach()
    step()


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


def test_swag_does_not_keep_the_optimizer_alive():
    """Its state may be twice as large as the weights."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    swag = SWAG(model, optimizer)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert (gone(), len(swag)) == (None, 0)
