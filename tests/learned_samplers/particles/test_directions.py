"""Directions and Gram matrices: against autograd and brute force, limits, lemmas, batch axes, blocks of coordinates."""

import pytest
import torch

from learned_samplers.particles import IMQ, RBF, Linear, kernels, min_norm_weights
from learned_samplers.particles.directions import (
    first_term,
    normalise,
    repulsion,
    stein_gram,
    svgd_direction,
    target_weights,
    weighted,
)
from tests.learned_samplers.particles.particle_problems import FUNCTIONS

M, D, K = 6, 3, 3


def problem(seed=0, targets=K, particles=M, dims=D):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(particles, dims, dtype=torch.double, generator=generator)
    scores = torch.randn(targets, particles, dims, dtype=torch.double, generator=generator)
    return x, scores


def gram_by_autograd(x, scores, function, temperature=1.0):
    """⟨φᵢ, φⱼ⟩ = (1/M²) Σₐ_b 𝒜ᵢᵃ·𝒜ⱼᵇ k(xₐ, x_b) with Stein's operator 𝒜ᵢᵃ f = sᵢ(xₐ) f + T ∇ₐf."""
    targets, particles, _ = scores.shape
    left, right = torch.func.grad(function, 0), torch.func.grad(function, 1)
    mixed = torch.func.jacrev(left, 1)
    gram = torch.zeros(targets, targets, dtype=torch.double)
    for a in range(particles):
        for b in range(particles):
            k, ka, kb = function(x[a], x[b]), left(x[a], x[b]), right(x[a], x[b])
            trace = mixed(x[a], x[b]).trace()
            for i in range(targets):
                for j in range(targets):
                    si, sj = scores[i, a], scores[j, b]
                    gram[i, j] += k * si @ sj + temperature * (si @ kb + sj @ ka) + temperature**2 * trace
    return gram / particles**2


def evaluate(x, scores, kernel, **kwargs):
    matrix = kernel(x)
    return stein_gram(scores, repulsion(x, matrix), matrix, **kwargs)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("temperature", [1.0, 0.3, 0.0])
def test_gram_against_autograd(name, temperature):
    kernel, function = FUNCTIONS[name]
    x, scores = problem()
    gram = evaluate(x, scores, kernel, temperature=temperature)
    torch.testing.assert_close(gram, gram_by_autograd(x, scores, function, temperature), rtol=1e-10, atol=1e-10)


def test_the_papers_sign_makes_the_gram_indefinite():
    """The planted fault: −d/σ² in the place of +d/σ²."""
    x, scores = problem()
    x, scores = 0.01 * x, 0.01 * scores
    assert torch.linalg.eigvalsh(evaluate(x, scores, RBF(1.0))).min() > -1e-12
    matrix = RBF(1.0)(x)
    wrong = matrix._replace(trace=-matrix.trace)
    assert torch.linalg.eigvalsh(stein_gram(scores, repulsion(x, wrong), wrong)).min() < -1


def test_trace_never_changes_the_weights_and_the_cross_term_does():
    x, scores = problem()
    matrix = RBF(1.0)(x)
    push = repulsion(x, matrix)
    exact = target_weights(scores, push, matrix, rule="exact")
    without = matrix._replace(trace=matrix.trace * 3)
    torch.testing.assert_close(target_weights(scores, push, without, rule="exact"), exact)
    code = target_weights(scores, push, matrix, rule="gradients")
    assert (code - exact).abs().max() > 1e-2
    torch.testing.assert_close(code, min_norm_weights(first_term(scores, matrix)))


@pytest.mark.parametrize("rule", ["exact", "gradients", "equal"])
def test_permutations(rule):
    """Renumbering particles renumbers their directions; renumbering targets renumbers the weights."""
    x, scores = problem()

    def run(x, scores):
        matrix = RBF()(x)
        push = repulsion(x, matrix)
        weights = target_weights(scores, push, matrix, rule=rule)
        return weights, svgd_direction(weighted(scores, weights), push, matrix)

    weights, direction = run(x, scores)
    particles, targets = torch.randperm(M), torch.randperm(K)
    renumbered_weights, renumbered = run(x[particles], scores[targets][:, particles])
    torch.testing.assert_close(renumbered_weights, weights[targets])
    torch.testing.assert_close(renumbered, direction[particles])


@pytest.mark.parametrize("kernel", [RBF(), IMQ(), Linear(), RBF("off_diagonal_median")])
def test_leading_batch_axes(kernel):
    x, scores = problem()
    xs = torch.stack([x, 2 * x, x - 1]).reshape(3, 1, M, D)
    many = torch.stack([scores, scores.flip(1), -scores]).reshape(3, 1, K, M, D)
    matrix = kernel(xs)
    push = repulsion(xs, matrix)
    weights = target_weights(many, push, matrix, rule="exact")
    direction = svgd_direction(weighted(many, weights), push, matrix)
    assert direction.shape == (3, 1, M, D)
    for i in range(3):
        alone = kernel(xs[i, 0])
        push = repulsion(xs[i, 0], alone)
        w = target_weights(many[i, 0], push, alone, rule="exact")
        torch.testing.assert_close(weights[i, 0], w)
        torch.testing.assert_close(direction[i, 0], svgd_direction(weighted(many[i, 0], w), push, alone))


@pytest.mark.parametrize("block", [1, 40, 1 << 22])
@pytest.mark.parametrize("kernel", [RBF(1.3), IMQ(), Linear()])
def test_grams_in_blocks_of_coordinates(kernel, block, monkeypatch):
    """Blocks of one coordinate, of two or three, and whole: the same as the sums over pairs written out."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(2, M, 11, dtype=torch.double, generator=generator)
    scores = torch.randn(2, K, M, 11, dtype=torch.double, generator=generator)
    matrix = kernel(x)
    expected = torch.einsum("nab,niad,njbd->nij", matrix.values, scores, scores) / M**2
    unblocked = stein_gram(scores, repulsion(x, matrix), matrix)
    monkeypatch.setattr(kernels, "_BLOCK", block)
    torch.testing.assert_close(first_term(scores, matrix), expected)
    in_blocks = kernel(x)
    for blockwise, unbroken in zip(in_blocks, matrix, strict=True):
        torch.testing.assert_close(blockwise, unbroken)
    torch.testing.assert_close(stein_gram(scores, repulsion(x, in_blocks), in_blocks), unblocked)


def test_normalisation():
    _, scores = problem()
    scores[0, 0] = 0
    assert normalise(scores, "none") is scores
    by_particle, by_coordinate = normalise(scores, "particle"), normalise(scores, "coordinate")
    assert (by_particle[0, 0] == 0).all()
    torch.testing.assert_close(by_particle[1:].norm(dim=-1), torch.ones(K - 1, M, dtype=torch.double))
    torch.testing.assert_close(by_coordinate.norm(dim=1), torch.ones(K, D, dtype=torch.double))
