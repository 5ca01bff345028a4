"""What tools/compare.py measures on request: corruptions, convergence, planes, step sizes; and Laplace's row."""

import json

import compare
import numpy as np
import pytest
import torch
from experiments.harness.run_store import RunStore
from experiments.harness.tuning import Tuning
from experiments.images.compare_landscapes import best_by_rate
from experiments.images.methods import METHODS, Setting
from experiments.images.options import parse_compare
from experiments.images.runner import ImageRuns

from learned_samplers import diagnostics, metrics
from meta_tasks.datasets.corruptions import RECREATED, corrupt
from meta_tasks.random_streams import generator
from tests.tools.compare_cases import SMALL, TINY, numbers, read

MEASURED = ["--corruptions", "--corruption-images", "30", "--layers", "--plane"]


@pytest.fixture(autouse=True)
def _restore_threads():
    """The script sets torch's number of threads for the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


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
    return result, ImageRuns(data, {}, RunStore(out / "steps_40")).samples(result, options.settings), data


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
    for key in ("accuracy", "nll", "ece"):
        worst = [np.mean([each[name][key][4] for name in RECREATED]) for each in scores]
        found = np.array(methods["SGD"]["corruptions"]["by_severity"][key])
        assert found.shape == (2, 6), "seeds, severities"
        np.testing.assert_allclose(found[:, 5], worst)
        np.testing.assert_allclose(found[:, 0], [each["none"][key][0] for each in scores])
    mean, std = np.mean(found := methods["SGD"]["corruptions"]["by_severity"]["accuracy"], 0), np.std(found, 0, ddof=1)
    row = next(
        line for line in table[table.index("| accuracy at severity") :].splitlines() if line.startswith("| SGD ")
    )
    assert row.split("|")[7].strip() == f"{mean[5]:.3f} ± {std[5]:.3f}"
    assert "re-creation" in table
    fog = methods["SGD"]["corruptions"]["by_corruption"]["fog"]["nll"]
    np.testing.assert_allclose(fog, np.mean([each["fog"]["nll"] for each in scores], 0))


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
    for name in samples[0]:
        share = np.mean([each[name] for each in both])
        assert methods["SGHMC"]["layers"][name] == pytest.approx(share)
    header = table[table.index("| cR̂ < 1.1 of the layer") :].splitlines()[0]
    assert [cell.strip() for cell in header.split("|")[2:-1]] == ["L2E [l2e-damped]", "SGHMC"]


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
    for figure in ("corruptions", "planes", "step_sizes"):
        assert (out / f"{figure}_40.png").read_bytes().startswith(b"\x89PNG")
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("steps_*/runs/*.json")}
    before = numbers(out)
    compare.main([*arguments, *MEASURED])
    assert {path: path.stat().st_mtime_ns for path in out.glob("steps_*/runs/*.json")} == stamps
    assert numbers(out) == before


def test_what_was_not_asked_for_is_not_measured(tmp_path):
    arguments = [*TINY, *SMALL, "--sampler", "SGHMC", "--budgets", "20", "--seeds", "1", "--out", str(tmp_path)]
    compare.main(arguments)
    result = read(tmp_path / numbers(tmp_path)["20"]["methods"]["SGHMC"]["runs"][0]["file"])
    assert result.corruptions is result.plane is result.converged is None
    assert not list(tmp_path.glob("corruptions*"))
    assert not list(tmp_path.glob("planes*"))
    assert list(tmp_path.glob("step_sizes*")), "which costs nothing"
    table = (tmp_path / "table.md").read_text()
    assert "severity" not in table
    assert "of the layer" not in table
    # Asked for later, the runs are kept; a short chain has no halves to compare.
    compare.main([*arguments, "--corruptions", "--corruption-images", "9"])
    again = read(tmp_path / numbers(tmp_path)["20"]["methods"]["SGHMC"]["runs"][0]["file"])
    assert (again.seconds, again.corruptions["images"]) == (result.seconds, 9)
    compare.main([*arguments, "--corruptions", "--corruption-images", "7"])
    fewer = read(tmp_path / numbers(tmp_path)["20"]["methods"]["SGHMC"]["runs"][0]["file"])
    assert fewer.corruptions["images"] == 7
    assert set(fewer.corruptions["scores"]) == {"none", *RECREATED}


def test_what_some_seeds_alone_have_is_left_out(tmp_path):
    """Of an earlier command with fewer seeds, or of one that was killed while it scored."""
    arguments = [*TINY, *SMALL, "--num-samples", "8", "--sampler", "SGHMC", "SGD", "--budgets", "20"]
    arguments += ["--out", str(tmp_path)]
    once = ["--seeds", "1", "--corruptions", "--corruption-images", "9", "--layers"]
    compare.main([*arguments, *once])
    both = ("cR̂ < 1.1 |", "of the layer", "at severity")
    assert all(heading in (tmp_path / "table.md").read_text() for heading in both)
    compare.main([*arguments, "--seeds", "2", "--convergence"])
    table, found = (tmp_path / "table.md").read_text(), numbers(tmp_path)["20"]["methods"]["SGHMC"]
    assert [heading in table for heading in both] == [True, False, False], "the second seed has the whole share alone"
    assert "layers" not in found
    assert "corruptions" not in found
    compare.main([*arguments, "--seeds", "3"])
    table, found = (tmp_path / "table.md").read_text(), numbers(tmp_path)["20"]["methods"]["SGHMC"]
    assert not any(heading in table for heading in both)
    assert "converged" not in found["mean"]
    assert "accuracy" in found["mean"]
    # Killed in between: a corruption is missing. Scored on other images: the second method's.
    (run,) = tmp_path.glob("steps_20/runs/SGHMC*seed0.json")
    record = json.loads(run.read_text())
    del record["result"]["corruptions"]["scores"]["gaussian_noise"]
    run.write_text(json.dumps(record))
    compare.main([*arguments, "--seeds", "1"])
    found = numbers(tmp_path)["20"]["methods"]
    assert "corruptions" not in found["SGHMC"]
    assert "corruptions" in found["SGD"]
    compare.main([*arguments, *once, "--sampler", "SGHMC", "--corruption-images", "7"])
    compare.main([*arguments, "--seeds", "1"])
    table = (tmp_path / "table.md").read_text()
    assert "of 7 test images" in table
    assert "SGD was scored on other images and has no row: 9 of a re-creation" in table
    assert "| SGD" not in table[table.index("| accuracy at severity") :]


def test_the_best_of_each_rate_is_shown():
    tuning = Tuning(lambda score: score)
    hot, cold = (("temperature", 1.0),), (("temperature", 0.1),)
    tuning.trials = {
        Setting(0.1, hot): [0.5, 0.7],
        Setting(0.1, cold): [0.3, 0.5],
        Setting(0.2, hot): [None, 0.1],
        Setting(0.2, cold): [0.9, 0.9],
        Setting(0.5, hot): [None, None],
    }
    assert best_by_rate(tuning) == {0.1: pytest.approx(0.4), 0.2: 0.9, 0.5: None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--convergence", "--num-samples", "7"], "convergence needs num_samples of at least 8, got 7"),
        (["--layers", "--num-samples", "7"], "layers needs num_samples of at least 8, got 7"),
        (["--plane", "--num-samples", "2"], "plane needs num_samples of at least 3, got 2"),
        (["--corruption-images", "0"], "corruption_images must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        compare.main([*arguments, "--out", str(tmp_path / "out")])
    assert message in " ".join(f"{caught.value.code} {capsys.readouterr().err}".replace("│", " ").split())
    assert not (tmp_path / "out").exists()


def test_a_regression_has_no_corruptions_and_no_plane(tmp_path):
    x, y = np.linspace(-1, 1, 60, dtype=np.float32)[:, None], np.zeros((60, 1), dtype=np.float32)
    np.savez(
        tmp_path / "line.npz",
        **{f"{kind}_{split}": each for split in ("train", "test") for kind, each in (("x", x), ("y", y))},
    )
    own = ["--dataset", f"npz:{tmp_path / 'line.npz'}", "--model", "mlp", "--noise", "0.1", "--batch-size", "8"]
    for flag, message in (
        ("--corruptions", "corruptions needs classes of images"),
        ("--plane", "this is a regression"),
    ):
        with pytest.raises(SystemExit, match=message):
            compare.main([*own, "--sampler", "SGHMC", "--budgets", "100", flag, "--out", str(tmp_path / "out")])


def test_laplaces_row_names_the_extra_that_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "laplace", None)  # as if it were not installed
    arguments = [*TINY, "--sampler", "LastLayerLaplace", "--budgets", "20", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match=r"LastLayerLaplace: laplace is needed .*learned-samplers\[laplace\]"):
        compare.main(arguments)
    assert not (tmp_path / "out").exists()


def test_laplaces_row_draws_the_last_layer_alone(tmp_path):
    pytest.importorskip("laplace", reason="laplace-torch is not installed: pip install laplace-torch")
    options = parse_compare([*TINY, "--budgets", "60"])
    data, _ = options.load()
    runs = ImageRuns(data, {}, RunStore(tmp_path))
    settings = parse_compare([*TINY, "--steps", "60"]).settings
    drawn, trained = (runs.run(settings, name, METHODS[name].lr, 0) for name in ("LastLayerLaplace", "SGD"))
    samples, network = runs.samples(drawn, settings), runs.samples(trained, settings)[0]
    *others, weight, _ = network
    for sample in samples:
        assert all(torch.equal(sample[name], network[name]) for name in others), "the training is SGD's"
        assert not torch.equal(sample[weight], network[weight])
    assert (drawn.num_samples, drawn.gradient_evaluations) == (4, 60)
    assert drawn.scores["nll"] < 2.3
