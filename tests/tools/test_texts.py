"""compare.py on texts in the format of IMDB's archive."""

import shlex

import compare
import pytest
import torch
from torch import nn

from learned_samplers import PosteriorSamples
from tests.meta_tasks.datasets.imdb_archive import write_archive
from tests.tools.compare_cases import numbers

TINY = shlex.split("--dataset imdb --length 12 --validation 4 --batch-size 4 --width 8")
RUN = shlex.split("--steps 8 --num-samples 2 --burn-in 0.5 --seeds 1 --sampler SGHMC SGD --given-settings")
pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.mark.parametrize("model", ["cnn_lstm", "transformer"])
def test_methods_run_on_texts(tmp_path, capsys, model):
    write_archive(tmp_path)
    command = [*TINY, *RUN, "--model", model, "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    compare.main(command)
    shown = capsys.readouterr().out
    assert "imdb: 8 training, 4 validation, 4 test examples of 12, 2 classes" in shown
    methods = numbers(tmp_path / "out")["8"]
    assert [run["num_samples"] for method in methods.values() for run in method["runs"]] == [2, 1]
    assert all(0 <= method["runs"][0]["accuracy"] <= 1 and method["runs"][0]["nll"] > 0 for method in methods.values())


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
    compare.main([*command, "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    (weights,) = (tmp_path / "out" / "steps_8" / "samples").glob("SGD_*.safetensors")
    samples = PosteriorSamples.load(weights, nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(36, 2)))
    assert samples.predict(torch.ones(2, 12, dtype=torch.int64)).shape == (2, 2)
