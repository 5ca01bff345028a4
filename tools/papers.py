"""Write docs/papers.md: every table, figure and appendix of the four papers, and what there is of it here.

    python tools/papers.py            # write the page
    python tools/papers.py --check    # say whether it is what would be written

Numbers are taken from docs/tables and from the pages; what is not there any more is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from experiments.harness.output import explained
from experiments.papers import l2e, others
from experiments.papers.rows import Row, table

from learned_samplers.base.files import write_atomically

DOCS = Path(__file__).parents[1] / "docs"
#: Paper → its rows.
PAPERS: dict[str, tuple[Row, ...]] = {
    "Learning to Explore (L2E; Kim et al., ICML 2024)": l2e.ROWS,
    "Meta-SGMCMC (Gong et al., ICLR 2019)": others.META_SGMCMC,
    "MT-SGD (Phan et al., NeurIPS 2022)": others.MT_SGD,
    "f-SVGD (Wang et al., ICLR 2019)": others.F_SVGD,
}
_HEAD = """# The papers, item by item

What each table, figure and appendix of the four papers claims, the command that does it here, what came out and at
which scale, the command at the paper's own scale, and what stands between. `python tools/papers.py` writes this page
from `docs/tables` and from the pages that it links to. "Not run" means that there is no number. Before a run at
full size, `--dry-run` of `compare.py`, `meta_train.py` and `multi_task.py` says what it costs on the machine at hand.
Finished runs are kept: the same command goes on where it was.
"""


@dataclass(frozen=True)
class Options:
    """Write docs/papers.md."""

    # Compare with what is there, and write nothing.
    check: bool = False


def page(docs: Path = DOCS) -> str:
    """The text of docs/papers.md; ValueError if a number is not where a row says."""
    parts = [f"## {paper}\n\n{table(rows, docs)}\n" for paper, rows in PAPERS.items()]
    return "\n".join([_HEAD, *parts])


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = tyro.cli(Options, args=arguments, description=__doc__)
        text, path = page(), DOCS / "papers.md"
        if not options.check:
            write_atomically(path, text.encode())
        elif not path.is_file() or path.read_text() != text:
            raise ValueError(f"{path} is not what its sources say: run python tools/papers.py")
    print(path)


if __name__ == "__main__":
    main()
