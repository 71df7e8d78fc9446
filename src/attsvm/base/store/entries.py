"""Results under names made of what decides them: parameters, versions and code. An entry is whole
or absent, and is never served for anything else.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import ArrayLike

from attsvm.base.files import digest, load_arrays, save_arrays
from attsvm.base.interruption import removed_when_interrupted, work_is_kept
from attsvm.base.store.environment import environment, versions

Arrays = dict[str, np.ndarray[Any, Any]]

_ABOUT = "entry.about"
_NAME = re.compile(r"\.?([0-9a-f]{32})(\.safetensors\.lock|\.[0-9a-f]{8}\.partial\.safetensors)")
"""Names of what belongs to an entry: its lock, its unfinished writes."""


def entry_path(folder: Path, parameters: Mapping[str, Any], code: str) -> Path:
    """The file of the entry of these parameters, computed by code of this digest with the versions
    that are installed.
    """
    decisive = {"parameters": dict(parameters), "code": code, "versions": versions()}
    return folder / f"{digest(decisive)[:32]}.safetensors"


def save_entry(path: Path, arrays: Mapping[str, ArrayLike], **about: Any) -> None:
    """Keep arrays, and with them today's environment and what else there is to say about them."""
    text = json.dumps({**about, "environment": environment()})
    save_arrays({**arrays, _ABOUT: np.frombuffer(text.encode(), dtype=np.uint8)}, path)
    work_is_kept()


def load_entry(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of an entry, and what is said about them."""
    arrays = load_arrays(path)
    work_is_kept()
    return arrays, json.loads(arrays.pop(_ABOUT).tobytes())


@contextlib.contextmanager
def alone(path: Path, *, wait: bool = True) -> Iterator[None]:
    """A block in which nobody else is at work on this entry. No lock stays behind: whoever makes a
    new one finds the entry.

    Raises:
        Timeout: somebody is, and is not waited for.
    """
    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=-1 if wait else 0)
    with lock, removed_when_interrupted(Path(lock.lock_file)):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # some systems keep what is open
                Path(lock.lock_file).unlink()


def tidy(folder: Path) -> None:
    """Remove what killed processes left among the entries of a folder: unfinished writes and
    locks. What another process is at work on stays.
    """
    if not folder.is_dir() or folder.is_symlink():
        return
    leftovers: dict[Path, list[Path]] = {}
    for path in folder.iterdir():
        if match := _NAME.fullmatch(path.name):
            leftovers.setdefault(folder / f"{match[1]}.safetensors", []).append(path)
    for entry, paths in leftovers.items():
        with contextlib.suppress(Timeout), alone(entry, wait=False):
            for path in paths:
                if path.is_file() and not path.is_symlink():
                    path.unlink()
