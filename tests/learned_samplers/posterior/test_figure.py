"""One figure of a chain: what is drawn is what was kept, of one chain and of several, of predictions and of weights."""

import numpy as np
import pytest
import torch
from torch import nn

from learned_samplers import SGHMC, SGLD, PosteriorSamples, Restarts, SampleCollection
from learned_samplers.posterior.settling import rhat

X, Y = torch.linspace(-1, 1, 64).view(16, 4), torch.arange(16) % 3
SETTINGS = {"lr": 0.05, "num_data": 16, "prior_precision": 1.0}


def train(model, sampler, steps):
    for _ in range(steps):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        sampler.step()


def collected(make=SGHMC, steps=40, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    sampler = make(model) if make is Two else make(model.parameters(), **SETTINGS)
    posterior = PosteriorSamples(model, sampler, thinning=2, **options)
    kinetic = []

    def note(*_):
        if hasattr(sampler, "temperatures"):
            kinetic.append(sampler.temperatures()[0]["kinetic"])

    sampler.register_step_post_hook(note)
    train(model, sampler, steps)
    return posterior, kinetic


def Two(model):
    return Restarts(model, 2, SGHMC, total_steps=81, burn_in=20, **SETTINGS)


def panels(figure):
    *traces, temperature, agreement = figure.get_axes()
    return traces, temperature, agreement


def text_of(ax):
    return " ".join(text.get_text() for text in ax.texts)


def test_predictions_temperatures_and_agreement_are_drawn(tmp_path):
    posterior, kinetic = collected()
    figure = posterior.plot(X)
    figure.savefig(tmp_path / "chain.png")
    assert (tmp_path / "chain.png").stat().st_size > 10_000
    assert figure.get_suptitle().replace("\n", " ") == posterior.verdict(X).text
    traces, temperature, agreement = panels(figure)
    logs = posterior.predict_samples(X).log()
    for ax in traces:
        assert ax.get_title("left").startswith("log p[row ")
        row, column = map(int, ax.get_title("left").removeprefix("log p[row ").rstrip("]").split(","))
        np.testing.assert_array_equal(ax.lines[0].get_xdata(), posterior.steps)
        np.testing.assert_allclose(ax.lines[0].get_ydata(), logs[:, row, column], rtol=1e-4)
    measured, asked = temperature.lines
    np.testing.assert_allclose(measured.get_ydata(), kinetic[1::2], rtol=1e-5)
    assert set(asked.get_ydata()) == {1.0}
    values = logs.flatten(1).double().numpy()
    expected = np.sort(np.minimum(rhat(np.stack([values[:10], values[10:]])), 4))
    np.testing.assert_allclose(agreement.lines[0].get_xdata(), expected, rtol=1e-4)
    assert agreement.get_legend().get_texts()[0].get_text() == "between halves of a chain"


def test_chains_have_a_line_each_and_are_compared():
    posterior, _ = collected(Two, 81)
    posterior.predict(X)
    traces, temperature, agreement = panels(posterior.plot())
    assert [len(ax.lines) for ax in traces] == [2, 2, 2]
    assert len(temperature.lines) == 3
    assert [text.get_text() for text in agreement.get_legend().get_texts()][1] == "across 2 chains"


def test_weights_are_drawn_before_anything_was_predicted():
    posterior, _ = collected()
    traces, _, _ = panels(posterior.plot())
    for ax in traces:
        name, _, place = ax.get_title("left").rstrip("]").partition("[")
        place = tuple(map(int, place.split(",")))
        np.testing.assert_allclose(ax.lines[0].get_ydata(), [float(sample[name][place]) for sample in posterior])


@pytest.mark.parametrize("where", ["file", "folder", "state"])
def test_what_is_saved_keeps_its_temperatures(tmp_path, where):
    posterior, kinetic = collected(**({"path": tmp_path / "folder"} if where == "folder" else {}))
    if where == "file":
        posterior.save(tmp_path / "file")
    if where == "state":
        again = PosteriorSamples(posterior.model, SGHMC(posterior.model.parameters(), **SETTINGS), thinning=2)
        again.load_state_dict(posterior.state_dict())
    else:
        again = SampleCollection.load(tmp_path / where, posterior.model)
    _, temperature, _ = panels(again.plot(X))
    np.testing.assert_allclose(temperature.lines[0].get_ydata(), kinetic[1::2], rtol=1e-5)


def test_what_is_not_known_is_said():
    posterior, _ = collected(SGLD, 6)
    _, temperature, agreement = panels(posterior.plot(X))
    assert "no kinetic temperature" in text_of(temperature)
    assert "needs 4" in text_of(agreement)
    given = SampleCollection.from_samples(posterior.model, [posterior[0]])
    assert "no kinetic temperature" in text_of(panels(given.plot(X, output="regression"))[1])
    with pytest.raises(RuntimeError, match="there is no sample to draw"):
        collected(steps=0)[0].plot(X)
