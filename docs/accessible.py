"""Sphinx extension: what a page still needs for those who hear it or have no mouse, and what the
theme and Sphinx leave out. Each line names the rule of axe-core that it serves.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

REPLACED = (
    # scrollable-region-focusable: code and tables that are wider than the page scroll by keys
    ('<div class="highlight"><pre>', '<div class="highlight"><pre tabindex="0">'),
    ('<div class="table-wrapper ', '<div tabindex="0" class="table-wrapper '),
    # aria-required-attr: a heading has a level
    ('<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'),
    # landmark-unique: two landmarks of one kind have names
    ('<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="All pages">'),
    ('<aside class="toc-drawer">', '<aside class="toc-drawer" aria-label="On this page">'),
    # empty-table-header: a corner without words is no header
    ('<th class="head"><p></p></th>', "<td></td>"),
)
SEARCH = ('id="furo-main-content">', 'id="furo-main-content"><h1>Search</h1>')
"""page-has-heading-one."""

FIGURE = re.compile(r'<p>(<img alt="[^"]*" src="([^"]+)" />)</p>')


def linked(text: str) -> str:
    """The page with every figure a link to its file, where it can be as large as the screen."""
    return FIGURE.sub(r'<p class="figure"><a href="\2" title="Open larger">\1</a></p>', text)


def finish(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for page in out.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        changed = linked(text)
        for pair in (*REPLACED, *([SEARCH] if page.name == "search.html" else [])):
            changed = changed.replace(*pair) if pair[1] not in changed else changed
        if changed != text:
            page.write_text(changed, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
