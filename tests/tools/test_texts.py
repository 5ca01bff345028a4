"""sample.py and compare.py on texts in the format of IMDB's archive."""

import json

import compare
import pytest
import sample
import torch

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
