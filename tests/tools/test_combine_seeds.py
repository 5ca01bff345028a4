"""tools/combine.py: a row whose seeds were run by two commands."""

import json
import shutil

import combine
import compare
import pytest
import torch

from tests.tools.compare_cases import NETWORK, cells, numbers

GIVEN = ["--given", "SGHMC:lr=0.1,temperature=0.1,momentum_decay=0.1,burn_in=0.5", "SGD:lr=0.1,momentum_decay=0.1"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Four seeds in one comparison, and two and two; the folders by name."""
    out, threads = tmp_path_factory.mktemp("seeds"), torch.get_num_threads()
    base = [*NETWORK, "--steps", "40", "--extensions", "0", "--tune-seeds", "1", "--sampler", "SGHMC", "SGD", *GIVEN]
    compare.main([*base, "--seed", "10", "--seeds", "4", "--out", str(out / "all")])
    for name, first in {"early": "10", "late": "12"}.items():
        shutil.copytree(out / "all", out / name, ignore=shutil.ignore_patterns(".lock"))  # its runs are kept
        compare.main([*base, "--seed", first, "--seeds", "2", "--out", str(out / name)])
    torch.set_num_threads(threads)
    return out


def test_more_seeds_of_a_row_are_those_of_one_command(parts, tmp_path):
    combine.main([str(parts / "early"), str(parts / "late"), "--out", str(tmp_path)])
    together, whole = numbers(tmp_path)["40"]["methods"], numbers(parts / "all")["40"]["methods"]
    assert list(together) == list(whole)
    for name, method in whole.items():
        ours = together[name]
        assert [run["seed"] for run in ours["runs"]] == [10, 11, 12, 13]
        assert ours["runs"] == method["runs"]
        for key in ("mean", "std"):
            assert ours[key] == pytest.approx(method[key])
        for key in ("median_nll", "worst_nll", "collapsed", "scaled_nll", "scaled_nll_std"):
            assert ours[key] == pytest.approx(method[key]), key
        assert ours["pooled"]["chains"] == 2
    ours, theirs = (each["SGD"]["difference"] for each in (together, whole))
    assert (ours["mean"], ours["error"]) == pytest.approx((theirs["mean"], theirs["error"]))
    table = (tmp_path / "table.md").read_text()
    for name in ("early", "late"):
        assert f"- SGHMC, SGD: `{json.loads((parts / name / 'results.json').read_text())['command']}`" in table
    assert cells(table, "### 40", "SGD", "NLL") == cells(
        (parts / "all" / "table.md").read_text(), "### 40", "SGD", "NLL"
    )


def test_what_was_put_together_takes_further_seeds(parts, tmp_path):
    def fewer(name, seed):
        found = json.loads((parts / "late" / "results.json").read_text())
        found["command"] = f"the command of {name}"
        for method in found["budgets"]["40"]["methods"].values():
            method["runs"] = [run for run in method["runs"] if run["seed"] == seed]
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
        return str(tmp_path / f"{name}.json")

    combine.main([str(parts / "early"), fewer("third", 12), "--out", str(tmp_path / "three")])
    combine.main([str(tmp_path / "three"), fewer("fourth", 13), "--out", str(tmp_path / "four")])
    found = numbers(tmp_path / "four")["40"]["methods"]["SGHMC"]
    assert [run["seed"] for run in found["runs"]] == [10, 11, 12, 13]
    assert found["further"] == ["the command of third", "the command of fourth"]


def test_diverged_runs_count_and_give_no_numbers(parts, tmp_path):
    found = json.loads((parts / "late" / "results.json").read_text())
    method = found["budgets"]["40"]["methods"]["SGHMC"]
    method["collapsed"] = 2
    for run in method["runs"]:
        run["diverged"] = "at step 7"
    method |= {"scaled_nll": None, "scaled_nll_std": None, "label": "SGHMC (2 of 2 diverged)"}
    (tmp_path / "late.json").write_text(json.dumps(found))
    combine.main([str(parts / "early"), str(tmp_path / "late.json"), "--out", str(tmp_path / "out")])
    assert list(numbers(tmp_path / "out")["40"]["methods"]) == ["SGHMC (2 of 4 diverged)", "SGD"]
    ours = numbers(tmp_path / "out")["40"]["methods"]["SGHMC (2 of 4 diverged)"]
    early = numbers(parts / "early")["40"]["methods"]["SGHMC"]
    assert ours["collapsed"] == early["collapsed"] + 2
    assert ours["mean"] == pytest.approx(early["mean"])
    assert (ours["scaled_nll"], ours["scaled_nll_std"]) == pytest.approx((early["scaled_nll"], early["scaled_nll_std"]))


def test_another_setting_and_a_seed_twice_are_refused(parts, tmp_path):
    with pytest.raises(SystemExit, match=r"SGHMC at 40 gradients is in .*early and in .*all, and both have seed 10"):
        combine.main([str(parts / "early"), str(parts / "all"), "--out", str(tmp_path / "out")])
    found = json.loads((parts / "late" / "results.json").read_text())
    found["budgets"]["40"]["methods"]["SGHMC"]["lr"] = 0.2
    (tmp_path / "late.json").write_text(json.dumps(found))
    with pytest.raises(SystemExit, match=r"at different settings: lr 0\.1, T 0\.1.* and lr 0\.2, T 0\.1"):
        combine.main([str(parts / "early"), str(tmp_path / "late.json"), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_other_weights_of_the_same_name_are_refused(parts, tmp_path):
    found = json.loads((parts / "late" / "results.json").read_text())
    for run in found["budgets"]["40"]["methods"]["SGHMC"]["runs"]:
        run["file"] = run["file"].replace("SGHMC_", "SGHMC_0123abcd_")
    (tmp_path / "late.json").write_text(json.dumps(found))
    with pytest.raises(SystemExit, match=r"SGHMC at 40 gradients is in .*, with different weights of that name"):
        combine.main([str(parts / "early"), str(tmp_path / "late.json"), "--out", str(tmp_path / "out")])


def test_what_one_comparison_lost_and_another_has_is_not_lost(parts, tmp_path):
    found = json.loads((parts / "early" / "results.json").read_text())
    budget = found["budgets"]["40"]
    del budget["methods"]["SGHMC"]
    budget["lost"] = {"SGHMC": "it diverged", "L2E": "it diverged, too"}
    (tmp_path / "lost.json").write_text(json.dumps(found))
    more = json.loads((parts / "late" / "results.json").read_text())
    del more["budgets"]["40"]["methods"]["SGD"]
    (tmp_path / "more.json").write_text(json.dumps(more))
    combine.main([str(tmp_path / "lost.json"), str(tmp_path / "more.json"), "--out", str(tmp_path / "out")])
    assert numbers(tmp_path / "out")["40"]["lost"] == {"L2E [l2e-damped]": "it diverged, too"}
