"""`check_sampler` on whole matrices: a sampler that treats them otherwise than vectors is seen there alone."""

import pytest
import torch

from learned_samplers import HMC, SGHMC, check_sampler

N = 100
SETTINGS = dict(stiffness=(0.2, 0.5), refinement=4.0, tolerance=0.05, steps=400)


class Orthogonalised(SGHMC):
    """SGHMC whose matrices also move along the orthogonal factor of their gradient: right on vectors alone."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() == 2:
                    u, _, v = torch.linalg.svd(p.grad, full_matrices=False)
                    p.sub_(u @ v, alpha=4 * group["lr"] * p.std().item())
        return loss


def make(kind):
    return lambda params: kind(params, 0.1, N, momentum_decay=0.3)


@pytest.mark.parametrize("shape", [(50, 40), [2000], (4, 5, 10, 10)])
def test_a_sampler_of_single_weights_is_right_in_any_shape(shape):
    report = check_sampler(make(SGHMC), coordinates=shape, **SETTINGS)
    assert report, report
    assert report.linear == (len(shape) == 1)


def test_what_is_done_to_whole_matrices_is_seen_on_matrices_alone():
    assert check_sampler(make(Orthogonalised), coordinates=2000, **SETTINGS)
    report = check_sampler(make(Orthogonalised), coordinates=(50, 40), **SETTINGS)
    assert not report
    assert report.verdict == "biased", report


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        ((1, 1), ValueError, r"coordinates must be the shape of at least two, got \(1, 1\)"),
        ((), ValueError, "at least two"),
        ((4, 0), ValueError, "coordinates must be at least 1, got 0"),
        ((4, 2.0), TypeError, "coordinates must be an integer, got 2.0"),
        ("40", TypeError, "coordinates must be an integer, got '40'"),
        (1, ValueError, "coordinates must be at least 2, got 1"),
    ],
)
def test_shapes_that_are_none(shape, error, message):
    with pytest.raises(error, match=message):
        check_sampler(make(SGHMC), coordinates=shape)


def test_chains_of_their_own_have_no_shape():
    with pytest.raises(ValueError, match="coordinates must be a number where each is a chain of its own"):
        check_sampler(lambda p: HMC(p, 0.1, N), coordinates=(4, 5))
