"""Stages of a long computation, kept on disk so that a killed process goes on where it was."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.base.files import load_arrays, save_arrays
from attsvm.base.interruption import work_is_kept
from attsvm.base.store.environment import environment
from attsvm.base.store.ledger import Ledger, remove_partials

Arrays = dict[str, np.ndarray[Any, Any]]

FORMAT = "attsvm-checkpoint/1"

_OWNER = "owner.json"


class Stages:
    """Named sets of arrays in a folder, bound to the fingerprint of the computation that writes
    them.

    A stage is ``partial`` while the computation is inside it and ``done`` afterwards. Every write
    is atomic.

    Args:
        folder: where to keep them; ``None`` keeps nothing.
        key: fingerprint of data and parameters.

    Raises:
        InputError: the folder holds stages of another computation, or another's file under a name
            that is needed.
    """

    def __init__(self, folder: Path | None, key: str) -> None:
        self.folder = folder
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        found, here = Ledger.read(folder / _OWNER, FORMAT), environment()
        if found is None:
            found = Ledger(folder / _OWNER, FORMAT, key, [])
            found.check_free([_OWNER])
        elif found.key != key:
            raise InputError(
                f"{folder} holds the checkpoint of another computation; delete it or choose another"
                " folder"
            )
        others = [each for each in found.request or [] if each != here]
        self._ledger = replace(found, request=[*others, here]).write()
        found.remove_unfinished()

    def save(self, stage: str, arrays: Arrays, *, done: bool) -> None:
        """Keep ``arrays`` as the state of ``stage``."""
        if self.folder is None:
            return
        name = _name(stage, done)
        self._ledger = self._ledger.adding([name])
        save_arrays(arrays, self.folder / name)
        work_is_kept()
        if done:
            self._ledger.remove([_name(stage, False)])

    def load(self, stage: str) -> tuple[Arrays | None, bool]:
        """``(arrays, done)`` of ``stage``; ``(None, False)`` when it has not begun."""
        if self.folder is not None:
            for done in (True, False):
                path = self.folder / _name(stage, done)
                if path.exists():
                    arrays = load_arrays(path)
                    work_is_kept()
                    return arrays, done
        return None, False


def stage_environments(folder: Path) -> list[dict[str, Any]]:
    """In which environments the stages in a folder were computed, today's last."""
    ledger = Ledger.read(folder / _OWNER, FORMAT)
    return list(ledger.request or []) if ledger else []


def remove_stages(folder: Path) -> None:
    """Delete the stages in a folder, and the folder when nothing else is in it."""
    if folder.is_symlink():
        return
    remove_partials(folder, {_OWNER})
    if ledger := Ledger.read(folder / _OWNER, FORMAT):
        ledger.remove_unfinished()
        ledger.remove(ledger.files)
        ledger.path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def flatten(prefix: str, values: Mapping[str, ArrayLike]) -> Arrays:
    """``{name: value}`` as ``{prefix.name: array}``: a state's parts in one flat dict."""
    return {f"{prefix}.{name}": np.asarray(value) for name, value in values.items()}


def gather(prefix: str, arrays: Mapping[str, Any]) -> Arrays:
    """The inverse of :func:`flatten`: what ``arrays`` holds under this prefix."""
    start = f"{prefix}."
    return {
        key.removeprefix(start): np.asarray(value)
        for key, value in arrays.items()
        if key.startswith(start)
    }


def _name(stage: str, done: bool) -> str:
    return f"{stage}.{'done' if done else 'partial'}.safetensors"
