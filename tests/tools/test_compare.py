"""tools/compare.py on the embedded digits with tiny budgets: what it runs, chooses, measures, writes and reads back."""

import json
from dataclasses import replace
from pathlib import Path

import compare
import numpy as np
import pytest
import torch
from experiments.compare.cifar10_c import RECREATED, corrupt
from experiments.compare.options import parse_compare
from experiments.harness.run_store import RunStore
from experiments.harness.runs.measures import common_start, explored, modes
from experiments.harness.runs.runner import Runs
from safetensors.torch import load_file

from learned_samplers import diagnostics, metrics
from meta_tasks.random_streams import generator
from tests.tools.compare_cases import SMALL, TINY, cells, numbers, read

EVERYTHING = ("SGHMC", "L2E", "AdamEnsemble", "SGD")
BUDGETS = ("40", "80")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One comparison at two budgets with all that can be measured, and the arguments that made it."""
    out = tmp_path_factory.mktemp("whole")
    np.save(out / "reference.npy", np.full((899, 10), 0.1))
    arguments = [*TINY, *SMALL, "--num-samples", "8", "--sampler", *EVERYTHING, "--budgets", "80", "40"]
    arguments += ["--seeds", "2", "--keep", "1", "--corruptions", "30", "--convergence", "--ood", "photos", "digits"]
    arguments += ["--reference", str(out / "reference.npy"), "--out", str(out)]
    threads = torch.get_num_threads()
    compare.main(arguments)
    torch.set_num_threads(threads)
    return out, arguments


@pytest.fixture(scope="module")
def chain(whole):
    """SGHMC's first run at 40 gradients, its samples, the data and the settings."""
    out, arguments = whole
    options = parse_compare(arguments)
    data, _ = options.load()
    result = read(out / numbers(out)["40"]["SGHMC"]["runs"][0]["file"])
    return result, Runs(data, {}, RunStore(out / "steps_40")).samples(result, options.settings), data, options.settings


def part_of(table, budget, heading):
    """A budget's table whose header holds this heading, and its first header line."""
    part = table[table.index(f"### {budget} gradients") :]
    return part, next(line for line in part.splitlines() if line.startswith("| method") and heading in line)


def test_every_method_gets_the_same_gradients_and_leaves_its_files(whole):
    out, _ = whole
    assert tuple(numbers(out)) == BUDGETS, "from the smallest budget to the largest"
    for budget, content in numbers(out).items():
        assert list(content) == list(EVERYTHING)
        for name, method in content.items():
            assert [entry["gradients"] for entry in method["runs"]] == [int(budget)] * 2
            assert [entry["seed"] for entry in method["runs"]] == [0, 1]
            assert all((out / entry["file"]).is_file() for entry in method["runs"])
            samples = {"SGD": 1, "AdamEnsemble": 2}.get(name, 8)
            assert [entry["num_samples"] for entry in method["runs"]] == [samples] * 2
        for figure in ("figure1", "figure2"):
            assert (out / f"{figure}_{budget}.png").read_bytes().startswith(b"\x89PNG")


def test_the_setting_with_the_lowest_validation_nll_is_taken_and_goes_on_to_the_larger_budget(whole):
    small, large = (content for content in numbers(whole[0]).values())
    for name in EVERYTHING:
        assert len(small[name]["tuning"]) == 2
        best = min(small[name]["tuning"], key=lambda trial: trial["score"])
        assert {key: small[name][key] for key in ("lr", "also")} == {key: best[key] for key in ("lr", "also")}
        assert [trial["lr"] for trial in large[name]["tuning"]] == [best["lr"]]


def test_runs_that_only_tune_never_see_the_test_images(whole):
    out, _ = whole
    for budget, content in numbers(out).items():
        final = {entry["file"] for method in content.values() for entry in method["runs"]}
        for path in (out / f"steps_{budget}" / "runs").glob("*.json"):
            scores = json.loads(path.read_text())["result"]["scores"]
            assert bool(scores) == (f"steps_{budget}/runs/{path.name}" in final), path.name


def test_the_tables_say_what_the_json_says(whole):
    out, _ = whole
    table = (out / "table.md").read_text()
    headings = (("accuracy", "accuracy"), ("nll", "NLL"), ("ece", "ECE"), ("brier", "Brier"), ("kld", "KLD"))
    for budget, content in numbers(out).items():
        methods = content
        first = [run["nll"] for run in methods["SGHMC"]["runs"]]
        for name, method in methods.items():
            for key, column in headings:
                values = [entry[key] for entry in method["runs"] if key in entry]
                text = f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}" if values else "–"
                assert cells(table, f"### {budget} gradients", name, column) == text
            part, header = part_of(table, budget, "tries")
            nlls = [run["nll"] for run in method["runs"]]
            differences = np.subtract(nlls, first)
            error = differences.std(ddof=1) / 2**0.5
            for column, text in {
                "tries": "2" if budget == "40" else "1",
                "median NLL": f"{np.median(nlls):.4f}",
                "worst NLL": f"{max(nlls):.4f}",
                "difference": "–" if name == "SGHMC" else f"{differences.mean():.4f} ± {error:.4f}",
            }.items():
                assert cells(part, header, name, column) == text, column
            barriers = [run.get("barrier") for run in method["runs"]]
            part, header = part_of(table, budget, "barrier")
            text = "–" if barriers[0] is None else f"{barriers[0]:.4f}"
            assert barriers[1] is None, "of rows that are tuned it is measured of the first seed"
            assert cells(part, header, name, "barrier [nats]") == text


def test_the_numbers_of_a_run_are_those_of_its_samples(chain):
    result, samples, data, settings = chain
    single = samples.predict_samples(data.test_x)
    wanted = metrics.summary(single.mean(0), data.test_y)
    assert {key: result.scores[key] for key in wanted} == pytest.approx(wanted, rel=1e-4)
    assert result.pairwise_kld == pytest.approx(metrics.pairwise_kld(single), rel=1e-4)
    for name in ("accuracy", "nll", "ece", "brier"):
        wanted = [getattr(metrics, name)(single[: count + 1].mean(0), data.test_y) for count in range(8)]
        assert result.curves[name] == pytest.approx(wanted, rel=1e-4)
        assert result.curves[name][-1] == pytest.approx(result.scores[name])
    wanted = [metrics.pairwise_kld(single[:count]) for count in range(2, 9)]
    assert result.curves["kld"] == pytest.approx(wanted, rel=1e-4)
    start = common_start(settings, data, result.seed, independent=False)
    assert result.modes == modes(explored(samples, data, start, settings))
    assert result.ess_per_second == result.ess / result.seconds
    ends = [metrics.nll(single_probs, data.val_y) for single_probs in samples.predict_samples(data.val_x)]
    lines = result.modes["lines"]
    assert lines["pairs"] == [[i, j] for i in range(8) for j in range(i + 1, 8)]
    for (i, j), losses in zip(lines["pairs"], lines["losses"]):
        assert [losses[0], losses[-1]] == pytest.approx([ends[i], ends[j]], rel=1e-4)


def test_out_of_distribution_scores_and_distances_to_a_reference(whole):
    out, _ = whole
    for method in numbers(out)["40"].values():
        for run in method["runs"]:
            saved = load_file(out / f"steps_40/predictions/{Path(run['file']).stem}.safetensors")
            assert run["AUROC photos"] == pytest.approx(metrics.ood_auroc(saved["test"], saved["ood_photos"]))
            p = saved["ood_photos"].double().clamp_min(1e-30)
            entropy = float(-(p * p.log()).sum(1).mean())
            assert run["entropy photos [nats]"] == pytest.approx(entropy, rel=1e-5)
            assert run["AUROC digits"] == pytest.approx(0.5, abs=1e-3), "the test images themselves"
            distance = 0.5 * (saved["test"] - 0.1).abs().sum(1).mean().item()
            assert run["total_variation"] == pytest.approx(distance, rel=1e-4)
    table = (out / "table.md").read_text()
    assert all(heading in table for heading in ("AUROC photos", "entropy digits [nats]", "total variation"))


def test_corruptions_are_scored_at_every_severity_and_averaged_in_tables(whole, chain):
    out, _ = whole
    result, samples, data, _ = chain
    assert result.corruptions["images"] == 30
    assert set(result.corruptions["scores"]) == {"none", *RECREATED}
    order = torch.randperm(len(data.test_y), generator=generator(0, "corrupted images"))[:30].sort().values
    x, y = data.test_x[order], data.test_y[order]
    for name in ("fog", "pixelate"):
        for severity in (1, 5):
            p = samples.predict(corrupt(x, name, severity))
            for key in ("accuracy", "nll", "ece"):
                value = result.corruptions["scores"][name][key][severity - 1]
                assert value == pytest.approx(getattr(metrics, key)(p, y), rel=1e-4), (name, severity, key)
    assert result.corruptions["scores"]["none"]["nll"] == pytest.approx([metrics.nll(samples.predict(x), y)], rel=1e-4)
    methods, table = numbers(out)["40"], (out / "table.md").read_text()
    scores = [read(out / run["file"]).corruptions["scores"] for run in methods["SGD"]["runs"]]
    worst = [np.mean([score[name]["accuracy"][4] for name in RECREATED]) for score in scores]
    part, header = part_of(table, "40", "accuracy at 5")
    assert cells(part, header, "SGD", "accuracy at 5") == f"{np.mean(worst):.3f} ± {np.std(worst, ddof=1):.3f}"


def test_convergence_is_that_of_the_chain_layer_by_layer(whole, chain):
    out, _ = whole
    result, samples, _, _ = chain
    assert result.converged["all"] == diagnostics.converged_share(samples)
    assert set(result.converged) == {"all", *samples[0]}
    for name in samples[0]:
        assert result.converged[name] == diagnostics.converged_share(samples.to_arviz(parameters=[name]))
    methods, table = numbers(out)["40"], (out / "table.md").read_text()
    assert "converged" not in methods["SGD"]["runs"][0], "a single network is no chain"
    both = [read(out / run["file"]).converged for run in methods["SGHMC"]["runs"]]
    assert [run["converged"] for run in methods["SGHMC"]["runs"]] == [r_hat["all"] for r_hat in both]
    header, _, first, *_ = table[table.index("| cR̂ < 1.1 of the layer") :].splitlines()
    chains = [cell.strip().partition(" ")[0] for cell in header.split("|")[2:-1]]
    assert chains == ["SGHMC", "L2E"]
    assert first.split("|")[2].strip() == f"{np.mean([r_hat[next(iter(samples[0]))] for r_hat in both]):.3f}"


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_command_goes_on_and_a_finished_one_repeats_nothing(whole):
    out, arguments = whole
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("steps_*/runs/*.json")}
    before = numbers(out)
    gone = next(path for path in stamps if path.parts[-3] == "steps_80" and path.name.startswith("SGD"))
    gone.unlink()
    compare.main(arguments)
    again = {path for path in out.glob("steps_*/runs/*.json") if stamps.get(path) != path.stat().st_mtime_ns}
    assert again == {gone}, "only the run that was missing is repeated"
    del before["80"]["SGD"]
    assert all(numbers(out)["80"][name] == numbers_before for name, numbers_before in before["80"].items())


@pytest.mark.usefixtures("undrawn")
def test_what_is_asked_for_later_is_measured_of_the_runs_that_are_there_and_of_all_seeds_or_none(tmp_path):
    arguments = [*TINY, *SMALL, "--num-samples", "8", "--sampler", "SGHMC", "--budgets", "20", "--out", str(tmp_path)]
    headings = ("cR̂ < 1.1 |", "of the layer", "accuracy at 5")

    def measured(*more):
        compare.main([*arguments, *more])
        return read(tmp_path / numbers(tmp_path)["20"]["SGHMC"]["runs"][0]["file"])

    result = measured("--seeds", "1")
    assert result.corruptions is None
    assert result.converged is None
    for count in (9, 7):
        again = measured("--seeds", "1", "--corruptions", str(count), "--convergence")
        assert (again.seconds, again.corruptions["images"]) == (result.seconds, count)
        assert set(again.corruptions["scores"]) == {"none", *RECREATED}
        assert all(heading in (tmp_path / "table.md").read_text() for heading in headings)
    measured("--seeds", "2")
    assert not any(heading in (tmp_path / "table.md").read_text() for heading in headings)
    assert "converged" not in numbers(tmp_path)["20"]["SGHMC"]["runs"][0]


@pytest.mark.usefixtures("undrawn")
def test_a_method_that_diverges_everywhere_costs_only_its_row(tmp_path, monkeypatch):
    tried, lost, run = [], {"SGLD"}, Runs.run

    def diverging(self, settings, method, lr, seed, *names, test):
        tried.append((method, settings.steps, lr))
        result = run(self, settings, method, lr, seed, *names, test=test)
        return replace(result, diverged="so", validation_nll=None) if method in lost else result

    monkeypatch.setattr(Runs, "run", diverging)
    arguments = [*TINY, *SMALL, "--sampler", "SGLD", "SGHMC", "--budgets", "20", "40", "--seeds", "2"]
    compare.main([*arguments, "--out", str(tmp_path / "one")])
    assert {budget: list(rows) for budget, rows in numbers(tmp_path / "one").items()} == {
        "20": ["SGHMC"],
        "40": ["SGHMC"],
    }
    table = (tmp_path / "one" / "table.md").read_text()
    why = "SGLD has no row, it diverged at every learning rate of [0.05, 0.1]"
    assert f"- 20 gradients: {why}\n- 40 gradients: {why}, at 20 gradients" in table
    # At a further budget it does not get its tries once more.
    assert [steps for method, steps, _ in tried if method == "SGLD"] == [20, 20]
    lost.add("SGHMC")
    with pytest.raises(SystemExit, match=r"20 gradients, SGLD: it diverged .*; 20 gradients, SGHMC: it diverged"):
        compare.main([*arguments, "--out", str(tmp_path / "none")])
