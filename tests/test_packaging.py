"""The wheel holds every module and every data file of the packages, the compiled update, and nothing else."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from learned_samplers.learned.native import build

ROOT = Path(__file__).parents[1]
PACKAGES = ("learned_samplers", "meta_tasks", "pretrained")
PLUGIN = "learned_samplers_pytest.py"
DATA = {".py", ".typed", ".safetensors", ".json", ".png", ".cpp", ".h"}


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "pure"])
def test_the_wheel_is_complete(tmp_path, native):
    if native and build.compiler() is None:
        pytest.skip("no C++ compiler was found")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", PLUGIN, *PACKAGES):
        origin = ROOT / name
        if origin.is_dir():
            shutil.copytree(origin, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif origin.exists():
            shutil.copy(origin, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist")]
    environment = {**os.environ, "LEARNED_SAMPLERS_NATIVE": "1" if native else "0"}
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(source))
        for package in PACKAGES
        for path in (source / package).rglob("*")
        if path.is_file() and path.suffix in DATA
    }
    expected.add(PLUGIN)
    if native:
        expected |= {f"learned_samplers/learned/native/{build.library_name(level)}" for level in build.levels()}
    assert inside == expected
    assert "learned_samplers/py.typed" in inside
    # For any Python 3, of this platform only where it holds compiled code.
    assert wheel.name.endswith("-py3-none-any.whl") != native
    assert "-py3-none-" in wheel.name


def test_the_oldest_torch_is_the_one_that_make_tests():
    project, makefile = (ROOT / "pyproject.toml").read_text(), (ROOT / "Makefile").read_text()
    for package in ("torch", "torchvision"):
        allowed = re.search(rf'"{package}>=([\d.]+)"', project)
        tested = re.search(rf"'{package}==([\d.]+)\.\*'", makefile)
        assert allowed[1] == tested[1]


def test_the_files_that_the_fast_half_leaves_out_exist():
    from tests.conftest import SLOW

    assert not [name for name in SLOW if not (ROOT / "tests" / name).exists()]
