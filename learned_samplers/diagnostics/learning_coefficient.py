"""The local learning coefficient: how degenerate a minimum of the loss is."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learned_samplers.base import validation
from learned_samplers.base.sampler import Sampler
from learned_samplers.checks import suggest_lr
from learned_samplers.checks.step_size import MeanLoss
from learned_samplers.classical.sgld import SGLD
from learned_samplers.posterior.settling import effective_size, rhat

Loss = Callable[[Tensor, Tensor], Tensor]
#: Steps between two looks at the temperature.
_LOOK_EVERY = 10


@dataclass(frozen=True)
class LearningCoefficient:
    """The result of `local_learning_coefficient`; ``print`` it, ``float()`` it, or read its fields."""

    value: float
    #: Of the mean over the chains, from their scatter; nan for one chain.
    standard_error: float
    #: One estimate a chain.
    chains: tuple[float, ...]
    #: Mean loss at the given weights.
    initial_loss: float
    #: Mean loss of every epoch of every chain, burn-in included, (chains, epochs): look whether it has levelled off.
    losses: np.ndarray
    sampler: str
    lr: float
    temperature: float
    localization: float
    num_data: float
    #: Split R̂ of the losses after the burn-in, over all chains.
    rhat: float
    #: Their effective number, all chains together.
    effective: float
    #: Mean of (w − w*)·∇U over the number of weights and the temperature: 1 at equilibrium, below it as long as the
    #: chains still spread along soft directions.
    temperature_ratio: float
    #: Steps in which the sampler forgets along a direction that only the localising prior holds.
    relaxation: float
    burn_in: int
    #: Epochs of a chain that were measured.
    measured: int

    @property
    def settled(self) -> bool:
        """True if R̂ ≤ 1.1, ten losses a chain are effective, and the temperature is right within a tenth."""
        return self.rhat <= 1.1 and self.effective >= 10 * len(self.chains) and abs(self.temperature_ratio - 1) <= 0.1

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        head = f"local learning coefficient {self.value:.4g} ± {self.standard_error:.2g}"
        lines = [
            f"{head} ({len(self.chains)} chains of {self.sampler}: {', '.join(f'{c:.4g}' for c in self.chains)})",
            f"lr {self.lr:.3g}, temperature {self.temperature:.4g}, localization {self.localization:g}, "
            f"num_data {self.num_data:g}, loss at the given weights {self.initial_loss:.4g}",
            f"{'settled' if self.settled else 'not settled'}: R-hat {self.rhat:.2f}, {self.effective:.0f} effective of "
            f"{self.losses[:, -self.measured :].size} losses, temperature {self.temperature_ratio:.2f} of the "
            f"wanted one{'' if self.settled else ': take more steps'}",
        ]
        if self.relaxation > self.burn_in:
            lines.append(
                f"directions that only the prior holds take {self.relaxation:.0f} steps to relax, more than the "
                f"{self.burn_in} of burn-in: look at `losses`, and take more steps or a larger localization"
            )
        if min(self.chains) < 0:
            lines.append("a chain found a lower loss than that of the given weights: they are no minimum of it")
        return "\n".join(lines)


@contextmanager
def _generators_kept() -> Iterator[None]:
    # Seeding seeds every GPU. `fork_rng` keeps them all of itself, too, but warns on a machine with several.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


@_generators_kept()
def local_learning_coefficient(
    model: nn.Module,
    loss: Loss,
    data: tuple[Tensor, Tensor],
    *,
    num_data: float | None = None,
    batch_size: int | None = None,
    localization: float = 100.0,
    temperature: float | None = None,
    lr: float | None = None,
    sampler: type[Sampler] | partial[Sampler] = SGLD,
    num_chains: int = 4,
    burn_in: int = 500,
    steps: int = 2000,
    seed: int = 0,
) -> LearningCoefficient:
    r"""Estimate how degenerate a trained network's minimum is (Lau, Furman, Wang, Murfet and Wei, AISTATS 2025).

    Where all d directions are curved the coefficient is d/2; flat and higher-order ones count less. With w* the given
    weights, n data, L the mean loss, β = 1/T and localization γ,

        λ̂ = nβ·(E[L(w)] − L(w*)),    w ~ exp(−nβ·L(w) − ½γ‖w − w*‖²)

    The law is that of a sampler at temperature T whose prior, of precision γT, is centred on the given weights. The
    expectation is the mean loss over whole epochs, of minibatches that partition the data, so that their noise cancels.
    They are drawn apart from those of the steps (a third more work): the weights know the minibatches that moved them.
    The result says whether the chains have `settled`.

    What it depends on: γ holds the chain near w*, and flattens what it should measure (a direction of curvature k
    counts nβk/(nβk + γ)/2): see that a smaller one changes little. The chains must have levelled off: plot `losses`.

    Args:
        model: the network at w*, a minimum of the loss; it is not changed.
        loss: from (outputs, targets) to the mean negative log-likelihood.
        data: inputs and targets; n is their number.
        num_data: n, where ``data`` stands for more.
        batch_size: examples a gradient; None for all. The last batch of an epoch may be smaller.
        localization: γ > 0, in 1/w².
        temperature: T; None for log n, the inverse temperature of the definition.
        lr: learning rate of the sampler; None for what `suggest_lr` finds, with at most 5 % of bias and of heat.
        sampler: class of the sampler (or a ``functools.partial`` of it): `SGLD`, or one with a momentum, which mixes
            faster along soft directions.
        num_chains: independent chains, for the standard error.
        burn_in, steps: gradient steps a chain, not measured and measured; both are rounded up to whole epochs.
        seed: of all chains; torch's global generator is left as it was.

    Raises:
        TypeError, ValueError: an argument that cannot be used, by name and value; a loss that is random, as of a model
            whose dropout is left on.
        FloatingPointError: a chain diverged: lower lr.
    """
    validation.module("model", model)
    if not callable(loss):
        raise TypeError(f"loss must be a function of outputs and targets, got {type(loss).__name__}")
    cls: Any = sampler.func if isinstance(sampler, partial) else sampler
    is_sampler = isinstance(cls, type) and issubclass(cls, Sampler)
    if not (is_sampler and cls.takes_prior_mean):
        raise TypeError(f"sampler must be a class of sampler that takes prior_mean, got {sampler!r}")
    inputs, targets = validation.inputs_and_targets(data)
    n = float(len(inputs)) if num_data is None else validation.number("num_data", num_data)
    if n <= 1:
        raise ValueError(f"num_data must be greater than 1, got {n:g}")
    t = math.log(n) if temperature is None else validation.number("temperature", temperature)
    validation.positive("temperature", t)
    validation.positive("localization", localization)
    counts = (("num_chains", num_chains, 1), ("burn_in", burn_in, 0), ("steps", steps, 1), ("seed", seed, 0))
    for name, value, least in counts:
        validation.integer(name, value, least=least)
    if batch_size is not None:
        validation.integer("batch_size", batch_size)
    size = len(inputs) if batch_size is None else min(int(batch_size), len(inputs))
    num_chains, seed = int(num_chains), int(seed)
    settings: dict[str, Any] = {"num_data": n, "temperature": t, "prior_precision": localization * t}
    make: Callable[..., Sampler] = sampler
    if lr is None:
        noise = None if size == len(inputs) else size
        try:
            lr = suggest_lr(
                copy.deepcopy(model),
                loss,
                (inputs, targets),
                lambda p: make(p, lr=0.1, **settings),
                allowed_bias=0.05,
                allowed_heat=None if noise is None else 0.05,
                batch_size=noise,
            ).suggested
        except ValueError as error:
            if "no positive curvature" not in str(error):
                raise
            raise ValueError(
                f"{error}, so that no lr follows from it: give lr= yourself, the largest with which the result prints "
                "'settled' and a temperature within a few hundredths of the wanted one"
            ) from error
    validation.positive("lr", lr)
    still = copy.deepcopy(model)  # batch norm in training mode counts what it sees
    torch.manual_seed(seed)  # so that a loss with a noise of its own gives the same error again
    repeated = [_mean_loss(still, loss, inputs, targets, size) for _ in range(3)]
    initial = repeated[0]
    if (layer := _random_layer(model)) or max(repeated) - min(repeated) > 1e-4 * abs(initial) + 1e-7:
        values = "{:.6g}, {:.6g} and {:.6g}".format(*repeated)
        raise ValueError(
            f"model must have one loss at the same weights, got {values}{layer}: call model.eval() first, or take a "
            "loss without random numbers"
        )
    MeanLoss(model, loss, inputs, targets, size).refuse_sums()
    batches = math.ceil(len(inputs) / size)
    warm, measured = math.ceil(burn_in / batches), math.ceil(steps / batches)
    generator, scoring = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)
    losses, virial = np.empty((num_chains, warm + measured)), list[float]()
    for chain in range(num_chains):
        twin = copy.deepcopy(model)
        params = [p for p in twin.parameters() if p.requires_grad]
        device = params[0].device if params else torch.device("cpu")
        noise_source = torch.Generator(device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
        taken = 0
        walker = make(params, lr=lr, prior_mean="initial", generator=noise_source, **settings)
        for epoch in range(warm + measured):
            total = 0.0
            scored = _epoch(len(inputs), size, scoring)
            for rows in _epoch(len(inputs), size, generator):
                walker.zero_grad()
                batch_loss = loss(twin(inputs[rows]), targets[rows])
                batch_loss.backward()
                if epoch >= warm:
                    if taken % _LOOK_EVERY == 0:
                        virial.append(walker.temperatures()[0]["configurational"])
                    taken += 1
                if size < len(inputs):
                    rows = next(scored)
                    with torch.no_grad():
                        batch_loss = loss(twin(inputs[rows]), targets[rows])
                walker.step()
                total += len(rows) * batch_loss.item()
            losses[chain, epoch] = total / len(inputs)
        if not np.isfinite(losses[chain]).all():
            raise FloatingPointError(f"chain {chain} diverged at lr {lr:g}: lower it")
    chains = n / t * (losses[:, warm:].mean(1) - initial)
    kept = losses[:, warm:]
    half = measured // 2
    standard_error = float(chains.std(ddof=1) / math.sqrt(num_chains)) if num_chains > 1 else math.nan
    decay = float(walker.param_groups[0].get("momentum_decay", 1.0))
    return LearningCoefficient(
        value=float(chains.mean()),
        standard_error=standard_error,
        chains=tuple(float(c) for c in chains),
        initial_loss=initial,
        losses=losses,
        sampler=cls.__name__,
        lr=float(lr),
        temperature=t,
        localization=float(localization),
        num_data=n,
        rhat=float(rhat(np.concatenate([kept[:, :half], kept[:, measured - half :]]))) if half > 1 else math.nan,
        effective=sum(float(effective_size(chain)) for chain in kept) if half > 1 else math.nan,
        temperature_ratio=sum(virial) / len(virial) / t,
        relaxation=decay * n / (lr * localization * t),
        burn_in=burn_in,
        measured=measured,
    )


def _epoch(total: int, size: int, generator: torch.Generator | None) -> Iterator[Tensor]:
    """Rows of the minibatches of one epoch: every row once, in a random order (as they stand without a generator)."""
    order = torch.arange(total) if generator is None else torch.randperm(total, generator=generator)
    yield from order.split(size)


def _mean_loss(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, size: int) -> float:
    with torch.no_grad():
        rows = _epoch(len(inputs), size, None)
        return sum(len(r) * loss(model(inputs[r]), targets[r]).item() for r in rows) / len(inputs)


def _random_layer(model: nn.Module) -> str:
    """The first layer with dropout in training mode, for a message; "" if there is none of torch's."""
    for name, module in model.named_modules():
        share = getattr(module, "p" if isinstance(module, nn.modules.dropout._DropoutNd) else "dropout", 0.0)
        if module.training and isinstance(share, float) and share > 0:
            return f" (its layer {name!r}, {type(module).__name__}, drops {share:g} in training mode)"
    return ""
