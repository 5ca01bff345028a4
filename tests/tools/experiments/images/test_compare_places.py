"""Times of runs that were made in different places: what a table says of them, and that equal time is refused."""

import json
from types import SimpleNamespace

import pytest
import torch
from experiments.images.compare_places import place_of, places_line
from experiments.images.compare_report import tables
from experiments.images.comparison import Comparison
from experiments.images.options import parse_compare
from experiments.images.result import Result
from experiments.images.runner import ImageRuns, store_for
from experiments.images.settings import Settings
from tqdm import tqdm

from tests.tools.compare_cases import ROOT, TINY

HERE = torch.get_num_threads()


def test_a_run_says_where_it_was_made_and_is_read_back_elsewhere(tmp_path):
    settings = Settings(steps=20, limit=320, model="mlp", hidden=(8,))
    data = settings.load_data(None)
    result = ImageRuns(data, {}, store_for(tmp_path, data)).run(settings, "SGD", 0.01, 0)
    assert place_of(result) == ("CPU", HERE)
    path = tmp_path / "runs" / f"{result.name}.json"
    record = json.loads(path.read_text())
    del record["result"]["device"], record["result"]["threads"]  # as files of before
    path.write_text(json.dumps(record))
    assert place_of(ImageRuns(data, {}, store_for(tmp_path, data)).run(settings, "SGD", 0.01, 0)) == (None, None)


def test_a_table_says_which_of_its_runs_were_made_where():
    assert places_line({"SGHMC": [("CPU", 1), ("CPU", 1)], "SGD": [(None, None), ("CPU", 1)]}) is None
    assert places_line({"SGHMC": [("CPU", 1), ("CPU", 2)], "SGD": [("CPU", 1)]}) == (
        "- **Seconds are not alike**, the runs were made in different places: CPU with 1 thread (SGHMC, SGD); "
        "CPU with 2 threads (SGHMC)."
    )
    path = ROOT / "docs" / "tables" / "results" / "compare_digits_whitened.json"
    numbers = json.loads(path.read_text())["budgets"]["400"]
    assert "Seconds are not alike" not in tables(400, numbers), "files of before say nothing"
    for threads, method in enumerate(numbers["methods"].values(), start=1):
        for run in method["runs"]:
            run |= {"device": "CPU", "threads": min(threads, 2)}
    assert "CPU with 2 threads" in tables(400, numbers)


def test_equal_time_beside_runs_of_another_place_is_refused(tmp_path):
    options = parse_compare([*TINY, "--steps", "40", "--sampler", "SGHMC", "--equal-time", "--out", str(tmp_path)])
    data, _ = options.load()
    with tqdm(disable=True) as bar:
        comparison = Comparison(options, data, bar)

    def at_equal_time(**place):
        runs = {"SGHMC": [Result("SGHMC", 0.1, 0, {}, seconds=1.0, **place)]}
        report = SimpleNamespace(runs=runs, tuning={"SGHMC": SimpleNamespace(chosen=None)})
        return comparison.at_equal_time(report, "SGHMC")

    with pytest.raises(ValueError, match=r"equal_time=True .* SGHMC_lr0\.1_seed0 ran on CPU with 9 threads"):
        at_equal_time(device="CPU", threads=9)
    with pytest.raises(ValueError, match="take the same --device and --threads, or --fresh"):
        at_equal_time(device="NVIDIA H100", threads=torch.get_num_threads())
    assert len(at_equal_time(device="CPU", threads=torch.get_num_threads())) == 1
    assert len(at_equal_time()) == 1, "of before"
