"""The published pickle of L2E's network, made here, and the script that reads it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
SIZES = [(9, 32), (32, 32), (32, 2)]


def published(seed=0, dtype=np.float32, sizes=SIZES):
    generator = np.random.default_rng(seed)
    return {
        f"mlp/~/linear_{i}": {
            "w": generator.normal(size=s).astype(dtype),
            "b": generator.normal(size=s[1]).astype(dtype),
        }
        for i, s in enumerate(sizes)
    }


def write(path, content, protocol=4):
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def run(*arguments):
    command = [sys.executable, str(ROOT / "tools" / "import_l2e.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
