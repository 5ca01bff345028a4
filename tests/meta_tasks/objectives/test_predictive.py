"""Meta-objectives against their formulas."""

import math

import pytest
import torch

from meta_tasks.objectives import OBJECTIVES, BMALoss, CELoss, Objective
from meta_tasks.training import TrainerSettings
from tests.meta_tasks.toy_runs import trainer


@pytest.fixture
def collected():
    torch.manual_seed(1)
    logits = 3 * torch.randn(4, 2, 6, 3, dtype=torch.float64)  # K, P, V, classes
    y = torch.randint(3, (2, 6))
    return logits.log_softmax(-1), y


def fill(objective, log_p, y):
    for sample in log_p:
        objective.add(sample, y)
    return objective


def test_bma_is_minus_the_log_of_the_mean_probability(collected):
    log_p, y = collected
    true = log_p.exp().mean(0).gather(-1, y[..., None])[..., 0]
    objective = fill(BMALoss(), log_p, y)
    torch.testing.assert_close(objective.loss(), -true.log().mean(-1))
    torch.testing.assert_close(objective.log_probabilities().exp(), log_p.exp().mean(0))
    assert torch.equal(objective.accuracy(), (log_p.exp().mean(0).argmax(-1) == y).double().mean(-1))


def test_ce_is_the_mean_of_the_single_losses_and_never_below_bma(collected):
    log_p, y = collected
    single = -log_p.gather(-1, y.expand(4, -1, -1)[..., None])[..., 0]
    ce = fill(CELoss(), log_p, y).loss()
    torch.testing.assert_close(ce, single.mean((0, 2)))
    assert (ce > fill(BMALoss(), log_p, y).loss()).all()  # Jensen, strictly: the states differ


def test_a_probability_that_underflows_has_a_finite_loss():
    objective = BMALoss()
    for _ in range(3):
        objective.add(torch.tensor([[[0.0, -300.0]]]), torch.tensor([[1]]))
    assert objective.loss().item() == pytest.approx(300.0)


@pytest.mark.parametrize("kind", [BMALoss, CELoss])
def test_state_survives_and_emptiness_is_refused(kind, collected):
    log_p, y = collected
    half, restored = fill(kind(), log_p[:2], y), kind()
    restored.load_state_dict(half.state_dict())
    empty = kind()
    empty.load_state_dict(kind().state_dict())
    assert torch.equal(fill(restored, log_p[2:], y).loss(), fill(kind(), log_p, y).loss())
    assert torch.equal(fill(empty, log_p, y).loss(), fill(kind(), log_p, y).loss())
    assert math.isfinite(restored.loss()[0])


class Brier(Objective):
    """Brier score of the single states."""

    name = "brier"

    def add(self, log_probabilities, y):
        hit = torch.nn.functional.one_hot(y, log_probabilities.shape[-1])
        score = (log_probabilities.exp() - hit).square().sum(-1).mean(-1)
        self.total, self.count = score if self.total is None else self.total + score, self.count + 1

    def loss(self):
        return self._collected() / self.count


def test_an_objective_needs_its_class_and_its_entry_alone(monkeypatch):
    with pytest.raises(ValueError, match="got 'brier'"):
        TrainerSettings(objective="brier")
    monkeypatch.setitem(OBJECTIVES, "brier", Brier)
    made = trainer(objective="brier")
    assert 0 < made.step().loss < 1
    assert made.specification()["outer_loop"]["objective"] == "brier"
