"""Properties of every learned rule: untrained it is SGHMC, and members of a batch do not see each other."""

import copy
from functools import partial

import higher
import pytest
import torch
from torch import nn

import learned_samplers.differentiable  # noqa: F401  (makes the samplers known to higher)
from learned_samplers import SGHMC
from learned_samplers.base.matrices import state_lengths
from learned_samplers.base.segments import Segments
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.kinetic import KineticSettings, l2e_kinetic_rule
from learned_samplers.learned.l2e import L2ESettings, l2e_rule
from learned_samplers.learned.meta_sgmcmc import MetaSGMCMCSettings, meta_sgmcmc_rule
from learned_samplers.learned.preconditioned import PreconditionedSettings, l2e_precond_rule
from learned_samplers.learned.sampler import REGISTRY
from tests.harness import small_data, small_network
from tests.learned_samplers.learned.cases import chain, make_network, phi_of
from tests.learned_samplers.learned.flat_keywords import L2E, KineticL2E, MetaSGMCMC, PrecondL2E

#: Each with settings of its own, and whether it is SGHMC bit for bit or to rounding.
UNTRAINED = [
    *((L2E, {"feature_set": name}, True) for name in FEATURE_SETS),
    (KineticL2E, {}, True),
    (MetaSGMCMC, {}, False),
    (MetaSGMCMC, {"feature_set": "energy_rms"}, False),
    (PrecondL2E, {}, False),
]


@pytest.mark.parametrize(("make", "own", "exactly"), UNTRAINED)
@pytest.mark.parametrize(
    "options",
    [
        {"momentum_decay": 0.8},
        {"prior_precision": 3.0, "temperature": 0.5, "momentum_decay": 0.4},
        {"momentum_init": "normal"},
        {"temperature": 0.0},
    ],
)
def test_untrained_it_is_sghmc(make, own, exactly, options):
    how = dict(dtype=torch.float32 if exactly else torch.float64)
    ours, a = chain(lambda p: make(p, 0.2, 100, network=None, **own, **options), **how)
    theirs, b = chain(lambda p: SGHMC(p, 0.2, 100, **options), dtype=how["dtype"])
    momenta = [[s.state[p]["momentum"] for p in s.param_groups[0]["params"]] for s in (a, b)]
    for x, y in [(ours, theirs), *zip(*momenta, strict=True)]:
        assert torch.equal(x, y) if exactly else torch.allclose(x, y, rtol=1e-11, atol=1e-13)
    network = make_network(a.settings)
    trained, _ = chain(lambda p: make(p, 0.2, 100, network=network, **own, **options), 3, **how)
    untrained, _ = chain(lambda p: SGHMC(p, 0.2, 100, **options), 3, dtype=how["dtype"])
    assert (trained - untrained).abs().max() > 1e-3


SEGMENTS = Segments((8, 6), ((4, 2), (6,)))
SETTINGS = [L2ESettings(feature_set=name, form=form) for name in FEATURE_SETS for form in ("residual", "paper")]
SETTINGS += [PreconditionedSettings(), KineticSettings(), MetaSGMCMCSettings(feature_set="energy_rms")]
RULES = {
    "L2E": l2e_rule,
    "PrecondL2E": l2e_precond_rule,
    "KineticL2E": partial(l2e_kinetic_rule, hessian_product=lambda w: 0.3 * w),
    "MetaSGMCMC": meta_sgmcmc_rule,
}


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: f"{each.sampler}-{each.feature_set}")
@pytest.mark.parametrize("shared", [True, False])
def test_members_do_not_see_each_other_and_one_that_is_not_finite_poisons_none(settings, shared):
    assert set(RULES) == set(REGISTRY)
    generator, step = torch.Generator().manual_seed(0), {}

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    phi = phi_of(make_network(settings).double())
    if not shared:
        phi = [(w * (1 + 0.1 * draw(3, *w.shape)), b + 0.1 * draw(3, *b.shape)) for w, b in phi]
    tensors = [0.3 * draw(3, 14), 0.1 * draw(3, 14), draw(3, 14), draw(3, 14)]
    if settings.feature_set in FEATURE_SETS:
        named, step = FEATURE_SETS[settings.feature_set], {"step": 3}
        kept = [(named.num_averages, 14)] + ([(sum(state_lengths(SEGMENTS)),)] if named.matrix else [])
        tensors += [torch.zeros(3, *shape, dtype=torch.float64) for shape in kept]
    at = dict(lr=0.2, num_data=300.0, temperature=0.7, prior_precision=4.0, momentum_decay=0.1)
    energies = torch.tensor([10.0, 200.0, 30.0], dtype=torch.float64)

    def after(tensors, phi, energies):
        more = {"energy": energies} if settings.sampler == "MetaSGMCMC" else {}
        return RULES[settings.sampler](*tensors, phi=phi, segments=SEGMENTS, settings=settings, **at, **step, **more)

    every = after(tensors, phi, energies)
    for i in range(3):
        weights = phi if shared else [(w[i], b[i]) for w, b in phi]
        for ours, theirs in zip(every, after([x[i] for x in tensors], weights, energies[i]), strict=True):
            torch.testing.assert_close(ours[i], theirs, rtol=1e-10, atol=1e-12)
    tensors[1] = tensors[1].clone()
    tensors[1][1, 7] = float("nan")
    dirty = after(tensors, phi, energies)
    for before, now in zip(every, dirty, strict=True):
        assert torch.equal(before[[0, 2]], now[[0, 2]])
    assert dirty[1][1].isnan().any()


def unrolled(make, module, lr, **options):
    """A later loss as a function of the learning rate and of the network's weights, through `higher`."""
    model, (x, y) = small_network().double(), small_data()
    sampler = make(model.parameters(), 0.1, 50, network=module, prior_precision=1.0)
    torch.manual_seed(4)
    with higher.innerloop_ctx(model, sampler, override={"lr": [lr]}) as (fast, twin):
        for _ in range(5):
            twin.step(nn.functional.cross_entropy(fast(x.double()), y), **options)
        return nn.functional.cross_entropy(fast(x.double().flip(0)), y)


@pytest.mark.parametrize("name", ["L2E", "PrecondL2E", "MetaSGMCMC"])
def test_the_twin_is_differentiable_in_the_learning_rate_and_in_the_networks_weights(name):
    make = REGISTRY[name]
    module, h = make_network(make.settings_class()).double(), 1e-6
    lr, parameters = torch.tensor(0.1, dtype=torch.float64, requires_grad=True), list(module.parameters())
    by_lr, *by_weights = torch.autograd.grad(unrolled(make, module, lr), [lr, *parameters])
    difference = (unrolled(make, module, lr.detach() + h) - unrolled(make, module, lr.detach() - h)) / (2 * h)
    assert by_lr.item() == pytest.approx(difference.item(), rel=1e-4)
    direction = [torch.randn_like(p) * (p != 0) for p in parameters]
    ends = []
    for shift in (h, -h):
        moved = copy.deepcopy(module)
        with torch.no_grad():
            for p, d in zip(moved.parameters(), direction, strict=True):
                p.add_(d, alpha=shift)
        ends.append(unrolled(make, moved, lr.detach()))
    slope = sum((g * d).sum() for g, d in zip(by_weights, direction, strict=True))
    assert slope.item() == pytest.approx(((ends[0] - ends[1]) / (2 * h)).item(), rel=1e-4)
    if name == "MetaSGMCMC":
        detached = torch.autograd.grad(unrolled(make, module, lr, detach_inputs=True), parameters)
        assert all(g.isfinite().all() for g in detached)
        assert max((a - b).abs().max() for a, b in zip(detached, by_weights, strict=True)) > 1e-6
