"""Member-steps per second of one rule on one small task, in this tree or, run as a script, in another checkout.

As a script it needs nothing of this tree: with PYTHONPATH set to another checkout and its tools it times that one, as
far back as the inner loop has its present arguments. `update.py` is what calls it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

CLASSES, BATCH = 10, 64


def _parts() -> Any:
    """The module of the inner benchmark, which has the names that an unroll is made of."""
    for name in ("experiments.benchmarks.inner", "_benchmark_inner"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    raise ModuleNotFoundError("there is no inner benchmark in this checkout")


def make_advance(network: str, options: dict[str, Any], size: int, members: int, rule: Any) -> Callable[[int], None]:
    """What takes so many steps of all members of a fresh unroll, on random images of one channel."""
    parts = _parts()
    torch.manual_seed(0)
    x, y = torch.rand(4 * BATCH, 1, size, size), torch.randint(CLASSES, (4 * BATCH,))
    data = parts.ImageData("random", CLASSES, x, y, x, y, x, y)
    task = parts.ImageTask(parts.TaskConfig("random", network, options, batch_size=BATCH, lr=0.1), data, 0, "cpu")
    weights = torch.stack([rule.initial_weights(i) for i in range(members)])
    schedule = parts.Schedule(10**6, 10**6 - 1, 1)  # nothing is collected
    unroll = parts.Unroll(task, rule, parts.BMALoss, schedule, range(members // 2), members_per_group=2)
    return lambda steps: unroll.advance(weights, steps)


def processor_seconds(work: Callable[[], object]) -> float:
    """Of this process: what others do on the machine counts less than on the clock."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", required=True)
    parser.add_argument("--options", type=json.loads, required=True)
    parser.add_argument("--rule", type=json.loads, required=True)
    for name in ("size", "members", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    parts = _parts()
    parts.one_core()
    with torch.no_grad():
        rule = parts.L2ERule(**given.rule)
        advance = make_advance(given.network, given.options, given.size, given.members, rule)
        advance(given.steps)
        seconds = statistics.median(processor_seconds(lambda: advance(given.steps)) for _ in range(3))
    print(f"member-steps/s={given.members * given.steps / seconds:.2f}")


if __name__ == "__main__":
    main()
