"""Triton kernels of `meta_tasks.rules.triton_l2e`; the only module that imports Triton.

A program works on one member and one block of up to ``BLOCK`` coordinates of one tensor, or (the `*_scales` kernels) on
one member and one tensor. Sums over a tensor go through partial sums of its blocks, added up in a fixed order: the same
inputs give the same bits. Tables of scales and partial sums have `ROWS` rows; row f < 9 belongs to feature f (g, θ, r,
six averages of g), rows 9 and 10 to the two averages of g².
"""

from __future__ import annotations

import triton
import triton.language as tl

ROWS = tl.constexpr(16)
_AVERAGES = tl.constexpr(6)
# The constants of `learned_samplers.learned.features`, which the tests compare.
_EPSILON = tl.constexpr(1e-5)
_TINY = tl.constexpr(1e-16)
_SMALL = tl.constexpr(1e-8)
_HALF_LOG_SCALE = tl.constexpr(0.125)
_RATIO_BOUND = tl.constexpr(8.0)
_LOG_RATIO_FLOOR = tl.constexpr(1e-10)
_LOG_10 = tl.constexpr(2.302585092994046)
_NAN = tl.constexpr(tl.PropagateNan.ALL)  # as torch's relu and clamp have it: what is broken must show

#: Whether the kernels run on the CPU, one program after the other (TRITON_INTERPRET=1 before Triton is imported).
INTERPRETED = triton.knobs.runtime.interpret


@triton.jit
def _pick(table, row):
    """One number of a vector of length `ROWS`."""
    return tl.sum(tl.where(tl.arange(0, ROWS) == row, table, 0.0), axis=0)


@triton.jit
def averages_kernel(
    gradient, parameter, momentum, old, new, weights, start, stop, partial, d, blocks, SECONDS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """m ← m + w·(g − m) and v ← v + w·(g² − v), and the partial sums of everything that has a scale."""
    member, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.load(start + block) + tl.arange(0, BLOCK)
    inside = at < tl.load(stop + block)
    flat = member * d + at
    g = tl.load(gradient + flat, mask=inside, other=0.0)
    theta = tl.load(parameter + flat, mask=inside, other=0.0)
    r = tl.load(momentum + flat, mask=inside, other=0.0)
    sums = partial + (member * blocks + block) * ROWS
    tl.store(sums, tl.sum(g * g, axis=0))
    tl.store(sums + 1, tl.sum(theta * theta, axis=0))
    tl.store(sums + 2, tl.sum(r * r, axis=0))
    for k in tl.static_range(_AVERAGES + SECONDS):
        place = (member * (_AVERAGES + SECONDS) + k) * d + at
        m = tl.load(old + place, mask=inside, other=0.0)
        target = g if k < _AVERAGES else g * g
        m = m + tl.load(weights + k) * (target - m)
        tl.store(new + place, m, mask=inside)
        tl.store(sums + 3 + k, tl.sum(m * m if k < _AVERAGES else m, axis=0))


@triton.jit
def _momentum_context(context, momentum, parameter, displacement):
    """The two rows of the context that depend on the momentum, from mean squares."""
    tl.store(context + 2, tl.log(momentum + _SMALL) * _HALF_LOG_SCALE)
    ratio = (momentum * displacement + _SMALL * _SMALL) / (parameter + _SMALL)
    tl.store(context + 3, tl.log(ratio) * _HALF_LOG_SCALE)


@triton.jit
def scales_kernel(
    partial, first, last, length, clock, squares, factors, context, blocks, segments, kick, displacement,
    SECONDS: tl.constexpr, CONTEXT: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Mean squares of a tensor's rows, their rsqrt, and its context."""
    member, segment = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.arange(0, ROWS)
    end = tl.load(last + segment)
    total = tl.zeros((ROWS,), tl.float32)
    for begin in range(tl.load(first + segment), end, CHUNK):
        block = begin + tl.arange(0, CHUNK)
        place = (member * blocks + block[:, None]) * ROWS + row[None, :]
        known = (block < end)[:, None] & (row < 9 + SECONDS)[None, :]
        total += tl.sum(tl.load(partial + place, mask=known, other=0.0), axis=0)
    size = tl.load(length + segment)
    mean = total / size
    table = (member * segments + segment) * ROWS
    tl.store(squares + table + row, mean)
    tl.store(factors + table + row, tl.where(row < 9, tl.rsqrt(mean + _EPSILON), 1.0 / (mean + _TINY)))
    if CONTEXT:
        context += table
        g, theta = _pick(mean, 0), _pick(mean, 1)
        tl.store(context, tl.log(g * kick + _SMALL) * _HALF_LOG_SCALE)
        tl.store(context + 1, tl.log(theta + _SMALL) * _HALF_LOG_SCALE)
        _momentum_context(context, _pick(mean, 2), theta, displacement)
        for i in tl.static_range(3):  # coherence at d = .9, .99, .999
            correction = tl.load(clock + i)
            ratio = (_pick(mean, 5 + i) / (correction * correction) + _TINY) / (g + _TINY)
            tl.store(context + 4 + i, tl.log(ratio) * _HALF_LOG_SCALE)
        tl.store(context + 7, tl.log(size) / _LOG_10 / 3 - 1)
        for i in tl.static_range(3):
            tl.store(context + 8 + i, tl.load(clock + 3 + i))


@triton.jit
def momentum_scales_kernel(
    partial, first, last, length, squares, factors, context, blocks, segments, displacement, CONTEXT: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """What `scales_kernel` writes of the momentum, anew for the second pass."""
    member, segment = tl.program_id(0).to(tl.int64), tl.program_id(1)
    end = tl.load(last + segment)
    total = tl.zeros((CHUNK,), tl.float32)
    for begin in range(tl.load(first + segment), end, CHUNK):
        block = begin + tl.arange(0, CHUNK)
        total += tl.load(partial + member * blocks + block, mask=block < end, other=0.0)
    mean = tl.sum(total, axis=0) / tl.load(length + segment)
    table = (member * segments + segment) * ROWS
    tl.store(factors + table + 2, tl.rsqrt(mean + _EPSILON))
    if CONTEXT:
        _momentum_context(context + table, mean, tl.load(squares + table + 1), displacement)


@triton.jit
def _bounded(y, bound):
    """bound·tanh(y/bound); by its series where the difference of exponentials would cancel."""
    z = tl.abs(y) / bound
    square, decay = z * z, tl.exp(-2 * z)
    series = z * (1 - square * (1 / 3 - square * (2 / 15 - square * (17 / 315))))
    result = bound * tl.where(z < 0.1, series, (1 - decay) / (1 + decay))
    return tl.where(y < 0, -result, result)


@triton.jit
def _hidden(
    member, at, inside, table, g, theta, r, averages, factors, context, clock, w1, b1, w2, b2, d,
    F: tl.constexpr, H1: tl.constexpr, H2: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, SECONDS: tl.constexpr,
    CONTEXT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The last hidden layer of a block, (P2, BLOCK); the features live in registers, one after the other.

    P1 and P2 are the widths H1 and H2 rounded up; the units that this adds have weights of zero.
    """
    unit = tl.arange(0, P1)
    column = w1 + member * H1 * F + unit * F
    h = tl.load(b1 + member * H1 + unit, mask=unit < H1, other=0.0)[:, None] + tl.zeros((P1, BLOCK), tl.float32)
    h += tl.load(column, mask=unit < H1, other=0.0)[:, None] * (g * tl.load(factors + table))[None, :]
    h += tl.load(column + 1, mask=unit < H1, other=0.0)[:, None] * (theta * tl.load(factors + table + 1))[None, :]
    h += tl.load(column + 2, mask=unit < H1, other=0.0)[:, None] * (r * tl.load(factors + table + 2))[None, :]
    rows = averages + member * (_AVERAGES + SECONDS) * d + at
    for k in tl.static_range(_AVERAGES):
        x = tl.load(rows + k * d, mask=inside, other=0.0) * tl.load(factors + table + 3 + k)
        h += tl.load(column + 3 + k, mask=unit < H1, other=0.0)[:, None] * x[None, :]
    if SECONDS > 0:
        second = tl.load(rows + 6 * d, mask=inside, other=0.0)
        inverse = tl.rsqrt(second / tl.load(clock + 1) + _TINY)
        for k in tl.static_range(3):  # g, and its averages at d = .9 and .99, over the root of the mean of g²
            x = g
            if k > 0:
                x = tl.load(rows + (k + 1) * d, mask=inside, other=0.0) / tl.load(clock + k - 1)
            x = tl.maximum(x * inverse, -_RATIO_BOUND, propagate_nan=_NAN)
            x = tl.minimum(x, _RATIO_BOUND, propagate_nan=_NAN)
            h += tl.load(column + 9 + k, mask=unit < H1, other=0.0)[:, None] * x[None, :]
        for k in tl.static_range(SECONDS):
            relative = tl.load(rows + (_AVERAGES + k) * d, mask=inside, other=0.0) * tl.load(factors + table + 9 + k)
            x = tl.log(relative + _LOG_RATIO_FLOOR) * _HALF_LOG_SCALE
            h += tl.load(column + 12 + k, mask=unit < H1, other=0.0)[:, None] * x[None, :]
    if CONTEXT:  # the same at every coordinate
        shift = tl.zeros((P1,), tl.float32)
        for i in tl.static_range(11):
            weight = tl.load(column + F - 11 + i, mask=unit < H1, other=0.0)
            shift += weight * tl.load(context + table + i)
        h += shift[:, None]
    h = tl.maximum(h, 0.0, propagate_nan=_NAN)
    out = tl.arange(0, P2)
    weight = tl.load(
        w2 + member * H2 * H1 + out[:, None] * H1 + unit[None, :],
        mask=(out < H2)[:, None] & (unit < H1)[None, :],
        other=0.0,
    )
    bias = tl.load(b2 + member * H2 + out, mask=out < H2, other=0.0)
    h = tl.dot(weight, h, input_precision="ieee") + bias[:, None]
    return tl.maximum(h, 0.0, propagate_nan=_NAN)


@triton.jit
def _output(hidden, member, head, w3, b3, bound, H2: tl.constexpr, P2: tl.constexpr, BOUND: tl.constexpr):
    unit = tl.arange(0, P2)
    weight = tl.load(w3 + (member * 2 + head) * H2 + unit, mask=unit < H2, other=0.0)
    y = tl.sum(weight[:, None] * hidden, axis=0) + tl.load(b3 + member * 2 + head)
    return _bounded(y, bound) if BOUND else y


@triton.jit
def first_pass_kernel(
    gradient, parameter, noise, momentum, averages, factors, context, clock, w1, b1, w2, b2, w3, b3, segment, start,
    stop, new_momentum, partial, d, blocks, segments, keep, kick, pull, heat, by_alpha, by_beta, bound,
    F: tl.constexpr, H1: tl.constexpr, H2: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, SECONDS: tl.constexpr,
    CONTEXT: tl.constexpr, NOISE: tl.constexpr, BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """r ← keep·r − kick·g − pull·θ + heat·ξ − by_alpha·α − by_beta·β, and the partial sums of its square."""
    member, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.load(start + block) + tl.arange(0, BLOCK)
    inside = at < tl.load(stop + block)
    flat = member * d + at
    table = (member * segments + tl.load(segment + block)) * ROWS
    g = tl.load(gradient + flat, mask=inside, other=0.0)
    theta = tl.load(parameter + flat, mask=inside, other=0.0)
    r = tl.load(momentum + flat, mask=inside, other=0.0)
    hidden = _hidden(
        member, at, inside, table, g, theta, r, averages, factors, context, clock, w1, b1, w2, b2, d,
        F, H1, H2, P1, P2, SECONDS, CONTEXT, BLOCK,
    )  # fmt: skip
    r = keep * r - kick * g - pull * theta
    if NOISE:
        r += heat * tl.load(noise + flat, mask=inside, other=0.0)
    r -= by_alpha * _output(hidden, member, 0, w3, b3, bound, H2, P2, BOUND)
    r -= by_beta * _output(hidden, member, 1, w3, b3, bound, H2, P2, BOUND)
    tl.store(new_momentum + flat, r, mask=inside)
    tl.store(partial + member * blocks + block, tl.sum(tl.where(inside, r * r, 0.0), axis=0))


@triton.jit
def second_pass_kernel(
    gradient, parameter, momentum, averages, factors, context, clock, w1, b1, w2, b2, w3, b3, segment, start, stop,
    new_parameter, d, segments, step_size, beta_scale, bound,
    F: tl.constexpr, H1: tl.constexpr, H2: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, SECONDS: tl.constexpr,
    CONTEXT: tl.constexpr, BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """θ ← θ + step_size·(r + beta_scale·β)."""
    member, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.load(start + block) + tl.arange(0, BLOCK)
    inside = at < tl.load(stop + block)
    flat = member * d + at
    table = (member * segments + tl.load(segment + block)) * ROWS
    g = tl.load(gradient + flat, mask=inside, other=0.0)
    theta = tl.load(parameter + flat, mask=inside, other=0.0)
    r = tl.load(momentum + flat, mask=inside, other=0.0)
    hidden = _hidden(
        member, at, inside, table, g, theta, r, averages, factors, context, clock, w1, b1, w2, b2, d,
        F, H1, H2, P1, P2, SECONDS, CONTEXT, BLOCK,
    )  # fmt: skip
    beta = _output(hidden, member, 1, w3, b3, bound, H2, P2, BOUND)
    tl.store(new_parameter + flat, theta + step_size * (r + beta_scale * beta), mask=inside)
