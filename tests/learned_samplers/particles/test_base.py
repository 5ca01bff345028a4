"""Common behaviour of all particle samplers: scaling, shapes, frozen parameters, equal particles, saving and copies."""

from __future__ import annotations

import copy
import io
import pickle
from contextlib import nullcontext

import pytest
import torch

from learned_samplers.particles import (
    FSVGD,
    MTSGD,
)
from tests.learned_samplers.particles.particle_problems import (
    EVERY,
    SEVERAL,
    TwoHeads,
    energies,
    parameter,
)

DOUBLE = torch.float64


@pytest.mark.parametrize("name", EVERY)
def test_mean_losses_times_num_data_are_energies(name):
    """lr/N times φ of N times the mean loss: with lr scaled alike, the same step as with energies."""
    by_means, by_energies = parameter(4, 2, dtype=DOUBLE), parameter(4, 2, dtype=DOUBLE)
    EVERY[name]([by_means], 0.1 * 50, num_data=50).step(lambda: energies(name, by_means) / 50)
    EVERY[name]([by_energies], 0.1).step(lambda: energies(name, by_energies))
    torch.testing.assert_close(by_means, by_energies)


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("name", SEVERAL)
def test_parameters_are_columns_of_the_particles(name, flat):
    """Parameters may have shapes (M,) or (M, 1), and lie in one group or in several."""
    matrix, start = parameter(4, 2, dtype=DOUBLE), parameter(4, 2, dtype=DOUBLE)
    columns = [(c if flat else c[:, None]).detach().clone().requires_grad_() for c in start.unbind(1)]
    groups = columns if flat else [{"params": columns[0]}, {"params": columns[1], "shared": True}]
    SEVERAL[name](groups, 0.1).step(lambda: energies(name, torch.stack([c.flatten() for c in columns], dim=1)))
    SEVERAL[name]([matrix], 0.1).step(lambda: energies(name, matrix))
    torch.testing.assert_close(torch.stack([c.flatten() for c in columns], dim=1), matrix)


@pytest.mark.parametrize("name", EVERY)
def test_a_step_heeds_no_default_device(name):
    """A step makes its tensors where the parameters are; on "meta" there are no numbers."""
    x, y = parameter(4, 2), parameter(4, 2)
    on_meta, plain = (EVERY[name]([p], 0.1, base_optimizer=torch.optim.Adam) for p in (x, y))
    for _ in range(2):
        losses = energies(name, x)
        with torch.device("meta"):
            on_meta.step(lambda losses=losses: losses)
        plain.step(lambda: energies(name, y))
    assert torch.equal(x, y)


def test_frozen_parameters_stay():
    net = TwoHeads()
    net.trunk[1].requires_grad_(False)
    before = net.trunk[1].clone()
    MTSGD(net.groups(), 0.1).step(net.losses)
    assert torch.equal(net.trunk[1], before)


@pytest.mark.parametrize("name", EVERY)
def test_frozen_parameters_of_any_type_are_ignored(name):
    """They need no particle axis: all particles share them, as the codes of a quantised model."""
    codes = torch.nn.Parameter(torch.arange(5), requires_grad=False)
    ends = []
    for beside in ([], [codes]):
        x = parameter(4, 2)
        sampler = EVERY[name]([*beside, x], 0.1)
        for _ in range(2):
            sampler.step(lambda x=x: energies(name, x))
        assert sampler.num_particles == 4
        ends.append(x)
    assert torch.equal(*ends)


@pytest.mark.parametrize("name", [*EVERY, "FSVGD"])
def test_particles_that_coincide_stay_finite_and_together(name):
    """The documented limit: no median, no repulsion, gradient descent in step. (Not Pareto MTL's.)"""
    x = torch.full((4, 2), 0.3, requires_grad=True)
    sampler = FSVGD([x], 0.1, 1) if name == "FSVGD" else EVERY[name]([x], 0.1)

    def closure():
        outputs = x * 1.0
        return (energies("SVGD", outputs), outputs) if name == "FSVGD" else energies(name, x)

    told = pytest.warns(UserWarning, match="particles .* move alike") if name != "ParetoMTL" else nullcontext()
    with told:
        sampler.step(closure)
    for _ in range(2):
        sampler.step(closure)
    assert x.isfinite().all()
    assert (x != 0.3).any()
    if name != "ParetoMTL":
        torch.testing.assert_close(x, x[:1].expand(4, 2))


def _run(name, steps, *, sampler=None, x=None, adam=True):
    x = parameter(4, 2) if x is None else x
    if sampler is None:
        sampler = EVERY[name]([x], 0.1, **({"base_optimizer": torch.optim.Adam} if adam else {}))
    for _ in range(steps):
        sampler.step(lambda: energies(name, x))
    return x, sampler


@pytest.mark.parametrize("adam", [True, False])
@pytest.mark.parametrize("name", EVERY)
def test_resumes_bit_for_bit(name, adam):
    uninterrupted, _ = _run(name, 8, adam=adam)
    half, sampler = _run(name, 4, adam=adam)
    file = io.BytesIO()
    torch.save({"x": half.detach(), "sampler": sampler.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    x = saved["x"].requires_grad_()
    resumed_sampler = EVERY[name]([x], 0.7, **({"base_optimizer": torch.optim.Adam} if adam else {}))
    resumed_sampler.load_state_dict(saved["sampler"])
    assert resumed_sampler.step_count == 4
    resumed, _ = _run(name, 4, sampler=resumed_sampler, x=x)
    assert torch.equal(resumed, uninterrupted)


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
@pytest.mark.parametrize("name", ["SVGD", "MTSGD", "MOOSVGD", "MGDA", "LinearScalarisation", "ParetoMTL"])
def test_a_copy_goes_its_own_way(name, copier):
    x, sampler = _run(name, 3)
    twin = copier(sampler)
    y = twin.param_groups[0]["params"][0]
    _run(name, 2, sampler=twin, x=y)
    expected, _ = _run(name, 5)
    assert torch.equal(y, expected)
    assert torch.equal(x, _run(name, 3)[0])
