"""Shared parts of the samplers' tests: the samplers, closed forms, and small problems to run them on."""

import copy
import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers import (
    BAOA,
    L2E,
    MCLMC,
    PSGLD,
    SGHMC,
    AdaptedSGHMC,
    CyclicalSGMCMC,
    KineticL2E,
    MetaSGMCMC,
    Sampler,
    WhitenedSGHMC,
    table,
)
from learned_samplers.approximations import IVON
from learned_samplers.learned.meta_fields import build_meta_network
from learned_samplers.learned.network import build_network
from learned_samplers.learned.preconditioned import PrecondL2E

Make = Callable[..., Sampler]


def _maker(cls: type[Sampler], **fixed: Any) -> Make:
    def make(params: Any, lr: float = 0.05, num_data: float = 100, **more: Any) -> Sampler:
        return cls(params, lr, num_data, **{**fixed, **more})

    make.cls = cls  # type: ignore[attr-defined]
    return make


def _network(features: str | int, outputs: int = 2) -> nn.Module:
    """A network that does something: what it learned is of no matter to these tests."""
    generator = torch.Generator().manual_seed(1)
    return build_network(features, (6, 5), outputs, zero_last=False, generator=generator)


def _meta_network() -> nn.Module:
    return build_meta_network((6,), zero_last=False, generator=torch.Generator().manual_seed(1))


#: Without bias on Gaussians at every stable step: the sampler with which the laws of other parts are measured.
UNBIASED = BAOA
_CYCLES = table.SAMPLERS["CyclicalSGMCMC"].settings
#: Variants worth a test of their own, and learned samplers with small networks, by a name for the test report.
_VARIANTS: dict[str, Make] = {
    "PSGLD-probe": _maker(PSGLD, correction="probe"),
    "SGHMC-normal": _maker(SGHMC, momentum_init="normal"),
    "CyclicalSGMCMC-sgld": _maker(CyclicalSGMCMC, base="sgld", **_CYCLES),
    "AdaptedSGHMC-whitened": _maker(AdaptedSGHMC, warmup_steps=4, warmup=WhitenedSGHMC, mass="diagonal", eps=0.1),
    "AdaptedSGHMC-matrix": _maker(AdaptedSGHMC, warmup_steps=4, mass="matrix", eps=0.1),
    "AdaptedSGHMC-adam": _maker(AdaptedSGHMC, warmup_steps=4, warmup=torch.optim.Adam, mass="diagonal", eps=0.1),
    "MCLMC-noise": _maker(MCLMC, preconditioner="gradient_noise"),
    "IVON-draws": _maker(IVON, draws=2),
    "L2E": _maker(L2E, network=_network("paper")),
    "L2E-adaptive": _maker(L2E, network=_network("adaptive"), settings={"feature_set": "adaptive", "beta_scale": 0.3}),
    "L2E-paper": _maker(
        L2E, network=_network("adaptive"), form="paper", settings={"feature_set": "adaptive", "beta_scale": 0.3}
    ),
    "L2E-matrix": _maker(L2E, network=_network("matrix"), settings={"feature_set": "matrix"}),
    "KineticL2E": _maker(KineticL2E, network=_network(2, outputs=1)),
    "PrecondL2E": _maker(PrecondL2E, network=_network("paper")),
    "MetaSGMCMC": _maker(MetaSGMCMC, network=_meta_network()),
}
#: Every sampler of the table, and the variants.
SAMPLERS: dict[str, Make] = {
    name: _maker(entry.sampler, **entry.settings) for name, entry in table.SAMPLERS.items()
} | _VARIANTS
#: Those with a network: their rules work on flat buffers, and have tests of their own for leading axes.
LEARNED = frozenset(name for name in SAMPLERS if table.SAMPLERS[name.split("-")[0]].is_learned)
#: Those whose rule takes a tensor for one matrix, and so no leading axes.
OF_MATRICES = frozenset({"WhitenedSGHMC", "AdaptedSGHMC-matrix"})
#: Those that cannot step without a closure.
NEED_CLOSURE = frozenset(name for name, make in SAMPLERS.items() if make(nn.Linear(2, 2).parameters()).needs_closure)
#: Those that take their gradients at drawn weights: a step needs a closure, or a block in which they are drawn.
NEED_DRAWS = frozenset(name for name in SAMPLERS if name.split("-")[0] == "IVON")
#: Those that higher, torch.compile and a step without a closure are for.
STOCHASTIC = {name: make for name, make in SAMPLERS.items() if name not in NEED_CLOSURE | NEED_DRAWS}


def sgld_variance(k: float, h: float, temperature: float = 1.0, gradient_noise: float = 0.0) -> float:
    """Stationary variance of θ ← θ − h(kθ + √V·ζ) + √(2hT)ξ."""
    return (temperature + h * gradient_noise / 2) / (k * (1 - h * k / 2))


def sghmc_variance(k: float, h: float, a: float, temperature: float = 1.0, gradient_noise: float = 0.0) -> float:
    """Stationary variance of semi-implicit SGHMC, h = lr/N."""
    heated = 1 + h * gradient_noise / (2 * a * temperature)
    return 2 * temperature * (2 - a) / (k * (4 - 2 * a - h * k)) * heated


def small_network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def small_data(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(16, 3, generator=generator)
    return x, (x[:, 0] > 0).long()


def closure_for(model: nn.Module, sampler: torch.optim.Optimizer) -> Callable[[], Tensor]:
    """The usual closure: clear, mean loss, backward, of a network of any precision."""
    x, y = small_data()
    dtype = next(model.parameters()).dtype
    x, wide = x.to(dtype), torch.promote_types(dtype, torch.float32)

    def closure() -> Tensor:
        sampler.zero_grad()
        loss = nn.functional.cross_entropy(model(x).to(wide), y)
        loss.backward()
        return loss

    return closure


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def run(name, steps, *, seed=1, dtype=torch.float32, **settings):
    """The small network, a sampler of it by its name in `SAMPLERS`, and the losses of some steps."""
    model = small_network().to(dtype)
    sampler = SAMPLERS[name](model.parameters(), **settings)
    torch.manual_seed(seed)
    closure = closure_for(model, sampler)
    losses = [sampler.step(closure) for _ in range(steps)]
    return model, sampler, losses


def running(name, steps=3):
    """A sampler in the middle of a run, and a function that says whether anything of it has changed."""
    model = small_network()
    sampler = SAMPLERS[name](model.named_parameters())
    closure = closure_for(model, sampler)
    for _ in range(steps):
        sampler.step(closure)
    closure()
    weights, state, noise = flat(model), copy.deepcopy(sampler.state_dict()), torch.get_rng_state()

    def unchanged():
        assert torch.equal(flat(model), weights)
        assert same(sampler.state_dict(), state)
        assert torch.equal(torch.get_rng_state(), noise)
        return True

    return model, sampler, unchanged


def reloaded(model: nn.Module, sampler: torch.optim.Optimizer, twin: nn.Module, make: Callable[[nn.Module], Sampler]):
    """The chain as a file of it comes back: its weights in ``twin``, its state in the sampler that ``make`` makes."""
    buffer = io.BytesIO()
    torch.save([model.state_dict(), sampler.state_dict()], buffer)
    buffer.seek(0)
    weights, state = torch.load(buffer, weights_only=True)
    twin.load_state_dict(weights)
    restored = make(twin)
    restored.load_state_dict(state)
    return restored


def same(one: Any, other: Any) -> bool:
    """Return whether two saved states are equal in all that they hold."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)
