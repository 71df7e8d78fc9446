"""Results under names made of what decides them: parameters, versions and code. An entry is whole
or absent, and is never served for anything else.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.files import load_arrays, save_arrays
from attsvm.store.environment import environment, versions
from attsvm.store.json_files import fingerprint
from attsvm.store.leases import Watch, leased, take
from attsvm.store.ledger import remove_partials

Arrays = dict[str, np.ndarray[Any, Any]]

_ABOUT = "entry.about"
_NAME = re.compile(r"[0-9a-f]{32}")


def entry_path(folder: Path, parameters: Mapping[str, Any], code: str) -> Path:
    """Where the entry of these parameters lies, computed by code of this fingerprint with the
    versions that are installed.
    """
    decided = {"parameters": dict(parameters), "code": code, "versions": versions()}
    return folder / f"{fingerprint(decided)[:32]}.safetensors"


def save_entry(path: Path, arrays: Mapping[str, ArrayLike], **about: Any) -> None:
    """Keep arrays, and with them today's environment and what else there is to say about them."""
    text = json.dumps({**about, "environment": environment()})
    told = np.frombuffer(text.encode(), dtype=np.uint8)
    save_arrays({**arrays, _ABOUT: told}, path)


def load_entry(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of an entry, and what is said about them."""
    arrays = load_arrays(path)
    return arrays, json.loads(arrays.pop(_ABOUT).tobytes())


def is_entry(path: Path) -> bool:
    """Whether a file or folder has the name of an entry, or of its unfinished work."""
    return _NAME.fullmatch(path.stem) is not None


def tidy(folder: Path) -> None:
    """Remove what killed processes left among the entries of a folder: unfinished writes,
    checkpoints of finished entries, leases that nobody holds. What another process may be at work
    on stays.
    """
    if not folder.is_dir() or folder.is_symlink():
        return
    watch, leases = Watch(), leased(folder)
    partial = {folder / f"{path.name[1:33]}.safetensors" for path in folder.glob(".*.partial*")}
    for path in leases | {path for path in partial if is_entry(path)}:
        if not watch.held(path) and (lease := take(path)) is not None:
            with lease:
                remove_partials(folder, {path.name})
    for checkpoints in list(folder.iterdir()):
        finished = checkpoints.with_suffix(".safetensors")
        if is_entry(checkpoints) and checkpoints.is_dir() and finished.exists():
            shutil.rmtree(checkpoints, ignore_errors=True)
