"""Names of a network inside wrappers: those that it has without them."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from learned_samplers import SampleCollection
from tests.learned_samplers.posterior.common import Built, X, collect, network


def fabric(model, original):
    """As Lightning Fabric's wrapper: the strategy's module, and the user's."""
    return Built(lambda m, x: m._forward_module(x), _forward_module=model, _original_module=original)


def fsdp(model):
    """As FSDP's wrapper, which keeps the module under a name of its own."""
    return Built(lambda m, x: m._fsdp_wrapped_module(x), _fsdp_wrapped_module=model)


def holder(model):
    """No wrapper, though its only part is called as those call theirs."""
    return Built(lambda m, x: m.module(x), module=model)


def compiled(model):
    return torch.compile(model, backend="eager")


def with_compiled_part(model):
    model[2] = compiled(model[2])
    return model


WRAPPERS = {
    "Fabric": lambda model: fabric(model, model),
    "Fabric of DataParallel": lambda model: fabric(nn.DataParallel(model), model),
    "FSDP": fsdp,
    "compile of FSDP": lambda model: compiled(fsdp(model)),
    "DDP": DistributedDataParallel,
    "DDP of compile": lambda model: DistributedDataParallel(compiled(model)),
    "part": with_compiled_part,
}


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


# torch itself looks at .grad of a tensor that is no leaf, before a compiled part.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("folder", [False, True])
def test_wrapped_and_plain_networks_load_each_other_s_samples(tmp_path, wrapper, folder):
    wrap, path = WRAPPERS[wrapper], tmp_path / "samples"
    for build, rebuild in ((wrap, lambda model: model), (lambda model: model, wrap)):
        where = path / str(build is wrap)
        _, _, posterior = collect(build(network()), 3, path=where if folder else None)
        assert posterior.parameter_names == ["0.weight", "0.bias", "2.weight", "2.bias"]
        if not folder:
            where = tmp_path / f"{build is wrap}.safetensors"
            posterior.save(where)
        loaded, target = SampleCollection.load(where, rebuild(network(seed=3))), rebuild(network(seed=4))
        assert torch.equal(loaded.predict(X), posterior.predict(X))
        loaded.load_into(target, 1)
        torch.testing.assert_close(target.eval()(X).softmax(1).detach(), loaded.predict_samples(X)[1])
        if wrapper != "Fabric of DataParallel":  # whose own state dict is of another wrapper again
            samples = SampleCollection.from_samples(rebuild(network(seed=5)), [build(network()).state_dict()])
            torch.testing.assert_close(samples.predict(X), network()(X).softmax(1).detach())


def test_a_model_whose_only_part_is_called_module(tmp_path):
    _, _, posterior = collect(holder(network()))
    posterior.save(tmp_path / "samples.safetensors")
    loaded = SampleCollection.load(tmp_path / "samples.safetensors", holder(network(seed=1)))
    assert torch.equal(loaded.predict(X), posterior.predict(X))
