"""The direction in which a matrix of weights moves: momentum, whitened and made orthogonal, and how long it is.

A matrix M (momentum of a layer, a row an output) becomes `orthogonal` of M·(R + 10⁻⁴·‖R‖)^(−1/2), with R the covariance
of its inputs, a running average of GᵀG over the gradients G, times the `attenuation`. R and the orthogonal factor are
in blocks, so that both cost in proportion to the weights. Leading axes are members of a batch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
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
# On a GPU squares of up to so many rows go together, the smaller ones with zeros around them; and the larger ones.
_LOW = 64


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
    lengths = attenuations(ahead, parameters, decay)
    return [factor * length for factor, length in zip(factors, lengths, strict=True)]


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
        m, theta = [torch.stack(list(torch._foreach_norm(list(x)))).square() for x in (ahead, parameters)]
        return attenuation(m, theta, decay).unbind()
    squares = ([matrix.square().sum((-2, -1), keepdim=True) for matrix in x] for x in (ahead, parameters))
    return [attenuation(m, theta, decay) for m, theta in zip(*squares, strict=True)]


# ------------------------------------------------------------------- the orthogonal factor


def orthogonal(matrices: Sequence[Tensor]) -> list[Tensor]:
    """√(longer side)·U·Vᵀ of each matrix M = U·S·Vᵀ, (..., rows, columns), root mean square about 1.

    Up to the error of five Newton–Schulz iterations; a single row is only divided by its root mean square. A matrix
    with more than `TALLEST_BLOCK` rows (columns, if these are fewer) is cut into equal blocks of them, and each of
    these made orthogonal. Matrices of one shape go together.
    """
    alike = defaultdict(list)
    for i, matrix in enumerate(matrices):
        alike[matrix.shape[-2:], matrix.dtype, matrix.device].append(i)
    result: list[Tensor] = [torch.empty(0)] * len(matrices)
    wide, squares = [], []
    for ((rows, columns), _, _), places in alike.items():
        # No copy of a single one, which may be as large as the model.
        stacked = torch.stack([matrices[i] for i in places]) if len(places) > 1 else matrices[places[0]].unsqueeze(0)
        wide.append(stacked if rows <= columns else stacked.mT)
        squares.append(_squares(wide[-1]))
    factors = _factors([square for _, square, _ in squares])
    for places, x, (blocks, _, scale), factor in zip(alike.values(), wide, squares, factors, strict=True):
        rows, columns = x.shape[-2:]
        made = blocks * scale if factor is None else torch.bmm(factor * scale, blocks)
        made = made.reshape(*x.shape[:-2], -1, columns)[..., :rows, :]
        transposed = matrices[places[0]].shape[-1] != columns
        for i, matrix in zip(places, made.mT if transposed else made, strict=True):
            result[i] = matrix
    return result


def _squares(x: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Blocks X of the rows of matrices, X·Xᵀ of each scaled to trace 1, and the scale of the orthogonal factor.

    ``x`` is (..., rows, columns) with no more rows than columns; a single row has no square.
    """
    rows, columns = x.shape[-2:]
    if rows == 1:
        return x, None, torch.rsqrt(x.square().sum(-1, keepdim=True) + _FLOOR) * math.sqrt(columns)
    height = math.ceil(rows / math.ceil(rows / TALLEST_BLOCK))
    if missing := -rows % height:
        x = torch.nn.functional.pad(x, (0, 0, 0, missing))
    cut = x.reshape(-1, height, columns)
    square = torch.bmm(cut, cut.mT)
    scale = torch.rsqrt(square.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None] + _FLOOR)
    return cut, square * scale.square(), scale * math.sqrt(columns)


def _factors(squares: Sequence[Tensor | None]) -> list[Tensor | None]:
    """W of each S = X·Xᵀ for which W·X is the orthogonal factor of X; squares of like heights together, where it pays.

    Every iterate is W·X with W a polynomial of S, and its own square is W·S·W: two products along the long side in the
    place of ten.
    """
    factors: list[Tensor | None] = [None] * len(squares)
    numbers = [i for i, square in enumerate(squares) if square is not None]
    present: list[Tensor] = [square for square in squares if square is not None]
    a, b, c = _POLYNOMIAL
    for places in together(present, [square.shape[-1] > _LOW for square in present]):
        parts = [present[i] for i in places]
        square = parts[0] if len(parts) == 1 else _side_by_side(parts)
        product, eye = None, torch.eye(square.shape[-1], dtype=square.dtype, device=square.device)
        for time in range(NEWTON_SCHULZ_STEPS):
            # The iteration's factor is a + remainder.
            remainder = torch.baddbmm(square, square, square, beta=b, alpha=c)
            product = remainder + a * eye if product is None else torch.baddbmm(product, remainder, product, beta=a)
            if time < NEWTON_SCHULZ_STEPS - 1:
                half = torch.baddbmm(square, remainder, square, beta=a)
                square = torch.baddbmm(half, half, remainder, beta=a)
        assert product is not None
        for i, part, factor in zip(places, parts, product.split([len(part) for part in parts]), strict=True):
            height = part.shape[-1]
            factors[numbers[i]] = factor[:, :height, :height]
    return factors


def _side_by_side(squares: Sequence[Tensor]) -> Tensor:
    """Matrices (n, side, side) of several sides as one batch, zeros around the smaller ones."""
    side = max(square.shape[-1] for square in squares)
    batch = squares[0].new_zeros(sum(map(len, squares)), side, side)
    for square, part in zip(squares, batch.split([len(square) for square in squares]), strict=True):
        part[:, : square.shape[-1], : square.shape[-1]] = square
    return batch


def together(tensors: Iterable[Tensor], keys: Sequence[Any]) -> list[list[int]]:
    """Places of tensors that are worked on together: on a CPU each alone, on a GPU all of one key and dtype."""
    places: dict[Any, list[int]] = {}
    for i, (x, key) in enumerate(zip(tensors, keys, strict=True)):
        places.setdefault((key, x.dtype, x.device if waits_for_launches(x) else i), []).append(i)
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
        product = (blocks + blocks @ state[..., 1, :, :, :]).transpose(-3, -2).flatten(-2)[..., :columns]
        for i, matrix in zip(places, [product] if alone else product, strict=True):
            result[i] = matrix
    return result


def update_covariances_(states: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """R ← d·R + (1−d)·GᵀG in place.

    Args:
        states: (..., 2, blocks, width, width) for each tensor, zeros before the first step; (..., 0) of no matrix.
        gradients: (..., rows, columns) each.
    """
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
        if at_once:
            turn = slice(0, 0 if step % ROOT_EVERY else None)
        else:
            turn = slice((step - first) % ROOT_EVERY, None, ROOT_EVERY)
        if state[..., 0, turn, :, :].numel():
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


def renew_roots(sampler: Chain, group: dict[str, Any]) -> None:
    """`renew_roots_` after a step of one group, for a sampler that keeps covariances and roots as state "whitening".

    Tensors without a gradient in this step have their turn too: it may fall on steps in which they never have one.
    """
    first = 0
    for earlier in sampler.param_groups:
        tensors = [sampler.state[p] for p in earlier["params"] if p in sampler.state]
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
    pieces = zip(x.split(segments.lengths, -1), segments.sides or segments.matrices, strict=True)
    return [piece.unflatten(-1, sides) for piece, sides in pieces]


def in_blocks(matrix: Tensor, width: int) -> Tensor:
    """(..., rows, columns) ↦ (..., blocks, rows, width), with columns of zeros at the end of the last block.

    B.mT @ B of these blocks is the covariance of the columns, block by block; of the rows, give the matrix transposed.
    """
    missing = -matrix.shape[-1] % width
    if missing:
        matrix = torch.nn.functional.pad(matrix, (0, missing))
    return matrix.unflatten(-1, (-1, width)).transpose(-3, -2)
