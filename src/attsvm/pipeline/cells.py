"""Cells of experiments, computed once and kept under a name made of their content."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import inspect
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.files import load_arrays, save_arrays
from attsvm.runs import fingerprint
from attsvm_papers.kit import Cell, Experiment, experiment

Arrays = dict[str, np.ndarray[Any, Any]]
Step = Callable[[int, int], None]

_IDLE_ROOMS = ("bench", "cli", "claims", "pipeline", "report", "sklearn.py")
"""Rooms that do not take part in computing a cell."""
_SECONDS = "cell.seconds"


class Cells:
    """The cells of an experiment where they are kept, each under a name made of what decides it.

    Cells that lie in ``folder`` are read; the others are computed and written as they finish, so
    that a killed run loses at most the cells in flight, and of those that keep checkpoints what
    came after the last one.

    Args:
        chosen: the experiment.
        cells: what to compute.
        folder: where cells are kept, in a folder named after the module of the experiment's
            ``run``: whatever shares it shares them.
        begun: the files of cells that will be there when the results are asked for; those that are
            missing join them.
    """

    def __init__(
        self,
        chosen: Experiment,
        cells: Sequence[Cell],
        folder: Path,
        begun: set[Path] | None = None,
    ) -> None:
        module = inspect.getmodule(chosen.run)
        assert module is not None
        folder = folder / module.__name__.rpartition(".")[2].replace("_", "-")
        folder.mkdir(parents=True, exist_ok=True)
        begun = set() if begun is None else begun
        for checkpoints in folder.iterdir():
            if (
                checkpoints.is_dir() and checkpoints.with_suffix(".safetensors").exists()
            ):  # killed before it could remove them
                shutil.rmtree(checkpoints, ignore_errors=True)
        code = code_fingerprint(chosen)
        self._paths = [
            folder / f"{fingerprint({'cell': dict(cell), 'code': code})[:32]}.safetensors"
            for cell in cells
        ]
        self.missing = [
            (chosen.asked, dict(cell), path)
            for cell, path in zip(cells, self._paths, strict=True)
            if path not in begun and not path.exists()
        ]
        """Arguments of :func:`work` for every cell that is not there."""
        begun.update(path for _, _, path in self.missing)

    def results(self, finished: Iterator[None], step: Step) -> tuple[list[Arrays], float]:
        """The arrays of all cells, in order, and the seconds that computing them took (now or when
        they were first computed).

        Args:
            finished: yields as each missing cell is done.
            step: called with the number of finished cells and of all cells.
        """
        done = len(self._paths) - len(self.missing)
        step(done, len(self._paths))
        for _ in finished:
            done += 1
            step(done, len(self._paths))
        found = [load_arrays(path) for path in self._paths]
        return found, float(sum(result.pop(_SECONDS) for result in found))


def code_fingerprint(chosen: Experiment) -> str:
    """SHA-256 of the code that decides an experiment's numbers.

    That is every module of the rooms below the experiments, and the experiment's own module and
    those it imports from its own room, without their claims and plots: drawing a figure anew does
    not compute it anew.
    """
    module = inspect.getmodule(chosen.run)
    return hashlib.sha256(
        (_library() + (_computes(module.__name__, set()) if module else "")).encode()
    ).hexdigest()


def _computes(name: str, seen: set[str]) -> str:
    """The statements of an experiment's module that can decide numbers, and those of the modules of
    the laboratory that it imports.
    """
    seen.add(name)
    tree = ast.parse(inspect.getsource(importlib.import_module(name)))
    tree.body = [node for node in tree.body if not _presents(node)]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    named = {
        found
        for node in imports
        for alias in node.names
        for found in (str(node.module), f"{node.module}.{alias.name}")
    }
    inner = sorted(
        each for each in named - seen if each.startswith("attsvm_papers.") and _is_module(each)
    )
    return ast.dump(tree) + "".join(_computes(each, seen) for each in inner)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a name inside a module
        return False


def _presents(node: ast.stmt) -> bool:
    """Whether a top-level statement says what to claim or draw, or is words."""
    if isinstance(node, ast.FunctionDef):
        decorators = {
            each.func.id
            for each in node.decorator_list
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
        }
        return bool(decorators & {"claim", "each", "picture"}) or node.name.startswith(
            ("plot", "_plot", "draw", "_claim", "_measure")
        )
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return any(
        isinstance(target, ast.Name) and target.id in ("CLAIMS", "EXPERIMENT", "NOTES")
        for target in targets
    )


@functools.cache
def _library() -> str:
    spec = importlib.util.find_spec("attsvm")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        inner = path.relative_to(root)
        if inner.parts[0] not in _IDLE_ROOMS and inner.parts != ("__init__.py",):
            digest.update(f"{inner.as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def work(identifier: str, cell: dict[str, Any], path: Path) -> None:
    """Compute one cell of an experiment into its file."""
    started, run, checkpoints = (
        time.perf_counter(),
        experiment(identifier).run,
        path.with_suffix(""),
    )
    own: dict[str, Any] = (
        {"folder": checkpoints} if "folder" in inspect.signature(run).parameters else {}
    )
    try:
        arrays = {name: np.asarray(value) for name, value in run(**cell, **own).items()}
    except Exception as error:
        error.add_note(f"while computing {identifier}, cell {cell}")
        raise
    save_arrays({**arrays, _SECONDS: np.array(time.perf_counter() - started)}, path)
    shutil.rmtree(checkpoints, ignore_errors=True)
