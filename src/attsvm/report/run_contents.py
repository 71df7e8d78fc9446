"""A run folder, read and checked: all that the report draws from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.base.errors import InputError
from attsvm.base.files import load_arrays, read_json
from attsvm.base.store import read_run
from attsvm.report.printing import finite


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
        """The list of objects at a dotted path of ``run.json``; empty where there is none."""
        return self.at(path) or []

    def series(self, *names: str) -> list[NDArray[np.float64]] | None:
        """These one-dimensional arrays of one length as floats, None when one is absent or
        empty.
        """
        if not all(name in self.arrays and len(self.arrays[name]) for name in names):
            return None
        return [self.arrays[name].astype(np.float64) for name in names]

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; of two the second is the positive one."""
        return [str(name) for name in self.at("dataset.class_names") or ("0", "1")]

    @property
    def theory_classes(self) -> tuple[str, str]:
        """Names of the two sides that the theory tells apart, the one against first."""
        return (
            str(self.at("results.theory.rest") or "the others"),
            str(self.at("results.theory.class") or "positive"),
        )

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
        return finite(self.at("results.margin.margin"))


def read(folder: Path, record: Any = None) -> Run:
    """Read a run folder; ``record`` takes the place of ``run.json`` while that is yet to be
    written.

    Raises:
        InputError: no such folder, no ``run.json``, another format, or a file that cannot be read.
    """
    record = read_run(folder) if record is None else record
    page, request = folder / "report.html", record.get("request")
    if isinstance(request, dict):  # a fit keeps it in a file of its own
        there = f"; its page is {page}" if page.is_file() else ""
        raise InputError(
            f"{folder} holds a {request.get('command')}, and only fits are drawn again{there}"
        )
    if (record.get("parameters") or {}).get("assumption") == "standard":
        there = f"open {page}, which the fit has written, or " if page.is_file() else ""
        raise InputError(
            f"{folder} holds a fit of the standard assumption, whose page is drawn from"
            f" page.json, which is not there; {there}delete the folder and run"
            f" {record.get('command_line') or 'the fit'} again"
        )
    examples = read_json(folder / "examples.json") if (folder / "examples.json").is_file() else []
    path = folder / "arrays.safetensors"
    if not path.is_file():
        raise InputError(
            f"{path} is missing, so there is nothing to draw; delete the folder and run attsvm fit"
            " again"
        )
    return Run(folder, record, load_arrays(path), examples)
