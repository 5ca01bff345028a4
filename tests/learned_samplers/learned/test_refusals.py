"""Refusals of the learned samplers, their settings, networks and files: an error that names what is wrong."""

import copy
import hashlib

import pytest
import torch
from torch import nn

from learned_samplers.base.segments import Segments
from learned_samplers.base.settings import settings_of
from learned_samplers.learned import weights
from learned_samplers.learned.averages import update_averages
from learned_samplers.learned.cards import registered
from learned_samplers.learned.feature_sets import feature_set_named
from learned_samplers.learned.kinetic import KineticSettings
from learned_samplers.learned.l2e import L2ESettings
from learned_samplers.learned.meta_fields import build_meta_network, check_meta_network
from learned_samplers.learned.network import build_network, check_forward, layers_of
from learned_samplers.learned.sampler import REGISTRY
from tests.learned_samplers.learned.cases import make_card, make_network, network, parameter, rewrite_card
from tests.learned_samplers.learned.flat_keywords import L2E, KineticL2E, MetaSGMCMC, PrecondL2E

NAN = float("nan")


def not_finite():
    module = network()
    with torch.no_grad():
        module[0].weight[0, 0] = NAN
    return module


def a_layer_twice():
    same = nn.Linear(4, 4)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), same, nn.ReLU(), same)


# ------------------------------------------------------------------ settings, from their declarations

#: Values that a check refuses, by its name.
BAD = {
    "number": ("no such", NAN, [1], True),
    "non_negative": ("no such", NAN, [1], True, -1.0),
    "positive": ("no such", NAN, [1], True, -1.0, 0.0),
    "fraction": ("no such", NAN, [1], True, -0.5, 1.5),
    "integer": ("no such", NAN, [1], True, 1.5, 0),
    "truth": ("no such", NAN, [1], 1, None),
    "one_of": ("no such", NAN, [1], 0, True),
    "_at_least_one": ("no such", NAN, [1], True, 0.5),
}
SETTINGS = [
    (settings, name, value)
    for settings in (sampler.settings_class for sampler in REGISTRY.values())
    for name, declared in settings_of(settings).items()
    for value in BAD[getattr(declared.check, "func", declared.check).__name__]
]


@pytest.mark.parametrize(("settings", "name", "value"), SETTINGS)
def test_every_setting_out_of_range_or_of_a_wrong_type_is_named(settings, name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        settings(**{name: value})


# ------------------------------------------------------------------ arguments, networks, contradictions


def make(cls, **keywords):
    """The call of a constructor; a row needs only what is wrong."""
    return lambda: cls([parameter()], **{"network": None, "lr": 0.1, "num_data": 10, **keywords})


def mixed(layer, row, column):
    """A network of `MetaSGMCMC` whose halves see each other."""
    phi = layers_of(build_meta_network((7, 4)))
    with torch.no_grad():
        phi[layer][0][row, column] = 0.5
    return lambda: check_meta_network(phi)


def sequential(*layers):
    return lambda: layers_of(nn.Sequential(*layers))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        *((make(cls, lr=None), ValueError, "lr") for cls in (L2E, KineticL2E, MetaSGMCMC, PrecondL2E)),
        (make(L2E, network=3), TypeError, "network"),
        (make(L2E, network="no-such-weights"), ValueError, "no-such-weights"),
        (make(L2E, network="nowhere/l2e.safetensors"), FileNotFoundError, "nowhere"),
        (make(L2E, network=nn.ReLU()), ValueError, "network"),
        (make(L2E, network=network("adaptive")), ValueError, "network"),
        (make(L2E, network=network(outputs=1)), ValueError, "network"),
        (make(L2E, network=not_finite()), ValueError, "network"),
        (make(L2E, settings={"friction": "algorithm2"}), ValueError, "friction"),
        (make(L2E, settings={"noise_multiplier": 1.0}), ValueError, "noise_multiplier"),
        (make(L2E, form="paper", num_data_in_training=9.0), ValueError, "num_data_in_training"),
        (make(L2E, attenuated=True), ValueError, "attenuated"),
        (make(L2E, total_steps=10), ValueError, "total_steps"),
        (make(L2E, gated=True, form="paper"), ValueError, "gated"),
        (make(L2E, gated=True, normalise_output=True), ValueError, "gated"),
        (make(L2E, settings={"mean_scale": 1.0}), ValueError, "mean_scale"),
        (make(L2E, settings=3), TypeError, "settings"),
        (make(L2E, settings=KineticSettings()), TypeError, "settings"),
        (make(L2E, settings=L2ESettings(), form="residual"), ValueError, "form"),
        (make(L2E, settings={"form": "paper"}, form="residual"), ValueError, "form"),
        (make(L2E, network="l2e", settings=L2ESettings(form="paper", feature_set="adaptive")), ValueError, "form"),
        (make(KineticL2E, network=network()), ValueError, "network"),
        (make(PrecondL2E, feature_set="matrix"), ValueError, "feature_set"),
        (make(PrecondL2E, network=network("adaptive")), ValueError, "network"),
        (lambda: PrecondL2E([parameter()], 0.1, 10, network=None, form="paper"), TypeError, "form"),
        (make(MetaSGMCMC, network=build_network(9, (4,))), ValueError, "network"),
        (make(MetaSGMCMC, network=build_network(3, (4,), zero_last=False)), ValueError, "network"),
        (lambda: KineticSettings.given(alpha_scale=2.0), ValueError, "alpha_scale"),
        (lambda: L2ESettings.from_card({"scales": {"curl_clip": 1.0}}), ValueError, "curl_clip"),
        (lambda: L2E([{"params": [parameter()], "beta_scale": 0.3}], 0.1, 10, network=None), ValueError, "beta_scale"),
        (lambda: feature_set_named("rich"), ValueError, "feature_set"),
        (lambda: layers_of(3), TypeError, "network"),
        (sequential(nn.Linear(9, 4), nn.Linear(5, 2)), ValueError, "layer 1"),
        (sequential(nn.Linear(9, 2, bias=False)), ValueError, "layer 0"),
        (sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), ValueError, "layer 1 is Tanh"),
        (sequential(nn.Linear(3, 4), nn.Linear(4, 2)), ValueError, "layer 1 is Linear"),
        (sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout()), ValueError, "layer 2 is Dropout"),
        (lambda: layers_of(a_layer_twice()), ValueError, "layer 4"),
        (lambda: update_averages(torch.zeros(8, 3).bfloat16(), parameter(), "adaptive"), ValueError, "bfloat16"),
        (lambda: registered("SGHMC"), ValueError, "SGHMC"),
        *((lambda x=x: Segments(x), ValueError, "lengths of Segments must be positive") for x in ((), (3, 0), (-1,))),
        *(
            (mixed(*place), ValueError, "must keep f_Q and f_D apart")
            for place in ((0, 0, 2), (1, 0, 9), (1, 7, 0), (2, 0, 4), (2, 1, 0))
        ),
    ],
)
def test_bad_arguments_settings_and_networks_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


# ------------------------------------------------------------------ saved states


def put(key, index, value):
    """Change of one number in a saved state."""

    def change(saved):
        saved["state"][0][key].view(-1)[index] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("averages", -1, -1e-9), "averages of parameter .* hold negative means of squares"),
        (put("averages", -1, NAN), "averages of parameter .* is not finite"),
        (put("whitening", 0, -1e-9), "whitening of parameter .* holds negative variances"),
        (put("whitening", 0, float("inf")), "whitening of parameter .* is not finite"),
        (put("momentum", 0, NAN), "momentum of parameter .* is not finite"),
        (lambda saved: saved["state"][0].pop("averages"), "averages"),
        (lambda saved: saved["state"][0].update(averages=torch.zeros(2, 3)), "averages of parameter .* has shape"),
        (lambda saved: saved["state"][0].update(averages=3), "averages of parameter .* must be a real"),
        (lambda saved: saved["state"][0].update(whitening=torch.zeros(2, 1, 3, 3)), "whitening of parameter .* shape"),
        (lambda saved: saved["sampler"].update(network=None), "network"),
        (lambda saved: saved["sampler"].update(network={}), "network"),  # of a version that did not save the settings
        (lambda saved: saved["sampler"].update(network={"settings": 3}), "which network"),
        (lambda saved: saved["sampler"].update(network={"settings": {}, "sha256": ""}), "other settings"),
        (lambda saved: saved["sampler"]["network"].update(sha256=3), "another network"),
    ],
)
def test_a_damaged_state_is_refused_before_anything_changes(change, words):
    matrix = torch.ones(3, 2, requires_grad=True)
    sampler = L2E([matrix], num_data=10)
    matrix.grad = torch.ones(3, 2)
    sampler.step()
    saved = copy.deepcopy(sampler.state_dict())
    saved["sampler"].pop("checksum")
    sampler.step()
    before = copy.deepcopy(sampler.state_dict())
    change(saved)
    with pytest.raises(ValueError, match=words):
        sampler.load_state_dict(saved)
    after = sampler.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert all(torch.equal(value, after["state"][0][key]) for key, value in before["state"][0].items())
    assert torch.equal(after["sampler"]["rng"]["cpu"], before["sampler"]["rng"]["cpu"])


# ------------------------------------------------------------------ a forward of one's own


class Own(nn.Module):
    """Two layers in a class of the user's own; ``between`` is what stands between them."""

    def __init__(self, between, last_first=False):
        super().__init__()
        made = {"first": nn.Linear(3, 3), "second": nn.Linear(3, 3 if last_first else 2)}
        for name in sorted(made, reverse=last_first):
            setattr(self, name, made[name])
        self.between = between
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, x):
        return self.second(self.between(self.first(x)))


class Halved(nn.Sequential):
    """The layers in order, and something done to what they give."""

    def forward(self, x):
        return 0.5 * super().forward(x)


def test_a_module_of_ones_own_may_compute_what_the_rule_does():
    check_forward(Own(nn.ReLU()))
    check_forward(Own(nn.ReLU()).half())
    held = Own(nn.Tanh())
    held.__class__ = type("Held", (nn.Module,), {})  # no forward: it only holds the layers
    check_forward(held)


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (Own(nn.Tanh()), "Own"),  # also where the last layer is zero
        (Own(nn.Sequential(nn.ReLU(), nn.Dropout(0.5))), "Own"),
        (Own(nn.ReLU(), last_first=True), "order"),
        (Halved(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), "Halved"),
        (Own(nn.Flatten(0)), "network's forward"),
    ],
)
def test_another_forward_is_refused(module, named, tmp_path):
    for call in (check_forward, lambda each: weights.save(tmp_path / "own.safetensors", each, {})):
        with pytest.raises(ValueError, match=named):
            call(module)
    assert not list(tmp_path.iterdir())
    wider = copy.deepcopy(module)
    if isinstance(wider, Own):
        wider.first, wider.second = nn.Linear(9, 4), nn.Linear(4, 2)
        with pytest.raises(ValueError, match="network"):
            L2E([parameter()], 0.01, 100, network=wider)


# ------------------------------------------------------------------ weight files and cards


LAYERS = [[5, 9], [4, 5], [2, 4]]


def other_weights(path):
    weights.save(path.with_name("other.safetensors"), make_network(seed=1), make_card())
    path.write_bytes(path.with_name("other.safetensors").read_bytes())


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.write_bytes(b""),
        lambda p: p.write_bytes(p.read_bytes()[:-7]),
        lambda p: p.write_bytes(p.read_bytes()[:-1] + bytes([p.read_bytes()[-1] ^ 1])),
        lambda p: torch.save({"w": torch.zeros(2)}, p),
        other_weights,
    ],
)
def test_damaged_weights_are_refused_by_name_also_with_a_card_of_their_own(file, damage):
    damage(file)
    with pytest.raises(ValueError, match=r"test\.safetensors: .*not the weights"):
        L2E([parameter()], num_data=10, network=file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    rewrite_card(file, lambda card: card.update(sha256=digest, layers=[*LAYERS[:2], [3, 4]]))
    with pytest.raises(ValueError, match=r"test\.safetensors: (not a safetensors file|holds)"):
        weights.load(file)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("licence", None, "licence"),
        ("sha256", None, "sha256"),
        ("format", None, "format"),
        ("version", 2, "version"),
        ("scales", 3, "scales"),
        ("meta_training", {}, "meta_training"),
        ("layers", [], "layers"),
        ("layers", [[5, 9], [4, 6], [2, 4]], "layers"),
        ("layers", [[5, 9], [4, 5], [2, 10**9]], "layers"),
        ("layers", [[5, 9], [4, True], [2, 4]], "layers"),
        ("layers", [[5, 9], [2, 5]], "layers"),
        ("features", ["gradient"], "features"),
        ("defaults", {"lr": 0.1, "foo": 1}, "foo"),
        ("defaults", {"lr": "0.1"}, "lr"),
        ("defaults", {"lr": -1.0}, "lr"),
        ("defaults", {"momentum_decay": 0}, "momentum_decay"),
        ("sha256", 3, "sha256"),
        ("sha256", "0" * 64, "not the weights"),
    ],
)
def test_damaged_cards_are_refused_by_name_and_reason(file, key, value, named):
    rewrite_card(file, lambda card: card.pop(key) if value is None else card.update({key: value}))
    with pytest.raises(ValueError, match=rf"test\.(json|safetensors): .*{named}"):
        weights.load(file)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '{"format": 1}', "[" * 100_000])
def test_cards_that_are_no_cards(file, text):
    weights.card_path(file).write_text(text)
    with pytest.raises(ValueError, match=r"test\.json: "):
        weights.load(file)
    weights.card_path(file).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"test\.json: truncated or not JSON"):
        weights.load(file)


def test_sizes_that_a_card_or_a_file_claims_are_not_believed(file, monkeypatch):
    def forbidden(*arguments):
        raise AssertionError("made before the file was compared with the card")

    with monkeypatch.context() as patch:
        patch.setattr(nn.utils, "skip_init", forbidden)
        rewrite_card(file, lambda card: card.update(layers=[[9999, 9], *[[9999, 9999]] * 500, [2, 9999]]))
        with pytest.raises(ValueError, match=r"test\.safetensors: holds .* the card's layers need") as error:
            weights.load(file)
    assert len(str(error.value)) < 1000
    with open(file, "r+b") as content:
        content.truncate(10**12)  # a hole: no such file is on the disk
    rewrite_card(file, lambda card: card.update(layers=LAYERS))
    with pytest.raises(ValueError, match=r"test\.safetensors: 1000000000000 bytes are too many"):
        weights.load(file)
    with open(weights.card_path(file), "r+b") as content:
        content.truncate(10**12)
    with pytest.raises(ValueError, match=r"test\.json: 1000000000000 bytes are too many"):
        weights.load(file)


def test_missing_files_are_named(file, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such weight file: .*nowhere\.safetensors"):
        L2E([parameter()], num_data=10, network=tmp_path / "nowhere.safetensors")
    weights.card_path(file).rename(tmp_path / "alone.json")
    with pytest.raises(FileNotFoundError, match=r"no such card: .*test\.json"):
        weights.load(file)
    with pytest.raises(FileNotFoundError, match=r"no such weight file: .*alone\.safetensors"):
        weights.load(tmp_path / "alone.safetensors")


def swap_features(card):
    card["features"][0], card["features"][1] = card["features"][1], card["features"][0]


@pytest.mark.parametrize(
    ("change", "asked", "named"),
    [
        (lambda card: None, {"form": "paper"}, "form"),
        (lambda card: None, {"feature_set": "adaptive"}, "feature_set"),
        *((lambda card, form=form: card.update(form=form), {}, "form") for form in ("x", None, 3, [], {"a": 1})),
        (swap_features, {}, "features"),
        (lambda card: card.update(feature_set="long gone"), {}, "feature_set"),
        (lambda card: card["scales"].update(total_steps=10), {}, "total_steps"),
        (lambda card: card.update(scales={"noise_multiplier": 1e-3}), {}, "noise_multiplier"),
    ],
)
def test_a_card_that_contradicts_itself_or_what_is_asked(file, change, asked, named):
    rewrite_card(file, change)
    with pytest.raises(ValueError, match=rf"test\.safetensors: .*{named}") as error:
        L2E([parameter()], num_data=10, network=file, **asked)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "module", "change", "error", "named"),
    [
        ("a.safetensors", make_network(), {"licence": None}, TypeError, "licence"),
        ("a.safetensors", make_network(), {"features": ["a"]}, ValueError, "features"),
        ("a.safetensors", make_network(), {"metrics": {"nll": NAN}}, ValueError, "Out of range float"),
        ("a.safetensors", not_finite(), {}, ValueError, "linear_0"),
        ("a.pt", make_network(), {}, ValueError, "path"),
        ("a.safetensors", nn.Sequential(nn.Linear(9, 2, bias=False)), {}, ValueError, "bias"),
    ],
)
def test_nothing_is_written_for_a_bad_card_or_network(tmp_path, name, module, change, error, named):
    with pytest.raises(error, match=named):
        weights.save(tmp_path / name, module, make_card(**change))
    assert not list(tmp_path.iterdir())
