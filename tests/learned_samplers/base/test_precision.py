"""Half-precision parameters: with float32 masters the law is right, without them it is not."""

import copy

import pytest
import torch

from learned_samplers import SGHMC, SGLD, AdaptedSGHMC
from tests.harness import SAMPLERS, closure_for, small_network

EVERY = pytest.mark.parametrize("name", SAMPLERS)
HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
#: Those that move the parameters while they evaluate the loss; they refuse half precision.
REFUSING = {"HMC", "PSGLD-probe", "KineticL2E", "IVON", "IVON-draws"}
REFUSING |= {"MCLMC", "MCLMC-noise"}


def variance(cls, steps=3000, dtype=torch.bfloat16, **settings):
    """Variance of a chain on a Gaussian, in units of the Gaussian's: k = N = 1, so that the gradient is θ."""
    torch.manual_seed(0)
    p = torch.randn(400).to(dtype).requires_grad_()
    sampler, total = cls([p], 1e-3, 1.0, **settings), 0.0
    for _ in range(steps):
        p.grad = p.detach().clone()
        sampler.step()
        total += p.detach().float().square().mean().item()
    return total / steps


@pytest.mark.parametrize("cls", [SGLD, SGHMC])
def test_the_law_in_bfloat16(cls):
    # 400 coordinates for 3000 steps of relaxation time 1000 (SGLD): a standard error of about 0.06.
    assert variance(cls) == pytest.approx(1.0, abs=0.2)


def test_without_masters_the_law_is_wrong():
    """The planted fault: what the masters are for."""
    assert variance(SGLD, master_weights=False) > 2.0


def test_without_masters_small_steps_of_sghmc_do_not_move():
    p = torch.ones(50, dtype=torch.bfloat16, requires_grad=True)
    q = torch.ones(50, dtype=torch.bfloat16, requires_grad=True)
    for tensor, masters in ((p, False), (q, None)):
        torch.manual_seed(0)
        sampler = SGHMC([tensor], 1e-6, 100.0, master_weights=masters)
        for _ in range(2000):
            tensor.grad = torch.zeros_like(tensor)
            sampler.step()
    assert torch.equal(p.detach(), torch.ones_like(p))
    assert not torch.equal(q.detach(), torch.ones_like(q))


@EVERY
@HALF
def test_every_sampler_keeps_masters_or_refuses(name, dtype):
    model = small_network().to(dtype)
    if name in REFUSING:
        with pytest.raises(ValueError, match=r"cannot sample parameters of torch.*autocast|needs float32 or float64"):
            SAMPLERS[name](model.parameters())
        return
    sampler = SAMPLERS[name](model.parameters())
    for _ in range(3):
        sampler.step(closure_for(model, sampler))
    for p in model.parameters():
        assert p.dtype == dtype
        assert p.isfinite().all()
        assert all(x.dtype == torch.float32 and x.isfinite().all() for x in sampler.state[p].values())
        assert torch.equal(sampler.state[p]["master"].to(dtype), p)


@pytest.mark.parametrize("name", sorted(set(SAMPLERS) - REFUSING))
def test_a_first_step_in_float16_with_zero_gradients_is_finite(name):
    """An eps of 10⁻⁸ is 0 in float16, and 0/0 nan."""
    p = torch.ones(4, dtype=torch.float16, requires_grad=True)
    sampler = SAMPLERS[name]([p])

    def closure():
        p.grad = torch.zeros_like(p)
        return torch.tensor(1.0)

    sampler.step(closure)
    assert p.isfinite().all()


def test_a_weight_that_is_set_from_outside_is_taken_over():
    p = torch.zeros(4, dtype=torch.bfloat16, requires_grad=True)
    sampler = SGLD([p], 1e-6, 100.0)
    p.grad = torch.zeros_like(p)
    sampler.step()
    kept = sampler.state[p]["master"].clone()
    with torch.no_grad():
        p[1] = 3.0
    sampler.param_groups[0]["temperature"] = 0.0
    sampler.step()
    master = sampler.state[p]["master"]
    assert master[1] == 3.0
    assert torch.equal(master[[0, 2, 3]], kept[[0, 2, 3]])


def test_a_prior_mean_beside_masters_is_not_rounded():
    p = torch.zeros(3, dtype=torch.bfloat16, requires_grad=True)
    mean = torch.full((3,), 1.001)  # 1 in bfloat16
    sampler = SGLD([p], 0.5, 1.0, temperature=0.0, prior_precision=1.0, prior_mean=[mean])
    for _ in range(60):
        p.grad = torch.zeros_like(p)
        sampler.step()
    assert torch.allclose(sampler.state[p]["master"], mean, atol=1e-6)


def test_sampling_from_a_trained_adam_in_bfloat16():
    model = small_network().bfloat16()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        closure_for(model, optimizer)()
        optimizer.step()
    sampler = AdaptedSGHMC.from_optimizer(optimizer, 100)
    saved = copy.deepcopy(sampler.state_dict())  # before the first step
    sampler.load_state_dict(saved)
    for _ in range(2):
        sampler.step(closure_for(model, sampler))
    for p in model.parameters():
        assert {x.dtype for x in sampler.state[p].values()} == {torch.float32}
        assert torch.equal(sampler.state[p]["master"].bfloat16(), p)


def test_temperatures_of_half_precision_do_not_overflow():
    p = torch.nn.Parameter(torch.full((4,), 0.5, dtype=torch.float16))
    sampler = SGHMC([p], 0.1, 60_000)
    p.grad = torch.full((4,), 4.0, dtype=torch.float16)
    [temperatures] = sampler.temperatures()
    assert temperatures["configurational"] == pytest.approx(120_000.0)
