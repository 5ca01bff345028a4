"""Small models of transformers with adapters of peft, and samples of these."""

from __future__ import annotations

import pytest
import torch

from learned_samplers.adapters import AdapterSamples
from learned_samplers.posterior.snapshots import Snapshots
from learned_samplers.posterior.store import Entry, MemoryStore

VOCABULARY, WIDTH = 32, 16


def base(kind="bert", **options):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "bert":
        sizes = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2)
        config = transformers.BertConfig(**sizes, intermediate_size=24, max_position_embeddings=32, **options)
        return transformers.BertForSequenceClassification(config).eval()
    if kind == "tokens":
        sizes = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2)
        config = transformers.BertConfig(**sizes, intermediate_size=24, max_position_embeddings=32, **options)
        return transformers.BertForTokenClassification(config).eval()
    ends = dict(bos_token_id=0, eos_token_id=1, pad_token_id=1)
    if kind == "gpt2":
        sizes = dict(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=2, n_positions=32)
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ends, **options)).eval()
    sizes = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2)
    config = transformers.LlamaConfig(**sizes, intermediate_size=24, max_position_embeddings=32, **ends, **options)
    return transformers.LlamaForCausalLM(config).eval()


TARGETS = {"bert": ["query", "value"], "tokens": ["query", "value"], "gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"]}
TASKS = {"bert": "SEQ_CLS", "tokens": "TOKEN_CLS", "gpt2": "CAUSAL_LM", "llama": "CAUSAL_LM"}


def lora(kind="bert", rank=2, **options):
    peft = pytest.importorskip("peft")
    fan = {"fan_in_fan_out": True} if kind == "gpt2" else {}
    settings = {"task_type": TASKS[kind], "r": rank, "target_modules": TARGETS[kind], **fan, **options}
    return peft.LoraConfig(**settings)


def adapted(kind="bert", config=None, **options):
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(base(kind, **options), config if config is not None else lora(kind)).eval()


def samples_of(model, count=5, scale=0.3):
    """Random adapters around that of a model."""
    torch.manual_seed(1)
    sampled = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    store, entries = MemoryStore(), [Entry(10 * k, 0, k) for k in range(1, count + 1)]
    rows = {entry: {n: p + scale * torch.randn_like(p) for n, p in sampled.items()} for entry in entries}
    store.commit(entries, rows, store.progress)
    options = dict(store_frozen=False, dtype=None, device=torch.device("cpu"))
    store.set_fixed(*Snapshots(model, list(sampled), "refuse", **options).first_unsampled())
    shapes = {name: list(p.shape) for name, p in sampled.items()}
    return AdapterSamples(model, store, {"shapes": shapes, "buffers": "refuse"})


def texts(rows=4, length=6):
    """Token ids without the one that ends a text, and a mask that pads two of them on the left."""
    torch.manual_seed(2)
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, :2] = 0
    return {"input_ids": torch.randint(2, VOCABULARY, (rows, length)), "attention_mask": mask}
