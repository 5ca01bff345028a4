"""What tools/compare.py measures on request: corruptions, convergence and planes; and Laplace's row."""

import compare
import numpy as np
import pytest
import torch
from experiments.compare.options import parse_compare
from experiments.harness.run_store import RunStore
from experiments.harness.runs.runner import Runs

from learned_samplers import diagnostics, metrics
from meta_tasks.datasets.corruptions import RECREATED, corrupt
from meta_tasks.random_streams import generator
from tests.tools.compare_cases import SMALL, TINY, numbers, read

MEASURED = ["--corruptions", "30", "--convergence", "--plane"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One comparison with everything that can be asked for."""
    out = tmp_path_factory.mktemp("measured")
    arguments = [*TINY, *SMALL, "--num-samples", "8", "--sampler", "L2E", "SGHMC", "SGD", "--budgets", "40"]
    arguments += ["--seeds", "2", "--out", str(out)]
    threads = torch.get_num_threads()
    compare.main([*arguments, *MEASURED])
    torch.set_num_threads(threads)
    return out, arguments


def loaded(out, arguments, name):
    """The first run of a method, its samples and the data."""
    options = parse_compare(arguments)
    data, _ = options.load()
    result = read(out / numbers(out)["40"]["methods"][name]["runs"][0]["file"])
    return result, Runs(data, {}, RunStore(out / "steps_40")).samples(result, options.settings), data


def test_corruptions_are_scored_at_every_severity(measured):
    out, arguments = measured
    result, samples, data = loaded(out, arguments, "SGHMC")
    assert result.corruptions["images"] == 30
    assert set(result.corruptions["scores"]) == {"none", *RECREATED}
    order = torch.randperm(len(data.test_y), generator=generator(0, "corrupted images"))[:30].sort().values
    x, y = data.test_x[order], data.test_y[order]
    for name in ("fog", "pixelate"):
        for severity in (1, 5):
            p = samples.predict(corrupt(x, name, severity))
            for key in ("accuracy", "nll", "ece"):
                found = result.corruptions["scores"][name][key][severity - 1]
                assert found == pytest.approx(getattr(metrics, key)(p, y), rel=1e-4), (name, severity, key)
    assert result.corruptions["scores"]["none"]["nll"] == pytest.approx([metrics.nll(samples.predict(x), y)], rel=1e-4)


def test_the_tables_of_corruptions_are_means_over_them(measured):
    out, _ = measured
    methods, table = numbers(out)["40"]["methods"], (out / "table.md").read_text()
    scores = [read(out / run["file"]).corruptions["scores"] for run in methods["SGD"]["runs"]]
    assert [each["scores"] for each in methods["SGD"]["corruptions"]] == scores
    worst = [np.mean([each[name]["accuracy"][4] for name in RECREATED]) for each in scores]
    row = next(
        line for line in table[table.index("| accuracy at severity") :].splitlines() if line.startswith("| SGD ")
    )
    assert row.split("|")[7].strip() == f"{np.mean(worst):.3f} ± {np.std(worst, ddof=1):.3f}"
    assert "re-creation" in table


def test_convergence_is_that_of_the_chain_layer_by_layer(measured):
    out, arguments = measured
    result, samples, _ = loaded(out, arguments, "SGHMC")
    assert result.converged["all"] == diagnostics.converged_share(samples)
    assert set(result.converged) == {"all", *samples[0]}
    for name in samples[0]:
        assert result.converged[name] == diagnostics.converged_share(samples.to_arviz(parameters=[name]))
    methods, table = numbers(out)["40"]["methods"], (out / "table.md").read_text()
    assert "converged" not in methods["SGD"]["mean"], "a single network is no chain"
    both = [read(out / run["file"]).converged for run in methods["SGHMC"]["runs"]]
    assert methods["SGHMC"]["mean"]["converged"] == pytest.approx(np.mean([each["all"] for each in both]))
    header, _, first, *_ = table[table.index("| cR̂ < 1.1 of the layer") :].splitlines()
    assert [cell.strip().partition(" ")[0] for cell in header.split("|")[2:-1]] == ["L2E", "SGHMC"]
    share = np.mean([each[next(iter(samples[0]))] for each in both])
    assert first.split("|")[3].strip() == f"{share:.3f}"


def test_the_plane_holds_the_errors_of_its_samples(measured):
    out, arguments = measured
    result, samples, data = loaded(out, arguments, "SGHMC")
    plane = result.plane
    assert plane["samples"] == [0, 4, 7]
    assert np.array(plane["test_error"]).shape == (15, 15)
    errors = [1 - metrics.accuracy(samples.predict_samples(data.test_x)[k], data.test_y) for k in (0, 4, 7)]
    low, high = np.min(plane["test_error"]), np.max(plane["test_error"])
    assert all(low - 0.1 <= error <= high + 0.1 for error in errors)
    assert read(out / numbers(out)["40"]["methods"]["SGHMC"]["runs"][1]["file"]).plane is None, (
        "of the first seed alone"
    )
    assert read(out / numbers(out)["40"]["methods"]["SGD"]["runs"][0]["file"]).plane is None


def test_the_figures_are_there_and_nothing_is_measured_twice(measured):
    out, arguments = measured
    for figure in ("corruptions", "planes"):
        assert (out / f"{figure}_40.png").read_bytes().startswith(b"\x89PNG")
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("steps_*/runs/*.json")}
    before = numbers(out)
    compare.main([*arguments, *MEASURED])
    assert {path: path.stat().st_mtime_ns for path in out.glob("steps_*/runs/*.json")} == stamps
    assert numbers(out) == before


def test_what_is_asked_for_later_is_measured_of_the_runs_that_are_there(tmp_path):
    arguments = [*TINY, *SMALL, "--sampler", "SGHMC", "--budgets", "20", "--seeds", "1", "--out", str(tmp_path)]

    def measured(*more):
        compare.main([*arguments, *more])
        return read(tmp_path / numbers(tmp_path)["20"]["methods"]["SGHMC"]["runs"][0]["file"])

    result = measured()
    assert result.corruptions is result.plane is result.converged is None
    table = (tmp_path / "table.md").read_text()
    assert "severity" not in table
    assert "of the layer" not in table
    for count in (9, 7):
        again = measured("--corruptions", str(count))
        assert (again.seconds, again.corruptions["images"]) == (result.seconds, count)
        assert set(again.corruptions["scores"]) == {"none", *RECREATED}


def test_what_an_earlier_command_measured_of_some_seeds_is_left_out(tmp_path):
    arguments = [*TINY, *SMALL, "--num-samples", "8", "--sampler", "SGHMC", "--budgets", "20", "--out", str(tmp_path)]
    compare.main([*arguments, "--seeds", "1", "--corruptions", "9", "--convergence"])
    headings = ("cR̂ < 1.1 |", "of the layer", "at severity")
    assert all(heading in (tmp_path / "table.md").read_text() for heading in headings)
    compare.main([*arguments, "--seeds", "2"])
    assert not any(heading in (tmp_path / "table.md").read_text() for heading in headings)
    found = numbers(tmp_path)["20"]["methods"]["SGHMC"]
    assert "converged" not in found["mean"]
    assert found["corruptions"] == []
