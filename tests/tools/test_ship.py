"""tools/ship.py: the card that it writes, the badge that follows from a measured law, and what it refuses."""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import meta_train
import pytest
import ship
import torch
from experiments.meta_training import law, replaced
from experiments.meta_training.replaced import difference_of, held_out_losses

import pretrained
from learned_samplers import KineticL2E, check_sampler
from learned_samplers.learned import weights
from learned_samplers.learned.badge import EARNING

TINY = ["--family", "digits", "--horizon", "12", "12", "--samples", "3", "--evaluate-every", "0", "--iterations", "1"]
TINY += ["--no-progress", "--hidden", "4"]
CHAINS = ["--sampler", "MetaSGMCMC", "--method", "tbptt", "--objective", "stein_kl", "--window", "6"]


def trained(folder, *more):
    meta_train.main(["--folder", str(folder), *TINY, *more])
    return folder / "weights.safetensors"


@pytest.fixture
def brief(monkeypatch):
    """Laws are measured in few steps, where only what is written of them matters."""
    monkeypatch.setattr(law, "check_sampler", partial(check_sampler, steps=100))


def own_fields(card):
    return {key: value for key, value in card.items() if key not in ("layers", "sha256")}


@pytest.mark.parametrize(
    "kind", [("--form", "residual"), ("--form", "paper"), ("--sampler", "KineticL2E")], ids=lambda kind: kind[1]
)
@pytest.mark.usefixtures("brief")
def test_the_card_says_what_was_measured(tmp_path, capsys, kind):
    source = trained(tmp_path / "run", *kind)
    small = ["--coordinates", "60", "--num-data", "500", "--first-stage", str(source)]
    said = ["--learned", "Nothing yet.", "--chosen", "All of it."]
    ship.main([str(source), "new", "--out", str(tmp_path), "--lr", "0.1", *small, *said])
    network, card = weights.load(tmp_path / "new.safetensors")
    before, old = weights.load(source)
    assert all((a == b).all() for a, b in zip(network.state_dict().values(), before.state_dict().values()))
    assert (card["name"], card["learned"], card["chosen"]) == ("new", "Nothing yet.", "All of it.")
    assert card["defaults"]["lr"] == card["law"]["lr"][0] == 0.1
    written = card["law"]
    earned = kind[1] == "KineticL2E" and written["verdict"] in EARNING and abs(written["largest_bias"][1]) <= 0.05
    assert card["badge"] == ("O(h)" if earned else "heuristic")
    assert (old["badge"], old["law"]) == ("heuristic", None)
    assert (card["curve"], card["layers"]) == (old["curve"], old["layers"])
    stage = card["meta_training"].pop("first_stage")
    assert card["meta_training"] == old["meta_training"]
    assert stage == {**old["meta_training"], "curve": old["curve"]}
    for name in ("bias", "bias_at_a_quarter_of_lr", "kinetic_temperature", "configurational_temperature"):
        assert len(written[name]) == len(written["stiffness"]) == 2
    for name in ("assumption_violation", "terms"):
        assert (name in written) == (kind[1] != "KineticL2E")
    assert written["reason"] in capsys.readouterr().out


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A network of KineticL2E, and what was measured of it."""
    source = trained(tmp_path_factory.mktemp("kinetic"), "--sampler", "KineticL2E")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(law, "check_sampler", partial(check_sampler, steps=100))
        return source, law.gaussian_law(
            lambda params: KineticL2E(params, 0.1, 50_000, network=source), coordinates=20, stiffness=(0.2,)
        )


@pytest.mark.parametrize("verdict", ["exact", "no bias seen", "O(h)", "biased", "unstable"])
def test_a_bias_too_small_to_be_seen_keeps_the_badge_too(tmp_path, monkeypatch, measured, verdict):
    source, report = measured
    planted = {**report, "verdict": verdict, "reason": "planted", "largest_bias": [0.04, 0.01]}
    monkeypatch.setattr(law, "gaussian_law", lambda make, **_: planted)
    ship.main([str(source), "new", "--lr", "0.1", "--out", str(tmp_path)])
    badge = "O(h)" if verdict in ("exact", "no bias seen", "O(h)") else "heuristic"
    assert weights.load_card(tmp_path / "new.safetensors")["badge"] == badge
    sampler = KineticL2E([torch.zeros(1, requires_grad=True)], num_data=9, network=tmp_path / "new.safetensors")
    assert sampler.badge == badge


def test_the_card_of_meta_sgmcmc_has_its_bias_at_constant_friction(tmp_path, capsys):
    """The untrained network is SGHMC, whose bias is h/4 and more at stiffness h = lr·k = 0.3."""
    source = trained(tmp_path / "run", *CHAINS, "--num-chains", "3")
    ship.main([str(source), "new", "--out", str(tmp_path), "--lr", "0.1", "--energy", "0.3", "--coordinates", "800"])
    card = weights.load_card(tmp_path / "new.safetensors")
    assert (card["badge"], card["law"]["verdict"], card["law"]["energy"]) == ("O(h)", "O(h)", 0.3)
    assert card["law"]["momentum_decay"] == [0.1, 0.05, 0.025]
    assert card["law"]["largest_bias"][0] == pytest.approx(0.081, abs=0.015)
    assert abs(card["law"]["largest_bias"][2]) < 0.02
    assert card["law"]["kinetic"] == pytest.approx([1.06, 1.03, 1.01], abs=0.05)
    assert card["law"]["reason"] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.08, 0.04, 0.02], "O(h)"),
        ([0.08, 0.0566, 0.04], "biased"),  # falls with the root of ε
        ([0.08, 0.06, 0.035], "biased"),  # within two standard errors of that
        ([0.01, 0.01, 0.01], "O(h)"),  # small whatever it was
        ([0.08, 0.02, math.nan], "biased"),
    ],
)
def test_the_badge_wants_a_bias_that_vanishes_beyond_its_error(monkeypatch, values, verdict):
    """Two coordinates of opposite biases, which a mean over coordinates would hide."""
    runs = iter(values)

    def planted(*_):
        bias = next(runs)
        return torch.tensor([bias, -bias]), torch.tensor([0.004, 0.004]), 1.0

    monkeypatch.setattr(law, "chain", lambda *_: ())
    monkeypatch.setattr(law, "biases", planted)
    monkeypatch.setattr(law, "MetaSGMCMC", lambda *_, **__: None)
    monkeypatch.setattr(law, "measured_at", lambda _: {})
    report = law.meta_law("none", 0.1, 0.1, num_data=100, chains=10, energy=0.0)
    assert report["verdict"] == verdict
    assert report["error"] == pytest.approx([0.004] * 3)


def test_a_wrong_correction_loses_the_badge(tmp_path, monkeypatch):
    """Planted fault: ∂A/∂r times minus one. The law of the dynamics is another one, and the bias stays."""
    from learned_samplers.learned import meta_sgmcmc as rule
    from learned_samplers.learned.meta_fields import slopes_of
    from learned_samplers.learned.native.kernel import ENVIRONMENT_VARIABLE
    from learned_samplers.learned.network import layers_of

    def flipped(fields, momentum, *, position):
        right = slopes_of(fields, momentum, position=position)
        wrong = right.friction_by_momentum
        return right._replace(friction_by_momentum=None if wrong is None else -wrong)

    network, card = weights.load(trained(tmp_path / "run", *CHAINS, "--num-chains", "3"))
    (weight, bias), (last, _) = layers_of(network)
    for matrix in (weight, bias, last):  # f_D = 3·relu(r)
        torch.nn.init.zeros_(matrix)
    half = len(bias) // 2
    with torch.no_grad():
        weight[half, 1], last[1, half] = 1.0, 3.0
    weights.save(tmp_path / "own.safetensors", network, own_fields(card))
    out = tmp_path / "a folder" / "to be made"
    arguments = [str(tmp_path / "own.safetensors"), "new", "--out", str(out), "--lr", "0.1", "--coordinates", "300"]
    ship.main(arguments)
    assert weights.load_card(out / "new.safetensors")["badge"] == "O(h)"
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "0")  # the compiled step has derivatives of its own
    monkeypatch.setattr(rule, "slopes_of", flipped)
    ship.main(arguments)
    assert weights.load_card(out / "new.safetensors")["badge"] == "heuristic"


def test_what_cannot_be_shipped_is_refused_and_leaves_nothing(tmp_path):
    network, card = weights.load(trained(tmp_path / "run"))
    weights.save(tmp_path / "other.safetensors", network, {**own_fields(card), "sampler": "SGHMC"})
    weights.save(tmp_path / "rateless.safetensors", network, {**own_fields(card), "defaults": {}})
    for source, more, reason in (
        (tmp_path / "rateless.safetensors", [], "lr must be given"),
        (tmp_path / "none.safetensors", [], r"none\.safetensors"),
        (tmp_path / "other.safetensors", [], "sampler"),
        (pretrained.path("l2e"), ["--energy", "0"], "energy"),
    ):
        with pytest.raises(SystemExit, match=f"error: .*{reason}"):
            ship.main([str(source), "new", *more, "--out", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("brief")
def test_weights_are_measured_against_those_that_they_replace(tmp_path, monkeypatch):
    source = trained(tmp_path / "run")  # one iteration from SGHMC
    network, card = weights.load(source)
    with torch.no_grad():
        network[-1].bias[1] += 1e6  # a constant drift
    weights.save(tmp_path / "worse.safetensors", network, card)
    common = ["--replaces", str(source), "--tasks", "5", "--coordinates", "60", "--out", str(tmp_path)]
    monkeypatch.setattr(replaced, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))  # starts at once
    with pytest.raises(SystemExit, match="the new weights are worse"):
        ship.main([str(tmp_path / "worse.safetensors"), "new", *common])
    assert not (tmp_path / "new.safetensors").exists()
    monkeypatch.setattr(replaced, "ProcessPoolExecutor", lambda _, context: ProcessPoolExecutor(1, context))
    ship.main([str(source), "new", *common])
    comparison = weights.load_card(tmp_path / "new.safetensors")["metrics"]["replaced"]
    assert (comparison["difference"], comparison["error"], comparison["tasks"]) == (0, 0, 5)
    assert comparison["new"] == comparison["former"]
    assert comparison["new"] < 2.35  # chance is 2.30; a dozen steps


@pytest.mark.parametrize(("difference", "worse"), [(-0.1, False), (0.016, False), (0.018, True)])
def test_worse_is_more_than_two_standard_errors(difference, worse):
    former = torch.rand(50, dtype=torch.float64)
    noise = torch.linspace(-0.1, 0.1, 50, dtype=torch.float64)  # two standard errors are 0.0168
    comparison = difference_of(former + noise + difference, former)
    assert comparison.worse == worse
    assert comparison.error == pytest.approx(0.0084, abs=5e-5)
    assert comparison.difference == pytest.approx(difference)


def test_weights_without_held_out_tasks_are_not_compared(tmp_path):
    with pytest.raises(ValueError, match="trained on 'gaussians' have no held-out tasks, only paper"):
        held_out_losses(tmp_path / "any", {"tasks": {"name": "gaussians"}, "horizon": {}}, 2)
    with pytest.raises(ValueError, match="does not say on which tasks"):
        held_out_losses(tmp_path / "any", {"tasks": None, "horizon": None}, 2)


def test_held_out_tasks_are_those_of_the_training(tmp_path, capfd):
    """A family that the command has changed is not its preset; a bar shows how far it is."""
    source = trained(tmp_path / "run")
    meta = weights.load_card(source)["meta_training"]
    small = {**meta, "tasks": {**meta["tasks"], "sizes": [4]}}
    assert not torch.equal(*(held_out_losses(source, protocol, 1) for protocol in (meta, small)))
    assert capfd.readouterr().err.count("held-out tasks, ") == 2
