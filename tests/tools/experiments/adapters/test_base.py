"""The small transformer below an adapter: where it begins, that it resumes, and that its layers are put together."""

from __future__ import annotations

import pytest
import torch
from experiments.adapters import base as module
from experiments.adapters.base import BaseSettings, lower_states, pretrained, scale_of, seen_together, with_adapter
from experiments.harness.runs.checkpoint import Checkpoint, TimeIsUp

SETTINGS = BaseSettings(vocabulary=20, width=16, layers=2, length=8, steps=6)


def texts(rows=60):
    """Texts of words 2 to 10 or of words 11 to 19, of six to twelve words."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(2, 11, (rows, 12), generator=generator) + 9 * (torch.arange(rows)[:, None] % 2)
    lengths = torch.randint(6, 13, (rows, 1), generator=generator)
    return words.where(torch.arange(12) < lengths, 0)


def test_words_that_are_seen_together_begin_alike():
    rows = torch.nn.functional.normalize(seen_together(texts(), 20, 4), dim=1)
    alike = rows @ rows.T
    assert alike[2:11, 2:11].mean() > 0.8
    assert alike[2:11, 11:].mean() < 0.2
    assert torch.equal(seen_together(texts(), 20, 32)[:, 19:], torch.zeros(20, 13))  # no more than words


@pytest.mark.filterwarnings("ignore")  # the packages' own
def test_a_base_that_was_interrupted_is_that_of_one_go(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    whole = pretrained(SETTINGS, texts(), tmp_path / "whole.safetensors")

    class Interrupted(Checkpoint):
        def keep(self, member, step, parts, device):
            self.end = 0.0 if step == 3 else None
            super().keep(member, step, parts, device)

    with monkeypatch.context() as patch:
        patch.setattr(module, "Checkpoint", Interrupted)
        with pytest.raises(TimeIsUp):
            pretrained(SETTINGS, texts(), tmp_path / "parts.safetensors")
    assert (tmp_path / "parts.state").is_file()
    parts = pretrained(SETTINGS, texts(), tmp_path / "parts.safetensors")
    assert not (tmp_path / "parts.state").exists()
    assert all(torch.equal(parts[name], tensor) for name, tensor in whole.items())


@pytest.mark.filterwarnings("ignore")  # the packages' own
def test_lower_layers_and_the_adapted_attention_are_those_of_the_whole_encoder():
    pytest.importorskip("peft")
    from transformers import BertModel

    torch.manual_seed(0)
    encoder = BertModel(SETTINGS.config(), add_pooling_layer=False).eval()
    weights, words = encoder.state_dict(), texts()[:5, :8]
    lower = lower_states(SETTINGS, weights, words)
    scale = scale_of(SETTINGS, weights, lower)
    model = with_adapter(SETTINGS, weights, 2, scale, seed=0)
    mask = words != 0
    kept = []
    encoder.encoder.layer[-1].attention.register_forward_hook(lambda module, args, output: kept.append(output[0]))
    with torch.no_grad():
        encoder(input_ids=words, attention_mask=mask.long())
        expected = (kept[0] * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        features = model.get_base_model().features(lower)
    torch.testing.assert_close(features, (expected - expected.mean(0)) / expected.std(0))
    assert {name.split(".")[-3] for name, p in model.named_parameters() if p.requires_grad} == {
        "lora_A",
        "lora_B",
        "modules_to_save",
    }
