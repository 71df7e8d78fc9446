"""The code that a result depends on, as a fingerprint: the closure of what a function names.

A function names other definitions and imports; those are followed as far as code of this package,
or of the package that the function is from, goes. In the function's own package a definition counts
alone, so that a figure may be drawn anew without computing anew; in the library a module counts
whole, whichever of its definitions is imported. Words (comments, docstrings, annotations of
functions) never count. Modules that are imported by name, from a table, count where the table is.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import hashlib
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

_LIBRARY = "attsvm"
_DRAW = ("attsvm.presentation", "attsvm.report")  # rooms that decide no result
_MODULE_NAME = re.compile(_LIBRARY + r"(\.\w+)+")

Function = Callable[..., Any]


def code_fingerprint(*functions: Function) -> str:
    """SHA-256 of the code that decides what these functions return.

    Args:
        functions: functions, methods or classes; what they wrap and close over counts too.
    """
    found = closure(*functions)
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(f"{name}\0{found[name]}\0".encode())
    return digest.hexdigest()


def closure(*functions: Function) -> dict[str, str]:
    """The code behind :func:`code_fingerprint`: by module, the statements that count."""
    search = _Search()
    with _no_collection():
        for function in functions:
            for each in _wrapped(function, set()):
                search.begin(each)
        return {
            name: "\n".join(
                _read_statement(statement, module.package).text
                for statement in module.body
                if id(statement) in kept
            )
            for name, kept in search.kept.items()
            if (module := search.module(name)) is not None
        }


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Syntax trees are many objects and none of them garbage: to look for it takes half the
    time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@dataclass(frozen=True, eq=False)
class _Module:
    """A module's source.

    Attributes:
        name: as it is imported.
        package: the package that it is in, or that it is.
        body: its statements without words.
        bound: which of them bind a name.
        always: those that do something when it is imported.
        reexported: of a package, where a name is from: module and name there.
    """

    name: str
    package: str
    body: list[ast.stmt]
    bound: dict[str, list[ast.stmt]]
    always: list[ast.stmt]
    reexported: dict[str, tuple[str, str]]


class _Search:
    """Follows names from module to module."""

    def __init__(self) -> None:
        self.kept: dict[str, set[int]] = {}
        self._roots: dict[str, Path] = {}
        self._package = ""
        self._entered: set[str] = set()
        self._whole: set[str] = set()

    def begin(self, function: Any) -> None:
        """Follow a function or a class from its definition."""
        name = function.__module__
        path = getattr(sys.modules.get(name), "__file__", None)
        if path is None or _is_foreign(name, Path(path)):
            return
        depth = name.count(".") + (Path(path).name == "__init__.py")
        self._roots.setdefault(name.partition(".")[0], Path(path).resolve().parents[depth])
        self._roots.setdefault(_LIBRARY, Path(__file__).resolve().parents[2])
        self._package = name.rpartition(".")[0]
        self.take(name, function.__qualname__.partition(".")[0])

    def module(self, name: str) -> _Module | None:
        """The module of this name, None where it is foreign code, or not a module."""
        root = self._roots.get(name.partition(".")[0])
        if root is None:  # beside a script, its own modules
            root = self._roots.get("") if "." not in name else None
        return None if root is None else _read(root, name)

    def take(self, name: str, what: str | None) -> None:
        """Count what a module has under a name; with None the whole module."""
        if any(name == each or name.startswith(f"{each}.") for each in _DRAW):
            return None
        if what is not None and self.module(f"{name}.{what}") is not None:
            return self.take(f"{name}.{what}", None)
        module = self.module(name)
        if module is None:
            return None
        self._enter(module)
        if what in module.reexported:
            return self.take(*module.reexported[what])
        if what in module.bound and not self._counts_whole(module):
            for statement in module.bound[what]:
                self._keep(module, statement)
        elif name not in self._whole:
            self._whole.add(name)
            for statement in module.body:
                self._keep(module, statement)
        return None

    def _counts_whole(self, module: _Module) -> bool:
        return module.name.partition(".")[0] == _LIBRARY and (
            module.package != self._package or self._package == _LIBRARY
        )

    def _enter(self, module: _Module) -> None:
        """Count what happens when a module is imported: that of its packages, and its own
        statements that bind no name.
        """
        if module.name in self._entered:
            return
        self._entered.add(module.name)
        self.kept.setdefault(module.name, set())
        if parent := self.module(module.name.rpartition(".")[0]):
            self._enter(parent)
        for statement in module.always:
            self._keep(module, statement)

    def _keep(self, module: _Module, statement: ast.stmt) -> None:
        kept = self.kept[module.name]
        if id(statement) in kept:
            return
        kept.add(id(statement))
        found = _read_statement(statement, module.package)
        for name in found.names:
            for other in module.bound.get(name, ()):
                self._keep(module, other)
        for origin, what in found.imports:
            self.take(origin, what)


@functools.cache
def _read(root: Path, name: str) -> _Module | None:
    inner = root.joinpath(*name.split("."))
    for path in (inner.parent / f"{inner.name}.py", inner / "__init__.py"):
        if name and path.is_file():
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            tree = ast.parse(path.read_bytes())
            nodes = ast.walk(tree) if package == name else ()
            imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
            reexported = {  # lazily in some packages, which say it to type checkers
                alias.asname or alias.name: (_origin(package, node), alias.name)
                for node in imports
                for alias in node.names
            }
            body = [each for node in _plain(tree.body) for each in _single(node)]
            bound: dict[str, list[ast.stmt]] = {}
            always = []
            for statement in body:
                names = set(_binds(statement))
                for each in names:
                    bound.setdefault(each, []).append(statement)
                if not names or not isinstance(statement, _DEFINITIONS):
                    always.append(statement)
            return _Module(name, package, body, bound, always, reexported)
    return None


_DEFINITIONS = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign),
    *(ast.Import, ast.ImportFrom),
)


class _Statement(NamedTuple):
    """What a statement says.

    Attributes:
        text: as :func:`ast.dump` writes it.
        names: that it mentions.
        imports: module and name; None for the module itself.
    """

    text: str
    names: set[str]
    imports: list[tuple[str, str | None]]


@functools.cache
def _read_statement(statement: ast.stmt, package: str) -> _Statement:
    found = _Statement("", set(), [])
    return found._replace(text=_written(statement, package, found))


def _written(node: ast.AST, package: str, found: _Statement) -> str:
    """The text of a node; what it mentions is added to ``found``. One pass does both, because half
    a million nodes are read for a fit.
    """
    if isinstance(node, ast.Name):
        found.names.add(node.id)
        return f"Name(id={node.id!r}, ctx={node.ctx.__class__.__name__}())"
    if isinstance(node, ast.ImportFrom):
        origin = _origin(package, node)
        found.imports.extend((origin, None if a.name == "*" else a.name) for a in node.names)
    elif isinstance(node, ast.Import):
        found.imports.extend((alias.name, None) for alias in node.names)
    elif isinstance(node, ast.Constant) and _MODULE_NAME.fullmatch(str(node.value)):
        found.imports.append((str(node.value), None))
    parts = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            parts.append(f"{name}={_written(value, package, found)}")
        elif isinstance(value, list):
            inner = [
                _written(each, package, found) if isinstance(each, ast.AST) else repr(each)
                for each in value
            ]
            parts.append(f"{name}=[{', '.join(inner)}]")
        elif value is not None or getattr(type(node), name, ...) is not None:  # it must be there
            parts.append(f"{name}={value!r}")
    return f"{type(node).__name__}({', '.join(parts)})"


def _single(statement: ast.stmt) -> list[ast.stmt]:
    """An import of several names as imports of one each."""
    if isinstance(statement, ast.Import):
        return [ast.Import([alias]) for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        module, level = statement.module, statement.level
        return [ast.ImportFrom(module, [alias], level) for alias in statement.names]
    return [statement]


def _binds(statement: ast.AST) -> Iterator[str]:
    """Names that a statement at the top of a module binds there."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    else:
        for node in ast.iter_child_nodes(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif not isinstance(node, ast.expr) or isinstance(node, (ast.Tuple, ast.List)):
                yield from _binds(node)


def _plain(body: list[Any]) -> list[Any]:
    """Statements without what a result cannot depend on: words that stand for themselves, imports
    for type checkers, what a script does when it is run, annotations of functions.
    """
    kept = []
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.If):
            words = {each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)}
            if words & {"TYPE_CHECKING", "__name__"} and not node.orelse:
                continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns, given = None, node.args
            extra = filter(None, (given.vararg, given.kwarg))
            for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, *extra):
                each.annotation = None
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            if inner := getattr(node, part, None):
                setattr(node, part, _plain(inner))
        kept.append(node)
    return kept


def _origin(package: str, node: ast.ImportFrom) -> str:
    """The module that a statement imports from."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


def _is_foreign(name: str, path: Path) -> bool:
    """Whether a module is of Python or of an installed package of others, which have versions."""
    installed = {Path(folder) for folder in sysconfig.get_paths().values()}
    return not name.startswith(_LIBRARY) and not installed.isdisjoint(path.parents)


def _wrapped(function: Any, seen: set[int]) -> Iterator[Any]:
    """The function, and all that it wraps, is bound to or closes over."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, functools.partial):
        inner = [function.func, *function.args, *function.keywords.values()]
    elif inspect.ismethod(function):
        inner = [function.__func__, type(function.__self__)]
    elif inspect.isfunction(function) or inspect.isclass(function):
        yield function
        inner = [getattr(function, "__wrapped__", None)]
        for cell in getattr(function, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # it is empty
                inner.append(cell.cell_contents)
    else:
        inner = [getattr(function, "py_func", None), type(function)]
        inner += getattr(function, "functions", ())  # of an object that calls several
    for each in inner:
        if callable(each):
            yield from _wrapped(each, seen)
