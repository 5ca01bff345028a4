"""A small transformer that has learned words from texts without labels, and the classifier with an adapter on top."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers.base.optional import require
from learned_samplers.posterior.tensor_files import read_tensors, write_tensors
from meta_tasks.datasets import mask_of
from meta_tasks.progress import progress

MASKED, DRAWN_TEXTS, PRETRAINING_LR = 0.15, 32, 1e-3


@dataclass(frozen=True)
class BaseSettings:
    """Size of the transformer, and how long it is trained."""

    vocabulary: int = 6000  # Words it knows; rarer ones are the unknown one.
    width: int = 64  # Of its layers.
    layers: int = 2  # Layers.
    length: int = 64  # Words of a text.
    steps: int = 2000  # Minibatches of 32 texts without labels.

    def config(self) -> Any:
        """Return the settings as `transformers` takes them; the last index stands for a hidden word."""
        return require("transformers", "adapters").BertConfig(
            vocab_size=self.vocabulary + 1,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=4,
            intermediate_size=2 * self.width,
            max_position_embeddings=self.length,
        )


def pretrained(settings: BaseSettings, texts: Tensor, path: Path) -> dict[str, Tensor]:
    """Return the encoder's weights after masked language modelling: those in the file if it has been made so."""
    made_of = {"settings": asdict(settings), "texts": len(texts)}
    if path.is_file():
        tensors, said = read_tensors(path, torch.device("cpu"))
        if said == made_of:
            return tensors
        raise ValueError(f"{path} was made with {said}, these are {made_of}: take another --out")
    model = masked_language_model(settings, texts)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, tensors, made_of)
    return tensors


def masked_language_model(settings: BaseSettings, texts: Tensor) -> Any:
    """Return the encoder after it has learned to say which words are hidden."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = require("transformers", "adapters").BertForMaskedLM(settings.config())
        optimizer = torch.optim.AdamW(model.parameters(), lr=PRETRAINING_LR)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PRETRAINING_LR, settings.steps)
        for _ in progress(range(settings.steps), desc="masked words"):
            words = texts[torch.randint(len(texts), (DRAWN_TEXTS,))]
            hidden = mask_of(words) & (torch.rand(words.shape) < MASKED)
            seen = words.masked_fill(hidden, settings.vocabulary)
            states = model.bert(input_ids=seen, attention_mask=mask_of(words).long()).last_hidden_state
            loss = nn.functional.cross_entropy(model.cls(states[hidden]), words[hidden])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.bert


class Reviews(nn.Module):
    """Classes of texts, by the mean of the encoder's states over the words."""

    def __init__(self, encoder: Any, width: int, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, classes)

    def features(self, words: Tensor) -> Tensor:
        """Return the states' mean, (rows, width)."""
        mask = mask_of(words)
        states = self.encoder(input_ids=words, attention_mask=mask.long()).last_hidden_state
        return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.features(words))


def with_adapter(settings: BaseSettings, weights: dict[str, Tensor], seed: int, rank: int = 4) -> Any:
    """Return the classifier with a fresh LoRA on queries and values, and a fresh head that is trained whole."""
    peft, transformers = require("peft", "adapters"), require("transformers", "adapters")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = transformers.BertModel(settings.config(), add_pooling_layer=False)
        encoder.load_state_dict(weights)
        model = Reviews(encoder, settings.width, 2)
        config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=["query", "value"], modules_to_save=["head"])
        return peft.get_peft_model(model, config).eval()
