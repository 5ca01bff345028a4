"""The rooms are described in their order, and importing them loads nothing that only some uses need."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "meta_tasks"
#: From the ground up; `meta_tasks.__init__` says the same.
ROOMS = (
    *("random_streams", "datasets", "networks", "rules", "tasks"),
    *("objectives", "inner_loop", "estimators", "training"),
)
HEAVY = {
    *("torchvision", "medmnist", "sklearn", "PIL", "tensorboard", "matplotlib"),
    *("tqdm", "tyro", "arviz", "torchmetrics", "higher", "triton"),
}


def test_every_room_is_described_in_order():
    places = [(PACKAGE / "__init__.py").read_text().index(f"- `{room}`:") for room in ROOMS]
    assert places == sorted(places)
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"__init__"} >= set(ROOMS)


def test_importing_the_rooms_loads_nothing_that_only_some_uses_need():
    # What `learned_samplers` itself loads is for its own test to say.
    script = "; ".join(
        [
            f"import sys, learned_samplers; heavy = {HEAVY!r} - sys.modules.keys()",
            *(f"import meta_tasks.{room}" for room in ROOMS),
            "print(*heavy.intersection(sys.modules))",
        ]
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
