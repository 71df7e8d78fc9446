"""The examples of docstrings: they print what they say, and every public callable has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import attsvm

COMPLETE = (
    "attsvm.claims",
    "attsvm.datasets.attention_data",
    "attsvm.datasets.arrays",
    "attsvm.datasets.catalogue",
    "attsvm.datasets.drawn",
    "attsvm.datasets.images",
    "attsvm.theory.sentences",
    "attsvm.datasets.toys",
    "attsvm.training",
    "attsvm.base.errors",
    "attsvm.norms",
    "attsvm.margins",
    "attsvm.attention",
    "attsvm.optim",
    "attsvm.datasets.queries",
    "attsvm.theory",
    "attsvm.sklearn",
    "attsvm.solvers",
)
"""Files and rooms of which every public callable has an example."""

SOURCE = Path(attsvm.__file__).parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class _Zeros(doctest.OutputChecker):
    """Takes -0.0 for 0.0: the sign of a zero is a rounding."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        want, got = (re.sub(r"-(0\.0*)(?!\d)", r"\1", text) for text in (want, got))
        return super().check_output(want, got, optionflags)


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SHOWN = [
    _module(path)
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
"""Every module with an example in a docstring."""


@pytest.mark.parametrize("name", SHOWN)
def test_examples_print_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with nothing but what it imports itself, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    examples = doctest.DocTestFinder(exclude_empty=True).find(
        importlib.import_module(name), name, globs={}
    )
    runner = doctest.DocTestRunner(_Zeros(), optionflags=OPTIONS)
    said: list[str] = []
    for example in examples:
        runner.run(example, out=said.append)
    assert runner.summarize(verbose=False).attempted > 0
    assert "".join(said) == ""


def _callables() -> Iterator[tuple[str, object]]:
    """The public callables of all public rooms, under the name of the file that they live in."""
    rooms = [attsvm.__name__]
    rooms += [each.name for each in pkgutil.walk_packages(attsvm.__path__, "attsvm.") if each.ispkg]
    for room in (*rooms, "attsvm.base.errors"):
        home = importlib.import_module(room)
        for name in getattr(home, "__all__", ()):
            value = getattr(home, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                yield f"{value.__module__}.{name}", value


@pytest.mark.parametrize("home", COMPLETE)
def test_every_public_callable_has_an_example(home: str) -> None:
    found = {name: value for name, value in _callables() if f"{name}.".startswith(f"{home}.")}
    assert found
    assert [name for name, value in found.items() if ">>> " not in (value.__doc__ or "")] == []
