"""Runs the tutorials: the Python blocks of a page in one namespace, from top to bottom, as a reader would.

    python -m website.tutorials              # all of them
    python -m website.tutorials lora chains

The output of a block goes into the ``Output`` block behind it, and its figures into docs/figures/tutorials/. The tests
run the same pages, and compare all that is printed but for the digits.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/tutorials"
FIGURES = ROOT / "docs/figures/tutorials"
_BLOCK = re.compile(r'```python\n(?P<code>.*?)```\n(?:\n```text title="Output"\n(?P<output>.*?)```\n)?', re.DOTALL)


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


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    for page in pages():
        if not sys.argv[1:] or page.stem in sys.argv[1:]:
            refresh(page)
            print(page.relative_to(ROOT))
