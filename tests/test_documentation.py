"""Every Python example of README, docs and reports runs as it stands; a tutorial's blocks one after the other."""

import json
import re
import warnings
from pathlib import Path

import matplotlib
import pytest
import torch

from website import tutorials

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "reports").rglob("*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def examples():
    for page in PAGES:
        if page.parent == tutorials.FOLDER:
            continue
        for number, match in enumerate(BLOCK.finditer(page.read_text())):
            yield pytest.param(match[1], id=f"{page.name}-{number}")


#: Packages that examples need and the extras do not bring; their warnings are not ours to mend.
OPTIONAL = ("lightning", "transformers", "accelerate", "peft")


@pytest.fixture(autouse=True)
def threads():
    """Examples may set the number of threads, which is the process's."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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


PRELUDE = """
import torch
from torch import nn
from learned_samplers import SGHMC, PosteriorSamples

model, N, new = nn.Linear(4, 3), 64, torch.randn(5, 4)
batches = 120 * [(torch.randn(8, 4), torch.randint(3, (8,)))]
"""


def test_the_first_page_changes_a_loop_that_runs_before_and_after():
    diff = re.search(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1].splitlines()
    for kept in "-+":
        lines = [line[2:] for line in diff if line[0] in (" ", kept)]
        code = "\n".join([PRELUDE, *lines]).replace("burn_in=1000", "burn_in=50")
        names = {}
        exec(code, names)
        assert ("doubt" in names) == (kept == "+")
    assert names["doubt"].mean.shape == (5, 3)


@pytest.mark.parametrize("page", tutorials.pages(), ids=lambda page: page.stem)
def test_tutorial(page, tmp_path, monkeypatch):
    """Run a tutorial: its output agrees with the page but for the digits, and it makes the figures shown."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tools'}")
    with matplotlib.rc_context():
        outputs = tutorials.run(page, tmp_path)
    for printed, shown in outputs:
        assert tutorials.without_digits(printed) == tutorials.without_digits(shown)
    made = {figure.name for figure in tmp_path.glob("*.png")}
    shown_figures = set(re.findall(r"figures/tutorials/([\w.]+)", page.read_text()))
    assert made == shown_figures - {"tensorboard.png"}  # a screenshot of a browser, as its page says


def test_the_notebook_runs_as_it_stands(monkeypatch):
    """Run all cells but the installation: the network knows the digits it learned, and notices new ones."""
    cells = json.loads((ROOT / "docs/tutorials/first_posterior.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)
    names: dict = {}
    exec("\n".join(cell for cell in code if "%pip" not in cell), names)
    assert (names["doubt"].mean.argmax(1) == names["test_y"]).float().mean() > 0.95
    assert (names["strange"].epistemic > names["limit"]).float().mean() > 0.6


def test_a_tutorial_as_a_notebook_has_the_code_that_runs_and_no_relative_link():
    page = tutorials.FOLDER / "uncertainty.md"
    cells = tutorials.notebook(page)["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert "%pip" in code.pop(0)
    assert code == [block.strip() for block in BLOCK.findall(page.read_text())]
    text = "".join(line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"])
    targets = re.findall(r"\]\((?!https?:|#)([^)]+)\)", text)
    assert targets == ["uncertainty.png"]  # which the code draws


def test_the_outputs_of_tutorials_are_compared_in_words():
    same = tutorials.without_digits("ECE 0.12 at 1e-3,  R -2.5")
    assert same == tutorials.without_digits("ECE 0.3 at 2, R 7")
    assert same != tutorials.without_digits("NLL 0.12 at 1e-3, R -2.5")


def code_lines(text):
    """The lines of Python and of shell commands, without the indentation that makes a block of them."""
    language = ""
    for line in text.splitlines():
        if line.startswith("```"):
            language = "" if language else line[3:] or "text"
        elif language.startswith("python") or (language == "text" and line.startswith(COMMANDS)):
            yield line
        elif not language and line.startswith("    ") and line[4:].startswith((*COMMANDS, "  --")):
            yield line[4:]


COMMANDS = ("python ", "torchrun ", "pip ", "  --")


def test_code_fits_beside_the_columns_of_the_site():
    """A hundred characters, as docs/stylesheets/site.css lays them out; the tables that tools write are left out."""
    pages = [page for page in PAGES if page.parent.name != "tables"]
    long = [f"{page.name}: {line}" for page in pages for line in code_lines(page.read_text()) if len(line) > 100]
    assert not long


def test_a_long_line_of_code_is_found():
    text = "```python\nshort\n" + "x" * 101 + "\n```\n\n    python tools/x.py \\\n      --long " + "y" * 100 + "\n"
    assert [len(line) > 100 for line in code_lines(text)] == [False, True, False, True]


def test_linked_files_exist():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
