"""Solutions on disk, bit for bit.

Every array goes into ``.npz`` or ``.safetensors`` under its name, those of the programme under
``margins.NAME``; everything else, the norm by its name, goes into one array of JSON text. Python
prints a float64 so that it reads back as the same one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.files import load_arrays, save_arrays
from attsvm.margins import Margins
from attsvm.norms import parse_norm

Solution = TypeVar("Solution")

FORMAT = "attsvm-solution/1"
_RECORD = "record"


def save_solution(solution: Any, path: str | Path) -> None:
    """Write a solution; see :meth:`attsvm.MarginSolution.save`."""
    arrays: dict[str, Any] = {}
    record: dict[str, Any] = {"format": FORMAT, "geometry": solution.geometry.name}
    if parse_norm(solution.geometry.name) != solution.geometry:
        raise InputError(
            f"the norm {solution.geometry!r} has no name that gives it back, so the solution cannot"
            " be saved"
        )
    # Arrays under their names, everything else in one record of JSON.
    for prefix, holder in (("", solution), ("margins.", solution.margins)):
        for field in fields(holder):
            value = getattr(holder, field.name)
            if field.name in ("geometry", "margins"):
                continue
            if isinstance(value, np.ndarray):
                arrays[prefix + field.name] = value
            else:
                record[prefix + field.name] = _python_number(value)
    text = json.dumps(record).encode()
    save_arrays(arrays | {_RECORD: np.frombuffer(text, dtype=np.uint8)}, path)


def load_solution(path: str | Path, solution: Callable[..., Solution]) -> Solution:
    """Read a solution; see :meth:`attsvm.MarginSolution.load`. ``solution`` is its class."""
    arrays = load_arrays(path)
    try:
        record = json.loads(np.asarray(arrays.pop(_RECORD), dtype=np.uint8).tobytes())
        if record.pop("format") != FORMAT:
            raise ValueError("another format")
        message = record.pop("message", "")  # of older files: now the fields make it
        if message and record["solver"] == "none":
            record["reason"] = message.partition(": ")[2]
        values: dict[str, Any] = {**record, **arrays}
        programme = {
            name.removeprefix("margins."): values.pop(name)
            for name in [name for name in values if name.startswith("margins.")]
        }
        return solution(
            margins=Margins(**programme),
            geometry=parse_norm(values.pop("geometry")),
            **values,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} holds no solution that this version reads ({type(error).__name__}); write it"
            " with MarginSolution.save"
        ) from None


def _python_number(value: Any) -> Any:
    """The value as a number of Python where it is one of NumPy."""
    return value.item() if isinstance(value, np.generic) else value
