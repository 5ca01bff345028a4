"""Texts under the mixture of adapters: scores against the formulas written out, generation token by token."""

import math

import pytest
import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from tests.learned_samplers.adapters.common import adapted, samples_of, texts

pytestmark = pytest.mark.filterwarnings("ignore")  # the packages' own


def logs_of(samples, inputs):
    """Logarithms of each adapter's next-token distributions, by its own model."""
    rows = []
    for k in range(len(samples)):
        samples.load_into(samples.model, k)
        with torch.no_grad():
            rows.append(samples.model(**inputs).logits.log_softmax(-1))
    return torch.stack(rows)


@pytest.fixture(scope="module")
def samples():
    return samples_of(adapted("llama"), 4, scale=0.6)


def test_scores_are_the_formulas(samples):
    inputs = texts()
    labels = inputs["input_ids"].clone()
    labels[1, 3:] = -100
    scores = samples.score(inputs, labels, batch_size=3, sample_chunk=3)
    logs = logs_of(samples, inputs)[:, :, :-1]
    targets, mask = labels[:, 1:], labels[:, 1:] >= 0
    chosen = logs.gather(-1, targets.clamp_min(0).expand(4, -1, -1)[..., None])[..., 0].where(mask, 0.0)
    mixture = logs.exp().mean(0)
    torch.testing.assert_close(scores.mask, mask)
    torch.testing.assert_close(scores.samples, chosen.sum(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scores.joint, chosen.sum(-1).exp().mean(0).log(), rtol=1e-4, atol=1e-4)
    expected = torch.where(mask, chosen.exp().mean(0).log(), 0.0)
    torch.testing.assert_close(scores.log_likelihood, expected, rtol=1e-4, atol=1e-5)
    total = torch.where(mask, -(mixture * mixture.log()).sum(-1), 0.0)
    aleatoric = torch.where(mask, -(logs.exp() * logs).sum(-1).mean(0), 0.0)
    torch.testing.assert_close(scores.total, total, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scores.aleatoric, aleatoric, rtol=1e-4, atol=1e-5)
    assert (scores.epistemic[1:][mask[1:]] > 1e-4).all()  # the first text begins with padding
    torch.testing.assert_close(scores.by_text("total"), total.sum(-1) / mask.sum(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scores.by_text("total", normalised=False), total.sum(-1), rtol=1e-4, atol=1e-5)


def test_padding_is_no_target(samples):
    scores = samples.score(texts())
    assert scores.mask.sum(-1).tolist() == [3, 5, 5, 5]  # the first token after padding has no prediction
    alone = {name: values[:1, 2:] for name, values in texts().items()}
    assert int(texts()["attention_mask"][0].argmax()) == 2
    torch.testing.assert_close(samples.score(alone).joint[0], scores.joint[0], rtol=1e-4, atol=1e-4)


def greedy(samples, inputs, count):
    """Greedy generation from the mixture, every forward from the beginning and every adapter apart."""
    ids, mask, logs = inputs["input_ids"], inputs["attention_mask"], []
    for _ in range(count):
        position = (mask.cumsum(-1) - 1).clamp_min(0)
        last = logs_of(samples, {"input_ids": ids, "attention_mask": mask, "position_ids": position})[:, :, -1]
        logs.append(last)
        token = last.exp().mean(0).argmax(-1, keepdim=True)
        ids, mask = torch.cat([ids, token], 1), torch.cat([mask, torch.ones_like(token)], 1)
    return ids, torch.stack(logs, 2)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_generation_is_greedy_in_the_mixture(kind):
    samples = samples_of(adapted(kind), 4, scale=0.6)
    inputs = texts()
    ids, logs = greedy(samples, inputs, 5)
    out = samples.generate(inputs, max_new_tokens=5, min_new_tokens=5, do_sample=False, eos_token_id=None)
    assert torch.equal(out.sequences, ids)
    new = ids[:, -5:]
    chosen = logs.gather(-1, new.expand(4, -1, -1)[..., None])[..., 0]
    torch.testing.assert_close(out.scores.samples, chosen.sum(-1), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(out.scores.log_likelihood, chosen.exp().mean(0).log(), rtol=1e-3, atol=1e-4)
    mixture = logs.exp().mean(0)
    torch.testing.assert_close(out.scores.total, -(mixture * mixture.log()).sum(-1), rtol=1e-3, atol=1e-4)


def test_no_adapter_alone_decides(samples):
    """Planted: with the first adapter alone the text is another, so that the test above can fail."""
    options = dict(max_new_tokens=8, do_sample=False, eos_token_id=None)
    alone, mixed = (s.generate(texts(), **options).sequences for s in (samples[:1], samples))
    assert not torch.equal(alone, mixed)


def test_sampled_tokens_follow_the_mixture(samples):
    inputs = {name: tensor[1:2] for name, tensor in texts().items()}
    expected = logs_of(samples, inputs)[:, 0, -1].exp().mean(0)
    torch.manual_seed(3)
    draws = samples.generate(
        inputs, max_new_tokens=1, do_sample=True, top_k=0, num_return_sequences=4000, eos_token_id=None
    )
    shares = torch.bincount(draws.sequences[:, -1], minlength=len(expected)) / 4000
    # Five standard deviations of a share.
    assert ((shares - expected).abs() < 5 * (expected * (1 - expected) / 4000).sqrt() + 1e-3).all()


def test_a_text_ends_where_it_ends(samples):
    first = samples.generate(texts(), max_new_tokens=1, eos_token_id=None).sequences[:, -1]
    out = samples.generate(texts(), max_new_tokens=4, eos_token_id=int(first[0]), pad_token_id=1)
    assert out.scores.mask[0].tolist() == [True] + [False] * (out.scores.mask.shape[1] - 1)
    assert out.scores.total[0, 1:].abs().sum() == 0
    assert math.isfinite(out.scores.joint.sum())


def test_what_cannot_be_generated_is_refused_by_name(samples):
    with pytest.raises(ValueError, match="num_beams=2"):
        samples.generate(texts(), num_beams=2)
    with pytest.raises(ValueError, match="prompt_lookup_num_tokens=3"):
        samples.generate(texts(), prompt_lookup_num_tokens=3)
    with pytest.raises(TypeError, match="inputs must be a dictionary with the tensor 'input_ids'"):
        samples.score(texts()["input_ids"])
    with pytest.raises(ValueError, match=r"labels must have the shape \(4, 6\)"):
        samples.score(texts(), torch.zeros(4, 5, dtype=torch.long))


def test_a_configuration_s_gaps_are_filled_from_the_network_s_own(samples):
    own = samples.model.get_base_model().generation_config
    end = int(samples.generate(texts(), max_new_tokens=1, eos_token_id=None).sequences[0, -1])
    config = GenerationConfig(max_new_tokens=4, do_sample=False)
    try:
        own.eos_token_id = end
        plain, configured = (
            samples.generate(texts(), **options)
            for options in ({"max_new_tokens": 4, "do_sample": False}, {"generation_config": config})
        )
        assert configured.scores.mask[0].tolist() == [True, False, False, False]
        torch.testing.assert_close(configured.scores.joint, plain.scores.joint)
        own.num_beams = 2
        with pytest.raises(ValueError, match="num_beams=2 reorders"):
            samples.generate(texts(), generation_config=config)
    finally:
        own.eos_token_id = own.num_beams = None


class First(StoppingCriteria):
    """Ends the first text at once."""

    def __call__(self, input_ids, scores, **options):
        return torch.arange(len(input_ids)) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stopping_criteria": StoppingCriteriaList([First()])}, "stopping_criteria ends texts one by one"),
        ({"stop_strings": "a"}, "stop_strings ends texts one by one"),
        ({"guidance_scale": 1.5}, "guidance_scale=1.5 cannot be used"),
        ({"assistant_early_exit": 1}, "assistant_early_exit=1 cannot be used"),
    ],
)
def test_options_that_run_or_end_texts_apart_are_refused(samples, options, message):
    with pytest.raises(ValueError, match=message):
        samples.generate(texts(), max_new_tokens=2, **options)


def test_one_text_ends_by_a_criterion(samples):
    one = {name: values[1:2] for name, values in texts().items()}
    criteria = StoppingCriteriaList([First()])
    assert samples.generate(one, max_new_tokens=4, stopping_criteria=criteria).scores.mask.tolist() == [[True]]
    assert samples.generate(one, max_new_tokens=4, eos_token_id=None, logits_processor=None).scores.mask.all()


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (lambda ids: ids.tolist(), TypeError, "labels must be a tensor of integers, got list"),
        (lambda ids: ids.float(), TypeError, "labels must be a tensor of integers, got torch.float32"),
        (lambda ids: ids + 1000, ValueError, "labels must be below the vocabulary's size"),
    ],
)
def test_labels_that_are_no_tokens_are_refused(samples, labels, error, message):
    with pytest.raises(error, match=message):
        samples.score(texts(), labels(texts()["input_ids"]))


def test_a_field_that_has_no_tokens_is_refused(samples):
    with pytest.raises(ValueError, match="field must be one of"):
        samples.score(texts()).by_text("joint")
