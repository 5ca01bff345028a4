"""Independent chains of every method, one after the other or over the processes of torchrun, and their merger."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from experiments.harness.tables import finished, spread
from experiments.images.likelihood import likelihood_of
from experiments.images.result import Result, new_result
from experiments.images.runner import ImageRuns, store_for
from experiments.images.sampling import Sampling, Trials
from experiments.images.scoring import predicted_numbers, score
from learned_samplers import diagnostics
from learned_samplers.posterior.collect import PosteriorSamples, SampleCollection
from meta_tasks.datasets import ImageData

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.images.sample_options import SampleOptions

WEIGHTS = 1000  # whose R̂ is computed, evenly over the network
# Processes wait for one another while methods are tuned and chains run.
_PATIENCE = timedelta(days=30)


@dataclass(frozen=True)
class Processes:
    """The processes that share the chains; outside torchrun this one alone."""

    rank: int = 0
    count: int = 1

    def from_first(self, value: Any) -> Any:
        """The value that the first process gives."""
        if self.count == 1:
            return value
        carrier = [value]
        dist.broadcast_object_list(carrier, src=0)
        return carrier[0]

    def wait(self) -> None:
        """Until all are here."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def processes() -> Iterator[Processes]:
    """The process group of torchrun, for as long as it is needed."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes()
        return
    dist.init_process_group("gloo", timeout=_PATIENCE)
    try:
        yield Processes(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


class Chains:
    """``--chains`` chains of every method; chain k has the seed ``--seed`` + k and a folder ``chain_<k>`` of its own.

    Args:
        options: of `sample.py`.
        data, ood: as for `Sampling`.
        group: the processes; chain k is run by process k mod their number.
    """

    def __init__(self, options: SampleOptions, data: ImageData, ood: Mapping[str, ImageData], group: Processes) -> None:
        self.options = options = options.on(data)
        assert options.chains is not None
        self.data, self.ood, self.group = data, dict(ood), group
        self.likelihood = likelihood_of(data, options.settings)
        self.rows: list[dict[str, str]] = []
        self.seeds = range(options.seed, options.seed + options.chains)
        self.runs = {
            seed: ImageRuns(
                data,
                self.ood,
                store_for(options.folder() / f"chain_{k}", data, self.ood, fresh=options.fresh and self._is_ours(k)),
            )
            for k, seed in enumerate(self.seeds)
        }

    def _is_ours(self, chain: int) -> bool:
        return chain % self.group.count == self.group.rank

    def all(self) -> tuple[dict[str, list[Result]], dict[str, Trials]]:
        """Run the chains; in the first process the merged run of each method and the trials of its tuning.

        Afterwards `rows` says how the chains agree.
        """
        options, group = self.options, self.group
        trials: dict[str, Trials] = {}
        rates: dict[str, float] = {}
        if group.rank == 0:
            tuning = Sampling(options, self.data, self.ood)
            rates = {method: tuning.rate(method, method, trials) for method in options.sampler}
        rates = group.from_first(rates)
        for k, seed in enumerate(self.seeds):
            for method in options.sampler if self._is_ours(k) else ():
                self._run(method, rates[method], seed, f"chain {k}, {method}")
        group.wait()
        merged: dict[str, list[Result]] = {}
        for method in options.sampler if group.rank == 0 else ():
            results = [self._run(method, rates[method], seed, "") for seed in self.seeds]
            for k, result in enumerate(results):
                if result.diverged:
                    print(f"{method}, chain {k} diverged: {result.diverged}")
            merged[method] = [self._merged(results)]
            self.rows.append(self._row(results, merged[method][0]))
        return merged, trials

    def _run(self, method: str, lr: float, seed: int, title: str) -> Result:
        return self.runs[seed].run(self.options.settings, method, lr, seed, title=title)

    def _samples(self, results: Sequence[Result]) -> SampleCollection:
        settings = self.options.settings
        return PosteriorSamples.merge([self.runs[r.seed].samples(r, settings) for r in finished(results)])

    def _merged(self, results: Sequence[Result]) -> Result:
        """The scores of the average over all chains' samples."""
        first, options = results[0], self.options
        variant = f"{len(results)}_chains"
        whole = new_result(options.settings, first.method, first.lr, options.seed, variant)
        whole.seconds = sum(result.seconds for result in results)
        whole.gradient_evaluations = sum(result.gradient_evaluations for result in results)
        if not finished(results):
            whole.diverged = "all chains diverged"
            return whole
        samples, store = self._samples(results), store_for(options.folder(), self.data, self.ood)
        whole.num_samples = len(samples)
        store.begin(whole.name, "predictions")
        score(whole, samples, self.data, self.ood, store, self.likelihood)
        return whole

    def _row(self, results: Sequence[Result], whole: Result) -> dict[str, str]:
        """How the chains of a method agree: R̂ of test predictions and of weights, and what one chain alone scores."""
        good = finished(results)
        row = {"method": whole.method, "chains": str(len(good))}
        single = spread([result.scores["nll"] for result in good], 4) if good else "–"
        row |= {"NLL of one chain": single, "of all": f"{whole.scores['nll']:.4f}" if whole.scores else "–"}
        predictions = weights = None
        if len(good) > 1 and min(result.num_samples for result in good) >= diagnostics.MINIMUM_DRAWS:
            samples = self._samples(results)
            predictions = diagnostics.split_rhat(
                np.stack([predicted_numbers(chain, self.data, self.likelihood) for chain in samples.split()])
            )
            weights = diagnostics.split_rhat(np.stack([_some_weights(chain) for chain in samples.split()]))
        return row | {"R̂ of predictions": _quantiles(predictions), "R̂ of weights": _quantiles(weights)}


def _some_weights(chain: SampleCollection) -> np.ndarray:
    """Every so manieth weight of each sample, (samples, at most about `WEIGHTS`)."""
    flat = torch.stack([torch.cat([tensor.flatten() for tensor in sample.values()]) for sample in chain])
    return flat[:, :: -(-flat.shape[1] // WEIGHTS)].cpu().numpy()


def _quantiles(values: Any) -> str:
    """Median and 95 % quantile; "–" for none."""
    if values is None:
        return "–"
    middle, most = np.nanquantile(np.asarray(values, dtype=float), (0.5, 0.95))
    return f"{middle:.3f}, 95 % below {most:.3f}"
