"""tools/compare.py on the embedded digits with tiny budgets: what it runs, chooses, writes, reads back and refuses."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import compare
import numpy as np
import pytest
import torch
from experiments.common.run_store import RunStore
from experiments.images.comparison import Comparison
from experiments.images.measures import modes
from experiments.images.options import parse_compare
from experiments.images.presets import PRESETS
from experiments.images.result import Result
from experiments.images.runner import ImageRuns
from experiments.images.settings import Settings
from safetensors.torch import load_file
from tqdm import tqdm

from learned_samplers import metrics
from meta_tasks.networks import architectures
from meta_tasks.tasks import FAMILIES

ROOT = Path(__file__).parents[2]
NETWORK = ["--model", "mlp", "--hidden", "8", "--limit", "320", "--batch-size", "32", "--num-samples", "4"]
TINY = [*NETWORK, "--cycles", "2", "--temperature", "0.1", "--ensemble-size", "2", "--burn-in", "0.5"]
SMALL = ["--grid", "2", "--tries", "2", "--tune-seeds", "1", "--extensions", "0", "--exploration-ratios", "0.8"]
EVERYTHING = ("SGHMC", "L2E", "KineticL2E", "MetaSGMCMC", "AdamAverage", "AdamEnsemble", "SGD")


@pytest.fixture(autouse=True)
def _restore_threads():
    """The script sets torch's number of threads for the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, learned_weights):
    """One comparison at two budgets, and the arguments that made it."""
    out = tmp_path_factory.mktemp("whole")
    networks = ["--kinetic-l2e-network", learned_weights["kinetic_l2e_network"]]
    networks += ["--meta-sgmcmc-network", learned_weights["meta_sgmcmc_network"]]
    arguments = [*TINY, *SMALL, *networks, "--sampler", *EVERYTHING, "--budgets", "40", "20", "--seeds", "2"]
    arguments += ["--keep", "1", "--out", str(out)]
    threads = torch.get_num_threads()
    compare.main(arguments)
    torch.set_num_threads(threads)
    return out, arguments


def numbers(out: Path) -> dict:
    return json.loads((out / "results.json").read_text())["budgets"]


def read(path: Path) -> Result:
    """A run on disk."""
    record = json.loads(path.read_text())
    return Result(**record["made_of"]["settings"], **record["result"])


def cells(table: str, heading: str, method: str, column: str) -> str:
    """A cell of table.md, in the first table after a heading."""
    lines = table[table.index(heading) :].splitlines()
    header = next(line for line in lines if line.startswith("| method"))
    row = next(line for line in lines if line.startswith(f"| {method} "))
    names = [cell.strip() for cell in header.split("|")]
    return row.split("|")[names.index(column)].strip()


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
        for figure in ("figure1", "figure2", "temperatures", "validation"):
            assert (out / f"{figure}_{budget}.png").read_bytes().startswith(b"\x89PNG")
    assert list(numbers(out)) == ["20", "40"], "from the smallest budget to the largest"


def test_the_setting_with_the_lowest_validation_nll_is_taken(whole):
    out, _ = whole
    for content in numbers(out).values():
        for method in content["methods"].values():
            best = min(method["tuning"], key=lambda trial: trial["validation_nll"])
            assert {name: method[name] for name in best if name not in ("validation_nll", "seeds")} == {
                name: best[name] for name in best if name not in ("validation_nll", "seeds")
            }


def test_a_larger_budget_tries_only_the_best_settings(whole):
    small, large = numbers(whole[0]).values()
    for name in EVERYTHING:
        assert len(small["methods"][name]["tuning"]) == 2
        assert [trial["lr"] for trial in large["methods"][name]["tuning"]] == [small["methods"][name]["lr"]]


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
                values = [each[key] for each in method["runs"] if each[key] is not None]
                text = f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}" if values else "–"
                assert cells(table, f"### {budget} gradients", method["label"], column) == text
                if values:
                    assert method["mean"][key] == pytest.approx(np.mean(values))
                    assert method["std"][key] == pytest.approx(np.std(values, ddof=1))
            barrier = method["health"]["mean_barrier"]
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
    samples = ImageRuns(data, {}, RunStore(out / "steps_40")).samples(result, options.settings)
    single = samples.predict_samples(data.test_x)
    assert result.scores == pytest.approx(metrics.summary(single.mean(0), data.test_y), rel=1e-4)
    assert result.pairwise_kld == pytest.approx(metrics.pairwise_kld(single), rel=1e-4)
    for name in ("accuracy", "nll", "ece", "brier"):
        wanted = [getattr(metrics, name)(single[: count + 1].mean(0), data.test_y) for count in range(4)]
        assert getattr(result, f"{name}_curve") == pytest.approx(wanted, rel=1e-4)
        assert getattr(result, f"{name}_curve")[-1] == pytest.approx(result.scores[name])
    assert result.kld_curve == pytest.approx([metrics.pairwise_kld(single[:count]) for count in (2, 3, 4)], rel=1e-4)
    assert result.modes == modes(samples, data)
    assert result.ess_per_second == result.ess / result.seconds
    ends = [metrics.nll(single_probs, data.val_y) for single_probs in samples.predict_samples(data.val_x)]
    lines = np.array(result.modes["validation_nll"])
    np.testing.assert_allclose(lines[:, 0], ends[:-1], rtol=1e-4)
    np.testing.assert_allclose(lines[:, -1], ends[1:], rtol=1e-4)


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
    from experiments.images import runner

    train = runner.ImageRuns._train

    def timed(self, result, settings, steps, *arguments):
        train(self, result, settings, steps, *arguments)
        result.seconds = steps * {"SGHMC": 0.02, "SGD": 0.01}[result.method]

    monkeypatch.setattr(runner.ImageRuns, "_train", timed)
    reference = torch.full((899, 10), 0.1)
    np.save(tmp_path / "reference.npy", reference.numpy())
    arguments = [*TINY, *SMALL, "--sampler", "SGHMC", "SGD", "--budgets", "40", "--seeds", "2", "--equal-time"]
    arguments += ["--ood", "photos", "digits", "--reference", str(tmp_path / "reference.npy"), "--out", str(tmp_path)]
    compare.main(arguments)
    methods = numbers(tmp_path)["40"]["methods"]
    assert [methods[name]["equal_time"]["gradients"] for name in ("SGHMC", "SGD")] == [40, 80]
    assert methods["SGD"]["equal_time"]["seconds"] == pytest.approx(methods["SGHMC"]["equal_time"]["seconds"])
    assert methods["SGHMC"]["equal_time"]["nll"] == [run["nll"] for run in methods["SGHMC"]["runs"]]
    assert methods["SGD"]["equal_time"]["nll"] != [run["nll"] for run in methods["SGD"]["runs"]]
    for method in methods.values():
        for number, run in enumerate(method["runs"]):
            stem = Path(run["file"]).stem
            saved = load_file(tmp_path / f"steps_40/predictions/{stem}.safetensors")
            scores = method["ood"]["photos"]
            assert scores["auroc"][number] == pytest.approx(metrics.ood_auroc(saved["test"], saved["ood_photos"]))
            p = saved["ood_photos"].double().clamp_min(1e-30)
            assert scores["mean_entropy"][number] == pytest.approx(float(-(p * p.log()).sum(1).mean()), rel=1e-5)
            assert method["ood"]["digits"]["auroc"][number] == pytest.approx(0.5, abs=1e-3), (
                "the test images themselves"
            )
            distance = 0.5 * (saved["test"] - 0.1).abs().sum(1).mean().item()
            assert method["total_variation"][number] == pytest.approx(distance, rel=1e-4)
    table = (tmp_path / "table.md").read_text()
    for heading in ("AUROC photos", "entropy digits [nats]", "total variation", "NLL at equal time"):
        assert heading in table


def test_a_run_keeps_the_validation_scores_of_its_weights(whole):
    out, _ = whole
    file = numbers(out)["40"]["methods"]["MetaSGMCMC"]["runs"][0]["file"]
    curve = read(out / file).validation_curve
    assert [point[0] for point in curve] == [20, 40]
    assert all(loss > 0 and 0 <= accuracy <= 1 for _, loss, accuracy in curve)


def test_labels_choose_the_images(tmp_path):
    options = parse_compare([*TINY, "--sampler", "SGHMC", "--labels", "7", "3", "--limit", "None", "--budgets", "40"])
    (data, _), (everything, _) = options.load(), parse_compare([*TINY, "--limit", "None"]).load()
    assert (data.num_classes, data.num_data) == (2, int(((everything.train_y == 7) | (everything.train_y == 3)).sum()))
    assert torch.equal(data.test_x[data.test_y == 0], everything.test_x[everything.test_y == 7])
    assert torch.equal(data.val_x[data.val_y == 1], everything.val_x[everything.val_y == 3])


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


def test_an_interrupt_says_that_finished_runs_are_kept(tmp_path):
    command = [sys.executable, "tools/compare.py", *TINY, *SMALL, "--sampler", "SGD", "--budgets", "100000"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # A shell that runs in the background may have left the signal ignored.
    done = subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "steps_100000" / "tensorboard").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    done.send_signal(signal.SIGINT)
    _, said = done.communicate(timeout=120)
    assert done.returncode == 1
    assert f"interrupted; finished runs are kept in {tmp_path}, the same command goes on from there" in said


def test_a_comparison_extends_and_halves(tmp_path, monkeypatch):
    """The whole of `Comparison.tune`, with the validation NLL a known function of learning rate and temperature."""
    options = parse_compare(
        [
            *TINY,
            "--sampler",
            "PSGLD",
            "--budgets",
            "10",
            "20",
            "40",
            "--grid",
            "3",
            "--tries",
            "6",
            "--keep",
            "2",
            "--extensions",
            "2",
            "--tune-seeds",
            "2",
            "--temperatures",
            "1",
            "0.1",
            "--out",
            str(tmp_path),
        ]
    )
    data, _ = options.load()
    calls = []

    def fake(self, settings, method, lr, seed, *, bar, **_):
        calls.append((settings.steps, lr, settings.temperature, seed))
        bar.update(settings.steps)
        # The best rate goes down as the budget grows; the cold posterior is better at all of them.
        nll = abs(math.log(lr * settings.steps / 0.02)) + settings.temperature + 0.01 * seed
        return Result(method, lr, seed, {}, validation_nll=nll)

    monkeypatch.setattr(ImageRuns, "run", fake)
    with tqdm(disable=True) as bar:
        comparison = Comparison(options, data, bar)
        assert bar.total == ((6 + 2) * 2 + 3) * 10 + ((2 + 2) * 2 + 3) * (20 + 40), "three final runs at each budget"
        chosen = [comparison.tune("PSGLD", budget).chosen for budget in (10, 20, 40)]
    assert [setting.lr for setting in chosen] == [0.002, 0.001, 0.0005]
    assert {setting.also for setting in chosen} == {(("temperature", 0.1),)}
    for budget, tries in ((10, 8), (20, 4), (40, 4)):
        of_budget = [call for call in calls if call[0] == budget]
        assert len(of_budget) == len(set(of_budget)) == 2 * tries
        assert {seed for *_, seed in of_budget} == {1000, 1001}, "not the seeds of the final runs"


def test_a_method_whose_settings_diverge_tries_as_many_as_the_others(tmp_path, monkeypatch):
    options = parse_compare(
        [
            *TINY,
            "--sampler",
            "PSGLD",
            "SGD",
            "--budgets",
            "10",
            "20",
            "--tries",
            "4",
            "--keep",
            "3",
            "--extensions",
            "1",
            "--tune-seeds",
            "1",
            "--out",
            str(tmp_path),
        ]
    )
    (data, _), tried = options.load(), []

    def fake(self, settings, method, lr, seed, *, bar, **_):
        tried.append((method, settings.steps))
        broken = method == "PSGLD" and tried.count((method, 10)) > 1 and settings.steps == 10
        return Result(method, lr, seed, {}, validation_nll=None if broken else lr, diverged="so" if broken else None)

    monkeypatch.setattr(ImageRuns, "run", fake)
    with tqdm(disable=True) as bar:
        comparison = Comparison(options, data, bar)
        for budget in (10, 20):
            for method in ("PSGLD", "SGD"):
                comparison.tune(method, budget)
    assert {each: tried.count(each) for each in tried} == {
        (method, budget): tries for method in ("PSGLD", "SGD") for budget, tries in ((10, 5), (20, 4))
    }


def test_a_dry_run_says_what_it_will_cost_and_leaves_nothing(tmp_path, capsys):
    arguments = [*TINY, "--sampler", "SGHMC", "MCLMC", "KineticL2E", "IVON", "--budgets", "40", "200", "--tries", "6"]
    arguments += ["--extensions", "1", "--keep", "2", "--tune-seeds", "2", "--seeds", "3"]
    compare.main([*arguments, "--dry-run", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    gradients = 40 * (7 * 2 + 3) + 200 * (3 * 2 + 3)
    for name in ("SGHMC", "MCLMC", "KineticL2E", "IVON"):
        assert cells(printed, "| method", name, "gradients") == str(gradients)
        assert float(cells(printed, "| method", name, "ms/gradient")) > 0
    # 64 inputs, 8 hidden units, 10 classes: two products of 32 images forward; backward both weights' and one input's.
    flops = 2 * 32 * (2 * 64 * 8 + 3 * 8 * 10)
    assert f"{4 * gradients} gradients of {flops / 1e9:.3g} GFLOP" in printed
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit, match="HMC takes the whole training set"):
        compare.main([*TINY, "--sampler", "HMC", "--epochs", "200", "--dry-run"])


# --- options ------------------------------------------------------------------------------------------------------


def test_a_preset_sets_the_defaults_and_options_override_it():
    for arguments in (["--preset", "cifar10"], ["--preset=cifar10"]):
        options = parse_compare(arguments)
        assert options.settings == PRESETS["cifar10"][0]
        assert options.budgets == (1000, 5000)
        assert options.folder() == Path("runs/compare_cifar10")
    options = parse_compare(["--depth", "1", "--preset", "cifar10", "--budgets", "7", "--seeds", "1"])
    assert options.settings == replace(PRESETS["cifar10"][0], depth=1)
    assert (options.budgets, options.seeds) == ((7,), 1)
    assert parse_compare([]).settings == Settings()


def test_the_presets_are_what_they_are_for():
    settings = PRESETS["digits"][0]
    for family in (make() for make in FAMILIES.values()):
        mine = {"hidden": settings.hidden, "activation": settings.activation}
        assert (settings.model, mine) not in family.architectures
        assert "cifar10" not in family.dataset_names
    for settings, budgets in PRESETS.values():
        assert budgets[1] == (10 if settings.dataset == "mnist" else 4 if settings.width else 5) * budgets[0]
        assert architectures.build(settings.model, (1, 16, 16), 10, **settings.network_options())
        assert settings.num_samples == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "imagenet"], "imagenet"),
        (["--sampler", "SGD", "sgd"], "sampler must hold names, each once"),
        (["--grid", "0"], "grid must be at least 1, got 0"),
        (["--keep", "0"], "keep must be at least 1, got 0"),
        (["--validations", "0"], "validations must be at least 1, got 0"),
        (["--labels", "3"], "classes must be two or more different labels of digits in [0, 10), got (3,)"),
        (["--tune-seeds", "0"], "tune_seeds must be at least 1, got 0"),
        (["--seeds", "0"], "seeds must be at least 1, got 0"),
        (["--division", "-1"], "division must not be negative, got -1"),
        (["--extensions", "-1"], "extensions must not be negative, got -1"),
        (["--momentum-decays", "0"], "momentum_decays must lie in (0, 1], got (0.0,)"),
        (["--weight-decays", "-1"], "weight_decays must not be negative, got (-1.0,)"),
        (["--temperatures", "-1"], "temperatures must not be negative, got (-1.0,)"),
        (["--exploration-ratios", "1"], "exploration_ratios must lie in [0, 1), got"),
        (["--tries", "0"], "tries must be at least 1, got 0"),
        (["--sampler", "SGLRW", "--temperatures", "0"], "temperature must be greater than 0, got 0.0"),
        (["--budgets", "5", "5"], "budgets must be positive and differ, got (5, 5)"),
        (["--budgets", "5", "--steps", "5"], "budgets=(5,) and steps=5 exclude each other"),
        (["--ood", "photo"], "ood='photo' is unknown"),
        (["--ood", "mnist", "mnist"], "ood must hold names, each once, got ('mnist', 'mnist')"),
        (["--reference", "nowhere.npy"], "nowhere.npy"),
        (["--validation", "0"], "tuning needs validation images, which digits lacks"),
        (["--budgets", "4", "400"], "num_samples=30 exceeds the steps after burn-in"),
        (["--sampler", "L2E", "--l2e-network", "nowhere.safetensors"], "which L2E needs: no such weight file"),
        (["--sampler", "L2EPaper", "--l2e-paper-network", "none"], "l2e_paper_network='none', which L2EPaper"),
    ],
)
def test_wrong_options_are_explained_before_anything_is_trained(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        compare.main([*arguments, "--out", str(tmp_path / "out")])
    assert caught.value.code
    said = " ".join(f"{caught.value.code} {capsys.readouterr().err}".replace("│", " ").split())
    assert message in said
    assert not (tmp_path / "out").exists()


def test_help_explains_the_tuning(capsys):
    with pytest.raises(SystemExit):
        compare.main(["--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "successive halving" in text
    for flag in ("--preset", "--budgets", "--keep", "--l2e-network", "--momentum-decays", "--extensions"):
        assert flag in text
