"""Names of a network inside wrappers: those that it has without them."""

import pytest
import torch
from torch import nn

from learned_samplers import SampleCollection
from tests.learned_samplers.posterior.common import X, collect, network


class Fabric(nn.Module):
    """As Lightning Fabric's wrapper: the strategy's module, and the user's."""

    def __init__(self, forward_module, original):
        super().__init__()
        self._forward_module, self._original_module = forward_module, original

    def forward(self, x):
        return self._forward_module(x)


class Sharding(nn.Module):
    """As FSDP's wrapper, which keeps the module under a name of its own."""

    def __init__(self, module):
        super().__init__()
        self._fsdp_wrapped_module = module

    def forward(self, x):
        return self._fsdp_wrapped_module(x)


WRAPPERS = {
    "Fabric": lambda model: Fabric(model, model),
    "Fabric of DataParallel": lambda model: Fabric(nn.DataParallel(model), model),
    "FSDP": Sharding,
    "compile of FSDP": lambda model: torch.compile(Sharding(model), backend="eager"),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("folder", [False, True])
def test_wrapped_and_plain_networks_load_each_other_s_samples(tmp_path, wrapper, folder):
    wrap, path = WRAPPERS[wrapper], tmp_path / "samples"
    for build, other in ((wrap, lambda model: model), (lambda model: model, wrap)):
        where = path / str(build is wrap)
        _, _, posterior = collect(build(network()), 3, path=where if folder else None)
        assert posterior.parameter_names == ["0.weight", "0.bias", "2.weight", "2.bias"]
        if not folder:
            where = tmp_path / f"{build is wrap}.safetensors"
            posterior.save(where)
        loaded, target = SampleCollection.load(where, other(network(seed=3))), network(seed=4)
        assert torch.equal(loaded.predict(X), posterior.predict(X))
        loaded.load_into(other(target), 1)
        assert all(torch.equal(p, loaded[1][name]) for name, p in target.named_parameters())
