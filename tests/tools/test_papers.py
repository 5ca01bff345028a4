"""docs/papers.md: every table, figure and appendix has a row, every number its source, every command its parser."""

from __future__ import annotations

import re

import papers
import pytest
from experiments.papers.rows import Cell, Quote, Row, table

from tests.tools.documented_commands import parsed

# What the papers have, written down from them.
ITEMS = {
    "Learning to Explore (L2E; Kim et al., ICML 2024)": [
        *(f"Table {n}" for n in range(1, 16)),
        *(f"Figure {n}" for n in range(1, 12)),
        *(f"Appendix {letter}" for letter in "ABCDEFGHIJKLM"),
        *("Algorithm 1", "Algorithm 2"),
    ],
    "Meta-SGMCMC (Gong et al., ICLR 2019)": [
        *("Toy example", "MNIST: speed improvements", "MNIST: long-time generalisation"),
        *("Understanding the learned sampler", "CIFAR-10 (of the paper, by way of L2E's Table 8)"),
    ],
    "MT-SGD (Phan et al., NeurIPS 2022)": [
        *(f"Figure {n}" for n in range(1, 6)),
        *("Table 1", "Table 2", "Algorithm 1", "Algorithm 2", "Supplement, Appendix A", "Supplement, Appendix B"),
    ],
    "f-SVGD (Wang et al., ICLR 2019)": [
        *("Figure 1", "Figure 2", "Table 1", "Table 2", "The sine (of the paper)", "Theory"),
    ],
}
PLURALS = {"Tables": "Table", "Figures": "Figure", "Appendices": "Appendix", "Algorithms": "Algorithm"}


def named(item: str) -> list[str]:
    """The single items of a row: "Tables 12 to 14" names three."""
    word, _, rest = item.partition(" ")
    if word not in PLURALS:
        return [item]
    if found := re.fullmatch(r"(\d+) to (\d+)", rest):
        numbers = [str(n) for n in range(int(found[1]), int(found[2]) + 1)]
    else:
        numbers = re.split(r", | and ", rest)
    return [f"{PLURALS[word]} {number}" for number in numbers]


@pytest.mark.parametrize("paper", ITEMS)
def test_every_item_of_a_paper_has_one_row(paper):
    rows = [name for row in papers.PAPERS[paper] for name in named(row.item)]
    assert sorted(rows) == sorted(ITEMS[paper])


def test_there_is_no_other_paper():
    assert list(papers.PAPERS) == list(ITEMS)


def test_the_page_is_what_its_sources_say():
    assert (papers.DOCS / "papers.md").read_text() == papers.page(), "run python tools/papers.py"
    papers.main(["--check"])


def test_every_row_says_something():
    for row in (row for rows in papers.PAPERS.values() for row in rows):
        assert row.claim
        assert row.command or row.full or row.between, f"{row.item} says neither how nor why not"
        assert not row.numbers or row.scale, f"{row.item} has numbers of no scale"
        assert "|" not in "".join((row.item, row.claim, row.command, row.scale, row.full, row.between))


# ---------------------------------------------------------------- the commands


def commands() -> list[str]:
    """All that the page tells a reader to run."""
    found = re.findall(r"`(python tools/[^`]+)`", (papers.DOCS / "papers.md").read_text())
    assert len(found) > 40, "the commands were not found"
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("command", commands())
def test_every_command_is_one_that_its_tool_takes(command):
    assert parsed(command) is not None


@pytest.mark.parametrize(
    "command",
    [
        "python tools/compare.py --preset cifar11",
        "python tools/compare.py --preset cifar10 --tris 3",
        "python tools/compare.py --preset cifar10 --sampler SGHMM",
        "python tools/meta_train.py --folder runs/x --horizon 10 5",
        "python tools/function_space.py cosine",
        "python tools/multi_task.py --preset huge",
    ],
)
def test_a_command_with_a_mistake_is_found(command, capsys):
    with pytest.raises((SystemExit, ValueError)):
        parsed(command)


# ---------------------------------------------------------------- the numbers

TABLE = """# Page

## A

### 10 gradients

| method | NLL |
|---|---:|
| SGHMC | 1.5 |

| method | cosine |
|---|---:|
| SGHMC | .9 |

## B

### 10 gradients

| method | NLL |
|---|---:|
| SGHMC | 2.5 |
"""


@pytest.fixture
def docs(tmp_path):
    folder = tmp_path / "docs"
    (folder / "tables").mkdir(parents=True)
    (folder / "tables" / "t.md").write_text(TABLE)
    (folder / "p.md").write_text("It is 1.28 ±\n  0.04 and so on")
    (tmp_path / "README.md").write_text("Of .5")
    return folder


def test_cells_and_quotes_are_read_where_they_stand(docs):
    assert Cell("t", ("A", "10 gradients"), "SGHMC", "NLL").text(docs) == "1.5"
    assert Cell("t", ("A", "10 gradients"), "SGHMC", "cosine").text(docs) == ".9"
    assert Cell("t", ("B", "10 gradients"), "SGHMC", "NLL").text(docs) == "2.5"
    assert Quote("p.md", "1.28 ± 0.04").text(docs) == "1.28 ± 0.04"
    assert Quote("README.md", ".5").text(docs) == ".5"
    shown = table((Row("Table 1", "better", "python x", (("NLL", Quote("p.md", "1.28 ± 0.04")),), "small"),), docs)
    assert shown.splitlines()[2] == "| **Table 1** | better | `python x` | NLL 1.28 ± 0.04 ([p](p.md)). small | – | – |"


@pytest.mark.parametrize(
    ("number", "match"),
    [
        (Cell("t", ("C",), "SGHMC", "NLL"), "no heading 'C'"),
        (Cell("t", ("B", "10 gradients"), "SGHMC", "cosine"), "no cell 'SGHMC', 'cosine' under"),
        (Cell("t", ("A", "10 gradients"), "SGLD", "NLL"), "no cell 'SGLD', 'NLL' under"),
        (Quote("p.md", "1.27 ± 0.04"), r"p\.md does not say '1\.27 ± 0\.04'"),
    ],
)
def test_a_number_that_is_not_there_any_more_is_an_error(docs, number, match):
    with pytest.raises(ValueError, match=match):
        number.text(docs)


def test_check_finds_a_page_that_was_changed_by_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(papers, "page", lambda: "as it should be\n")
    monkeypatch.setattr(papers, "DOCS", tmp_path)
    with pytest.raises(SystemExit, match="is not what its sources say"):
        papers.main(["--check"])
    written, write = [], papers.write_atomically
    monkeypatch.setattr(papers, "write_atomically", lambda path, data: written.append(path) or write(path, data))
    papers.main([])
    assert written == [tmp_path / "papers.md"]
    papers.main(["--check"])
    (tmp_path / "papers.md").write_text("changed\n")
    with pytest.raises(SystemExit, match="is not what its sources say"):
        papers.main(["--check"])
