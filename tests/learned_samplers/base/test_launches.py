"""Where launches take longer than arithmetic, on a GPU, tensors go together: with the numbers that they have alone."""

import pytest
import torch

from learned_samplers import L2E, SGHMC, SGNHT, AdaptedSGHMC, WhitenedSGHMC
from learned_samplers.base import matrices, noise, segments
from learned_samplers.base.segments import Segments


@pytest.fixture
def on_gpu(monkeypatch):
    """Called, it lets tensors be treated as on a GPU; by default but for the step in which roots are made."""

    def treat(roots_at_once=0):
        monkeypatch.setattr(matrices, "_ROOTS_AT_ONCE", roots_at_once)
        for module in (matrices, noise, segments):
            monkeypatch.setattr(module, "waits_for_launches", lambda x: True)

    return treat


def trajectory(make, steps=25):
    """The weights of a network with matrices of one shape, of several, and vectors, after some steps at T = 0."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(6, 6) for _ in range(3)], torch.nn.Linear(6, 4)).double()
    x, y = torch.randn(32, 6).double(), torch.arange(32) % 4
    chain = make(net.parameters())
    for _ in range(steps):
        chain.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        chain.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


KINDS = {
    "SGHMC": lambda params: SGHMC(params, 1e-2, 500, temperature=0.0, prior_precision=1.0),
    "WhitenedSGHMC": lambda params: WhitenedSGHMC(params, 1e-3, 500, temperature=0.0, prior_precision=1.0),
    "AdaptedSGHMC": lambda params: AdaptedSGHMC(params, 1e-3, 500, total_steps=25, temperature=0.0),
    "L2E": lambda params: L2E(params, 1e-3, 500, temperature=0.0, prior_precision=1.0),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_trajectory_is_the_same(name, on_gpu):
    alone = trajectory(KINDS[name])
    on_gpu()
    torch.testing.assert_close(trajectory(KINDS[name]), alone, rtol=1e-8, atol=1e-10)


def test_roots_are_made_together_unless_they_are_many(on_gpu):
    def renewed():
        """By step, how many of three covariances have another root than before."""
        states = [torch.eye(4).repeat(2, 1, 1, 1) for _ in range(3)]
        counts = []
        for step in range(20):
            for state in states:
                state[1] = 0.0
            matrices.renew_roots_(states, step)
            counts.append(sum(bool(state[1].any()) for state in states))
        return counts

    in_turns = [1, 1, 1, *[0] * 7] * 2
    assert sorted(renewed()) == sorted(in_turns)
    on_gpu(roots_at_once=3 * 32)
    assert renewed() == [3, *[0] * 9] * 2
    on_gpu(roots_at_once=3 * 32 - 1)
    assert sorted(renewed()) == sorted(in_turns)


@pytest.mark.parametrize("name", ["WhitenedSGHMC", "AdaptedSGHMC"])
def test_tensors_of_several_precisions_go_apart(name, on_gpu):
    def moved():
        torch.manual_seed(0)
        params = [torch.randn(6, 6, dtype=dtype).requires_grad_() for dtype in (torch.float32, torch.float64) * 2]
        chain = KINDS[name](params)
        for _ in range(25):
            chain.zero_grad()
            sum(p.sin().sum().double() for p in params).backward()
            chain.step()
        return [p.detach() for p in params]

    alone = moved()
    on_gpu()
    torch.testing.assert_close(moved(), alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("piece", [1 << 16, 2])
def test_statistics_of_tensors_are_the_same(piece, on_gpu, monkeypatch):
    monkeypatch.setattr(segments, "_PIECE", piece)
    tensors = Segments((3, 5, 1))
    x = torch.randn(2, 9, dtype=torch.float64)
    values = torch.randn(2, 3, dtype=torch.float64)
    windows = ((0, 9), (2, 9), (3, 8), (4, 6))
    alone = [tensors.mean_square(x), tensors.mean(x.abs()), *[tensors.expand(values, *window) for window in windows]]
    on_gpu()
    statistics = [tensors.mean_square(x), tensors.mean(x.abs())]
    statistics += [tensors.expand(values, *window) for window in windows]
    for got, expected in zip(statistics, alone, strict=True):
        torch.testing.assert_close(got, expected)
    torch.testing.assert_close(tensors.mean(x), torch.stack([x[:, :3].mean(1), x[:, 3:8].mean(1), x[:, 8]], 1))


@pytest.mark.parametrize("make", [lambda p: SGHMC(p, 1e-2, 50), lambda p: SGNHT(p, 1e-2, 50)])
def test_noise_is_drawn_at_once_and_standard(make, on_gpu, monkeypatch):
    on_gpu()
    params = [torch.zeros(300, 100), torch.zeros(50)]
    drawn = []
    monkeypatch.setattr(torch, "randn_like", lambda p, draw=torch.randn_like: drawn.append(p.shape) or draw(p))
    chain = make(params)
    noise = chain.noise_for(params, {"temperature": 1.0})
    assert drawn == [(30_050,)]
    assert [x.shape for x in noise] == [p.shape for p in params]
    assert abs(noise[0].std() - 1) < 0.02
    assert noise[0].flatten()[:50].ne(noise[1]).all()
