"""Sphinx extension: the entries of the reference, under the names by which they are imported.

* ``{entries} PACKAGE`` is an entry for each public name of the package but those of the option
  ``without``; the lines of its body, if there are any, are the names that it shows instead.
* A name of a docstring leads to its entry, whichever way it is spelled there.
"""

from __future__ import annotations

import importlib
import inspect
import typing
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
    option_spec: ClassVar[OptionSpec] = {"without": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        package = self.arguments[0]
        without = str(self.options.get("without", "")).split()
        if unknown := sorted(set(without) - set(public(package))):
            raise self.error(f"{package} has no {' and no '.join(unknown)}")
        names = [line.strip() for line in self.content if line.strip()] or [
            name for name in public(package) if name not in without
        ]
        every = [line for name in names for line in ["", *entry(spelled(package, name)), ""]]
        text = StringList(["````{eval-rst}", *every, "````"], self.get_source_info()[0])
        node = nodes.container()
        self.state.nested_parse(text, self.content_offset, node)
        return node.children


def led(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, words: nodes.Element
) -> nodes.reference | None:
    """The link of a name that Python's domain does not find as it is spelled: to the entry that
    ends like it, where there is one only.
    """
    if node.get("refdomain") != "py":
        return None
    domain = env.domains["py"]
    path = str(node["reftarget"]).removeprefix("~").split(".")
    for length in (2, 1):
        tail = "." + ".".join(path[-length:])
        found = [name for name in domain.data["objects"] if name.endswith(tail)]
        if len(found) == 1 and len(path) >= length and (length == 2 or path[-1][:1] != "_"):
            target = domain.data["objects"][found[0]]
            uri = app.builder.get_relative_uri(env.docname, target.docname)
            return nodes.reference("", "", words, internal=True, refuri=f"{uri}#{target.node_id}")
    return None


def skipped(
    _app: Sphinx, _kind: str, name: str, _value: object, skip: bool, _options: object
) -> bool | None:
    """Methods that scikit-learn adds to every estimator, with links into its own pages."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("entries", Entries)
    app.connect("autodoc-skip-member", skipped)
    app.connect("missing-reference", led)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
