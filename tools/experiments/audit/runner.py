"""Environments of the packages, a child process for each, and the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.audit.report import report
from experiments.harness.options import at_least, positive
from learned_samplers.base.files import write_atomically

#: Packages, and what they need beside what they declare.
PACKAGES: dict[str, tuple[str, ...]] = {
    "torch-uncertainty": ("lightning",),  # which it imports, and does not require
    "lightning-uq-box": (),
    "posteriors": (),
    "blackjax": (),
    "sgmcmcjax": ("jax<0.4.30", "jaxlib<0.4.30"),  # it imports a module that later versions do not have
    "numpyro": (),
    "ivon-opt": (),
    "bayesian-torch": (),
}
#: They run in this Python.
HERE = ("ours", "source")
#: They see the torch of this Python.
_TORCH = ("torch-uncertainty", "lightning-uq-box", "posteriors", "ivon-opt", "bayesian-torch")
_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class AuditOptions:
    """Options of the audit."""

    # Folder of an environment for each package, of some gigabytes.
    cache: Path = Path.home() / ".cache" / "learned_samplers" / "audit"
    # Folder of audit.md and audit.json.
    out: Path = Path("reports")
    # "ours", "source", or packages; the others keep the rows that they have.
    packages: tuple[str, ...] = (*HERE, *PACKAGES)
    # CPU-seconds of a law, at most.
    seconds: float = 6.0
    # Packages that are measured at once.
    jobs: int = 2

    def __post_init__(self) -> None:
        positive(self, "seconds")
        at_least(1, self, "jobs")
        for package in self.packages:
            if package not in (*HERE, *PACKAGES):
                raise ValueError(f"packages must be among {[*HERE, *PACKAGES]}, got {package!r}")


def environment(package: str, cache: Path) -> Path:
    """The Python of a package's environment, which is made where it is not there."""
    folder = cache / package
    python, made = folder / "bin" / "python", folder / "made"
    if not made.exists():
        venv.create(folder, with_pip=True, clear=True)
        if package in _TORCH:
            (packages,) = folder.glob("lib/python*/site-packages")
            (packages / "shared.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
        command = [str(python), "-m", "pip", "install", "-q", package, *PACKAGES[package]]
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(f"pip install {package}: {ended.stderr.strip().splitlines()[-1]}")
        made.touch()
    return python


def measured(package: str, options: AuditOptions) -> dict[str, Any]:
    """Versions and rows of a package, or why there are none."""
    begun = time.time()
    try:
        python = Path(sys.executable) if package in HERE else environment(package, options.cache)
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        return {"failed": str(error)}
    single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    flags = "--xla_force_host_platform_device_count=1 --xla_cpu_multi_thread_eigen=false"
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "tools")])
    variables = {**os.environ, **single, "PYTHONPATH": path, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [str(python), "-W", "ignore", "-m", "experiments.audit.child", package, str(options.seconds)]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True)
    if ended.returncode:
        return {"failed": (ended.stderr.strip().splitlines() or [f"exit {ended.returncode}"])[-1]}
    return {**json.loads(ended.stdout.strip().splitlines()[-1]), "wall": round(time.time() - begun)}


def audit(options: AuditOptions, command: str) -> None:
    """Measure the packages, a few at once, and write rows and report after each."""
    target = options.out / "audit.json"
    results = json.loads(target.read_text())["packages"] if target.exists() else {}
    options.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = [(package, pool.submit(measured, package, options)) for package in options.packages]
        for package, future in waiting:
            results[package] = future.result()
            ordered = {name: results[name] for name in (*HERE, *PACKAGES) if name in results}
            write_atomically(target, json.dumps({"command": command, "packages": ordered}, indent=1).encode())
            write_atomically(options.out / "audit.md", report(ordered, command).encode())
            print(f"{package}: {results[package].get('failed') or 'measured'}", flush=True)
