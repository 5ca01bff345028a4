"""Runs the tutorials: the Python blocks of a page in one namespace, from top to bottom, as a reader would.

    python -m website.tutorials              # all of them
    python -m website.tutorials particles chains

The output of a block goes into the ``Output`` block behind it, and its figures into docs/figures/tutorials/. The tests
run the same pages, and compare all that is printed but for the digits.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/tutorials"
FIGURES = ROOT / "docs/figures/tutorials"
_BLOCK = re.compile(r'```python\n(?P<code>.*?)```\n(?:\n```text title="Output"\n(?P<output>.*?)```\n)?', re.DOTALL)

_RELATIVE = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def pages() -> list[Path]:
    """Tutorials that have code."""
    return [page for page in sorted(FOLDER.glob("*.md")) if _BLOCK.search(page.read_text())]


def run(page: Path, folder: Path) -> list[tuple[str, str]]:
    """Output of each block of the page, and the output that the page shows; files go into ``folder``."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    outputs = []
    with contextlib.chdir(folder):
        for number, block in enumerate(_BLOCK.finditer(page.read_text())):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block["code"], f"{page.name}, block {number}", "exec"), namespace)
            outputs.append((printed.getvalue(), block["output"] or ""))
    return outputs


def without_digits(text: str) -> str:
    """Text with each number replaced by one sign and blanks by one: it must be the same on every machine."""
    return " ".join(re.sub(r"[-+]?\d*\.?\d+(e[-+]?\d+)?|\binf\b", "#", text).split())


def refresh(page: Path) -> None:
    """Run the page; write its outputs into it and its figures into the folder of figures."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = iter([printed for printed, _ in run(page, Path(folder))])
        FIGURES.mkdir(parents=True, exist_ok=True)
        for figure in Path(folder).glob("*.png"):
            shutil.copy(figure, FIGURES)

    def written(block: re.Match[str]) -> str:
        printed = next(outputs)
        shown = f'\n```text title="Output"\n{printed}```\n' if printed else ""
        return f"```python\n{block['code']}```\n{shown}"

    page.write_text(_BLOCK.sub(written, page.read_text()))


def notebook(page: Path) -> dict[str, Any]:
    """Return the page as a notebook: its blocks of code are cells, pictures that they draw lie beside it.

    Links to other pages lead to the site's address in pyproject.toml.
    """
    site = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Documentation"]

    def absolute(link: re.Match[str]) -> str:
        target = os.path.relpath(FOLDER / link[1], ROOT).removeprefix("docs/")
        drawn = target.startswith("figures/tutorials/") and f'"{Path(target).name}"' in page.read_text()
        return f"]({Path(target).name}" if drawn else f"]({site}{re.sub(r'[.]md$', '.html', target)}"

    cells: list[dict[str, Any]] = []

    def add(kind: str, text: str) -> None:
        if text.strip():
            empty: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
            source = text.strip().splitlines(keepends=True)
            cells.append({"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": source, **empty})

    text, end = page.read_text(), 0
    add("code", '%pip install -q "learned-samplers[all]"')
    for block in _BLOCK.finditer(text):
        add("markdown", _RELATIVE.sub(absolute, text[end : block.start()]))
        add("code", block["code"])
        end = block.end()
    add("markdown", _RELATIVE.sub(absolute, text[end:]))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def write_notebooks(folder: Path) -> None:
    """Write every tutorial as a notebook into the folder."""
    for page in pages():
        (folder / f"{page.stem}.ipynb").write_text(json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    for page in pages():
        if not sys.argv[1:] or page.stem in sys.argv[1:]:
            refresh(page)
            print(page.relative_to(ROOT))
