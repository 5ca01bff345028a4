"""Evaluates jobs: in this process, in worker processes (one a core), or over the ranks of ``torchrun``.

Whoever evaluates a job makes its task, initial weights, minibatches, noise and perturbations from the job's name, so
the losses are the same wherever it runs, and nothing but the losses and a few numbers for the log travel.
"""

from __future__ import annotations

import multiprocessing.connection
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
import torch.multiprocessing
from torch import Tensor

from meta_tasks.estimators import Job, antithetic_members
from meta_tasks.inner_loop import Unroll
from meta_tasks.objectives import objective_named
from meta_tasks.process import one_core
from meta_tasks.random_streams import derive_seed
from meta_tasks.rules import SamplerRule
from meta_tasks.task import Task

if TYPE_CHECKING:  # its data sets' libraries are slow to import
    from meta_tasks.task_family import TaskFamily

__all__ = ["Evaluator", "Executor", "JobResult", "ProcessExecutor", "RankExecutor", "SerialExecutor"]


@dataclass
class JobResult:
    """What comes back of a job.

    ``losses``, of which those that are not finite do not count: (pairs, 2) of φ + η and φ − η, or (1, 1) of φ itself;
    ``gradient`` (n,) of a job that computes one itself; ``kind`` of the task; ``failed`` members;
    ``member_steps`` and ``seconds`` of computing; ``scales``, mean root mean square of the network's outputs;
    ``curve``, mean minibatch loss over the members along the inner loop.
    """

    losses: Tensor
    kind: str
    failed: int
    member_steps: int
    seconds: float
    scales: dict[str, float] = field(default_factory=dict)
    curve: list[float] = field(default_factory=list)
    gradient: Tensor | None = None

    def tensors(self, convert: Callable[[Any], Any]) -> JobResult:
        """The same with every tensor converted, to and from what travels between processes."""
        gradient = None if self.gradient is None else convert(self.gradient)
        return replace(self, losses=convert(self.losses), gradient=gradient)


@dataclass
class Evaluator:
    """Everything that a process needs to evaluate jobs; can be sent to another process.

    Args:
        family, rule: of the meta-training.
        objective: name of the meta-objective.
        sigma: of the estimator.
        seed: of the run.
        curve_points: points of the inner training curves.
        stepping: of the unrolls, see `meta_tasks.inner_loop.Unroll`; changes the losses by rounding at most.
        learned: of the estimator.
    """

    family: TaskFamily
    rule: SamplerRule
    objective: str
    sigma: float
    seed: int
    curve_points: int = 20
    stepping: str | None = None
    learned: int | None = None
    slots: dict[int, Unroll] = field(default_factory=dict)

    def run(self, job: Job, weights: Tensor) -> JobResult:
        """Evaluate one job at meta-parameters (n,)."""
        started = time.perf_counter()
        members = antithetic_members(weights, self.seed, job.pairs, self.sigma, self.learned)
        unroll = self._unroll(job)
        failed_before = sum(step >= 0 for step in unroll.failed_at)
        unroll.advance(members, job.skip)
        unroll.advance(members, job.steps)
        if job.slot is not None and unroll.finished:
            del self.slots[job.slot]
        scales = {name: value.nanmean().item() for name, value in unroll.output_scales.items()}
        return JobResult(
            unroll.losses().view(-1, 2),
            unroll.task.kind,
            sum(step >= 0 for step in unroll.failed_at) - failed_before,
            len(unroll.parameter) * (job.skip + job.steps),
            time.perf_counter() - started,
            scales,
            unroll.curves().nanmean(0).tolist(),
        )

    def _unroll(self, job: Job) -> Unroll:
        if job.slot is not None and not job.start:
            if job.slot not in self.slots:
                raise ValueError(f"slot {job.slot} has no unroll to continue; its state was not restored")
            return self.slots[job.slot]
        unroll = self.make(job)
        if job.slot is not None:
            self.slots[job.slot] = unroll
        return unroll

    def make(self, job: Job) -> Unroll:
        """The unroll of a job, at its first step."""
        task: Task = self.family.task(self.seed, *job.task)
        seeds = [derive_seed(self.seed, *pair, "unroll") for pair in job.pairs]
        return Unroll(
            task, self.rule, objective_named(self.objective), job.schedule, seeds,
            curve_every=max(1, job.schedule.steps // self.curve_points), stepping=self.stepping,
        )  # fmt: skip

    def state_dict(self) -> dict[int, Any]:
        """The kept unrolls, by slot."""
        return {slot: unroll.state_dict() for slot, unroll in self.slots.items()}

    def load_state_dict(self, state: dict[int, Any], jobs: Sequence[Job]) -> None:
        """Restore kept unrolls for the jobs that continue them."""
        self.slots = {}
        for job in jobs:
            if job.slot is not None and not job.start and job.slot in state:
                self.slots[job.slot] = self.make(job)
                self.slots[job.slot].load_state_dict(state[job.slot])


class Executor:
    """Base class: evaluates jobs and keeps the unrolls that continue in a later iteration."""

    def run(self, jobs: Sequence[Job], weights: Tensor) -> list[JobResult]:
        """The jobs' results, in the order of the jobs."""
        raise NotImplementedError

    def state_dict(self) -> dict[int, Any]:
        """The unrolls that continue, by slot, for a checkpoint."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[int, Any], jobs: Sequence[Job]) -> None:
        """Restore what `state_dict` gave; ``jobs`` are those of the iteration that comes next."""
        raise NotImplementedError

    def agree(self, decisions: tuple[bool, ...]) -> tuple[bool, ...]:
        """The decisions of the first of all processes that run the same trainer."""
        return decisions

    def close(self) -> None:
        """End what was started."""


class SerialExecutor(Executor):
    """One job after the other in this process."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator

    def run(self, jobs: Sequence[Job], weights: Tensor) -> list[JobResult]:
        return [self.evaluator.run(job, weights) for job in jobs]

    def state_dict(self) -> dict[int, Any]:
        return self.evaluator.state_dict()

    def load_state_dict(self, state: dict[int, Any], jobs: Sequence[Job]) -> None:
        self.evaluator.load_state_dict(state, jobs)


class RankExecutor(Executor):
    """Jobs shared out over the ranks of a ``torch.distributed`` process group that is already set up.

    Every rank calls the same methods and gets all results; job i runs on rank i mod (number of ranks).
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.rank, self.size = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def run(self, jobs: Sequence[Job], weights: Tensor) -> list[JobResult]:
        own = [self.evaluator.run(job, weights) for job in jobs[self.rank :: self.size]]
        gathered: list[Any] = self._gather(own)
        return [gathered[i % self.size][i // self.size] for i in range(len(jobs))]

    def state_dict(self) -> dict[int, Any]:
        return {slot: state for states in self._gather(self.evaluator.state_dict()) for slot, state in states.items()}

    def load_state_dict(self, state: dict[int, Any], jobs: Sequence[Job]) -> None:
        self.evaluator.load_state_dict(state, jobs[self.rank :: self.size])

    def agree(self, decisions: tuple[bool, ...]) -> tuple[bool, ...]:
        first: list[Any] = [decisions]
        torch.distributed.broadcast_object_list(first, src=0)
        return first[0]

    def _gather(self, value: Any) -> list[Any]:
        gathered: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(gathered, value)
        return gathered


class ProcessExecutor(Executor):
    """Worker processes of one core each; a job goes to whichever is free.

    Raises:
        ValueError: fewer than one worker.
        RuntimeError: a worker failed (its traceback is in the message) or died.
    """

    def __init__(self, evaluator: Evaluator, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        # A fresh interpreter: a fork after the parent has used its threads can hang.
        context = torch.multiprocessing.get_context("spawn")
        self._connections, self._processes = [], []
        for _ in range(workers):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, evaluator), daemon=True)
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)

    def run(self, jobs: Sequence[Job], weights: Tensor) -> list[JobResult]:
        # Tensors go through pipes as numpy arrays: torch's own way leaves files in shared memory behind a killed run.
        array = weights.detach().cpu().numpy()
        results: dict[int, JobResult] = {}
        waiting = dict(enumerate(jobs))
        busy: dict[Any, int] = {}
        with self._deaths_told():
            while waiting or busy:
                for worker, connection in enumerate(self._connections):
                    number = next((i for i, job in waiting.items() if self._may_run(job, worker)), None)
                    if connection not in busy and number is not None:
                        connection.send(("run", (waiting.pop(number), array)))
                        busy[connection] = number
                ready: list[Any] = multiprocessing.connection.wait(list(busy))
                for each in ready:
                    results[busy.pop(each)] = self._checked(each.recv())
        return [results[i].tensors(torch.from_numpy) for i in range(len(jobs))]

    def _may_run(self, job: Job, worker: int) -> bool:
        """A job that continues an unroll must go to the worker that keeps it; any other to whoever is free."""
        return job.slot is None or job.slot % len(self._connections) == worker

    def state_dict(self) -> dict[int, Any]:
        answers = self._ask("state", [()] * len(self._connections))
        return {slot: _from_numpy(state) for states in answers for slot, state in states.items()}

    def load_state_dict(self, state: dict[int, Any], jobs: Sequence[Job]) -> None:
        workers = range(len(self._connections))
        shares = [[job for job in jobs if self._may_run(job, worker)] for worker in workers]
        self._ask("load", [(_to_numpy(state), share) for share in shares])

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(timeout=10)
            if process.is_alive():
                process.terminate()

    def _ask(self, what: str, arguments: list[Any]) -> list[Any]:
        with self._deaths_told():
            for connection, argument in zip(self._connections, arguments, strict=True):
                connection.send((what, argument))
            return [self._checked(connection.recv()) for connection in self._connections]

    @staticmethod
    def _checked(answer: tuple[bool, Any]) -> Any:
        ok, value = answer
        if not ok:
            raise RuntimeError(f"a worker process of the meta-training failed:\n{value}")
        return value

    @staticmethod
    @contextmanager
    def _deaths_told() -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError) as error:
            raise RuntimeError("a worker process of the meta-training died (killed, or out of memory)") from error


def _serve(connection: Any, evaluator: Evaluator) -> None:
    """A worker's life: answer until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the trainer decides what it means
    one_core()
    while True:
        try:
            what, argument = connection.recv()
        except EOFError:
            return
        try:
            if what == "run":
                job, weights = argument
                answer: Any = evaluator.run(job, torch.from_numpy(weights)).tensors(_to_numpy)
            elif what == "state":
                answer = _to_numpy(evaluator.state_dict())
            else:
                answer = None
                evaluator.load_state_dict(_from_numpy(argument[0]), argument[1])
            connection.send((True, answer))
        except Exception:
            connection.send((False, traceback.format_exc()))


def _to_numpy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu().numpy()
    if isinstance(value, dict):
        return {key: _to_numpy(each) for key, each in value.items()}
    return [_to_numpy(each) for each in value] if isinstance(value, list) else value


def _from_numpy(value: Any) -> Any:
    if hasattr(value, "__array_interface__"):
        return torch.from_numpy(value)
    if isinstance(value, dict):
        return {key: _from_numpy(each) for key, each in value.items()}
    return [_from_numpy(each) for each in value] if isinstance(value, list) else value
