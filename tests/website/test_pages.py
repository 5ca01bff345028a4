"""The site: generated pages, what the strict build refuses."""

import json
import re
import shutil
import subprocess
import sys
import types
import zlib
from importlib.util import find_spec
from pathlib import Path

import pytest
from experiments.toys.bias import CURVES

import learned_samplers
import pretrained
from learned_samplers.table import SAMPLERS, Entry
from website import pages, tutorials
from website.citation import citation
from website.hooks import leftovers

ROOT = Path(__file__).parents[2]
installed = pytest.mark.skipif(
    find_spec("material") is None or find_spec("mkdocstrings") is None, reason="the extra docs is not installed"
)


def test_every_sampler_has_a_page_with_its_rule_and_its_bias():
    for name in SAMPLERS:
        page = pages.sampler_page(name)
        assert page.startswith(f"# {name}\n")
        assert f".{name}\n" in page
        assert name in ("HMC", "CyclicalSGMCMC", "IVON") or "## The rule as a pure function\n" in page, name
        assert ("dark.png#only-dark)" in page) == (name in CURVES), name
    assert "learned_samplers.classical.sghmc.sghmc_rule" in pages.sampler_page("SGHMC")
    assert "learned_samplers.learned.l2e.l2e_rule" in pages.sampler_page("L2E")
    assert "zoo.md#l2e-paper" in pages.sampler_page("L2E")
    assert "zoo.md#kinetic-l2e); its law on Gaussians: bias" in pages.sampler_page("KineticL2E")


def test_a_registered_sampler_has_a_page_and_a_line(monkeypatch):
    mine = type("Mine", (learned_samplers.SGLD,), {"__doc__": "SGLD of mine.\n\nSource: nobody, 2026."})
    monkeypatch.setitem(SAMPLERS, "Mine", Entry(mine))
    assert pages.sampler_page("Mine").startswith("# Mine\n")
    line = pages.sampler_table().splitlines()[-1]
    assert line == "| [`Mine`](samplers/Mine.md) | SGLD of mine | O(h) | – | yes | yes |"


def test_the_table_says_what_a_sampler_can_do():
    lines = {line.split("`")[1]: line for line in pages.sampler_table().splitlines()[2:]}
    assert list(lines) == list(SAMPLERS)
    assert lines["HMC"].endswith("| exact | yes | yes | – |")
    assert lines["SGNHT"].endswith("| O(h) | – | `separate=True` | – |")


def test_the_pages_are_short():
    """Measurements go to reports/, so that what a user needs stays readable."""
    words = sum(len(page.read_text().split()) for page in (ROOT / "docs").rglob("*.md"))
    assert words <= 30_000


def test_every_report_is_in_the_index():
    folder = ROOT / "reports"
    links = set(re.findall(r"\]\(([\w/]+\.md)\)", (folder / "README.md").read_text()))
    assert links == {str(page.relative_to(folder)) for page in folder.rglob("*.md")} - {"README.md"}


def test_lists_of_samplers_on_pages_are_those_of_the_table():
    """Paragraphs and costs are of samplers of the table, each once, and no page spells a name in its own way.

    (That no sampler is missing: `pages.sampler_table` is made of all. A new one is complete without words by hand.)
    """
    docs = ROOT / "docs"
    paragraphs = re.findall(r"^\*\*`(\w+)`\*\* ", (docs / "which_sampler.md").read_text(), re.MULTILINE)
    assert set(paragraphs) <= set(SAMPLERS)
    assert len(paragraphs) == len(set(paragraphs))
    costs = re.findall(r"^\| `(\w+)", (docs / "speed.md").read_text(), re.MULTILINE)
    assert set(costs) <= set(SAMPLERS)
    names = {name.lower(): name for name in SAMPLERS}
    for page in [*docs.rglob("*.md"), *(ROOT / "reports").rglob("*.md")]:
        for cell in re.findall(r"(?<=\| )[^|]+(?= \|)", page.read_text()):
            word = re.match(r"`?(\w+)(?![\w-])", cell)
            if word and word[1] not in pretrained.names():
                assert names.get(word[1].lower(), word[1]) == word[1], f"{page.name}: {cell}"


def test_a_docstring_without_a_source_is_refused(monkeypatch):
    text = learned_samplers.SGHMC.__doc__
    for said in ("", "Source: somebody.", "A Source: Chen, 2014."):
        changed = re.sub(r"Source: .*?(?=\n\n)", said, text, flags=re.DOTALL)
        monkeypatch.setattr(learned_samplers.SGHMC, "__doc__", changed)
        with pytest.raises(ValueError, match=r"SGHMC.*Source:"):
            pages.sampler_page("SGHMC")


def test_links_lead_to_the_pages_of_the_site():
    text = "[a](../README.md#b) [c](../reports/results.md#d) [e](#f)"
    assert pages.site_links(text, "docs/start.md") == "[a](index.md#b) [c](reports/results.md#d) [e](#f)"
    assert pages.site_links("[a](../../CHANGELOG.md)", "docs/how-to/tools.md") == "[a](../changelog.md)"
    report = "[a](../../docs/start.md) [b](../results.md) ![c](../figures/d.png)"
    assert pages.site_links(report, "reports/tables/uci.md") == report.replace("docs/", "")
    untouched = "[e](https://x.y/README.md)\n```text\n[f](../README.md)\n```\n"
    assert pages.site_links(untouched, "reports/results.md") == untouched  # code is left alone


def test_everything_in_the_reference_has_a_docstring():
    assert list(pages.without_docstring()) == []


def test_a_missing_docstring_is_named(monkeypatch):
    module = types.ModuleType("planted", "A module.")
    exec("class Told:\n    'It says.'\n    def silent(self): ...\ndef mute(): ...\n", vars(module))
    monkeypatch.setitem(sys.modules, "planted", module)
    monkeypatch.setitem(pages.REFERENCE, "planted", ("Planted", ("planted",)))
    for value in (module.Told, module.mute):
        value.__module__ = "planted"
    assert list(pages.without_docstring()) == ["planted.mute", "planted.Told.silent"]


def test_the_reference_names_all_exports():
    text = "".join(pages.reference_page(page) for page in pages.REFERENCE)
    for name in set(learned_samplers.__all__) - set(SAMPLERS):
        where = getattr(learned_samplers, name).__module__
        assert f"::: {where}.{name}\n" in text, name


def test_the_readmes_links_are_those_of_the_site():
    home = pages.file_page("index.md")
    assert "](figures/demo_uncertainty.png)" in home
    assert "](contributing.md)" in home


def test_versions_and_citation_agree():
    texts = [(ROOT / name).read_text() for name in ("CITATION.cff", "CHANGELOG.md")]
    released = re.search(r"^## (\d[.\d]*), (.*)$", texts[1], re.MULTILINE)
    assert citation(released[1], *texts) == texts[0], "run python -m website.citation"
    version = learned_samplers.__version__
    assert version == released[1] or ".dev" in version
    moved = citation("9.8", texts[0], texts[1] + "\n## 9.8, 2030-01-02\n")
    assert "version: 9.8\n" in moved
    assert "date-released: 2030-01-02\n" in moved
    with pytest.raises(ValueError, match=r'no heading "## 9\.9, DATE"'):
        citation("9.9", *texts)


def test_all_integrations_are_in_the_reference():
    folder = ROOT / "learned_samplers/integrations"
    modules = {f"learned_samplers.integrations.{path.stem}" for path in folder.glob("*.py")}
    shared = {f"learned_samplers.integrations.{name}" for name in ("__init__", "resumption")}
    assert modules - shared <= set(pages.INTEGRATIONS)


def test_the_bias_figures_and_their_table_are_those_of_the_command():
    made = {f"{name}_{theme}.png" for name in CURVES for theme in ("light", "dark")}
    assert {path.name for path in pages.FIGURES.iterdir()} == made
    text = (ROOT / "reports/tables/bias.md").read_text()
    assert text.startswith("`python tools/toy.py bias`\n")
    rows = [tuple(cell.strip() for cell in line.split("|")[1:3]) for line in text.splitlines() if line.startswith("| ")]
    assert sorted(rows[1:]) == sorted((name, label) for name, curves in CURVES.items() for label in curves)


@pytest.mark.parametrize(
    ("html", "pieces"),
    [
        ("<p>A baseline.</p><p>:</p>", ["<p>:</p>"]),
        ("<p>========  ===</p>", ["========"]),
        ("<p>One ``{</p>", ["``"]),
        ("<p>by <code>~learned_samplers.SGLD</code> and ~learned_samplers.HMC</p>", ["~learned_samplers"]),
        ("<p>a &lt;root&gt; <code>``</code></p><pre>========</pre><p>a = b:</p>", []),
    ],
)
def test_pieces_of_another_markup_are_found(html, pieces):
    assert leftovers(html) == pieces


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of what the site is made of, to plant faults in."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "reports", "website", "learned_samplers", "meta_tasks", "pretrained"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def build(folder):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    environment = {"PATH": "", "PYTHONPATH": str(folder), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@installed
def test_the_site_builds_with_no_warnings_but_those_of_planted_faults(copy):
    """One build, of a minute: strict, it writes the site and then fails for the three faults, and for nothing else."""
    start = copy / "docs/start.md"
    start.write_text(
        start.read_text()
        + "\n[gone](gone.md) [nowhere](../reports/results.md#nowhere) ![far](https://example.org/x.png)\n"
    )
    done = build(copy)
    assert done.returncode != 0
    assert all(word in done.stderr for word in ("gone.md", "#nowhere", "fetches https://example.org/x.png"))
    assert done.stderr.count("WARNING") == 3, done.stderr
    page = (copy / "build/site/samplers/SGNHT.html").read_text()
    assert '<a href="../samplers/SGHMC.html"><code>SGHMC</code></a>' in page  # names are links
    sghmc = (copy / "build/site/samplers/SGHMC.html").read_text()
    assert "1 is the Bayes posterior" in sghmc  # the arguments that the class declares
    names = zlib.decompress((copy / "build/site/objects.inv").read_bytes().split(b"zlib.\n")[1]).decode()
    assert "learned_samplers.classical.sghmc.SGHMC py:class 1 samplers/SGHMC.html#" in names  # others' sites link to it
    notebooks = {path.stem for path in (copy / "build/site/tutorials").glob("*.ipynb")}
    assert notebooks == {"first_posterior", *(page.stem for page in tutorials.pages())}
    index = json.loads((copy / "build/site/search/search_index.json").read_text())
    locations = {document["location"].partition("#")[0] for document in index["docs"]}
    assert "start.html" in locations
    assert (copy / "build/site/reports/results.html").exists()
    assert not [location for location in locations if location.startswith("reports/")]
    assert 'href="reports/' not in (copy / "build/site/start.html").read_text().split("<article")[0]
