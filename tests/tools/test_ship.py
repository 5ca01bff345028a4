"""tools/ship.py: the card that it writes, and what it refuses."""

import math
import shlex

import meta_train
import pytest
import ship
import torch
from experiments.meta_training import law
from experiments.meta_training.cards import without_infinities

from learned_samplers import L2E, KineticL2E
from learned_samplers.learned import weights
from learned_samplers.learned.badge import EARNING

TINY = ["--family", "digits", "--horizon", "12", "12", "--samples", "3", "--evaluate-every", "0", "--iterations", "1"]
TINY += ["--no-progress"]


def trained(folder, *more):
    meta_train.main(meta_train.tyro.cli(meta_train.Options, args=["--folder", str(folder), *TINY, *more]))
    return folder / "weights.safetensors"


@pytest.mark.parametrize("form", ["residual", "paper", "KineticL2E", "PrecondL2E"])
def test_the_card_says_what_was_measured(tmp_path, capsys, form):
    source = trained(tmp_path / "run", "--sampler" if "L2E" in form else "--form", form, "--hidden", "4")
    small = ["--coordinates", "60", "--num-data", "500", "--first-stage", str(source)]
    ship.main([str(source), "new", "--out", str(tmp_path), "--lr", "0.1", *small])
    network, card = weights.load(tmp_path / "new.safetensors")
    before, old = weights.load(source)
    assert all((a == b).all() for a, b in zip(network.state_dict().values(), before.state_dict().values()))
    assert card["name"] == "new"
    assert card["defaults"]["lr"] == card["law"]["lr"][0] == 0.1
    law = card["law"]
    earned = form == "KineticL2E" and law["verdict"] in EARNING and abs(law["largest_bias"][1]) <= 0.05
    assert card["badge"] == ("O(h)" if earned else "heuristic")
    assert (old["badge"], old["law"]) == ("heuristic", None)
    assert (card["curve"], card["layers"]) == (old["curve"], old["layers"])
    stage = card["meta_training"].pop("first_stage")
    assert card["meta_training"] == old["meta_training"]
    assert stage == {**old["meta_training"], "curve": old["curve"]}
    for name in ("bias", "bias_at_a_quarter_of_lr", "kinetic_temperature", "configurational_temperature"):
        assert len(card["law"][name]) == len(card["law"]["stiffness"]) == 2
    for name in ("assumption_violation", "terms", "term_effects"):
        assert (name in card["law"]) == (form in ("residual", "paper"))
    assert card["law"]["reason"] in capsys.readouterr().out


@pytest.mark.parametrize("verdict", ["exact", "no bias seen", "O(h)", "biased", "unstable"])
def test_a_bias_too_small_to_be_seen_keeps_the_badge_too(tmp_path, monkeypatch, verdict):
    source = trained(tmp_path / "run", "--sampler", "KineticL2E", "--hidden", "4")
    own = law.gaussian_law

    def planted(make, **_):
        found = own(make, coordinates=20, stiffness=(0.2,))
        return {**found, "verdict": verdict, "reason": "planted", "largest_bias": [0.04, 0.01]}

    monkeypatch.setattr(law, "gaussian_law", planted)
    ship.main([str(source), "new", "--out", str(tmp_path)])
    badge = "O(h)" if verdict in ("exact", "no bias seen", "O(h)") else "heuristic"
    assert weights.load_card(tmp_path / "new.safetensors")["badge"] == badge
    sampler = KineticL2E([torch.zeros(1, requires_grad=True)], num_data=9, network=tmp_path / "new.safetensors")
    assert sampler.badge == badge


def meta_trained(folder):
    more = [
        "--sampler",
        "MetaSGMCMC",
        "--method",
        "tbptt",
        "--objective",
        "stein_kl",
        "--window",
        "6",
        "--num-chains",
        "3",
    ]
    return trained(folder, *more, "--hidden", "4")


def test_the_card_of_meta_sgmcmc_has_its_bias_at_constant_friction(tmp_path, capsys):
    """The untrained network is SGHMC, whose bias is h/4 and more at stiffness h = lr·k = .3."""
    source = meta_trained(tmp_path / "run")
    ship.main([str(source), "new", "--out", str(tmp_path), "--lr", "0.1", "--energy", "0.3"])
    card = weights.load_card(tmp_path / "new.safetensors")
    assert (card["badge"], card["law"]["verdict"], card["law"]["energy"]) == ("O(h)", "O(h)", 0.3)
    assert card["law"]["momentum_decay"] == [0.1, 0.05, 0.025]
    assert card["law"]["largest_bias"][0] == pytest.approx(0.081, abs=0.015)
    assert abs(card["law"]["largest_bias"][2]) < 0.02
    assert card["law"]["kinetic"] == pytest.approx([1.06, 1.03, 1.01], abs=0.05)
    assert card["law"]["reason"] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("biases", "verdict"),
    [
        ([0.08, 0.04, 0.02], "O(h)"),
        ([0.08, 0.0566, 0.04], "biased"),  # falls with the root of ε
        ([0.08, 0.06, 0.035], "biased"),  # within two standard errors of that
        ([0.01, 0.01, 0.01], "O(h)"),  # small whatever it was
        ([0.08, 0.02, math.nan], "biased"),
    ],
)
def test_the_badge_wants_a_bias_that_vanishes_beyond_its_error(monkeypatch, biases, verdict):
    """Two coordinates of opposite biases, which a mean over coordinates would hide."""
    from experiments.meta_training import law as _meta_law

    runs = iter(biases)

    def run(*_):
        bias = next(runs)
        return torch.tensor([bias, -bias]), torch.tensor([0.004, 0.004]), 1.0

    monkeypatch.setattr(_meta_law, "_run", run)
    monkeypatch.setattr(_meta_law, "MetaSGMCMC", lambda *_, **__: None)
    monkeypatch.setattr(_meta_law, "measured_at", lambda _: {})
    found = _meta_law.meta_law("none", 0.1, 0.1, num_data=100, chains=10, energy=0.0)
    assert found["verdict"] == verdict
    assert found["error"] == pytest.approx([0.004] * 3)


def test_a_wrong_correction_loses_the_badge(tmp_path, monkeypatch):
    """∂A/∂r times minus one: the law of the dynamics is another one, and the bias stays."""
    from learned_samplers.learned.meta_sgmcmc import rule
    from learned_samplers.learned.meta_sgmcmc.corrections import slopes_by_autograd
    from learned_samplers.learned.native.library import ENVIRONMENT_VARIABLE
    from learned_samplers.learned.network import layers_of

    def flipped(fields, momentum, probe_size, *, position):
        right = slopes_by_autograd(fields, momentum, probe_size, position=position)
        wrong = right.friction_by_momentum
        return right._replace(friction_by_momentum=None if wrong is None else -wrong)

    source = meta_trained(tmp_path / "run")
    network, card = weights.load(source)
    (weight, bias), (last, _) = layers_of(network)
    for matrix in (weight, bias, last):  # f_D = 3·relu(r)
        torch.nn.init.zeros_(matrix)
    half = len(bias) // 2
    with torch.no_grad():
        weight[half, 1], last[1, half] = 1.0, 3.0
    own = {key: value for key, value in card.items() if key not in ("layers", "sha256")}
    weights.save(tmp_path / "own.safetensors", network, own)
    out = tmp_path / "a folder" / "to be made"
    arguments = [str(tmp_path / "own.safetensors"), "new", "--out", str(out), "--lr", "0.1"]
    ship.main(arguments)
    assert weights.load_card(out / "new.safetensors")["badge"] == "O(h)"
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "0")  # the compiled step has derivatives of its own
    monkeypatch.setitem(rule.CORRECTIONS, "autograd", flipped)
    ship.main(arguments)
    assert weights.load_card(out / "new.safetensors")["badge"] == "heuristic"


def test_a_blend_lies_between_its_ends(tmp_path):
    flags = ("--hidden", "4", "--start-feature", "gradient", "--start-gain")
    ends = [trained(tmp_path / gain, *flags, gain, "--minutes", "0") for gain in ("1", "3")]
    small = ["--coordinates", "20", "--num-data", "500", "--lr", "0.1", "--out", str(tmp_path)]
    arguments = [str(ends[0]), "new", "--toward", str(ends[1]), "--share", "0.25", *small]
    ship.main(arguments)
    network, card = weights.load(tmp_path / "new.safetensors")
    source, other = (weights.load_card(end) for end in ends)
    assert network[-1].weight[1, :2].tolist() == [-1.5, 1.5]
    # What the source was is not what the blend is.
    assert source["metrics"] == {"held_out": {}}
    assert card["metrics"] == {}
    blend = card["meta_training"].pop("blend")
    assert card["meta_training"] == source["meta_training"]
    assert blend == {
        "share": 0.25,
        "from": source["sha256"],
        "toward": other["sha256"],
        "curve": "the source's, not the blend's",
        "toward_meta_training": other["meta_training"],
        "command": shlex.join(["python", "tools/ship.py", *arguments]),
    }
    # A blend of a blend keeps how the first was made.
    ship.main([str(tmp_path / "new.safetensors"), "next", "--toward", str(ends[1]), *small])
    again = weights.load_card(tmp_path / "next.safetensors")["meta_training"]["blend"]
    assert again["from_blend"] == blend
    # A card from before there was a command that repeats it gets one, and one of unknown origin none.
    network, card = weights.load(ends[0])
    own = {key: value for key, value in card.items() if key not in ("layers", "sha256")}
    for command, expected in (("python t.py --minutes 3", "python t.py --minutes 0"), (None, None)):
        old = {**card["meta_training"], "command": command}
        del old["reproduce"]
        weights.save(tmp_path / "old.safetensors", network, {**own, "meta_training": old})
        ship.main([str(tmp_path / "old.safetensors"), "shipped", *small])
        assert weights.load_card(tmp_path / "shipped.safetensors")["meta_training"].get("reproduce") == expected


def test_networks_of_different_rules_are_not_blended(tmp_path):
    flags = ("--hidden", "4", "--minutes", "0")
    ends = [trained(tmp_path / "first", *flags)]
    small = ["--coordinates", "20", "--num-data", "500", "--lr", "0.1", "--out", str(tmp_path)]
    with pytest.raises(SystemExit):
        ship.main([str(ends[0]), "bad", "--toward", str(ends[0]), "--share", "1.5", *small])
    others = {
        "layers is": ("--hidden", "8"),
        "scales is": ("--beta-scale", "10"),
        "form is": ("--form", "paper"),
        "sampler is": ("--sampler", "PrecondL2E"),
        "feature_set is": ("--feature-set", "scaled"),
    }
    for reason, more in others.items():
        other = trained(tmp_path / reason, *flags, *more)
        with pytest.raises(SystemExit, match=rf"toward: .*are networks of different rules: {reason}"):
            ship.main([str(ends[0]), "bad", "--toward", str(other), *small])
    assert not (tmp_path / "bad.safetensors").exists()


def test_a_network_is_carried_over_to_another_direction(tmp_path, capsys):
    start = ("--feature-set", "matrix", "--start-feature", "orthogonal_0.9", "--minutes", "0")
    source = trained(tmp_path / "run", "--hidden", "4", *start)
    arguments = [str(source), "new", "--feature-set", "orthogonal_whitened", "--lr", "0.1", "--out", str(tmp_path)]
    arguments += ["--coordinates", "20", "--num-data", "500"]
    ship.main(arguments)
    network, card = weights.load(tmp_path / "new.safetensors")
    before, own = weights.load(source)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), before.parameters(), strict=True))
    carried = card["meta_training"].pop("carried_over")
    assert carried == {
        "from": own["sha256"],
        "from_feature_set": "matrix",
        "replaced": {"orthogonal_0.9": "orthogonal_whitened_0.9"},
        "curve": "that of the feature set before",
        "command": shlex.join(["python", "tools/ship.py", *arguments]),
    }
    assert (card["meta_training"], card["metrics"]) == (own["meta_training"], {})
    # It moves along the new direction: a sampler with these weights is the one whose start was that direction.
    other = ("--feature-set", "orthogonal_whitened", "--start-feature", "orthogonal_whitened_0.9", "--minutes", "0")
    twin = trained(tmp_path / "twin", "--hidden", "4", *other)
    steps = []
    for path in (tmp_path / "new.safetensors", twin):
        p = torch.linspace(-1, 1, 12).view(4, 3).requires_grad_()
        sampler = L2E([p], lr=0.1, num_data=100, temperature=0.0, network=path)
        for k in range(3):
            p.grad = torch.arange(12.0).view(4, 3).sin() * (k + 1)
            sampler.step()
        steps.append(p.detach().clone())
    assert torch.equal(*steps)
    for name, reason in (("matrix", "is what the weights have already"), ("scaled", "the network was learned with")):
        with pytest.raises(SystemExit, match=reason):
            ship.main([str(source), "bad", "--feature-set", name, "--lr", "0.1", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        ship.main([str(source), "bad", "--feature-set", "scaled", "--toward", str(source)])
    assert "one after the other" in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "bad.safetensors").exists()


def test_a_direction_gets_the_gate_that_another_network_learned(tmp_path, capsys):
    linear = ("--linear", "--feature-set", "adaptive", "--learning-rate", ".5")
    held = (*linear, "--normalise-output", "True", "--start-feature", "average_0.9")
    direction = trained(tmp_path / "direction", *held)
    gated = trained(tmp_path / "gate", *linear, "--start-feature", "gradient")
    small = ["--coordinates", "20", "--num-data", "500", "--lr", "0.1", "--out", str(tmp_path)]
    arguments = [str(direction), "both", "--gate-of", str(gated), *small]
    ship.main(arguments)
    (both, card), (one, own), (other, others) = map(weights.load, (tmp_path / "both.safetensors", direction, gated))
    x = torch.randn(50, own["layers"][0][1], generator=torch.Generator().manual_seed(0))
    assert torch.allclose(both(x)[:, :2], one(x), atol=1e-6)
    assert torch.allclose(both(x)[:, 2], other(x)[:, 2], atol=1e-6)
    assert other(x)[:, 2].std() > 0.01  # a gate that has learned something
    assert (card["layers"], card["scales"]) == (others["layers"], others["scales"])
    made = card["meta_training"].pop("with_gate")
    assert (made["direction_of"], made["gate_of"]) == (own["sha256"], others["sha256"])
    assert made["gate_meta_training"] == others["meta_training"]
    assert made["command"] == shlex.join(["python", "tools/ship.py", *arguments])
    assert (card["meta_training"], card["metrics"]) == (own["meta_training"], {})
    # Given to itself, it is what it was.
    ship.main([str(tmp_path / "both.safetensors"), "again", "--gate-of", str(gated), *small])
    assert torch.equal(weights.load(tmp_path / "again.safetensors")[0](x), both(x))

    wider = trained(tmp_path / "wider", "--feature-set", "adaptive", "--hidden", "4", "--minutes", "0")
    for path, gate, reason in (
        (gated, direction, "has no gate"),
        (wider, gated, "its layers are"),
        (trained(tmp_path / "scaled", *held, "--beta-scale", "10"), gated, "different scales"),
    ):
        with pytest.raises(SystemExit, match=reason):
            ship.main([str(path), "bad", "--gate-of", str(gate), *small])
    # A gate that other units see cannot be taken out of a network, nor be dropped from one: nothing is half done.
    with torch.no_grad():
        other[-1].weight[1, 2] = 0.5
    kept = {key: value for key, value in others.items() if key not in ("layers", "sha256")}
    weights.save(tmp_path / "mixed.safetensors", other, kept)
    for path, gate, name in ((direction, "mixed", "gate_of"), (tmp_path / "mixed.safetensors", "again", "the network")):
        with pytest.raises(SystemExit, match=f"{name}: its gate is not a unit of its own"):
            ship.main([str(path), "bad", "--gate-of", str(tmp_path / f"{gate}.safetensors"), *small])
    with pytest.raises(SystemExit):
        ship.main([str(direction), "bad", "--gate-of", str(gated), "--toward", str(direction), *small])
    assert "one after the other" in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "bad.safetensors").exists()


def test_a_share_of_no_line_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        ship.main([str(tmp_path / "none.safetensors"), "new", "--share", "0.3"])
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "share=0.3 is a position on the line to --toward, which is not given" in said


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--lr", "0", "lr must be positive, got 0"),
        ("--lr", "-1", "lr must be positive, got -1"),
        ("--law-lr", "inf", "law_lr must be finite, got inf"),
        ("--coordinates", "0", "coordinates must be at least 2, got 0"),
        ("--num-data", "0", "num_data must be at least 1, got 0"),
        ("--energy", "nan", "energy must be finite, got nan"),
    ],
)
def test_numbers_that_nothing_is_measured_with_are_refused_before_a_file_is_read(
    tmp_path, capsys, option, value, message
):
    with pytest.raises(SystemExit):
        ship.main([str(tmp_path / "any.safetensors"), "new", option, value, "--out", str(tmp_path / "out")])
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "out").exists()


def test_what_is_not_finite_becomes_none():
    value = {"a": [1.0, math.nan], "b": math.inf, "c": "x"}
    assert without_infinities(value) == {"a": [1.0, None], "b": None, "c": "x"}


def test_a_missing_file_and_an_unknown_sampler_are_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"error: .*none\.safetensors"):
        ship.main([str(tmp_path / "none.safetensors"), "new", "--out", str(tmp_path)])
    network, card = weights.load(trained(tmp_path / "run", "--hidden", "4"))
    own = {key: value for key, value in card.items() if key not in ("layers", "sha256")}
    weights.save(tmp_path / "other.safetensors", network, {**own, "sampler": "SGHMC"})
    with pytest.raises(SystemExit, match=r"sampler must be one of .*, got 'SGHMC'"):
        ship.main([str(tmp_path / "other.safetensors"), "new", "--out", str(tmp_path)])
    assert not (tmp_path / "new.safetensors").exists()
