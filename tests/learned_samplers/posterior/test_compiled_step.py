"""Collecting from a compiled step: one graph, and the same samples as without compilation."""

import pytest
import torch
from torch import nn

from learned_samplers import SGHMC, PosteriorSamples


def collect(compile_step, backend="eager", path=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    # At temperature 0 no noise is drawn, which a compiled step draws from another stream.
    sampler = SGHMC(model.parameters(), lr=0.05, num_data=20, temperature=0.0)
    posterior = PosteriorSamples(model, sampler, burn_in=1, thinning=2, path=path, max_samples=3)
    step = torch.compile(sampler.step, fullgraph=True, backend=backend) if compile_step else sampler.step
    x, y = torch.linspace(-1, 1, 80).view(20, 4), torch.arange(20) % 3
    for _ in range(9):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        step()
    return posterior


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_compiled_step_is_collected_from(backend, on_disk, tmp_path):
    torch.compiler.reset()
    plain = collect(False)
    compiled = collect(True, backend, tmp_path / "samples" if on_disk else None)
    assert compiled.steps == plain.steps == [5, 9]
    for a, b in zip(compiled, plain):
        for name in a:
            torch.testing.assert_close(a[name], b[name])


def test_errors_come_through():
    torch.compiler.reset()
    model = nn.Linear(2, 2)
    sampler = SGHMC(model.parameters(), lr=0.05, num_data=20)
    posterior = PosteriorSamples(model, sampler, dtype=torch.float16)
    step = torch.compile(sampler.step, fullgraph=True, backend="eager")
    with torch.no_grad():
        model.bias.fill_(1e6)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ValueError, match="'bias' is not finite at step 1"):
        step()
    assert len(posterior) == 0
