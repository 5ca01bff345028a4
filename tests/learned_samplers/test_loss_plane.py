"""The plane through three samples: a loss that is known there, distances, and what is refused."""

import numpy as np
import pytest
import torch

from learned_samplers.diagnostics import loss_plane


def states(count=3, seed=0):
    stream = torch.Generator().manual_seed(seed)
    return [{"a": torch.randn(4, 3, generator=stream), "b": torch.randn(5, generator=stream)} for _ in range(count)]


def flat(state):
    return torch.cat([tensor.double().flatten() for tensor in state.values()])


def test_a_quadratic_is_a_paraboloid_of_the_coordinates():
    """‖θ − θ₁‖² is the squared distance to the origin of the plane."""
    three = states()
    plane = loss_plane(three, lambda state: (flat(state) - flat(three[0])).square().sum(), num_points=7)
    expected = plane.across**2 + plane.down[:, None] ** 2
    np.testing.assert_allclose(plane.losses, expected, rtol=1e-5, atol=1e-5)


def test_distances_on_the_plane_are_those_between_the_weights():
    three = states()
    plane = loss_plane(three, lambda state: 0.0, num_points=3)
    for i in range(3):
        for j in range(3):
            apart = float((flat(three[i]) - flat(three[j])).norm())
            assert np.linalg.norm(plane.corners[i] - plane.corners[j]) == pytest.approx(apart, abs=1e-6)
    assert plane.corners[0].tolist() == [0, 0]
    assert plane.corners[1][1] == 0
    assert plane.corners[2][1] > 0


def test_the_grid_is_a_square_with_the_samples_inside():
    plane = loss_plane(states(), lambda state: 0.0, num_points=5, margin=0.25)
    sides = [axis[-1] - axis[0] for axis in (plane.across, plane.down)]
    assert sides[0] == pytest.approx(sides[1])
    assert sides[0] == pytest.approx(1.5 * np.ptp(plane.corners, axis=0).max())
    assert (plane.across[0] < plane.corners[:, 0]).all()
    assert (plane.corners[:, 1] < plane.down[-1]).all()


def test_the_loss_gets_the_weights_in_their_shapes_and_at_least_in_float32():
    three = [{name: tensor.bfloat16() for name, tensor in state.items()} for state in states()]
    seen = []
    loss_plane(three, lambda state: seen.append(state) or 0.0, num_points=3)
    assert len(seen) == 9
    assert all(state["a"].dtype == torch.float32 and state["a"].shape == (4, 3) for state in seen)


def test_what_cannot_span_a_plane_is_refused():
    first, second, third = states()
    between = {name: 0.3 * first[name] + 0.7 * second[name] for name in first}
    for wrong, message in (
        ([first, second], "samples must be three, got 2"),
        ([first, first, second], "must not lie on one line, the first two are the same"),
        ([first, second, first], "must not lie on one line"),
        ([first, second, between], "must not lie on one line"),
        ([first, second, {"a": third["a"]}], "different parameters"),
    ):
        with pytest.raises(ValueError, match=message):
            loss_plane(wrong, lambda state: 0.0)
    with pytest.raises(ValueError, match="num_points"):
        loss_plane([first, second, third], lambda state: 0.0, num_points=2)
    with pytest.raises(ValueError, match="margin"):
        loss_plane([first, second, third], lambda state: 0.0, margin=-1)
    with pytest.raises(ValueError, match="loss must be finite, got nan"):
        loss_plane([first, second, third], lambda state: float("nan"))
