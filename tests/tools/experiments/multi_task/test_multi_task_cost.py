"""multi_task.py --dry-run: the steps of the presets, no files, nothing written."""

import multi_task
import pytest
import torch
from experiments.multi_task import cost
from experiments.multi_task.networks import ResNet18
from experiments.multi_task.options import parse
from torch import nn

from meta_tasks.datasets import load_overlaid


@pytest.fixture(autouse=True)
def _restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_every_method_and_data_set_has_a_row_and_its_steps(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LEARNED_SAMPLERS_DATA", str(tmp_path / "none"))
    multi_task.main(["--preset", "paper", "--dry-run", "--batch-size", "8", "--out", str(tmp_path / "out")])
    lines = capsys.readouterr().out.splitlines()
    options = parse(["--preset", "paper", "--batch-size", "8"])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2 : 2 + 3 * len(options.method)]]
    assert [row[:2] for row in rows] == [[name, method] for name in options.dataset for method in options.method]
    steps = 3 * 100 * (108_000 // 8)  # seeds × epochs × minibatches; a single rate is not tuned
    assert {row[2] for row in rows} == {f"{steps:,}"}
    for row in rows:
        assert float(row[4]) == pytest.approx(steps * float(row[3]) / 3.6e6, rel=0.02)
    assert list(tmp_path.iterdir()) == []


def test_tuning_is_counted_where_there_is_some():
    options = parse(["--preset", "cpu", "--batch-size", "8", "--method", "MGDA", "--dataset", "multi_mnist"])
    row = cost.cost_table(options, "cpu").splitlines()[2]
    assert f"| {(3 * 4 + 3 * 1) * (10_000 // 8):,} |" in row


def test_celeba_has_its_own_shape():
    options = parse(["--preset", "celeba"])
    data = cost.stand_in(options, "celeba")
    assert (data.input_shape, data.num_classes, len(data.tasks)) == ((3, 64, 64), 2, 10)


def test_celebas_large_minibatches_are_timed_in_proportion(monkeypatch):
    options = parse(["--preset", "celeba", "--method", "SingleTask", "MGDA", "--size", "32"])
    sizes = []

    def timed(network, settings, result, data, writer, bar):
        sizes.append((settings.batch_size, data.num_data, len(network.parameters())))
        result.seconds, result.steps = 2.0, 1

    monkeypatch.setattr(ResNet18, "one", staticmethod(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 512))))
    monkeypatch.setattr(cost, "train", timed)
    table = cost.cost_table(options, "cpu").splitlines()
    assert sizes == [(8, 8, 40)] * 2 + [(8, 8, 22)] * 2, "ten networks of four tensors; one trunk and ten heads"
    steps = (3 * 40 + 3 * 4) * (40_000 // 256)
    for name, row in zip(("SingleTask", "MGDA"), table[2:4], strict=True):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[:4] == ["celeba", name, f"{steps:,}", "6.4e+04"], "two seconds for 8 images are 64 for 256"
    assert "8 of them, in proportion" in table[-1]


def test_the_pairs_that_are_counted_are_those_that_are_made():
    import inspect

    defaults = {name: each.default for name, each in inspect.signature(load_overlaid).parameters.items()}
    assert defaults["partners"] * (60_000 - defaults["validation"]) == cost.PAIRS
