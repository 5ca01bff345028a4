"""The rooms import only what lies below them, in no circle, and nothing that only some uses need."""

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "meta_tasks"
#: From the ground up; `meta_tasks.__init__` says the same.
ROOMS = (
    "random_streams", "datasets", "networks", "rules", "tasks", "objectives", "inner_loop", "estimators", "training",
)  # fmt: skip
HEAVY = (
    "torchvision", "medmnist", "sklearn", "PIL", "tensorboard", "matplotlib", "tqdm", "tyro", "arviz", "torchmetrics",
    "higher", "triton",
)  # fmt: skip


def imports_of(source):
    """Every module that a source imports, wherever in it; of ``from a import b`` a.b if that is a module, else a."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = PACKAGE.parent.joinpath(*f"{node.module}.{alias.name}".split("."))
                is_module = inner.with_suffix(".py").exists() or inner.is_dir()
                yield f"{node.module}.{alias.name}" if is_module else node.module or ""


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        yield name.removesuffix(".__init__"), path.read_text()


def upward(name, source):
    """The imports of a module that lead to a room above its own, or out of the library."""
    room = name.split(".")[1]
    own = ROOMS.index(room) if room in ROOMS else -1  # what is no room lies below them all
    for imported in imports_of(source):
        top, _, rest = imported.partition(".")
        if top in ("tools", "experiments", "tests"):
            yield imported
        other = rest.split(".")[0]
        if top == "meta_tasks" and other in ROOMS and ROOMS.index(other) > own:
            yield imported


def circles(graph):
    """One circle of modules for each that is found from a module, as tuples."""
    found, done = [], set()

    def visit(name, path):
        if name in path:
            found.append((*path[path.index(name) :], name))
        elif name not in done:
            for other in graph[name]:
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())
    return found


def test_imports_run_downward():
    wrong = {name: list(upward(name, source)) for name, source in modules() if name != "meta_tasks"}
    assert {name: each for name, each in wrong.items() if each} == {}
    assert list(upward("meta_tasks.tasks.task", "def f():\n    from meta_tasks.training import Trainer")) != []


def test_the_modules_of_a_room_import_each_other_in_no_circle():
    known = dict(modules())
    graph = {
        # the package of a room imports its modules, which must not import it
        name: {each for each in imports_of(source) if each in known and each != "meta_tasks"}
        for name, source in known.items()
    }
    assert circles(graph) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []


def test_every_room_is_described_in_order():
    places = [(PACKAGE / "__init__.py").read_text().index(f"- `{room}`:") for room in ROOMS]
    assert places == sorted(places)
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found - {"__init__"} >= set(ROOMS)


def test_importing_the_rooms_loads_nothing_that_only_some_uses_need():
    # What `learned_samplers` itself loads is for its own test to say.
    script = "; ".join(
        [
            f"import sys, learned_samplers; heavy = set({HEAVY!r}) - sys.modules.keys()",
            *(f"import meta_tasks.{room}" for room in ROOMS),
            "print(*heavy.intersection(sys.modules))",
        ]
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
