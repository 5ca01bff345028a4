"""tools/compare.py on the embedded digits with tiny budgets: what it runs, chooses, writes and reads back."""

import json
from pathlib import Path

import compare
import numpy as np
import pytest
import torch
from experiments.compare.comparison import Comparison
from experiments.compare.options import parse_compare
from experiments.harness.run_store import RunStore
from experiments.harness.runs.measures import common_start, explored, modes
from experiments.harness.runs.runner import Runs
from safetensors.torch import load_file

from learned_samplers import metrics
from tests.tools.compare_cases import SMALL, TINY, cells, numbers, read

EVERYTHING = ("SGHMC", "L2E", "KineticL2E", "MetaSGMCMC", "AdamAverage", "AdamEnsemble", "SGD")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, learned_weights):
    """One comparison at two budgets, and the arguments that made it."""
    out = tmp_path_factory.mktemp("whole")
    networks = ["--networks", *(f"{name}={learned_weights[name]}" for name in ("KineticL2E", "MetaSGMCMC"))]
    arguments = [*TINY, *SMALL, *networks, "--sampler", *EVERYTHING, "--budgets", "40", "20", "--seeds", "2"]
    arguments += ["--keep", "1", "--out", str(out)]
    threads = torch.get_num_threads()
    compare.main(arguments)
    torch.set_num_threads(threads)
    return out, arguments


def test_every_method_gets_the_same_gradients_and_leaves_its_files(whole):
    out, _ = whole
    for budget, content in numbers(out).items():
        assert list(content["methods"]) == list(EVERYTHING)
        for name, method in content["methods"].items():
            assert [each["gradient_evaluations"] for each in method["runs"]] == [int(budget)] * 2
            assert [each["seed"] for each in method["runs"]] == [0, 1]
            assert all((out / each["file"]).is_file() for each in method["runs"])
            samples = {"SGD": 1, "AdamEnsemble": 2}.get(name, 4)
            assert [each["num_samples"] for each in method["runs"]] == [samples] * 2
        for figure in ("figure1", "figure2", "validation", "movement"):
            assert (out / f"{figure}_{budget}.png").read_bytes().startswith(b"\x89PNG")
    assert list(numbers(out)) == ["20", "40"], "from the smallest budget to the largest"


def test_the_setting_with_the_lowest_validation_nll_is_taken_and_goes_on_to_the_larger_budget(whole):
    small, large = (content["methods"] for content in numbers(whole[0]).values())
    for name in EVERYTHING:
        assert len(small[name]["tuning"]) == 2
        best = min(small[name]["tuning"], key=lambda trial: trial["validation_nll"])
        del best["validation_nll"], best["seeds"]
        assert {key: small[name][key] for key in best} == best
        assert [trial["lr"] for trial in large[name]["tuning"]] == [best["lr"]]


def test_runs_that_only_tune_never_see_the_test_images(whole):
    out, _ = whole
    for budget, content in numbers(out).items():
        final = {each["file"] for method in content["methods"].values() for each in method["runs"]}
        for path in (out / f"steps_{budget}" / "runs").glob("*.json"):
            scores = json.loads(path.read_text())["result"]["scores"]
            assert bool(scores) == (f"steps_{budget}/runs/{path.name}" in final), path.name


def test_the_table_says_what_the_json_says(whole):
    out, _ = whole
    table = (out / "table.md").read_text()
    headings = (("accuracy", "accuracy"), ("nll", "NLL"), ("ece", "ECE"), ("brier", "Brier"), ("kld", "KLD"))
    for budget, content in numbers(out).items():
        for method in content["methods"].values():
            for key, column in headings:
                values = [each[key] for each in method["runs"] if key in each]
                text = f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}" if values else "–"
                assert cells(table, f"### {budget} gradients", method["label"], column) == text
                if values:
                    assert method["mean"][key] == pytest.approx(np.mean(values))
                    assert method["std"][key] == pytest.approx(np.std(values, ddof=1))
            barrier = (method["health"]["modes"] or {}).get("barrier")
            text = "–" if barrier is None else f"{barrier:.4f}"
            part = table[table.index(f"### {budget} gradients") :]
            second = next(line for line in part.splitlines() if "barrier" in line)
            assert cells(part, second, method["label"], "barrier [nats]") == text


def test_the_numbers_of_a_run_are_those_of_its_samples(whole):
    out, arguments = whole
    options = parse_compare(arguments)
    data, _ = options.load()
    file = numbers(out)["40"]["methods"]["SGHMC"]["runs"][0]["file"]
    result = read(out / file)
    samples = Runs(data, {}, RunStore(out / "steps_40")).samples(result, options.settings)
    single = samples.predict_samples(data.test_x)
    assert result.scores == pytest.approx(metrics.summary(single.mean(0), data.test_y), rel=1e-4)
    assert result.pairwise_kld == pytest.approx(metrics.pairwise_kld(single), rel=1e-4)
    for name in ("accuracy", "nll", "ece", "brier"):
        wanted = [getattr(metrics, name)(single[: count + 1].mean(0), data.test_y) for count in range(4)]
        assert result.curves[name] == pytest.approx(wanted, rel=1e-4)
        assert result.curves[name][-1] == pytest.approx(result.scores[name])
    assert result.curves["kld"] == pytest.approx(
        [metrics.pairwise_kld(single[:count]) for count in (2, 3, 4)], rel=1e-4
    )
    start = common_start(options.settings, data, result.seed, independent=False)
    assert result.modes == modes(explored(samples, data, start))
    assert result.ess_per_second == result.ess / result.seconds
    ends = [metrics.nll(single_probs, data.val_y) for single_probs in samples.predict_samples(data.val_x)]
    lines = result.modes["lines"]
    assert lines["pairs"] == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    for (i, j), losses in zip(lines["pairs"], lines["losses"]):
        assert [losses[0], losses[-1]] == pytest.approx([ends[i], ends[j]], rel=1e-4)


def test_all_seeds_together_are_one_average(whole):
    """The third table: scores of the mean prediction over the seeds' runs, read from the predictions on disk."""
    out, _ = whole
    table = (out / "table.md").read_text()
    for budget, content in numbers(out).items():
        for name in ("SGHMC", "MetaSGMCMC"):
            files = [Path(each["file"]).stem for each in content["methods"][name]["runs"]]
            each = [load_file(out / f"steps_{budget}/predictions/{stem}.safetensors") for stem in files]
            mean = (each[0]["test"] + each[1]["test"]) / 2
            wanted = {**metrics.summary(mean, each[0]["test_labels"]), "chains": 2}
            assert content["methods"][name]["pooled"] == pytest.approx(wanted)
            assert wanted["nll"] < content["methods"][name]["mean"]["nll"], "the logarithm is concave"
            part = table[table.index(f"### {budget} gradients") :]
            third = next(line for line in part.splitlines() if line.startswith("| method") and "runs" in line)
            assert cells(part, third, content["methods"][name]["label"], "NLL") == f"{wanted['nll']:.4f}"


def test_the_second_table_pairs_the_seeds_and_counts_the_tries(whole):
    out, _ = whole
    table = (out / "table.md").read_text()
    for budget, content in numbers(out).items():
        methods = content["methods"]
        part = table[table.index(f"### {budget} gradients") :]
        second = next(line for line in part.splitlines() if line.startswith("| method") and "tries" in line)
        first = [run["nll"] for run in methods["SGHMC"]["runs"]]
        for name, method in methods.items():
            nlls = [run["nll"] for run in method["runs"]]
            assert cells(part, second, method["label"], "tries") == ("2" if budget == "20" else "1")
            assert cells(part, second, method["label"], "median NLL") == f"{np.median(nlls):.4f}"
            assert cells(part, second, method["label"], "worst NLL") == f"{max(nlls):.4f}"
            differences = np.subtract(nlls, first)
            text = "–" if name == "SGHMC" else f"{differences.mean():+.4f}"
            assert cells(part, second, method["label"], "difference") == text
            text = "–" if name == "SGHMC" else f"{differences.std(ddof=1) / 2**0.5:.4f}"
            assert cells(part, second, method["label"], "± seeds") == text


def test_equal_time_out_of_distribution_scores_and_a_reference(tmp_path, monkeypatch):
    """SGD is said to take half the seconds of SGHMC, so it gets twice its steps."""
    from experiments.harness.runs import runner

    train = runner.Runs._train

    def timed(self, result, settings, steps, *arguments):
        train(self, result, settings, steps, *arguments)
        result.seconds = steps * {"SGHMC": 0.02, "SGD": 0.01}[result.method]

    monkeypatch.setattr(runner.Runs, "_train", timed)
    reference = torch.full((899, 10), 0.1)
    np.save(tmp_path / "reference.npy", reference.numpy())
    arguments = [*TINY, *SMALL, "--sampler", "SGHMC", "SGD", "--budgets", "40", "--seeds", "2", "--equal-time"]
    arguments += ["--ood", "photos", "digits", "--reference", str(tmp_path / "reference.npy"), "--out", str(tmp_path)]
    compare.main(arguments)
    methods = numbers(tmp_path)["40"]["methods"]
    again = {name: methods[name]["equal_time"] for name in ("SGHMC", "SGD")}
    assert [[run["gradient_evaluations"] for run in again[name]] for name in again] == [[40, 40], [80, 80]]
    assert [run["seconds"] for run in again["SGD"]] == pytest.approx([run["seconds"] for run in again["SGHMC"]])
    assert again["SGHMC"] == methods["SGHMC"]["runs"]
    assert again["SGD"] != methods["SGD"]["runs"]
    for method in methods.values():
        for run in method["runs"]:
            stem = Path(run["file"]).stem
            saved = load_file(tmp_path / f"steps_40/predictions/{stem}.safetensors")
            scores = run["ood"]["photos"]
            assert scores["auroc"] == pytest.approx(metrics.ood_auroc(saved["test"], saved["ood_photos"]))
            p = saved["ood_photos"].double().clamp_min(1e-30)
            assert scores["mean_entropy"] == pytest.approx(float(-(p * p.log()).sum(1).mean()), rel=1e-5)
            assert run["ood"]["digits"]["auroc"] == pytest.approx(0.5, abs=1e-3), "the test images themselves"
            distance = 0.5 * (saved["test"] - 0.1).abs().sum(1).mean().item()
            assert run["total_variation"] == pytest.approx(distance, rel=1e-4)
        stems = [Path(run["file"]).stem for run in method["runs"]]
        mean = sum(load_file(tmp_path / f"steps_40/predictions/{stem}.safetensors")["test"] for stem in stems) / 2
        distance = 0.5 * (mean - 0.1).abs().sum(1).mean().item()
        assert method["pooled"]["total_variation"] == pytest.approx(distance, rel=1e-4), "of the average over seeds"
        assert distance < method["mean"]["total_variation"] + 1e-9, "the norm is convex"
        assert method["pooled"]["agreement"] == pytest.approx((mean.argmax(1) == 0).float().mean().item())
    table = (tmp_path / "table.md").read_text()
    for heading in ("AUROC photos", "entropy digits [nats]", "total variation", "NLL at equal time"):
        assert heading in table


def test_an_interrupted_command_goes_on_and_a_finished_one_repeats_nothing(whole, tmp_path):
    out, arguments = whole
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("steps_*/runs/*.json")}
    before = numbers(out)
    compare.main(arguments)
    assert {path: path.stat().st_mtime_ns for path in out.glob("steps_*/runs/*.json")} == stamps
    assert numbers(out) == before
    gone = next(path for path in stamps if path.parts[-3] == "steps_40" and path.name.startswith("SGD"))
    gone.unlink()
    compare.main(arguments)
    again = {path for path in out.glob("steps_*/runs/*.json") if stamps.get(path) != path.stat().st_mtime_ns}
    assert again == {gone}, "only the run that was missing is repeated"


def test_a_method_that_diverges_everywhere_costs_only_its_row(tmp_path, monkeypatch):
    tune = Comparison._tune
    why = "it diverged at every learning rate of [0.1]"

    def diverging(self, method, budget):
        if method in lost:
            raise RuntimeError(why)
        return tune(self, method, budget)

    monkeypatch.setattr(Comparison, "_tune", diverging)
    arguments = [*TINY, *SMALL, "--sampler", "SGLD", "SGHMC", "--budgets", "20", "--seeds", "2", "--equal-time"]
    lost = {"SGLD"}
    compare.main([*arguments, "--out", str(tmp_path / "one")])
    content = numbers(tmp_path / "one")["20"]
    assert list(content["methods"]) == ["SGHMC"]
    assert content["lost"] == {"SGLD": why}
    assert f"- **SGLD has no row**: {why}." in (tmp_path / "one" / "table.md").read_text()
    # At a further budget it does not get its tries once more.
    asked = []
    monkeypatch.setattr(Comparison, "_tune", lambda *each: asked.append(each[1:]) or diverging(*each))
    compare.main([*arguments, "--budgets", "20", "40", "--out", str(tmp_path / "two")])
    assert asked == [("SGLD", 20), ("SGHMC", 20), ("SGHMC", 40)]
    assert numbers(tmp_path / "two")["40"]["lost"] == {"SGLD": f"at 20 gradients {why}"}
    monkeypatch.setattr(Comparison, "_tune", diverging)
    lost = {"SGLD", "SGHMC"}
    with pytest.raises(SystemExit, match=r"20 gradients: SGLD: it diverged .*; SGHMC: it diverged"):
        compare.main([*arguments, "--out", str(tmp_path / "none")])
