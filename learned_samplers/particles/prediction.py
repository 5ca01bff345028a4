"""Particles as posterior samples, with their predictions, metrics, files and ArviZ."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from learned_samplers.base import validation
from learned_samplers.particles.axis import validate_axis
from learned_samplers.posterior.collection import SampleCollection


def particle_samples(model: nn.Module, parameters: Mapping[str, Tensor]) -> SampleCollection:
    """The M particles as M samples of ``model``'s weights, to predict with (`SampleCollection.predict`), save or load.

        networks = [make_network() for _ in range(M)]
        parameters, buffers = torch.func.stack_module_state(networks)
        ...  # a particle sampler over parameters.values()
        probabilities = particle_samples(networks[0], {**parameters, **buffers}).predict(test_inputs)

    The samples are copies: particles that move on afterwards leave them as they are.

    Args:
        model: one network, of which the particles are copies; its own weights are not used.
        parameters: names as in ``model.named_parameters()`` → tensors with a leading particle axis (M, ...). Buffers
            may be among them, and have to be where the model has running statistics. A shared trunk and the heads of
            tasks are given together, as one module's parameters.

    Raises:
        ValueError: no parameters, a tensor without the particle axis or with another number of particles, or names
            and shapes that are not the model's.
        TypeError: ``model`` is no module, or ``parameters`` is no mapping from names to tensors.
    """
    validation.module("model", model)
    if not isinstance(parameters, Mapping):
        raise TypeError(f"parameters must map names to tensors, got {type(parameters).__name__}")
    if not parameters:
        raise ValueError("parameters must hold at least one tensor, got none")
    particles = None
    for name, p in parameters.items():
        if not isinstance(p, Tensor):
            raise TypeError(f"parameters[{name!r}] must be a tensor, got {type(p).__name__}")
        validate_axis(f"parameters[{name!r}]", p, particles)
        particles = len(p)
    assert particles is not None
    return SampleCollection.from_samples(model, [{n: p[m] for n, p in parameters.items()} for m in range(particles)])
