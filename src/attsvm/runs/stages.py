"""Stages of a long computation, kept on disk so that a killed process goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.errors import InputError
from attsvm.files import load_arrays, save_arrays
from attsvm.runs.folder import write_json

Arrays = dict[str, np.ndarray[Any, Any]]


class Stages:
    """Named sets of arrays in a folder, bound to the fingerprint of the computation that writes
    them.

    A stage is ``partial`` while the computation is inside it and ``done`` afterwards. Every write
    is atomic.

    Args:
        folder: where to keep them; ``None`` keeps nothing.
        key: fingerprint of data and parameters.

    Raises:
        InputError: the folder holds stages of another computation.
    """

    def __init__(self, folder: Path | None, key: str) -> None:
        self.folder = folder
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        owner = folder / "owner.json"
        if owner.exists():
            if json.loads(owner.read_text(encoding="utf-8"))["key"] != key:
                raise InputError(
                    f"{folder} holds the checkpoint of another computation; delete it or choose"
                    " another folder"
                )
        else:
            write_json(owner, {"key": key})

    def save(self, stage: str, arrays: Arrays, *, done: bool) -> None:
        """Keep ``arrays`` as the state of ``stage``."""
        if self.folder is None:
            return
        save_arrays(arrays, self._path(stage, done))
        if done:
            self._path(stage, False).unlink(missing_ok=True)

    def load(self, stage: str) -> tuple[Arrays | None, bool]:
        """``(arrays, done)`` of ``stage``; ``(None, False)`` when it has not begun."""
        if self.folder is not None:
            for done in (True, False):
                if self._path(stage, done).exists():
                    return load_arrays(self._path(stage, done)), done
        return None, False

    def _path(self, stage: str, done: bool) -> Path:
        assert self.folder is not None
        return self.folder / f"{stage}.{'done' if done else 'partial'}.safetensors"
