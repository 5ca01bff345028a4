"""Small problems for the tests of the particle samplers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers.particles import IMQ, MGDA, MOOSVGD, MTSGD, RBF, SVGD, Linear, LinearScalarisation, ParetoMTL

#: Every particle sampler of several targets, with ordinary settings.
SEVERAL: dict[str, Callable[..., Any]] = {
    "MTSGD": MTSGD,
    "MTSGD-gradients": lambda p, lr, **kw: MTSGD(
        p, lr, target_weights="gradients", gradient_normalisation="coordinate", **kw
    ),
    "MTSGD-equal": lambda p, lr, **kw: MTSGD(p, lr, target_weights="equal", **kw),
    "MOOSVGD": MOOSVGD,
    "MOOSVGD-parameters": lambda p, lr, **kw: MOOSVGD(p, lr, kernel_on="parameters", **kw),
    "MGDA": MGDA,
    "LinearScalarisation": LinearScalarisation,
    "ParetoMTL": ParetoMTL,
}
EVERY = {"SVGD": SVGD, **SEVERAL}

MEANS = torch.tensor([[1.0, 0.0], [-1.0, 0.5]])


def parameter(count: int = 4, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *shape, generator=generator, dtype=dtype).requires_grad_()


def energies(name: str, x: Tensor) -> Tensor:
    """Gaussian energies: (M,) of one mean for SVGD, (2, M) of two for the others."""
    means = MEANS.to(x.dtype)
    values = (x - means[:, None]).square().sum(-1) / 2
    return values[0] if name == "SVGD" else values


class TwoHeads:
    """M small networks with a shared trunk and two heads, on fixed data."""

    def __init__(self, count: int = 3, seed: int = 0, dtype: torch.dtype = torch.float32):
        self.trunk = [parameter(count, 3, 4, seed=seed, dtype=dtype), parameter(count, 4, seed=seed + 1, dtype=dtype)]
        self.heads = [[parameter(count, 4, seed=seed + 2 + k, dtype=dtype)] for k in range(2)]
        generator = torch.Generator().manual_seed(9)
        self.x = torch.randn(8, 3, generator=generator, dtype=dtype)
        self.y = torch.randn(2, 8, generator=generator, dtype=dtype)

    def latents(self) -> Tensor:
        return torch.tanh(torch.einsum("bi,mij->mbj", self.x, self.trunk[0]) + self.trunk[1][:, None])

    def losses(self) -> Tensor:
        hidden = self.latents()
        return torch.stack(
            [
                (torch.einsum("mbj,mj->mb", hidden, head[0]) - y).square().mean(1)
                for head, y in zip(self.heads, self.y, strict=True)
            ]
        )

    def groups(self, **trunk: Any) -> list[dict[str, Any]]:
        return [{"params": self.trunk, **trunk}, *({"params": h, "task": k} for k, h in enumerate(self.heads))]

    def flat(self) -> Tensor:
        tensors = [*self.trunk, *(p for head in self.heads for p in head)]
        return torch.cat([p.detach().flatten(1).clone() for p in tensors], dim=1)


def stacked_mlp(count: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """A network and M sets of its parameters, stacked."""
    networks = [nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)) for _ in range(count)]
    params, _ = torch.func.stack_module_state(networks)  # type: ignore[arg-type]
    return networks[0], params


#: A kernel and its function of two points, as it is defined.
FUNCTIONS = {
    "rbf": (RBF(1.3), lambda x, y: torch.exp(-(x - y).square().sum() / (2 * 1.3**2))),
    "imq": (IMQ(0.7), lambda x, y: (1 + (x - y).square().sum() / (2 * 0.7**2)) ** -0.5),
    "linear": (Linear(), lambda x, y: x @ y + 1),
}
