"""Common parts of all particle samplers: scaling, shapes, frozen parameters, saving and copies."""

import copy
import io
import pickle

import pytest
import torch

from tests.learned_samplers.particles.particle_problems import EVERY, SEVERAL, energies, parameter

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


@pytest.mark.parametrize("name", EVERY)
def test_frozen_parameters_of_any_type_are_ignored(name):
    """They need no particle axis: all particles share them, as the codes of a quantised model."""
    frozen = [torch.nn.Parameter(x, requires_grad=False) for x in (torch.arange(5), torch.ones(4, 2))]
    ends = []
    for beside in ([], frozen):
        x = parameter(4, 2)
        sampler = EVERY[name]([*beside, x], 0.1)
        for _ in range(2):
            sampler.step(lambda x=x: energies(name, x))
        assert sampler.num_particles == 4
        ends.append(x)
    assert torch.equal(*ends)
    assert (frozen[1] == 1).all()


def run(name, steps, x=None, sampler=None, **settings):
    x = parameter(4, 2) if x is None else x
    sampler = sampler or EVERY[name]([x], 0.1, **settings)
    for _ in range(steps):
        sampler.step(lambda: energies(name, x))
    return x, sampler


def from_a_file(name, x, sampler, settings):
    """Both as they come back from a file, the sampler made at another rate."""
    file = io.BytesIO()
    torch.save({"x": x.detach(), "sampler": sampler.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    x = saved["x"].requires_grad_()
    twin = EVERY[name]([x], 0.7, **settings)
    twin.load_state_dict(saved["sampler"])
    return twin


WAYS = {
    "file": from_a_file,
    "deepcopy": lambda name, x, sampler, settings: copy.deepcopy(sampler),
    "pickle": lambda name, x, sampler, settings: pickle.loads(pickle.dumps(sampler)),
}


@pytest.mark.parametrize("settings", [{}, {"base_optimizer": torch.optim.Adam}], ids=["plain", "adam"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", EVERY)
def test_a_resumed_run_and_a_copy_go_on_bit_for_bit(name, way, settings):
    x, sampler = run(name, 4, **settings)
    twin = WAYS[way](name, x, sampler, settings)
    assert twin.step_count == 4
    y, _ = run(name, 4, twin.param_groups[0]["params"][0], twin)
    assert torch.equal(x, run(name, 4, **settings)[0])  # which the twin has left alone
    assert torch.equal(y, run(name, 8, **settings)[0])
