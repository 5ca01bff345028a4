"""Turns a network's output into a prediction; for output that does not fit, the error names the option to set."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from learned_samplers.base import validation
from learned_samplers.base.warning import Once
from learned_samplers.posterior.inputs import ADVICE

Output = str | Callable[[Any], Tensor]
OUTPUTS = ("softmax", "binary", "multilabel", "regression")
#: Those whose predictions are probabilities of classes, and those with a sigmoid for each logit.
CLASSES, SIGMOIDS = ("softmax", "binary", "multilabel"), ("binary", "multilabel")
#: Noise of a regression: none, its standard deviation, or what the network gives beside the mean.
Noise = float | Tensor | str | None
NETWORK_NOISE = ("log_variance", "variance", "scale")
#: So many logits of two classes do not all lie in [0, 1] by chance.
ENOUGH = 16


@dataclass(frozen=True)
class OutputFormat:
    """The meaning of a network's output; see `SampleCollection.predict` for the arguments.

    Raises:
        TypeError, ValueError: an option that is unknown or does not go with the others.
    """

    output: Output = "softmax"
    class_axis: int | None = None
    noise: Noise = None
    select: int | str | None = None

    def __post_init__(self) -> None:
        if not callable(self.output) and self.output not in OUTPUTS:
            raise ValueError(
                f"output must be 'softmax', 'binary', 'multilabel', 'regression' or a function, got {self.output!r}"
            )
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

    @property
    def has_classes(self) -> bool:
        """True if predictions are probabilities of classes."""
        return self.output in CLASSES

    def require_classes(self, option: str) -> None:
        """Raise ValueError, naming an option that needs them, unless predictions are probabilities of classes."""
        if not self.has_classes:
            raise ValueError(f"{option} goes with output='softmax', 'binary' or 'multilabel' only, got {self.output!r}")

    # -- what the network returned ----------------------------------------------------------------------------------

    def tensor(self, raw: Any) -> Tensor:
        """The tensor to read: the output itself, ``.logits``, or the entry that ``select`` names."""
        values = self._selected(raw)
        if not isinstance(values, Tensor):
            raise TypeError(f"select={self.select!r} must select a tensor of the output, got {type(values).__name__}")
        if not values.is_floating_point():
            raise TypeError(f"the network's output must hold floating-point numbers, got {values.dtype}")
        return values.to(torch.promote_types(values.dtype, torch.float32))

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
        """Return whether outputs of so many examples tell logits, as which they are read, from probabilities."""
        return self.output == "softmax" or (self.output in SIGMOIDS and examples >= ENOUGH)

    def refuse_probabilities(self, raw: Any, may_warn: Once) -> None:
        """Raise ValueError if the network gives probabilities of classes itself; warn if it may of two classes."""
        values, dtype = self.tensor(raw), self._selected(raw).dtype
        if self.output in SIGMOIDS:
            if bool((values >= 0).all() & (values <= 1).all()) and values.min() != values.max() and may_warn():
                warnings.warn(
                    f"output={self.output!r} takes the sigmoid of the network's outputs, and {values.numel()} of them "
                    "all lie in [0, 1]: if it ends in a sigmoid already, use output=lambda p: p; for logits "
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
        """Return what `predict` averages: probabilities, the mean of a regression, or what the function gives."""
        if callable(self.output):
            prediction = self.output(raw)
            if not (isinstance(prediction, Tensor) and prediction.is_floating_point()):
                return prediction
            # A sum over many samples would stand still in half precision.
            return prediction.to(torch.promote_types(prediction.dtype, torch.float32))
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
        if self.output == "softmax" and axis is not None:
            return logits.movedim(axis, -1).log_softmax(-1)
        if self.output == "binary":  # whose logits (N, 1) have an axis of one class
            logits = logits.flatten() if axis is None else logits.squeeze(axis)
        return logsigmoid(torch.stack([-logits, logits], -1))

    def moments(self, raw: Any) -> Tensor:
        """Mean and variance of a regression, stacked along a new last axis; the variance is 0 without noise."""
        if isinstance(self.noise, str):
            mean, second = self._two(raw)
            if self.noise == "log_variance":
                return torch.stack([mean, second.exp()], -1)
            variance = second if self.noise == "variance" else second.square()
            # What is not positive becomes NaN, which the caller refuses: nothing can be raised within vmap.
            return torch.stack([mean, torch.where(second > 0, variance, torch.nan)], -1)
        if isinstance(raw, tuple | list) and len(raw) == 2 and self.select is None:
            raise ValueError(
                f"the network returned {_contents(raw)}: with output='regression' say what the second one is by "
                "noise='variance', 'log_variance' or 'scale' (its square root), or choose the mean by select=0"
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
        """Return the axis of the classes in outputs of ``ndim`` axes, counted from the end; None if each is a logit."""
        if self.class_axis is not None:
            return self.class_axis if self.class_axis < 0 else self.class_axis - ndim
        return 1 - ndim if self.output == "softmax" else None

    def _probabilities(self, logits: Tensor) -> Tensor:
        shape = tuple(logits.shape)
        if self.class_axis is not None and not (-logits.ndim < self.class_axis < logits.ndim):
            raise ValueError(f"class_axis={self.class_axis} is not an axis of classes of outputs of shape {shape}")
        if self.output == "multilabel":
            return logits.sigmoid()
        if self.output == "binary":
            is_one = logits.ndim == 1 or (logits.ndim == 2 and shape[1] == 1)
            if self.class_axis is not None:
                is_one = shape[self.class_axis] == 1
            if not is_one:
                raise ValueError(
                    f"output='binary' needs one logit an example, of shape (batch,) or (batch, 1), got {shape}: "
                    "output='softmax' is for classes, output='multilabel' for several labels at once, and class_axis "
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
    """Describe what an output consists of, for a message."""
    if isinstance(raw, Mapping):
        return f"a {type(raw).__name__} with {', '.join(map(repr, raw))}"
    if isinstance(raw, tuple | list):
        kinds = ", ".join(str(tuple(i.shape)) if isinstance(i, Tensor) else type(i).__name__ for i in raw)
        return f"a {type(raw).__name__} of {len(raw)} ({kinds})"
    return f"a {type(raw).__name__}"
