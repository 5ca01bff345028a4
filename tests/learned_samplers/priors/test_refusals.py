"""Priors that cannot be: refused by name, before a parameter is touched."""

import pytest

from learned_samplers import MCLMC, SGHMC, Chains
from learned_samplers.approximations import IVON
from learned_samplers.priors import ByName, FanIn, GammaHyperprior
from tests.harness import small_network


def made(prior, cls=SGHMC, named=True):
    model = small_network()
    return cls(model.named_parameters() if named else model.parameters(), 0.05, 100, prior_precision=prior)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: made({"*": -1.0}), ValueError, r"prior_precision\['\*'\] must not be negative"),
        (lambda: made({"*": "x"}), TypeError, r"prior_precision\['\*'\] must be a number"),
        (lambda: made({3: 1.0}), TypeError, "names or patterns"),
        (lambda: made({"0.*": 1.0}), ValueError, "no pattern for parameter '2.weight'"),
        (lambda: made({"*": 1.0, "7.*": 1.0}), ValueError, r"prior_precision\['7.\*'\] matches no parameter"),
        (lambda: made({"*": 1.0}, named=False), ValueError, "needs named parameters"),
        (lambda: made({"*": 1.0, "0.weight": 2.0}), ValueError, "comes after patterns"),
        (lambda: made("wide"), TypeError, "prior_precision must be a number"),
        (lambda: made(FanIn(), MCLMC), ValueError, "prior_precision of MCLMC must be one number"),
        (lambda: made(GammaHyperprior(), IVON), ValueError, "prior_precision of IVON cannot be sampled"),
        (lambda: ByName([1]), TypeError, "precisions must be a dict"),
        (lambda: FanIn(gain=0.0), ValueError, "gain"),
        (lambda: FanIn(bias=-1.0), ValueError, "bias"),
        (lambda: GammaHyperprior(shape=0.0), ValueError, "shape"),
        (lambda: GammaHyperprior(rate=float("inf")), ValueError, "rate"),
        (lambda: GammaHyperprior(start=-1.0), ValueError, "start"),
        (lambda: GammaHyperprior(every=0), ValueError, "every"),
    ],
)
def test_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize("prior", [FanIn(), GammaHyperprior()])
def test_chains_that_are_stacked_in_one_tensor_are_not_taken_for_one_network(prior):
    with pytest.raises(ValueError, match="separate=True"):
        SGHMC(Chains([small_network(seed=i) for i in range(3)]).parameters(), 0.05, 100, prior_precision=prior)
    separate = Chains([small_network(seed=i) for i in range(3)], separate=True)
    assert len(SGHMC(separate.parameters(), 0.05, 100, prior_precision=prior).param_groups) > 1
