"""Bad input to the particle samplers gets an error that names it, and the particles stay as they were."""

from __future__ import annotations

import pytest
import torch

from learned_samplers.particles import MOOSVGD, MTSGD, RBF, SVGD, LinearScalarisation, ParetoMTL
from tests.learned_samplers.particles.particle_problems import EVERY, SEVERAL, TwoHeads, energies, parameter

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("lr", 0.0, ValueError),
        ("lr", "fast", TypeError),
        ("num_data", 0, ValueError),
        ("num_data", None, TypeError),
        ("prior_precision", -1.0, ValueError),
        ("base_optimizer", "adam", TypeError),
        ("base_optimizer", dict, TypeError),
        ("generator", 3, TypeError),
    ],
)
def test_arguments(name, argument, value, error):
    kwargs = {"lr": 0.1, **{argument: value}}
    with pytest.raises(error, match=argument):
        EVERY[name]([parameter(4, 2)], kwargs.pop("lr"), **kwargs)


def test_a_base_optimizer_that_needs_a_closure():
    """There is no loss that it could evaluate; the first step failed."""
    with pytest.raises(TypeError, match="by the gradients alone, got LBFGS, whose step needs closure"):
        SVGD([parameter(4, 2)], 0.1, base_optimizer=torch.optim.LBFGS)
    for cls in (torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Rprop):
        SVGD([parameter(4, 2)], 0.1, base_optimizer=cls)


@pytest.mark.parametrize(
    ("cls", "kwargs", "error", "message"),
    [
        (SVGD, {"kernel": "rbf"}, TypeError, "kernel must be"),
        (SVGD, {"kernel_on": "outputs"}, ValueError, "kernel_on"),
        (SVGD, {"temperature": -1.0}, ValueError, "temperature"),
        (MTSGD, {"target_weights": "best"}, ValueError, "target_weights"),
        (MTSGD, {"target_weights": (0.5, 0.6)}, ValueError, "sum 1"),
        (MTSGD, {"target_weights": (1.5, -0.5)}, ValueError, "non-negative"),
        (MTSGD, {"target_weights": 3}, TypeError, "target_weights"),
        (MTSGD, {"gradient_normalisation": "l2"}, ValueError, "gradient_normalisation"),
        (MTSGD, {"kernel_on": "features"}, ValueError, "exact"),
        (MOOSVGD, {"kernel_on": "features"}, ValueError, "kernel_on"),
        (LinearScalarisation, {"target_weights": "exact"}, ValueError, "target_weights"),
        (ParetoMTL, {"preferences": [[1.0, 0.0]]}, ValueError, "row for each of 4"),
        (ParetoMTL, {"preferences": [[0.0, 0.0]] * 4}, ValueError, "without zero rows"),
        (ParetoMTL, {"preferences": [[NAN, 1.0]] * 4}, ValueError, "preferences"),
        (ParetoMTL, {"preferences": [1.0, 0.0]}, ValueError, "preferences"),
    ],
)
def test_arguments_of_their_own(cls, kwargs, error, message):
    with pytest.raises(error, match=message):
        cls([parameter(4, 2)], 0.1, **kwargs)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ([parameter(4, 2), parameter(3, 2)], ValueError, "3 particles"),
        ([("w", parameter(4, 2)), ("b", parameter(5))], ValueError, "'b' has 5 particles"),
        ([torch.zeros((), requires_grad=True)], ValueError, "leading particle axis"),
        ([torch.zeros(0, 2, requires_grad=True)], ValueError, "leading particle axis"),
        ([parameter(4, 2), parameter(4, 2, dtype=torch.float64)], ValueError, "float64"),
        ([torch.zeros(4, 2, dtype=torch.long)], TypeError, "int64"),
        ([], ValueError, "empty"),
        ([{"params": [parameter(4, 2)]}, {"params": []}], ValueError, "must not be empty"),
        ([{"params": {parameter(4, 2)}}], TypeError, "order"),
    ],
)
def test_parameters(name, params, error, message):
    with pytest.raises(error, match=message):
        EVERY[name](params, 0.1)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"task": 0, "shared": True}, "shared=True and task=0"),
        ({"shared": False}, "must name its task"),
        ({"task": -1}, "task"),
        ({"task": 0, "params": []}, "must not be empty"),
    ],
)
def test_roles(group, message):
    with pytest.raises(ValueError, match=message):
        MTSGD([{"params": [parameter(4, 2)]}, {"params": [parameter(4, 2)], **group}], 0.1)


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize(
    ("group", "message"),
    [
        (lambda x: {"params": [parameter(3, 2)], "task": 0}, "has 3 particles"),
        (lambda x: {"params": [torch.zeros((), requires_grad=True)]}, "leading particle axis"),
        (lambda x: {"params": [x], "task": 0}, "more than one parameter group"),
        (lambda x: {"params": [x]}, "more than one parameter group"),
        (lambda x: {"params": [parameter(4, 2)], "task": 0, "shared": True}, "shared=True and task=0"),
        (lambda x: {"params": [parameter(4, 2)], "lr": -1.0}, "lr"),
        (lambda x: {"params": [], "task": 0}, "must not be empty"),
        (lambda x: {"params": [p := parameter(4, 2), p]}, "'params\\[1\\]' is listed twice"),
    ],
)
def test_a_group_that_is_refused_changes_nothing(name, group, message):
    """Added to a sampler that has taken a step: it goes on as if nothing had been tried."""
    x = parameter(4, 2)
    sampler = SEVERAL[name]([x], 0.1, base_optimizer=torch.optim.Adam)
    sampler.step(lambda: energies(name, x))
    before, state = x.detach().clone(), str(sampler.state_dict())
    with pytest.raises(ValueError, match=message):
        sampler.add_param_group(group(x))
    assert torch.equal(x, before)
    assert str(sampler.state_dict()) == state
    assert len(sampler.base_optimizer.param_groups) == 1
    sampler.step(lambda: energies(name, x))
    assert not torch.equal(x, before)


@pytest.mark.parametrize("name", EVERY)
def test_the_same_parameter_twice(name):
    x = parameter(4, 2)
    with pytest.raises(ValueError, match="'again' is listed twice"):
        EVERY[name]([("x", x), ("again", x)], 0.1)


def test_trunk_and_head_share_no_parameter():
    x, y = parameter(4, 2), parameter(4, 2)
    with pytest.raises(ValueError, match="more than one parameter group"):
        MTSGD([{"params": [x, y]}, {"params": [y], "task": 0}], 0.1)


@pytest.mark.parametrize("name", EVERY)
def test_every_parameter_frozen(name):
    x, other = parameter(4, 2).detach(), parameter(4, 2)
    sampler = EVERY[name]([x], 0.1, base_optimizer=torch.optim.Adam)
    _unchanged(sampler, lambda: energies(name, other), ValueError, "every parameter is frozen")


def test_one_target_has_no_task_groups():
    with pytest.raises(ValueError, match="no task groups"):
        SVGD([{"params": [parameter(4, 2)], "task": 0}], 0.1)


def test_task_must_be_whole():
    with pytest.raises(TypeError, match="task"):
        MTSGD([{"params": [parameter(4, 2)], "task": "first"}], 0.1)


def _unchanged(sampler, closure, error, message):
    """The step raises, and neither particles nor counters nor the base optimizer have changed."""
    params = [p for group in sampler.param_groups for p in group["params"]]
    before, state = [p.detach().clone() for p in params], str(sampler.state_dict())
    with pytest.raises(error, match=message):
        sampler.step(closure)
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    assert str(sampler.state_dict()) == state


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda v: v.mean(), ValueError, "not be reduced"),
        (lambda v: v.mean(-1, keepdim=True), ValueError, "not be reduced"),
        (lambda v: v[..., :3], ValueError, "shape"),
        (lambda v: v[None, None], ValueError, "shape"),
        (lambda v: v.detach(), ValueError, "no graph"),
        (lambda v: v.tolist(), TypeError, "list"),
        (lambda v: v * NAN, FloatingPointError, "not finite"),
        (lambda v: None, TypeError, "NoneType"),
    ],
)
def test_losses(name, spoil, error, message):
    x = parameter(4, 2)
    sampler = EVERY[name]([x], 0.1, base_optimizer=torch.optim.Adam)
    _unchanged(sampler, lambda: spoil(energies(name, x)), error, message)


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (
            lambda a, b: [a, b.mean()],
            ValueError,
            r"loss 1 must have shape \(4,\), got \(\); losses must not be reduced",
        ),
        (lambda a, b: [a[:3], b], ValueError, "loss 0 must have shape"),
        (lambda a, b: [a[None], b], ValueError, "loss 0 must have shape"),
        (lambda a, b: [a, b.detach()], ValueError, "no graph under loss 1"),
        (lambda a, b: [a, 1.0], TypeError, "got float for loss 1"),
        (lambda a, b: [a, b * NAN], FloatingPointError, "not finite: loss 1"),
        (lambda a, b: [], ValueError, "at least one target"),
    ],
)
def test_lists_of_losses(name, spoil, error, message):
    x = parameter(4, 2)
    sampler = SEVERAL[name]([x], 0.1, base_optimizer=torch.optim.Adam)
    _unchanged(sampler, lambda: spoil(*energies(name, x)), error, message)


def test_one_target_takes_no_list():
    x = parameter(4, 2)
    _unchanged(SVGD([x], 0.1), lambda: [energies("SVGD", x)], TypeError, "got list")


@pytest.mark.parametrize("name", EVERY)
def test_infinite_gradient_names_the_parameter(name):
    x, y = parameter(4, 2), torch.zeros(4, 1, requires_grad=True)
    sampler = EVERY[name]([("x", x), ("root", y)], 0.1)
    _unchanged(sampler, lambda: energies(name, x) + y[:, 0].sqrt(), FloatingPointError, "'root' is not finite")


@pytest.mark.parametrize("name", EVERY)
def test_a_parameter_that_takes_no_part(name):
    x, y = parameter(4, 2), parameter(4, 2)
    sampler = EVERY[name]([("x", x), ("idle", y)], 0.1)
    _unchanged(sampler, lambda: energies(name, x), ValueError, "'idle' takes no part")


@pytest.mark.parametrize("name", SEVERAL)
def test_a_head_that_takes_no_part(name):
    x, y, z = parameter(4, 2), parameter(4, 2), parameter(4, 2)
    groups = [{"params": [x]}, {"params": [y], "task": 0}, {"params": [("idle", z)], "task": 1}]
    groups[0]["params"], groups[1]["params"] = [("x", x)], [("y", y)]
    sampler = SEVERAL[name](groups, 0.1)
    _unchanged(sampler, lambda: energies(name, x) + y.sum(1), ValueError, "'idle' takes no part in loss 1")


@pytest.mark.parametrize("name", EVERY)
def test_no_closure(name):
    x = parameter(4, 2)
    _unchanged(EVERY[name]([x], 0.1), None, ValueError, "needs a closure")


@pytest.mark.parametrize("name", EVERY)
def test_an_error_in_the_closure(name):
    x = parameter(4, 2)

    def closure():
        raise KeyError("no such batch")

    _unchanged(EVERY[name]([x], 0.1), closure, KeyError, "no such batch")


@pytest.mark.parametrize("name", SEVERAL)
def test_heads_that_do_not_fit_the_losses(name):
    net = TwoHeads()
    sampler = SEVERAL[name](net.groups()[:2], 0.1)
    _unchanged(sampler, net.losses, ValueError, "groups for \\[0\\]")
    sampler = SEVERAL[name](net.groups()[1:], 0.1)
    _unchanged(sampler, net.losses, ValueError, "no group of shared parameters")


def test_groups_that_disagree():
    net = TwoHeads()
    groups = net.groups()
    groups[1]["num_data"] = 5
    _unchanged(MTSGD(groups, 0.1), net.losses, ValueError, "num_data must be the same")


def test_wrong_number_of_fixed_weights_and_preferences():
    x = parameter(4, 2)
    _unchanged(MTSGD([x], 0.1, target_weights=(0.2, 0.3, 0.5)), lambda: energies("M", x), ValueError, "3 weights")
    three = torch.eye(3)[[0, 1, 2, 0]]
    _unchanged(ParetoMTL([x], 0.1, preferences=three), lambda: energies("M", x), ValueError, "3 columns")

    def closure():
        return energies("M", x)[[0, 1, 0]]

    _unchanged(ParetoMTL([x], 0.1), closure, ValueError, "preferences must be given for 3 targets")


def test_features():
    x = parameter(4, 2)
    sampler = SVGD([x], 0.1, kernel_on="features")
    _unchanged(sampler, lambda: energies("SVGD", x), ValueError, "closure that returns \\(losses, features\\)")
    _unchanged(sampler, lambda: (energies("SVGD", x), x[:3] * 1), ValueError, "features of shape")
    _unchanged(sampler, lambda: (energies("SVGD", x), x.detach()), ValueError, "no graph")


def test_one_particle_where_two_are_needed():
    x = parameter(1, 2)
    sampler = SVGD([x], 0.1, kernel=RBF("off_diagonal_median"))
    _unchanged(sampler, lambda: energies("SVGD", x), ValueError, "two particles")


@pytest.mark.parametrize("name", EVERY)
def test_particles_that_coincide_stay_finite_and_together(name):
    """The documented limit: no median, no repulsion, gradient descent in step. (Not Pareto MTL's.)"""
    x = torch.full((4, 2), 0.3, requires_grad=True)
    sampler = EVERY[name]([x], 0.1)
    for _ in range(3):
        sampler.step(lambda: energies(name, x))
    assert x.isfinite().all()
    assert (x != 0.3).any()
    if name != "ParetoMTL":
        torch.testing.assert_close(x, x[:1].expand(4, 2))


def test_a_kernel_that_overflows():
    x = parameter(4, 2)

    def kernel(points):
        matrix = RBF()(points)
        return matrix._replace(values=matrix.values * INF)

    _unchanged(SVGD([x], 0.1, kernel=kernel), lambda: energies("SVGD", x), FloatingPointError, "direction of the")
    # U is not finite before the direction is.
    _unchanged(MTSGD([x], 0.1, kernel=kernel), lambda: energies("M", x), FloatingPointError, "gram is not finite")


@pytest.mark.parametrize("name", EVERY)
def test_a_prior_mean_that_would_be_ignored_is_refused(name):
    with pytest.raises(ValueError, match="prior_mean must be None for"):
        EVERY[name]([{"params": [parameter()], "prior_mean": "initial"}], lr=0.1, prior_precision=1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_would_round_the_steps_away(dtype):
    with pytest.raises(TypeError, match="rounds the particles' steps away"):
        SVGD([torch.zeros(3, 2, dtype=dtype, requires_grad=True)], lr=0.1)
