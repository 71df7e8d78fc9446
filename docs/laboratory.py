"""Sphinx extension: the experiments of ``attsvm reproduce`` and their claims.

* ``{experiments}``: every experiment with its protocol and claims.
* ``{experiment}`mmts-1` ``: a name, linked to that list.
* On the pages about a paper, and in paragraphs that name an experiment, a claim's identifier (T15,
  E1.1b) leads to the claim, and shows its statement to a pointer that rests on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from attsvm_papers.kit import PAPERS, experiment, identifiers

IDENTIFIER = re.compile(r"(?<![\w.-])[A-Z](?=[\w.-]*\d)[\w.'-]*[\w']")


def anchor(name: str, claim: str) -> str:
    """Where a claim stands in the list."""
    return nodes.make_id(f"claim-{name}-{claim.replace(chr(39), '-prime')}")


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
    section += nodes.literal_block("", f"$ attsvm reproduce {name}", language="console")
    claims = nodes.bullet_list()
    for claim in known.claims:
        share = claim.expect.share
        asked = "" if share == 1.0 else f" Asked of {100.0 * share:.4g} % of the instances."
        failure = f" Where it fails: {claim.failure}." if claim.failure else ""
        line = nodes.paragraph(
            "",
            "",
            nodes.strong("", claim.id),
            nodes.Text(f" ({claim.source}): {claim.statement}{asked}{failure}"),
        )
        claims += nodes.list_item("", line, ids=[anchor(name, claim.id)])
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


@cache
def claims() -> dict[str, dict[str, str]]:
    """The statements by identifier, of every experiment."""
    return {
        name: {claim.id: claim.statement for claim in experiment(name).claims}
        for name in identifiers()
    }


def named(node: nodes.Node) -> list[str]:
    """The experiments that a part of a page is about: those in the same paragraph or cell, then
    those in the title of its section.
    """
    found: list[str] = []
    while node.parent is not None:
        if isinstance(node, nodes.paragraph | nodes.row | nodes.section):
            part = node.next_node(nodes.title) if isinstance(node, nodes.section) else node
            words = part.astext() if part is not None else ""
            found += [name for name in identifiers() if re.search(rf"{name}(?![\w])", words)]
        node = node.parent
    return found


def meant(words: str, name: str) -> tuple[str, str] | None:
    """The claim of an experiment that is written so; C4.3 is the first of C4.3a, C4.3b, ..."""
    known = claims()[name]
    first = next((each for each in known if re.fullmatch(rf"{re.escape(words)}[a-z]+", each)), None)
    claim = words if words in known else first
    return (name, claim) if claim else None


def pieces(text: str, known: list[str], home: str) -> Iterator[nodes.Node]:
    """A text in which every identifier of a claim of these experiments is a link."""
    end = 0
    for match in IDENTIFIER.finditer(text):
        found = next((each for each in (meant(match[0], name) for name in known) if each), None)
        if found is None:
            continue
        name, claim = found
        yield nodes.Text(text[end : match.start()])
        yield nodes.reference(
            "",
            match[0],
            refuri=f"{home}experiments.html#{anchor(name, claim)}",
            reftitle=claims()[name][claim],
            internal=True,
        )
        end = match.end()
    yield nodes.Text(text[end:])


def explained(app: Sphinx, tree: nodes.document) -> None:
    """Link the identifiers of a page."""
    page = app.env.docname
    if page not in ("theory", "claims") and not page.startswith("experiments/"):
        return
    paper = page.removeprefix("experiments/").removesuffix("-real")
    whole = [name for name in identifiers() if name.rpartition("-")[0] == paper]
    for text in list(tree.findall(nodes.Text)):
        parent = text.parent
        if isinstance(parent, nodes.literal | nodes.title | nodes.reference | nodes.math):
            continue
        new = list(pieces(str(text), named(text) + whole, "../" if whole else ""))
        if len(new) > 1:
            parent.replace(text, new)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("experiments", Experiments)
    app.add_role("experiment", linked)
    app.connect("doctree-read", explained)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
