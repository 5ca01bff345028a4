"""The site: generated pages, what the strict build refuses, and the gallery."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest

import learned_samplers
from website import bias, pages

ROOT = Path(__file__).parents[2]
installed = pytest.mark.skipif(
    find_spec("material") is None or find_spec("mkdocstrings") is None, reason="the extra docs is not installed"
)


def test_every_sampler_has_a_page_with_its_row_and_its_rule():
    names = pages.sampler_names()
    assert {"SGLD", "SGHMC", "HMC", "L2E", "MetaSGMCMC", "CyclicalSGMCMC"} <= set(names)
    assert not {"Sampler", "SVGD", "IVON", "PosteriorSamples"} & set(names)
    for name in names:
        page = pages.sampler_page(name)
        assert page.startswith(f"# {name}\n")
        assert f".{name}\n" in page
        assert "| gradients | step time |" in page
    assert "learned_samplers.classical.sghmc.sghmc_rule" in pages.sampler_page("SGHMC")
    assert "learned_samplers.learned.l2e.rule.l2e_rule" in pages.sampler_page("L2E")
    assert "../cards.md#l2e-paper" in pages.sampler_page("L2E")


def test_a_sampler_without_a_row_or_a_paragraph_is_refused(monkeypatch):
    whole = pages._which()
    without = "\n".join(line for line in whole.splitlines() if not line.startswith("| `SGHMC`"))
    monkeypatch.setattr(pages, "_which", lambda: without)
    with pytest.raises(ValueError, match="SGHMC has no row in"):
        pages.sampler_page("SGHMC")
    monkeypatch.setattr(pages, "_which", lambda: whole.replace("**`SGHMC`**", "It"))
    with pytest.raises(ValueError, match="SGHMC has no paragraph in"):
        pages.sampler_page("SGHMC")


def test_every_sampler_shows_its_bias_and_one_without_is_refused(monkeypatch, tmp_path):
    from experiments.toys.bias import CURVES

    for name in pages.sampler_names():
        page = pages.sampler_page(name).split("## Bias against the step size")[1]
        if name in CURVES:
            assert f"../figures/bias/{name}_dark.png#only-dark)" in page
        else:  # a learned one: what its cards say
            assert "SGHMC" in page or "BAOA" in page
    assert "cards.md#kinetic-l2e): bias" in pages.sampler_page("KineticL2E")
    monkeypatch.setattr(bias, "FIGURES", tmp_path)
    with pytest.raises(ValueError, match=r"SGLD has no .*SGLD_light.png: run python tools/toy.py bias"):
        bias.text("SGLD")


def test_links_of_moved_text_lead_to_the_same_page():
    text = "[a](meta_training.md#b), [c](#d), [e](https://x.y/z)\n```text\n[f](g.md)\n```\n"
    moved = pages.moved(text, "which_sampler.md")
    assert "[a](../meta_training.md#b), [c](../which_sampler.md#d), [e](https://x.y/z)" in moved
    assert "[f](g.md)" in moved  # code is left alone
    assert pages.page_links("[a](../README.md#b) [c](start.md)", "results.md") == "[a](index.md#b) [c](start.md)"
    assert pages.page_links("[a](../../CHANGELOG.md)", "how-to/data.md") == "[a](../changelog.md)"


def test_everything_in_the_reference_has_a_docstring():
    assert list(pages.without_docstring()) == []


def test_a_missing_docstring_is_named(monkeypatch):
    module = types.ModuleType("planted", "A module.")
    exec("class Told:\n    'It says.'\n    def silent(self): ...\ndef mute(): ...\n", vars(module))
    monkeypatch.setitem(sys.modules, "planted", module)
    monkeypatch.setitem(pages.REFERENCE, "planted", ("Planted", ("planted",)))
    for each in (module.Told, module.mute):
        each.__module__ = "planted"
    assert list(pages.without_docstring()) == ["planted.mute", "planted.Told.silent"]


def test_the_reference_names_all_exports():
    text = "".join(pages.reference_page(page) for page in pages.REFERENCE)
    samplers = set(pages.sampler_names())
    for name in set(learned_samplers.__all__) - samplers:
        where = getattr(learned_samplers, name).__module__
        assert f"::: {where}.{name}\n" in text, name


def test_the_readme_is_one_screen_and_its_picture_follows_the_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
    home = pages.file_page("index.md")
    assert "<picture>" not in home
    assert all(f"figures/strip_{theme}.png#only-{theme})" in home for theme in ("light", "dark"))
    assert "](contributing.md)" in home


def test_versions_and_citation_agree():
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {version}\n" in citation
    released = re.search(r"^date-released: (.*)$", citation, re.MULTILINE)[1]
    assert f"\n## {version}, {released}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_all_integrations_are_in_the_reference():
    folder = ROOT / "learned_samplers/integrations"
    modules = {f"learned_samplers.integrations.{path.stem}" for path in folder.glob("*.py")}
    shared = {f"learned_samplers.integrations.{name}" for name in ("__init__", "resumption")}
    assert modules - shared <= set(pages.INTEGRATIONS)


def test_the_gallery_shows_every_figure():
    gallery = (ROOT / "docs/gallery.md").read_text()
    shown = set(re.findall(r"\((figures/[\w/]+\.png)", gallery))
    assert shown == {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs/figures").rglob("*.png")}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of what the site is made of, to plant faults in."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "website", "learned_samplers", "meta_tasks", "pretrained"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, folder)
    return folder


def build(folder):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    environment = {"PATH": "", "PYTHONPATH": str(folder), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@installed
def test_the_site_builds_strictly_and_a_planted_fault_stops_it(copy):
    done = build(copy)
    assert done.returncode == 0, done.stderr
    page = (copy / "build/site/samplers/BAOA.html").read_text()
    assert '<a href="../samplers/SGHMC.html"><code>SGHMC</code></a>' in page  # names are links
    start = copy / "docs/start.md"
    start.write_text(
        start.read_text() + "\n[gone](gone.md) [nowhere](results.md#nowhere) ![far](https://example.org/x.png)\n"
    )
    done = build(copy)
    assert done.returncode != 0
    assert all(word in done.stderr for word in ("gone.md", "#nowhere", "fetches https://example.org/x.png"))
