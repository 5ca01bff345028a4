"""The classifiers of texts: their sizes, that padding is nothing to them, and predictions from posterior samples."""

import pytest
import torch
from torch.nn import functional

from learned_samplers import SGLD, PosteriorSamples
from meta_tasks.networks import build_text, text_networks

SMALL = {"cnn_lstm": {"width": 8}, "transformer": {"width": 8, "heads": 2}}


def small(name, length=30, vocabulary=20):
    torch.manual_seed(0)
    return build_text(name, vocabulary, length, 3, **SMALL[name])


def texts(lengths, columns):
    """Random words, then padding."""
    x = torch.randint(1, 20, (len(lengths), columns))
    return x * (torch.arange(columns) < torch.tensor(lengths)[:, None])


def test_cnn_lstm_has_the_published_sizes():
    model = build_text("cnn_lstm", 20_000, 100, 2)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes["embedding.weight"] == (20_000, 128)
    assert shapes["convolution.weight"] == (64, 128, 5)
    assert shapes["lstm.weight_ih_l0"] == (4 * 128, 64)
    assert shapes["lstm.weight_hh_l0"] == (4 * 128, 128)
    assert shapes["linear.weight"] == (2, 128)


@pytest.mark.parametrize("name", text_networks())
@pytest.mark.parametrize("training", [False, True])
def test_more_padding_changes_nothing(name, training):
    model = small(name, length=60).train(training)
    x = texts([1, 4, 5, 8, 9, 17, 20], 30)
    more = functional.pad(x, (0, 30))
    torch.testing.assert_close(model(x), model(more), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        model.embedding.weight[0] += 10.0  # nor does what padding is embedded as
    torch.testing.assert_close(model(x), model(more), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", text_networks())
def test_every_word_counts_and_no_text_sees_another(name):
    model = small(name).double().eval()
    x = texts([12, 30], 30)
    logits = model(x)
    torch.testing.assert_close(model(x[:1]), logits[:1])
    for place in range(12):
        changed = x.repeat(10, 1)
        changed[::2, place] = torch.tensor([3, 7, 11, 15, 19]).repeat(2)[:10]  # the first of each pair of texts
        changed_logits = model(changed)
        assert (changed_logits[::2] - logits[0]).abs().max() > 1e-6, place
        torch.testing.assert_close(changed_logits[1::2], logits[1:].expand(10, -1))


@pytest.mark.parametrize("name", text_networks())
def test_posterior_samples_predict_as_each_sample_does(name):
    model = small(name)
    sampler = SGLD(model.parameters(), lr=0.1, num_data=10)
    x, y = texts([12, 5, 30, 1], 30), torch.tensor([0, 1, 2, 0])
    expected = []
    with PosteriorSamples(model, sampler) as samples:
        for _ in range(3):
            sampler.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            sampler.step()
            with torch.no_grad():
                expected.append(model.eval()(x).softmax(-1))
            model.train()
    for vectorize in (None, False):
        single = samples.predict_samples(x, vectorize=vectorize)
        torch.testing.assert_close(single, torch.stack(expected), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(single[0], single[-1], atol=1e-4)
