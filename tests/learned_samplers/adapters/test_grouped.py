"""K adapters in one forward, held against K separate forwards."""

import pytest
import torch
from torch import nn

from learned_samplers.adapters import grouped
from tests.learned_samplers.adapters.common import adapted, base, lora, samples_of, texts

pytestmark = pytest.mark.filterwarnings("ignore")  # the packages' own


def ia3():
    import peft

    modules = ["key", "value", "output.dense"]
    return peft.IA3Config(task_type="SEQ_CLS", target_modules=modules, feedforward_modules=["output.dense"])


def loha():
    import peft

    return peft.LoHaConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])


CASES = {
    "lora": ("bert", lambda: lora()),
    "all linear layers, biases, rank-stabilised": (
        "bert",
        lambda: lora(target_modules="all-linear", bias="lora_only", use_rslora=True, lora_bias=True),
    ),
    "dora": ("bert", lambda: lora(use_dora=True)),
    "ia3": ("bert", ia3),
    "loha": ("bert", loha),
    "embeddings and norms": (
        "bert",
        lambda: lora(target_modules=["word_embeddings", "value"], modules_to_save=["classifier", "LayerNorm"]),
    ),
    "tokens": ("tokens", lambda: lora("tokens")),
    "llama": ("llama", lambda: lora("llama")),
    "gpt2, whose layers are transposed": ("gpt2", lambda: lora("gpt2")),
    "tied head": ("gpt2", lambda: lora("gpt2", modules_to_save=["lm_head"])),
}


def logits(samples, inputs, **options):
    return samples.predict_samples(inputs, output=lambda output: output.logits, sample_chunk=5, **options)


@pytest.mark.parametrize("case", CASES)
def test_one_forward_is_many(case):
    architecture, config = CASES[case]
    samples = samples_of(adapted(architecture, config()))
    alone = logits(samples, texts(), vectorize=False)
    together = logits(samples, texts(), vectorize=True)
    assert (alone.std(0) > 1e-4).any(), "the adapters agree"
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=2e-6)


def test_a_layer_runs_its_base_once(monkeypatch):
    calls = []
    plain = nn.functional.linear
    samples = samples_of(adapted("llama"))
    logits(samples, texts())  # compared with separate runs
    monkeypatch.setattr(nn.functional, "linear", lambda x, *rest: calls.append(len(x)) or plain(x, *rest))
    logits(samples, texts())
    assert len(calls) == 2 * 7 + 1, "a product for each base layer, none for an adapter"
    assert set(calls) == {5 * 4}


def test_the_base_is_in_memory_once():
    samples = samples_of(adapted("llama"))
    state = {name: torch.stack([sample[name] for sample in samples]) for name in samples.parameter_names}
    network = samples._runner.network().with_tensors(state)
    pointers = {p.data_ptr() for p in samples.model.parameters() if not p.requires_grad}
    new = [p for p in network.state_dict().values() if p.data_ptr() not in pointers]
    assert sum(t.numel() for t in new) == sum(t.numel() for t in state.values())


def test_half_precision_of_the_base_keeps_that_of_the_adapter():
    import peft

    model = peft.get_peft_model(base("llama").bfloat16(), lora("llama")).eval()
    samples = samples_of(model)
    assert {t.dtype for t in samples[0].values()} == {torch.float32}
    together, alone = (logits(samples, texts(), vectorize=v) for v in (True, False))
    torch.testing.assert_close(together, alone, rtol=0.05, atol=0.02)


class Packed(nn.Linear):
    """A layer of four bits in the place of a quantised one: its weight is bytes, with a scale as an attribute."""

    def __init__(self, linear):
        super().__init__(linear.in_features, linear.out_features, bias=False)
        scale = linear.weight.detach().abs().max() / 7
        values = (linear.weight.detach() / scale).round().clamp(-7, 7).to(torch.int16) + 7
        packed = (values[:, ::2] * 16 + values[:, 1::2]).to(torch.uint8)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.weight.scale = scale

    def forward(self, x):
        values = torch.stack([self.weight // 16, self.weight % 16], -1).flatten(1).to(x.dtype) - 7
        return nn.functional.linear(x, values * self.weight.scale)


def test_a_quantised_base_works():
    import peft

    model = base("llama")
    for layer in model.model.layers:
        layer.self_attn.q_proj, layer.self_attn.v_proj = (
            Packed(layer.self_attn.q_proj),
            Packed(layer.self_attn.v_proj),
        )
    samples = samples_of(peft.get_peft_model(model, lora("llama")).eval())
    torch.testing.assert_close(
        logits(samples, texts(), vectorize=True), logits(samples, texts(), vectorize=False), rtol=1e-5, atol=2e-6
    )


def test_mixed_up_groups_are_noticed(monkeypatch):
    """Planted: each row is repeated beside itself, and not after all of the others."""

    def beside(batch, count):
        kwargs = {name: tensor.repeat_interleave(count, 0) for name, tensor in batch.kwargs.items()}
        return batch._replace(kwargs=kwargs, length=count * batch.length)

    monkeypatch.setattr(grouped, "repeated", beside)
    samples = samples_of(adapted())
    with pytest.raises(RuntimeError, match=r"cannot run .*depend on the rows beside them"):
        logits(samples, texts(), vectorize=True)
    alone = logits(samples, texts(), vectorize=False)
    torch.testing.assert_close(logits(samples, texts()), alone, rtol=0, atol=0)
    assert samples._runner.vmap_fails


def test_uncertainty_by_token_is_that_of_the_collection():
    samples = samples_of(adapted("tokens"))
    inputs = texts()
    together = samples.uncertainty(inputs, class_axis=-1)
    alone = samples.uncertainty(inputs, class_axis=-1, vectorize=False)
    assert together.total.shape == (4, 6)
    assert (together.epistemic > 1e-4).any()
    for first, second in zip(together, alone, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-6)
