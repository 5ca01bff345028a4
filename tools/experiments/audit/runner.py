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
from experiments.audit.subjects import SUBJECTS
from experiments.harness.options import at_least, positive
from learned_samplers.base.files import write_atomically

#: What packages need beside what they declare: one imports lightning, one a module that later versions of JAX lack.
_BESIDE = {"torch-uncertainty": ["lightning"], "sgmcmcjax": ["jax<0.4.30", "jaxlib<0.4.30"]}
#: They do not see the torch of this Python.
_WITHOUT_TORCH = ("blackjax", "sgmcmcjax", "numpyro")
_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class AuditOptions:
    """Options of the audit."""

    # Folder of an environment for each package, of some gigabytes.
    cache: Path = Path.home() / ".cache" / "learned_samplers" / "audit"
    # Folder of audit.md and audit.json.
    out: Path = Path("reports")
    # CPU-seconds of a law, at most.
    seconds: float = 6.0
    # Packages that are measured at once.
    jobs: int = 2

    def __post_init__(self) -> None:
        positive(self, "seconds")
        at_least(1, self, "jobs")


def environment(package: str, cache: Path) -> Path:
    """The Python of a package's environment, which is made where it is not there."""
    folder = cache / package
    python, made = folder / "bin" / "python", folder / "made"
    if not made.exists():
        venv.create(folder, with_pip=True, clear=True)
        if package not in _WITHOUT_TORCH:
            (packages,) = folder.glob("lib/python*/site-packages")
            (packages / "shared.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
        command = [str(python), "-m", "pip", "install", "-q", package, *_BESIDE.get(package, [])]
        subprocess.run(command, capture_output=True, text=True, check=True)
        made.touch()
    return python


def measured(package: str, options: AuditOptions) -> dict[str, Any]:
    """Versions and rows of a package, or why there are none."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    flags = "--xla_force_host_platform_device_count=1 --xla_cpu_multi_thread_eigen=false"
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "tools")])
    variables = {**os.environ, **threads, "PYTHONPATH": path, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    try:
        python = sys.executable if package in ("ours", "source") else environment(package, options.cache)
        command = [str(python), "-W", "ignore", "-m", "experiments.audit.child", package, str(options.seconds)]
        ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        return {"failed": (error.stderr.strip().splitlines() or [f"exit {error.returncode}"])[-1]}
    print(f"{package}: measured", flush=True)
    result: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return result


def audit(options: AuditOptions, command: str) -> None:
    """Measure the packages, a few at once, and write rows and report."""
    names, begun = ["ours", *SUBJECTS], time.time()
    with ThreadPoolExecutor(options.jobs) as pool:
        packages = dict(zip(names, pool.map(lambda name: measured(name, options), names), strict=True))
    content = {"command": command, "minutes": round((time.time() - begun) / 60, 1), "packages": packages}
    options.out.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out / "audit.json", json.dumps(content, indent=1).encode())
    write_atomically(options.out / "audit.md", report(content).encode())
