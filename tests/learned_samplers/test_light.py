"""A bare install swaps an optimizer and keeps samples; what is missing is named with the extra that has it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.meta_tasks.test_rooms import ROOMS

ROOT = Path(__file__).parents[2]
#: Import names of what comes with the extras.
OPTIONAL = {
    "torchvision",
    "PIL",
    "medmnist",
    "sklearn",
    "tensorboard",
    "tyro",
    "matplotlib",
    "arviz",
    "torchmetrics",
    "higher",
    "tqdm",
    "pandas",
    "huggingface_hub",
}
#: What the import of a sampler need not pay for either.
SLOW = {"scipy.linalg", "scipy.optimize", "torch.utils.tensorboard"}
#: Put before a program: an environment in which none of the optional packages is installed.
BARE = f"""
import sys

class Hiding:
    def __init__(self, finders):
        self.finders = finders

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            return None
        specs = (finder.find_spec(name, path, target) for finder in self.finders if hasattr(finder, "find_spec"))
        return next((spec for spec in specs if spec is not None), None)

sys.meta_path[:] = [Hiding(list(sys.meta_path))]
"""
HEADLINE = re.search(r"```python\n(.*?)```", (ROOT / "reports/results.md").read_text(), re.DOTALL)
#: Code, the package that it lacks, and the extra with that.
LACKING = [
    ("from learned_samplers.metrics import ece; ece(torch.eye(2), torch.arange(2))", "torchmetrics", "metrics"),
    ("from learned_samplers.plots import cosine_similarity_map as f; f([[1.0]])", "matplotlib", "plots"),
    ("from learned_samplers.diagnostics import ess; ess(torch.randn(2, 50, 3))", "arviz", "arviz"),
    ("import learned_samplers.differentiable", "higher", "higher"),
    ("from learned_samplers import L2E; L2E.from_pretrained('owner/name')", "huggingface_hub", "hub"),
    ("from learned_samplers import L2E; L2E.from_pretrained('l2e').push_to_hub('o/n')", "huggingface_hub", "hub"),
    ("from meta_tasks.datasets import load; load('digits')", "sklearn", "meta"),
]


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


#: What must hold in an interpreter that has imported nothing else, from what loads the least to what loads the most.
#: torch itself may load some (its compiler looks for tqdm, say): only what it does not is ours.
IMPORTS = f"""
import importlib, sys, torch, torch.func
before = set(sys.modules)
def heavy(*more):
    return {{name for name in set(sys.modules) - before if name.partition(".")[0] in {OPTIONAL!r}.union(more)}}

import learned_samplers
assert "learned_samplers.base.sampler" in sys.modules and not {{"pretrained", "meta_tasks"}} & set(sys.modules)
from learned_samplers.pretrained import names
assert not heavy() | ({SLOW!r} & set(sys.modules) - before)

from learned_samplers import SampleCollection
model = torch.nn.Linear(4, 3)
weights = [{{name: torch.randn(w.shape) for name, w in model.state_dict().items()}} for _ in range(2)]
SampleCollection.from_samples(model, weights).predict(torch.ones(2, 4))
assert "torch._dynamo" not in sys.modules, "the first prediction imports the compiler"

from learned_samplers import diagnostics, metrics, plots, posterior
import learned_samplers.meta.tasks.task
from learned_samplers.meta import tasks
from learned_samplers import meta, pretrained
import meta_tasks.tasks.task, pretrained as direct
assert meta is meta_tasks and pretrained is direct and names is direct.names
assert tasks is meta_tasks.tasks and learned_samplers.meta.tasks.task is meta_tasks.tasks.task
assert meta_tasks.tasks.task.__spec__.name == "meta_tasks.tasks.task"
try:
    import learned_samplers.meta.nothing
except ModuleNotFoundError as error:
    assert "meta_tasks.nothing" in str(error)
else:
    raise AssertionError

for room in {ROOMS!r}:
    importlib.import_module("meta_tasks." + room)
assert not heavy("xarray", "triton"), heavy("xarray", "triton")

plots.cosine_similarity_map([[1.0]])
assert "matplotlib.pyplot" not in sys.modules
"""


def test_imports_load_what_is_needed_and_aliases_are_the_packages():
    run(IMPORTS)


def test_a_bare_install_runs_the_headline_and_names_the_extra_of_what_is_missing():
    """The headline is on random data."""
    assert HEADLINE is not None
    code = re.sub("from sklearn.datasets import .*\n", "", HEADLINE[1]).replace("range(106)", "range(32)")
    digits = "x, y = torch.rand(1797, 64), torch.randint(10, (1797,))\n"
    code, replaced = re.subn(r"x, y = .*load_digits.*\nx = .*\n", digits, code)
    assert replaced == 1
    loop = "for code in CODES:\n    try:\n        exec(code)\n    except ImportError as error:\n        print(error)"
    printed = run(f"{BARE}\n{code}\nCODES = {[code for code, _, _ in LACKING]!r}\n{loop}")
    assert re.search(r"accuracy 0\.\d+, NLL \d\.\d+", printed)
    for line, (_, package, extra) in zip(printed.splitlines()[-len(LACKING) :], LACKING, strict=True):
        assert line.startswith(package)
        assert f"pip install '.[{extra}]'" in line


def test_every_extra_that_is_named_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {
        "metrics",
        "plots",
        "arviz",
        "higher",
        "meta",
        "demo",
        "tools",
        "estimators",
        "bde",
        "adapters",
        "botorch",
        "hub",
        "rivals",
        "laplace",
        "all",
        "docs",
        "dev",
    } == set(extras)
    called = re.compile(r'require\(\s*"[\w.]+",\s*"(\w+)"\s*\)')
    files = [path for package in ("learned_samplers", "meta_tasks") for path in (ROOT / package).rglob("*.py")]
    named = {name for path in files for name in called.findall(path.read_text())}
    assert {"metrics", "plots", "arviz", "higher", "meta", "estimators"} <= named <= set(extras)


def test_higher_knows_the_samplers_if_it_is_imported_first():
    program = """
import warnings; warnings.simplefilter("ignore")
import higher, learned_samplers, torch
model = torch.nn.Linear(2, 1)
with higher.innerloop_ctx(model, learned_samplers.SGHMC(model.parameters(), 0.1, 10)) as (net, twin):
    print(type(twin).__name__)
"""
    assert run(program).strip() == "DifferentiableSampler"
