"""Figures of networks."""

import pytest
import torch

from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.network import apply_network, build_network, layers_of
from meta_tasks.rules.contours import output_contours, output_grids
from meta_tasks.rules.learned import L2ERule, PrecondL2ERule


def titles(figure):
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


@pytest.mark.parametrize("feature_set", ["paper", "adaptive"])
def test_contours_show_what_the_network_puts_out(feature_set):
    rule = L2ERule("residual", feature_set)
    torch.manual_seed(0)
    trained = rule.prepare(rule.initial_weights(0) + 0.1 * torch.randn(rule.num_weights))
    figure = output_contours(trained, feature_set)
    assert titles(figure) == [
        *(f"|α| at momentum {at}" for at in ("−1", "0", "1")),
        *(f"|β| at parameter {at}" for at in ("−1", "0", "1")),
    ]
    assert len(figure.axes) == 8  # with a colour bar in each row
    # the largest value of β by hand, at the corners of the axes
    names, largest = FEATURE_SETS[feature_set].names, 0.0
    axis = torch.linspace(-3, 3, 41)
    gradient, momentum = (values.flatten() for values in torch.meshgrid(axis, axis, indexing="ij"))
    for parameter in (-1.0, 0.0, 1.0):
        x = torch.zeros(len(names), len(gradient))
        for i, name in enumerate(names):
            if name == "gradient" or name.startswith("average") or name.endswith("to_rms"):
                x[i] = gradient
        x[names.index("momentum")], x[names.index("parameter")] = momentum, parameter
        largest = max(largest, apply_network(trained, x)[1].abs().max().item())
    levels = figure.axes[3].collections[0].levels
    assert levels[-2] < largest <= levels[-1]


def test_an_untrained_network_is_said_to_put_out_nothing():
    rule = PrecondL2ERule()
    figure = rule.figures(rule.initial_weights(0))["contours"]
    assert len(figure.axes) == 6
    assert titles(figure)[0] == "|log Q| at momentum −1"
    assert all(axes.texts[0].get_text() == "0 everywhere" for axes in figure.axes)


def test_grids_hold_the_networks_outputs_at_their_places():
    torch.manual_seed(0)
    phi = layers_of(build_network(9, (6, 5), zero_last=False))
    grids = output_grids(phi, "paper")
    assert grids["alpha"].shape == grids["beta"].shape == (3, 41, 41)

    def at(gradient, parameter, momentum):
        outputs = apply_network(phi, torch.tensor([gradient, parameter, momentum, *[gradient] * 6])[:, None])
        return [output.abs() for output in outputs]

    # Rows: momentum for β at fixed θ, θ for α at fixed momentum; columns: the gradient and its averages.
    assert grids["beta"][2, 40, 0].item() == pytest.approx(at(-3.0, 1.0, 3.0)[1].item(), rel=1e-5)
    assert grids["alpha"][0, 30, 20].item() == pytest.approx(at(0.0, 1.5, -1.0)[0].item(), rel=1e-5)


def test_grids_move_the_ratios_along_with_the_gradient():
    """Adam's direction is a function of such a ratio alone."""
    rule = L2ERule("residual", "adaptive", (4,), start=("average_0.9_to_rms", 2.0))
    phi = [(w[0], b[0]) for w, b in rule.prepare(rule.initial_weights(0)[None])]
    grids = output_grids(phi, "adaptive")
    torch.testing.assert_close(grids["beta"], 2 * torch.linspace(-3, 3, 41).abs().expand(3, 41, 41))
    assert not grids["alpha"].any()
