"""Samples as folders of peft, written and read; sets of adapters that others wrote."""

import json
import shutil

import pytest
import torch

from learned_samplers.adapters import AdapterSamples
from tests.learned_samplers.adapters.common import adapted, base, lora, samples_of, texts

pytestmark = pytest.mark.filterwarnings("ignore")  # the packages' own
CONFIGS = {
    "lora": ("bert", {}),
    "dora": ("bert", {"use_dora": True}),
    "embeddings": ("bert", {"target_modules": ["word_embeddings", "value"]}),
    "tied head": ("gpt2", {"modules_to_save": ["lm_head"]}),
}


def logits(samples):
    return samples.predict_samples(texts(), output=lambda output: output.logits)


@pytest.mark.parametrize("case", CONFIGS)
def test_peft_reads_every_sample_without_us(tmp_path, case):
    import peft

    architecture, options = CONFIGS[case]
    samples = samples_of(adapted(architecture, lora(architecture, **options)), 3)
    samples.save_adapters(tmp_path / "adapters")
    expected = logits(samples)
    for k in range(3):
        model = peft.PeftModel.from_pretrained(
            base(architecture), str(tmp_path / "adapters" / f"sample-{k:04d}")
        ).eval()
        with torch.no_grad():
            torch.testing.assert_close(model(**texts()).logits, expected[k], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("attached", [False, True])
def test_a_folder_is_read_back(tmp_path, attached):
    samples = samples_of(adapted(), 3)
    samples.save_adapters(tmp_path / "adapters")
    again = AdapterSamples.load(tmp_path / "adapters", adapted() if attached else base())
    assert again.steps == samples.steps == [10, 20, 30]
    assert again.parameter_names == samples.parameter_names
    torch.testing.assert_close(logits(again), logits(samples), rtol=0, atol=0)
    assert type(again[1:]) is AdapterSamples
    assert (again.steps[1:], len(again[1:])) == ([20, 30], 2)


def test_an_ensemble_trained_elsewhere_is_a_collection(tmp_path):
    import peft

    expected = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = peft.get_peft_model(base(), lora(init_lora_weights=False)).eval()
        model.save_pretrained(str(tmp_path / f"seed{seed}"))
        with torch.no_grad():
            expected.append(model(**texts()).logits)
    ensemble = AdapterSamples.load(tmp_path, base())
    torch.testing.assert_close(logits(ensemble), torch.stack(expected), rtol=1e-5, atol=1e-6)
    listed = AdapterSamples.load([tmp_path / "seed2", tmp_path / "seed0"], base())
    torch.testing.assert_close(logits(listed), logits(ensemble)[[2, 0]], rtol=0, atol=0)


def test_an_adapter_of_another_name_is_written_as_peft_does(tmp_path):
    import peft

    model = peft.get_peft_model(base(), lora(), adapter_name="reviews").eval()
    samples = samples_of(model, 2)
    samples.save_adapters(tmp_path / "adapters")
    torch.testing.assert_close(logits(AdapterSamples.load(tmp_path / "adapters", base())), logits(samples))


@pytest.mark.parametrize("options", [{"rank": 3}, {"lora_alpha": 4}, {"target_modules": ["query"]}])
def test_adapters_of_other_configurations_are_refused_by_name(tmp_path, options):
    samples_of(adapted(), 1).save_adapters(tmp_path / "a")
    samples_of(adapted("bert", lora(**options)), 1).save_adapters(tmp_path / "b")
    name = {"rank": "r"}.get(*options, next(iter(options)))
    with pytest.raises(ValueError, match=rf"b/sample-0000: {name}=.* in .*a/sample-0000"):
        AdapterSamples.load([tmp_path / "a" / "sample-0000", tmp_path / "b" / "sample-0000"], base())
    with pytest.raises(ValueError, match=rf"model: {name}="):
        AdapterSamples.load(tmp_path / "a", adapted("bert", lora(**options)))


def test_another_base_is_refused(tmp_path):
    samples_of(adapted(), 2).save_adapters(tmp_path / "adapters")
    changed = base()
    with torch.no_grad():
        changed.bert.encoder.layer[0].intermediate.dense.bias[0] += 1
    samples = AdapterSamples.load(tmp_path / "adapters", base())
    samples.save_adapters(tmp_path / "again")  # with fingerprints of the base
    with pytest.raises(ValueError, match=r"another base, .*intermediate\.dense\.bias"):
        AdapterSamples.load(tmp_path / "again", changed)


def test_damage_is_refused_by_name(tmp_path):
    folder = tmp_path / "adapters"
    samples_of(adapted(), 2).save_adapters(folder)
    with pytest.raises(ValueError, match=r"folder='.*adapters' exists and is not an empty folder"):
        samples_of(adapted(), 2).save_adapters(folder)
    shutil.copy(folder / "sample-0000" / "adapter_model.safetensors", folder / "sample-0001")
    with pytest.raises(ValueError, match=r"sample-0001/adapter_model\.safetensors: missing, or not the file"):
        AdapterSamples.load(folder, base())
    index = json.loads((folder / "adapters.json").read_text())
    (folder / "adapters.json").write_text(json.dumps({**index, "adapters": [{"folder": "sample-0000"}]}))
    with pytest.raises(ValueError, match=r"adapters\.json: broken index"):
        AdapterSamples.load(folder, base())
    (folder / "adapters.json").unlink()
    (folder / "sample-0001" / "adapter_model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"sample-0001/adapter_model\.safetensors: missing"):
        AdapterSamples.load(folder, base())
    with pytest.raises(FileNotFoundError, match="no adapters in"):
        AdapterSamples.load(tmp_path / "nowhere", base())
    with pytest.raises(ValueError, match="at least one adapter folder"):
        AdapterSamples.load([], base())
    with pytest.raises(TypeError, match="adapters must name folders, got 3"):
        AdapterSamples.load([3], base())


def test_a_failed_write_leaves_nothing(tmp_path):
    samples = samples_of(adapted(), 3)
    name = samples.parameter_names[0]
    samples[2][name][0] = torch.nan
    with pytest.raises(ValueError, match=r"sample 2: .* not finite"):
        samples.save_adapters(tmp_path / "adapters")
    assert not list(tmp_path.iterdir())


def test_a_refused_base_stays_as_it_was(tmp_path):
    samples_of(adapted(), 2).save_adapters(tmp_path / "adapters")
    other = base()
    names = list(other.state_dict())
    with torch.no_grad():
        next(other.parameters()).add_(1)
    with pytest.raises(ValueError, match="adapt another base"):
        AdapterSamples.load(tmp_path / "adapters", other)
    assert list(other.state_dict()) == names
    assert not hasattr(other, "peft_config")


def test_a_folder_that_is_not_there_is_not_looked_for_elsewhere(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none/adapter_config.json: missing"):
        AdapterSamples.load([tmp_path / "none"], base())
