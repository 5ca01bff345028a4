"""L2E as an optimizer: SGHMC when untrained, its own rule when trained, and its network's place in the sampler."""

import copy

import pytest
import torch
from torch import nn

import learned_samplers.differentiable  # noqa: F401  (makes the samplers known to higher)
import pretrained
from learned_samplers import SGHMC
from learned_samplers.base.segments import Segments
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.l2e import L2ESettings, l2e_rule
from learned_samplers.learned.network import build_network
from tests.harness import flat, same, small_data, small_network
from tests.learned_samplers.learned.cases import chain, network, phi_of
from tests.learned_samplers.learned.flat_keywords import L2E, KineticL2E, PrecondL2E
from tests.trace import passed


def test_untrained_in_the_papers_form_it_moves():
    """There β is the velocity itself: a last layer of zeros would never move θ."""
    ours, _ = chain(lambda p: L2E(p, 0.2, 100, network=None, form="paper", beta_scale=1.0))
    assert not torch.equal(ours, flat(small_network()))


def test_making_one_draws_nothing_from_the_global_generator():
    before = torch.get_rng_state()
    for cls, settings in ((L2E, {}), (L2E, {"form": "paper"}), (KineticL2E, {}), (PrecondL2E, {})):
        cls([torch.zeros(2, requires_grad=True)], 0.1, 10, network=None, **settings)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "options",
    [
        {"settings": {"beta_scale": 0.5, "alpha_scale": 0.2, "friction_scale": 0.3, "num_data_in_training": 40.0}},
        {"form": "paper"},
    ],
)
def test_the_chain_is_that_of_the_pure_rule_with_each_groups_own_hyperparameters(options):
    module, dtype = network(dtype=torch.float64), torch.float64
    keywords = {"num_data": 100.0, "momentum_init": "zero", **options}
    groups = [
        {"lr": 0.03, "temperature": 0.5, "prior_precision": 0.0, "momentum_decay": 0.1},
        {"lr": 0.3, "temperature": 1.0, "prior_precision": 3.0, "momentum_decay": 0.2},
    ]

    def make(params):
        made = [{**group, **hyperparameters} for group, hyperparameters in zip(params, groups, strict=True)]
        return L2E(made, 0.2, network=module, **keywords)

    ours, _ = chain(make, dtype=dtype, groups=True)
    settings = L2ESettings(**keywords.get("settings", {}), **{k: keywords[k] for k in ("form",) if k in keywords})
    model = small_network().double()
    torch.manual_seed(1)
    x, y = small_data()
    every = list(model.parameters())
    parts = every[:1], every[1:]
    segments = [Segments(tuple(p.numel() for p in part)) for part in parts]
    state = [(torch.zeros(s.total, dtype=dtype), torch.zeros(6, s.total, dtype=dtype)) for s in segments]
    for step in range(15):
        model.zero_grad()
        nn.functional.cross_entropy(model(x.double()), y).backward()
        for i, part in enumerate(parts):
            theta, gradient, noise = (
                torch.cat([of(p).flatten() for p in part]) for of in (torch.detach, lambda p: p.grad, torch.randn_like)
            )
            at = dict(phi=phi_of(module), segments=segments[i], step=step, num_data=keywords["num_data"], **groups[i])
            theta, *state[i] = l2e_rule(theta, gradient, noise.detach(), *state[i], settings=settings, **at)
            for p, piece in zip(part, theta.split(segments[i].lengths), strict=True):
                p.data.copy_(piece.view_as(p))
    torch.testing.assert_close(ours, flat(model), rtol=1e-12, atol=1e-14)


def test_the_network_is_the_module_given_in_the_parameters_dtype_and_no_parameter_group():
    module, p = network(), torch.zeros(3, requires_grad=True)
    sampler = L2E([p], 0.1, 10, network=module)
    assert sampler.network is module
    (held,) = [q for group in sampler.param_groups for q in group["params"]]
    assert held is p
    double = L2E([p.detach().double().requires_grad_()], 0.1, 10, network=module)
    assert {q.dtype for q in double.network.parameters()} == {torch.float64}
    assert {q.dtype for q in module.parameters()} == {torch.float32}


def test_a_chain_is_not_resumed_with_another_network():
    def after(steps=2, **other):
        return chain(
            lambda p: L2E(p, 0.1, 100, **{"network": network("matrix"), "feature_set": "matrix", **other}), steps
        )

    saved = after()[1].state_dict()
    for change, named in (
        ({"network": network("matrix", seed=1)}, "sha256"),
        ({"form": "paper"}, "form"),
        ({"network": network(), "feature_set": "paper"}, "feature_set"),
        ({"averages_dtype": "bfloat16"}, "averages_dtype is 'float32' there, 'bfloat16' here"),
        ({"total_steps": 12}, "total_steps is None there, 12 here"),
    ):
        sampler = after(**change)[1]
        before = copy.deepcopy(sampler.state_dict())
        with pytest.raises(ValueError, match=named):
            sampler.load_state_dict(saved)
        assert same(sampler.state_dict(), before)
    after(steps=5)[1].load_state_dict(saved)  # a fresh module with the same weights is the same network


@pytest.mark.parametrize("prior_mean", ["initial", None])
@pytest.mark.parametrize("native", ["0", "1"])
def test_the_attenuation_measures_the_way_from_the_priors_mean(prior_mean, native, monkeypatch):
    """Where the weights are at it nothing pulls; else the direction is short beside gradients below the prior's."""
    monkeypatch.setenv("LEARNED_SAMPLERS_NATIVE", native)
    moved, network = {}, build_network("matrix", ())
    with torch.no_grad():
        network[0].weight[1, FEATURE_SETS["matrix"].names.index("matrix_direction")] = -1.0
    for attenuated in (True, False):
        generator = torch.Generator().manual_seed(1)
        weight, bias = (nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 6), (5,)))
        before = [p.detach().clone() for p in (weight, bias)]
        group = {"params": [weight, bias], "prior_mean": prior_mean}
        settings = L2ESettings(feature_set="matrix", beta_scale=10.0, friction_scale=0.0, attenuated=attenuated)
        sampler = L2E(
            [group], 0.001, num_data=50, network=network, settings=settings, temperature=0.0, prior_precision=1.0
        )
        for p in (weight, bias):
            p.grad = 0.005 * torch.randn(p.shape, generator=generator)
        sampler.step()
        moved[attenuated] = [p.detach() - start for p, start in zip((weight, bias), before, strict=True)]
    for short, plain in zip(moved[True], moved[False], strict=True):
        if prior_mean == "initial":
            assert torch.equal(short, plain)
        else:  # a pull of 1/50 beside gradients of 1/200, of which the average has a tenth
            assert short.norm() < 0.2 * plain.norm()


def test_the_attenuation_is_next_to_nothing_with_many_data():
    ends, start = [], torch.randn(20, 30, generator=torch.Generator().manual_seed(0)) * 0.1
    for attenuated in (True, False):
        torch.manual_seed(0)
        p = nn.Parameter(start.clone())
        settings = {**pretrained.card("l2e-gated")["scales"], "attenuated": attenuated, "feature_set": "matrix"}
        hyper = dict(settings=settings, temperature=0.0, prior_precision=5.0)
        sampler = L2E([p], 0.001, 50_000, network=pretrained.load("l2e-gated"), **hyper)
        for _ in range(20):
            p.grad = 0.01 * torch.randn(20, 30)
            sampler.step()
        ends.append(p.detach())
    assert (ends[0] - ends[1]).norm() < 0.01 * (ends[1] - start).norm()


def test_a_step_passes_few_files_and_functions():
    """Beyond those of a step of `SGHMC`, of which tests/learned_samplers/base/test_trace.py keeps count."""
    steps = {}
    for cls in (SGHMC, L2E):
        params = [torch.randn(shape, requires_grad=True) for shape in ((8, 5), (8,), (3, 8), (3,))]
        sampler = cls(params, lr=1e-3, num_data=5000)
        for size in (1.0, 0.5, 0.2, 0.1):  # a larger one than before the watch on clipping would look at
            for p in params:
                p.grad = size * torch.ones_like(p)
            steps[cls] = passed(sampler.step)
    files, functions = (ours - theirs for ours, theirs in zip(steps[L2E], steps[SGHMC], strict=True))
    assert len(files) <= 5, sorted(files)
    assert len([function for function in functions if "<genexpr>" not in function]) <= 30, sorted(functions)
