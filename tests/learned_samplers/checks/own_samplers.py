"""Samplers of a user's own, which know nothing of this library, good and faulty."""

import math

import torch

N = 100


class Own(torch.optim.Optimizer):
    """Calls the closure, then `move` for each parameter; `count` is the number of the step."""

    def __init__(self, params, lr=0.1, num_data=N):
        super().__init__(params, {"lr": lr, "num_data": num_data})
        self.count, self.kept = 0, {}

    @torch.no_grad()
    def step(self, closure=None):
        closure()
        self.count += 1
        for group in self.param_groups:
            for number, p in enumerate(group["params"]):
                self.number = number
                self.move(p, group["lr"], group["num_data"])


class Langevin(Own):
    """SGLD, θ ← θ − h·∇U + √(2h)·ξ, with ξ from `draw`; ``pull`` shifts its mean, ``bend`` makes it not linear."""

    noise, pull, bend = 1.0, 0.0, 0.0

    def draw(self, p):
        return torch.randn_like(p)

    def move(self, p, lr, n):
        p.sub_(p.grad, alpha=lr).add_(self.draw(p), alpha=self.noise * math.sqrt(2 * lr / n)).add_(self.pull * lr)
        if self.bend:
            p.sub_(self.bend * p.abs())


class OwnRMSprop(Own):
    """SGLD along RMSprop's rescaled gradient, without the term Γ of the moving rescaling."""

    def move(self, p, lr, n):
        square = self.state[p].setdefault("square", torch.zeros_like(p))
        square.mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
        scale = 1 / (square.sqrt() + 1e-5)
        p.sub_(lr * scale * p.grad).add_((2 * lr / n * scale).sqrt() * torch.randn_like(p))


def changed(cls, **attributes):
    """The class with other attributes."""
    return type(cls.__name__, (cls,), attributes)


def bent(cls, by=1e-5):
    """A sampler whose step is no longer linear, so that it has to be simulated, and hardly has another law."""

    class Bent(cls):
        @torch.no_grad()
        def step(self, closure=None):
            super().step(closure)
            for p in self.param_groups[0]["params"]:
                p.sub_(by * p.abs())

    return Bent
