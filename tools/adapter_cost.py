"""Time of K adapters in one forward against one forward of one adapter: four layers of width 256, LoRA of rank 8.

    OMP_NUM_THREADS=1 python tools/adapter_cost.py

Processor time, the least of several repetitions, so that a busy machine matters little. Generation is a step of one
token with a cache of 64; classification a forward of whole texts. Random weights, no download.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import tyro
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, DynamicCache, LlamaConfig, LlamaForCausalLM

from learned_samplers.adapters.grouped import GroupedNetwork
from learned_samplers.posterior.network import parameters_of

CACHED = 64
SIZES = {"vocab_size": 1000, "num_hidden_layers": 4, "num_attention_heads": 4}


def networks(base: Any, targets: list[str], task: str, count: int) -> tuple[Any, Any]:
    """Return a network with one adapter, and the same with ``count``."""
    model: Any = get_peft_model(base, LoraConfig(task_type=task, r=8, target_modules=targets)).eval()
    sampled = {name: p.detach() for name, p in parameters_of(model).items() if p.requires_grad}
    stacked = {name: p + 0.05 * torch.randn(count, *p.shape) for name, p in sampled.items()}
    several: Any = GroupedNetwork(model).with_tensors(stacked)
    return model.get_base_model(), several.get_base_model()


def least_time(run: Callable[[], Any], repetitions: int) -> float:
    """Return milliseconds of processor time."""
    times = []
    for _ in range(repetitions + 1):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return 1000 * min(times[1:])


def token_step(network: Any, rows: int) -> Callable[[], Any]:
    """Return one step of generation, which leaves the cache as it was."""
    cache, token = DynamicCache(), torch.randint(1000, (rows, 1))
    network(input_ids=torch.randint(1000, (rows, CACHED)), past_key_values=cache)

    def run() -> None:
        network(input_ids=token, past_key_values=cache)
        cache.crop(-1)

    return run


def main(count: int = 10, width: int = 256, repetitions: int = 7) -> None:
    """Print the table.

    Args:
        count: adapters, K.
        width: of the layers.
        repetitions: of which the fastest counts.
    """
    torch.manual_seed(0)
    sizes: dict[str, Any] = {**SIZES, "hidden_size": width}
    llama = LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=2 * width, max_position_embeddings=256))
    bert = BertForSequenceClassification(BertConfig(**sizes, intermediate_size=4 * width))
    print(f"| | one | {count} adapters | ratio |\n|---|--:|--:|--:|")
    with torch.no_grad():
        one, many = networks(llama, ["q_proj", "v_proj"], "CAUSAL_LM", count)
        for rows in (1, 4, 16):
            times = [least_time(token_step(net, n), repetitions) for net, n in ((one, rows), (many, count * rows))]
            report(f"generation, {rows} texts", *times)
        one, many = networks(bert, ["query", "value"], "SEQ_CLS", count)
        for rows, length in ((1, 16), (8, 16), (8, 64)):
            ids = torch.randint(1000, (rows, length))
            repeated = torch.cat([ids] * count)
            times = [least_time(lambda: one(ids), repetitions), least_time(lambda: many(repeated), repetitions)]  # noqa: B023
            report(f"classification, {rows} texts of {length} tokens", *times)


def report(name: str, single: float, several: float) -> None:
    """Print a line of the table."""
    print(f"| {name} | {single:.1f} ms | {several:.1f} ms | {several / single:.1f} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
