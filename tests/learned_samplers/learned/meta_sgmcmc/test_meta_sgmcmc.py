"""The optimizer MetaSGMCMC: its energy, its chains, what it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learned_samplers import SGHMC
from learned_samplers.learned.meta_sgmcmc import MetaSGMCMCSettings, meta_sgmcmc_rule
from learned_samplers.learned.network import layers_of
from tests.harness import closure_for, flat, small_network
from tests.learned_samplers.learned.flat_keywords import MetaSGMCMC, keywords
from tests.learned_samplers.learned.meta_sgmcmc.meta_sgmcmc_cases import N, network, run

meta_sgmcmc_rule = keywords(meta_sgmcmc_rule, MetaSGMCMCSettings)


@pytest.mark.parametrize("form", ["signed", "absolute"])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.0, "prior_precision": 2.0}, {"momentum_init": "normal"}])
def test_untrained_it_is_sghmc_to_rounding(form, options):
    ours = run(lambda p: MetaSGMCMC(p, 0.2, 100, network=None, form=form, **options))
    theirs = run(lambda p: SGHMC(p, 0.2, 100, **options))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    learned = run(lambda p: MetaSGMCMC(p, 0.2, 100, form=form, network=network(), **options))
    assert (learned - theirs).abs().max() > 1e-3


def test_the_energy_couples_the_groups():
    """One buffer for all and one a group must give the same chain, with a prior that both feel."""

    def make(p):
        return MetaSGMCMC(p, 0.2, N, network=network(), prior_precision=3.0)

    torch.testing.assert_close(run(make), run(make, groups=True), rtol=1e-9, atol=1e-11)


def test_blocks_do_not_change_the_chain(monkeypatch):
    make = lambda p: MetaSGMCMC(p, 0.2, N, network=network())  # noqa: E731
    whole = run(make)
    monkeypatch.setattr("learned_samplers.learned.sampler._AT_ONCE_ON_CPU", 7)
    torch.testing.assert_close(run(make), whole, rtol=1e-11, atol=1e-13)


def test_a_loss_a_chain_is_so_many_chains():
    """M chains in the leading axis are the pure rule on (M, d), and each alone; the prior is in each one's energy."""
    module, m = network(), 4
    torch.manual_seed(0)
    a = torch.randn(m, 2, 3, dtype=torch.float64).requires_grad_()
    b = torch.randn(m, dtype=torch.float64).requires_grad_()
    sampler = MetaSGMCMC(
        [{"params": [a], "prior_precision": 2.0}, {"params": [b]}], 0.2, N, network=module, gradient_scale=3.0
    )

    def losses(a, b):
        return torch.cos(a.flatten(1).sum(1) + b) + 0.1 * b**2

    def closure():
        sampler.zero_grad()
        loss = losses(a, b)
        loss.sum().backward()
        return loss

    x = [a.detach().flatten(1).clone(), b.detach()[:, None].clone()]
    r = [torch.zeros_like(part) for part in x]
    phi = [(w.detach(), c.detach()) for w, c in layers_of(module)]
    torch.manual_seed(5)
    for _ in range(6):
        returned = sampler.step(closure)
    assert returned.shape == (m,)
    torch.manual_seed(5)
    for _ in range(6):
        loss = losses(x[0].view(m, 2, 3), x[1][:, 0])
        slopes = torch.func.grad(lambda p, q: losses(p.view(m, 2, 3), q[:, 0]).sum(), argnums=(0, 1))(*x)
        energy = N * loss + x[0].square().sum(1)
        for i, prior in enumerate((2.0, 0.0)):
            noise = torch.randn_like(a if i == 0 else b).reshape(m, -1)
            x[i], r[i] = meta_sgmcmc_rule(
                x[i],
                slopes[i],
                noise,
                r[i],
                energy=energy,
                phi=phi,
                lr=0.2,
                num_data=N,
                temperature=1.0,
                prior_precision=prior,
                momentum_decay=0.1,
                gradient_scale=3.0,
            )
    torch.testing.assert_close(a.detach().flatten(1), x[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(b.detach()[:, None], x[1], rtol=1e-10, atol=1e-12)


def test_the_closure_may_give_a_loss_that_is_there_already():
    model, other = small_network(), small_network()
    one, two = (MetaSGMCMC(m.parameters(), 0.1, N, network=network()) for m in (model, other))
    for seed in range(3):
        torch.manual_seed(seed)
        one.step(closure_for(model, one))
        loss = closure_for(other, two)()
        torch.manual_seed(seed)
        two.step(lambda loss=loss: loss.item())
    assert torch.allclose(flat(model), flat(other), atol=1e-6)


# ------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("closure", "error", "message"),
    [
        (None, ValueError, r"MetaSGMCMC\.step needs a closure that returns the mean loss"),
        (lambda: None, ValueError, "must return the mean loss, got None"),
        (lambda: torch.zeros(7), ValueError, r"losses of shape \(7,\); expected \(\) or the leading axis"),
        (lambda: torch.zeros(2, 2), ValueError, r"losses of shape \(2, 2\)"),
        (lambda: 1e38, FloatingPointError, "the energy Ũ .* is not finite, with num_data=100"),
    ],
)
def test_closures_that_do_not_fit_change_nothing(closure, error, message):
    model = small_network()
    sampler = MetaSGMCMC(model.named_parameters(), 0.1, 100, network=network())
    sampler.step(closure_for(model, sampler))
    before, saved = flat(model), copy.deepcopy(sampler.state_dict())
    with pytest.raises(error, match=message):
        sampler.step(closure)
    assert torch.equal(flat(model), before)
    for key, entry in saved["state"].items():
        assert torch.equal(entry["momentum"], sampler.state_dict()["state"][key]["momentum"])
    assert sampler.step_count == 1


def test_the_chain_and_the_parameter_that_broke_the_energy_are_named():
    p = torch.zeros(3, 2, requires_grad=True)
    sampler = MetaSGMCMC([("w", p)], 0.1, 100, network=network(), prior_precision=1.0)
    p.grad = torch.zeros_like(p)
    with pytest.raises(FloatingPointError, match=r"of chains \[1\] is not finite"):
        sampler.step(lambda: torch.tensor([0.0, 1e38, 0.0]))
    with torch.no_grad():
        p[2, 1] = float("nan")
    with pytest.raises(FloatingPointError, match="parameter 'w' is not finite"):
        sampler.step(lambda: torch.zeros(()))
    assert sampler.step_count == 0


@settings(max_examples=20, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    chains=st.integers(0, 3),
    two_groups=st.booleans(),
)
def test_any_shapes_groups_and_dtypes(shapes, dtype, chains, two_groups):
    shapes = [[chains, *shape] if chains else shape for shape in shapes]
    params = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    groups = [{"params": params[:1]}, {"params": params[1:]}] if two_groups and len(params) > 1 else params
    sampler = MetaSGMCMC(groups, 0.01, 100, network=network(dtype=dtype), prior_precision=1.0)

    def closure():
        for p in params:
            p.grad = torch.randn_like(p)
        return torch.rand(chains) if chains else torch.rand(())

    for _ in range(3):
        sampler.step(closure)
    for p, shape in zip(params, shapes, strict=True):
        assert p.shape == tuple(shape)
        assert p.dtype == dtype
        # Half precision is updated in single precision.
        assert sampler.state[p]["momentum"].dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
        assert p.isfinite().all()
