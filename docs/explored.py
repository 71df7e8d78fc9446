"""Sphinx extension: ``{explorer} KEY`` is the explorer inside a page, beginning with the example of
this key, or with the first one.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attsvm.report.explorer import fragment, presets, style


class Explored(SphinxDirective):
    """The fragment, complete but for its style."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        known = {each.key: each for each in presets()}
        key = self.arguments[0] if self.arguments else next(iter(known))
        if key not in known:
            raise self.error(f"there is no example {key}; there are: {', '.join(known)}")
        return [nodes.raw("", fragment(known[key]), format="html")]


def styled(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _tree: Any) -> None:
    """The style, in the head of the pages that show an explorer."""
    if "data-attsvm-explorer" in context.get("body", ""):
        context["metatags"] = context.get("metatags", "") + f"<style>{style()}</style>"


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("explorer", Explored)
    app.connect("html-page-context", styled)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
