"""The linear direction and gate: what they start as, what each meta-parameter does, and what they refuse."""

from dataclasses import replace

import pytest
import torch

from learned_samplers.learned.features import FEATURE_SETS
from learned_samplers.learned.l2e import L2ESettings
from learned_samplers.learned.network import apply_network, layers_of
from meta_tasks.inner_loop.schedule import Schedule
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.objectives import BMALoss
from meta_tasks.rules.learned import L2ERule
from meta_tasks.rules.linear import L2ELinearRule
from tests.meta_tasks.rules.test_learned import weight_file
from tests.meta_tasks.toy_tasks import image_task

SETTINGS = L2ESettings(feature_set="matrix", beta_scale=10.0, friction_scale=0.0, num_data_in_training=50_000.0)
NAMES = FEATURE_SETS["matrix"].names


def linear(**changes):
    return L2ELinearRule("matrix_direction", 0.5, **{"settings": SETTINGS, **changes})


def outputs(rule, weights, x):
    return [y[0] for y in apply_network(rule.prepare(weights[None]), x[None])]


def test_direction_and_gate_are_linear():
    rule = linear()
    assert rule.names[:4] == ("gradient", "parameter", "momentum", "average_0.1")
    assert len(rule.names) == rule.num_weights == 13 + 16 + 1
    torch.manual_seed(2)
    x = torch.randn(len(NAMES), 40)
    start = outputs(rule, rule.initial_weights(0), x)
    torch.testing.assert_close(start[1], -0.5 * x[NAMES.index("matrix_direction")])
    assert not start[0].any()
    weights = 0.3 * torch.randn(30)
    direction = x[NAMES.index("matrix_direction")].clone()
    gamma = weights[-1].expand(40).clone()
    for name, weight in zip(rule.names[:-1], weights, strict=False):
        if name.startswith("gate "):
            gamma += weight * x[NAMES.index(name.removeprefix("gate "))]
        else:
            direction += 0.3 * weight * x[NAMES.index(name)]
    alpha, beta = outputs(rule, weights, x)
    torch.testing.assert_close(beta, -0.5 * direction * gamma.clamp(-6, 6).exp(), rtol=1e-4, atol=1e-5)
    assert not alpha.any()
    network = rule.network(weights)
    again = apply_network([(w[None], b[None]) for w, b in layers_of(network)], x[None])
    torch.testing.assert_close(again[1][0], beta)


def test_of_a_normalised_output_the_direction_alone_is_learned():
    rule = linear(settings=replace(SETTINGS, normalise_output=True))
    assert rule.num_weights == len(rule.names) == 13
    assert not rule.settings.gated
    assert rule.specification()["learned"] == "direction of length 1"
    torch.manual_seed(2)
    x, weights = torch.randn(len(NAMES), 40), torch.randn(13)
    direction = x[NAMES.index("matrix_direction")].clone()
    for name, weight in zip(rule.names, weights, strict=True):
        direction += 0.3 * weight * x[NAMES.index(name)]
    alpha, beta = outputs(rule, weights, x)
    torch.testing.assert_close(beta, -0.5 * direction, rtol=1e-4, atol=1e-5)
    assert not alpha.any()


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
    with pytest.raises(ValueError, match="feature must be a signed one of a weight where outputs are normalised, got"):
        L2ELinearRule(
            next(name for name in NAMES if name.startswith("log_")),
            settings=replace(SETTINGS, normalise_output=True),
        )


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
    for name in ("matrix_direction", "log_size", "momenta"):
        with pytest.raises(
            ValueError, match=f"without: {name}: not among the features that 'matrix_direction' is mixed"
        ):
            linear(without=(name,))


def test_the_directions_share_of_the_perturbation():
    small, large = linear(), linear(direction_share=0.9)
    weights = 0.3 * torch.randn(30)
    scaled = torch.where(torch.arange(30) < 13, weights / 3, weights)
    torch.testing.assert_close(large.whole(scaled), small.whole(weights))
    assert large.specification()["direction_share"] == 0.9
    with pytest.raises(ValueError, match=r"direction_share must be greater than 0, got 0"):
        linear(direction_share=0)


@pytest.mark.parametrize("normalised", [False, True])
def test_it_runs_on_tasks_and_is_the_start_of_a_wider_network(tmp_path, normalised):
    rule = linear(tell_horizon=1.0, settings=replace(SETTINGS, normalise_output=normalised))
    torch.manual_seed(3)
    path, weights = weight_file(tmp_path, rule)
    task = image_task(lr=1e-4, temperature=1.0)
    wide = L2ERule(hidden=(8, 8), start=path, settings=rule.settings, tell_horizon=1.0)
    ends = []
    for each, own in ((rule, weights), (wide, wide.initial_weights(1))):
        unroll = Unroll(task, each.for_run(6, 0), BMALoss, Schedule(6, 0, 1), [1])
        unroll.advance(own.expand(2, -1))
        ends.append(unroll.parameter)
    assert ends[0].isfinite().all()
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-4)
    assert rule.specification()["learned"] == ("direction of length 1" if normalised else "direction and gate")


def test_members_have_meta_parameters_of_their_own():
    rule = linear()
    weights = torch.stack([torch.zeros(30), torch.full((30,), 0.1)])
    x = torch.randn(len(NAMES), 5)
    both = apply_network(rule.prepare(weights), x.expand(2, -1, -1))
    for member in range(2):
        torch.testing.assert_close(both[1][member], outputs(rule, weights[member], x)[1])


def test_bad_starts_and_forms_are_named():
    with pytest.raises(ValueError, match="'curvature' is not a feature of the network"):
        L2ELinearRule("curvature", settings=SETTINGS)
    with pytest.raises(ValueError, match="gated=True needs form='residual'"):
        L2ELinearRule("gradient", settings=L2ESettings(form="paper"))


def test_it_goes_on_from_what_it_learned_and_from_nothing_else(tmp_path):
    path, weights = weight_file(tmp_path, linear())
    again = linear(origin=path)
    torch.testing.assert_close(again.initial_weights(3), weights, rtol=1e-4, atol=1e-4)
    assert again.specification()["origin"] == again.initial_weights(0).tolist()
    wider = linear(origin=path, direction_share=0.9)
    torch.testing.assert_close(wider.whole(wider.initial_weights(0)), again.whole(weights), rtol=1e-4, atol=1e-4)
    other = L2ELinearRule("gradient", settings=SETTINGS, origin=path)  # any direction may be reached from any
    torch.testing.assert_close(other.whole(other.initial_weights(0)), again.whole(weights), rtol=1e-4, atol=1e-4)
    folder = tmp_path / "other"
    folder.mkdir()
    with_alpha, _ = weight_file(folder, L2ERule(hidden=(), settings=linear().settings))
    with pytest.raises(ValueError, match=r"origin: .* has an α, or features of other kinds"):
        linear(origin=with_alpha)
    with pytest.raises(ValueError, match=r"origin: .* is not of this rule with these settings"):
        linear(origin=path, settings=replace(SETTINGS, beta_scale=5.0))
