"""Predicting with a collection of samples: averages, draws and uncertainty."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from learned_samplers.base import validation
from learned_samplers.posterior.inputs import Inputs
from learned_samplers.posterior.network import refuse_scripted
from learned_samplers.posterior.normalisation import (
    OwnBuffers,
    normalisation_buffers,
    reestimated_buffers,
    statistics_to_compute,
)
from learned_samplers.posterior.outputs import (
    Entropies,
    Filled,
    Noise,
    Output,
    OutputFormat,
    Uncertainty,
    Variances,
    draw_classes,
    draw_targets,
)
from learned_samplers.posterior.running import Run, Runner
from learned_samplers.posterior.snapshots import Fingerprints, same_values
from learned_samplers.posterior.store import Store
from learned_samplers.posterior.tensor_files import Tensors


class Options(TypedDict, total=False):
    """The options that all predictions share; see `Predictive.predict`."""

    batch_size: int
    sample_chunk: int
    num_samples: int | None
    output: Output
    class_axis: int | None
    noise: Noise
    select: int | str | None
    vectorize: bool | None
    targets: bool | None


class Predictive:
    """Predictions from a collection of samples."""

    def __init__(self, model: nn.Module, store: Store, settings: dict[str, Any]) -> None:
        refuse_scripted(model)
        self.model = model
        self._store = store
        self._settings = dict(settings)
        #: By chain and step.
        self._reestimated: dict[tuple[int, int], Tensors] = {}
        self._runner = Runner(model)
        self._fingerprints = Fingerprints(model)

    def __len__(self) -> int:
        return len(self._store.entries)

    def _fixed(self) -> Tensors:
        """What was not sampled, once frozen weights that come with the model are known to be those of the samples."""
        self._fingerprints.validate(self._store.frozen, "the samples")
        return self._store.fixed or {}

    def _require_samples(self, purpose: str) -> None:
        if not len(self):
            raise RuntimeError(f"there is no sample {purpose}: {self._why_empty()}")

    def _why_empty(self) -> str:
        return repr(self)

    def _state(self, index: int) -> Tensors:
        """Parameters and buffers of one sample, for prediction."""
        state = dict(self._store.read(index))
        if self._settings["buffers"] == "reestimate" and statistics_to_compute(self.model, self._store.fixed or {}):
            entry = self._store.entries[index]
            if (entry.chain, entry.step) not in self._reestimated:
                raise RuntimeError(
                    f"the normalisation buffers of sample {index} (step {entry.step}) have not been re-estimated: "
                    "call reestimate_buffers(data) with training inputs before predicting"
                )
            state |= self._reestimated[entry.chain, entry.step]
        return state

    def predict(
        self,
        x: Inputs,
        *,
        batch_size: int = 256,
        sample_chunk: int = 8,
        num_samples: int | None = None,
        cumulative: bool = False,
        output: Output = "softmax",
        class_axis: int | None = None,
        noise: Noise = None,
        select: int | str | None = None,
        vectorize: bool | None = None,
        targets: bool | None = None,
    ) -> Tensor:
        r"""The Bayesian model average: the predictions for ``x``, averaged over the samples,

            p(y | x, D) ≈ (1/K) Σ_k p(y | x, θ_k).

        For classes p(y | x, θ) are probabilities; for a regression the average is the predictive mean
        (:meth:`uncertainty` has the variances). The model runs in evaluation mode on its own device, in its own dtype;
        probabilities and averages are taken in float32, or float64 for a model in float64. Afterwards its
        weights, buffers and modes are what they were.

        Args:
            x: inputs (N, ...) as a tensor or a NumPy array; a tuple of them for a network with several arguments; a
                dictionary of them for one with named arguments; or a DataLoader that does not shuffle, of inputs or
                of (input, target) pairs.
            batch_size: examples run at once; a loader has its own. The memory is that of the answer and of one batch
                times ``sample_chunk`` samples. A loader's batches are read one after the other, or, with more samples
                than ``sample_chunk``, as many at once as 32 MB hold, for each of which the samples are read again.
            sample_chunk: samples stacked and run at once.
            num_samples: average over so many evenly spaced samples, the last one among them; None for all.
            cumulative: return the averages over the first 1, 2, …, K samples instead of the last one alone.
            output: what the network's output is. "softmax": logits of classes, (N, C), or more axes with
                ``class_axis``; "binary": one logit for each example, of which the sigmoid is taken, (N,) or (N, 1);
                "regression": real numbers; or a function from whatever the network returns to what shall be averaged,
                such as ``lambda p: p`` for probabilities.
            class_axis: the axis of the classes in logits of more than two axes: 1 or −1, say.
            noise: for a regression, the standard deviation of the targets about the network's mean, a number or a
                tensor; or "log_variance" or "scale" where the network gives it: it returns the mean and that noise, a
                pair or the two halves of its last axis. None: no noise is known.
            select: which entry of the network's output is meant, if that is a tuple or a dictionary; one with
                ``logits``, or with one entry, needs no choice.
            vectorize: True runs the samples of a chunk as one with ``torch.func.vmap``; False runs them one after the
                other; None chooses: vmap, except for networks that it cannot run (recurrent ones, control flow) and
                those with convolutions on a CPU, where it is slower. The results agree to rounding.
            targets: False says that a loader's batches (a, b, ...) are the network's positional arguments; otherwise
                the second of two is used as the target; None warns once if the network has a second input.

        Returns:
            (N, classes), or whatever one network's prediction is shaped like; (K, N, classes) if ``cumulative``. On
            the device of ``x``.

        Raises:
            RuntimeError: no sample yet; buffers not re-estimated; vmap, if required, cannot run the network.
            TypeError, ValueError: an argument that cannot be used, by name, or outputs that do not fit ``output``; the
                message says which option does.
        """
        options = Options(
            batch_size=batch_size,
            sample_chunk=sample_chunk,
            num_samples=num_samples,
            output=output,
            class_axis=class_axis,
            noise=noise,
            select=select,
            vectorize=vectorize,
            targets=targets,
        )
        run = self._run(x, options)
        sums = Filled(run.count if cumulative else 1, run.expected)
        for samples, rows, part in run.all_pieces():
            part = part.cumsum(dim=0) if cumulative else part.sum(dim=0, keepdim=True)
            if samples.start:
                last = samples.start - 1 if cumulative else 0
                part = part + sums[last : last + 1, rows]
            sums[samples if cumulative else slice(1), rows] = part
        found = sums.whole()
        counts = torch.arange(run.count - len(found), run.count, device=found.device) + 1
        counts = counts.view(-1, *[1] * (found.ndim - 1))
        found = found.div_(counts) if found.is_floating_point() or found.is_complex() else found / counts
        return found if cumulative else found[0]

    def predict_samples(self, x: Inputs, **options: Unpack[Options]) -> Tensor:
        """Each sample's own predictions p(y | x, θ_k), of shape (K, N, classes); options as in :meth:`predict`.

        It is large, K times what :meth:`predict` gives: 100 samples of 1000 images of 256×256 into 20 classes a pixel
        are 524 GB. Where it does not fit into memory take :meth:`predict_batches`.
        """
        return _whole(self._run(x, options))

    def predict_batches(self, x: Inputs, **options: Unpack[Options]) -> Iterator[Tensor]:
        """Iterate over each sample's own predictions for one batch of ``x`` after the other: (K, ``batch_size``, ...).

        Together they are :meth:`predict_samples`, but only one batch is held at a time; a loader's batches are read as
        they are needed. With more samples than ``sample_chunk`` every batch reads all samples again: choose a large
        ``batch_size``, or a large ``sample_chunk`` where K sets of weights fit into memory. For any statistic over
        samples, such as quantiles::

            low = torch.cat([batch.quantile(0.05, dim=0) for batch in samples.predict_batches(x, output="regression")])

        Args:
            x, options: as in :meth:`predict`.
        """
        return _each_batch(self._run(x, options))

    def uncertainty(self, x: Inputs, **options: Unpack[Options]) -> Uncertainty:
        r"""How uncertain each prediction is, and why: its mean, and total = aleatoric + epistemic uncertainty.

        For classes these are entropies in nats, of shape (N,), or that of the logits with ``output="binary"``: the
        entropy H of the averaged prediction, the average of the samples' entropies, and their difference, the mutual
        information of target and weights. For a regression they are variances, of the shape of the mean:
        Var y = (1/K) Σ σ_k² + (1/K) Σ (m_k − m)². Without ``noise`` the aleatoric part is 0. Of one sample the
        epistemic part is 0, whatever it does not know, and a warning says so.

        Args:
            x, options: as in :meth:`predict`; ``output`` must not be a function.

        Returns:
            `Uncertainty`, with fields ``mean``, ``total``, ``aleatoric`` and ``epistemic``.
        """
        form = _output_format(options, "uncertainty")
        if len(self) == 1:
            warnings.warn("one sample disagrees with none: its epistemic uncertainty is 0, collect more", stacklevel=2)
        variances = form.output == "regression"
        run = self._run(x, options, form.moments if variances else None)
        answer = [Filled(run.expected) for _ in Uncertainty._fields]
        run.sums = math.inf  # until they are known
        for group in run.groups():
            sums = {rows.start: Variances() if variances else Entropies(form) for rows, _ in group}
            for _, rows, part in run.pieces(group):
                sums[rows.start].add(part)
            for rows, _ in group:
                of_batch = sums.pop(rows.start)
                run.sums = of_batch.nbytes / (rows.stop - rows.start)
                for field, value in zip(answer, of_batch.result(), strict=True):
                    field[(rows,)] = value
            group.clear()
        return Uncertainty(*(field.whole() for field in answer))

    def draws(self, x: Inputs, *, generator: torch.Generator | None = None, **options: Unpack[Options]) -> Tensor:
        """Draws of targets from the predictive distribution, one for each sample: (K, N) classes or (K, N, ...) reals.

        With ``output="binary"`` the classes 0 and 1 have the shape of the logits: (K, N, 1) if these are (N, 1).

        Args:
            x, options: as in :meth:`predict`; a regression needs ``noise``.
            generator: source of the draws, on the device of ``x``; None for torch's global one. It is used chunk by
                chunk and batch by batch, so that equal draws need equal ``sample_chunk`` and ``batch_size``.
        """
        form = _output_format(options, "draws")
        if form.output == "regression":
            if form.noise is None:
                raise ValueError(
                    "draws of a regression's targets need noise=, which was not given; the samples of the function "
                    "itself are predict_samples(x, output='regression')"
                )
            run = self._run(x, options, form.moments)
        else:
            run = self._run(x, options)
        drawn = Filled(run.count, run.expected)
        for samples, rows, part in run.all_pieces():
            if form.output == "regression":
                drawn[samples, rows] = draw_targets(part, generator)
            else:
                drawn[samples, rows] = draw_classes(part, form.axis(part.ndim - 1), generator)
        return drawn.whole()

    def function_of_weights(
        self, x: Inputs, *, log: bool = False, **options: Unpack[Options]
    ) -> Callable[[Mapping[str, Tensor]], Tensor]:
        """The network's prediction for ``x`` as a function of its weights, which need not be a sample's.

        Args:
            x, options: as in :meth:`predict`.
            log: give logarithms of the probabilities of classes instead, with their axis last: (N, ..., C). They do not
                vanish where the probabilities do.

        Returns:
            A function from the sampled parameters by name to the prediction (N, ...). The rest (frozen parameters,
            buffers) is what all samples share.

        Raises:
            RuntimeError: there is no sample yet.
            OwnBuffers: a network with running statistics, or samples with different buffers.
            TypeError, ValueError: as in :meth:`predict`; ``log`` of what has no classes.
        """
        form, keywords = self._validated(options)
        if log and form.output not in ("softmax", "binary"):
            raise ValueError(f"log=True goes with output='softmax' or 'binary' only, got {form.output!r}")
        fixed = {**self._fixed(), **self._shared_buffers()}
        transform = form.log_prediction if log else form.prediction

        def prediction(weights: Mapping[str, Tensor]) -> Tensor:
            given = dict(weights)
            return _whole(self._started(x, lambda _: given, [0], fixed, transform, form, keywords))[0]

        return prediction

    def _shared_buffers(self) -> Tensors:
        """The buffers that every sample holds a copy of, the same in all; OwnBuffers where one differs."""
        if normalisation_buffers(self.model):
            raise OwnBuffers(
                f"samples: {type(self.model).__name__} has running statistics, which do not fit weights between two "
                "samples"
            )
        shared = {n: tensor for n, tensor in self._store.read(0).items() if n not in self._settings["shapes"]}
        for k in range(1, len(self) if shared else 0):
            other = self._store.read(k)
            for name, tensor in shared.items():
                if not same_values(tensor, other[name]):
                    raise OwnBuffers(
                        f"samples: the buffer {name!r} differs from sample 0 to sample {k}, and no values of it belong "
                        "to the weights between two samples"
                    )
        return shared

    def _run(self, x: Inputs, options: Options, transform: Callable[[Any], Tensor] | None = None) -> Run:
        """The network under the chosen samples on all batches of ``x``."""
        form, keywords = self._validated(options)
        chosen = self._chosen(options)
        return self._started(x, self._state, chosen, self._fixed(), transform or form.prediction, form, keywords)

    def _started(
        self,
        x: Inputs,
        read: Callable[[int], Tensors],
        chosen: list[int],
        fixed: Tensors,
        transform: Callable[[Any], Tensor],
        form: OutputFormat,
        keywords: dict[str, Any],
    ) -> Run:
        how = dict(keywords)
        batches = self._runner.batches(x, how.pop("batch_size"), how.pop("targets"))
        return Run(self._runner, batches, read, chosen, fixed, transform, form, **how)

    def _chosen(self, options: Options) -> list[int]:
        """The samples to predict with: so many, evenly spaced, the last one among them."""
        wanted = options.get("num_samples")
        count = len(self) if wanted is None else wanted
        return [(k + 1) * len(self) // count - 1 for k in range(count)]

    def _validated(self, options: Options) -> tuple[OutputFormat, dict[str, Any]]:
        """What the output is, and the options of how to run."""
        unknown = set(options) - set(Options.__annotations__)
        if unknown:
            raise TypeError(f"unknown option {min(unknown)!r}; there are {', '.join(Options.__annotations__)}")
        self._require_samples("to predict with")
        count = options.get("num_samples")
        keywords: dict[str, Any] = {"batch_size": 256, "sample_chunk": 8, "vectorize": None, "targets": None}
        keywords = {name: options.get(name, default) for name, default in keywords.items()}
        if count is not None:
            validation.integer("num_samples", count)
        validation.integer("batch_size", keywords["batch_size"])
        validation.integer("sample_chunk", keywords["sample_chunk"])
        if count is not None and count > len(self):
            raise ValueError(f"num_samples must be at most the {len(self)} samples held, got {count}")
        return _output_format(options), keywords

    def reestimate_buffers(self, data: Any, *, batch_size: int = 256, targets: bool | None = None) -> None:
        """Compute every sample's normalisation statistics from data, for ``buffers="reestimate"``.

        Each statistic is its average over the batches, as in ``torch.optim.swa_utils.update_bn``. One pass over
        ``data`` per sample. Call it again after more samples were collected. Layers that were in evaluation mode while
        they were keep the statistics that they had.

        Args:
            data: inputs (N, ...), a tuple or a dictionary of them, or a loader of inputs or of (input, target) pairs.
            batch_size: for tensors only; a loader has its own.
            targets: as in :meth:`predict`.

        Raises:
            ValueError: another policy was chosen, or the data hold no batch.

        Warns:
            UserWarning: all layers were in evaluation mode, so that there is nothing to compute.
        """
        if self._settings["buffers"] != "reestimate":
            raise ValueError(f"reestimate_buffers needs buffers='reestimate', got {self._settings['buffers']!r}")
        validation.integer("batch_size", batch_size)
        if not statistics_to_compute(self.model, self._fixed()):
            warnings.warn(
                "every normalisation layer was in evaluation mode when the samples were collected, and keeps the "
                "statistics that it had: nothing is re-estimated",
                stacklevel=2,
            )
            return
        states = (self._store.read(index) for index in range(len(self)))
        results = list(reestimated_buffers(self.model, states, self._fixed(), data, batch_size, targets))
        keys = [(entry.chain, entry.step) for entry in self._store.entries]
        self._reestimated = dict(zip(keys, results, strict=True))


def _whole(run: Run) -> Tensor:
    """All predictions of a run, (K, N, ...)."""
    found = Filled(run.count, run.expected)
    for samples, rows, part in run.all_pieces():
        found[samples, rows] = part
    return found.whole()


def _each_batch(run: Run) -> Iterator[Tensor]:
    """The predictions of a run for one batch after the other; between two of them nothing is left open."""
    run.sums = math.inf
    for group in run.groups():
        ((_, batch),) = group
        found = Filled(run.count, batch.length)
        for samples, rows, part in run.pieces(group):
            found[samples, slice(0, rows.stop - rows.start)] = part
        del batch
        group.clear()
        yield found.whole()


def _output_format(options: Options, method: str = "") -> OutputFormat:
    """The options about the network's output; ValueError if ``method`` cannot work with a function."""
    output = options.get("output", "softmax")
    if method and callable(output):
        raise ValueError(
            f"{method} needs to know what the output means: output='softmax', 'binary' or 'regression', not a function "
            "(predict_samples takes one)"
        )
    return OutputFormat(output, options.get("class_axis"), options.get("noise"), options.get("select"))
