"""Many copies of one network at once: `BatchedNetwork`; of any network, one after the other: `BatchedModule`.

The subclasses beside each architecture (`BatchedMLP`, `BatchedConvolution`, `BatchedResidual`) are written out by hand,
because the inner loop of meta-training spends its time here: ``torch.func.vmap`` takes 1.4 times as long and
more (reports/inner_loop.md). The tests hold them to `BatchedModule`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from learned_samplers.base.segments import Segments

__all__ = ["BatchedModule", "BatchedNetwork", "channels_last", "cross_entropy", "linear", "linear_gradients"]


_LOG2_E = math.log2(math.e)


class BatchedNetwork:
    """P copies ("members") of one network, evaluated at once: base class.

    The weights are one tensor (P, d): each row lays the parameters of a copy end to end, in the order of
    ``module.named_parameters()``. Members come in G groups that see the same images: with images (G, n, C, H, W),
    member i sees those of group i // (P/G).

    Args:
        build: makes a freshly initialised network from torch's global random state.

    Attributes:
        module: one that it made, to look at.

    Raises:
        ValueError: the network keeps buffers.
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self.build = build
        with torch.random.fork_rng(devices=[]):
            self.module = module = build()
        if next(module.buffers(), None) is not None:
            raise ValueError(f"{type(module).__name__} keeps buffers; the inner loop runs networks of parameters only")
        self.names, shapes = zip(*((name, tuple(p.shape)) for name, p in module.named_parameters()), strict=True)
        self.shapes: dict[str, tuple[int, ...]] = dict(zip(self.names, shapes, strict=True))
        self.segments = Segments(tuple(map(math.prod, shapes)), shapes)

    def initial(self, seed: int) -> Tensor:
        """Weights (d,) as the network's constructor draws them after ``torch.manual_seed(seed)``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return torch.cat([p.detach().reshape(-1) for p in self.build().parameters()])

    def views(self, weights: Tensor) -> dict[str, Tensor]:
        """The tensors of the members, name → (P, *shape), as views of ``weights`` (P, d)."""
        pieces = weights.split(self.segments.lengths, -1)
        return {
            name: piece.view(len(weights), *self.shapes[name]) for name, piece in zip(self.names, pieces, strict=True)
        }

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Logits (P, n, classes) of weights (P, d) on images (G, n, C, H, W)."""
        raise NotImplementedError

    def loss_and_gradient(self, weights: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean negative log-likelihood (P,) in nats on x (G, n, C, H, W) and y (G, n), and its gradient (P, d)."""
        raise NotImplementedError

    def log_probabilities(self, weights: Tensor, x: Tensor) -> Tensor:
        """Log of the predictive probabilities (P, n, classes)."""
        return self.logits(weights, x).log_softmax(-1)


class BatchedModule(BatchedNetwork):
    """P copies of any network without buffers, through autograd, one member at a time."""

    def _member(self, weights: Tensor, x: Tensor) -> Tensor:
        views = {name: tensor[0] for name, tensor in self.views(weights.unsqueeze(0)).items()}
        return functional_call(self.module, views, (x,))

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        per_group = len(weights) // len(x)
        return torch.stack([self._member(member, x[i // per_group]) for i, member in enumerate(weights)])

    def loss_and_gradient(self, weights: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        per_group, losses, gradients = len(weights) // len(x), [], []
        for i, member in enumerate(weights):
            leaf = member.detach().requires_grad_()
            with torch.enable_grad():
                loss = nn.functional.cross_entropy(self._member(leaf, x[i // per_group]), y[i // per_group])
            losses.append(loss.detach())
            gradients.append(torch.autograd.grad(loss, leaf)[0])
        return torch.stack(losses), torch.stack(gradients)


def cross_entropy(logits: Tensor, y: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Cross-entropy, summed over n and divided by ``batch``, (P,), of logits (P, n, classes) and labels (G, n); and its
    gradient, like ``logits``."""
    # Written out: over ten classes torch's log_softmax takes three times as long. Reductions over the classes go side
    # by side for all of n, for that is how `linear` lays its outputs out. exp2 takes a third of the time of exp, and
    # less than a tenth where probabilities underflow.
    classes = y.repeat_interleave(len(logits) // len(y), 0).unsqueeze(1)
    by_class = logits.transpose(1, 2)
    top = by_class.amax(1, keepdim=True)
    exponentials = (by_class - top).mul_(_LOG2_E).exp2_()
    total = exponentials.sum(1, keepdim=True)
    loss = (total.log() + top - by_class.gather(1, classes)).sum((1, 2)) / batch
    gradient = exponentials.mul_((1 / batch) / total)
    gradient.scatter_add_(1, classes, gradient.new_full((1, 1, 1), -1 / batch).expand(classes.shape))
    return loss, gradient.transpose(1, 2)


def channels_last(tensor: Tensor) -> Tensor:
    """(N, C, H, W) in the channels-last format, in its strides too: of a tensor with one channel `contiguous` keeps the
    strides of the other format, and a convolution goes by them."""
    return tensor.to(memory_format=torch.channels_last)


def linear(layer_input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(P, n, in) × (P, out, in) + (P, out) → (P, n, out), in memory (P, out, n)."""
    return torch.baddbmm(bias.unsqueeze(2), weight, layer_input.transpose(1, 2)).transpose(1, 2)


def linear_gradients(out: dict[str, Tensor], name: str, layer_input: Tensor, gradient: Tensor) -> None:
    """Write the gradients of a linear layer's weight and bias to ``out``, from that of its output (P, n, out)."""
    torch.sum(gradient, 1, out=out[f"{name}.bias"])
    out[f"{name}.weight"].copy_(torch.bmm(gradient.transpose(1, 2), layer_input))
