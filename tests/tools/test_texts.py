"""sample.py and compare.py on texts in the format of IMDB's archive."""

import json

import compare
import pytest
import sample
import torch
from experiments.images import from_python
from experiments.images.cost import gradient_flops
from experiments.images.settings import Settings
from torch import nn

from learned_samplers import PosteriorSamples
from meta_tasks.datasets import load_text
from tests.meta_tasks.datasets.imdb_archive import write_archive

TINY = ["--dataset", "imdb", "--length", "12", "--validation", "4", "--batch-size", "4", "--width", "8"]
RUN = ["--steps", "8", "--num-samples", "2", "--burn-in", "0.5", "--seeds", "1", "--sampler", "SGHMC", "SGD"]


@pytest.fixture(autouse=True)
def _restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("model", ["cnn_lstm", "transformer"])
def test_sample_runs_on_texts(tmp_path, capsys, model):
    write_archive(tmp_path)
    command = [*TINY, *RUN, "--model", model, "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    sample.main(command)
    shown = capsys.readouterr().out
    assert "imdb: 8 training, 4 validation, 4 test examples of 12, 2 classes" in shown
    assert "out of distribution: none" in shown
    methods = json.loads((tmp_path / "out" / "results.json").read_text())["methods"]
    assert [run["num_samples"] for method in methods.values() for run in method["runs"]] == [2, 1]
    assert all(0 <= method["mean"]["accuracy"] <= 1 and method["mean"]["nll"] > 0 for method in methods.values())


def test_compare_tunes_and_runs_on_texts(tmp_path):
    write_archive(tmp_path)
    tuning = ["--grid", "1", "--tries", "1", "--tune-seeds", "1", "--extensions", "0", "--momentum-decays", "0.1"]
    command = [*TINY, *RUN, *tuning, "--model", "cnn_lstm", "--temperatures", "0.1", "--weight-decays", "0"]
    compare.main([*command, "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert "SGHMC" in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.parametrize(
    ("more", "match"),
    [
        (["--model", "cnn"], "model='cnn' does not read imdb: take cnn_lstm, transformer, or your own"),
        (["--model", "cnn_lstm", "--size", "8"], "size cannot be given for imdb, which holds texts"),
        (["--model", "cnn_lstm", "--ood", "photos"], "ood cannot be given for imdb, which holds texts"),
        (["--model", "cnn_lstm", "--length", "5"], "length=5 is too short for cnn_lstm"),
    ],
)
def test_what_does_not_fit_texts_is_refused_before_anything_is_run(tmp_path, more, match, capsys):
    write_archive(tmp_path)
    with pytest.raises(SystemExit, match=match):
        sample.main([*TINY, *RUN, *more, "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_options_of_texts_are_refused_for_images(tmp_path):
    with pytest.raises(SystemExit, match="length cannot be given for digits, which holds no texts"):
        sample.main(["--length", "12", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="model='cnn_lstm' does not read digits: take a network for images"):
        sample.main(["--model", "cnn_lstm", "--out", str(tmp_path)])


def test_the_lstm_is_counted_among_the_operations_of_a_gradient(tmp_path):
    write_archive(tmp_path)
    settings = Settings(dataset="imdb", model="cnn_lstm", width=8, length=12, batch_size=4, validation=4)
    data = settings.load_data(str(tmp_path))
    windows = 2  # of 4 of the 8 places of a convolution over 5 of 12 words
    convolution, lstm, linear = 2 * 4 * 8 * (8 * 5 * 4), 2 * 4 * windows * 4 * 8 * (4 + 8), 2 * 4 * 8 * 2
    first = 2 * 4 * 4 * 8 * 8  # the state before the first window is zero, and needs no gradient
    assert gradient_flops(settings, data) == 3 * (convolution + lstm + linear) - first


def test_a_network_of_ones_own_learns_the_size_of_the_vocabulary(tmp_path):
    write_archive(tmp_path)
    file = tmp_path / "own.py"
    file.write_text(
        "from torch import nn\n\n\n"
        "def network(input_shape, outputs, vocabulary):\n"
        "    length = input_shape[0]\n"
        "    return nn.Sequential(nn.Embedding(vocabulary, 3), nn.Flatten(), nn.Linear(3 * length, outputs))\n"
    )
    command = [*TINY[:-2], *RUN, "--vocabulary", "9", "--model", f"{file}:network"]
    sample.main([*command, "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    (weights,) = (tmp_path / "out" / "samples").glob("SGD_*.safetensors")
    samples = PosteriorSamples.load(weights, nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(36, 2)))
    assert samples.predict(torch.ones(2, 12, dtype=torch.int64)).shape == (2, 2)


def test_compare_from_python_takes_texts_and_refuses_options_of_files(tmp_path):
    write_archive(tmp_path)
    data = load_text("imdb", tmp_path, length=12, validation=4)
    few = {"tries": 1, "grid": 1, "extensions": 0, "tune_seeds": 1, "seeds": 1, "steps": 8, "batch_size": 4}
    more = {"num_samples": 2, "burn_in": 0.5, "width": 8, "temperatures": (0.1,), "out": tmp_path / "out"}
    found = from_python.compare("cnn_lstm", data, ["SGHMC"], **few, **more)
    assert "SGHMC" in str(found)
    with pytest.raises(TypeError, match="compare has no option length"):
        from_python.compare("cnn_lstm", data, ["SGHMC"], length=8)
