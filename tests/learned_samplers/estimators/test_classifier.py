"""The classifier: labels that it refuses, and the gradients of its probabilities."""

import numpy as np
import pytest
import torch

from learned_samplers.estimators import BayesianMLPClassifier
from tests.learned_samplers.estimators.common import SMALL, table

#: The fits are cut short on purpose: their chains have not settled.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_a_classifier_that_refuses_a_table_keeps_its_classes():
    x, y = table(40)
    model = BayesianMLPClassifier(**SMALL).fit(x, np.where(y > np.median(y), "yes", "no"))
    for labels, named in ((["z"] * 40, "two classes"), ([None, *["a", "b"] * 19, "a"], "missing labels")):
        with pytest.raises(ValueError, match=named):
            model.fit(x, labels)
    assert set(model.predict(x)) <= {"yes", "no"}


def test_the_samples_probabilities_have_gradients_by_the_inputs():
    x, y = table()
    model = BayesianMLPClassifier(**SMALL).fit(x, y > 10)
    new = torch.tensor([[0.1, 0.2], [0.3, -0.5]], requires_grad=True)
    values = model.predict_samples(new)
    assert values.dtype == torch.float32
    np.testing.assert_allclose(values.mean(0).detach(), model.predict_proba(new.detach().numpy()), atol=1e-6)
    assert torch.autograd.grad(values[..., 1].sum(), new)[0][:, 0].min() > 0  # the larger x₀, the larger y
