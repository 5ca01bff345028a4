"""Every Python example of README and docs runs as it stands."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def examples():
    for page in PAGES:
        for number, match in enumerate(BLOCK.finditer(page.read_text())):
            yield pytest.param(match[1], id=f"{page.name}-{number}")


#: Packages that examples need and the extras do not bring; their warnings are not ours to mend.
OPTIONAL = ("lightning", "transformers", "accelerate")


@pytest.mark.parametrize("code", list(examples()))
def test_example(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    needed = [name for name in OPTIONAL if re.search(rf"^(import|from) {name}\b", code, re.MULTILINE)]
    for name in needed:
        pytest.importorskip(name)
    torch.compiler.reset()
    with warnings.catch_warnings():
        if needed:
            warnings.simplefilter("ignore")
        exec(compile(code, "__main__", "exec"), {"__name__": "__main__"})


def test_linked_files_exist():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_paths_of_the_layout_exist():
    for name in ("learned_samplers", "meta_tasks", "tests", "tools", "docs", "pyproject.toml", "Makefile"):
        assert (ROOT / name).exists()
