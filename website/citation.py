"""Carry the version, and the date of its heading in the changelog, to CITATION.cff: ``python -m website.citation``."""

from __future__ import annotations

import re
from pathlib import Path

import learned_samplers

ROOT = Path(__file__).parents[1]


def citation(version: str, citation_file: str, changelog: str) -> str:
    """Text of CITATION.cff for a version.

    Args:
        version: as in ``learned_samplers.__version__``.
        citation_file: the present text.
        changelog: text whose heading "## VERSION, DATE" has the date.

    Raises:
        ValueError: the changelog has no such heading.
    """
    date = re.search(rf"^## {re.escape(version)}, (\d{{4}}-\d\d-\d\d)$", changelog, re.MULTILINE)
    if date is None:
        raise ValueError(f'CHANGELOG.md has no heading "## {version}, DATE"')
    text = re.sub(r"^version: .*$", f"version: {version}", citation_file, flags=re.MULTILINE)
    return re.sub(r"^date-released: .*$", f"date-released: {date[1]}", text, flags=re.MULTILINE)


def main() -> None:
    """Write CITATION.cff."""
    path = ROOT / "CITATION.cff"
    path.write_text(citation(learned_samplers.__version__, path.read_text(), (ROOT / "CHANGELOG.md").read_text()))


if __name__ == "__main__":
    main()
