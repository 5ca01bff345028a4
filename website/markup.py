"""What a page shows as it stands in its source, because the source was meant for something else than Markdown."""

from __future__ import annotations

import re

# All elements that Markdown, its extensions and the reference make.
_NAMES = (
    "a abbr article aside autoref b blockquote br code dd del details div dl dt em figcaption figure h1 h2 h3 h4 h5 h6"
    " hr img input label li nav ol p picture pre small source span strong sub summary sup svg path table tbody td"
    " th thead tr ul"
)
ELEMENTS = set(_NAMES.split())
_ELEMENT = re.compile(r"<([A-Za-z][\w-]*)")
_CODE = re.compile(r"<(pre|code)\b.*?</\1>", re.DOTALL)
_RAW = re.compile(r"<p>\s*:+\s*</p>|={6,}|``|:(?:func|meth|class|mod|attr):|~learned_samplers")


def leftovers(html: str) -> list[str]:
    """Pieces of a page that its reader would see raw, or not at all: "<name>" without quotes, a table of RST, ``."""
    elements = [f"<{name}>" for name in _ELEMENT.findall(html) if name.lower() not in ELEMENTS]
    return elements + _RAW.findall(_CODE.sub("", html))
