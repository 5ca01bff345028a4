"""Executors run an iteration's jobs: in this process, in worker processes (one a core), or on ``torchrun``'s ranks."""

from __future__ import annotations

import atexit
import multiprocessing.connection
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import torch
import torch.distributed
import torch.multiprocessing
from torch import Tensor

from learned_samplers.base import validation
from meta_tasks.estimators import Evaluator, Job, JobResult
from meta_tasks.inner_loop.unroll import mapped
from meta_tasks.training.process import of_first_rank, one_core

__all__ = ["Executor", "ProcessExecutor", "RankExecutor", "SerialExecutor"]

_GOODBYE = 10.0  # seconds that workers have to finish what they are at when they are no longer needed


class Executor:
    """Runs the jobs of an iteration, and keeps the unrolls that continue in a later one: base class."""

    #: Whether `state_dict` waits for other processes that run the same trainer.
    collective: ClassVar[bool] = False

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
        """Send the decisions of the first process to every process that runs the same trainer."""
        return decisions

    def abandon(self) -> None:
        """Give up the jobs of a `run` that was broken off; the unrolls that they continued are gone."""

    def close(self) -> None:
        """End the processes that the executor started."""


class SerialExecutor(Executor):
    """Runs one job after the other in this process."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator

    def run(self, jobs: Sequence[Job], weights: Tensor) -> list[JobResult]:
        return [self.evaluator.run(job, weights) for job in jobs]

    def state_dict(self) -> dict[int, Any]:
        return self.evaluator.state_dict()

    def load_state_dict(self, state: dict[int, Any], jobs: Sequence[Job]) -> None:
        self.evaluator.load_state_dict(state, jobs)


class RankExecutor(SerialExecutor):
    """Jobs shared out over the ranks of a ``torch.distributed`` process group that is already set up.

    Every rank calls the same methods and gets all results; job i runs on rank i mod (number of ranks).

    Raises:
        RuntimeError: a job failed on another rank (its traceback is in the message).
    """

    collective = True

    def __init__(self, evaluator: Evaluator) -> None:
        super().__init__(evaluator)
        self.rank, self.size = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def run(self, jobs: Sequence[Job], weights: Tensor) -> list[JobResult]:
        failure: Exception | None = None
        answer: tuple[bool, Any]
        try:
            answer = True, super().run(jobs[self.rank :: self.size], weights)
        except Exception as error:  # told to the other ranks first, which wait for this one's results
            failure, answer = error, (False, traceback.format_exc())
        gathered = self._gather(answer)
        if failure is not None:
            raise failure
        for rank, (ok, value) in enumerate(gathered):
            if not ok:
                raise RuntimeError(f"rank {rank} of the meta-training failed:\n{value}")
        return [gathered[i % self.size][1][i // self.size] for i in range(len(jobs))]

    def state_dict(self) -> dict[int, Any]:
        return {slot: state for states in self._gather(super().state_dict()) for slot, state in states.items()}

    def load_state_dict(self, state: dict[int, Any], jobs: Sequence[Job]) -> None:
        super().load_state_dict(state, jobs[self.rank :: self.size])

    def agree(self, decisions: tuple[bool, ...]) -> tuple[bool, ...]:
        return of_first_rank(lambda: decisions)

    def _gather(self, value: Any) -> list[Any]:
        gathered: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(gathered, value)
        return gathered


class ProcessExecutor(Executor):
    """Worker processes of one core each; a job goes to the next one that is free.

    Raises:
        ValueError: fewer than one worker.
        RuntimeError: a worker failed (its traceback is in the message) or died.
    """

    def __init__(self, evaluator: Evaluator, workers: int) -> None:
        validation.integer("workers", workers)
        self._evaluator, self._workers = evaluator, workers
        self._connections: list[Any] = []
        self._processes: list[Any] = []
        self._start()

    def _start(self) -> None:
        """Start the processes, where there are none."""
        if self._processes:
            return
        # A fresh interpreter: a fork after the parent has used its threads can hang.
        context = torch.multiprocessing.get_context("spawn")
        # Before the interpreter's own end of its children: that is by SIGTERM, which they ignore, and waits for them.
        atexit.register(self.close)
        for _ in range(self._workers):
            ours, theirs = context.Pipe()
            arguments = (theirs, self._evaluator, torch.get_default_dtype())
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def run(self, jobs: Sequence[Job], weights: Tensor) -> list[JobResult]:
        # Tensors go through pipes as numpy arrays: torch's own way leaves files in shared memory behind a killed run.
        array = weights.detach().cpu().numpy()
        results: dict[int, JobResult] = {}
        waiting = dict(enumerate(jobs))
        busy: dict[Any, int] = {}
        failure: Exception | None = None
        self._start()
        with self._deaths_told():
            while busy or (waiting and failure is None):
                for worker, connection in enumerate(self._connections):
                    number = next((i for i, job in waiting.items() if self._may_run(job, worker)), None)
                    if connection not in busy and number is not None and failure is None:
                        connection.send(("run", (waiting.pop(number), array)))
                        busy[connection] = number
                ready: list[Any] = multiprocessing.connection.wait(list(busy))
                for connection in ready:
                    number = busy.pop(connection)
                    try:
                        results[number] = self._checked(connection.recv())
                    except RuntimeError as error:  # the others' answers must not be taken for those of later jobs
                        failure = failure or error
        if failure is not None:
            raise failure
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

    def abandon(self) -> None:
        self._end(0.0)
        self._connections, self._processes = [], []  # `run` starts others

    def close(self) -> None:
        self._end(_GOODBYE)

    def _end(self, patience: float) -> None:
        """End the processes; those that are at a job get so many seconds to finish it."""
        atexit.unregister(self.close)
        for connection in self._connections:
            connection.close()  # a worker leaves when it finds this out: at once, or after the job that it is at
        deadline = time.monotonic() + patience
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()

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


def _serve(connection: Any, evaluator: Evaluator, dtype: torch.dtype) -> None:
    """The loop of a worker: answers requests until the connection is closed. ``dtype``: torch's default one."""
    torch.set_default_dtype(dtype)
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach the whole group; the trainer decides what they mean
        signal.signal(number, signal.SIG_IGN)
    one_core()
    with suppress(EOFError, ConnectionError):
        while True:
            what, argument = connection.recv()
            connection.send(_answer(what, argument, evaluator))


def _answer(what: str, argument: Any, evaluator: Evaluator) -> tuple[bool, Any]:
    """Answer a request: True and what came of it, or False and the traceback."""
    try:
        if what == "run":
            job, weights = argument
            return True, evaluator.run(job, torch.from_numpy(weights)).tensors(_to_numpy)
        if what == "state":
            return True, _to_numpy(evaluator.state_dict())
        evaluator.load_state_dict(_from_numpy(argument[0]), argument[1])
        return True, None
    except Exception:
        return False, traceback.format_exc()


def _to_numpy(value: Any) -> Any:
    return mapped(value, lambda x: x.cpu().numpy() if isinstance(x, Tensor) else x)


def _from_numpy(value: Any) -> Any:
    return mapped(value, lambda x: torch.from_numpy(x) if hasattr(x, "__array_interface__") else x)
