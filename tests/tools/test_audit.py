"""The audit's questions on optimizers whose answers are known, with planted faults; its report lists ours first."""

import math

import numpy as np
import pytest
import torch
from experiments.audit import measure
from experiments.audit.chains import TorchChain
from experiments.audit.report import report
from experiments.audit.subjects import SUBJECTS

N = 1000


class Langevin(torch.optim.Optimizer):
    """SGLD on the mean loss, with faults: of the noise, of the weight decay, of what a state holds."""

    def __init__(self, params, lr=0.1, noise=1.0, decay=0.0, touches=False, adapts=0):
        super().__init__(params, {"lr": lr})
        self.noise, self.decay, self.touches, self.adapts, self.count = noise, decay, touches, adapts, 0

    @torch.no_grad()
    def step(self, closure):
        closure()
        for group in self.param_groups:
            for p in group["params"]:
                if self.count < self.adapts:  # counts tensors, as it should not
                    state = self.state[p]
                    state["average"] = state.get("average", torch.zeros_like(p)) * 0.9 + p.grad
                    self.count += 1
                gradient = p.grad if self.touches else p.grad.clone()
                gradient.add_(p, alpha=self.decay)
                p.sub_(group["lr"] * gradient)
                p.add_(torch.randn_like(p), alpha=self.noise * math.sqrt(2 * group["lr"] / N))


def make(**settings):
    return lambda params, n, **more: Langevin(params, **settings, **more)


def begin(**settings):
    return lambda begun, n, **more: TorchChain(make(**settings), begun, n, **more)


@pytest.mark.parametrize("noise", [1.0, math.sqrt(5)])
def test_the_temperature_of_the_noise_is_found_exactly_and_by_simulation(noise):
    expected = [noise**2 / (1 - 0.1 * k / 2) for k in (measure.SOFT, measure.STIFF)]
    squares = measure.exact_law(lambda params, **more: make(noise=noise)(params, N, **more), 0.1)
    heats = [N * k * square for k, square in zip((measure.SOFT, measure.STIFF), squares, strict=True)]
    assert heats == pytest.approx(expected, rel=1e-9)
    result = measure.law(begin(noise=noise)(measure.start(N), N), 0.1, N, 20.0)
    assert result["settled"]
    assert result["temperature"] == pytest.approx(expected, rel=0.06)


def test_a_step_that_is_too_long_diverges():
    assert measure.law(begin()(measure.start(N), N), 1.5, N, 20.0)["temperature"] is None


def test_exact_draws_have_temperature_one():
    heats = (measure.axes(measure.start(N), N) ** 2).mean(1)
    np.testing.assert_allclose(heats, 1, atol=0.15)
    covariance = np.linalg.inv(measure.PRECISION)
    assert covariance[0, 1] / covariance[0, 0] == pytest.approx(measure.RHO)


def test_resuming_burn_in_and_touched_gradients():
    assert measure.resumed(begin(), 0.1, N)
    assert not measure.resumed(forgetful, 0.1, N)
    assert [begin(adapts=40)(measure.start(N), N, tensors=k).adapts_until(60) for k in (1, 4)] == [40, 10]
    for touches in (True, False):
        chain = begin(decay=0.5, touches=touches)(measure.start(N), N)
        chain.step(0.1)
        assert chain.touches_gradients() is touches


class Forgetful(Langevin):
    """Its steps depend on a counter that is no part of its state."""

    def step(self, closure):
        self.count += 1
        self.noise = 1 + 1 / self.count
        super().step(closure)


def forgetful(begun, n):
    return TorchChain(lambda params, n: Forgetful(params), begun, n)


def test_the_report_lists_failures_of_ours_first_and_says_what_has_not_settled():
    exact, moving = {"temperature": [1.0, 1.3], "exact": True}, {"temperature": [1.0, 1.3], "settled": False}
    row = {"sampler": "SGLD", "lr": [0.1, 0.1], "laws": [exact, moving], "resumes": True, "seconds": 60}
    row |= {"example": "README", "posterior": "as it is", "schedule": 1.5}
    diverged = {**row, "laws": [{"temperature": None, "settled": False}] * 2}
    packages = {
        "ours": {"versions": {}, "rows": [row]},
        "blackjax": {"versions": {"blackjax": "1.0"}, "rows": [row, diverged]},
        "numpyro": {"failed": "no such package"},
    }
    text = report({"command": "python tools/audit.py", "minutes": 7.0, "packages": packages})
    failure = "- `SGLD`: temperature 1 / 1.3 at N = 1,000; temperature 1 / 1.3 at N = 50,000; 1.50 under a schedule."
    assert text.index(failure) < text.index("| blackjax SGLD")
    cells = [[cell.strip() for cell in line.split("|")[2:7]] for line in text.splitlines() if "| blackjax SGLD" in line]
    assert cells == [["0.1", "1 / 1.3", "1 / 1.3", "exact / no", "1.50"], ["0.1", "diverges", "diverges", "–", "1.50"]]
    assert "**blackjax 1.0, SGLD** (README): as it is." in text
    assert "- numpyro was not measured: no such package." in text


def test_steps_of_the_sum_keep_their_stiffness_at_every_n():
    sgld, *_ = SUBJECTS["blackjax"]
    assert [n * sgld.rate(n) for n in (1000, 60_000)] == pytest.approx([2.7, 2.7])
    psgld = SUBJECTS["sgmcmcjax"][1]
    assert psgld.rate(60_000) == pytest.approx(1e-3)
    assert psgld.rate(15_000) == pytest.approx(2e-3)
