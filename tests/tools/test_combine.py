"""tools/combine.py: one table of comparisons that were run apart, on the embedded digits with tiny budgets."""

import json
import shutil

import combine
import compare
import pytest
import torch

from tests.tools.compare_cases import SMALL, TINY, cells, numbers

# What the table calls L2E with its default weights.
NAMED = "L2E [l2e-damped]"


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """The same methods in one comparison, and each in its own; the folders by name."""
    out, threads = tmp_path_factory.mktemp("apart"), torch.get_num_threads()
    for name, methods in {"all": ["L2E", "SGHMC", "SGD"], "a": ["L2E"], "b": ["SGHMC"], "c": ["SGD"]}.items():
        if name != "all":  # its runs are kept, so that none is made again
            shutil.copytree(out / "all", out / name)
        compare.main([*TINY, *SMALL, "--steps", "40", "--seeds", "2", "--sampler", *methods, "--out", str(out / name)])
    torch.set_num_threads(threads)
    return out


def _of(folder):
    return numbers(folder)["40"]


def test_methods_run_apart_have_the_table_of_one_comparison(apart, tmp_path, capsys):
    combine.main([*(str(apart / name) for name in "abc"), "--out", str(tmp_path)])
    together, whole = _of(tmp_path), _of(apart / "all")
    assert list(whole["methods"]) == ["L2E", "SGHMC", "SGD"]
    assert list(together["methods"]) == [NAMED, "SGHMC", "SGD"]
    for name, method in zip(together["methods"], whole["methods"].values(), strict=True):
        for key in ("lr", "also_tuned", "pooled", "health", "median_nll", "collapsed", "tuning"):
            assert together["methods"][name][key] == method[key], (name, key)
        assert together["methods"][name]["mean"]["nll"] == method["mean"]["nll"]
    for name in ("SGHMC", "SGD"):
        ours, theirs = (each["methods"][name]["difference"] for each in (together, whole))
        assert (ours["mean"], ours["error"]) == pytest.approx((theirs["mean"], theirs["error"]))
        assert ours["image_error"] is None, "the predictions are not in the file"
    assert whole["verdict"]["image_error"] > 0
    assert (together["verdict"]["method"], whole["verdict"]["method"]) == (NAMED, "L2E")
    for key in ("rival", "difference", "error", "seeds"):
        assert together["verdict"][key] == pytest.approx(whole["verdict"][key])
    table = (tmp_path / "table.md").read_text()
    assert cells(table, "### 40", "SGHMC", "NLL") == cells(
        (apart / "all" / "table.md").read_text(), "### 40", "SGHMC", "NLL"
    )
    for name, label in {"a": NAMED, "b": "SGHMC", "c": "SGD"}.items():
        assert f"- {label}: `{json.loads((apart / name / 'results.json').read_text())['command']}`" in table
    assert "the best of 2 rivals" in table
    assert table.strip().splitlines()[-1] in capsys.readouterr().out


def test_what_was_combined_can_be_combined_again_and_files_stand_for_folders(apart, tmp_path):
    combine.main([str(apart / "b"), str(apart / "c" / "results.json"), "--out", str(tmp_path / "two")])
    combine.main([str(tmp_path / "two" / "results.json"), str(apart / "a"), "--out", str(tmp_path / "three")])
    found = _of(tmp_path / "three")
    assert list(found["methods"]) == ["SGHMC", "SGD", NAMED]
    assert found["verdict"]["method"] == NAMED
    assert found["methods"]["SGD"]["source"] == str(apart / "c" / "results.json"), "where it was made"


def _changed(apart, tmp_path, change):
    found = json.loads((apart / "b" / "results.json").read_text())
    change(found)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(found))
    return path


def _set(*keys, value):
    def change(found):
        for key in keys[:-1]:
            found = found[key]
        found[keys[-1]] = value

    return change


def _corruptions(images, source):
    def change(found):
        (method,) = found["budgets"]["40"]["methods"].values()
        scores = {key: [[0.5] * 6] for key in ("accuracy", "nll", "ece")}
        method["corruptions"] = {"images": images, "source": source, "by_severity": scores, "by_corruption": {}}

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("budgets", "40", "settings", "batch_size", value=16), "differ in batch_size: 16, 32"),
        (_set("budgets", "40", "data", value="others"), "differ in data: 'others', "),
        (_set("budgets", "40", "num_data", value=7), "differ in num_data: 7, "),
        (_set("budgets", "40", "reference", value="b"), "differ in reference: 'b', 'a'"),
        (_corruptions(7, "recreated"), r"differ in corrupted images: \(7, 'recreated'\), \(9, 'recreated'\)"),
        (_corruptions(9, "published"), r"differ in corrupted images: \(9, 'published'\), \(9, 'recreated'\)"),
        (_set("budgets", "40", "settings", "nothing", value=16), "is not that of a comparison"),
        (_set("budgets", value=[]), "is not that of a comparison"),
        (_set("budgets", "40", "methods", "SGHMC", "label", value=NAMED), r"L2E \[.*\] at 40 gradients is in"),
        (lambda found: found["budgets"]["40"]["methods"]["SGHMC"].pop("also_tuned"), "run its command once more"),
    ],
)
def test_what_does_not_belong_together_is_refused_and_nothing_written(apart, tmp_path, change, message):
    path = _changed(apart, tmp_path, change)
    first = json.loads((apart / "a" / "results.json").read_text())
    _corruptions(9, "recreated")(first)
    first["budgets"]["40"]["reference"] = "a"
    (tmp_path / "first.json").write_text(json.dumps(first))
    with pytest.raises(SystemExit, match=message):
        combine.main([str(tmp_path / "first.json"), str(path), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_the_reference_and_the_corrupted_images_of_one_are_those_of_the_table(apart, tmp_path):
    def change(found):
        _corruptions(9, "recreated")(found)
        found["budgets"]["40"]["reference"] = "a"

    def before(found):
        del found["budgets"]["40"]["reference"]

    (tmp_path / "c.json").write_text(_changed(apart, tmp_path, before).read_text())
    arguments = [str(tmp_path / "c.json"), str(apart / "a"), "--out", str(tmp_path / "two")]
    combine.main(arguments)
    assert _of(tmp_path / "two")["reference"] is None, "a file of before says none"
    combine.main([str(tmp_path / "two"), str(apart / "c"), "--out", str(tmp_path / "three")])
    arguments = [str(apart / "a"), str(_changed(apart, tmp_path, change)), "--out", str(tmp_path / "two")]
    combine.main(arguments)
    assert _of(tmp_path / "two")["reference"] == "a"
    assert "of 9 test images" in (tmp_path / "two" / "table.md").read_text()


def test_runs_at_equal_time_of_another_first_row_are_left_out(apart, tmp_path):
    alike = {"gradients": 30, "seconds": 1.0, "nll": [0.5, 0.5], "accuracy": [0.5, 0.5]}

    def with_time(name):
        found = json.loads((apart / name / "results.json").read_text())
        for method in found["budgets"]["40"]["methods"].values():
            method["equal_time"] = alike
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
        return str(tmp_path / f"{name}.json")

    combine.main([with_time("a"), with_time("b"), "--out", str(tmp_path / "two")])
    combine.main([str(tmp_path / "two"), with_time("c"), "--out", str(tmp_path / "three")])
    found = _of(tmp_path / "three")["methods"]
    assert [each["equal_time"] for each in found.values()] == [alike, None, None]


def test_other_weights_of_a_sampler_and_compiled_steps_may_stand_beside_each_other(apart, tmp_path):
    def other(found):
        for budget in found["budgets"].values():
            budget["settings"] |= {"l2e_network": "l2e", "compiled": True}

    combine.main([str(apart / "a"), str(_changed(apart, tmp_path, other)), "--out", str(tmp_path / "out")])
    assert list(_of(tmp_path / "out")["methods"]) == [NAMED, "SGHMC"]


def test_a_folder_without_a_comparison_and_one_twice_are_refused(apart, tmp_path):
    with pytest.raises(SystemExit, match="no results"):
        combine.main([str(tmp_path)])
    with pytest.raises(SystemExit, match=r"L2E \[.*\] at 40 gradients is in"):
        combine.main([str(apart / "a"), str(apart / "a" / "results.json"), "--out", str(tmp_path / "out")])


def test_without_a_common_seed_there_is_no_difference_and_no_sentence(apart, tmp_path):
    def other_seeds(found):
        for run in found["budgets"]["40"]["methods"]["SGHMC"]["runs"]:
            run["seed"] += 100

    combine.main([str(apart / "a"), str(_changed(apart, tmp_path, other_seeds)), "--out", str(tmp_path / "out")])
    found = _of(tmp_path / "out")
    assert found["methods"]["SGHMC"]["difference"] is None
    assert found["verdict"] is None


def test_a_method_that_is_not_known_is_refused_by_name(apart, tmp_path):
    def renamed(found):
        methods = found["budgets"]["40"]["methods"]
        methods["Nobody"] = methods.pop("SGHMC")

    with pytest.raises(SystemExit, match="a method that is not known: Nobody"):
        combine.main([str(_changed(apart, tmp_path, renamed)), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_networks_of_ones_own_must_be_the_same(tmp_path):
    network = tmp_path / "net.py"
    given = ["--extensions", "0", "--sampler", "SGD", "--given", "SGD:lr=0.1,momentum_decay=0.1", "--steps", "8"]
    layers = "nn.Flatten(), nn.Linear(64, WIDTH), nn.Linear(WIDTH, 10)"
    text = f"from torch import nn\ndef make(): return nn.Sequential({layers})"
    for seed, width in enumerate((8, 9)):
        network.write_text(text.replace("WIDTH", str(width)))
        options = ["--dataset", "digits", "--limit", "200", "--model", f"{network}:make", "--seed", str(seed)]
        compare.main([*options, *given, "--seeds", "1", "--out", str(tmp_path / str(seed))])
    with pytest.raises(SystemExit, match=r"differ in network: .*model_network"):
        combine.main([str(tmp_path / "0"), str(tmp_path / "1"), "--out", str(tmp_path / "out")])
    found = json.loads((tmp_path / "1" / "results.json").read_text())
    del found["budgets"]["8"]["network"]  # as files of before
    (tmp_path / "old.json").write_text(json.dumps(found))
    with pytest.raises(SystemExit, match=r"differ in network: .*not in the file"):
        combine.main([str(tmp_path / "0"), str(tmp_path / "old.json"), "--out", str(tmp_path / "out")])


def test_runs_of_other_code_stay_known(apart, tmp_path):
    assert "another version of the code" not in (apart / "b" / "table.md").read_text()
    found = json.loads((apart / "b" / "results.json").read_text())
    found["budgets"]["40"]["other_code"] = True
    (tmp_path / "b.json").write_text(json.dumps(found))
    combine.main([str(apart / "a"), str(tmp_path / "b.json"), "--out", str(tmp_path / "out")])
    assert _of(tmp_path / "out")["other_code"] is True
    assert "another version of the code had made" in (tmp_path / "out" / "table.md").read_text()
    combine.main([str(apart / "a"), str(apart / "b"), "--out", str(tmp_path / "two")])
    assert "another version of the code" not in (tmp_path / "two" / "table.md").read_text()
