"""L2E as an optimizer: SGHMC when untrained, its own rule when trained, and its network's place in the sampler."""

from __future__ import annotations

import copy
import io

import higher
import pytest
import torch
from torch import nn

import learned_samplers.differentiable  # noqa: F401  (makes the samplers known to higher)
import pretrained
from learned_samplers import SGHMC
from learned_samplers.base.segments import Segments
from learned_samplers.learned.features import FEATURE_SETS
from learned_samplers.learned.l2e import PUBLISHED_CODE, L2ESettings, l2e_rule
from learned_samplers.learned.network import apply_network, build_network, layers_of
from tests.harness import flat, small_data, small_network
from tests.learned_samplers.learned.flat_keywords import L2E, KineticL2E, PrecondL2E, keywords
from tests.learned_samplers.learned.l2e.l2e_cases import chain, network
from tests.trace import passed

#: Of the shipped gate before it was one layer.
OLD_OUTPUT = -0.539840615252324
l2e_paper_rule = keywords(l2e_rule, L2ESettings, form="paper")
l2e_residual_rule = keywords(l2e_rule, L2ESettings)


# ------------------------------------------------------------------ untrained


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prior_precision": 3.0, "temperature": 0.5, "momentum_decay": 0.4},
        {"momentum_init": "normal"},
        {"temperature": 0.0},
    ],
)
def test_untrained_it_is_sghmc_bit_for_bit(feature_set, options):
    ours, a = chain(lambda p: L2E(p, 0.2, 100, network=None, feature_set=feature_set, **options))
    theirs, b = chain(lambda p: SGHMC(p, 0.2, 100, **options))
    assert torch.equal(ours, theirs)
    for p, q in zip(a.param_groups[0]["params"], b.param_groups[0]["params"], strict=True):
        assert torch.equal(a.state[p]["momentum"], b.state[q]["momentum"])
    trained, _ = chain(lambda p: L2E(p, 0.2, 100, network=network(feature_set), feature_set=feature_set, **options))
    assert not torch.allclose(trained, theirs, atol=1e-3)


def test_making_one_draws_nothing_from_the_global_generator():
    before = torch.get_rng_state()
    for cls in (L2E, KineticL2E, PrecondL2E):
        cls([torch.zeros(2, requires_grad=True)], 0.1, 10, network=None)
    L2E([torch.zeros(2, requires_grad=True)], 0.1, 10, network=None, form="paper")
    assert torch.equal(before, torch.get_rng_state())


def test_untrained_in_the_papers_form_it_moves():
    """There β is the velocity itself: a last layer of zeros would never move θ."""
    ours, _ = chain(lambda p: L2E(p, 0.2, 100, network=None, form="paper", beta_scale=1.0))
    assert not torch.equal(ours, flat(small_network()))


# ------------------------------------------------------------------ the rule of the optimizer is the pure rule


@pytest.mark.parametrize(
    ("options", "rule", "extra"),
    [
        (
            {"beta_scale": 0.5, "alpha_scale": 0.2, "friction_scale": 0.3, "num_data_in_training": 40.0},
            l2e_residual_rule,
            {},
        ),
        ({"form": "paper"}, l2e_paper_rule, {}),
        (PUBLISHED_CODE, l2e_paper_rule, {"friction": "algorithm2", "noise_multiplier": 1e-3}),
    ],
)
def test_the_chain_is_that_of_the_pure_rule(options, rule, extra):
    module = network(dtype=torch.float64)
    options = {"num_data": 100, **options}
    settings = dict(lr=0.3, num_data=options["num_data"], temperature=1.0, prior_precision=2.0, momentum_decay=0.2)
    ours, _ = chain(
        lambda p: L2E(p, network=module, **{**options, "lr": 0.3, "prior_precision": 2.0, "momentum_decay": 0.2}),
        dtype=torch.float64,
    )

    model = small_network().double()
    torch.manual_seed(1)
    x, y = small_data()
    params = list(model.parameters())
    segments = Segments(tuple(p.numel() for p in params))
    momentum, averages = torch.zeros(segments.total).double(), torch.zeros(6, segments.total).double()
    scales = {k: v for k, v in options.items() if k.endswith("_scale") or k == "num_data_in_training"}
    for step in range(15):
        model.zero_grad()
        nn.functional.cross_entropy(model(x.double()), y).backward()
        theta = torch.cat([p.detach().flatten() for p in params])
        gradient = torch.cat([p.grad.flatten() for p in params])
        noise = torch.cat([torch.randn_like(p).flatten() for p in params])
        with torch.no_grad():
            theta, momentum, averages = rule(
                theta,
                gradient,
                noise,
                momentum,
                averages,
                phi=layers_of(module),
                segments=segments,
                step=step,
                **settings,
                **scales,
                **extra,
            )
            for p, piece in zip(params, theta.split(segments.lengths), strict=True):
                p.copy_(piece.view_as(p))
    torch.testing.assert_close(ours, flat(model), rtol=1e-12, atol=1e-14)


def test_each_group_is_updated_with_its_own_settings():
    def make(params):
        params = list(params)
        groups = [
            {"params": params[:2], "lr": 0.01, "temperature": 0.5},
            {"params": params[2:], "prior_precision": 3.0},
        ]
        return L2E(groups, 0.2, 100, network=network())

    ours, sampler = chain(make, 1)
    torch.manual_seed(1)
    model = small_network()
    torch.manual_seed(1)
    x, y = small_data()
    nn.functional.cross_entropy(model(x), y).backward()
    params = list(model.parameters())
    expected = []
    own = (
        {"lr": 0.01, "temperature": 0.5, "prior_precision": 0.0},
        {"lr": 0.2, "temperature": 1.0, "prior_precision": 3.0},
    )
    for part, settings in zip((params[:2], params[2:]), own, strict=True):
        noise = torch.cat([torch.randn_like(p).flatten() for p in part])
        theta, gradient = (torch.cat([t.flatten() for t in ts]) for ts in (part, [p.grad for p in part]))
        with torch.no_grad():
            expected.append(
                l2e_residual_rule(
                    theta,
                    gradient,
                    noise,
                    torch.zeros_like(theta),
                    torch.zeros(6, len(theta)),
                    phi=layers_of(network()),
                    segments=Segments(tuple(p.numel() for p in part)),
                    momentum_decay=0.1,
                    num_data=100,
                    **settings,
                )[0]
            )
    torch.testing.assert_close(ours, torch.cat(expected), rtol=1e-6, atol=1e-7)
    assert sampler.param_groups[1]["prior_precision"] == 3


# ------------------------------------------------------------------ the network's place


def test_the_network_is_the_module_given_and_not_a_parameter_group():
    module, p = network(), torch.zeros(3, requires_grad=True)
    sampler = L2E([p], 0.1, 10, network=module)
    assert sampler.network is module
    (held,) = [q for group in sampler.param_groups for q in group["params"]]
    assert held is p


def test_the_network_takes_the_dtype_of_the_parameters_and_leaves_the_module_alone():
    module = network()
    sampler = L2E([torch.zeros(3, dtype=torch.float64, requires_grad=True)], 0.1, 10, network=module)
    assert {p.dtype for p in sampler.network.parameters()} == {torch.float64}
    assert {p.dtype for p in module.parameters()} == {torch.float32}


def test_gradients_flow_to_the_network_through_higher():
    model, module = small_network().double(), network(dtype=torch.float64)
    x, y = small_data()
    sampler = L2E(model.parameters(), 0.1, 100, network=module)

    def outcome():
        torch.manual_seed(4)
        with higher.innerloop_ctx(model, sampler) as (fast, twin):
            for _ in range(3):
                twin.step(nn.functional.cross_entropy(fast(x.double()), y))
            return nn.functional.cross_entropy(fast(-x.double()), y)

    weight = sampler.network[-1].weight
    (slope,) = torch.autograd.grad(outcome(), weight)
    ends = []
    for shift in (1e-6, -1e-6):
        with torch.no_grad():
            weight[1, 2] += shift
        ends.append(outcome().item())
        with torch.no_grad():
            weight[1, 2] -= shift
    assert slope[1, 2].item() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4)
    assert slope[1, 2].item() != 0


# ------------------------------------------------------------------ resuming


def test_a_chain_is_not_resumed_with_another_network():
    _, sampler = chain(lambda p: L2E(p, 0.1, 100, network=network()))
    saved = sampler.state_dict()
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True)["sampler"]["network"]["settings"]["form"] == "residual"
    others = {
        "sha256": lambda p: L2E(p, 0.1, 100, network=network(seed=1)),
        "form": lambda p: L2E(p, 0.1, 100, network=network(), form="paper"),
        "feature_set": lambda p: L2E(p, 0.1, 100, network=network("adaptive"), feature_set="adaptive"),
    }
    for word, make in others.items():
        _, other = chain(make, 2)
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(ValueError, match=f"(another network|other settings): {word} is"):
            other.load_state_dict(saved)
        after = other.state_dict()
        assert after["param_groups"] == before["param_groups"]
        for i, entry in before["state"].items():
            assert all(torch.equal(value, after["state"][i][key]) for key, value in entry.items())
    older = {**saved, "sampler": {**saved["sampler"], "network": {}}}  # of a version that did not save the settings
    with pytest.raises(ValueError, match="other settings: feature_set is None there"):
        sampler.load_state_dict(older)
    # A fresh module with the same weights is the same network.
    chain(lambda p: L2E(p, 0.1, 100, network=network()))[1].load_state_dict(saved)


def test_state_has_its_shapes():
    _, sampler = chain(lambda p: L2E(p, 0.1, 100, network=network("adaptive"), feature_set="adaptive"), 1)
    for p in sampler.param_groups[0]["params"]:
        assert sampler.state[p]["momentum"].shape == p.shape
        assert sampler.state[p]["averages"].shape == (8, *p.shape)


def test_empty_and_scalar_parameters_are_fine():
    params = [
        torch.zeros(0, requires_grad=True),
        torch.ones((), requires_grad=True),
        torch.ones(2, 3, requires_grad=True),
    ]
    sampler = L2E(params, 0.1, 100, network=network())
    for p in params:
        p.grad = torch.ones_like(p)
    sampler.step()
    assert all(p.isfinite().all() for p in params)
    assert (params[1] != 1).all()


# ------------------------------------------------------------------ what is loaded, and what a person chose


@pytest.mark.parametrize("num_data", [10, 1200, 10**6])
def test_what_it_loads_is_learned_whatever_the_number_of_data(num_data):
    card = L2E([torch.zeros(2, 3, requires_grad=True)], num_data=num_data).card
    assert (card["name"], card["layers"]) == ("l2e-gated", [[3, 31]])
    assert "29 numbers" in card["learned"]
    assert "attenuated" in card["scales"]


def test_the_gate_in_one_layer_computes_what_it_did_in_three():
    """The file before had two ReLU layers that carried it: −w·x as relu(−u) − relu(u), the gate over a bias of 6.07."""
    weight, bias = (p.detach().double() for p in pretrained.load("l2e-gated").parameters())
    direction, gate = -weight[1], weight[2]
    first = torch.stack([direction, -direction, gate]), torch.tensor([0.0, 0.0, bias[2] + 6.0])
    last = torch.tensor([[0.0, 0, 0], [-1, 1, 0], [0, 0, 1]]), torch.tensor([0.0, 0, -6.0])
    before = [first, (torch.eye(3), torch.zeros(3)), last]
    x = 3 * torch.randn(31, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theirs = apply_network([(w.double(), b.double()) for w, b in before], x)
    ours = apply_network([(weight, bias)], x)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-12, atol=1e-12)
    assert not torch.cat([ours[0], theirs[0]]).any()
    # Once computed with the old file, at the features sin(1), sin(2), …: its β.
    wave = torch.sin(torch.arange(1.0, 32, dtype=torch.float64))[:, None]
    wave = wave[[*range(9), 14, *range(9, 14), *range(15, 31)]]  # in today's order
    assert apply_network([(weight, bias)], wave)[1].item() == pytest.approx(OLD_OUTPUT, rel=1e-6)


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
        weight, bias = (torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 6), (5,)))
        before = [p.detach().clone() for p in (weight, bias)]
        group = {"params": [weight, bias], "prior_mean": prior_mean}
        own = L2ESettings(feature_set="matrix", beta_scale=10.0, friction_scale=0.0, attenuated=attenuated)
        sampler = L2E([group], 0.001, num_data=50, network=network, settings=own, temperature=0.0, prior_precision=1.0)
        for p in (weight, bias):
            p.grad = 0.005 * torch.randn(p.shape, generator=generator)
        sampler.step()
        moved[attenuated] = [p.detach() - start for p, start in zip((weight, bias), before, strict=True)]
    for short, whole in zip(moved[True], moved[False], strict=True):
        if prior_mean == "initial":
            assert torch.equal(short, whole)
        else:  # a pull of 1/50 beside gradients of 1/200, of which the average has a tenth
            assert short.norm() < 0.2 * whole.norm()


def test_the_attenuation_is_next_to_nothing_with_many_data():
    network, ends = pretrained.load("l2e-gated"), []
    for attenuated in (True, False):
        torch.manual_seed(0)
        p = torch.nn.Parameter(torch.randn(20, 30) * 0.1)
        own = {**pretrained.card("l2e-gated")["scales"], "attenuated": attenuated, "feature_set": "matrix"}
        sampler = L2E([p], 0.001, 50_000, network=network, settings=own, temperature=0.0, prior_precision=5.0)
        for _ in range(20):
            p.grad = 0.01 * torch.randn(20, 30)
            sampler.step()
        ends.append(p.detach())
    torch.manual_seed(0)
    moved = (ends[1] - torch.randn(20, 30) * 0.1).norm()
    assert (ends[0] - ends[1]).norm() < 0.01 * moved


def test_a_step_passes_few_files_and_functions():
    params = [torch.randn(shape, requires_grad=True) for shape in ((8, 5), (8,), (3, 8), (3,))]
    sampler = L2E(params, num_data=5000)
    for _ in range(4):
        for p in params:
            p.grad = torch.randn_like(p)
        files, functions = passed(sampler.step)
    assert len(files) <= 14, sorted(files)
    assert len(functions) <= 82, sorted(functions)
