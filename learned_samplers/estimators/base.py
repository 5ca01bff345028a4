"""Shared part of the estimators: settings, a fit, and the outputs of every sample's network."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from learned_samplers.base import validation
from learned_samplers.base.configured import Precision
from learned_samplers.base.prior import prior_of
from learned_samplers.estimators.module import network_of_all
from learned_samplers.estimators.networks import ACTIVATIONS, perceptron
from learned_samplers.estimators.progress import Progress
from learned_samplers.estimators.sampling import begin_with_means, equalise, flatten, put, sample, warm_up
from learned_samplers.estimators.tables import Standardised, columns_named, on_cpu
from learned_samplers.estimators.verdict import Verdict, verdict
from learned_samplers.posterior import Chains
from learned_samplers.priors import GammaHyperprior, Relevance

#: With more rows than this gradients are of minibatches of `BATCH` rows, and steps `LONGER` times as many. Minibatches
#: lose on 6,553 rows of kin8nm, also in as many seconds (.04 nats for .09); on 5,000 of friedman1 they take half.
FULL_ROWS, BATCH, LONGER = 10_000, 1000, 3
#: Rows whose predictions the verdict looks at.
JUDGED_ROWS = 200
#: Largest number of weights that a fit keeps, of all samples together: 4 GB, and as much for their gradients.
LARGEST = 2**30


class BayesianMLP(BaseEstimator):
    """Settings of the regressor and the classifier, the fit, and the outputs of the samples."""

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (32, 32),
        activation: str = "tanh",
        *,
        n_chains: int = 8,
        n_samples: int = 50,
        n_steps: int = 1500,
        tuning_steps: int = 500,
        warmup_steps: int = 3000,
        prior_precision: Precision | Relevance = 1.0,
        batch_size: int | str | None = "auto",
        validation_fraction: float = 0.15,
        warm_start: bool = False,
        n_jobs: int | None = 1,
        verbose: bool = False,
        warn_unsettled: bool = True,
        random_state: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.n_chains = n_chains
        self.n_samples = n_samples
        self.n_steps = n_steps
        self.tuning_steps = tuning_steps
        self.warmup_steps = warmup_steps
        self.prior_precision = prior_precision
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.warn_unsettled = warn_unsettled
        self.random_state = random_state

    def _validate_settings(self) -> None:
        sizes = self.hidden_layer_sizes
        if isinstance(sizes, str) or not isinstance(sizes, Sequence):
            raise TypeError(f"hidden_layer_sizes must be a sequence of integers, got {sizes!r}")
        for size in sizes:
            validation.integer("hidden_layer_sizes", size)
        validation.one_of("activation", self.activation, ACTIVATIONS)
        for name in ("n_chains", "n_samples", "n_steps", "tuning_steps", "warmup_steps"):
            validation.integer(name, getattr(self, name))
        if self.n_steps < self.n_samples:
            raise ValueError(f"n_steps must be at least n_samples={self.n_samples}, got {self.n_steps}")
        if not isinstance(self.prior_precision, Relevance) and prior_of(self.prior_precision) is None:
            validation.positive("prior_precision", self.prior_precision)
        validation.fraction("validation_fraction", self.validation_fraction, open_right=True)
        if self.batch_size not in (None, "auto"):
            validation.integer("batch_size", self.batch_size)
        if self.n_jobs not in (None, -1):
            validation.integer("n_jobs", self.n_jobs)
        for name in ("warm_start", "verbose", "warn_unsettled"):
            validation.one_of(name, getattr(self, name), (False, True, 0, 1))

    def _sample(
        self,
        x: np.ndarray,
        targets: Tensor,
        outputs: int,
        last: Sequence[nn.Module] = (),
        weights: np.ndarray | None = None,
        continued: dict[str, Any] | None = None,
    ) -> None:
        """Set the samples and the verdict.

        Args:
            x: rows as they were given.
            targets: the rows' targets, as `_nll` takes them.
            outputs: number of the last linear layer's outputs.
            last: layers after it.
            weights: of the rows in the likelihood; None for 1.
            continued: attributes of the fit that this one goes on from; None for a new one.
        """
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        generator = torch.Generator().manual_seed(seed)
        by_feature = isinstance(self.prior_precision, Relevance)
        self._standardised = (
            continued["_standardised"] if continued else Standardised.of(x, weights, by_feature=by_feature)
        )
        progress = Progress(type(self).__name__, bool(self.verbose))
        with _THREADS.limited(self.n_jobs), torch.enable_grad():
            inputs = self._inputs(x)
            factors = None if weights is None else torch.as_tensor(weights, dtype=torch.float32)
            sizes = [inputs.shape[1], *self.hidden_layer_sizes, outputs]
            count, (rows_of_step, factor) = len(inputs), self._batch(len(inputs))
            self._refuse_size(sizes, x)
            networks = [perceptron(sizes, self.activation, generator, last) for _ in range(self.n_chains)]
            if continued:
                _load_last_states(networks, continued["posterior_"])
            asked = self.prior_precision
            relevance, precision = (asked, asked.others) if isinstance(asked, Relevance) else (None, asked)
            prior = prior_of(precision)
            chains = Chains(networks, prior_precision=self._precisions(networks[0], precision, x.shape[1]))

            def likelihood(rows: Tensor | None, energies: Any) -> Tensor:
                if rows is None:
                    values, weight = energies(chains(inputs), targets), factors
                else:
                    values = energies(chains(inputs[rows]), targets[rows])
                    weight = None if factors is None else factors[rows]
                return (values if weight is None else values * weight).mean(1)

            def losses(rows: Tensor | None) -> Tensor:
                return likelihood(rows, self._nll)

            def squares(rows: Tensor | None) -> Tensor:
                return likelihood(rows, self._squared_errors)

            order = torch.randperm(count, generator=generator)
            held = int(self.validation_fraction * count)
            held_out, trained = (order[:held], order[held:]) if held >= 5 else (order[:0], order)
            self.n_iter_ = 0
            sources: dict[str, Any] = {"generator": generator, "progress": progress}
            if not continued:
                fresh = flatten(chains).detach().clone()
                self.n_iter_ = warm_up(chains, losses, trained, held_out, count, steps=self.warmup_steps, **sources)
                if len(held_out) and getattr(self, "noise", None) == "heteroscedastic":
                    settings = {"steps": self.warmup_steps, **sources}
                    self.n_iter_ += begin_with_means(
                        chains, losses, squares, fresh, trained, held_out, count, **settings
                    )
            equalise(chains, losses, count, generator)
            judged = order[:JUDGED_ROWS]

            def judge(values: Tensor, temperature: float) -> Verdict:
                return self._verdict(values.detach().double(), targets[judged], temperature)

            def enough(states: Tensor, temperature: float) -> bool:
                with torch.no_grad():
                    values = []
                    for state in states:
                        put(chains, state)
                        values.append(chains(inputs[judged]))
                return judge(torch.stack(values, 1), temperature).sampled

            self.posterior_, trace = sample(
                chains,
                losses,
                count,
                networks[0],
                tuning_steps=factor * self.tuning_steps,
                steps=factor * self.n_steps,
                samples=self.n_samples,
                batch_size=rows_of_step,
                seed=seed,
                relevance=relevance,
                enough=enough,
                progress=progress,
                prior=prior if isinstance(prior, GammaHyperprior) else None,
                keep_interrupted=bool(self.warm_start),
            )
            values = self._outputs(x[judged.numpy()])
            self.verdict_ = judge(values.unflatten(0, (self.n_chains, -1)), trace.temperature)
        self.n_iter_ += factor * self.tuning_steps + len(trace.energies)
        first = [sample["0.weight"].double() for sample in self.posterior_]
        lengths = self._standardised.lengths(torch.stack([w.T @ w for w in first]).sum(0).numpy())
        total = lengths.sum()  # 0 of a wide table without any variation
        self.feature_relevance_ = lengths / total if total else np.full(len(lengths), 1 / len(lengths))
        if trace.interrupted:
            raise KeyboardInterrupt(f"what was sampled until then is kept, for warm_start=True: {self.verdict_.text}")
        progress.end(self.verdict_.text)
        if self.warn_unsettled and not self.verdict_.settled:
            warnings.warn(self.verdict_.text, ConvergenceWarning, stacklevel=3)

    def _precisions(self, network: nn.Module, asked: Any, columns: int) -> float | Tensor:
        """λ of the chains: a number, or by chain and tensor; a first layer counts the table's columns as its inputs."""
        if (prior := prior_of(asked)) is None:
            return float(asked)
        named = list(network.named_parameters())
        entries = [(name, p.new_empty(len(p), columns) if name == "0.weight" else p) for name, p in named]
        prior.check_names([name for name, _ in named])
        return torch.tensor(prior.of_parameters(entries)).expand(self.n_chains, -1)

    def _batch(self, count: int) -> tuple[int | None, int]:
        """Rows a step of the sampler, None for all of them, and a factor on the number of steps."""
        size: Any = self.batch_size
        if size == "auto":
            return (BATCH, LONGER) if count > FULL_ROWS else (None, 1)
        return None if size is None or size >= count else int(size), 1

    def _refuse_size(self, sizes: Sequence[int], x: np.ndarray) -> None:
        """Raise ValueError where the samples would not fit into memory."""
        weights = sum((inputs + 1) * units for inputs, units in pairwise(sizes))
        if (total := weights * self.n_chains * self.n_samples) > LARGEST:
            raise ValueError(
                f"X has {x.shape[1]} columns: n_samples={self.n_samples} of n_chains={self.n_chains} networks of "
                f"{weights} weights take {8 * total / 1e9:.0f} GB: choose columns or reduce them (by PCA say), or "
                "lower hidden_layer_sizes or n_samples"
            )

    def _inputs(self, x: np.ndarray) -> Tensor:
        inputs = torch.as_tensor(self._standardised(x), dtype=torch.float32)
        if not inputs.isfinite().all():
            raise ValueError("X has numbers that are too far from those of fit for single precision")
        return inputs

    def _outputs(self, x: np.ndarray) -> Tensor:
        """Outputs of every sample's network, (samples, rows, outputs)."""
        return self._run(self._inputs(x)).double()

    def _outputs_of_tensor(self, x: Any) -> Tensor:
        """Outputs (samples, rows, outputs) of every sample's network, that gradients pass through to ``x``."""
        check_is_fitted(self, "posterior_")
        if not isinstance(x, Tensor):
            raise TypeError(f"X must be a tensor, got {type(x).__name__}: predict takes tables")
        if x.ndim != 2 or x.shape[1] != self.n_features_in_ or not len(x):
            raise ValueError(f"X must have shape (rows, {self.n_features_in_}), got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"X must hold floating-point numbers, got {x.dtype}")
        inputs = self._standardised.of_tensor(x.double()).float()
        if not inputs.isfinite().all():
            raise ValueError("X must be finite, and not too far from the rows of fit")
        with _THREADS.limited(self.n_jobs):
            return self._run(inputs).double()

    def as_module(self) -> nn.Module:
        """Return a `torch.nn.Module` of the fitted networks, all samples side by side, for `torch.export` and others.

        It takes a tensor (rows, features) in the units of `fit` and gives, of a classifier, probabilities (samples,
        rows, classes); of a regressor means and scales of the noise, (samples, rows) each, or (samples, rows, targets),
        in the targets' units: the predictive distribution is their mixture in equal shares. Its tensors are constants::

            rows = torch.zeros(2, model.n_features_in_, dtype=torch.float64)
            exported = torch.export.export(model.as_module(), (rows,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
            torch.export.save(exported, "model.pt2")
            means, scales = torch.export.load("model.pt2").module()(new_rows)
        """
        check_is_fitted(self, "posterior_")
        return network_of_all(self._standardised, self.posterior_, self._head()).eval()

    def _head(self) -> nn.Module:
        """Module of the networks' outputs (samples, rows, outputs) to what `as_module` gives."""
        raise NotImplementedError

    def _run(self, inputs: Tensor) -> Tensor:
        chunk = len(self.posterior_)
        return self.posterior_.predict_samples(
            inputs, output="regression", sample_chunk=chunk, vectorize=True, batch_size=1024
        )

    def _new(self, X: Any) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the rows of a new table, each with its outputs, in pieces that fit into memory."""
        check_is_fitted(self, "posterior_")
        with columns_named(X):
            x = validate_data(self, X, reset=False, dtype=np.float64)
        step = max(1, 2_000_000 // len(self.posterior_))
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            with _THREADS.limited(self.n_jobs):
                outputs = self._outputs(x[rows])
            yield rows, outputs

    @property
    def _goes_on(self) -> bool:
        """Whether a fit begins with the last one, of the same columns."""
        return bool(self.warm_start) and hasattr(self, "posterior_")

    def _continued(self, outputs: int, x: np.ndarray) -> dict[str, Any] | None:
        """Return the attributes of the fit that a ``warm_start`` goes on from, None without one.

        None, too, where that fit had so few rows that its networks saw their span alone, and these leave it.

        Raises:
            ValueError: that fit had other networks.
        """
        if not self._goes_on:
            return None
        if self._standardised.basis is not None:
            leaves = self._standardised(x)[:, -1].any()
            if leaves or isinstance(self.prior_precision, Relevance):
                return None
        shapes = [tuple(tensor.shape) for name, tensor in self.posterior_[0].items() if name.endswith("weight")]
        units = [self.posterior_[0]["0.weight"].shape[1], *(shape[0] for shape in shapes)]
        activations = {type(layer) for layer in self.posterior_.model.children()} & set(ACTIVATIONS.values())
        if activations - {ACTIVATIONS[self.activation]}:
            raise ValueError(f"warm_start=True goes on with another activation than {self.activation!r}")
        before = (len(set(self.posterior_.chains)), tuple(units[1:-1]), units[-1])
        if before != (self.n_chains, tuple(self.hidden_layer_sizes), outputs):
            present = (self.n_chains, tuple(self.hidden_layer_sizes), outputs)
            raise ValueError(
                "warm_start=True goes on with {} chains of hidden layers {} and {} outputs: ".format(*before)
                + "for n_chains={}, hidden_layer_sizes={} and {} outputs set warm_start=False".format(*present)
            )
        return dict(self.__dict__)

    def _nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihood (..., row) of outputs (..., row, output)."""
        raise NotImplementedError

    def _squared_errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Squared error (..., row) of outputs (..., row, output)."""
        raise NotImplementedError

    def _predictions(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions (..., row, output) of each sample, and their variances (row, output) under the mixture."""
        raise NotImplementedError

    def _verdict(self, outputs: Tensor, targets: Tensor, temperature: float) -> Verdict:
        """Judge outputs (chain, draw, row, output) of rows with these targets."""
        predictions, variances = self._predictions(outputs)
        densities = -self._nll(outputs, targets)
        return verdict(predictions.numpy(), variances.numpy(), densities.numpy(), temperature)


def _load_last_states(networks: Sequence[nn.Module], samples: Any) -> None:
    """Put the last sample of each chain into a network."""
    last = {chain: k for k, chain in enumerate(samples.chains)}
    if samples[0].keys() != dict(networks[0].named_parameters()).keys():
        raise ValueError("warm_start=True goes on with another noise, learned or known: set warm_start=False")
    for network, k in zip(networks, last.values(), strict=True):
        network.load_state_dict(samples[k])


class _Threads:
    """Number of torch's threads, which fits in several Python threads lower at the same time."""

    def __init__(self) -> None:
        self._lock, self._users, self._before = threading.Lock(), 0, 0

    @contextmanager
    def limited(self, count: int | None) -> Iterator[None]:
        """Give torch so many threads within it: for small networks several wait for each other.

        glibc returns memory to the system, and gets it back page by page at each step, until a large block was freed.
        """
        with on_cpu():
            torch.empty(2**25 - 2**16, dtype=torch.uint8)
        with self._lock:
            if not self._users:  # a thread that begins while another is limited would take the limit for its own
                self._before = torch.get_num_threads()
            self._users += 1
            torch.set_num_threads(self._before if count in (None, -1) else count)
        try:
            with on_cpu():
                yield
        finally:
            with self._lock:
                self._users -= 1
                torch.set_num_threads(self._before)


_THREADS = _Threads()
