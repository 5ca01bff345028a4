"""The shipped weights are found beside the package, whatever else in the working folder has our packages' names."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPT = """
import torch
from learned_samplers import L2E, KineticL2E, MetaSGMCMC, SGHMC
from learned_samplers.learned import weights

p = torch.zeros(3, requires_grad=True)
for cls in (L2E, KineticL2E, MetaSGMCMC):
    assert cls([p], num_data=10).network is not None
assert "l2e" in weights.shipped_names()
p.grad = torch.ones(3)
L2E([p], num_data=10).step()
import pretrained
assert pretrained.mine, "this one is the user's"
print("found")
"""


def test_a_users_own_modules_of_our_names_break_nothing(tmp_path):
    (tmp_path / "pretrained.py").write_text("mine = True\n")
    (tmp_path / "meta_tasks.py").write_text("raise RuntimeError('the user has a module of this name')\n")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").write_text("raise RuntimeError('and a package of this one')\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "found\n", done.stderr
