"""Runs on several tasks in one batch: each member does what it does alone, by common random numbers."""

from dataclasses import replace

import pytest
import torch

from meta_tasks.inner_loop import Run, Schedule, Unroll, unrolls_of
from meta_tasks.objectives import BMALoss
from meta_tasks.rules.classical import CyclicalRule, PSGLDRule, SGHMCRule
from meta_tasks.rules.learned import KineticRule, L2ERule, PrecondL2ERule
from meta_tasks.tasks import TaskStack
from tests.meta_tasks.toy_tasks import QuadraticTask, image_task

SCHEDULE = Schedule(12, 6, 2)
#: Settings of three tasks of one network; each differs from the others in all that a batch may mix.
SETTINGS = (
    {"lr": 0.05, "prior_precision": 3.0, "seed": 1},
    {"lr": 0.2, "temperature": 0.1, "num_data": 23, "seed": 2},
    {"lr": 0.1, "momentum_decay": 0.5, "num_data": 41, "weight_scale_spread": 0.5, "seed": 3},
)
MLP = ("mlp", {"hidden": (6,)})
#: Scales at which the learned terms are as large as the others.
BY_MEMBER = {
    "sghmc": SGHMCRule(),
    "psgld": PSGLDRule(),
    "cyclical": CyclicalRule(4, 0.5),
    "kinetic": KineticRule((4,)),
    "paper": L2ERule("paper", "paper", (5,), alpha_scale=0.5, beta_scale=0.5),
    "linear": L2ERule("paper", "paper", (), alpha_scale=0.5, beta_scale=0.5),
    "residual": L2ERule("residual", "paper", (5,), num_data_in_training=40),
    "precond": PrecondL2ERule("paper", (5,)),
}


def runs(rule, network=MLP, settings=SETTINGS):
    """Two groups on each task."""
    return [Run(image_task(*network, **changes), rule, (10 * i, 10 * i + 1)) for i, changes in enumerate(settings)]


def weights_of(rule, members):
    torch.manual_seed(0)
    return rule.initial_weights(0) + 0.1 * torch.randn(members, rule.num_weights)


def assert_each_does_what_it_does_alone(made, rule, schedule=SCHEDULE, tolerance=2e-4):
    weights, losses = weights_of(rule, 4 * len(made)), torch.zeros(len(made), 4, dtype=torch.float64)
    for numbers, unroll in unrolls_of(made, BMALoss, schedule, curve_every=3):
        rows = torch.cat([torch.arange(4 * number, 4 * number + 4) for number in numbers])
        unroll.advance(weights[rows])
        losses[numbers] = unroll.losses().view(-1, 4)
        for place, number in enumerate(numbers):
            alone = Unroll(made[number].task, rule, BMALoss, schedule, made[number].seeds, curve_every=3)
            alone.advance(weights[4 * number : 4 * number + 4])
            members = slice(4 * place, 4 * place + 4)
            torch.testing.assert_close(unroll.parameter[members], alone.parameter, rtol=2e-3, atol=tolerance)
            torch.testing.assert_close(losses[number], alone.losses(), rtol=1e-3, atol=tolerance)
            torch.testing.assert_close(unroll.curves()[members], alone.curves(), rtol=1e-3, atol=tolerance)
            for name, scale in alone.output_scales.items():
                torch.testing.assert_close(unroll.output_scales[name][members], scale, rtol=2e-3, atol=tolerance)
    return losses


@pytest.mark.parametrize("name", BY_MEMBER)
def test_members_of_several_tasks_do_in_one_batch_what_they_do_alone(name):
    rule = BY_MEMBER[name]
    made = runs(rule)
    assert [numbers for numbers, _ in unrolls_of(made, BMALoss, SCHEDULE)] == [[0, 1, 2]]
    losses = assert_each_does_what_it_does_alone(made, rule, tolerance=2e-2 if name == "kinetic" else 2e-4)
    assert len(losses.unique()) >= 6  # tasks and seeds differ


@pytest.mark.parametrize("network", [MLP, ("mlp", {"hidden": (6, 5), "activation": "silu"}), ("cnn", None)])
def test_every_network_by_hand_takes_several_tasks(network):
    made = runs(SGHMCRule(), network)
    assert len(unrolls_of(made, BMALoss, SCHEDULE)) == 1
    assert_each_does_what_it_does_alone(made, SGHMCRule())


def test_a_rule_whose_context_has_the_settings_shares_a_batch_where_they_are_the_same():
    rule, context = L2ERule("residual", "adaptive", (4,)), SETTINGS[1]
    made = runs(rule, settings=(SETTINGS[0], context, SETTINGS[0] | {"seed": 9}, context))
    assert [numbers for numbers, _ in unrolls_of(made, BMALoss, SCHEDULE)] == [[0, 2], [1, 3]]
    assert_each_does_what_it_does_alone(made, rule)


def test_what_does_not_fit_together_runs_apart(monkeypatch):
    rule, first = SGHMCRule(), SETTINGS[0]
    alone = [
        first | {"temperature": 0.0},  # draws no noise
        first | {"num_data": 9},  # minibatches of 9
        first | {"classes": (0, 1)},
        first | {"batch_size": 8},
        first | {"size": 10},
        first | {"validation_size": 9},
    ]
    made = runs(rule, settings=(first, *alone))
    made += [Run(QuadraticTask(), rule, (1, 2)), Run(QuadraticTask(), rule, (1, 2))]
    made += [Run(made[0].task, SGHMCRule(), (1, 2)), Run(made[0].task, rule, (1,)), Run(made[0].task, rule, (5, 6))]
    last = len(made) - 1
    assert [numbers for numbers, _ in unrolls_of(made, BMALoss, SCHEDULE)] == [
        [0, last],
        *([i] for i in range(1, last)),
    ]
    with pytest.raises(ValueError, match="one signature"):
        TaskStack([made[0].task, made[3].task], 4)
    # So many members that their state leaves the processor's cache are no batch.
    many, total = [replace(made[0], seeds=(i, i + 1)) for i in range(6)], made[0].task.segments.total
    monkeypatch.setattr("meta_tasks.inner_loop.batching._MOST_NUMBERS", 9 * total)
    assert [numbers for numbers, _ in unrolls_of(many, BMALoss, SCHEDULE)] == [[0, 1], [2, 3], [4, 5]]


def test_data_that_tasks_share_is_kept_once():
    task = image_task(*MLP)
    stack = TaskStack([task, task, image_task(*MLP, num_data=20)], 2)
    x, _, begin = stack.train
    assert len(x) == 60 + 20
    assert begin.flatten().tolist() == [0, 0, 60]
    assert TaskStack([task, task], 2).train[0] is task.train[0]


def test_a_batch_cut_in_two_and_restored_is_the_batch_that_was_never_cut():
    rule = BY_MEMBER["paper"]
    weights = weights_of(rule, 12)

    def batch():
        ((_, unroll),) = unrolls_of(runs(rule), BMALoss, Schedule(80, 70, 2), curve_every=9)
        return unroll

    reference, first, second = batch(), batch(), batch()
    reference.advance(weights)
    first.advance(weights, 37)
    second.load_state_dict(first.state_dict())
    second.advance(weights)
    assert torch.equal(second.parameter, reference.parameter)
    assert torch.equal(second.losses(), reference.losses())
    assert torch.equal(second.curves(), reference.curves())


def test_tasks_whose_data_bound_their_minibatches_share_one():
    small, other = (image_task(*MLP, **sizes) for sizes in ({"batch_size": 64, "num_data": 20}, {"batch_size": 20}))
    rule = SGHMCRule()
    made = [Run(task, rule, (k,)) for k, task in enumerate((small, other))]
    ((numbers, unroll),) = unrolls_of(made, BMALoss, SCHEDULE)
    assert numbers == [0, 1]
    unroll.advance(torch.zeros(len(unroll.parameter), 0))
    assert unroll.parameter.isfinite().all()
