"""States, networks and comparisons for the tests of the compiled update."""

import torch

from learned_samplers.base.segments import Segments
from learned_samplers.base.whitening import state_lengths, update_whitening
from learned_samplers.learned.feature_sets import feature_set_named
from learned_samplers.learned.l2e.rule import L2ESettings, l2e_rule
from learned_samplers.learned.native.step import can_step, step_flat_
from learned_samplers.learned.network import build_network, flatten, layers_of, shapes_of, unflatten
from learned_samplers.learned.preconditioned.rule import PreconditionedSettings, l2e_precond_rule

RULES = {"residual": l2e_rule, "paper": l2e_rule, "preconditioner": l2e_precond_rule}
HYPER = dict(lr=0.02, num_data=3000.0, temperature=0.7, prior_precision=4.0, momentum_decay=0.1, step=6)
#: Of a difference to the rule in double precision, in root mean squares of what the step changes, above the rounding of
#: the value itself; the rule in single precision differs as much (1e-6 to 3e-6).
TOLERANCE = 1e-5
#: With roots of covariances in single precision, whose eigenvalues are damped at 10⁻⁴ of the largest.
TOLERANCE_OF_ROOTS = 2e-3


def networks(feature_set, hidden=(16, 16), members=None, seed=0, outputs=2):
    """Weights with biases, of one network or of one for each member."""
    generator = torch.Generator().manual_seed(seed)
    phi = layers_of(build_network(feature_set, hidden, outputs, zero_last=False, generator=generator))
    vector = flatten(phi).detach()
    shape = (len(vector),) if members is None else (members, len(vector))
    return unflatten(vector + 0.1 * torch.randn(shape, generator=generator), shapes_of(phi))


def state(lengths, feature_set, leading=(), seed=1):
    """A chain in mid-run: parameter, gradient, noise, momentum, averages, and covariances if the feature set has any.

    Every tensor has a scale of its own.
    """
    generator, total = torch.Generator().manual_seed(seed), sum(lengths)
    named = feature_set_named(feature_set)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    scale = torch.cat([(10 ** draw(1)).expand(n) for n in lengths])
    gradient = 0.01 * scale * draw(*leading, total)
    first = 0.01 * scale * draw(*leading, len(named.average_decays), total)
    second = (
        0.01 * scale * draw(*leading, len(named.second_moment_decays), total)
    ).square() + gradient.square().unsqueeze(-2) * 0.05
    averages = torch.cat([first, second], -2)
    chain = [0.3 * draw(*leading, total), gradient, draw(*leading, total), draw(*leading, total), averages]
    if named.whitens:
        whitening = torch.zeros(*leading, sum(state_lengths(segments_of(lengths))))
        chain.append(update_whitening(whitening, 0.01 * scale * draw(*leading, total), segments_of(lengths), 0))
    return chain


def segments_of(lengths):
    """Tensors of these lengths: matrices of four rows, of two, or vectors, as they divide."""
    rows = [next(k for k in (4, 2, 1) if n % k == 0) for n in lengths]
    return Segments(tuple(lengths), tuple((k, n // k) if k > 1 else (n,) for k, n in zip(rows, lengths, strict=True)))


def with_settings(form, given):
    """The keywords with those that are settings in one place; ``form`` is "preconditioner", or one of L2E's."""
    kind = PreconditionedSettings if form == "preconditioner" else L2ESettings
    own = {name: given[name] for name in kind.names() if name in given}
    rest = {name: value for name, value in given.items() if name not in own}
    return {**rest, "settings": kind(**own) if form == "preconditioner" else kind(form=form, **own)}


def step_by_code(tensors, lengths, *, form, **given):
    """The step by the compiled code on copies: new parameter and state."""
    given = with_settings(form, given)
    copies = [None if x is None else x.clone() for x in tensors]
    assert can_step(given["phi"], given["settings"], *copies)
    step_flat_(*copies, segments=segments_of(lengths), **given)
    return copies[0], *copies[3:]


def step_by_rule(tensors, lengths, *, form, dtype=torch.float64, **given):
    """The same by the pure rule, in double precision."""
    given = with_settings(form, given)
    wide = [None if x is None else x.to(dtype) for x in tensors]
    phi = [(weight.to(dtype), bias.to(dtype)) for weight, bias in given.pop("phi")]
    return RULES[form](*wide, phi=phi, segments=segments_of(lengths), **given)


def worst_difference(tensors, lengths, ours, theirs):
    """The greatest difference of a coordinate, in root mean squares of the change of its tensor, above rounding."""
    before, worst = (tensors[0], *tensors[3:5]), 0.0
    for rows in zip(before, ours[:3], theirs[:3], strict=True):
        for old, a, b in zip(*(row.double().split(list(lengths), -1) for row in rows), strict=True):
            change = (b - old).square().mean(-1, keepdim=True).sqrt()
            excess = ((a - b).abs() - 2e-7 * b.abs()).clamp(min=0)
            worst = max(worst, (excess / (change + 1e-30)).max().item())
    return worst
