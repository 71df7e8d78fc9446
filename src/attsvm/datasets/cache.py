"""What is slow to compute from files, kept under the SHA-256 of what it is computed from."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.errors import InputError
from attsvm.files import CACHE_VARIABLE, cache_home
from attsvm.store.code import code_fingerprint
from attsvm.store.entries import entry_path, load_entry, save_entry

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
    """The arrays that ``make`` computes from what ``key`` names; read back where they were kept by
    the same code, anew where that file is damaged.
    """
    path = entry_path(cache_folder(), key, code_fingerprint(make))
    if path.exists():
        with contextlib.suppress(InputError, KeyError, ValueError):
            return load_entry(path)[0]
    arrays = {name: np.asarray(array) for name, array in make().items()}
    save_entry(path, arrays)
    return arrays


def cached_text(key: dict[str, Any], make: Callable[[], str]) -> str:
    """Like :func:`cached_arrays`, for one text."""

    @functools.wraps(make)
    def arrays() -> Arrays:
        return {"text": np.frombuffer(make().encode(), dtype=np.uint8)}

    return cached_arrays(key, arrays)["text"].tobytes().decode()


def texts_digest(texts: Iterable[str]) -> str:
    """SHA-256 over texts in order, each with its length in bytes in front."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()
