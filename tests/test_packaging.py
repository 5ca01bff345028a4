"""The wheel holds every module and every data file of the packages, the compiled update, and nothing else."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from learned_samplers.learned.native import build

ROOT = Path(__file__).parents[1]
PACKAGES = ("learned_samplers", "meta_tasks", "pretrained")
PLUGIN = "learned_samplers_pytest.py"
DATA = {".py", ".typed", ".safetensors", ".json", ".png", ".npz", ".cpp", ".h"}


def test_the_wheel_is_complete(tmp_path):
    """With the compiled code; a pure one is that of the source distribution."""
    if build.compiler() is None:
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
    program = tmp_path / "c++"
    program.write_text(f'#!/bin/sh\nexec {build.compiler()} "$@" -O0\n')  # nothing runs what is compiled here
    program.chmod(0o755)
    environment = {**os.environ, "LEARNED_SAMPLERS_NATIVE": "1", "CXX": str(program)}
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (metadata,) = (name for name in files.namelist() if name.endswith("/METADATA"))
        links = re.findall(r"\]\(([^)]*)\)", files.read(metadata).decode())
    assert all(link.startswith(("https://", "#")) for link in links)  # they hold on an index page
    assert any("/raw/" in link and link.endswith(".png") for link in links)
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(source))
        for package in PACKAGES
        for path in (source / package).rglob("*")
        if path.is_file() and path.suffix in DATA
    }
    expected.add(PLUGIN)
    expected |= {f"learned_samplers/learned/native/{build.library_name(level)}" for level in build.levels()}
    assert inside == expected
    assert "learned_samplers/py.typed" in inside
    # For any Python 3, of this platform only where it holds compiled code.
    assert not wheel.name.endswith("-py3-none-any.whl")
    assert "-py3-none-" in wheel.name


def test_a_source_distribution_builds_a_wheel_without_anything_else(tmp_path):
    """pip builds it without an index, and the wheel is the one of the checkout: tests stay outside."""
    source = tmp_path / "source"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", PLUGIN):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    (archive,) = tmp_path.glob("*.tar.gz")
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index"]
    environment = {**os.environ, "LEARNED_SAMPLERS_NATIVE": "0"}
    command += ["-w", str(tmp_path), str(archive)]
    subprocess.run(command, check=True, capture_output=True, timeout=600, env=environment)
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    paths = [path for package in PACKAGES for path in (source / package).rglob("*") if path.suffix in DATA]
    assert inside == {PLUGIN, *(str(path.relative_to(source)) for path in paths)}
    with tarfile.open(archive) as files:
        assert not [name for name in files.getnames() if "/tests" in name]


def test_the_oldest_torch_is_the_one_that_make_tests():
    project, makefile = (ROOT / "pyproject.toml").read_text(), (ROOT / "Makefile").read_text()
    for package in ("torch", "torchvision"):
        allowed = re.search(rf'"{package}>=([\d.]+)"', project)
        tested = re.search(rf"'{package}==([\d.]+)\.\*'", makefile)
        assert allowed[1] == tested[1]


def test_the_files_that_the_fast_half_leaves_out_exist():
    from tests.conftest import SLOW

    assert not [name for name in SLOW if not (ROOT / "tests" / name).exists()]


def test_the_recipe_needs_what_the_package_needs():
    """Parse the recipe without conda: names are the package index's but for torch; the address is the project's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / "recipe/meta.yaml").read_text()
    run = re.search(r"^  run:\n((?:    - .*\n)+)", recipe, re.MULTILINE)[1]
    needed = {line.strip("- ").replace(" ", "").replace("pytorch", "torch") for line in run.splitlines()}
    assert needed == {*project["dependencies"], f"python{project['requires-python']}"}
    assert f"home: {project['urls']['Source']}\n" in recipe
    assert all(
        address.startswith(project["urls"]["Source"]) or ".github.io/" in address
        for address in project["urls"].values()
    )


def test_the_papers_citations_are_its_references():
    paper, references = ((ROOT / "paper" / name).read_text() for name in ("paper.md", "references.bib"))
    assert set(re.findall(r"@(\w+\d{4})\b", paper)) == set(re.findall(r"^@\w+\{(\w+),", references, re.MULTILINE))
    assert set(re.findall(r"^(name|title|authors|affiliations|bibliography):", paper, re.MULTILINE)) >= {
        "title",
        "authors",
        "bibliography",
    }
    assert "# Statement of need" in paper
