"""A small transformer that has learned words from texts without labels, and the classifier with an adapter on top."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from experiments.harness.runs.checkpoint import Checkpoint
from learned_samplers.base.optional import require
from learned_samplers.posterior.tensor_files import read_tensors, write_tensors
from meta_tasks.datasets import mask_of
from meta_tasks.datasets.texts import SPECIAL
from meta_tasks.progress import progress

MASKED, DRAWN_TEXTS, PRETRAINING_LR = 0.2, 32, 1e-3
#: Words on each side that count as seen together, the size of an embedding's entries, and minutes between states.
WINDOW, SCALE, KEPT_EVERY = 8, 0.06, 3.0
RANK = 4  # Of the adapter.


@dataclass(frozen=True)
class BaseSettings:
    """Size of the transformer, and how long it is trained."""

    vocabulary: int = 16000  # Words that it tells apart; rarer ones are the unknown one.
    width: int = 128  # Of its layers.
    layers: int = 3  # Layers; the attention of the last is adapted.
    length: int = 64  # Words of a text.
    steps: int = 600  # Minibatches of 32 texts without labels.

    def config(self, layers: int | None = None) -> Any:
        """Return the settings as `transformers` takes them."""
        return require("transformers", "adapters").BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            num_hidden_layers=self.layers if layers is None else layers,
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
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(path.with_suffix(".state"), made_of, KEPT_EVERY)
    encoder = masked_language_model(settings, texts, checkpoint)
    tensors = {name: tensor.contiguous() for name, tensor in encoder.state_dict().items()}
    write_tensors(path, tensors, made_of)
    checkpoint.remove()
    return tensors


class MaskedWords(nn.Module):
    """Says which words are hidden, by the embeddings that it reads with; these stay as they begin."""

    def __init__(self, settings: BaseSettings, texts: Tensor) -> None:
        super().__init__()
        width, config = settings.width, settings.config()
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
        self.encoder = require("transformers", "adapters").BertModel(config, add_pooling_layer=False)
        self.embeddings = self.encoder.embeddings.word_embeddings.requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.hidden_word = nn.Parameter(torch.zeros(width))
        counts = torch.bincount(texts.flatten(), minlength=settings.vocabulary).clamp(min=1).float()
        self.bias = nn.Parameter((counts / counts.sum()).log())

    def forward(self, words: Tensor, hidden: Tensor) -> Tensor:
        """Return logits of the hidden words, (hidden, vocabulary)."""
        seen = self.hidden_word.where(hidden[..., None], self.embeddings(words))
        states = self.encoder(inputs_embeds=seen, attention_mask=mask_of(words).long()).last_hidden_state
        return nn.functional.linear(self.head(states[hidden]), self.embeddings.weight, self.bias)


def masked_language_model(settings: BaseSettings, texts: Tensor, checkpoint: Checkpoint) -> Any:
    """Return the encoder after it has learned to say which words are hidden."""
    cpu = torch.device("cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MaskedWords(settings, texts)
        learned = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(learned, lr=PRETRAINING_LR, betas=(0.9, 0.98))
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PRETRAINING_LR, settings.steps, cycle_momentum=False)
        parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
        begin = checkpoint.begin(0, parts, cpu)
        if not begin:
            with torch.no_grad():
                model.embeddings.weight.copy_(seen_together(texts, settings.vocabulary, settings.width))
        lengths = mask_of(texts).sum(1)
        for step in progress(range(begin, settings.steps), desc="masked words"):
            rows = torch.randint(len(texts), (DRAWN_TEXTS,))
            start = (torch.rand(DRAWN_TEXTS) * (lengths[rows] - settings.length + 1).clamp(min=1)).long()
            places = start[:, None] + torch.arange(settings.length)
            words = texts[rows[:, None], places.clamp(max=texts.shape[1] - 1)].where(places < texts.shape[1], 0)
            hidden = (words >= len(SPECIAL)) & (torch.rand(words.shape) < MASKED)
            loss = nn.functional.cross_entropy(model(words, hidden), words[hidden])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(learned, 1.0)
            optimizer.step()
            schedule.step()
            checkpoint.keep(0, step + 1, parts, cpu)
    return model.encoder


def seen_together(texts: Tensor, vocabulary: int, width: int) -> Tensor:
    """Return embeddings to begin with: the words' positive mutual information with their neighbours, factorised.

    Neighbours' counts are raised to 3/4 (Levy, Goldberg and Dagan, 2015); all rows have the same length.
    """
    apart = nn.functional.pad(texts, (0, WINDOW)).flatten().numpy()
    apart = apart[np.convolve(apart > 0, np.ones(2 * WINDOW + 1), "same") > 0]
    shape = (vocabulary, vocabulary)
    counts = sparse.csr_matrix(shape)
    for offset in range(1, WINDOW + 1):
        left, right = apart[:-offset], apart[offset:]
        both = (left >= len(SPECIAL)) & (right >= len(SPECIAL))
        counts = counts + sparse.coo_matrix((np.ones(both.sum()), (left[both], right[both])), shape).tocsr()
    counts = (counts + counts.T).tocoo()
    total = np.asarray(counts.sum(1)).ravel()
    neighbours = total**0.75
    information = np.log(counts.data * neighbours.sum() / (total[counts.row] * neighbours[counts.col]))
    kept = information > 0
    matrix = sparse.csr_matrix((information[kept], (counts.row[kept], counts.col[kept])), shape)
    rank = min(width, vocabulary - 1)
    left, values, _ = sparse.linalg.svds(matrix, rank, v0=np.ones(vocabulary))
    rows = torch.from_numpy(left * np.sqrt(values)).float()
    rows = nn.functional.normalize(rows, dim=1) * SCALE * math.sqrt(width)
    return nn.functional.pad(rows, (0, width - rank))


def lower_states(settings: BaseSettings, weights: dict[str, Tensor], words: Tensor) -> Tensor:
    """Return what the adapted layer reads, (rows, length, width); zeros where there is no word."""
    lower = settings.layers - 1
    kept = {name: t for name, t in weights.items() if not name.startswith(f"encoder.layer.{lower}.")}
    with torch.random.fork_rng(devices=[]):
        encoder = require("transformers", "adapters").BertModel(settings.config(lower), add_pooling_layer=False).eval()
    encoder.load_state_dict(kept)
    with torch.no_grad():
        states = [encoder(input_ids=x, attention_mask=mask_of(x).long()).last_hidden_state for x in words.split(250)]
    return torch.cat(states) * mask_of(words)[..., None]


Scale = tuple[Tensor, Tensor]


class Classifier(nn.Module):
    """Classes of texts, by the mean over the words of what the last layer's attention gives.

    Its input are the states below that layer. The means are centred and scaled, as they are over texts of the base.
    """

    def __init__(self, settings: BaseSettings, weights: dict[str, Tensor], classes: int, scale: Scale) -> None:
        super().__init__()
        config, prefix = settings.config(), f"encoder.layer.{settings.layers - 1}.attention."
        bert = require("transformers", "adapters").BertModel(config, add_pooling_layer=False)
        self.attention = bert.encoder.layer[-1].attention
        self.attention.load_state_dict({k.removeprefix(prefix): t for k, t in weights.items() if k.startswith(prefix)})
        self.dropout, self.head = nn.Dropout(config.hidden_dropout_prob), nn.Linear(settings.width, classes)
        self.centre, self.spread = scale

    def features(self, states: Tensor) -> Tensor:
        """Return the means, (rows, width)."""
        words = (states != 0).any(-1)
        result, _ = self.attention(states, attention_mask=words[:, None, None])
        words = words[..., None].to(result.dtype)
        means = (result * words).sum(1) / words.sum(1)
        return self.dropout((means - self.centre) / self.spread)

    def forward(self, states: Tensor) -> Tensor:
        return self.head(self.features(states))


def scale_of(settings: BaseSettings, weights: dict[str, Tensor], states: Tensor) -> Scale:
    """Return mean and standard deviation of the base's features."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = Classifier(settings, weights, 2, (torch.tensor(0.0), torch.tensor(1.0))).eval()
        features = torch.cat([model.features(rows) for rows in states.split(250)])
    return features.mean(0), features.std(0)


def with_adapter(settings: BaseSettings, weights: dict[str, Tensor], classes: int, scale: Scale, seed: int) -> Any:
    """Return the classifier with a fresh LoRA on queries and values, and a fresh head that is trained whole."""
    peft = require("peft", "adapters")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Classifier(settings, weights, classes, scale)
        config = peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=["query", "value"], modules_to_save=["head"])
        return peft.get_peft_model(model, config).eval()
