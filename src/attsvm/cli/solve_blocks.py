"""What ``attsvm solve`` does with data that are read in parts."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from attsvm.cli.executors import executor
from attsvm.errors import InputError


def in_blocks(options: argparse.Namespace) -> bool:
    """Whether the data are read in parts: a folder of ``.npy`` files, or with ``--memory``."""
    from attsvm.files import is_folder

    path = Path(options.data)
    return options.memory is not None or (is_folder(path) and any(path.glob("*.npy")))


def programme(options: argparse.Namespace) -> Any:
    """The programme of the data.

    Raises:
        InputError: an option that data in parts do not take, or no selection.
    """
    import numpy as np

    from attsvm.margins import MappedSelections, Margins

    if options.programme != "selection":
        raise InputError(
            f"--programme {options.programme} reads all data at once; leave out --memory, or give"
            " a file instead of a folder"
        )
    path, selection = Path(options.data), options.tokens
    if options.executor is not None:  # whose workers may have been started elsewhere
        path = path.resolve()
    if selection == "first":
        return Margins.from_blocks(MappedSelections(path, _first))
    if selection != "optimal":
        return Margins.from_blocks(MappedSelections(path, selection))
    data = MappedSelections(path, _first)
    missing = [name for name in ("v", "y") if name not in data.names]
    if missing:
        raise InputError(
            f"--tokens optimal needs an array {' and an array '.join(missing)} beside X; store"
            " head and labels, or name the array of the selected tokens with --tokens"
        )
    head = np.asarray(data.whole("v"), dtype=np.float64)
    return Margins.from_blocks(MappedSelections(path, partial(_optimal, head)))


@contextlib.contextmanager
def workers(options: argparse.Namespace) -> Iterator[Any]:
    """What ``--executor`` names; None for this process."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from attsvm.workers import begin_process

    folder = Path("runs") / f"solve-{Path(options.data).stem}"
    with executor(options.executor, folder) as (found, jobs):
        if jobs is None:
            yield found
            return
        with ProcessPoolExecutor(jobs, get_context("spawn"), begin_process, (1,)) as pool:
            yield pool


def _first(arrays: dict[str, Any]) -> Any:
    import numpy as np

    if "mask" not in arrays:
        return np.zeros(len(arrays["X"]), dtype=np.int64)
    return np.argmax(arrays["mask"], axis=1)


def _optimal(head: Any, arrays: dict[str, Any]) -> Any:
    from attsvm.data import AttentionData
    from attsvm.selection import optimal_tokens

    given = arrays["X"], arrays["y"], arrays["Z"], arrays.get("mask")
    data = AttentionData(*given)  # type: ignore[arg-type]
    return optimal_tokens(data, head)
