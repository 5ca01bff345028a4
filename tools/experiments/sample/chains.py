"""Independent chains of every method, one after the other or over the processes of torchrun, and their merger."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from experiments.harness.run_store import RunStore
from experiments.harness.runs.likelihood import likelihood_of
from experiments.harness.runs.result import Result, new_result
from experiments.harness.runs.runner import Runs, store_for
from experiments.harness.runs.scoring import predicted_numbers, score
from experiments.harness.tables import finished, spread
from experiments.sample.sampling import SampleOptions, Sampling, Trials
from learned_samplers import diagnostics
from learned_samplers.posterior.collect import PosteriorSamples, SampleCollection
from meta_tasks.datasets import ImageData

WEIGHTS = 1000  # whose R̂ is computed, evenly over the network
# Processes wait for one another while methods are tuned and chains run.
_PATIENCE = timedelta(days=30)


@dataclass(frozen=True)
class Processes:
    """The processes that share the chains; outside torchrun this one alone."""

    rank: int = 0
    count: int = 1

    def from_first(self, value: Any) -> Any:
        """The value that the first process gives, once all are here."""
        carrier = [value]
        if self.count > 1:
            dist.broadcast_object_list(carrier, src=0)
        return carrier[0]


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
        self.options, self.data, self.ood, self.group = options, data, dict(ood), group
        self.likelihood = likelihood_of(data, options.settings)
        self.rows: list[dict[str, str]] = []
        self.seeds = options.seed_list(options.chains)
        self.runs = {
            seed: Runs(data, self.ood, self._store(f"chain_{k}", fresh=options.fresh and self._is_ours(k)))
            for k, seed in enumerate(self.seeds)
        }

    def _store(self, name: str, *, fresh: bool = False) -> RunStore:
        return store_for(self.options.folder() / name, self.data, self.ood, fresh=fresh)

    def _is_ours(self, chain: int) -> bool:
        return chain % self.group.count == self.group.rank

    def all(self) -> tuple[dict[str, list[Result]], dict[str, Trials]]:
        """Run the chains; in the first process the merged run of each method and the trials of its tuning.

        Afterwards `rows` says how the chains agree.
        """
        options, group, trials = self.options, self.group, dict[str, Trials]()
        rates: dict[str, float] = {}
        if group.rank == 0:
            tuning = Sampling(options, self.data, self.ood)
            rates = {method: tuning.rate(method, method, trials) for method in options.sampler}
        rates = group.from_first(rates)
        for k, seed in enumerate(self.seeds):
            for method in options.sampler if self._is_ours(k) else ():
                self._run(method, rates[method], seed, f"chain {k}, {method}")
        if group.count > 1:
            dist.barrier()
        merged: dict[str, list[Result]] = {}
        for method in options.sampler if group.rank == 0 else ():
            results = [self._run(method, rates[method], seed, "") for seed in self.seeds]
            for k, result in enumerate(results):
                if result.diverged:
                    print(f"{method}, chain {k} diverged: {result.diverged}")
            self._merge(results, merged)
        return merged, trials

    def _run(self, method: str, lr: float, seed: int, title: str) -> Result:
        return self.runs[seed].run(self.options.settings, method, lr, seed, title=title)

    def _merge(self, results: Sequence[Result], merged: dict[str, list[Result]]) -> None:
        """The scores of the average over all chains' samples, and the row on how they agree: R̂ of test predictions and
        of weights, and what one chain alone scores."""
        options, first, good = self.options, results[0], finished(results)
        variant = f"{len(results)}_chains"
        whole = new_result(options.settings, first.method, first.lr, options.seed, variant)
        merged[first.method] = [whole]
        whole.seconds = sum(result.seconds for result in results)
        whole.gradient_evaluations = sum(result.gradient_evaluations for result in results)
        predictions = weights = None
        if good:
            samples = PosteriorSamples.merge([self.runs[r.seed].samples(r, options.settings) for r in good])
            whole.num_samples, store = len(samples), self._store("")
            store.begin(whole.name, "predictions")
            score(whole, samples, self.data, self.ood, store, self.likelihood)
            if len(good) > 1 and min(result.num_samples for result in good) >= diagnostics.MINIMUM_DRAWS:
                chains = samples.split()
                predictions = [predicted_numbers(chain, self.data, self.likelihood) for chain in chains]
                weights = [_some_weights(chain) for chain in chains]
        else:
            whole.diverged = "all chains diverged"
        self.rows.append(
            {
                "method": whole.method,
                "chains": str(len(good)),
                "NLL of one chain": spread([result.scores["nll"] for result in good], 4),
                "of all": f"{whole.scores['nll']:.4f}" if whole.scores else "–",
                "R̂ of predictions": _rhat(predictions),
                "R̂ of weights": _rhat(weights),
            }
        )


def _some_weights(chain: SampleCollection) -> np.ndarray:
    """Every so manieth weight of each sample, (samples, at most about `WEIGHTS`)."""
    flat = torch.stack([torch.cat([tensor.flatten() for tensor in sample.values()]) for sample in chain])
    return flat[:, :: -(-flat.shape[1] // WEIGHTS)].cpu().numpy()


def _rhat(chains: Sequence[Any] | None) -> str:
    """Median and 95 % quantile of R̂ over numbers; "–" for none."""
    if chains is None:
        return "–"
    values = np.asarray(diagnostics.split_rhat(np.stack(chains)), dtype=float)
    middle, most = np.nanquantile(values, (0.5, 0.95))
    return f"{middle:.3f}, 95 % below {most:.3f}"
