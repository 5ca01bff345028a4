"""Predicting with a collection of samples: averages, draws and uncertainty."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.posterior.figure import draw, weights_of
from learned_samplers.posterior.filled import Filled
from learned_samplers.posterior.held import HeldSamples
from learned_samplers.posterior.inputs import Inputs
from learned_samplers.posterior.options import Options
from learned_samplers.posterior.outputs import Noise, Output, OutputFormat
from learned_samplers.posterior.running import Run
from learned_samplers.posterior.spread import (
    Entropies,
    Uncertainty,
    Variances,
    draw_classes,
    draw_targets,
    require_moments,
)
from learned_samplers.posterior.store import Entry
from learned_samplers.posterior.verdict import SMALLEST, Origin, Probe, Unsettled, Verdict, judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Predictive(HeldSamples):
    """Predictions from a collection of samples."""

    def predict(
        self,
        x: Inputs,
        *,
        batch_size: int | None = 256,
        sample_chunk: int = 8,
        num_samples: int | None = None,
        cumulative: bool = False,
        log: bool = False,
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
        (:meth:`uncertainty` has the variances). The network runs in evaluation mode on its device, in its dtype;
        probabilities and averages are taken in float32, or float64 for a model in float64. It runs on a copy of its
        modules, so that several threads may predict at once, also while another trains it. Gradients pass to inputs
        that require one; this holds the graphs of all samples.

        The first prediction of what `PosteriorSamples` collected warns, once, where :meth:`verdict` is bad.

        Args:
            x: inputs (N, ...) as a tensor or a NumPy array; a tuple of them for a network with several arguments; a
                dictionary of them for one with named arguments; or a DataLoader that does not shuffle, of inputs or
                of (input, target) pairs.
            batch_size: examples run at once; a loader has its own. None runs all rows in one piece, whose tensors may
                differ in length: for rows that depend on each other, such as (nodes, edges) of a graph. The memory is
                that of the answer and of one batch times ``sample_chunk`` samples. A loader's batches are read one
                after the other, or, with more samples than ``sample_chunk``, as many at once as 32 MB hold, for each of
                which the samples are read again.
            sample_chunk: samples stacked and run at once.
            num_samples: average over so many evenly spaced samples, the last one among them; None for all.
            cumulative: return the averages over the first 1, 2, …, K samples instead of the last one alone.
            log: return logarithms of the averaged probabilities of classes, with their axis last, (N, ..., C): two for
                "binary" and for each label. They stay finite where a probability has become zero.
            output: what the network's output is. "softmax": logits of classes, (N, C), or more axes with
                ``class_axis``; "binary": one logit for each example, of which the sigmoid is taken, (N,) or (N, 1);
                "multilabel": one logit for each of several labels, which do not exclude each other, (N, labels);
                "regression": real numbers; or a function from whatever the network returns to what shall be averaged,
                such as ``lambda p: p`` for probabilities.
            class_axis: the axis of the classes in logits of more than two axes, which may be any but the first.
            noise: for a regression, the standard deviation of the targets about the network's mean, a number or a
                tensor; or where the network gives it "variance" (as ``torch.nn.GaussianNLLLoss`` takes it),
                "log_variance" or "scale", its square root: the network returns the mean and that noise, a pair or the
                two halves of its last axis. None: no noise is known.
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
        validation.truth("cumulative", cumulative)
        validation.truth("log", log)
        form, options = self._validated(
            Options(
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
        )
        if log:
            form.require_classes("log=True")
        run = self._run_samples(x, form, options, form.log_prediction if log else form.prediction)
        sums = Filled(run.count if cumulative else 1, run.expected)
        probe = self._probe(probabilities=form.has_classes and not log)
        for samples, rows, part in run.all_pieces():
            if probe is not None:
                probe.add(rows, part)
            if cumulative:
                part = part.logcumsumexp(0) if log else part.cumsum(0)
            else:
                part = part.logsumexp(0, keepdim=True) if log else part.sum(0, keepdim=True)
            if samples.start:
                last = samples.start - 1 if cumulative else 0
                before = sums[
                    last : last + 1, rows
                ].clone()  # what is written below must not change what autograd keeps
                part = part.logaddexp(before) if log else part + before
            sums[samples if cumulative else slice(1), rows] = part
        totals = sums.whole()
        counts = torch.arange(run.count - len(totals), run.count, device=totals.device) + 1
        counts = counts.view(-1, *[1] * (totals.ndim - 1))
        if log:
            averages = totals - counts.log()
        else:
            is_real = totals.is_floating_point() or totals.is_complex()
            averages = totals.div_(counts) if is_real else totals / counts
        self._conclude(run, probe, options)
        return averages if cumulative else averages[0]

    def predict_samples(self, x: Inputs, **options: Unpack[Options]) -> Tensor:
        """Each sample's own predictions p(y | x, θ_k), of shape (K, N, classes); options as in :meth:`predict`.

        It is large, K times what :meth:`predict` gives: 100 samples of 1000 images of 256×256 into 20 classes a pixel
        are 524 GB. Where it does not fit into memory take :meth:`predict_batches`.
        """
        form, complete = self._validated(options)
        return _whole(self._run_samples(x, form, complete, form.prediction))

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
        form, complete = self._validated(options)
        return _each_batch(self._run_samples(x, form, complete, form.prediction))

    def uncertainty(self, x: Inputs, **options: Unpack[Options]) -> Uncertainty:
        r"""The mean of each prediction, and its total = aleatoric + epistemic uncertainty.

        For classes these are entropies in nats, of shape (N,), or that of the logits with "binary" and "multilabel":
        the entropy H of the averaged prediction, the average of the samples' entropies, and their difference, the
        mutual information of target and weights. For a regression they are variances, of the shape of the mean:
        Var y = (1/K) Σ σ_k² + (1/K) Σ (m_k − m)². Without ``noise`` the aleatoric part is 0. Of one sample the
        epistemic part is 0, whatever it does not know, and a warning says so.

        Args:
            x, options: as in :meth:`predict`; ``output`` must not be a function.

        Returns:
            `Uncertainty`, with fields ``mean``, ``total``, ``aleatoric`` and ``epistemic``.
        """
        form, complete = self._validated(options, "uncertainty")
        if len(self) == 1:
            warnings.warn("one sample disagrees with none: its epistemic uncertainty is 0, collect more", stacklevel=2)
        is_regression = form.output == "regression"
        run = self._run_samples(x, form, complete, form.moments if is_regression else form.prediction)
        answer = [Filled(run.expected) for _ in Uncertainty._fields]
        probe = self._probe(probabilities=not is_regression)
        run.sums = math.inf  # until they are known
        for group in run.groups():
            sums = {rows.start: Variances() if is_regression else Entropies(form) for rows, _ in group}
            for _, rows, part in run.pieces(group):
                if probe is not None:
                    probe.add(rows, part[..., 0] if is_regression else part)
                sums[rows.start].add(part)
            for start, batch_sums in sums.items():
                parts = batch_sums.result()
                rows = slice(start, start + len(parts.mean))
                run.sums = batch_sums.nbytes / len(parts.mean)
                for field, value in zip(answer, parts, strict=True):
                    field[(rows,)] = value
            group.clear()
        self._conclude(run, probe, complete)
        return Uncertainty(*(field.whole() for field in answer))

    def draws(self, x: Inputs, *, generator: torch.Generator | None = None, **options: Unpack[Options]) -> Tensor:
        """Draws of targets from the predictive distribution, one for each sample: (K, N) classes or (K, N, ...) reals.

        With "binary" and "multilabel" the classes 0 and 1 have the shape of the logits: (K, N, 1) if these are (N, 1).
        Gradients of real draws pass to inputs that require one; the function without its noise is
        :meth:`predict_samples`.

        Args:
            x, options: as in :meth:`predict`; a regression needs ``noise``.
            generator: source of the draws, on the device of ``x``; None for torch's global one. It is used chunk by
                chunk and batch by batch, so that equal draws need equal ``sample_chunk`` and ``batch_size``.
        """
        form, complete = self._validated(options, "draws")
        is_regression = form.output == "regression"
        if is_regression and form.noise is None:
            raise ValueError(
                "draws of a regression's targets need noise=, which was not given; the samples of the function "
                "itself are predict_samples(x, output='regression')"
            )
        run = self._run_samples(x, form, complete, form.moments if is_regression else form.prediction)
        drawn = Filled(run.count, run.expected)
        for samples, rows, part in run.all_pieces():
            if is_regression:
                require_moments(part)
                drawn[samples, rows] = draw_targets(part, generator)
            else:
                drawn[samples, rows] = draw_classes(part, form.axis(part.ndim - 1), generator)
        return drawn.whole()

    def verdict(self, x: Inputs = None, **options: Unpack[Options]) -> Verdict:
        """Say whether the chain has settled, by what it predicts, and what to change if it has not.

        The samples' predictions for ``x`` are compared with each other: the first tenth with the last half, the first
        half with the second (R̂), and chains, where there are several (split R̂). Networks in different modes do not
        agree, which is said and no fault.

        Args:
            x: a few inputs, such as a batch; their first 64 rows are used. None for those of the last prediction.
            options: as in :meth:`predict`, and then those of the last prediction.

        Returns:
            `Verdict`, whose ``text`` is one line of it.
        """
        probe, entries, _ = self._probe_again(x, options)
        return judge(None if probe is None else probe.values(), entries, self._origin())

    def plot(self, x: Inputs = None, **options: Unpack[Options]) -> Figure:
        """Draw the samples in one figure: traces, kinetic temperature, agreement, and the verdict above.

        Traces are those of three coordinates of the predictions, among those that vary more than half of them, against
        the sampler's step, a line a chain. The
        temperature is that of the momenta at each sample, beside the one that was asked for. Agreement is the share of
        the coordinates whose R̂ is below a value, between the halves of a chain and across chains (cycles count as
        chains)::

            posterior.plot(x_test[:64]).savefig("chain.png", dpi=150)

        Args:
            x: a few inputs, as in :meth:`verdict`. None for those of the last prediction; before the first one weights
                are drawn.
            options: as in :meth:`predict`, and then those of the last prediction.

        Returns:
            A Matplotlib figure, made without pyplot.

        Raises:
            RuntimeError: there is no sample yet.
            ModuleNotFoundError: Matplotlib (the extra ``plots``) is not installed.
        """
        self._require_samples("to draw")
        probe, entries, form = self._probe_again(x, options)
        if probe is None:
            states = [self._store.read(index) for index in range(len(entries))]
            values, names = weights_of([{n: state[n] for n in self._settings["shapes"]} for state in states])
        else:
            values, names = probe.values(), probe.names("log p" if form.has_classes else "prediction")
        return draw(values, names, entries, judge(None if probe is None else values, entries, self._origin()))

    def _probe_again(self, x: Inputs, options: Options) -> tuple[Probe | None, Sequence[Entry], OutputFormat]:
        """Return the predictions for ``x``, or for the rows of the last ones, with the records of their samples."""
        if x is None and self._probed is not None:
            x, options = self._probed
        form, complete = self._validated(options)
        if x is None:
            return None, self._store.entries, form
        run = self._run_samples(x, form, complete, form.log_prediction if form.has_classes else form.prediction)
        probe = Probe(probabilities=False)
        for _, rows, part in run.pieces(next(run.groups())):
            probe.add(rows, part.clamp_min(math.log(SMALLEST)) if form.has_classes else part)
        return probe, run.entries, form

    def _origin(self) -> Origin | None:
        origin = self._settings.get("origin")
        return None if origin is None else Origin(**origin)

    def _probe(self, *, probabilities: bool) -> Probe | None:
        """Return what collects predictions to judge; None if nothing is known of the chain, or it was judged bad."""
        is_unknown = self._origin() is None or self._gives_verdict.is_over
        return None if is_unknown else Probe(probabilities=probabilities)

    def _conclude(self, run: Run, probe: Probe | None, options: Options) -> None:
        """Remember the rows for a verdict; warn, once, where their predictions show that the chain has not settled."""
        self._probed = run.first_inputs, options
        if probe is None:
            return
        verdict = judge(probe.values(), run.entries, self._origin())
        early = math.isnan(verdict.within)  # too few samples to judge by: what is said now is said again of more
        if verdict.remarks and (self._gives_early_verdict if early else self._gives_verdict)():
            warnings.warn(f"posterior.verdict(): {verdict.text}", Unsettled, stacklevel=3)

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
        form, complete = self._validated(options)
        if log:
            form.require_classes("log=True")
        fixed = {**self._fixed(), **self._shared_buffers()}
        transform = form.log_prediction if log else form.prediction

        expected = {name: tuple(shape) for name, shape in self._settings["shapes"].items()}

        def prediction(weights: Mapping[str, Tensor]) -> Tensor:
            state = dict(weights)
            if (given := {name: tuple(w.shape) for name, w in state.items()}) != expected:
                raise ValueError(f"weights must be all that is sampled, of the shapes {expected}, got {given}")
            return _whole(self._run(x, form, complete, transform, lambda _: state, [0], fixed))[0]

        return prediction


def _whole(run: Run) -> Tensor:
    """All predictions of a run, (K, N, ...)."""
    predictions = Filled(run.count, run.expected)
    for samples, rows, part in run.all_pieces():
        predictions[samples, rows] = part
    return predictions.whole()


def _each_batch(run: Run) -> Iterator[Tensor]:
    """The predictions of a run for one batch after the other; between two of them nothing is left open."""
    run.sums = math.inf
    for group in run.groups():
        ((_, batch),) = group
        predictions = Filled(run.count, batch.length)
        for samples, rows, part in run.pieces(group):
            predictions[samples, slice(0, rows.stop - rows.start)] = part
        del batch
        group.clear()
        yield predictions.whole()
