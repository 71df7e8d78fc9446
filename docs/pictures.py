"""Sphinx extension: ``{picture} NAME`` is the function of that name in ``theory_pictures`` or
``next_token_pictures``, drawn inside the page while the pages are built.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import next_token_pictures
import theory_pictures
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attsvm.report.style import Picture, inline

MODULES = (theory_pictures, next_token_pictures)
DRAWN = {function.__name__: function for module in MODULES for function in module.PICTURES}


def figure(picture: Picture) -> str:
    """The HTML of a picture: its drawing with colours as CSS variables, and the words for those who
    cannot see it.
    """
    label = html.escape(f"{picture.title}. {picture.alt}", quote=True)
    width = f"max-width: {picture.width * 1.25:.2f}in"
    return (
        f'<figure class="picture" role="img" aria-label="{label}"'
        f' style="{width}">{inline(picture)}</figure>'
    )


class Drawing(SphinxDirective):
    """Draws when the page is read, so a page that has not changed is not drawn anew."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0].replace("-", "_")
        if name not in DRAWN:
            raise self.error(f"there is no picture {name}; there are: {', '.join(DRAWN)}")
        for module in MODULES:
            self.env.note_dependency(str(Path(str(module.__file__))))
        return [nodes.raw("", figure(DRAWN[name]()), format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("picture", Drawing)
    app.add_css_file("pictures.css")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
