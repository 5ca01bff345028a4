"""A bare install swaps an optimizer and keeps samples; what is missing is named with the extra that has it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_import_loads_torch_numpy_and_little_else():
    # torch itself may load some (its compiler looks for tqdm, say): only what it does not is ours.
    program = "import sys, torch, torch.func; before = set(sys.modules); import learned_samplers, pretrained; "
    loaded = set(run(program + "print(*sorted(set(sys.modules) - before))").split())
    assert "learned_samplers.base.sampler" in loaded
    assert not {name for name in loaded if name.partition(".")[0] in OPTIONAL} | (loaded & SLOW)


def test_the_headline_runs_on_random_data_in_a_bare_install():
    assert HEADLINE is not None
    code = re.sub("from sklearn.datasets import .*\n", "", HEADLINE[1]).replace("range(106)", "range(32)")
    digits = "x, y = torch.rand(1797, 64), torch.randint(10, (1797,))\n"
    code, replaced = re.subn(r"x, y = .*load_digits.*\nx = .*\n", digits, code)
    assert replaced == 1
    assert re.search(r"accuracy 0\.\d+, NLL \d\.\d+", run(BARE + code))


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


def test_a_missing_package_is_named_with_its_extra():
    loop = "for code in CODES:\n    try:\n        exec(code)\n    except ImportError as error:\n        print(error)"
    told = run(f"{BARE}\nimport torch\nCODES = {[code for code, _, _ in LACKING]!r}\n{loop}").splitlines()
    for line, (_, package, extra) in zip(told, LACKING, strict=True):
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


@pytest.mark.parametrize(
    "imports",
    ["import higher; import learned_samplers", "import learned_samplers.differentiable; import higher"],
)
def test_higher_knows_the_samplers(imports):
    program = f"""
import warnings; warnings.simplefilter("ignore")
{imports}
import torch
model = torch.nn.Linear(2, 1)
with higher.innerloop_ctx(model, learned_samplers.SGHMC(model.parameters(), 0.1, 10)) as (net, twin):
    print(type(twin).__name__)
"""
    assert run(program).strip() == "DifferentiableSampler"
