"""The site's pages that follow from code and from other files, so that no text stands in two places.

A sampler's page is its docstring, the figure of its bias or the laws in its cards, and its rule; cards are what
``print(pretrained.card(name))`` says; the reference lists what the packages export; home, contributing and changelog
are the files of those names with their links turned towards the site, and so are the reports.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import pretrained
from learned_samplers.learned.sampler import LearnedSampler
from learned_samplers.table import SAMPLERS, Entry

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs/figures/bias"
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
    "estimators": ("Estimators for tables", ("learned_samplers.estimators",)),
    "particles": ("Particles", ("learned_samplers.particles",)),
    "approximations": ("Approximations", ("learned_samplers.approximations",)),
    "weights": (
        "Weights and cards",
        ("pretrained", "learned_samplers.learned.hub", "learned_samplers.learned.weights"),
    ),
}
_ROOMS = ("datasets", "networks", "tasks", "objectives", "inner_loop", "estimators", "training")
REFERENCE |= {f"meta_tasks_{room}": (f"meta_tasks.{room}", (f"meta_tasks.{room}",)) for room in _ROOMS}
#: Modules that import packages which need not be here: read, not imported.
INTEGRATIONS = (
    *(
        f"learned_samplers.integrations.{name}"
        for name in (
            "lightning",
            "lightning_report",
            "huggingface",
            "huggingface_report",
            "tensorboard",
            "report",
            "botorch",
        )
    ),
    "learned_samplers.integrations.botorch",
    *(f"learned_samplers.adapters.{name}" for name in ("collection", "language", "generation")),
    "learned_samplers.differentiable",
)
#: Horizontal axis in the figure of a sampler's bias, where it is more than lr·k/N.
_AXIS = {
    "AdaptedSGHMC": "x = hᵢ²k, hᵢ the coordinate's own step, with the mass frozen",
    "CyclicalSGMCMC": "x = lr·k/N at the peak of lr, over the sampling phases of cycles of 200 steps",
    "PSGLD": "x = lr·√(k/T). Full gradients, without Γ (the default)",
    "HMC": "x = lr·k/N, five leapfrog steps a proposal, however many are rejected",
    "MCLMC": "x = lr·k/N of the stiffest of twelve directions, the softest ten times softer. Full gradients",
    "EntropyMCMC": "x = lr·k/N, with η ten times lr/N; the guide against T/k + ηT",
}
#: Methods that only the author of a sampler calls; the page of `Sampler` in the reference shows them.
_HOOKS = ("!^initial_state$", "!^evaluate$", "!^advance$", "!^noise_like$", "!^noise_for$")
_METHODS = (FunctionType, property, staticmethod, classmethod)
_LINK = re.compile(r"(\]\()([^)#\s]*)(#[^)\s]*)?\)")
_CODE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


# ---------------------------------------------------------------- samplers


def sampler_table() -> str:
    """Table of all samplers: what each is, its law, and what it can do."""
    rows = [
        "| sampler | what it is | law | closure | chains | shards |",
        "|---|---|---|:-:|---|:-:|",
    ]
    for name, entry in SAMPLERS.items():
        summary = re.sub(r"`(\w+)`", r"\1", entry.summary).rstrip(".")
        closure, shards = ("yes" if flag else "–" for flag in (entry.needs_closure, entry.sharded))
        page = f"[`{name}`](samplers/{name}.md)"
        rows.append(f"| {page} | {summary} | {entry.law} | {closure} | {_chains(entry)} | {shards} |")
    return "\n".join(rows)


def _chains(entry: Entry) -> str:
    """Cell of the column "chains": the way in which `Chains` runs a sampler."""
    return "yes" if entry.stacked else "`separate=True`"


def sampler_page(name: str) -> str:
    """Page of one sampler; ValueError if its docstring names no source."""
    sampler = SAMPLERS[name].sampler
    check_source(sampler)
    filters = re.search(r"^ +filters: (\[.*\])$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert filters is not None, "mkdocs.yml has no filters in one line"
    title, hidden = "Update, law and arguments", json.dumps([*json.loads(filters[1]), *_HOOKS])
    options = f"    options:\n      heading: {title}\n      toc_label: {title}\n      filters: {hidden}"
    parts = [
        f"# {name}",
        "When to take it: [which sampler](../which_sampler.md). T, N, λ and lr: [concepts](../concepts.md).",
        f"::: {sampler.__module__}.{name}\n{options}\n",
    ]
    if (FIGURES / f"{name}_light.png").exists():
        parts.append(f"## Bias against the step size\n\n{bias(name)}")
    if issubclass(sampler, LearnedSampler):
        parts.append(f"## Shipped weights\n\n{shipped(name) or 'None.'}")
    if rules := _rules(sampler):
        parts.append("## The rule as a pure function")
        parts.append("The optimizer, the meta-trainer's inner loop and `higher` run these lines.")
        options = "    options:\n      heading_level: 3\n      show_source: true"
        parts += [f"::: {rule.__module__}.{rule.__name__}\n{options}" for rule in rules]
    return "\n\n".join(parts) + "\n"


def bias(name: str) -> str:
    """Figure of a sampler's bias, light and dark, and what it shows."""
    alt = f"Relative error of the variance of {name} against its step size"
    pictures = [f"![{alt}](../figures/bias/{name}_{theme}.png#only-{theme})" for theme in ("light", "dark")]
    caption = (
        f"How far the variance of a weight is from T/k on a Gaussian of curvature k: {_AXIS.get(name, 'x = lr·k/N')}.",
        "Curves without marks are exact (the Lyapunov equation of the running step) and end, dotted, where the step",
        "becomes unstable; marks are simulated, with two standard errors. *Minibatches*: gradient noise that heats",
        "`SGLD` by 2 % at the same step. `python tools/toy.py bias` draws it,",
        "[with the numbers](../reports/tables/bias.md).",
        "[check_sampler](../tutorials/is_my_sampler_right.md) measures any other setting.",
    )
    return "\n".join(pictures) + "\n\n" + " ".join(caption)


def shipped(name: str) -> str:
    """Weights of a learned sampler, with what their cards say of the law."""
    lines = []
    for weights in pretrained.names():
        card = pretrained.card(weights)
        if card["sampler"] == name:
            law = card["law"]["reason"] if card["law"] else "not measured"
            lines.append(f"- [`{weights}`](../zoo.md#{weights}); its law on Gaussians: {law}")
    return "\n".join(lines)


def check_source(sampler: type) -> None:
    """Raise ValueError unless a docstring has a paragraph that begins with "Source:" and holds a year."""
    docstring = inspect.cleandoc(sampler.__doc__ or "")
    source = re.search(r"^Sources?: (.*?)(?=\n\n|\Z)", docstring, re.DOTALL | re.MULTILINE)
    if source is None or not re.search(r"\b(19|20)\d\d\b|arXiv", source[1]):
        raise ValueError(f'{sampler.__name__}\'s docstring has no paragraph "Source: authors, title, year"')


def _rules(sampler: type) -> list[FunctionType]:
    """Pure functions of a sampler's update: its ``rule``, or those beside a learned one that end in ``_rule``."""
    if issubclass(sampler, LearnedSampler):
        module = sys.modules[sampler.__module__]
        functions = [value for value in vars(module).values() if isinstance(value, FunctionType)]
        return [rule for rule in functions if rule.__name__.endswith("_rule") and rule.__module__ == module.__name__]
    rule = inspect.getattr_static(sampler, "rule", None)
    function = getattr(rule, "__func__", None)
    named = function and vars(sys.modules[function.__module__]).get(function.__name__) is function
    return [function] if function and named else []


def cards() -> str:
    """Card of every shipped weight file, as it prints."""
    return "\n\n".join(f"## {name}\n\n```text\n{pretrained.card(name)}\n```" for name in pretrained.names())


# ---------------------------------------------------------------- reference


def reference_page(page: str) -> str:
    """Page of the reference: the exported names of its modules, from their docstrings."""
    title, modules = REFERENCE[page]
    parts, level = [f"# {title}"], 3 if len(modules) > 1 else 2
    for module_name in modules:
        module = importlib.import_module(module_name)
        exported, docstring = exports(module), inspect.cleandoc(module.__doc__ or "")
        if page == "samplers":
            links = "\n".join(f"- [`{name}`](../samplers/{name}.md)" for name in SAMPLERS)
            parts.append(f"Each has a page of its own:\n\n{links}\n\nWhat they share:")
            exported = ["Sampler", "Restarts", "CyclicalSchedule"]
        else:
            parts.append(f"## {module_name}\n\n{docstring}" if len(modules) > 1 else f"`{module_name}`: {docstring}")
        for name in exported:
            target = getattr(module, name)
            defined = target.__module__ if inspect.isclass(target) or inspect.isfunction(target) else module_name
            shown = target.__name__ if defined != module_name else name
            parts.append(f"::: {defined}.{shown}\n    options:\n      heading_level: {level}")
    return "\n\n".join(parts) + "\n"


def integrations_page() -> str:
    """Page of the reference about other packages' training loops."""
    options = "    options:\n      heading_level: 2\n      show_root_full_path: true"
    return "\n\n".join(["# Integrations", *(f"::: {name}\n{options}" for name in INTEGRATIONS)]) + "\n"


def exports(module: ModuleType) -> list[str]:
    """Classes and functions that a module offers: its ``__all__``, or what is public and defined in it."""
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    names = [name for name in getattr(module, "__all__", None) or defined if not name.startswith("_")]
    return [n for n in names if inspect.isclass(getattr(module, n)) or inspect.isfunction(getattr(module, n))]


def without_docstring() -> Iterator[str]:
    """Everything public in the reference that says nothing about itself: classes, functions, methods, properties."""
    for module_name in INTEGRATIONS:
        tree = ast.parse((ROOT / (module_name.replace(".", "/") + ".py")).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node):
                yield f"{module_name}.{node.name}"
    for module_name in [name for _, modules in REFERENCE.values() for name in modules]:
        module = importlib.import_module(module_name)
        classes = [value for name in exports(module) if inspect.isclass(value := getattr(module, name))]
        # What implements a protocol of the same page is described there.
        protocol = {method for cls in classes if getattr(cls, "_is_protocol", False) for method in vars(cls)}
        for name in exports(module):
            # getdoc() would inherit torch's text for a class that has none.
            if not (getattr(module, name).__doc__ or "").strip():
                yield f"{module_name}.{name}"
        for cls in classes:
            for method, value in vars(cls).items():
                if method.startswith("_") or method in ("rule", "badge") or not isinstance(value, _METHODS):
                    continue
                elsewhere = method in protocol and not getattr(cls, "_is_protocol", False)
                attribute = re.search(rf"^ +{method}[:,]", cls.__doc__ or "", re.MULTILINE)
                if not elsewhere and not attribute and not inspect.getdoc(getattr(cls, method)):
                    yield f"{module_name}.{cls.__name__}.{method}"


# ---------------------------------------------------------------- files and links


def page_of(file: str) -> str:
    """Page of the site for a file of the repository: reports keep their path, pages lose ``docs/``."""
    pages = {name: page for page, name in FILES.items()}
    return pages.get(file, file.removeprefix("docs/"))


def site_links(text: str, file: str) -> str:
    """Text of a repository's file whose relative links lead to pages of the site.

    Args:
        text: Markdown.
        file: path in the repository, such as ``reports/results.md``. A page that is generated counts as one in docs/.
    """
    folder = posixpath.dirname(page_of(file)) or "."

    def turned(target: str) -> str:
        name = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
        return posixpath.relpath(page_of(name), folder) if target else ""

    return _turn_links(text, turned)


def file_page(page: str) -> str:
    """README, CONTRIBUTING or CHANGELOG as a page of the site."""
    return site_links((ROOT / FILES[page]).read_text(), FILES[page])


def reports() -> list[Path]:
    """Files of reports/: Markdown and figures."""
    return sorted(path for path in (ROOT / "reports").rglob("*") if path.suffix in (".md", ".png"))


def _turn_links(text: str, turned: Callable[[str], str]) -> str:
    def replace(match: re.Match[str]) -> str:
        start, target, anchor = match[1], match[2], match[3] or ""
        return match[0] if re.match(r"[a-z]+:", target) else f"{start}{turned(target)}{anchor})"

    parts = _CODE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(replace, part) for part in parts)
