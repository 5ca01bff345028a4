"""The site's pages that follow from code and from other files, so that no text stands in two places.

A sampler's page is its row and its paragraph of docs/which_sampler.md around its docstring; cards are what
``print(pretrained.card(name))`` says; the reference lists what the packages export; home, contributing and changelog
are the files of those names with their links turned towards the site.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from types import FunctionType, ModuleType

import learned_samplers
import pretrained
from learned_samplers.learned.sampler import REGISTRY, LearnedSampler
from website import bias

ROOT = Path(__file__).parents[1]
#: Files outside docs/ that are pages: page → file.
FILES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
#: Packages whose exports are the reference: page → title and modules.
REFERENCE: dict[str, tuple[str, tuple[str, ...]]] = {
    "samplers": ("Samplers", ("learned_samplers",)),
    "posterior": ("Posterior samples", ("learned_samplers.posterior",)),
    "checks": ("Checks", ("learned_samplers.checks",)),
    "conventions": ("Conventions", ("learned_samplers.conventions",)),
    "metrics": ("Metrics", ("learned_samplers.metrics",)),
    "diagnostics": ("Diagnostics", ("learned_samplers.diagnostics",)),
    "plots": ("Plots", ("learned_samplers.plots",)),
    "particles": ("Particles", ("learned_samplers.particles",)),
    "approximations": ("Approximations", ("learned_samplers.approximations",)),
    "weights": ("Weights and cards", ("pretrained", "learned_samplers.learned.weights")),
}
_ROOMS = ("datasets", "networks", "tasks", "objectives", "inner_loop", "estimators", "training")
REFERENCE |= {f"meta_tasks_{room}": (f"meta_tasks.{room}", (f"meta_tasks.{room}",)) for room in _ROOMS}
#: Modules that import packages which need not be here: read, not imported.
INTEGRATIONS = (
    *(f"learned_samplers.integrations.{name}" for name in ("lightning", "huggingface", "tensorboard")),
    "learned_samplers.differentiable",
)
#: What only those who write a sampler call; on the page of `Sampler`, in the reference, they stay.
_HOOKS = ("!^initial_state$", "!^evaluate$", "!^advance$", "!^noise_like$", "!^noise_for$")
_METHODS = (FunctionType, property, staticmethod, classmethod)
_PICTURE = re.compile(
    r'<picture>.*?srcset="docs/(?P<dark>[^"]+)">.*?alt="(?P<alt>[^"]+)" src="docs/(?P<light>[^"]+)">\s*</picture>',
    re.DOTALL,
)
_LINK = re.compile(r"(\]\()([^)#\s]*)(#[^)\s]*)?\)")
_CODE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def sampler_names() -> list[str]:
    """The samplers that have a page: all that make a chain, in the order of docs/which_sampler.md."""
    order = list(_rows())
    return sorted(samplers(), key=lambda name: (order.index(name) if name in order else len(order), name))


def samplers() -> dict[str, type[learned_samplers.Sampler]]:
    """The exported samplers that make a chain, and each learned one of the package, by name."""
    exported = [getattr(learned_samplers, name) for name in learned_samplers.__all__]
    return {
        each.__name__: each
        for each in [*exported, *REGISTRY.values()]
        if inspect.isclass(each)
        and issubclass(each, learned_samplers.Sampler)
        and each is not learned_samplers.Sampler
        and each.__module__.startswith(("learned_samplers.classical.", "learned_samplers.learned."))
    }


def sampler_page(name: str) -> str:
    """The page of one sampler.

    Raises:
        ValueError: docs/which_sampler.md has no row or no paragraph of it, the paragraph does not say what it is at
            temperature 0, or its docstring names no source.
    """
    rows, paragraphs = _rows(), _paragraphs()
    for what, found in (("row", rows), ("paragraph", paragraphs)):
        if name not in found:
            raise ValueError(f"{name} has no {what} in docs/which_sampler.md")
    if not re.search(r"temperature\s+(above\s+)?0", paragraphs[name]):
        raise ValueError(f"{name}'s paragraph in docs/which_sampler.md does not say what it is at temperature 0")
    sampler = samplers()[name]
    facts = [*rows[name].items(), ("paper", source(sampler))]
    parts = [
        f"# {name}",
        paragraphs[name],
        # Two columns fit a phone.
        "\n".join(["| | at a glance |", "|---|---|", *(f"| {fact} | {what} |" for fact, what in facts)]),
        "*Gradients*, *step time*, *state* and *law* are explained with "
        "[the table of all samplers](../which_sampler.md#what-each-costs-and-promises), T, N, λ and lr in "
        "[conventions](../conventions.md).",
    ]
    title = "Update, law and arguments"
    filters = json.dumps([*_filters(), *_HOOKS])
    shown = f"    options:\n      heading: {title}\n      toc_label: {title}\n      filters: {filters}"
    parts.append(f"::: {sampler.__module__}.{name}\n{shown}\n")
    parts.append(f"## Bias against the step size\n\n{bias.text(name)}")
    if issubclass(sampler, LearnedSampler):
        weights = [one for one in pretrained.names() if pretrained.card(one)["sampler"] == name]
        links = ", ".join(f"[`{one}`](../cards.md#{one})" for one in weights)
        parts.append(f"## Shipped weights\n\n{links or 'None.'}")
    if rules := _rules(sampler):
        parts.append("## The rule as a pure function")
        parts.append("The optimizer, the meta-trainer's inner loop and `higher` run these lines.")
        shown = "    options:\n      heading_level: 3\n      show_source: true"
        parts += [f"::: {each.__module__}.{each.__name__}\n{shown}" for each in rules]
    return "\n\n".join(parts) + "\n"


def _filters() -> list[str]:
    """What the whole reference leaves out, in mkdocs.yml."""
    found = re.search(r"^ +filters: (\[.*\])$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError("mkdocs.yml has no filters in one line")
    return list(json.loads(found[1]))


def source(sampler: type) -> str:
    """Who published a sampler, from the paragraph of its docstring that begins with "Source:".

    Raises:
        ValueError: the docstring has no such paragraph, or one without a year.
    """
    docstring = inspect.cleandoc(sampler.__doc__ or "")
    found = re.search(r"^Source: (.*?)(?=\n\n|\Z)", docstring, re.DOTALL | re.MULTILINE)
    text = " ".join(found[1].split()) if found else ""
    if not re.search(r"\b(19|20)\d\d\b|arXiv", text):
        raise ValueError(f'{sampler.__name__}\'s docstring has no paragraph "Source: authors, title, year"')
    return text[0].upper() + text[1:]


def _rules(sampler: type) -> list[FunctionType]:
    """The pure functions of a sampler's update: its ``rule``, or those of the module ``rule`` beside a learned one."""
    if issubclass(sampler, LearnedSampler):
        module = importlib.import_module(sampler.__module__.rsplit(".", 1)[0] + ".rule")
        functions = [each for each in vars(module).values() if isinstance(each, FunctionType)]
        return [each for each in functions if each.__name__.endswith("_rule") and each.__module__ == module.__name__]
    rule = inspect.getattr_static(sampler, "rule", None)
    function = getattr(rule, "__func__", None)
    known = function and vars(sys.modules[function.__module__]).get(function.__name__) is function
    return [function] if function and known else []


def cards() -> str:
    """Every shipped weight file's card, as it prints."""
    return "\n\n".join(f"## {name}\n\n```text\n{pretrained.card(name)}\n```" for name in pretrained.names())


def reference_page(page: str) -> str:
    """A page of the reference: the exported names of its modules, from their docstrings."""
    title, modules = REFERENCE[page]
    parts = [f"# {title}"]
    pages = sampler_names()
    for name in modules:
        module = importlib.import_module(name)
        exported = exports(module)
        if page == "samplers":
            linked = "\n".join(f"- [`{one}`](../samplers/{one}.md)" for one in pages)
            parts.append(f"Each has a page of its own:\n\n{linked}\n\nWhat they share:")
            exported = ["Sampler", "CyclicalSchedule"]
        elif len(modules) > 1:
            parts.append(f"## {name}\n\n{_linked_docstring(module)}")
        else:
            parts.append(f"`{name}`: {_linked_docstring(module)}")
        level = 3 if len(modules) > 1 else 2
        for one in exported:
            target = getattr(module, one)
            where = target.__module__ if inspect.isclass(target) or inspect.isfunction(target) else name
            parts.append(
                f"::: {where}.{target.__name__ if where != name else one}\n    options:\n      heading_level: {level}"
            )
    return "\n\n".join(parts) + "\n"


def integrations_page() -> str:
    """The page of the reference about other packages' training loops."""
    whole = "    options:\n      heading_level: 2\n      show_root_full_path: true"
    return "\n\n".join(["# Integrations", *(f"::: {name}\n{whole}" for name in INTEGRATIONS)]) + "\n"


def exports(module: ModuleType) -> list[str]:
    """The classes and functions that a module offers: its ``__all__``, or what is public and defined in it."""
    names = getattr(module, "__all__", None) or [
        name for name, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__
    ]
    return [
        name
        for name in names
        if not name.startswith("_")
        and (inspect.isclass(getattr(module, name)) or inspect.isfunction(getattr(module, name)))
    ]


def without_docstring() -> Iterator[str]:
    """Everything public in the reference that says nothing about itself: classes, functions, methods, properties."""
    for module_name in INTEGRATIONS:
        tree = ast.parse((ROOT / (module_name.replace(".", "/") + ".py")).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node):
                yield f"{module_name}.{node.name}"
    for _, modules in REFERENCE.values():
        for module_name in modules:
            module = importlib.import_module(module_name)
            classes = [each for name in exports(module) if inspect.isclass(each := getattr(module, name))]
            # What implements a protocol of the same page is described there.
            told = {method for each in classes if getattr(each, "_is_protocol", False) for method in vars(each)}
            for name in exports(module):
                # getdoc() would inherit torch's text for a class that has none.
                if not (getattr(module, name).__doc__ or "").strip():
                    yield f"{module_name}.{name}"
            for each in classes:
                for method, what in vars(each).items():
                    if method.startswith("_") or method in ("rule", "badge") or not isinstance(what, _METHODS):
                        continue
                    elsewhere = method in told and not getattr(each, "_is_protocol", False)
                    attribute = re.search(rf"^ +{method}[:,]", each.__doc__ or "", re.MULTILINE)
                    if not elsewhere and not attribute and not inspect.getdoc(getattr(each, method)):
                        yield f"{module_name}.{each.__name__}.{method}"


def file_page(page: str) -> str:
    """README, CONTRIBUTING or CHANGELOG as a page of the site."""
    text = (ROOT / FILES[page]).read_text()
    back = {file: one for one, file in FILES.items()}

    def turned(target: str) -> str:
        return back.get(target, target.removeprefix("docs/"))

    # A page can be switched to dark against the system's wish, which <picture> does not follow.
    text = _PICTURE.sub(r"![\g<alt>](docs/\g<light>#only-light)\n![\g<alt>](docs/\g<dark>#only-dark)", text)
    return _turn_links(text, turned)


def moved(text: str, into: str) -> str:
    """Text of a page at the top of docs/, for a page in the folder ``into``."""
    return _turn_links(text, lambda target: str(PurePosixPath("..") / target) if target else "", into)


def page_links(text: str, page: str) -> str:
    """A page of docs/ whose links to README, CONTRIBUTING and CHANGELOG lead to the site's pages of these."""
    up = "../" * len(PurePosixPath(page).parents[1:])
    back = {f"{up}../{file}": f"{up}{one}" for one, file in FILES.items()}
    return _turn_links(text, lambda target: back.get(target, target))


def _turn_links(text: str, turned: Callable[[str], str], anchors_of: str = "") -> str:
    def replace(match: re.Match[str]) -> str:
        start, target, anchor = match[1], match[2], match[3] or ""
        if re.match(r"[a-z]+:", target):
            return match[0]
        if anchors_of and not target:
            target = anchors_of
        return f"{start}{turned(target)}{anchor})"

    parts = _CODE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(replace, part) for part in parts)


def _linked_docstring(module: ModuleType) -> str:
    return inspect.cleandoc(module.__doc__ or "")


def _which() -> str:
    return (ROOT / "docs/which_sampler.md").read_text()


def _section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^#{{2,3}} |\Z)", _which(), re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"docs/which_sampler.md has no section {title!r}")
    return moved(found[1], "which_sampler.md")


def _rows() -> dict[str, dict[str, str]]:
    """Sampler → the cells of its row in the table of costs, by the heads of the columns."""
    lines = [line for line in _section("What each costs and promises").splitlines() if line.startswith("|")]
    heads, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if not set(line) <= set("|-: ")
    ]
    return {row[0].strip("`"): dict(zip(heads[1:], row[1:], strict=True)) for row in rows}


def _paragraphs() -> dict[str, str]:
    """Sampler → the paragraph that says when to take it."""
    found = {}
    for paragraph in _section("When to take which").split("\n\n"):
        if match := re.match(r"\s*\*\*`(\w+)`\*\*", paragraph):
            found[match[1]] = paragraph.strip()
    return found
