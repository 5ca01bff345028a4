"""The linear direction and gate: what they start as, what each meta-parameter does, and what they refuse."""

from dataclasses import replace

import pytest
import torch

from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.l2e import L2ESettings
from learned_samplers.learned.network import apply_network, layers_of
from meta_tasks.rules.learned import L2ERule
from meta_tasks.rules.linear import L2ELinearRule
from tests.meta_tasks.rules.test_learned import weight_file

SETTINGS = L2ESettings(feature_set="matrix", beta_scale=10.0, friction_scale=0.0, num_data_in_training=50_000.0)
NAMES = FEATURE_SETS["matrix"].names


def linear(**changes):
    return L2ELinearRule("matrix_direction", 0.5, **{"settings": SETTINGS, **changes})


def outputs(rule, weights, x):
    return [y[0] for y in apply_network(rule.prepare(weights[None]), x[None])]


@pytest.mark.parametrize("normalised", [False, True])
def test_direction_and_gate_are_linear(normalised):
    """A normalised output leaves the direction alone to learn."""
    rule = linear(settings=replace(SETTINGS, normalise_output=normalised))
    assert rule.names[:4] == ("gradient", "parameter", "momentum", "average_0.1")
    assert len(rule.names) == rule.num_weights == (13 if normalised else 13 + 16 + 1)
    assert rule.settings.gated == (not normalised)
    assert rule.specification()["learned"] == ("direction of length 1" if normalised else "direction and gate")
    torch.manual_seed(2)
    x = torch.randn(len(NAMES), 40)
    start = outputs(rule, rule.initial_weights(0), x)
    torch.testing.assert_close(start[1], -0.5 * x[NAMES.index("matrix_direction")])
    assert not start[0].any()
    weights = 0.3 * torch.randn(rule.num_weights)
    direction = x[NAMES.index("matrix_direction")].clone()
    gamma = torch.zeros(40) if normalised else weights[-1].expand(40).clone()
    for name, weight in zip(rule.names, weights, strict=True):
        if name.startswith("gate "):
            gamma += weight * x[NAMES.index(name.removeprefix("gate "))]
        elif name != "gate":
            direction += 0.3 * weight * x[NAMES.index(name)]
    alpha, beta = outputs(rule, weights, x)
    torch.testing.assert_close(beta, -0.5 * direction * gamma.clamp(-6, 6).exp(), rtol=1e-4, atol=1e-5)
    assert not alpha.any()
    again = apply_network([(w[None], b[None]) for w, b in layers_of(rule.network(weights))], x[None])
    torch.testing.assert_close(again[1][0], beta)
    if not normalised:  # members have meta-parameters of their own
        both = apply_network(rule.prepare(torch.stack([torch.zeros(30), weights])), x.expand(2, -1, -1))
        torch.testing.assert_close(both[1], torch.stack([start[1], beta]))


def test_a_direction_keeps_its_length_and_a_gate_its_freedom():
    rule = linear(settings=replace(SETTINGS, normalise_output=True), direction_share=0.7)
    place = rule.names.index("matrix_direction")
    assert torch.equal(rule.constrained(torch.zeros(13)), torch.zeros(13))
    torch.manual_seed(0)
    weights = torch.randn(13)
    before, after = 0.7 * weights, 0.7 * rule.constrained(weights)
    before[place] += 1
    after[place] += 1
    torch.testing.assert_close(after, before / before.norm())
    x = torch.randn(len(NAMES), 40)
    beta, held = outputs(rule, weights, x)[1], outputs(rule, rule.constrained(weights), x)[1]
    torch.testing.assert_close(held, beta / before.norm(), rtol=1e-4, atol=1e-5)
    assert linear().constrained(weights) is weights
    sparse = linear(settings=rule.settings, direction_share=0.7, sparsity=0.1)
    shrunk = 0.7 * sparse.constrained(weights)
    shrunk[place] += 1
    expected = torch.nn.functional.softshrink(after, 0.1)
    assert (expected == 0).any()
    torch.testing.assert_close(shrunk, expected / expected.norm())


def test_a_direction_may_leave_features_out(tmp_path):
    settings = replace(SETTINGS, normalise_output=True)
    rule, less = linear(settings=settings), linear(settings=settings, without=("parameter", "average_0.5"))
    assert less.names == tuple(name for name in rule.names if name not in ("parameter", "average_0.5"))
    assert less.specification()["without"] == ["parameter", "average_0.5"]
    torch.manual_seed(0)
    origin, weights = weight_file(tmp_path, rule)
    begun = linear(settings=settings, without=less._without, origin=origin).initial_weights(0)
    kept = weights[[rule.names.index(name) for name in less.names]]
    torch.testing.assert_close(begun, less.constrained(kept), rtol=1e-4, atol=1e-5)
    assert begun.ne(kept).any()  # its length is 1 again


def test_the_directions_share_of_the_perturbation():
    small, large = linear(), linear(direction_share=0.9)
    weights = 0.3 * torch.randn(30)
    scaled = torch.where(torch.arange(30) < 13, weights / 3, weights)
    torch.testing.assert_close(large.whole(scaled), small.whole(weights))
    assert large.specification()["direction_share"] == 0.9


@pytest.mark.parametrize(
    ("feature", "changes", "named"),
    [
        ("curvature", {}, "'curvature'"),
        ("gradient", {"settings": L2ESettings(form="paper")}, "form"),
        ("log_size", {"settings": replace(SETTINGS, normalise_output=True)}, "feature"),
        ("gradient", {"direction_share": 0}, "direction_share"),
        ("gradient", {"sparsity": 0.01}, "sparsity"),  # no length is held
        ("gradient", {"settings": replace(SETTINGS, normalise_output=True), "sparsity": 0.2}, "sparsity"),
        *(("gradient", {"without": (name,)}, f"without: {name}") for name in ("gradient", "log_size", "momenta")),
    ],
)
def test_bad_starts_and_forms_are_named(feature, changes, named):
    with pytest.raises(ValueError, match=named):
        L2ELinearRule(feature, **{"settings": SETTINGS, **changes})


def test_it_goes_on_from_what_it_learned_and_from_nothing_else(tmp_path):
    path, weights = weight_file(tmp_path, linear())
    again = linear(origin=path)
    torch.testing.assert_close(again.initial_weights(3), weights, rtol=1e-4, atol=1e-4)
    assert again.specification()["origin"] == again.initial_weights(0).tolist()
    wider = linear(origin=path, direction_share=0.9)
    torch.testing.assert_close(wider.whole(wider.initial_weights(0)), again.whole(weights), rtol=1e-4, atol=1e-4)
    free = L2ELinearRule("gradient", settings=SETTINGS, origin=path)  # any direction may be reached from any
    torch.testing.assert_close(free.whole(free.initial_weights(0)), again.whole(weights), rtol=1e-4, atol=1e-4)
    folder = tmp_path / "other"
    folder.mkdir()
    with_alpha, _ = weight_file(folder, L2ERule(hidden=(), settings=linear().settings))
    with pytest.raises(ValueError, match=r"origin: .* has an α, or features of other kinds"):
        linear(origin=with_alpha)
    with pytest.raises(ValueError, match=r"origin: .* is not of this rule with these settings"):
        linear(origin=path, settings=replace(SETTINGS, beta_scale=5.0))
