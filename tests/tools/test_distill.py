"""tools/distill.py: the mixture that is fitted, the network that comes out, and what is refused."""

import re

import distill
import pytest
import torch
from experiments.meta_training import distillation

import pretrained
from learned_samplers import L2E
from learned_samplers.learned import weights
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.features import data_feature
from learned_samplers.learned.l2e.rule import L2ESettings
from learned_samplers.learned.network import apply_network
from meta_tasks.rules.learned import L2ERule

SMALL = ["--family", "digits", "--tasks", "2", "--steps", "40", "--every", "5"]
SCALES = {"beta_scale": 10.0, "friction_scale": 0.0, "reference_data": 50000.0}


def write(folder, name, gain, feature_set="adaptive", hidden=(4, 4), **scales):
    """Weights of Adam's direction with this gain, under the shipped card's other entries."""
    rule = L2ERule("residual", feature_set, hidden, start=("average_0.9_to_rms", gain), **SCALES | scales)
    card = {**weights.load_card(pretrained.path("l2e")), **rule.card(), "name": name}
    card["meta_training"] = {**card["meta_training"], "commit": "another"}
    path = folder / f"{name}.safetensors"
    weights.save(path, rule.network(rule.initial_weights(0)), card)
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    return write(folder, "few", 1.0), write(folder, "many", 3.0)


def inputs(num_data, count=200):
    x = torch.randn(count, FEATURE_SETS["adaptive_data"].size, generator=torch.Generator().manual_seed(1))
    x[:, -1] = data_feature(num_data)
    return x


@pytest.mark.parametrize(("num_data", "gain"), [(50, 1.0), (100, 1.0), (1000, 2.0), (10_000, 3.0), (60_000, 3.0)])
def test_the_target_goes_from_one_network_to_the_other_with_the_logarithm_of_n(num_data, gain):
    rules = [L2ERule("residual", "adaptive_data", (4, 4), start=("average_0.9_to_rms", each)) for each in (1.0, 3.0)]
    networks = torch.stack([rule.initial_weights(0) for rule in rules])
    x = inputs(num_data)
    y = distillation.target(rules[0], networks, x, (100, 10_000))
    adam = x[:, FEATURE_SETS["adaptive"].names.index("average_0.9_to_rms")]
    torch.testing.assert_close(y, torch.stack([torch.zeros(len(x)), -gain * adam], -1), rtol=1e-4, atol=1e-5)


def test_the_network_is_the_one_at_few_data_and_the_other_at_many(files, tmp_path, capsys):
    """The digits have fewer than N₀ training images, and the fit starts at the network for many."""
    distill.main([*files, "--folder", str(tmp_path), *SMALL, "--num-data", "1000", "2000", "--fit-steps", "1500"])
    assert "unexplained variance" in capsys.readouterr().out
    network, card = weights.load(tmp_path / "weights.safetensors")
    assert card["feature_set"] == "adaptive_data"
    assert card["scales"] == L2ESettings(**SCALES).to_card()["scales"]
    training = card["meta_training"]
    assert training["command"].startswith(f"python tools/distill.py {files[0]} {files[1]} --folder")
    command = weights.load_card(files[0])["meta_training"]["command"]
    assert training["few"]["command"] == training["many"]["command"] == command
    assert training["estimator"]["unexplained"][1] < 1e-2
    assert training["commit"] == distillation.commit() != "another"
    assert card["curve"][-1] < card["curve"][0] / 100
    # What it was fitted on are runs at this N: there it is the network for few data.
    rule = L2ERule("residual", "adaptive_data", (4, 4), **SCALES)
    phi = rule.prepare(torch.nn.utils.parameters_to_vector(network.parameters())[None])
    x = inputs(700)
    adam = x[:, FEATURE_SETS["adaptive_data"].names.index("average_0.9_to_rms")]
    beta = apply_network(phi, x.T[None])[1][0]
    assert (beta + adam).square().mean() < 0.1 * (beta + 3 * adam).square().mean()
    L2E([torch.zeros(3, requires_grad=True)], 0.01, 700, network=str(tmp_path / "weights.safetensors"))


def test_the_same_command_gives_the_same_network(files, tmp_path):
    for folder in ("a", "b"):
        distill.main([*files, "--folder", str(tmp_path / folder), *SMALL, "--fit-steps", "5"])
    first, second = ((tmp_path / folder / "weights.safetensors").read_bytes() for folder in ("a", "b"))
    assert first == second


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--num-data", "5000", "400"], "num_data must be two positive numbers, the smaller first"),
        (["--steps", "4"], r"steps must be one number or several, none below every=5, got \(4,\)"),
        (["--fit-steps", "0"], "fit_steps must be at least 1, got 0"),
        (["--share", "0.5"], r"share=0.5 is of the difference of --learned, which is not given"),
        (["--decay-time", "0"], "decay_time must be positive, got 0.0"),
        (["--datasets", "cifar10"], "must not have 'cifar10'"),
    ],
)
def test_impossible_options_are_refused(files, tmp_path, options, message, capsys):
    with pytest.raises(SystemExit) as refused:
        distill.main([*files, "--folder", str(tmp_path / "new"), *SMALL, *options])
    said = " ".join(f"{refused.value} {capsys.readouterr().err}".replace("│", " ").split())
    assert re.search(message, said)
    assert not (tmp_path / "new").exists()


def test_networks_of_other_rules_are_refused(files, tmp_path):
    wide, louder = write(tmp_path, "wide", 1.0, hidden=(4, 5)), write(tmp_path, "louder", 1.0, beta_scale=9.0)
    for pair, message in (
        ((files[0], wide), r"are networks of different rules: hidden is \[4, 4\] and \[4, 5\]"),
        ((files[0], louder), "are networks of different rules: scales is .*'beta_scale': 9.0"),
        ((files[0], "l2e-paper"), "l2e-paper: a network of L2E in its residual form .* got 'L2E', 'paper', 'paper'"),
        (("kinetic-l2e", files[0]), "kinetic-l2e: a network of L2E in its residual form"),
    ):
        with pytest.raises(SystemExit, match=message):
            distill.main([*pair, "--folder", str(tmp_path / "new"), *SMALL])


@pytest.mark.parametrize("scale", ["gated", "normalise_output"])
def test_what_is_not_fitted_is_refused_before_any_run(files, tmp_path, scale):
    other = write(tmp_path, "other", 1.0, **{scale: True})
    for pair in ((other, other), (files[0], other), (other, files[0])):
        with pytest.raises(SystemExit, match=rf"other\.safetensors: {scale}=True: α and β alone are fitted"):
            distill.main([*pair, "--folder", str(tmp_path / "new"), *SMALL, "--fit-steps", "1"])
    assert not (tmp_path / "new").exists()


def test_either_network_may_see_the_number_of_data_already(files, tmp_path):
    """The one for many is Adam's direction that grows with N: -3 (1 + N's feature)."""
    wide = write(tmp_path, "wide", 3.0, "adaptive_data")
    distill.main([files[0], wide, "--folder", str(tmp_path / "a"), *SMALL, "--fit-steps", "50"])
    distill.main([wide, files[1], "--folder", str(tmp_path / "b"), *SMALL, "--fit-steps", "50"])
    cards = [weights.load_card(tmp_path / each / "weights.safetensors") for each in "ab"]
    assert [card["feature_set"] for card in cards] == ["adaptive_data"] * 2
    # The same function in either feature set, so that the second fit starts where it ends.
    assert cards[0]["curve"][0] > 0.1
    assert max(cards[1]["meta_training"]["estimator"]["unexplained"]) < 1e-3


def test_the_decay_is_that_of_the_network_for_many_or_the_one_asked_for(files, tmp_path):
    decaying = write(tmp_path, "decaying", 1.0, decay_time=9.0)
    found, asked = [], (files[0], decaying, "--decay-time", "7")
    for number, pair in enumerate(((files[0], decaying), (decaying, files[0]), asked)):
        distill.main([*pair, "--folder", str(tmp_path / str(number)), *SMALL, "--fit-steps", "1"])
        found.append(weights.load_card(tmp_path / str(number) / "weights.safetensors")["scales"].get("decay_time"))
    assert found == [9.0, None, 7.0]


def test_networks_that_never_stay_finite_leave_nothing_to_fit(tmp_path):
    wild = write(tmp_path, "wild", 1e30)
    with pytest.raises(SystemExit, match="tasks=2: both networks became non-finite on every one"):
        distill.main([wild, wild, "--folder", str(tmp_path / "new"), *SMALL])
    assert not (tmp_path / "new").exists()


def test_what_another_training_learned_is_added_to_the_network_for_many(files, tmp_path):
    """Weights are added, not outputs: half of what leads from gain 3 to gain 1, on top of gain 3, is gain 2."""
    options = ["--learned", files[1], files[0], "--share", "0.5", "--num-data", "10", "20", "--fit-steps", "1500"]
    distill.main([files[1], files[1], "--folder", str(tmp_path), *SMALL, *options])
    network, card = weights.load(tmp_path / "weights.safetensors")
    assert card["meta_training"]["learned"]["command"] == weights.load_card(files[0])["meta_training"]["command"]
    x = inputs(700)
    adam = x[:, FEATURE_SETS["adaptive_data"].names.index("average_0.9_to_rms")]
    phi = L2ERule("residual", "adaptive_data", (4, 4)).prepare(
        torch.nn.utils.parameters_to_vector(network.parameters())[None]
    )
    beta = apply_network(phi, x.T[None])[1][0]
    assert (beta + 2 * adam).square().mean() < 0.1 * (beta + 3 * adam).square().mean()
