"""Models that work, and those that are refused by name."""

import pytest
import torch
from torch import nn

from learned_samplers import SGHMC, PosteriorSamples, SampleCollection
from learned_samplers.adapters import AdapterSamples
from tests.learned_samplers.adapters.common import adapted, base, lora, samples_of, texts

pytestmark = pytest.mark.filterwarnings("ignore")  # the packages' own
LABELS = torch.tensor([0, 1, 0, 1])


def collect(model, sampled=None, steps=3, **options):
    parameters = [p for p in model.parameters() if p.requires_grad] if sampled is None else sampled
    sampler = SGHMC(parameters, lr=0.01, num_data=4, prior_precision=1.0)
    posterior = PosteriorSamples(model, sampler, store_frozen=False, **options)
    for _ in range(steps):
        sampler.zero_grad()
        model(**texts(), labels=LABELS).loss.backward()
        sampler.step()
    return posterior


def test_what_a_plain_loop_collects_is_the_adapter_alone(tmp_path):
    model = adapted()
    posterior = collect(model)
    samples = AdapterSamples.of(posterior)
    assert samples.steps == [1, 2, 3]
    assert all("lora_" in name or "classifier" in name for name in samples.parameter_names)
    torch.testing.assert_close(samples.predict(texts()), posterior.predict(texts()), rtol=1e-5, atol=1e-6)
    samples.save_adapters(tmp_path / "adapters")
    again = AdapterSamples.load(tmp_path / "adapters", base())
    torch.testing.assert_close(again.predict(texts()), posterior.predict(texts()), rtol=1e-5, atol=1e-6)
    assert "improper prior" not in again.verdict(texts()).text
    assert again._origin() == posterior._origin()


def test_a_base_with_gradients_that_is_not_sampled_works_and_one_that_is_sampled_is_refused():
    model = adapted()
    weight = next(p for n, p in model.named_parameters() if "base_layer" in n)
    adapter = [p for p in model.parameters() if p.requires_grad]
    weight.requires_grad_(True)
    assert len(AdapterSamples.of(collect(model, adapter))) == 3
    with pytest.raises(ValueError, match=r"base_layer\.weight' is sampled and no part of the adapter 'default'"):
        AdapterSamples.of(collect(model))


def test_no_sample_is_said():
    with pytest.raises(RuntimeError, match="there is no sample to take"):
        AdapterSamples.of(collect(adapted(), burn_in=5))
    with pytest.raises(TypeError, match="samples must be a collection of samples, got list"):
        AdapterSamples.of([])


def refused(model, message, error=ValueError):
    with pytest.raises(error, match=message):
        samples_of(model, 2)


def test_two_active_adapters_are_refused():
    model = adapted("llama")
    model.add_adapter("second", lora("llama"))
    model.base_model.set_adapter(["default", "second"])
    refused(model, r"active adapters \['default', 'second'\] in .*q_proj.*set_adapter")


def test_an_inactive_adapter_beside_is_no_hindrance(tmp_path):
    model = adapted()
    model.add_adapter("second", lora(rank=3))
    model.set_adapter("default")
    samples = samples_of(model, 2)
    samples.save_adapters(tmp_path / "adapters")
    again = AdapterSamples.load(tmp_path / "adapters", base())
    torch.testing.assert_close(again.predict(texts()), samples.predict(texts()), rtol=1e-5, atol=1e-6)


def test_merged_and_disabled_adapters_are_refused():
    model = adapted()
    model.merge_adapter()
    refused(model, "merged its adapter into the base's weight.*unmerge_adapter")
    model.unmerge_adapter()
    model.base_model.disable_adapter_layers()
    refused(model, "is disabled: call model.enable_adapter_layers")


def test_an_adapter_merged_later_is_refused():
    samples = samples_of(adapted(), 2)
    samples.model.merge_adapter()
    with pytest.raises(ValueError, match="merged its adapter"):
        samples.predict(texts())


def test_prompts_and_plain_networks_are_refused():
    import peft

    prompts = peft.get_peft_model(base("llama"), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    refused(prompts, "PROMPT_TUNING adds prompts")
    plain = nn.Linear(2, 2)
    collection = SampleCollection.from_samples(plain, [plain.state_dict()])
    with pytest.raises(TypeError, match=r"model must be a peft\.PeftModel.*got Linear"):
        AdapterSamples.of(collection)


def test_a_wrapped_model_works(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(adapted())
        posterior = collect(wrapped)
        samples = AdapterSamples.of(posterior)
        torch.testing.assert_close(samples.predict(texts()), posterior.predict(texts()), rtol=1e-5, atol=1e-6)
    finally:
        torch.distributed.destroy_process_group()
