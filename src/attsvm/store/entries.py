"""Results under names made of what decides them: parameters, versions and code. An entry is whole
or absent, and is never served for anything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.files import load_arrays, save_arrays
from attsvm.store.environment import environment, versions
from attsvm.store.json_files import fingerprint
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
    about: dict[str, Any] = json.loads(arrays.pop(_ABOUT).tobytes())
    return arrays, about


def is_entry(path: Path) -> bool:
    """Whether a file or folder has the name of an entry, or of its unfinished work."""
    return _NAME.fullmatch(path.stem) is not None


def remove_unfinished(folder: Path) -> None:
    """Delete what killed processes had begun to write among the entries of a folder."""
    if folder.is_dir() and not folder.is_symlink():
        names = {path.name[1:33] for path in folder.iterdir()}
        remove_partials(folder, {f"{name}.safetensors" for name in names if _NAME.fullmatch(name)})
