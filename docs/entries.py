"""Sphinx extension: the entries of the reference, under the names by which they are imported.

* ``{entries} PACKAGE`` is an entry for each public name of the package but those of the option
  ``without``, beginning with those of ``first``; the lines of its body, if there are any, are the
  names that it shows instead.
* A name of a docstring leads to its entry, whichever way it is spelled there.
"""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import OptionSpec


def public(package: str) -> list[str]:
    """The names that a package offers, without its modules."""
    home = importlib.import_module(package)
    own = [
        name
        for name, value in vars(home).items()
        if getattr(value, "__module__", None) == package and not name.startswith("_")
    ]
    return [
        name
        for name in getattr(home, "__all__", own)
        if not name.startswith("_") and not isinstance(getattr(home, name), ModuleType)
    ]


def spelled(package: str, name: str) -> str:
    """The shortest import of a name."""
    return f"attsvm.{name}" if name in public("attsvm") else f"{package}.{name}"


def entry(name: str) -> list[str]:
    """The directive of autodoc for what a name stands for."""
    package, _, last = name.rpartition(".")
    value = getattr(importlib.import_module(package), last)
    if inspect.isclass(value):
        hidden = "forward, backward, setup_context, extra_repr, get_extra_state, set_extra_state"
        return [f".. autoclass:: {name}", "   :members:", f"   :exclude-members: {hidden}"]
    if inspect.isfunction(value):
        return [f".. autofunction:: {name}"]
    told = " or ".join(f"``{each!r}``" for each in typing.get_args(value))
    return [f".. py:data:: {name}", "", f"   {told or repr(value)}"]


class Entries(SphinxDirective):
    """The entries of one package, or some of them."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[OptionSpec] = {
        "first": directives.unchanged,
        "without": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        package = self.arguments[0]
        first, without = (str(self.options.get(key, "")).split() for key in ("first", "without"))
        if unknown := sorted({*first, *without} - set(public(package))):
            raise self.error(f"{package} has no {' and no '.join(unknown)}")
        rest = [name for name in public(package) if name not in (*first, *without)]
        names = [line.strip() for line in self.content if line.strip()] or [*first, *rest]
        every = [line for name in names for line in ["", *entry(spelled(package, name)), ""]]
        text = StringList(["````{eval-rst}", *every, "````"], self.get_source_info()[0])
        node = nodes.container()
        self.state.nested_parse(text, self.content_offset, node)
        return node.children


INSIDE = ("method", "property", "attribute", "classmethod", "staticmethod")


def meant(objects: Iterable[str], spelling: str) -> str | None:
    """The one entry that ends like a name, however that is spelled."""
    path = spelling.removeprefix("~").split(".")
    for length in range(len(path), 0, -1):
        tail = "." + ".".join(path[-length:])
        found = [name for name in objects if name.endswith(tail)]
        if len(found) == 1:
            return found[0]
    return None


def led(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, words: nodes.Element
) -> nodes.reference | None:
    """The link of a name that Python's domain does not find as it is spelled."""
    if node.get("refdomain") != "py" or node.get("reftype") == "mod":
        return None
    objects = env.domains["py"].data["objects"]
    known = [name for name, entry in objects.items() if not entry.aliased]
    found = meant(known, str(node["reftarget"]))
    if found is None:
        return None
    uri = app.builder.get_relative_uri(env.docname, objects[found].docname)
    place = f"{uri}#{objects[found].node_id}"
    return nodes.reference("", "", words, internal=True, refuri=place)


def mended(app: Sphinx, error: Exception | None) -> None:
    """The links of source pages back to entries: Sphinx has one package per source file for them,
    and some names of a file are imported from another one.
    """
    if error is not None or app.builder.format != "html":
        return
    objects = app.env.domains["py"].data["objects"]

    def right(match: re.Match[str]) -> str:
        written, page = match[3], match[2]
        last = re.sub(r"^(?:[a-z_]+[.])+", "", written)  # without its packages
        inside = "." in last  # of a class
        there = [
            name
            for name, entry in objects.items()
            if entry.docname == page and not entry.aliased and inside == (entry.objtype in INSIDE)
        ]
        found = written if written in objects else meant(there, last)
        return f'{match[1]}#{found or written}"'

    for page in (Path(app.outdir) / "_modules").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        changed = re.sub(r'(href="[^"#]*(reference/[\w-]*)[.]html)#(attsvm[\w.]*)"', right, text)
        if changed != text:
            page.write_text(changed, encoding="utf-8")


def skipped(
    _app: Sphinx, _kind: str, name: str, _value: object, skip: bool, _options: object
) -> bool | None:
    """Methods that scikit-learn adds to every estimator, with links into its own pages."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("entries", Entries)
    app.connect("autodoc-skip-member", skipped)
    app.connect("missing-reference", led)
    app.connect("build-finished", mended)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
