"""Sphinx extension: pictures that the library draws while the pages are built, and the list of its
experiments.

* ``{picture} NAME``: the function of that name in ``theory_pictures`` or ``next_token_pictures``,
  as a drawing inside the page.
* ``{experiments}``: every experiment of ``attsvm reproduce`` with its protocol and claims.
* ``{experiment}`mmts-1` ``: a name, linked to that list when there is such an experiment.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import next_token_pictures
import theory_pictures
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attsvm.report.style import Picture, inline
from attsvm_papers.kit import PAPERS, experiment, identifiers

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


class Experiments(Directive):
    """One section per experiment."""

    def run(self) -> list[nodes.Node]:
        return [_described(name) for name in identifiers()]


def _described(name: str) -> nodes.section:
    known = experiment(name)
    section = nodes.section(ids=[f"experiment-{name}"], names=[name])
    section += nodes.title("", f"{name}: {known.title}")
    section += nodes.paragraph("", f"{PAPERS[known.paper]}. {known.protocol}")
    if known.notes:
        section += nodes.paragraph("", known.notes)
    section += nodes.literal_block("", f"attsvm reproduce {name}", language="console")
    claims = nodes.bullet_list()
    for claim in known.claims:
        line = nodes.paragraph(
            "", "", nodes.strong("", claim.id), nodes.Text(f" ({claim.source}): {claim.statement}")
        )
        claims += nodes.list_item("", line)
    section += claims
    return section


def linked(
    _name: str, rawtext: str, text: str, _line: int, inliner: Any, *_: Any
) -> tuple[list[nodes.Node], list[nodes.Node]]:
    """The role ``experiment``."""
    words = nodes.literal(rawtext, text)
    if text not in identifiers():
        return [words], []
    return [nodes.reference(rawtext, "", words, refuri=f"experiments.html#experiment-{text}")], []


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("picture", Drawing)
    app.add_directive("experiments", Experiments)
    app.add_role("experiment", linked)
    app.add_css_file("pictures.css")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
