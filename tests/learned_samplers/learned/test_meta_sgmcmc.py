"""The optimizer MetaSGMCMC: its energy, its chains, what it refuses, its differentiable twin."""

import higher
import pytest
import torch
from torch import nn

import learned_samplers.differentiable  # noqa: F401  (makes the samplers known to higher)
from learned_samplers.base.segments import Segments
from learned_samplers.learned.meta_sgmcmc import MetaSGMCMCSettings, meta_sgmcmc_rule
from tests.harness import closure_for, flat, running, small_data, small_network
from tests.learned_samplers.learned.cases import N, chain, meta_network, phi_of
from tests.learned_samplers.learned.flat_keywords import MetaSGMCMC, keywords

meta_sgmcmc_rule = keywords(meta_sgmcmc_rule, MetaSGMCMCSettings)
DOUBLE = torch.float64


@pytest.mark.parametrize("feature_set", ["energy", "energy_rms"])
def test_groups_and_blocks_do_not_change_the_chain(feature_set, monkeypatch):
    """The energy couples the groups, with a prior that both feel; and no block cuts through a tensor."""

    def make(p):
        return MetaSGMCMC(p, 0.2, N, network=meta_network(), prior_precision=3.0, feature_set=feature_set)

    expected, _ = chain(make, dtype=DOUBLE)
    torch.testing.assert_close(chain(make, dtype=DOUBLE, groups=True)[0], expected, rtol=1e-9, atol=1e-11)
    monkeypatch.setattr("learned_samplers.learned.sampler._AT_ONCE_ON_CPU", 7)
    torch.testing.assert_close(chain(make, dtype=DOUBLE)[0], expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("feature_set", ["energy", "energy_rms"])
@pytest.mark.parametrize("m", [1, 4])
def test_a_loss_a_chain_is_so_many_chains(m, feature_set):
    """M chains in the leading axis are the pure rule on (M, d), and each alone; the prior is in each one's energy."""
    module, settings = meta_network(), {"gradient_scale": 3.0, "feature_set": feature_set}
    torch.manual_seed(0)
    a = torch.randn(m, 2, 3, dtype=DOUBLE).requires_grad_()
    b = torch.randn(m, 2, dtype=DOUBLE).requires_grad_()
    sampler = MetaSGMCMC([{"params": [a], "prior_precision": 2.0}, {"params": [b]}], 0.2, N, network=module, **settings)

    def losses(a, b):
        return torch.cos(a.flatten(1).sum(1) + b[:, 0]) + 0.1 * (b**2).sum(1)

    def closure():
        sampler.zero_grad()
        loss = losses(a, b)
        loss.sum().backward()
        return loss

    x = [a.detach().flatten(1).clone(), b.detach().clone()]
    r = [torch.zeros_like(part) for part in x]
    torch.manual_seed(5)
    for _ in range(6):
        returned = sampler.step(closure)
    assert returned.shape == (m,)
    torch.manual_seed(5)
    at = dict(phi=phi_of(module), lr=0.2, num_data=N, temperature=1.0, momentum_decay=0.1, **settings)
    for _ in range(6):
        loss = losses(x[0].view(m, 2, 3), x[1])
        slopes = torch.func.grad(lambda p, q: losses(p.view(m, 2, 3), q).sum(), argnums=(0, 1))(*x)
        energy = N * loss + x[0].square().sum(1)
        for i, prior in enumerate((2.0, 0.0)):
            noise = torch.randn_like(a if i == 0 else b).reshape(m, -1)
            segments = Segments((x[i].shape[1],))
            before = x[i], slopes[i], noise, r[i]
            x[i], r[i] = meta_sgmcmc_rule(*before, energy=energy, prior_precision=prior, segments=segments, **at)
    torch.testing.assert_close(a.detach().flatten(1), x[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(b.detach(), x[1], rtol=1e-10, atol=1e-12)


def test_the_closure_may_give_a_loss_that_is_there_already():
    model, twin = small_network(), small_network()
    one, two = (MetaSGMCMC(m.parameters(), 0.1, N, network=meta_network()) for m in (model, twin))
    for seed in range(3):
        torch.manual_seed(seed)
        one.step(closure_for(model, one))
        loss = closure_for(twin, two)()
        torch.manual_seed(seed)
        two.step(lambda loss=loss: loss.item())
    assert torch.allclose(flat(model), flat(twin), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("chains", [[], [3]])
def test_shapes_and_dtypes_of_one_chain_and_of_several(chains, dtype):
    params = [torch.randn([*chains, *shape], dtype=dtype).requires_grad_() for shape in ((), (4,), (2, 3))]
    sampler = MetaSGMCMC(params, 0.01, 100, network=meta_network(dtype=dtype), prior_precision=1.0)

    def closure():
        for p in params:
            p.grad = torch.randn_like(p)
        return torch.rand(chains)

    for _ in range(3):
        sampler.step(closure)
    for p in params:  # half precision is updated in single precision
        assert sampler.state[p]["momentum"].dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
        assert p.isfinite().all()


def test_scaled_inputs_do_not_see_the_scale_of_the_loss():
    """Ten times the loss with a tenth of N and of lr: the same gradients of the energy, the same chain."""

    def end(feature_set, factor):
        p, settings = torch.tensor([0.3, -0.8, 0.5], dtype=DOUBLE, requires_grad=True), {"energy_scale": 0.0}
        sampler = MetaSGMCMC([p], 0.1 / factor, N / factor, network=meta_network(), feature_set=feature_set, **settings)

        def closure():
            sampler.zero_grad()
            loss = factor * torch.cos(p).sum()
            loss.backward()
            return loss

        torch.manual_seed(1)
        for _ in range(5):
            sampler.step(closure)
        return p.detach()

    torch.testing.assert_close(end("energy_rms", 10.0), end("energy_rms", 1.0), rtol=1e-9, atol=1e-12)
    assert (end("energy", 10.0) - end("energy", 1.0)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("closure", "error", "named"),
    [
        (None, ValueError, "closure"),
        (lambda: None, ValueError, "None"),
        (lambda: torch.zeros(7), ValueError, r"\(7,\)"),
        (lambda: torch.zeros(2, 2), ValueError, r"\(2, 2\)"),
        (lambda: 1e38, FloatingPointError, "num_data=100"),
    ],
)
def test_closures_that_do_not_fit_change_nothing(closure, error, named):
    _, sampler, unchanged = running("MetaSGMCMC")
    with pytest.raises(error, match=named):
        sampler.step(closure)
    assert unchanged()


def test_the_chain_and_the_parameter_that_broke_the_energy_are_named():
    p = torch.zeros(3, 2, requires_grad=True)
    sampler = MetaSGMCMC([("w", p)], 0.1, 100, network=meta_network(), prior_precision=1.0)
    p.grad = torch.zeros_like(p)
    with pytest.raises(FloatingPointError, match=r"chains \[1\]"):
        sampler.step(lambda: torch.tensor([0.0, 1e38, 0.0]))
    with torch.no_grad():
        p[2, 1] = float("nan")
    with pytest.raises(FloatingPointError, match="'w'"):
        sampler.step(lambda: torch.zeros(()))
    assert sampler.step_count == 0


@pytest.mark.parametrize("feature_set", ["energy", "energy_rms"])
def test_the_twin_makes_the_same_chain_and_an_empty_parameter_changes_nothing(feature_set):
    ends = []
    for empty in (False, True):
        model = small_network().double()
        if empty:
            model[0].nothing = nn.Parameter(torch.zeros(0, 2, dtype=DOUBLE))
        x, y = small_data()
        options = dict(network=meta_network(), feature_set=feature_set, energy_scale=3.0)
        groups = [{"params": model[0].parameters(), "prior_precision": 2.0}, {"params": model[2].parameters()}]
        sampler = MetaSGMCMC(groups, 0.1, N, generator=torch.Generator().manual_seed(8), **options)

        def loss_of(network, x=x, y=y):
            zero = sum(p.sum() for p in network.parameters() if not p.numel())
            return nn.functional.cross_entropy(network(x.double()), y) + zero

        def closure(model=model, sampler=sampler, loss_of=loss_of):
            sampler.zero_grad()
            loss = loss_of(model)
            loss.backward()
            return loss

        sampler.step(closure)  # so that there is state to take over
        before = sampler.generator.get_state()
        with higher.innerloop_ctx(model, sampler, copy_initial_weights=False) as (fast, twin):
            for _ in range(5):
                twin.step(loss_of(fast))
            ends.append(torch.cat([p.detach().flatten() for p in fast.parameters()]))
        sampler.generator.set_state(before)
        for _ in range(5):
            sampler.step(closure)
        ends.append(flat(model))
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=1e-9, atol=1e-11)
