"""Parameters that join `ScaleAdaptedL2E` late: in half precision, and inside of ``torch.compile``."""

import pytest
import torch

from learned_samplers import ScaleAdaptedL2E


def joined(dtype, at=25, steps=41):
    """Mean of √G of a parameter that is there from the start, and of one that joins; the gradients are the same."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(40, 8).to(dtype)) for _ in range(2)]
    sampler = ScaleAdaptedL2E(
        params,
        num_data=1000,
        adaptation_steps=40,
        prior_precision=1.0,
        missing_gradient="skip",
        generator=torch.Generator().manual_seed(1),
    )
    stream = torch.Generator().manual_seed(2)
    for step in range(steps):
        for i, p in enumerate(params):
            gradient = (0.1 * p.detach().float() + 0.05 * torch.randn(p.shape, generator=stream)).to(dtype)
            p.grad = gradient if step >= i * at else None
        sampler.step()
    return [sampler.state[p]["root"].float().mean().item() for p in params]


def test_in_half_precision_it_gets_the_mass_that_it_gets_in_single():
    """Its second moment begins as if all steps before had had its first gradient; from zero √G is 1.4, not .92."""
    assert joined(torch.bfloat16) == pytest.approx(joined(torch.float32), rel=0.02)


@pytest.mark.parametrize("at", [0, 3])
def test_compiled_it_is_the_same(at):
    def run(compiled):
        torch._dynamo.reset()
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(6, 5)), torch.nn.Parameter(torch.randn(7))]
        sampler = ScaleAdaptedL2E(
            params,
            lr=torch.tensor(0.002),
            num_data=1000,
            temperature=0.0,
            missing_gradient="skip",
            adaptation_steps=8,
            network="scale-adapted-l2e",
        )
        step = torch.compile(sampler.step, backend="eager", fullgraph=True) if compiled else sampler.step
        stream = torch.Generator().manual_seed(3)
        for number in range(5):
            for i, p in enumerate(params):
                gradient = torch.randn(p.shape, generator=stream)
                p.grad = gradient if number >= i * at else None
            step()
        return [each for p in params for each in (p.detach(), sampler.state[p]["averages"])]

    for one, other in zip(run(True), run(False), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)
