"""Networks of the user's own class that compute something else than their layers."""

import pytest
from torch import nn

from learned_samplers.learned.network import check_forward
from learned_samplers.learned.weights import save
from tests.learned_samplers.learned.flat_keywords import L2E


class Own(nn.Module):
    """Two layers in a class of the user's own; ``between`` is what stands between them."""

    def __init__(self, between, last_first=False):
        super().__init__()
        names = ("second", "first") if last_first else ("first", "second")
        for name in names:
            setattr(self, name, nn.Linear(3, 3) if name == "first" else nn.Linear(3, 2 if not last_first else 3))
        self.between = between
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, x):
        return self.second(self.between(self.first(x)))


class Halved(nn.Sequential):
    """The layers in order, and something done to what they give."""

    def forward(self, x):
        return 0.5 * super().forward(x)


def test_a_module_of_ones_own_has_to_compute_what_the_rule_does():
    check_forward(Own(nn.ReLU()))
    check_forward(Own(nn.ReLU()).half())
    held = Own(nn.Tanh())
    held.__class__ = type("Held", (nn.Module,), {})  # no forward: it only holds the layers
    check_forward(held)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Own(nn.Tanh()), "Own gives something else"),  # also where the last layer is zero
        (Own(nn.Sequential(nn.ReLU(), nn.Dropout(0.5))), "Own gives something else"),
        (Own(nn.ReLU(), last_first=True), "in the order in which they were made"),
        (Halved(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), "Halved gives something else"),
        (Own(nn.Flatten(0)), r"network's forward fails on features \(16, 3\)"),
    ],
)
def test_another_forward_is_refused(network, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        check_forward(network)
    with pytest.raises(ValueError, match=message):
        save(tmp_path / "own.safetensors", network, {})
    assert not list(tmp_path.iterdir())


def test_a_sampler_refuses_a_forward_that_it_would_not_compute(tmp_path):
    model = nn.Linear(2, 1)
    network = Own(nn.Tanh())
    network.first, network.second = nn.Linear(9, 4), nn.Linear(4, 2)
    with pytest.raises(ValueError, match="Own gives something else"):
        L2E(model.parameters(), 0.01, 100, network=network, feature_set="paper")
    network.between = nn.ReLU()
    L2E(model.parameters(), 0.01, 100, network=network, feature_set="paper")
