"""Turns a network's output into a prediction; for output that does not fit, the error names the option to set."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from learned_samplers.base import validation
from learned_samplers.posterior.inputs import ADVICE

Output = str | Callable[[Any], Tensor]
OUTPUTS = ("softmax", "binary", "regression")
#: Noise of a regression: none, its standard deviation, or what the network gives beside the mean.
Noise = float | Tensor | str | None
NETWORK_NOISE = ("log_variance", "scale")
#: So many logits of two classes do not all lie in [0, 1] by chance.
ENOUGH = 16


@dataclass(frozen=True)
class OutputFormat:
    """What the output of a network is; see `SampleCollection.predict` for the arguments.

    Raises:
        TypeError, ValueError: an option that is unknown or does not go with the others.
    """

    output: Output = "softmax"
    class_axis: int | None = None
    noise: Noise = None
    select: int | str | None = None

    def __post_init__(self) -> None:
        if not callable(self.output) and self.output not in OUTPUTS:
            raise ValueError(f"output must be 'softmax', 'binary', 'regression' or a function, got {self.output!r}")
        if self.class_axis is not None:
            if self.output not in ("softmax", "binary"):
                raise ValueError(f"class_axis={self.class_axis} goes with output='softmax' or 'binary' only")
            if isinstance(self.class_axis, bool) or not isinstance(self.class_axis, int):
                raise TypeError(f"class_axis must be an integer, got {self.class_axis!r}")
            if self.class_axis == 0:
                raise ValueError("class_axis=0 is the axis of the examples; give that of the classes, such as 1 or -1")
        if self.noise is not None:
            if self.output != "regression":
                raise ValueError(f"noise={self.noise!r} goes with output='regression' only, got {self.output!r}")
            if isinstance(self.noise, str):
                validation.one_of("noise", self.noise, NETWORK_NOISE)
            elif isinstance(self.noise, Tensor):
                if not bool((self.noise > 0).all() & self.noise.isfinite().all()):
                    raise ValueError("noise must be finite and greater than 0: standard deviations, one per output")
            else:
                validation.positive("noise", self.noise)

    # -- what the network returned ----------------------------------------------------------------------------------

    def tensor(self, raw: Any) -> Tensor:
        """The tensor to read: the output itself, ``.logits``, or the entry that ``select`` names."""
        found = self._selected(raw)
        if not isinstance(found, Tensor):
            raise TypeError(f"select={self.select!r} must select a tensor of the output, got {type(found).__name__}")
        if not found.is_floating_point():
            raise TypeError(f"the network's output must hold floating-point numbers, got {found.dtype}")
        return found.to(torch.promote_types(found.dtype, torch.float32))

    def _selected(self, raw: Any) -> Any:
        if self.select is not None:
            try:
                if isinstance(self.select, str) and not isinstance(raw, Mapping) and hasattr(raw, self.select):
                    return getattr(raw, self.select)
                return raw[self.select]
            except (KeyError, IndexError, TypeError) as error:
                raise ValueError(f"select={self.select!r} is not in the network's output: {_contents(raw)}") from error
        if isinstance(raw, Tensor):
            return raw
        if isinstance(getattr(raw, "logits", None), Tensor):
            return raw.logits
        entries = raw if isinstance(raw, Mapping) else dict(enumerate(raw)) if isinstance(raw, tuple | list) else {}
        if isinstance(entries.get("logits"), Tensor):
            return entries["logits"]
        if len(entries) == 1:
            return next(iter(entries.values()))
        raise ValueError(
            f"the network returned {_contents(raw)}: say which entry is the prediction by select=, such as "
            f"select={next(iter(entries), 0)!r}"
        )

    # -- probabilities that are taken for logits ----------------------------------------------------------------------

    def can_recognise(self, examples: int) -> bool:
        """Whether outputs of so many examples tell logits, as which they are read, from probabilities."""
        return self.output == "softmax" or (self.output == "binary" and examples >= ENOUGH)

    def refuse_probabilities(self, raw: Any) -> None:
        """Raise ValueError if the network gives probabilities of classes itself; warn if it may of two classes."""
        values, dtype = self.tensor(raw), self._selected(raw).dtype
        if self.output == "binary":
            if bool((values >= 0).all() & (values <= 1).all()) and values.min() != values.max():
                warnings.warn(
                    f"output='binary' takes the sigmoid of the network's outputs, and {values.numel()} of them all lie "
                    "in [0, 1]: if it ends in a sigmoid already, use output=lambda p: p; for logits "
                    "output=torch.sigmoid is silent",
                    stacklevel=5,
                )
            return
        sums = values.sum(1 if self.class_axis is None else self.class_axis)
        eps = torch.finfo(dtype).eps
        # The sum of a few logits of half precision may be 1 by chance.
        told = eps < 1e-5 or sums.numel() >= 4
        if told and bool((values >= 0).all()) and bool(((sums - 1).abs() <= max(1e-5, eps)).all()):
            raise ValueError(
                "output='softmax' takes the softmax of logits, but the network's outputs are probabilities already "
                "(none is negative, and those of each example sum to 1): use output=lambda p: p, or leave the softmax "
                "at the end of the network out, or let it give logarithms"
            )

    # -- what is averaged -------------------------------------------------------------------------------------------

    def prediction(self, raw: Any) -> Tensor:
        """What `predict` averages: probabilities, the mean of a regression, or what the caller's function returns."""
        if callable(self.output):
            found = self.output(raw)
            # A sum over many samples would stand still in half precision.
            whole = not (isinstance(found, Tensor) and found.is_floating_point())
            return found if whole else found.to(torch.promote_types(found.dtype, torch.float32))
        if self.output == "regression":
            return self.moments(raw)[..., 0]
        return self._probabilities(self.tensor(raw))

    def log_prediction(self, raw: Any) -> Tensor:
        """Logarithms of the probabilities of classes, with their axis last, (N, ..., C).

        They are those of the logits, and not of the prediction, in which a small probability has become zero.
        """
        self.prediction(raw)  # refuses what does not fit
        logits = self.tensor(raw)
        axis = self.axis(logits.ndim)
        if axis is None:
            logits, axis = logits.flatten().unsqueeze(1), -1
        logits = logits.movedim(axis, -1)
        return logsigmoid(torch.cat([-logits, logits], -1)) if self.output == "binary" else logits.log_softmax(-1)

    def moments(self, raw: Any) -> Tensor:
        """Mean and variance of a regression, stacked along a new last axis; the variance is 0 without noise."""
        if isinstance(self.noise, str):
            mean, second = self._two(raw)
            # A scale that is not positive becomes NaN, which the caller refuses: nothing can be raised within vmap.
            squared = torch.where(second > 0, second.square(), torch.nan)
            return torch.stack([mean, second.exp() if self.noise == "log_variance" else squared], -1)
        if isinstance(raw, tuple | list) and len(raw) == 2 and self.select is None:
            raise ValueError(
                f"the network returned {_contents(raw)}: with output='regression' say what the second one is by "
                "noise='log_variance' or noise='scale', or choose the mean by select=0"
            )
        mean = self.tensor(raw)
        noise = torch.zeros(()) if self.noise is None else torch.as_tensor(self.noise)
        variance = noise.to(mean).square()
        try:
            return torch.stack([mean, variance.expand_as(mean)], -1)
        except RuntimeError as error:
            raise ValueError(
                f"noise of shape {tuple(noise.shape)} does not fit outputs of shape {tuple(mean.shape)}"
            ) from error

    def _two(self, raw: Any) -> tuple[Tensor, Tensor]:
        if isinstance(raw, tuple | list) and self.select is None:
            if len(raw) != 2 or not all(isinstance(item, Tensor) for item in raw) or raw[0].shape != raw[1].shape:
                raise ValueError(
                    f"noise={self.noise!r} needs two tensors of one shape, the mean and its noise; the network "
                    f"returned {_contents(raw)}"
                )
            first, second = (item.to(torch.promote_types(item.dtype, torch.float32)) for item in raw)
            return first, second
        values = self.tensor(raw)
        if values.ndim < 2 or values.shape[-1] % 2:
            raise ValueError(
                f"noise={self.noise!r} needs outputs whose last axis holds the means and then their noise, so an even "
                f"number; got shape {tuple(values.shape)}. For noise of a known standard deviation give that number"
            )
        first, second = values.chunk(2, -1)
        return first, second

    def axis(self, ndim: int) -> int | None:
        """The axis of the classes in outputs of ``ndim`` axes, counted from the end; None if each is one logit."""
        if self.class_axis is not None:
            return self.class_axis if self.class_axis < 0 else self.class_axis - ndim
        return 1 - ndim if self.output == "softmax" else None

    def _probabilities(self, logits: Tensor) -> Tensor:
        shape = tuple(logits.shape)
        if self.class_axis is not None and not (-logits.ndim < self.class_axis < logits.ndim):
            raise ValueError(f"class_axis={self.class_axis} is not an axis of classes of outputs of shape {shape}")
        if self.output == "binary":
            one = logits.ndim == 1 or (logits.ndim == 2 and shape[1] == 1)
            if self.class_axis is not None:
                one = shape[self.class_axis] == 1
            if not one:
                raise ValueError(
                    f"output='binary' needs one logit an example, of shape (batch,) or (batch, 1), got {shape}: "
                    "output='softmax' is for classes, output=torch.sigmoid for several labels at once, and class_axis "
                    "says which axis of size 1 is that of the logit"
                )
            return logits.sigmoid()
        if logits.ndim < 2 or (logits.ndim == 2 and shape[1] == 1):
            raise ValueError(
                f"output='softmax' needs logits of shape (batch, classes), got {shape}, a softmax of which is 1 for "
                "every row: use output='binary' for one logit of two classes, output='regression' for a real number"
                + (f"; {ADVICE}" if logits.ndim < 2 else "")
            )
        if logits.ndim > 2 and self.class_axis is None:
            raise ValueError(
                f"output='softmax' cannot tell which axis of {shape} is that of the classes: give class_axis=1 if "
                "they follow the examples, as cross_entropy has it, or class_axis=-1 if they come last"
            )
        axis = 1 if self.class_axis is None else self.class_axis
        if shape[axis] == 1:
            raise ValueError(f"class_axis={axis} of {shape} has one class: use output='binary' with class_axis={axis}")
        return logits.softmax(dim=axis)


def _contents(raw: Any) -> str:
    """What an output consists of, for a message."""
    if isinstance(raw, Mapping):
        return f"a {type(raw).__name__} with {', '.join(map(repr, raw))}"
    if isinstance(raw, tuple | list):
        kinds = ", ".join(str(tuple(i.shape)) if isinstance(i, Tensor) else type(i).__name__ for i in raw)
        return f"a {type(raw).__name__} of {len(raw)} ({kinds})"
    return f"a {type(raw).__name__}"


class Uncertainty(NamedTuple):
    """The average prediction of each example, and its uncertainty split in two: total = aleatoric + epistemic.

    mean: averaged probabilities, or the mean of a regression, (N, ...); aleatoric: what is left if the weights were
    known, such as noise in the targets; epistemic: the disagreement of the samples, which more data would lessen.
    For classes the three are entropies in nats, without the axis of the classes (logits (N, 1) of ``output="binary"``
    have none); for a regression they are variances.
    """

    mean: Tensor
    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


class Entropies:
    r"""Splits the entropy of probabilities (N, ..., C, ...): H(mean of p_k) = mean of H(p_k) + mutual information.

    The mutual information between target and weights is the epistemic part (BALD; Houlsby et al., arXiv:1112.5745).
    Takes the samples one by one, and holds sums of double precision of the shape of one.
    """

    def __init__(self, form: OutputFormat) -> None:
        self.form, self.count = form, 0
        self.total = self.expected = torch.zeros(())

    def add(self, part: Tensor) -> None:
        """Take the predictions (k, N, ..., C, ...) of k more samples."""
        self.axis, self.dtype = self.form.axis(part.ndim - 1), part.dtype
        for one in part:
            probabilities = one.double()
            self.total = self.total + probabilities
            self.expected = self.expected + _entropy(probabilities, self.axis)
        self.count += len(part)

    @property
    def nbytes(self) -> int:
        """The memory of the sums."""
        return self.total.nbytes + self.expected.nbytes

    def result(self) -> Uncertainty:
        """The decomposition over the samples so far."""
        mean, aleatoric = self.total / self.count, self.expected / self.count
        whole = _entropy(mean, self.axis)
        # Rounding can leave a mutual information of zero at −1e-17.
        epistemic = (whole - aleatoric).clamp_min(0)
        return Uncertainty(*(value.to(self.dtype) for value in (mean, whole, aleatoric, epistemic)))


def _entropy(probabilities: Tensor, axis: int | None) -> Tensor:
    """In nats, over an axis of classes, or of each probability of two classes."""
    terms = -torch.xlogy(probabilities, probabilities)
    if axis is not None and probabilities.shape[axis] > 1:
        return terms.sum(axis)
    other = 1 - probabilities
    return terms - torch.xlogy(other, other)


class Variances:
    """Splits the variance of moments (N, ..., 2): Var y = mean of the variances + variance of the means.

    The variance of K means is (1/K) Σ (m_k − m)²: that of the mixture of the K samples. Works as `Entropies`.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.spread = self.noise = torch.zeros(())

    def add(self, part: Tensor) -> None:
        """Take the moments (k, N, ..., 2) of k more samples."""
        if not part.isfinite().all():
            raise ValueError("the network gave a mean or a variance that is not finite, or a scale that is not above 0")
        self.dtype = part.dtype
        for one in part:
            mean, variance = one.double().unbind(-1)
            # Welford's recursion: no difference of large sums of squares.
            self.count += 1
            shift = mean - self.mean
            self.mean = self.mean + shift / self.count
            self.spread = self.spread + shift * (mean - self.mean)
            self.noise = self.noise + variance

    @property
    def nbytes(self) -> int:
        """The memory of the sums."""
        return self.mean.nbytes + self.spread.nbytes + self.noise.nbytes

    def result(self) -> Uncertainty:
        """The decomposition over the samples so far."""
        aleatoric, epistemic = self.noise / self.count, self.spread / self.count
        parts = (self.mean, aleatoric + epistemic, aleatoric, epistemic)
        return Uncertainty(*(value.to(self.dtype) for value in parts))


class Filled:
    """A tensor that is filled part by part, and allocated at the first one, so that it is never held twice.

    Args:
        leading: the sizes of its first axes; those of the others are the parts'. The last of these is a guess: where
            there are more it grows (by half, and is copied), where there are fewer its end is cut off.
    """

    def __init__(self, *leading: int) -> None:
        self.leading, self.filled, self._whole = leading, 0, torch.empty(0)

    def __setitem__(self, place: tuple[slice, ...], part: Tensor) -> None:
        axis, stop, trailing = len(self.leading) - 1, place[-1].stop, part.shape[len(self.leading) :]
        if self._whole.ndim <= axis or not self._whole.numel():
            self._whole = part.new_empty(*self.leading[:-1], max(self.leading[-1], stop), *trailing)
        if self._whole.shape[axis + 1 :] != trailing:
            raise ValueError(
                f"the network's outputs are shaped {tuple(self._whole.shape[axis + 1 :])} an example in one "
                f"batch and {tuple(trailing)} in another: pad the inputs to one length, or take predict_batches"
            )
        if stop > self._whole.shape[axis]:
            known = self._whole
            self._whole = known.new_empty(*self.leading[:-1], max(stop, known.shape[axis] * 3 // 2), *trailing)
            self._whole.narrow(axis, 0, known.shape[axis]).copy_(known)
        self._whole[place] = part
        self.filled = max(self.filled, stop)

    def __getitem__(self, place: tuple[slice, ...]) -> Tensor:
        return self._whole[place]

    def whole(self) -> Tensor:
        """The tensor, once every part was set."""
        axis = len(self.leading) - 1
        cut = self.filled < self._whole.shape[axis]
        return self._whole.narrow(axis, 0, self.filled).clone() if cut else self._whole


def draw_classes(probabilities: Tensor, axis: int | None, generator: torch.Generator | None) -> Tensor:
    """One class for each distribution over ``axis``; 0 or 1 for each probability where there is no such axis."""
    if axis is None or probabilities.shape[axis] == 1:
        return torch.bernoulli(probabilities, generator=generator).long()
    last = probabilities.movedim(axis, -1)
    drawn = torch.multinomial(last.reshape(-1, last.shape[-1]), 1, generator=generator)
    return drawn.view(last.shape[:-1])


def draw_targets(moments: Tensor, generator: torch.Generator | None) -> Tensor:
    """One normal draw for each mean and variance (..., 2)."""
    means, variances = moments.unbind(-1)
    noise = torch.randn(means.shape, generator=generator, dtype=means.dtype, device=means.device)
    return means + variances.sqrt() * noise
