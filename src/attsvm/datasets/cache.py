"""What is slow to compute from files, kept under the SHA-256 of what it is computed from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.errors import InputError
from attsvm.files import CACHE_VARIABLE, atomic_write, cache_home, load_arrays, save_arrays

Arrays = dict[str, NDArray[Any]]


def cache_folder() -> Path:
    """The folder :func:`attsvm.files.cache_home`, made when missing.

    Raises:
        InputError: it cannot be made.
    """
    try:
        folder = cache_home()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"the cache cannot be made ({error}); set {CACHE_VARIABLE} to a folder that you may"
            " write to"
        ) from None
    return folder


def cached_arrays(key: dict[str, Any], make: Callable[[], Arrays]) -> Arrays:
    """The arrays that ``make`` computes from what ``key`` names; read back where they were kept,
    anew where that file is damaged.
    """
    path = cache_folder() / f"{_address(key)}.safetensors"
    if path.exists():
        try:
            return load_arrays(path)
        except InputError:
            path.unlink(missing_ok=True)
    arrays = {name: np.asarray(array) for name, array in make().items()}
    save_arrays(arrays, path)
    return arrays


def cached_text(key: dict[str, Any], make: Callable[[], str]) -> str:
    """Like :func:`cached_arrays`, for one text."""
    path = cache_folder() / f"{_address(key)}.txt"
    if path.exists():
        return path.read_text(encoding="utf-8")
    text = make()
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return text


def texts_digest(texts: Iterable[str]) -> str:
    """SHA-256 over texts in order, each with its length in bytes in front."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def _address(key: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
