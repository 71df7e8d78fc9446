"""A run folder, read and checked: all that the report draws from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.errors import InputError
from attsvm.files import load_arrays
from attsvm.printable import visible
from attsvm.store import read_json, read_run


@dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
        folder: where it lies.
        record: the content of ``run.json``.
        arrays: the content of ``arrays.safetensors``.
        examples: the content of ``examples.json``; empty when the file is absent.
    """

    folder: Path
    record: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    examples: list[dict[str, Any]]

    def at(self, path: str) -> Any:
        """The value at a dotted path of ``run.json``, None where any part of the path is absent or
        null.
        """
        value: Any = self.record
        for key in path.split("."):
            if not isinstance(value, dict):
                return None
            value = value.get(key)
        return value

    def objects(self, path: str) -> list[dict[str, Any]]:
        """The objects of the list at a dotted path of ``run.json``; none where there is no list."""
        value = self.at(path)
        return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []

    def series(self, *names: str) -> list[NDArray[np.float64]] | None:
        """These one-dimensional arrays as floats, None when one is absent or empty; cut to the
        length of the shortest.
        """
        found = [self.arrays.get(name) for name in names]
        columns = [
            np.asarray(array, dtype=np.float64).reshape(-1) for array in found if array is not None
        ]
        if len(columns) < len(names):
            return None
        length = min(len(column) for column in columns)
        return [column[:length] for column in columns] if length else None

    @property
    def class_names(self) -> tuple[str, str]:
        """Names of the negative and the positive class."""
        names = self.at("dataset.class_names")
        if isinstance(names, list) and len(names) == 2:
            return str(names[0]), str(names[1])
        return "−1", "+1"

    @property
    def norm_title(self) -> str:
        """The norm of the fit in words."""
        return str(self.at("results.margin.geometry_title") or "Frobenius norm")

    @property
    def frobenius(self) -> bool:
        """Whether the norm of the fit is the Frobenius norm."""
        return self.at("results.margin.geometry") in (None, "fro")

    @property
    def margin(self) -> float | None:
        """The certified best margin, the unit in which the report shows margins; None when there is
        none.
        """
        value = self.at("results.margin.margin")
        return (
            float(value)
            if isinstance(value, (int, float)) and np.isfinite(value) and value > 0
            else None
        )


def read(folder: Path, record: Any = None) -> Run:
    """Read a run folder; ``record`` takes the place of ``run.json`` while that is yet to be
    written.

    Raises:
        InputError: no such folder, no ``run.json``, another format, or a file that cannot be read.
    """
    record = read_run(folder) if record is None else record
    if (record.get("parameters") or {}).get("assumption") == "standard":
        page = folder / "report.html"
        there = f"open {page}, which the fit has written, or " if page.is_file() else ""
        raise InputError(
            f"{folder} holds a fit of the standard assumption, whose page is drawn from"
            f" page.json, which is not there; {there}delete the folder and run"
            f" {record.get('command_line') or 'the fit'} again"
        )
    examples = read_json(folder / "examples.json") if (folder / "examples.json").is_file() else []
    if not isinstance(examples, list) or not all(isinstance(example, dict) for example in examples):
        raise InputError(
            f"{folder / 'examples.json'} is not a list of objects; delete the folder and run attsvm"
            " fit again"
        )
    arrays = _arrays(folder / "arrays.safetensors")
    return Run(folder, _visible(record), arrays, _visible(examples))


def _visible(value: Any) -> Any:
    """The same JSON value; every text without what steers a page, and with as many characters."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_visible(item) for item in value]
    if isinstance(value, dict):
        return {visible(key): _visible(item) for key, item in value.items()}
    return value


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise InputError(
            f"{path} is missing, so there is nothing to draw; delete the folder and run attsvm fit"
            " again"
        )
    return load_arrays(path)
