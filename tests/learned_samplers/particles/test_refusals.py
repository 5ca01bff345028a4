"""Refusals of the particle samplers: an error of its class that names what is wrong, and nothing has changed."""

from functools import partial

import pytest
import torch
from torch import nn

from learned_samplers import SGHMC
from learned_samplers import particles as ps
from tests.learned_samplers.particles.particle_problems import (
    EVERY,
    SEVERAL,
    TwoHeads,
    energies,
    parameter,
    stacked_mlp,
)

NAN, INF = float("nan"), float("inf")
#: Of one target and of several, with a kernel and without: what all inherit is refused alike.
OF_A_KIND = ("SVGD", "MTSGD", "MGDA")
ADAM = torch.optim.Adam
HALF, ZERO = torch.float16, torch.zeros(1)


def w(count=4, *shape, **keywords):
    return parameter(count, *(shape or (2,)), **keywords)


def leaf(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, requires_grad=dtype.is_floating_point)


def fsvgd(network, likelihood):
    return ps.FSVGD([{"params": network}, {"params": likelihood, "likelihood": True}], 0.1, 20)


def gp(outputs, covariance=None):
    return ps.GaussianProcessPrior(covariance or ps.squared_exponential()).log_density(leaf(2, 1), outputs)


def measured(batch=ZERO, inputs=ZERO, count=2, generator=None):
    return ps.measurement_set(batch, inputs, count, scale=0.1, generator=generator)


def classified(label):
    return ps.classification_loss(torch.zeros(4, 6, 3), torch.full((6,), label))


def stacked(**tensors):
    return {**stacked_mlp(3)[1], **tensors}


@pytest.mark.parametrize("name", OF_A_KIND)
@pytest.mark.parametrize(
    ("params", "keywords", "error", "named"),
    [
        (w(), {"prior_precision": {"*": 1.0}}, TypeError, "prior_precision"),
        (w(), {"base_optimizer": dict}, TypeError, "base_optimizer"),
        (w(), {"base_optimizer": torch.optim.LBFGS}, TypeError, "LBFGS.*closure"),
        (w(), {"base_optimizer": torch.optim.AdamW}, ValueError, "weight_decay.*AdamW"),
        (w(), {"base_optimizer": partial(torch.optim.SGD, lr=5.0)}, ValueError, "base_optimizer.*lr.*5"),
        (w(), {"base_optimizer": partial(torch.optim.SGD, maximize=True)}, ValueError, "maximize=True of SGD"),
        (w(), {"base_optimizer": lambda groups: SGHMC(groups, 0.1, 10)}, TypeError, "base_optimizer.*noise.*SGHMC"),
        ([w(), w(3)], {}, ValueError, "3 particles"),
        ([("w", w()), ("b", leaf(5))], {}, ValueError, "'b'"),
        ([leaf()], {}, ValueError, r"params\[0\]"),
        ([leaf(0, 2)], {}, ValueError, r"params\[0\]"),
        ([w(), w(dtype=torch.float64)], {}, ValueError, r"params\[1\].*float64"),
        ([leaf(4, 2, dtype=torch.complex64).requires_grad_()], {}, TypeError, "complex64"),
        ([leaf(4, 2, dtype=HALF)], {}, TypeError, "float16"),
        ([leaf(4, 2, dtype=torch.bfloat16)], {}, TypeError, "bfloat16"),
        ([], {}, ValueError, "empty"),
        ([{"params": [w()]}, {"params": []}], {}, ValueError, "empty"),
        ([{"params": {w()}}], {}, TypeError, "order"),
        ([("x", x := w()), ("again", x)], {}, ValueError, "'again'"),
        ([{"params": [w()], "prior_mean": "initial"}], {}, ValueError, "prior_mean"),
        ([{"params": [w()], "shared": False}], {}, ValueError, "shared"),
    ],
)
def test_arguments(name, params, keywords, error, named):
    params = [params] if isinstance(params, torch.Tensor) else params
    with pytest.raises(error, match=named):
        EVERY[name](params, **{"lr": 0.1, **keywords})


@pytest.mark.parametrize(
    ("make", "error", "named"),
    [
        (lambda: ps.SVGD([{"params": [w()], "task": 0}], 0.1), ValueError, "task"),
        (lambda: ps.MTSGD([w()], 0.1, kernel_on="features"), ValueError, "target_weights.*kernel_on"),
        (lambda: ps.MTSGD([{"params": [w()]}, {"params": [w()], "num_data": 5}], 0.1), ValueError, "num_data.* same"),
        (lambda: ps.SVGD([w()], 0.1, task=0), TypeError, "SVGD has no argument task"),
        (lambda: ps.MGDA([w()], 0.1, temperature=1.0), TypeError, "MGDA has no argument temperature"),
        (lambda: ps.MTSGD([{"params": [w(), x := w()]}, {"params": [x], "task": 0}], 0.1), ValueError, "more than one"),
        (lambda: ps.MOOSVGD([w()], 0.1, kernel_on="features"), ValueError, "kernel_on"),
        (lambda: ps.ParetoMTL([w()], 0.1, preferences=[[1.0, 0.0]]), ValueError, "preferences"),
        (lambda: ps.ParetoMTL([w()], 0.1, preferences=[[0.0, 0.0]] * 4), ValueError, "preferences"),
        (lambda: ps.ParetoMTL([w()], 0.1, preferences=[[NAN, 1.0]] * 4), ValueError, "preferences"),
        (lambda: ps.ParetoMTL([w()], 0.1, preferences=[1.0, 0.0]), ValueError, "preferences"),
        *((lambda x=x: ps.ParetoMTL([w()], 0.1, preferences=x), TypeError, "preferences") for x in ("x", 10**30)),
        (lambda: ps.FSVGD([{"params": [w()], "prior_precision": 1.0}], 0.1, 20), ValueError, "prior_precision"),
        (lambda: ps.FSVGD([{"params": [w()], "task": 0}], 0.1, 20), ValueError, "task"),
        (lambda: fsvgd([w()], [w(3)]), ValueError, "3 particles"),
        (lambda: fsvgd([x := w()], [x]), ValueError, "more than"),
        (lambda: ps.RBF("median"), ValueError, "bandwidth"),
        (lambda: ps.IMQ(0.0), ValueError, "bandwidth"),
        (lambda: ps.RBF(-1), ValueError, "bandwidth"),
        (lambda: ps.IMQ(None), TypeError, "bandwidth"),
        (lambda: ps.RBF("off_diagonal_median")(torch.zeros(1, 2)), ValueError, "bandwidth"),
        (lambda: ps.min_norm_weights(torch.ones(2, 3)), ValueError, "gram"),
        (lambda: ps.min_norm_weights(torch.ones(3)), ValueError, "gram"),
        (lambda: ps.min_norm_weights(torch.ones(0, 0)), ValueError, "gram"),
        (lambda: ps.min_norm_weights(torch.tensor([[1.0, 2.0], [0.0, 1.0]])), ValueError, "gram"),
        (lambda: ps.min_norm_weights(torch.ones(2, 2, dtype=torch.long)), TypeError, "gram.*int64"),
        (lambda: ps.min_norm_weights([[1.0]]), TypeError, "gram.*list"),
        *(
            (lambda n=n, x=x: ps.min_norm_weights(torch.eye(n) * torch.tensor(x)), FloatingPointError, "gram")
            for n in (1, 2, 4, 5)
            for x in (NAN, INF)
        ),
        (lambda: ps.GaussianProcessPrior(ps.squared_exponential(), jitter=0.0), ValueError, "jitter"),
        (lambda: ps.squared_exponential(-1.0), ValueError, "length_scale"),
        (lambda: ps.GaussianProcessPrior("rbf"), TypeError, "covariance"),
        (lambda: ps.FittedPrior(None), TypeError, "draws"),
        (lambda: ps.FittedPrior(print, num_draws=1), ValueError, "num_draws"),
        (lambda: ps.FittedPrior(print, floor=0.0), ValueError, "floor"),
        (lambda: ps.FittedPrior(print, generator=3), TypeError, "generator"),
        (lambda: ps.network_draws("net", 1.0), TypeError, "network"),
        (lambda: ps.network_draws(nn.Linear(1, 1), 1.0, generator=3), TypeError, "generator"),
        (lambda: ps.network_draws(nn.Linear(1, 1), 0.0), ValueError, "standard_deviation"),
        *((lambda x=x: measured(count=x), ValueError, "count") for x in (-1, 10**30)),
        (lambda: measured(batch=[0.0]), TypeError, "batch"),
        (lambda: measured(inputs=[0.0]), TypeError, "inputs"),
        (lambda: measured(generator=3), TypeError, "generator"),
        (lambda: ps.regression_loss(torch.zeros(4, 6), torch.zeros(5), torch.zeros(4)), ValueError, "targets"),
        (lambda: ps.regression_loss(torch.zeros(4, 6), [0.0] * 6, torch.zeros(4)), TypeError, "targets"),
        (lambda: ps.regression_loss(torch.zeros(4, 6), torch.zeros(6), 0.0), TypeError, "log_noise"),
        (lambda: ps.classification_loss(torch.zeros(4, 6), torch.zeros(6)), ValueError, "logits"),
        (lambda: ps.classification_loss([0.0], leaf(6)), TypeError, "outputs"),
        (lambda: ps.classification_loss(torch.zeros(4, 6, 3), 2), TypeError, "labels"),
        (lambda: ps.classification_loss(torch.zeros(4, 6, 3), torch.zeros(6)), TypeError, "labels.*float32"),
        *((lambda x=x: classified(x), ValueError, "labels.*from 0 to 2") for x in (3, -1)),
        (lambda: ps.GaussianProcessPrior(ps.squared_exponential()).log_density([0.0], leaf(3, 1)), TypeError, "inputs"),
        (lambda: gp(leaf(3, 2), lambda a, b: -torch.eye(2)), ValueError, "covariance"),
        (lambda: gp(leaf(3, 4)), ValueError, "outputs"),
        (lambda: ps.particle_samples(lambda x: x, stacked()), TypeError, "model"),
        *(
            (lambda params=params: ps.particle_samples(stacked_mlp(3)[0], params), error, named)
            for params, error, named in [
                (stacked(**{"0.bias": leaf(2, 5)}), ValueError, r"0\.bias"),
                (stacked(**{"0.bias": leaf()}), ValueError, r"0\.bias"),
                (stacked(**{"0.bias": leaf(0, 5)}), ValueError, r"0\.bias"),
                (stacked(**{"0.bias": leaf(3, 4)}), ValueError, r"0\.bias"),
                (stacked(**{"0.bias": [1.0]}), TypeError, r"0\.bias"),
                (stacked(extra=leaf(3)), ValueError, "extra"),
                ({n: t for n, t in stacked().items() if n != "2.weight"}, ValueError, r"2\.weight"),
                ({}, ValueError, "parameters"),
                (list(stacked().values()), TypeError, "parameters"),
            ]
        ),
    ],
)
def test_arguments_of_one(make, error, named):
    with pytest.raises(error, match=named):
        make()


@pytest.mark.parametrize("name", OF_A_KIND[1:])
@pytest.mark.parametrize(
    ("group", "named"),
    [
        (lambda x: {"params": [w(3)], "task": 0}, "3 particles"),
        (lambda x: {"params": [leaf()]}, "particle axis"),
        (lambda x: {"params": [x], "task": 0}, "more than one"),
        (lambda x: {"params": [x]}, "more than one"),
        (lambda x: {"params": [w()], "task": 0, "shared": True}, "task"),
        (lambda x: {"params": [], "task": 0}, "empty"),
        (lambda x: {"params": [p := w(), p]}, r"params\[1\]"),
    ],
)
def test_a_group_that_is_refused_changes_nothing(name, group, named):
    """Added to a sampler that has taken a step: it goes on as if nothing had been tried."""
    x = w()
    sampler = SEVERAL[name]([x], 0.1, base_optimizer=ADAM)
    sampler.step(lambda: energies(name, x))
    before, state = x.detach().clone(), str(sampler.state_dict())
    with pytest.raises(ValueError, match=named):
        sampler.add_param_group(group(x))
    assert torch.equal(x, before)
    assert str(sampler.state_dict()) == state
    assert len(sampler.base_optimizer.param_groups) == 1
    sampler.step(lambda: energies(name, x))
    assert not torch.equal(x, before)


def refused(sampler, closure, error, named):
    """The step raises, and neither particles nor counters nor the base optimizer have changed."""
    params = [p for group in sampler.param_groups for p in group["params"]]
    before, state = [p.detach().clone() for p in params], str(sampler.state_dict())
    with pytest.raises(error, match=named):
        sampler.step(closure)
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    assert str(sampler.state_dict()) == state


def backward_before(losses):
    losses.sum().backward()
    return losses


def no_batch(losses):
    raise KeyError("no such batch")


@pytest.mark.parametrize("name", OF_A_KIND)
@pytest.mark.parametrize(
    ("spoil", "error", "named"),
    [
        (lambda v: v.mean(), ValueError, "losses"),
        (lambda v: v.mean(-1, keepdim=True), ValueError, "losses"),
        (lambda v: v[..., :3], ValueError, "losses"),
        (lambda v: v[None, None], ValueError, "losses"),
        (lambda v: v.detach(), ValueError, "losses"),
        (lambda v: v.detach().long(), TypeError, "losses.*int64"),
        (lambda v: v.tolist(), TypeError, "list"),
        (lambda v: v * NAN, FloatingPointError, "losses"),
        (lambda v: None, TypeError, "losses"),
        (no_batch, KeyError, "no such batch"),
        (backward_before, ValueError, "before any backward"),
        (lambda v: (v, v), TypeError, "tuple of 2: several losses go into a list"),
        (lambda v: (v,) * 3, TypeError, "tuple of 3: several losses go into a list"),
        (None, ValueError, "closure"),
        (lambda v: energies("SVGD", w()).expand_as(v), ValueError, "'x' takes no part"),
        (lambda v: v + 0 * v.detach(), ValueError, "'idle' takes no part"),
        (lambda v, idle: v + idle[:, 0].sqrt(), FloatingPointError, "'idle'"),
    ],
)
def test_losses(name, spoil, error, named):
    x, idle = w(), leaf(4, 1)
    uses_idle = spoil is not None and spoil.__code__.co_argcount == 2
    params = [("x", x), ("idle", idle)] if uses_idle or "idle" in named else [("x", x)]
    sampler = EVERY[name](params, 0.1, base_optimizer=ADAM)
    closure = (lambda: spoil(energies(name, x), idle)) if uses_idle else (lambda: spoil(energies(name, x)))
    refused(sampler, None if spoil is None else closure, error, named)


@pytest.mark.parametrize("name", OF_A_KIND[1:])
@pytest.mark.parametrize(
    ("spoil", "error", "named"),
    [
        (lambda a, b: [a, b.mean()], ValueError, "loss 1"),
        (lambda a, b: [a[:3], b], ValueError, "loss 0"),
        (lambda a, b: [a[None], b], ValueError, "loss 0"),
        (lambda a, b: [a, b.detach()], ValueError, "loss 1"),
        (lambda a, b: [a, 1.0], TypeError, "loss 1"),
        (lambda a, b: [a, b * NAN], FloatingPointError, "loss 1"),
        (lambda a, b: [], ValueError, "at least one target"),
    ],
)
def test_lists_of_losses(name, spoil, error, named):
    x = w()
    refused(SEVERAL[name]([x], 0.1, base_optimizer=ADAM), lambda: spoil(*energies(name, x)), error, named)


@pytest.mark.parametrize("name", SEVERAL)
def test_heads_that_do_not_fit_the_losses(name):
    net = TwoHeads()
    refused(SEVERAL[name](net.groups()[:2], 0.1), net.losses, ValueError, r"\[0\]")
    refused(SEVERAL[name](net.groups()[1:], 0.1), net.losses, ValueError, "shared")
    x, y = w(), w()
    groups = [{"params": [("x", x)]}, {"params": [("y", y)], "task": 0}, {"params": [("idle", w())], "task": 1}]
    idle = SEVERAL[name](groups, 0.1)
    refused(idle, lambda: energies(name, x) + y.sum(1), ValueError, "'idle' takes no part in loss 1")


@pytest.mark.parametrize("name", EVERY)
def test_every_parameter_frozen(name):
    refused(EVERY[name]([w().detach()], 0.1), lambda: energies(name, w()), ValueError, "requires_grad")


def test_steps_of_one():
    x = w()
    refused(ps.SVGD([x], 0.1), lambda: [energies("SVGD", x)], TypeError, "list")
    refused(ps.MTSGD([x], 0.1, target_weights=(0.2, 0.3, 0.5)), lambda: energies("M", x), ValueError, "3 weights")
    three = torch.eye(3)[[0, 1, 2, 0]]
    refused(ps.ParetoMTL([x], 0.1, preferences=three), lambda: energies("M", x), ValueError, "preferences")
    refused(ps.ParetoMTL([x], 0.1), lambda: energies("M", x)[[0, 1, 0]], ValueError, "preferences")
    features = ps.SVGD([x], 0.1, kernel_on="features")
    for wrong in (lambda e: e, lambda e: (e, x[:3] * 1), lambda e: (e, x.detach())):
        refused(features, lambda wrong=wrong: wrong(energies("SVGD", x)), ValueError, "features")
    net = TwoHeads()
    sampler = ps.MTSGD(net.groups(), 0.1)
    sampler.param_groups[1]["temperature"] = 0.5
    refused(sampler, net.losses, ValueError, "temperature must be the same")

    def overflowing(points):
        matrix = ps.RBF()(points)
        return matrix._replace(values=matrix.values * INF)

    refused(ps.SVGD([x], 0.1, kernel=overflowing), lambda: energies("SVGD", x), FloatingPointError, "direction")
    # U is not finite before the direction is.
    refused(ps.MTSGD([x], 0.1, kernel=overflowing), lambda: energies("M", x), FloatingPointError, "gram")


@pytest.mark.parametrize(
    ("spoil", "error", "named"),
    [
        (lambda l, f, p: l, TypeError, "losses, outputs"),
        (lambda l, f, p: (l.mean(), f), ValueError, "losses"),
        (lambda l, f, p: (l, f[:2]), ValueError, "outputs"),
        (lambda l, f, p: (l, f[:, 0]), ValueError, "outputs"),
        (lambda l, f, p: (l, f.detach()), ValueError, "outputs"),
        (lambda l, f, p: (l, f * 1.0), ValueError, "outputs"),
        (lambda l, f, p: (l, f, p.sum()), ValueError, "log_prior"),
        (lambda l, f, p: (l, f, p.detach()), ValueError, "log_prior"),
        (lambda l, f, p: (l, f, p * NAN), FloatingPointError, "log_prior"),
        (lambda l, f, p: (l * NAN, f, p), FloatingPointError, "losses"),
        (lambda l, f, p: (l + 0 * (f - f.detach()).sqrt().sum(1), f), FloatingPointError, "not finite"),
        (lambda l, f, p: (backward_before(l), f, p), ValueError, "before any backward"),
        (lambda l, f, p, x: (l + 0.1 * x.square().sum(1), f), ValueError, "'x' other than through the outputs"),
        (lambda l, f, p, x: (l, f, p - x.square().sum(1)), ValueError, "'x' other than through the outputs"),
    ],
)
def test_closures_of_functions(spoil, error, named):
    x = w(4, 3)
    more = (x,) * (spoil.__code__.co_argcount - 3)

    def closure():
        outputs = x * 1.0
        return spoil(outputs.square().sum(1), outputs, -outputs.square().sum(1), *more)

    refused(ps.FSVGD([("x", x)], 0.1, 20, base_optimizer=ADAM), closure, error, named)


def test_steps_of_functions():
    x, idle_parameter = w(1, 3), leaf(1)
    idle = ("idle", idle_parameter)

    def closure():
        outputs = x * 1.0
        return outputs.square().sum(1), outputs

    for params, kernel, named in [
        ([x], ps.RBF("off_diagonal_median"), "bandwidth"),
        ([{"params": [idle_parameter], "likelihood": True}], None, "network's"),
        ([("x", x), idle], None, "'idle' takes no part in the outputs"),
        ([{"params": [("x", x)]}, {"params": [idle], "likelihood": True}], None, "'idle' takes no part in the loss"),
    ]:
        refused(ps.FSVGD(params, 0.1, 20, kernel=kernel), closure, ValueError, named)


# ---------------------------------------------------------------- saved states


def after_a_step(cls, count=4, **keywords):
    x = w(count)
    sampler = cls([("w", x)], 0.1, **keywords)
    features = keywords.get("kernel_on") == "features"
    losses = "SVGD" if cls is ps.SVGD else "several"
    sampler.step(lambda: (energies(losses, x), x * 1.0) if features else energies(losses, x))
    return sampler


def refuses_state(sampler, saved, named):
    saved["param_groups"][0]["lr"] = 0.7
    saved.get("sampler", {}).pop("settings_checksum", None)
    before = str(sampler.state_dict())
    with pytest.raises(ValueError, match=named):
        sampler.load_state_dict(saved)
    assert str(sampler.state_dict()) == before


BY_ADAM, FRONT = {"base_optimizer": ADAM}, [[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("cls", "ours", "theirs", "named"),
    [
        (ps.MGDA, {}, BY_ADAM, "base_optimizer"),
        (ps.MGDA, BY_ADAM, {}, "base_optimizer"),
        (ps.MGDA, BY_ADAM, {"base_optimizer": torch.optim.SGD}, "base_optimizer.*SGD"),
        (ps.ParetoMTL, {"preferences": FRONT}, {"preferences": FRONT[::-1]}, "preferences"),
        (ps.SVGD, {"kernel": ps.RBF(2.0)}, {"kernel": ps.RBF(1.0)}, "kernel"),
        (ps.SVGD, {"kernel_on": "features"}, {}, "kernel_on"),
        (ps.SVGD, {**BY_ADAM, "count": 6}, BY_ADAM, "shape"),
        *((cls, {"count": 6}, {}, "shape") for cls in (ps.SVGD, ps.MTSGD, ps.MOOSVGD, ps.MGDA, ps.ParetoMTL)),
    ],
)
def test_a_state_of_other_settings(cls, ours, theirs, named):
    """Another number of particles is refused, too: without state tensors it fitted, and the next step failed."""
    refuses_state(after_a_step(cls, **ours), after_a_step(cls, **theirs).state_dict(), named)


def test_states_that_do_not_fit():
    refuses_state(after_a_step(ps.MGDA), after_a_step(ps.MOOSVGD).state_dict(), "MGDA")
    net = TwoHeads()
    groups = net.groups()
    groups[1]["task"], groups[2]["task"] = 1, 0
    refuses_state(ps.MTSGD(groups, 0.1), ps.MTSGD(net.groups(), 0.1).state_dict(), "task")
    saved = after_a_step(ps.SVGD, **BY_ADAM).state_dict()
    saved["base_optimizer"]["param_groups"][0]["params"] = [0, 1]
    refuses_state(after_a_step(ps.SVGD, **BY_ADAM), saved, "size")
    saved = after_a_step(ps.SVGD, **BY_ADAM).state_dict()
    saved["base_optimizer"]["state"][0]["exp_avg"][1, 1] = NAN
    refuses_state(after_a_step(ps.SVGD, **BY_ADAM), saved, "base_optimizer.*exp_avg.*'w'")
    saved = after_a_step(ps.ParetoMTL).state_dict()
    saved["param_groups"][0]["feasible"] = [True]
    refuses_state(after_a_step(ps.ParetoMTL), saved, "feasible")


def test_a_scheduler_of_the_base_optimizer_is_refused_before_anything_moves():
    x = parameter(4, 2)
    sampler = ps.SVGD([x], 0.1, base_optimizer=ADAM)
    torch.optim.lr_scheduler.StepLR(sampler.base_optimizer, 1)
    refused(sampler, lambda: energies("SVGD", x), ValueError, "base_optimizer.*scheduler")
