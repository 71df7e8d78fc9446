"""States of an encoder as one table on disk, which is written once and read by slices.

The file is a safetensors file: ``done`` says how many batches are in it, -1 once all are,
``unread`` how many texts were not read to their end, ``offsets`` where each text begins,
``positions`` which instance of its text a row is, and ``states`` has the rows, in float16. NumPy
has no bfloat16, and float16 has three digits more, so that states computed in bfloat16 lose
nothing.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from attsvm.base.errors import InputError
from attsvm.base.files import atomic_write
from attsvm.base.interruption import work_is_kept
from attsvm.datasets.attention_data import IntArray

States = NDArray[np.float16]
_TYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "F16": np.dtype("<f2"),
}


class StateTable:
    """Rows of states that are filled in batch by batch.

    Args:
        file: the open table.
        path: where it lies; None where it has no name.

    Raises:
        InputError: the file is not a table of states.
    """

    def __init__(self, file: BinaryIO, path: Path | None) -> None:
        weakref.finalize(self, file.close)
        self._file, self._path = file, path
        self._folder = path.parent if path is not None else Path(tempfile.gettempdir())
        self._header, self._begin = _read_header(file)
        self.offsets: IntArray = self._array("offsets")
        self.positions: IntArray = self._array("positions").astype(np.int64)
        self.unread: list[int] = self._array("unread").tolist()
        self.done = int(self._array("done")[0])
        self.shape: tuple[int, int] = tuple(self._header["states"]["shape"])

    @property
    def is_finished(self) -> bool:
        """Whether all batches are in the table."""
        return self.done < 0

    @classmethod
    def create(
        cls,
        path: Path | None,
        offsets: IntArray,
        positions: NDArray[np.int32],
        unread: IntArray,
        width: int,
    ) -> StateTable:
        """A table without states, at a path or in a file that ends with the process.

        Args:
            path: of the table; None for a temporary file.
            offsets: ``(n + 1,)``: where the rows of each text begin.
            positions: ``(N,)``: which instance of its text each row is.
            unread: ``(2,)``: texts of which the encoder does not read the end, and texts with more
                instances than were to be kept.
            width: numbers of a state.

        Raises:
            InputError: the folder cannot be written, or has no room.
        """
        folder = path.parent if path is not None else Path(tempfile.gettempdir())
        small = {
            "done": np.zeros(1, "<i8"),
            "unread": unread.astype("<i8"),
            "offsets": offsets.astype("<i8"),
            "positions": positions.astype("<i4"),
        }
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _check_room(folder, 2 * len(positions) * width)
            if path is None:
                temporary = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the table
                _write_empty(temporary, small, (len(positions), width))
                return cls(cast(BinaryIO, temporary), None)
            with atomic_write(path) as partial, partial.open("wb") as file:
                _write_empty(file, small, (len(positions), width))
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> StateTable:
        """The table at a path.

        Raises:
            InputError: the file is not a table of states, or cannot be written.
        """
        with _writing(path.parent):
            mode = "r+b" if os.access(path, os.W_OK) else "rb"
            return cls(cast(BinaryIO, path.open(mode)), path)

    def rows(self, start: int, stop: int) -> States:
        """The states ``(stop - start, d)``, read from disk."""
        width = self.shape[1]
        self._file.seek(self._position("states") + 2 * start * width)
        content = self._file.read(2 * (stop - start) * width)
        return np.frombuffer(content, "<f2").reshape(stop - start, width)

    def blocks(self, size: int) -> Iterator[tuple[int, States]]:
        """First row and states of as many rows at a time, of all in turn."""
        for start in range(0, self.shape[0], size):
            yield start, self.rows(start, min(start + size, self.shape[0]))

    def write(self, text: int, states: States) -> None:
        """Write the rows of a text."""
        start, stop = self.offsets[text], self.offsets[text + 1]
        assert states.shape == (stop - start, self.shape[1])
        with _writing(self._folder):
            self._file.seek(self._position("states") + 2 * int(start) * self.shape[1])
            self._file.write(np.ascontiguousarray(states, "<f2").data)

    def save(self, done: int) -> None:
        """Bring to disk what has been written, then say that so many batches are in the table."""
        with _writing(self._folder):
            self._flush()
            self._file.seek(self._position("done"))
            self._file.write(np.array([done], "<i8").tobytes())
            self._flush()
        self.done = done
        if self._path is not None:
            work_is_kept()

    def finish(self) -> None:
        """Say that all batches are in the table."""
        self.save(-1)

    def _flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def _position(self, name: str) -> int:
        return self._begin + int(self._header[name]["data_offsets"][0])

    def _array(self, name: str) -> NDArray[Any]:
        entry = self._header[name]
        dtype, count = _TYPES[entry["dtype"]], math.prod(entry["shape"])
        self._file.seek(self._position(name))
        return np.frombuffer(self._file.read(count * dtype.itemsize), dtype)


def temporary_rows(folder: Path | None, shape: tuple[int, int]) -> NDArray[np.float16]:
    """A table ``(N, d)`` of zeros in a file without a name, mapped into memory: the system takes
    its pages back where memory is short, and the file is gone when nobody reads it any more.

    Raises:
        InputError: the folder has no room.
    """
    where = folder or Path(tempfile.gettempdir())
    with _writing(where):
        _check_room(where, 2 * math.prod(shape))
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(max(2 * math.prod(shape), 1))
            # as a plain array: slices of a subclass cost twice as much
            return np.memmap(file, "<f2", "r+", shape=shape).view(np.ndarray)


def _write_empty(file: BinaryIO, small: dict[str, NDArray[Any]], shape: tuple[int, int]) -> None:
    """Write header and small arrays, and leave room for the states."""
    header, begin = {}, 0
    kinds = {dtype: kind for kind, dtype in _TYPES.items()}
    for name, array in small.items():
        end = begin + array.nbytes
        header[name] = {
            "dtype": kinds[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    end = begin + 2 * math.prod(shape)
    header["states"] = {"dtype": "F16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for array in small.values():
        file.write(array.tobytes())
    file.truncate(8 + len(text) + end)
    file.flush()


def _read_header(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """Types, shapes and positions of the arrays of a table, and the byte at which they begin."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    try:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length if length < size else 0))
        is_table = 8 + length + header["states"]["data_offsets"][1] == size
        is_table &= all(name in header for name in ("done", "unread", "offsets", "positions"))
    except (ValueError, KeyError, TypeError, IndexError):
        is_table = False
    if not is_table:
        raise InputError("the file is not a table of states")
    return header, 8 + length


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """A block that writes into a folder; what goes wrong is one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the states cannot be kept in {folder} ({error.strerror or error}); choose another"
            " folder for the run"
        ) from None


def _check_room(folder: Path, size: int) -> None:
    """Refuse a table that does not fit on the disk."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise InputError(
            f"the states take {size / 1e9:.3g} GB of disk, and {folder} has {free / 1e9:.3g} GB"
            " left; choose another folder for the run, or fewer texts"
        )
