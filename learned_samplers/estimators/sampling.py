"""Warm up, then sample: chains side by side from fresh weights to samples, with nothing to tune by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from learned_samplers.estimators.progress import SILENT, Progress
from learned_samplers.estimators.tuned_steps import Microcanonical, Thermal
from learned_samplers.posterior import Chains, SampleCollection
from learned_samplers.priors import GammaHyperprior, Relevance
from learned_samplers.priors.gamma import precision_given

#: Mean negative log-likelihood (K,) of these rows of the training data under every chain; None for all rows.
Losses = Callable[[Tensor | None], Tensor]
#: Judges states of `flatten`'s parameter and their temperature while more are sampled: True where they are enough.
Enough = Callable[[Tensor, float], bool]

#: Squared error of a warm-up, in those of a fit of the means alone, above which it begins again from that fit.
EXPLAINED_AWAY = 4.0
#: Restarts with half the step where the energy leaves the numbers.
RESTARTS = 8


class Trace(NamedTuple):
    """Record of the sampling: U of every chain (step, K), the temperature of the kept states, and lr.

    The temperature is the mean of (θ − θ̄)·∇U/d, θ̄ the mean of a chain: 1 at equilibrium, below it as long as a chain
    is shorter than its slowest directions. ``interrupted``: by Ctrl-C, before all steps were made.
    """

    energies: Tensor
    temperature: float
    lr: float
    interrupted: bool = False


def warm_up(
    chains: Chains,
    losses: Losses,
    rows: Tensor,
    held_out: Tensor,
    num_data: int,
    *,
    steps: int,
    lr: float = 0.01,
    generator: torch.Generator | None = None,
    progress: Progress = SILENT,
) -> int:
    """Train every chain by Adam with a cosine, and leave each where its loss on the held-out rows was lowest.

    The held-out rows are looked at 60 times; after 20 looks at which no chain was better the training ends.

    Args:
        rows, held_out: indices of the rows to train on and of those to stop by; without the latter all steps are made.
        generator: source of the minibatches; None for torch's global one.
        progress: told of the steps.

    Returns:
        The number of steps made.
    """
    flat = flatten(chains)
    mean, square = torch.zeros_like(flat.data), torch.zeros_like(flat.data)
    best, kept = torch.full((chains.count,), math.inf), flat.detach().clone()
    every, since = max(1, steps // 60), 0
    progress.begin("warm-up", steps)
    for step in range(1, steps + 1):
        batch = rows if len(rows) <= 128 else rows[torch.randint(len(rows), (128,), generator=generator)]
        slopes = gradient(chains, losses(batch) + chains.prior_energy() / num_data)
        # Adam by hand: to make one of torch's optimizers imports its compiler, which takes as long as many a fit.
        mean.lerp_(slopes, 0.1)
        square.lerp_(slopes.square(), 0.001)
        rate = lr * 0.5 * (1 + math.cos(math.pi * (step - 1) / steps)) / (1 - 0.9**step)
        flat.data.addcdiv_(mean, (square / (1 - 0.999**step)).sqrt_().add_(1e-8), value=-rate)
        progress.step(step)
        if len(held_out) and step % every == 0:
            with torch.no_grad():
                now = losses(held_out)
            better, since = now < best, since + 1
            if better.any():
                since, best = 0, torch.where(better, now, best)
                kept[better] = flat.detach()[better]
            if since >= 20:
                break
    if len(held_out):
        flat.data.copy_(kept)
    return step


def begin_with_means(
    chains: Chains,
    losses: Losses,
    squares: Losses,
    fresh: Tensor,
    rows: Tensor,
    held_out: Tensor,
    num_data: int,
    *,
    steps: int,
    generator: torch.Generator | None = None,
    progress: Progress = SILENT,
) -> int:
    """Warm up again from a fit of the means alone, where the warm-up has explained rows away by a wide noise.

    It has where its squared error on the held-out rows is more than `EXPLAINED_AWAY` times that of a fit without noise,
    from the same ``fresh`` weights, in a sixth of the steps. Elsewhere the chains stay where they are.

    Args:
        squares: squared error (K,) of these rows.
        fresh: `flatten`'s weights before the first step.

    Returns:
        The number of steps made.
    """
    with torch.no_grad():
        error = squares(held_out).mean()
    warmed = flatten(chains).detach().clone()
    flatten(chains).data.copy_(fresh)
    sources: dict[str, Any] = {"generator": generator, "progress": progress}
    made = warm_up(chains, squares, rows, held_out, num_data, steps=max(1, steps // 6), **sources)
    with torch.no_grad():
        explained = bool(error <= EXPLAINED_AWAY * squares(held_out).mean())
    if explained:
        flatten(chains).data.copy_(warmed)
        return made
    return made + warm_up(chains, losses, rows, held_out, num_data, steps=steps, **sources)


def equalise(chains: Chains, losses: Losses, num_data: int, generator: torch.Generator | None = None) -> None:
    """Give every weight the scale s = H^(−¼), H = N·E[g²] + λ, by gradients of single small batches.

    H is the diagonal of the empirical Fisher information; H^(−½) would make the diagonal of the curvature 1, and ¼
    goes half of the way, which mixes better where the directions that data fix are no single weights. The mean square
    of a chain's scales is 1.
    """
    size, rounds = max(1, min(32, num_data // 2)), 100
    squares = {name: torch.zeros_like(w) for name, w in chains.weights().items()}
    for _ in range(rounds):
        chains.zero_grad()
        losses(torch.randint(num_data, (size,), generator=generator)).sum().backward()
        for total, p in zip(squares.values(), chains.parameters(), strict=True):
            assert p.grad is not None
            total += p.grad.square() * (size / rounds)
    chains.zero_grad()
    # A weight that no batch has moved (a dead unit) is left to the prior.
    floors = chains.precisions().clamp_min(1e-8).unbind(1)
    scales = {
        name: (num_data * total + floor.view(-1, *[1] * (total.dim() - 1))) ** -0.25
        for (name, total), floor in zip(squares.items(), floors, strict=True)
    }
    size = sum(s[0].numel() for s in scales.values())
    root = (torch.stack([s.square().reshape(chains.count, -1).sum(1) for s in scales.values()]).sum(0) / size).sqrt()
    chains.precondition({name: s / root.view(-1, *[1] * (s.dim() - 1)) for name, s in scales.items()})


def sample(
    chains: Chains,
    losses: Losses,
    num_data: int,
    model: nn.Module,
    *,
    tuning_steps: int,
    steps: int,
    samples: int,
    batch_size: int | None,
    seed: int,
    relevance: Relevance | None = None,
    enough: Enough | None = None,
    progress: Progress = SILENT,
    prior: GammaHyperprior | None = None,
    keep_interrupted: bool = False,
) -> tuple[SampleCollection, Trace]:
    """Sample all chains: find step size and momentum length, freeze both, keep samples, find the burn-in.

    Args:
        num_data: rows of the training data.
        model: a network, for the collection.
        steps, samples: at most so many steps, from which so many samples of each chain are kept.
        batch_size: rows a step, or None for all.
        relevance: draws the precision of each input of the first layer; None for the chains' own precision.
        enough: asked after each quarter of the steps; sampling ends where it says so.
        progress: told of the steps.
        prior: one that draws the precision of each tensor of each chain while they are sampled; None for none.
        keep_interrupted: whether Ctrl-C ends the sampling, once there is a sample, in place of an error.

    Raises:
        FloatingPointError: an energy is not finite, however small the step.
    """
    generator = torch.Generator().manual_seed(seed)
    flat = flatten(chains)
    start = flat.detach().clone()
    mover: Microcanonical | Thermal
    mover = (Microcanonical if batch_size is None else Thermal)(flat, num_data, generator)
    scales = torch.cat([scale.reshape(chains.count, -1) for scale in chains._scales()], 1)
    sizes = torch.tensor([w[0].numel() for w in chains.weights().values()])
    precision = chains.precisions().repeat_interleave(sizes, 1) * scales.square()  # of φ, by weight
    energies = torch.empty(steps, chains.count, dtype=torch.float64)
    kept, forces = (torch.empty(samples, *flat.shape, dtype=flat.dtype) for _ in range(2))
    step, restarts, count, interrupted = -tuning_steps, 0, 0, False
    progress.begin("sampling", tuning_steps + steps)
    first = slice(0, next(chains.parameters())[0].numel())  # the first layer's weights
    try:
        while step < steps:
            if prior is not None and step % prior.every == 0:
                _draw(chains, prior, sizes, generator)
                precision = chains.precisions().repeat_interleave(sizes, 1) * scales.square()
                mover.energy_changed()
            if relevance is not None and step % relevance.every == 0:
                weights = (flat.data * scales)[:, first].view_as(next(chains.parameters()))
                of_inputs = relevance.of_inputs(weights, generator=generator)[:, None].expand_as(weights)
                precision[:, first] = of_inputs.reshape(chains.count, -1) * scales[:, first].square()
                mover.energy_changed()
            rows = None if batch_size is None else torch.randint(num_data, (batch_size,), generator=generator)
            likelihood = losses(rows)
            force = precision * flat.data
            flat.grad = gradient(chains, likelihood).add_(force, alpha=1 / num_data)
            energy = num_data * likelihood.detach().double() + 0.5 * (force * flat.data).sum(1)
            if not energy.isfinite().all():
                restarts += 1
                if restarts > RESTARTS:
                    raise FloatingPointError(
                        f"the energy of the chains is not finite, at steps down to lr={mover.lr:.1e}"
                    )
                flat.data.copy_(start)
                mover = type(mover)(flat, num_data, generator, lr=0.25 * mover.lr)
                step, count = -tuning_steps, 0
                continue
            if step >= 0:
                energies[step] = energy
                if step * samples % steps < samples:  # so many of them, at equal distances
                    kept[count], forces[count] = flat.detach(), num_data * flat.grad
                    count += 1
            mover.step(energy)
            if step < 0:
                mover.tune(1 + step / tuning_steps)
            step += 1
            progress.step(tuning_steps + step)
            if enough is not None and 0 < step < steps and (4 * step) % steps < 4:
                burn_in = _burn_in(energies[:step], count)
                states = kept[burn_in:count]
                position = flat.detach().clone()
                finished = enough(states, _temperature(states, forces[burn_in:count]))
                flat.data.copy_(position)
                if finished:
                    break
    except KeyboardInterrupt:
        if not keep_interrupted or step < 1 or not count:
            raise
        interrupted = True
    burn_in = _burn_in(energies[: max(step, 0)], count)
    states = kept[burn_in:count]
    temperature = _temperature(states, forces[burn_in:count])
    return collection(chains, list(states), model), Trace(energies[:step], temperature, mover.lr, interrupted)


def _draw(chains: Chains, prior: GammaHyperprior, sizes: Tensor, generator: torch.Generator) -> None:
    """Draw the precision of each tensor of each chain, given its weights; ``sizes`` are those of the tensors."""
    weights = chains.weights().values()
    squares = torch.stack([w.detach().square().reshape(chains.count, -1).sum(1) for w in weights], 1)
    drawn = [
        precision_given(prior, size, square.double(), 1.0, generator)
        for size, square in zip(sizes.tolist(), squares.unbind(1), strict=True)
    ]
    chains.get_buffer("prior_precision").copy_(torch.stack(drawn, 1))


def _burn_in(energies: Tensor, count: int) -> int:
    """Return how many of the ``count`` samples kept at these energies (step, K) are left out."""
    return min(count - 1, -(-burn_in_of(energies.mean(1)) * count // len(energies)))


def _temperature(states: Tensor, forces: Tensor) -> float:
    """Mean of (θ − θ̄)·∇U/d over states (sample, K, d); NaN of a single one."""
    if len(states) < 2:
        return math.nan
    return ((states - states.mean(0)) * forces).sum().item() / states[1:].numel()


def flatten(chains: Chains) -> nn.Parameter:
    """All weights as one parameter (chain, weight), of which the chains' own become views.

    A step then costs a few operations on one matrix, however many layers there are.
    """
    flat = nn.Parameter(torch.cat([p.detach().reshape(chains.count, -1) for p in chains.parameters()], 1))
    start = 0
    for p in chains.parameters():
        p.data = flat.data[:, start : (start := start + p[0].numel())].view(p.shape)
    return flat


def put(chains: Chains, state: Tensor) -> None:
    """Leave the chains at a state of `flatten`'s parameter."""
    start = 0
    for p in chains.parameters():
        p.data.copy_(state[:, start : (start := start + p[0].numel())].view(p.shape))


def gradient(chains: Chains, losses: Tensor) -> Tensor:
    """Gradient of the losses (K,) in `flatten`'s parameter."""
    slopes = torch.autograd.grad(losses.sum(), list(chains.parameters()))
    return torch.cat([g.reshape(chains.count, -1) for g in slopes], 1)


def collection(chains: Chains, kept: list[Tensor], model: nn.Module) -> SampleCollection:
    """Collect states of `flatten`'s parameter as samples of one network, chain after chain."""
    states = []
    for state in kept:
        put(chains, state)
        states.append({name: w.detach() for name, w in chains.weights().items()})
    of_chain = [[{name: w[k] for name, w in state.items()} for state in states] for k in range(chains.count)]
    return SampleCollection.merge([SampleCollection.from_samples(model, samples) for samples in of_chain])


def burn_in_of(trace: Tensor) -> int:
    """Steps to leave out, half at most, so that the mean of the others has the smallest standard error.

    MSER: White, An effective truncation heuristic for bias reduction in simulation output, Simulation 69, 1997.
    """
    values = trace.double()
    candidates = range(0, len(values) // 2, max(1, len(values) // 100))
    errors = [values[cut:].var().item() / len(values[cut:]) for cut in candidates]
    return 0 if not errors else candidates[min(range(len(errors)), key=errors.__getitem__)]
