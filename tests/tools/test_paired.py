"""tools/paired.py: what it counts, and that it goes on where it was."""

import json
import math

import numpy as np
import paired
import pytest
import torch
from experiments.meta_training import paired as runs

from learned_samplers.learned import weights
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.network import build_network

TINY = ["--family", "digits", "--tasks", "3", "--steps", "20", "--samples", "2"]


@pytest.fixture(scope="module")
def networks(learned_weights, tmp_path_factory):
    """An untrained network that is SGHMC, and one whose β leads uphill along the gradient."""
    folder, files = tmp_path_factory.mktemp("networks"), []
    _, card = weights.load(learned_weights["l2e_network"])
    for name, slope in (("flat", 0.0), ("uphill", 3.0)):
        network = build_network("paper", (4,), 2, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            first, last = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
            first.weight.zero_(), first.bias.zero_()
            first.weight[0, 0], first.weight[1, 0] = 1.0, -1.0
            last.weight[1, 0], last.weight[1, 1] = slope, -slope
        weights.save(folder / f"{name}.safetensors", network, {**card, "name": name})
        files.append(str(folder / f"{name}.safetensors"))
    return files


def options(networks, tmp_path, *more):
    return [*networks, *TINY, "--out", str(tmp_path), *more]


def test_a_network_that_climbs_loses_every_task(networks, tmp_path, capsys):
    paired.main(options(networks, tmp_path, "--shares", "0.5"))
    flat, uphill, between = [line.split("|") for line in capsys.readouterr().out.splitlines() if "| " in line][1:]
    assert [cell.strip() for cell in flat[3:7]] == ["–", "–", "–", "0"]
    assert float(uphill[3].split("±")[0]) > 0.05
    assert uphill[5].strip() == between[5].strip() == "0"
    assert 0 < float(between[4]) < float(uphill[4])
    assert between[1].strip() == "share 0.5"


def test_the_same_weights_under_two_names_are_run_once_and_under_other_scales_again(networks, tmp_path, monkeypatch):
    network, card = weights.load(networks[1])
    weights.save(tmp_path / "twin.safetensors", network, {**card, "name": "twin"})
    weights.save(tmp_path / "scaled.safetensors", network, {**card, "scales": {"beta_scale": 3.0}})
    names = (networks[1], *(str(tmp_path / f"{name}.safetensors") for name in ("twin", "scaled")))
    chosen = runs.Options(names, family="digits", tasks=2, steps=(20,), samples=2, out=tmp_path)
    calls, own = [], runs.loss_of
    monkeypatch.setattr(runs, "loss_of", lambda *each: calls.append(each) or own(*each))
    first, second, scaled = runs.run(chosen)[20]
    assert len(calls) == 4
    assert (first == second).all()
    assert (first != scaled).all()
    assert first[0] != first[1]  # two tasks


def test_two_files_of_the_same_weights_have_the_same_losses_when_both_are_run(networks, tmp_path):
    network, card = weights.load(networks[1])
    weights.save(tmp_path / "twin.safetensors", network, {**card, "defaults": {"lr": 0.3}})  # which no run here uses
    names = (networks[1], str(tmp_path / "twin.safetensors"))
    chosen = runs.Options(names, family="digits", tasks=2, steps=(20,), samples=2, out=tmp_path)
    first, second = runs.run(chosen)[20]
    assert len((tmp_path / "losses.jsonl").read_text().splitlines()) == 4
    assert (first == second).all()


def test_a_torn_line_costs_one_run_and_no_more(networks, tmp_path, capsys):
    paired.main(options(networks, tmp_path))
    file = tmp_path / "losses.jsonl"
    whole = file.read_text()
    file.write_text(whole[:-20])
    paired.main(options(networks, tmp_path))
    assert "left out a line" in capsys.readouterr().err
    assert file.read_text().splitlines()[-1] == whole.splitlines()[-1]
    paired.main(options(networks, tmp_path))
    assert len(file.read_text().splitlines()) == 7  # six and the torn one


def test_what_is_known_is_not_run_again(networks, tmp_path, monkeypatch):
    paired.main(options(networks, tmp_path))
    before = (tmp_path / "losses.jsonl").read_text()
    assert len(before.splitlines()) == 6
    calls = []
    monkeypatch.setattr(runs, "loss_of", lambda *each: calls.append(each) or 1.0)
    paired.main(options(networks, tmp_path))
    assert not calls
    assert (tmp_path / "losses.jsonl").read_text() == before
    paired.main(options(networks, tmp_path, "--tasks", "4"))
    assert len(calls) == 2  # the fourth task
    paired.main(options(networks, tmp_path, "--seed", "1"))
    assert len(calls) == 8  # other tasks


def test_losses_under_the_fingerprints_of_earlier_versions_are_not_run_again(networks, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(runs.ImageTaskFamily, "data_fingerprints", runs.ImageTaskFamily.scaled_fingerprints)
        paired.main(options(networks, tmp_path))
    calls = []
    monkeypatch.setattr(runs, "loss_of", lambda *each: calls.append(each) or 1.0)
    paired.main(options(networks, tmp_path))
    assert not calls
    kept = [json.loads(line) for line in (tmp_path / "losses.jsonl").read_text().splitlines()]
    assert [each["loss"] for each in kept[:6]] == [each["loss"] for each in kept[6:]], "kept under those of now too"
    monkeypatch.setattr(runs.ImageTaskFamily, "scaled_fingerprints", lambda self: {"digits": "none"})
    paired.main(options(networks, tmp_path))
    assert not calls


def test_losses_on_other_data_or_of_another_torch_are_not_taken_over(networks, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(runs, "loss_of", lambda *each: calls.append(each) or 1.0)
    paired.main(options(networks, tmp_path))
    for place, name, value in (
        (runs.ImageTaskFamily, "data_fingerprints", lambda self: {"digits": "others"}),
        (runs.torch, "__version__", "0.1"),
        (runs.ImageTaskFamily, "specification", lambda self: {"name": "digits", "lrs": [1.0]}),
    ):
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            paired.main(options(networks, tmp_path))
        assert len(calls) == 6, name


def test_a_share_is_told_the_horizon_as_both_ends_are(learned_weights, tmp_path):
    _, card = weights.load(learned_weights["l2e_network"])
    features, stream = FEATURE_SETS["adaptive_run"], torch.Generator().manual_seed(0)
    network = build_network(len(features.names), (4,), 2, zero_last=False, generator=stream)
    weights.save(
        tmp_path / "sees.safetensors", network, {**card, "feature_set": features.name, "features": list(features.names)}
    )
    name, own = str(tmp_path / "sees.safetensors"), dict(family="digits", tasks=2, steps=(20,), samples=2)
    untold, told = (
        runs.run(runs.Options((name, name), (0.5,), tell_horizon=tell, out=tmp_path, **own))[20]
        for tell in (False, True)
    )
    assert (untold[0] != told[0]).all()
    assert (told[2] == told[0]).all(), "the share of a network with itself"


def test_only_the_networks_that_can_be_told_the_horizon_are_run_again(learned_weights):
    names = ("l2e-matrix", "scale-adapted-l2e-gated", learned_weights["l2e_network"])
    found = runs.candidates(runs.Options(names, tell_horizon=True))
    assert [runs._is_told(each) for each in found] == [True, False, False]


def test_table_counts_failures_and_leaves_them_out_of_means():
    losses = np.array([[1.0, 1.0, 2.0], [0.5, math.inf, 2.0 * math.e]])
    text = runs.table(["a", "b"], losses).splitlines()[-1]
    cells = [cell.strip() for cell in text.strip("|").split("|")]
    ratios = np.array([math.log(0.5), 1.0])
    assert cells[2] == f"{ratios.mean():+.4f} ± {ratios.std(ddof=1) / math.sqrt(2):.4f}"
    assert cells[4:] == ["1", "1"]


def rows(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def test_mean_losses_are_over_the_tasks_that_all_finished():
    """Else a network that fails on the hard task, the last one here, looks the better for it."""
    first, second, third = rows(runs.table(["a", "b", "c"], np.array([[1, 4, 9], [1.1, 4.4, math.inf], [2, 8, 0.1]])))
    assert [row[1] for row in (first, second, third)] == ["2.0000", "2.2000", "4.0000"]
    ratios = np.log([2, 2, 0.1 / 9])
    assert third[2].startswith(f"{ratios.mean():+.4f} ±")  # two networks alone, on all that both finished
    nothing = rows(runs.table(["a", "b"], np.array([[1.0, math.inf], [math.inf, 1.0]])))
    assert [row[1:3] for row in nothing] == [["–", "–"], ["–", "–"]]
    assert [row[4:] for row in nothing] == [["–", "1"], ["1", "1"]]


def test_a_network_whose_step_takes_two_gradients_takes_half_as_many_steps(learned_weights, tmp_path, monkeypatch):
    names = (learned_weights["kinetic_l2e_network"], learned_weights["l2e_network"])
    chosen = runs.Options(names, family="digits", tasks=2, steps=(20,), samples=2, out=tmp_path)
    gradients, own = [], runs.Unroll.advance

    def advance(unroll, *arguments):
        task, calls = unroll.task, []
        loss_and_gradient = type(task).loss_and_gradient
        monkeypatch.setattr(type(task), "loss_and_gradient", lambda *a: calls.append(1) or loss_and_gradient(*a))
        own(unroll, *arguments)
        monkeypatch.setattr(type(task), "loss_and_gradient", loss_and_gradient)
        gradients.append(len(calls))

    monkeypatch.setattr(runs.Unroll, "advance", advance)
    # Kept by an earlier version, when steps were counted for this network too: another run, not to be taken for this.
    kinetic, plain = runs.candidates(chosen)
    store = runs.Losses(tmp_path / "losses.jsonl")
    store.add((kinetic.key, "digits", 0, 0, 20, 2, None), 1e9)
    found = runs.run(chosen)[20]
    assert gradients == [20] * 4
    assert found.max() < 1e9
    lines = [tuple(json.loads(line)["key"]) for line in (tmp_path / "losses.jsonl").read_text().splitlines()]
    family = runs.family_named("digits")
    tasks = runs.digest_of(family, family.data_fingerprints())
    assert runs.key_of(plain, 1, 20, chosen, tasks) == (plain.key, "digits", 0, 1, 20, 2, None, tasks) in lines
    runs.run(chosen)
    assert gradients == [20] * 4  # all are known
    monkeypatch.setattr(runs, "loss_of", lambda *_: pytest.fail("nothing may be run"))
    impossible = runs.Options(names, family="digits", tasks=2, steps=(20,), samples=6, out=tmp_path)
    with pytest.raises(ValueError, match=r"steps: 20 gradients are 10 steps of .*, whose second half .*samples=6"):
        runs.run(impossible)


def test_the_tasks_are_not_those_of_meta_training_and_scored_on_validation_images():
    family = runs.family_named("digits")
    assert family.config("paired", 0, 0) == family.config("paired", 0, 0)
    assert family.config("paired", 0, 0).split == "val"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["l2e"], "networks: at least two"),
        (["l2e", "small-l2e", "l2e-paper", "--shares", "0.5"], "exactly two"),
        (["l2e", "small-l2e", "--shares", "1.5"], "shares must lie between 0 and 1"),
        (["l2e", "l2e-paper", "--shares", "0.5"], "shares: l2e and l2e-paper are networks of different rules: form is"),
        (["l2e", "meta-sgmcmc-toy"], "belongs to MetaSGMCMC"),
        (["l2e", "nosuch"], "nosuch"),
        (["l2e", "small-l2e", "--tasks", "1"], "tasks must be at least 2"),
        (["scale-adapted-l2e", "kinetic-l2e", "--tell-horizon"], "none of the networks can be told how long a run is"),
        (["l2e", "small-l2e", "--steps", "10", "--samples", "20"], "fewer than samples=20"),
    ],
)
def test_bad_input_is_named(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        paired.main([*arguments, "--out", str(tmp_path)])
    assert error.value.code not in (0, None)
    assert message in " ".join(f"{capsys.readouterr().err} {error.value}".replace("│", " ").split())
    assert not (tmp_path / "losses.jsonl").exists()


def test_the_file_has_one_json_object_a_line(networks, tmp_path):
    paired.main(options(networks, tmp_path))
    for line in (tmp_path / "losses.jsonl").read_text().splitlines():
        assert set(json.loads(line)) == {"key", "loss"}


def test_tasks_of_some_data_sets_alone_are_other_tasks(networks, tmp_path, capsys):
    """Losses of the family's own data sets are not taken for theirs; CIFAR-10 is refused here as in meta-training."""
    paired.main(options(networks, tmp_path))
    before = len((tmp_path / "losses.jsonl").read_text().splitlines())
    capsys.readouterr()
    paired.main(options(networks, tmp_path, "--datasets", "digits"))
    assert "3 tasks of digits (digits), 20 gradients" in capsys.readouterr().out
    assert len((tmp_path / "losses.jsonl").read_text().splitlines()) == 2 * before
    with pytest.raises(SystemExit, match="must not have 'cifar10'"):
        paired.main(options(networks, tmp_path, "--datasets", "cifar10"))
