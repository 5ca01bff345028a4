"""The direction in which a matrix of weights moves: momentum, whitened and made orthogonal, and how long it is.

A matrix M (momentum of a layer, a row an output) becomes `orthogonal` of M·(R + 10⁻⁴·‖R‖)^(−1/2), with R the covariance
of its inputs, a running average of GᵀG over the gradients G, times the `attenuation`. R and the orthogonal factor are
in blocks, so that both cost in proportion to the weights. Leading axes are members of a batch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.operations import waits_for_launches
from learned_samplers.base.protocol import Chain
from learned_samplers.base.segments import Segments, matrix_sides

#: Of the running average R ← d·R + (1−d)·GᵀG.
COVARIANCE_DECAY = 0.95
#: Steps between two roots of a block of R; a tenth of all blocks has its turn in each step.
ROOT_EVERY = 10
#: Columns that have a covariance together, and rows that are made orthogonal together: of more, equal blocks.
WIDEST_BLOCK, TALLEST_BLOCK = 288, 128
# A block's columns for each row up to which R helps: the gradients that it remembers have no higher rank (a layer of
# 20×512 is as good without). Of more than a few blocks those for which R costs in proportion, six numbers a weight.
_FILLED, _FEW, _IN_PROPORTION = 10, 4, 3
# Of its Frobenius norm: what is added to R, so that no direction is blown up by noise.
_RIDGE = 1e-4
# p(x) = a·x + b·x³ + c·x⁵, five times over, brings every singular value in (0.003, 1] to between 0.68 and 1.2: fast and
# close enough, for the values need not be 1 (K. Jordan et al., Muon, 2024).
_POLYNOMIAL = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
_FLOOR = 1e-20
# In `attenuation`: 1 without a pull, whatever the gradient, and differentiable where both are zero.
_TINY = 1e-30
# Iterations of `newton_inverse_root`: of the smallest eigenvalue, 10⁻⁴, 12 bring the root near 1 and 4 more end it.
_NEWTON = 18
# Numbers of states whose roots are made in one step on a GPU; an iteration holds three times as many.
_ROOTS_AT_ONCE = 1 << 27
# Squares of up to so many rows go together, the smaller ones with zeros around them; on a GPU the larger ones, too.
_LOW, _LOW_ON_CPU = 64, 32


# ------------------------------------------------------------------- the whole direction


def directions(
    ahead: Sequence[Tensor], states: Sequence[Tensor], parameters: Sequence[Tensor], decay: Any = 0.0
) -> list[Tensor]:
    """Orthogonal factor of each matrix (..., rows, columns), whitened by ``states``, times its `attenuation`.

    The root mean square is about 1 over a tensor, or less by the attenuation; a single row is divided by its own.
    ``parameters`` and ``decay``, λ/N, are for the attenuation: 0 has none.
    """
    factors = orthogonal(all_whitened(ahead, states))
    if not factors or not (isinstance(decay, Tensor) or decay):
        return factors
    return list(torch._foreach_mul(factors, list(attenuations(ahead, parameters, decay))))


def attenuation(ahead: Tensor, parameter: Tensor, decay: Any) -> Tensor:
    """‖m‖/√(‖m‖² + ‖w·θ‖²): near 1, or small where m is small beside the prior's pull.

    A direction is as long for a small gradient as for a large one. Where few data are fitted, what is left of the
    likelihood's gradient is below the prior's, and a chain that went on at the same pace would only memorise.

    Args:
        ahead: ‖m‖², m an average of gradients of the mean loss, not corrected for its start at zero.
        parameter: ‖θ‖², of θ less the prior's mean, over as many numbers.
        decay: w = λ/N, by which θ is pulled.
    """
    return ((ahead + _TINY) / (ahead + parameter * (decay * decay) + _TINY)).sqrt()


def attenuations(ahead: Sequence[Tensor], parameters: Sequence[Tensor], decay: Any) -> Sequence[Tensor]:
    """`attenuation` of each matrix (..., rows, columns), in shapes that multiply it."""
    if ahead[0].dim() == 2:  # all tensors together: one by one it takes a tenth of a step
        m, theta = torch.stack(torch._foreach_norm([*ahead, *parameters])).square().view(2, -1)
        return attenuation(m, theta, decay).unbind()
    squares = ([matrix.square().sum((-2, -1), keepdim=True) for matrix in x] for x in (ahead, parameters))
    return [attenuation(m, theta, decay) for m, theta in zip(*squares, strict=True)]


# ------------------------------------------------------------------- the orthogonal factor


def orthogonal(matrices: Sequence[Tensor]) -> list[Tensor]:
    """√(longer side)·U·Vᵀ of each matrix M = U·S·Vᵀ, (..., rows, columns), root mean square about 1.

    Up to the error of five Newton–Schulz iterations; a single row is only divided by its root mean square. A matrix
    with more than `TALLEST_BLOCK` rows (columns, if these are fewer) is cut into equal blocks of them, and each of
    these made orthogonal. Matrices of one shape go together, and single rows.
    """
    alike, result = defaultdict(list), list(matrices)
    for i, matrix in enumerate(matrices):
        single = matrix.dim() == 2 and 1 in matrix.shape
        alike["a row" if single else matrix.shape, matrix.dtype, matrix.device].append(i)
    wide, others = [], []
    for (shape, _, _), places in alike.items():
        chosen = [matrices[i] for i in places]
        if isinstance(shape, str):
            rows = _rows_of_length(chosen)
            for i, row in zip(places, rows, strict=True):
                result[i] = row
            continue
        # No copy of a single one, which may be as large as the model.
        stacked = torch.stack(chosen) if len(chosen) > 1 else chosen[0].unsqueeze(0)
        x = stacked if shape[-2] <= shape[-1] else stacked.mT
        if x.shape[-2] == 1:
            length = torch.rsqrt(x.square().sum(-1, keepdim=True) + _FLOOR) * math.sqrt(x.shape[-1])
            for i, row in zip(places, (x * length).reshape(stacked.shape).unbind(), strict=True):
                result[i] = row
            continue
        wide.append(x)
        others.append(places)
    cuts = [_cut(x) for x in wide]
    for places, x, cut, factor in zip(others, wide, cuts, _factors(cuts), strict=True):
        made = torch.bmm(factor, cut)
        if made.shape != x.shape:
            made = made.reshape(*x.shape[:-2], -1, x.shape[-1])[..., : x.shape[-2], :]
        transposed = matrices[places[0]].shape[-1] != x.shape[-1]
        for i, matrix in zip(places, (made.mT if transposed else made).unbind(), strict=True):
            result[i] = matrix
    return result


def _rows_of_length(rows: list[Tensor]) -> Sequence[Tensor]:
    """Single rows, or columns, each divided by its root mean square."""
    roots = torch._foreach_mul(torch._foreach_norm(rows), [row.numel() ** -0.5 for row in rows])
    return torch._foreach_mul(rows, torch.rsqrt(torch.stack(roots).square() + _FLOOR).unbind())


def _cut(x: Tensor) -> Tensor:
    """Equal blocks of the rows of matrices (..., rows, columns), (n, height, columns); rows of zeros fill the last."""
    rows, columns = x.shape[-2:]
    height = math.ceil(rows / math.ceil(rows / TALLEST_BLOCK))
    if missing := -rows % height:
        x = torch.nn.functional.pad(x, (0, 0, 0, missing))
    return x if x.dim() == 3 and x.shape[-2] == height else x.reshape(-1, height, columns)


def _factors(cuts: Sequence[Tensor]) -> list[Tensor]:
    """W of each X, (n, height, columns), for which W·X is the orthogonal factor; like heights together, where it pays.

    Every iterate is W·X with W a polynomial of S = X·Xᵀ, and its own square is W·S·W: two products along the long side
    in the place of ten.
    """
    factors: list[Tensor] = [torch.empty(0)] * len(cuts)
    a, b, c = _POLYNOMIAL
    heights = [cut.shape[-2] for cut in cuts]
    alone = not (cuts and waits_for_launches(cuts[0]))
    alike = defaultdict(list)
    for i, (cut, height) in enumerate(zip(cuts, heights, strict=True)):
        key = i + 2 if alone and height > _LOW_ON_CPU else height > _LOW and not alone
        alike[key, cut.dtype, cut.device].append(i)
    for places in alike.values():
        parts = [torch.bmm(cuts[i], cuts[i].mT) for i in places]
        sizes, side = [part.shape[0] for part in parts], max([heights[i] for i in places])
        square = parts[0]
        if len(parts) > 1:
            square = torch.cat([torch.nn.functional.pad(x, (0, side - x.shape[-1]) * 2) for x in parts])
        roots = [cuts[i].shape[-1] ** 0.5 for i in places]
        # To trace 1, and back: √(longer side) of the orthogonal factor.
        scale = torch.rsqrt(square.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None] + _FLOOR)
        square = square * scale.square()
        product = None
        for time in range(NEWTON_SCHULZ_STEPS):
            # The iteration's factor is a + remainder.
            remainder = torch.baddbmm(square, square, square, beta=b, alpha=c)
            if product is None:
                product = torch.add(remainder, torch.eye(side, dtype=square.dtype, device=square.device), alpha=a)
            else:
                product = torch.baddbmm(product, remainder, product, beta=a)
            if time < NEWTON_SCHULZ_STEPS - 1:
                half = torch.baddbmm(square, remainder, square, beta=a)
                square = torch.baddbmm(half, half, remainder, beta=a)
        assert product is not None
        whole = (product * scale).split(sizes)
        inner = [x if len(parts) == 1 else x[:, : heights[i], : heights[i]] for i, x in zip(places, whole, strict=True)]
        for i, factor in zip(places, torch._foreach_mul(inner, roots), strict=True):
            factors[i] = factor
    return factors


def together(tensors: Sequence[Tensor], keys: Sequence[Any]) -> list[list[int]]:
    """Places of tensors that are worked on together: on a CPU each alone, on a GPU all of one key and dtype."""
    if not tensors or not waits_for_launches(tensors[0]):
        return [[i] for i in range(len(tensors))]
    places: dict[Any, list[int]] = {}
    for i, (x, key) in enumerate(zip(tensors, keys, strict=True)):
        places.setdefault((key, x.dtype, x.device), []).append(i)
    return list(places.values())


# ------------------------------------------------------------------- the covariance of the inputs


def state_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a tensor's covariance and its root, (2, blocks, width, width), or (0,) of what is not whitened.

    That is what is no matrix, and a matrix of so many columns for each row that the gradients which a block's
    covariance remembers cannot fill it, or that the roots of many blocks would take longer than all else: of a layer
    from 20,000 inputs to 2, say.
    """
    rows, columns = matrix_sides(shape)
    blocks, width = blocks_of(columns, WIDEST_BLOCK)
    most = rows * (_FILLED if blocks <= _FEW else _IN_PROPORTION)
    return (2, blocks, width, width) if min(rows, columns) > 1 and width <= most else (0,)


def state_lengths(segments: Segments) -> tuple[int, ...]:
    """Number of numbers in each tensor's state.

    Raises:
        ValueError: ``segments`` do not know the shapes.
    """
    return tuple(math.prod(state_shape(sides)) for sides in segments.matrices)


def flat_states(whitening: Tensor, segments: Segments) -> list[Tensor]:
    """The states of the tensors, (..., 2, blocks, width, width) each, as views of a flat buffer (..., w)."""
    pieces = whitening.split(state_lengths(segments), -1)
    return [piece.unflatten(-1, state_shape(sides)) for piece, sides in zip(pieces, segments.matrices, strict=True)]


def all_whitened(matrices: Sequence[Tensor], states: Sequence[Tensor]) -> list[Tensor]:
    """M·(R + 10⁻⁴·‖R‖)^(−1/2) of each matrix M (..., rows, columns), up to a factor; M itself where it has no state.

    R, the running average of GᵀG over the gradients G, is in blocks of at most `WIDEST_BLOCK` columns. (Shampoo, of
    Gupta, Koren and Singer, 2018, on one side.) Until a block's first root is made it is left as it is.
    """
    result = list(matrices)
    for places in together(matrices, [(m.shape, state.shape) for m, state in zip(matrices, states, strict=True)]):
        width, columns = states[places[0]].shape[-1], matrices[places[0]].shape[-1]
        if not width:
            continue
        alone = len(places) == 1
        blocks = in_blocks(matrices[places[0]] if alone else torch.stack([matrices[i] for i in places]), width)
        state = states[places[0]] if alone else torch.stack([states[i] for i in places])
        root = state[..., 1, :, :, :]
        product = torch.baddbmm(blocks, blocks, root) if blocks.dim() == 3 else blocks + blocks @ root
        product = product.transpose(-3, -2).flatten(-2)
        product = product[..., :columns] if columns % width else product
        for i, matrix in zip(places, [product] if alone else product.unbind(), strict=True):
            result[i] = matrix
    return result


def update_covariances_(states: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """R ← d·R + (1−d)·GᵀG in place.

    Args:
        states: (..., 2, blocks, width, width) for each tensor, zeros before the first step; (..., 0) of no matrix.
        gradients: (..., rows, columns) each.
    """
    if gradients and gradients[0].dim() == 2 and not waits_for_launches(gradients[0]):
        for state, gradient in zip(states, gradients, strict=True):
            if state.shape[-1]:
                blocks, average = in_blocks(gradient, state.shape[-1]), state[0]
                shares = dict(beta=COVARIANCE_DECAY, alpha=1 - COVARIANCE_DECAY)
                torch.baddbmm(average, blocks.mT, blocks, **shares, out=average)
        return
    for places, covariances in covariances_of(states, gradients):
        torch._foreach_lerp_([states[i][..., 0, :, :, :] for i in places], covariances, 1 - COVARIANCE_DECAY)


def covariances_of(states: Sequence[Tensor], gradients: Sequence[Tensor]) -> Iterator[tuple[list[int], list[Tensor]]]:
    """GᵀG of each gradient whose state is not empty, in blocks as wide as the state's; with the gradients' places."""
    for places in together(gradients, [(g.shape, state.shape) for g, state in zip(gradients, states, strict=True)]):
        width = states[places[0]].shape[-1]
        if width:
            alone = len(places) == 1
            blocks = in_blocks(gradients[places[0]] if alone else torch.stack([gradients[i] for i in places]), width)
            covariance = blocks.mT @ blocks
            yield places, [covariance] if alone else list(covariance.unbind())


def renew_roots_(states: Sequence[Tensor], step: int, first: int = 0) -> None:
    """(R + 10⁻⁴·‖R‖)^(−1/2) in place, of the blocks of R whose turn it is in this step: every tenth of all tensors'.

    What is kept is the root less 1, so that a state of zeros does not whiten. (Its units drop out of the direction.)
    All have their turn in every tenth step on a GPU, where that is a tenth of the launches, unless they are many; and
    inside of ``torch.compile``, which would make ten graphs of turns.

    Args:
        states: as of `update_covariances_`, those of a chain's tensors in their order.
        step: updates done before this one.
        first: the number of blocks of tensors before these.
    """
    covariances, roots = [], []
    few = sum(map(Tensor.numel, states)) <= _ROOTS_AT_ONCE
    at_once = torch.compiler.is_compiling() or (bool(states) and few and waits_for_launches(states[0]))
    for state in states:
        if not state.shape[-1]:
            continue
        start = step % ROOT_EVERY if at_once else (step - first) % ROOT_EVERY
        if start < (1 if at_once else state.shape[-3]):
            turn = slice(start, None, None if at_once else ROOT_EVERY)
            covariances.append(state[..., 0, turn, :, :])
            roots.append(state[..., 1, turn, :, :])
        first += state.shape[-3]
    for places in together(covariances, [x.shape[-1] for x in covariances]):
        alike = [covariances[i] for i in places]
        width = alike[0].shape[-1]
        batch = alike[0] if len(alike) == 1 else torch.cat([x.reshape(-1, width, width) for x in alike])
        made = inverse_root(batch) - torch.eye(width, dtype=batch.dtype, device=batch.device)
        sizes = [x.numel() // width**2 for x in alike]
        for i, root in zip(places, [made] if len(alike) == 1 else made.split(sizes), strict=True):
            roots[i].copy_(root.reshape(roots[i].shape))


def renew_roots(sampler: Chain, group: dict[str, Any], moved: Sequence[dict[str, Any]] = ()) -> None:
    """`renew_roots_` after a step of one group, for a sampler that keeps covariances and roots as state "whitening".

    Tensors without a gradient in this step have their turn too: it may fall on steps in which they never have one.
    ``moved`` are the states of those that have one.
    """
    first = 0
    for earlier in sampler.param_groups:
        all_moved = earlier is group and len(moved) == len(group["params"])
        tensors = moved if all_moved else [sampler.state[p] for p in earlier["params"] if p in sampler.state]
        states = [state["whitening"] for state in tensors if "whitening" in state]
        if earlier is group:
            renew_roots_(states, group["step"], first)
            return
        first += sum(state.shape[-3] for state in states if state.shape[-1])


def inverse_root(covariance: Tensor) -> Tensor:
    """(R/‖R‖ + 10⁻⁴)^(−½) of covariances R, (..., width, width), ‖R‖ the Frobenius norm."""
    # A diverged chain has no covariance, and must not stop the others beside it.
    finite = covariance.to(torch.promote_types(covariance.dtype, torch.float32)).nan_to_num(0.0, 0.0, 0.0)
    size = torch.linalg.matrix_norm(finite, keepdim=True).clamp(min=_TINY)
    eye = torch.eye(finite.shape[-1], dtype=finite.dtype, device=finite.device)
    # The ridge first: with inputs that are always zero the decomposition may not converge in single precision.
    ridged = torch.addcdiv(_RIDGE * eye, finite, size)
    if ridged.is_cuda:  # a decomposition there takes some ten times as long
        return newton_inverse_root(ridged).to(covariance.dtype)
    values, vectors = eigen(ridged)
    return ((vectors * values.clamp(min=_RIDGE).pow(-0.5).unsqueeze(-2)) @ vectors.mT).to(covariance.dtype)


def eigen(symmetric: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors, by double precision where single precision does not converge."""
    try:
        values, vectors = torch.linalg.eigh(symmetric)
    except torch.linalg.LinAlgError:
        values, vectors = (x.to(symmetric) for x in torch.linalg.eigh(symmetric.double()))
    return values, vectors


def newton_inverse_root(a: Tensor) -> Tensor:
    """A^(−1/2) of symmetric matrices (..., width, width) by products alone; eigenvalues in [10⁻⁴, 1.1].

    Newton–Schulz iterations of the two roots together (Higham, Functions of Matrices, 2008, equation 6.35): Y from A,
    Z from I, T = (3I − ZY)/2, Y ← YT, Z ← TZ. An eigenvalue x of A has x·z² = 1 up to 10⁻³.
    """
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    root, precision = a.reshape(-1, *a.shape[-2:]), torch.get_float32_matmul_precision()
    inverse = eye.expand_as(root)
    if precision != "highest":  # ten bits are too few for the smallest eigenvalues
        torch.set_float32_matmul_precision("highest")
    try:
        for _ in range(_NEWTON):
            factor = torch.baddbmm(eye, inverse, root, beta=1.5, alpha=-0.5)
            root, inverse = root @ factor, factor @ inverse
    finally:
        if precision != "highest":
            torch.set_float32_matmul_precision(precision)
    return inverse.reshape(a.shape)


# ------------------------------------------------------------------- blocks


def blocks_of(side: int, most: int) -> tuple[int, int]:
    """Number and width of the equal blocks of at most ``most`` that a side is cut into; the last may be shorter."""
    blocks = math.ceil(side / most)
    return blocks, math.ceil(side / max(blocks, 1))


def as_matrices(x: Tensor, segments: Segments) -> list[Tensor]:
    """The tensors in a flat buffer (..., d) as matrices, (..., rows, columns): views."""

    def views(x: Tensor) -> list[Tensor]:
        pieces = zip(x.split(segments.lengths, -1), segments.sides or segments.matrices, strict=True)
        return [piece.unflatten(-1, sides) for piece, sides in pieces]

    return once(segments, "matrices", x, views)


def once(segments: Segments, name: str, x: Any, make: Callable[[Any], Any]) -> Any:
    """``make(x)``; of what stays where it is (`Segments.staying`) no more than once."""
    made = segments.staying.get(id(x)) if segments.staying else None
    if made is None:
        return make(x)
    if name not in made:
        made[name] = make(x)
    return made[name]


def in_blocks(matrix: Tensor, width: int) -> Tensor:
    """(..., rows, columns) ↦ (..., blocks, rows, width), with columns of zeros at the end of the last block.

    B.mT @ B of these blocks is the covariance of the columns, block by block; of the rows, give the matrix transposed.
    """
    missing = -matrix.shape[-1] % width
    if missing:
        matrix = torch.nn.functional.pad(matrix, (0, missing))
    return matrix.reshape(*matrix.shape[:-1], -1, width).transpose(-3, -2)
