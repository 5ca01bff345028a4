"""The adapter to ``laplace-torch``: with a stand-in everywhere, with the package where it is installed."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from learned_samplers.approximations import laplace_samples
from tests.harness import closure_for, small_data, small_network


class LastLayer:
    """Part of a fitted approximation that the adapter needs: its mean and its draws."""

    def __init__(self, model, last):
        self.mean = torch.cat([p.detach().flatten() for p in list(model.parameters())[-last:]])

    def sample(self, count):
        return self.mean + torch.arange(count)[:, None] * 0.1


def test_the_last_layer_is_drawn_and_the_others_stay():
    model = small_network()
    samples = laplace_samples(model, LastLayer(model, 2), 3)
    assert len(samples) == 3
    for k, sample in enumerate(samples):
        assert torch.equal(sample["0.weight"], model[0].weight)
        assert torch.allclose(sample["2.weight"], model[2].weight + 0.1 * k)
        assert torch.allclose(sample["2.bias"], model[2].bias + 0.1 * k)


@pytest.mark.filterwarnings("ignore")  # those of laplace-torch and of what it imports
def test_a_last_layer_of_laplace_torch_predicts_as_the_package_does():
    laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed: pip install laplace-torch")
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(100):
        optimizer.step(closure_for(model, optimizer))
    x, y = small_data()
    fitted = laplace.Laplace(model, "classification", subset_of_weights="last_layer", hessian_structure="full")
    fitted.fit(DataLoader(TensorDataset(x, y), batch_size=8))
    ours = laplace_samples(model, fitted, 4000).predict(x)
    theirs = fitted(x, pred_type="glm", link_approx="mc", n_samples=4000)
    assert torch.allclose(ours, theirs, atol=0.03)
    assert (ours - nn.functional.softmax(model(x), 1)).abs().max() > 0.03
