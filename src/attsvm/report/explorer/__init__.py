"""The explorer: tokens in the plane that a reader drags, with the max-margin prompt and the descent
that turns towards it.

One ES module and one style sheet stand on every page that shows it: in a report, on the front page
of the documentation, and in a notebook. They load nothing. The module never changes with the data,
so a Content-Security-Policy can name it by :func:`script_hash`. Its files are ``margin.js`` (the
exact solution), ``descent.js`` (training), ``state.js`` (what an address holds), ``words.js`` and
``shapes.js`` (what drawings are made of), and ``explorer.js`` (the drawing, and what a reader does
with it).
"""

from __future__ import annotations

import base64
import html
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from attsvm.base.files import digest
from attsvm.report.explorer.states import DataExample, Preset, presets, state_of

_HERE = Path(__file__).parent
_FILES = ("margin", "descent", "state", "words", "shapes", "explorer")


@cache
def script() -> str:
    """The module, as it stands in every page: its files in one, without the lines that import one
    from another.
    """
    every = "\n".join((_HERE / f"{name}.js").read_text(encoding="utf-8") for name in _FILES)
    return re.sub(r"^import [^;]*;\n+", "", every, flags=re.MULTILINE)


@cache
def style() -> str:
    """The style sheet; every rule is about the class ``axp``."""
    return (_HERE / "explorer.css").read_text(encoding="utf-8")


def script_hash() -> str:
    """``sha256-...``: the name of the module in a Content-Security-Policy, between single
    quotes.
    """
    return "sha256-" + base64.b64encode(bytes.fromhex(digest(script()))).decode()


def content(example: DataExample | Preset | None = None) -> dict[str, Any]:
    """The data of the module: the example that it begins with, the first preset when left out, and
    all presets.
    """
    examples = presets()
    first = examples[0] if example is None else example
    return {
        "state": first.state,
        "own": first.name if isinstance(first, DataExample) else "",
        "key": first.key if isinstance(first, Preset) else "",
        "sentence": first.say,
        "presets": [preset.to_json() for preset in examples],
    }


def fragment(example: DataExample | Preset | None = None) -> str:
    """The HTML of an explorer inside a page: an element with its data, and the module. The page
    holds :func:`style` in its head.
    """
    # "<" could end the script element that the data stand in.
    data = json.dumps(content(example), separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<div data-attsvm-explorer><script type="application/json">{data}</script></div>\n'
        f'<script type="module">{script()}</script>'
    )


def page(
    example: DataExample | Preset | None = None, title: str = "Which token does attention choose?"
) -> str:
    """A page of its own, complete in one file."""
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
        f" script-src '{script_hash()}'; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(title)} · attsvm</title>\n"
        '<link rel="icon" href="data:,">\n'
        f"<style>\n{_PAGE}{style()}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{html.escape(title)}</h1>\n{fragment(example)}\n</main>\n</body>\n"
        "</html>\n"
    )


_PAGE = """:root { color-scheme: light dark; }
body { margin: 0; background: light-dark(#ffffff, #14171a); color: light-dark(#22262b, #e4e6e9);
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif; }
main { max-width: 54rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: clamp(1.3rem, 1rem + 1.6vw, 1.8rem); line-height: 1.2; margin: .4rem 0 .7rem; }
"""

__all__ = [
    "DataExample",
    "Preset",
    "content",
    "fragment",
    "page",
    "presets",
    "script",
    "script_hash",
    "state_of",
    "style",
]
