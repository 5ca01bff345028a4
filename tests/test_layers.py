"""The rooms of the project: imports run downward only, in no circle, and never take another module's private name.

Every import counts, also one inside a function or under ``TYPE_CHECKING``. The order of the rooms is the table below.
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
#: Where the modules lie: package → the folder that holds it.
PACKAGES = {"learned_samplers": ROOT, "pretrained": ROOT, "meta_tasks": ROOT, "experiments": ROOT / "tools"}

#: Rooms from the ground up; those on one floor may import each other, in no circle.
FLOORS: list[tuple[str, ...]] = [
    ("learned_samplers.base",),  # its guards lie within it: a step is one room
    ("learned_samplers.priors",),
    ("learned_samplers.classical", "learned_samplers.posterior"),
    ("learned_samplers.checks",),
    ("learned_samplers.learned", "learned_samplers.particles", "learned_samplers.approximations"),
    ("learned_samplers.table",),
    (
        "learned_samplers.metrics",
        "learned_samplers.diagnostics",
        "learned_samplers.plots",
        "learned_samplers.conventions",
        "learned_samplers.differentiable",
        "learned_samplers.integrations",
        "learned_samplers.adapters",
    ),
    ("learned_samplers.estimators",),
    ("learned_samplers", "learned_samplers.__main__"),
    ("learned_samplers.benchmark",),
    ("pretrained",),
    ("learned_samplers.pretrained",),
    ("meta_tasks.random_streams", "meta_tasks.progress", "meta_tasks.fingerprints"),
    ("meta_tasks.datasets",),
    ("meta_tasks.networks",),
    ("meta_tasks.rules",),
    ("meta_tasks.tasks",),
    ("meta_tasks.objectives",),
    ("meta_tasks.inner_loop",),
    ("meta_tasks.estimators",),
    ("meta_tasks.training",),
    ("meta_tasks",),
    ("learned_samplers.meta",),
    ("experiments.harness",),
    ("experiments",),
    ("tools",),
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


class Import(NamedTuple):
    importer: str
    imported: str
    #: The name taken from the module, or "" where the module itself is imported.
    name: str
    where: str

    def __str__(self) -> str:
        return f"{self.where}: {self.importer} imports {self.name and f'{self.name} of '}{self.imported}"


def modules() -> dict[str, Path]:
    """Dotted name → file of every module; the scripts of ``tools/`` are ``tools.<name>``."""
    paths = {}
    for package, folder in PACKAGES.items():
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths | {f"tools.{path.stem}": path for path in sorted((ROOT / "tools").glob("*.py"))}


def imports_of(importer: str, source: str, known: set[str], where: str) -> Iterator[Import]:
    """Imports of the project's own modules in a source text."""
    for node in ast.walk(ast.parse(source)):
        line = f"{where}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            for alias in node.names:
                if target := _module(alias.name, known):
                    yield Import(importer, target, "", line)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{line}: imports are absolute in this project"
            for alias in node.names:
                if submodule := _module(f"{node.module}.{alias.name}", known):
                    yield Import(importer, submodule, "", line)
                elif target := _module(str(node.module), known):
                    yield Import(importer, target, alias.name, line)


def _module(name: str, known: set[str]) -> str | None:
    return next((candidate for candidate in (name, f"tools.{name}") if candidate in known), None)


def room_of(module: str) -> str:
    """The room a module is in: the longest prefix of its name that the table has."""
    parts = module.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next(prefix for prefix in prefixes if prefix in FLOOR_OF)


def upward(imports: list[Import]) -> list[str]:
    """Imports of a room that lies above the importer's."""
    return [
        f"{item} (room {room_of(item.imported)} is above room {room_of(item.importer)})"
        for item in imports
        if FLOOR_OF[room_of(item.imported)] > FLOOR_OF[room_of(item.importer)]
    ]


def private(imports: list[Import]) -> list[str]:
    """Imports of a name, or of a module, that begins with an underscore."""
    return [str(i) for i in imports if any(_private(part) for part in (*i.imported.split("."), i.name))]


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def circles(imports: list[Import]) -> list[str]:
    """A way round along imports, or none."""
    graph: dict[str, set[str]] = {}
    for item in imports:
        graph.setdefault(item.imported, set()).add(item.importer)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" -> ".join(error.args[1])]
    return []


def between_experiments(imports: list[Import]) -> list[str]:
    """Imports of one folder of experiments by another; what they share is the harness."""
    return [
        str(item)
        for item in imports
        if (one := _experiment(item.importer)) and _experiment(item.imported) not in (one, "")
    ]


def _experiment(module: str) -> str:
    room, _, inner = module.partition(".")
    return "" if room != "experiments" or inner.partition(".")[0] in ("", "harness") else inner.partition(".")[0]


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    files = modules()
    modules_here = set(files)
    every = [
        item
        for module, path in files.items()
        for item in imports_of(module, path.read_text(), modules_here, str(path.relative_to(ROOT)))
    ]
    assert len(every) > 300, "the imports were not found"
    return every


def _none(problems: list[str], headline: str) -> None:
    assert not problems, f"{headline} ({len(problems)}):\n  " + "\n  ".join(problems)


def test_imports_run_downward(imports):
    _none(upward(imports), "imports of a room above")


def test_no_private_name_is_imported(imports):
    _none(private(imports), "imports of private names")


def test_there_is_no_circle(imports):
    _none(circles(imports), "circles of imports")
    between = [i._replace(importer=room_of(i.importer), imported=room_of(i.imported)) for i in imports]
    _none(circles([i for i in between if i.importer != i.imported]), "circles of rooms")


def test_folders_of_experiments_share_the_harness_alone(imports):
    _none(between_experiments(imports), "imports of another folder of experiments")


def test_every_module_is_in_a_room_of_the_table():
    packages = {"learned_samplers", "meta_tasks", "experiments", "tools"}
    names = modules()
    lost = [name for name in names if room_of(name) in packages - {"experiments", "tools"} and name not in packages]
    _none(lost, "modules outside every room of the table")
    for room in FLOOR_OF:
        assert room == "tools" or room in names, f"the table's room {room} is not there"


def test_planted_faults_are_found():
    names = {"learned_samplers.base.step", "learned_samplers.classical.sgld", "meta_tasks.tasks.task", "tools.sample"}
    names |= {"experiments.harness.runs", "experiments.toys.bias", "experiments.images.methods"}

    def found(importer: str, source: str) -> list[Import]:
        return list(imports_of(importer, source, names, "file.py"))

    up = found("learned_samplers.base.step", "def f():\n    from learned_samplers.classical.sgld import SGLD")
    assert "file.py:2: learned_samplers.base.step imports SGLD of learned_samplers.classical.sgld" in upward(up)[0]
    assert upward(found("learned_samplers.classical.sgld", "import meta_tasks.tasks.task"))
    assert upward(found("meta_tasks.tasks.task", "import sample"))
    down = found("learned_samplers.classical.sgld", "if TYPE_CHECKING:\n    from learned_samplers.base import step")
    assert not upward(down)
    assert len(circles(down + up)[0].split(" -> ")) == 3
    assert not circles(down)
    assert private(found("tools.sample", "from meta_tasks.tasks.task import _secret"))
    assert not private(found("tools.sample", "from meta_tasks.tasks.task import open_name as _alias"))
    assert between_experiments(found("experiments.toys.bias", "from experiments.images.methods import METHODS"))
    assert not between_experiments(found("experiments.toys.bias", "from experiments.harness.runs import run"))
