"""Hooks of mkdocs: generated pages, reports beside them, links of names, and the check of docstrings."""

from __future__ import annotations

import logging
import posixpath
import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parents[1]))

from learned_samplers.table import SAMPLERS
from website import pages, tutorials

# mkdocs counts the warnings of its own loggers, and --strict ends on them.
log = logging.getLogger("mkdocs.hooks")
_PART = re.compile(r"(<pre.*?</pre>|<a\b.*?</a>|<h\d.*?</h\d>)", re.DOTALL)
_FETCHED = re.compile(
    r'(?:<link[^>]+rel="?(?:stylesheet|preload|preconnect|icon)[^>]*href|\bsrc)="?((?:https?:)?//[^"> ]+)'
)
_ROLE = re.compile(r":(?:func|meth|class|mod|attr):(?=<code>)")
_NAME = re.compile(r"<code>(\w+)</code>")
#: Markup of another language than Markdown, which a page would show as it stands.
_BLOCK = re.compile(r"<(pre|code)\b.*?</\1>", re.DOTALL)
_RAW = re.compile(r"<p>\s*:+\s*</p>|={6,}|``|:(?:func|meth|class|mod|attr):|~learned_samplers")


def leftovers(html: str) -> list[str]:
    """Pieces of another markup that a page's reader would see raw."""
    return _RAW.findall(_BLOCK.sub("", html))


def on_config(config: Any) -> Any:
    """Fill in the generated parts of the navigation."""
    generated = {
        "<generated samplers>": [f"samplers/{name}.md" for name in SAMPLERS],
        "<generated reference>": [f"reference/{name}.md" for name in (*pages.REFERENCE, "integrations")],
    }

    def filled(entry: Any) -> Any:
        if isinstance(entry, list):
            return [filled(part) for part in entry]
        if isinstance(entry, dict):
            return {title: filled(part) for title, part in entry.items()}
        return generated.get(entry, entry)

    config.nav = filled(config.nav)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    for name in pages.without_docstring():
        log.warning("%s has no docstring", name)
    contents = {page: pages.file_page(page) for page in pages.FILES}
    contents |= {f"samplers/{name}.md": pages.sampler_page(name) for name in SAMPLERS}
    contents |= {f"reference/{name}.md": pages.reference_page(name) for name in pages.REFERENCE}
    contents["reference/integrations.md"] = pages.integrations_page()
    for path, content in contents.items():
        files.append(File.generated(config, path, content=content))
    for report in pages.reports():
        files.append(File.generated(config, str(report.relative_to(pages.ROOT)), abs_src_path=str(report)))
    files.append(File.generated(config, "CITATION.cff", abs_src_path=str(pages.ROOT / "CITATION.cff")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links to files outside docs/ towards their pages, fill generated tables, hide reports from the search."""
    file = page.file.src_uri
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # a column with one entry
    if not file.startswith("reports/"):
        file = f"docs/{file}"
    else:
        page.meta["search"] = {"exclude": True}
        wide = file.startswith("reports/tables/") or file == "reports/papers.md"
        page.meta["hide"] = ["navigation", "toc"] if wide else ["navigation"]
        index = posixpath.relpath("reports/README.md", posixpath.dirname(file))
        markdown += f"\n\n[All reports]({index})\n"
    markdown = pages.site_links(markdown, file)
    return markdown.replace("<!-- cards -->", pages.cards()).replace("<!-- samplers -->", pages.sampler_table())


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Warn of everything that a browser would fetch from elsewhere."""
    for address in _FETCHED.findall(output):
        log.warning("%s fetches %s", page.file.src_uri, address)
    return output


def on_post_build(config: Any) -> None:
    """Write the tutorials as notebooks beside their pages."""
    tutorials.write_notebooks(Path(config.site_dir) / "tutorials")


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Link every sampler that is named in code to its page, where it is no link, heading or code block already.

    Docstrings may say :func:`name`, or end a line in two colons; a page shows the name, and one colon.
    """
    html = _ROLE.sub("", html).replace("::</p>", ":</p>")
    for piece in leftovers(html):
        log.warning("%s shows %r, which was meant as something else", page.file.src_uri, piece)
    path = PurePosixPath(page.file.src_uri)
    up = "../" * len(path.parents[1:])
    names = set(SAMPLERS) - {path.stem if path.parent.name == "samplers" else ""}

    def link(match: re.Match[str]) -> str:
        name = match[1]
        return f'<a href="{up}samplers/{name}.html">{match[0]}</a>' if name in names else match[0]

    return "".join(part if _PART.fullmatch(part) else _NAME.sub(link, part) for part in _PART.split(html))
