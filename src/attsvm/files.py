"""Arrays on disk: ``.npz`` and ``.safetensors``, written atomically and read without trust.

Nothing here pickles. A reader checks every size that a header announces against the bytes that the
file really holds before it allocates anything, so a hostile or truncated file costs a sentence and
not the memory.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import secrets
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.errors import InputError
from attsvm.nearest import file_meant
from attsvm.printable import escaped, has_halves, name_of

Array = NDArray[Any]

SUFFIXES = (".npz", ".safetensors")
CACHE_VARIABLE = "ATTSVM_CACHE"

_DEFLATE_RATIO = 1032  # deflate cannot expand a byte into more than this many
_CHUNK = 1 << 20
_HEADER_LIMIT = 10_000
_NPY_TYPE = re.compile(r"[<>|=]([biufc][1-9]\d?|[SU][1-9]\d*|O\d*|[mM]8(\[\w+\])?)")
_SAFETENSORS_TYPES = {
    "BOOL": "|b1",
    "U8": "|u1",
    "I8": "|i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "BF16": "<u2",  # the upper half of a float32
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}


def cache_home() -> Path:
    """Where what is slow to compute is kept: ``$ATTSVM_CACHE``, or ``attsvm`` in
    ``$XDG_CACHE_HOME``, or ``~/.cache/attsvm``. It may not exist yet.

    Raises:
        RuntimeError: a user without a home, and neither variable set.
    """
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attsvm"


def require_memory(count: float, what: str) -> None:
    """Refuse what needs more bytes than the machine has, before any is taken.

    Raises:
        InputError: ``count`` bytes, needed for ``what``, are more than there are.
    """
    limits = []
    with suppress(AttributeError, OSError, ValueError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):  # of a container
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    if limits and count > min(limits):
        raise InputError(
            f"about {count / 1e9:.3g} GB of memory are needed for {what}, more than the"
            f" {min(limits) / 1e9:.3g} GB there are; choose smaller sizes"
        )


@contextmanager
def opened(path: str | Path) -> Iterator[BufferedReader]:
    """The bytes of a regular file: every reader of a user's file comes through here. What is not a
    file is not opened, because a pipe would wait for a writer.

    Raises:
        InputError: no such file, a folder, a pipe or a device, a file that may not be read, or one
            that cannot be read to its end.
    """
    path = Path(path)
    try:
        _require_file(path, path.stat().st_mode)
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags)
        with os.fdopen(descriptor, "rb") as file:
            _require_file(path, os.fstat(descriptor).st_mode)  # what was there may have changed
            yield file
    except FileNotFoundError:
        what = "is a link to what does not exist" if path.is_symlink() else "does not exist"
        meant = file_meant(path)
        raise InputError(
            f"{name_of(path)} {what}; check the spelling and the folder{meant}"
        ) from None
    except OSError as error:
        raise InputError(
            f"{brief(name_of(path))} cannot be read ({error.strerror or error}); check the file and"
            " its permissions"
        ) from None


def _require_file(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise InputError(f"{name_of(path)} is a folder; give the file inside it")
    if not stat.S_ISREG(mode):
        raise InputError(
            f"{name_of(path)} is a pipe or a device; write what comes out of it to a file first"
        )


def is_folder(path: Path) -> bool:
    """Whether there is a folder of this name; no for a name that cannot be one."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises for such a name


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its name only when the block ends well.

    The temporary file has the suffix of ``path`` (writers that look at suffixes behave), is flushed
    to the disk before it is renamed, and is removed when the block raises. Readers see the old file
    or the new one, never a part.

    Raises:
        InputError: the folder does not exist or cannot be written, or ``path`` is a folder.
    """
    path = Path(path)
    _check_place(path)
    partial = path.parent / f".{path.stem[:100]}.{secrets.token_hex(4)}.partial{path.suffix}"
    try:
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); choose a folder that you may write to"
        ) from None
    mode = stat.S_IMODE(partial.stat().st_mode)
    try:
        yield partial
        partial.chmod(mode)  # some writers replace the file by one that only its owner may read
        _flush(partial)
        partial.replace(path)
        _flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_file(path: str | Path, content: str | bytes) -> Path:
    """Write a whole file, atomically; a text as UTF-8. Returns its path."""
    with atomic_write(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


def _flush(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # some systems open no folders
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_destination(path: str | Path) -> None:
    """Refuse, before there is anything to write, a file of arrays that could not be written.

    Raises:
        InputError: another suffix, a folder of this name, or no folder to write it into.
    """
    path = Path(path)
    _suffix(path)
    _check_place(path)


def _check_place(path: Path) -> None:
    if is_folder(path):
        raise InputError(f"{path} is a folder; give the name of a file inside it")
    if not is_folder(path.parent):
        raise InputError(
            f"folder {path.parent} does not exist; create it before writing {path.name}"
        )


def save_arrays(arrays: Mapping[str, ArrayLike], path: str | Path) -> None:
    """Write named arrays to ``.npz`` or ``.safetensors`` (chosen by the suffix), atomically and bit
    for bit.

    Raises:
        InputError: unknown suffix, a folder that does not exist, an array that is not made of real
            numbers or booleans, or no room on the disk.
    """
    path = Path(path)
    suffix = _suffix(path)
    plain = {name: np.array(value, order="C", copy=None) for name, value in arrays.items()}
    for name, array in plain.items():
        if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
            raise InputError(
                f"array {name} has dtype {array.dtype}, which cannot go into {path}; convert it to"
                " real numbers or booleans"
            )
    with atomic_write(path) as partial:
        if suffix == ".npz":
            with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                for name, array in plain.items():
                    # A fixed date: equal arrays give equal bytes.
                    with archive.open(
                        zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), "w", force_zip64=True
                    ) as entry:
                        np.lib.format.write_array(entry, array, allow_pickle=False)
        else:
            from safetensors import SafetensorError
            from safetensors.numpy import save_file

            little = {
                name: array.astype(array.dtype.newbyteorder("<"), copy=False)
                for name, array in plain.items()
            }
            try:
                save_file(little, partial)
            except SafetensorError as error:  # its own word for what the system refuses
                raise InputError(
                    f"{path} cannot be written ({brief(str(error))}); check the free space"
                ) from None


def load_arrays(path: str | Path) -> dict[str, Array]:
    """Every array of an ``.npz`` or ``.safetensors`` file by name; bfloat16 comes back as float32.

    Raises:
        InputError: no such file, a folder, unknown suffix, truncated or corrupt content, a header
            that announces more bytes than there are, Python objects, or an array type that NumPy
            lacks.
    """
    path = Path(path)
    suffix = _suffix(path)
    with opened(path) as file:
        found = _read_npz(file, path) if suffix == ".npz" else _read_safetensors(file, path)
    for name in found:
        if has_halves(name):
            raise _corrupt(path, "the name of an array is not Unicode text")
    return found


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{path} ends in {path.suffix or 'no suffix'}; arrays are kept in"
            f" {' or '.join(SUFFIXES)} files"
        )
    return suffix


def _corrupt(path: Path, why: str) -> InputError:
    return InputError(f"{path} is truncated or corrupt ({brief(why)}); copy or write it again")


def brief(words: str) -> str:
    """What a file says of itself, fit for one sentence."""
    line = escaped(" ".join(words.split()))
    return line if len(line) <= 200 else f"{line[:200]}..."


def read_object(text: str | bytes) -> Any:
    """The value of a JSON text in which no object has a key twice.

    Raises:
        ValueError: it is not JSON, or of two values of one key it is not clear which is meant.
    """
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has {brief(twice)} twice")
    return found


# --- npz ---


def _read_npz(file: BinaryIO, path: Path) -> dict[str, Array]:
    size = os.fstat(file.fileno()).st_size
    try:
        with zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
            _check_entries(entries, size, path)
            return {
                entry.filename.removesuffix(".npy"): _read_entry(archive, entry, path)
                for entry in entries
            }
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        UnicodeDecodeError,
    ) as error:
        raise _corrupt(path, str(error) or type(error).__name__) from None


def _check_entries(entries: list[zipfile.ZipInfo], size: int, path: Path) -> None:
    names = [entry.filename for entry in entries]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"{path} holds {brief(twice.removesuffix('.npy'))} twice; save it again with"
            " numpy.savez"
        )
    if sum(entry.compress_size for entry in entries) > size:
        raise _corrupt(path, f"its entries announce more bytes than the {size} of the file")
    for entry in entries:
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(
                f"{path} compresses {brief(entry.filename)} in a way NumPy does not write; save it"
                " again with numpy.savez"
            )
        most = entry.compress_size * (
            1 if entry.compress_type == zipfile.ZIP_STORED else _DEFLATE_RATIO
        )
        if entry.file_size > most:
            raise _corrupt(
                path,
                f"{entry.filename} announces {entry.file_size} bytes, its {entry.compress_size}"
                f" hold at most {most}",
            )


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> Array:
    name = entry.filename.removesuffix(".npy")
    with archive.open(entry) as stream:
        shape, fortran, dtype, header = _npy_header(stream, name, path)
        expected = math.prod(shape) * dtype.itemsize
        if header + expected != entry.file_size:
            raise _corrupt(
                path,
                f"array {name} announces {expected} bytes of shape {shape}, its entry holds"
                f" {entry.file_size - header}",
            )
        content = bytearray()  # grows with what arrives, so that a lying size allocates nothing
        while chunk := stream.read(_CHUNK):
            content += chunk
    if len(content) != expected:
        raise _corrupt(path, f"array {name} announces {expected} bytes and holds {len(content)}")
    return _shaped(content, dtype, shape, "F" if fortran else "C", name, path)


def _npy_header(
    stream: Any, name: str, path: Path
) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order, dtype and header length of a ``.npy`` stream, which is left at the first value.

    NumPy's own reader lets a malformed header end in a tokeniser's exception; this one needs no
    more than a literal.
    """
    try:
        magic = stream.read(8)
        width = {b"\x93NUMPY\x01": 2, b"\x93NUMPY\x02": 4, b"\x93NUMPY\x03": 4}[magic[:7]]
        length = int.from_bytes(stream.read(width), "little")
        if length > _HEADER_LIMIT:
            raise ValueError(f"it is {length} bytes long")
        header = ast.literal_eval(stream.read(length).decode("utf-8").strip())
        kind, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
        if not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError(f"shape {shape}")
        if not isinstance(kind, str) or not _NPY_TYPE.fullmatch(kind):
            raise ValueError(f"type {kind!r}")
        dtype = np.dtype(kind)
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise _corrupt(path, f"the header of array {name} makes no sense: {error}") from None
    if dtype.hasobject:
        raise InputError(
            f"array {brief(name)} of {path} holds Python objects, which are never loaded; save it"
            " as a plain numeric array"
        )
    return shape, bool(fortran), dtype, 8 + width + length


@dataclass(frozen=True)
class Place:
    """Where an array lies in a file, to be read in parts."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Literal["C", "F"]

    def __call__(self) -> Array:
        """The array, of which only those parts are read that are used."""
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape, self.order)


def array_places(path: str | Path) -> dict[str, Place]:
    """Where the arrays of an ``.npz`` file lie, or the one of an ``.npy`` file, by name.

    Raises:
        InputError: no such file, another suffix, truncated or corrupt content, Python objects, or
            compressed arrays, which cannot be read in parts.
    """
    path = Path(path)
    found: dict[str, Place] = {}
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if path.suffix.lower() == ".npy":
            found[path.stem] = _place(file, path.stem, path, size)
            return found
        if path.suffix.lower() != ".npz":
            raise InputError(f"{path} is neither .npy nor .npz; only these are read in parts")
        try:
            entries = zipfile.ZipFile(file).infolist()
        except (zipfile.BadZipFile, UnicodeDecodeError, NotImplementedError) as error:
            raise _corrupt(path, str(error)) from None
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            if entry.compress_type != zipfile.ZIP_STORED:
                raise InputError(
                    f"{path} is compressed, so its arrays cannot be read in parts; save them with"
                    " numpy.savez, or each as .npy into a folder"
                )
            file.seek(entry.header_offset + 26)  # the lengths of name and extra field
            lengths = file.read(4)
            skipped = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
            file.seek(entry.header_offset + 30 + skipped)
            found[name] = _place(file, name, path, size)
    return found


def _place(file: BinaryIO, name: str, path: Path, size: int) -> Place:
    start = file.tell()
    shape, fortran, dtype, header = _npy_header(file, name, path)
    if start + header + math.prod(shape) * dtype.itemsize > size:
        raise _corrupt(path, f"array {name} announces shape {shape}, more than the file holds")
    return Place(path, start + header, shape, dtype, "F" if fortran else "C")


def _shaped(
    content: bytearray, dtype: Any, shape: tuple[int, ...], order: Any, name: str, path: Path
) -> Array:
    try:
        return np.frombuffer(content, dtype=dtype).reshape(shape, order=order)
    except ValueError as error:  # sides beyond what NumPy counts, next to a side of zero
        raise _corrupt(path, f"array {name} announces shape {shape}: {error}") from None


# --- safetensors
# -------------------------------------------------------------------------------------------------


def _read_safetensors(file: BinaryIO, path: Path) -> dict[str, Array]:
    size = os.fstat(file.fileno()).st_size
    if size < 8:
        raise _corrupt(path, f"{size} bytes are too few for a header")
    length = int.from_bytes(file.read(8), "little")
    if length > size - 8:
        raise _corrupt(path, f"its header announces {length} bytes, the file holds {size - 8}")
    try:
        header = read_object(file.read(length))
        entries = {
            name: _tensor_entry(value) for name, value in header.items() if name != "__metadata__"
        }
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise _corrupt(path, f"its header makes no sense: {error}") from None
    end = 0
    for name, (kind, shape, start, stop) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if kind not in _SAFETENSORS_TYPES:
            raise InputError(
                f"array {brief(name)} of {path} has type {brief(kind)}, which NumPy lacks; convert"
                " it to float32"
            )
        expected = math.prod(shape) * np.dtype(_SAFETENSORS_TYPES[kind]).itemsize
        if start != end or stop - start != expected:
            raise _corrupt(
                path,
                f"array {name} of shape {tuple(shape)} needs {expected} bytes, its offsets are"
                f" {start} to {stop}",
            )
        if stop > size - 8 - length:
            raise _corrupt(path, f"array {name} ends at byte {stop} of {size - 8 - length}")
        end = stop
    return {
        name: _read_tensor(file, path, 8 + length, name, *entry) for name, entry in entries.items()
    }


def _tensor_entry(value: Any) -> tuple[str, list[int], int, int]:
    kind, shape, (start, stop) = value["dtype"], value["shape"], value["data_offsets"]
    for number in (*shape, start, stop):
        if type(number) is not int or number < 0:
            raise ValueError(f"{number!r} where a length is due")
    return str(kind), list(shape), start, stop


def _read_tensor(
    file: BinaryIO,
    path: Path,
    origin: int,
    name: str,
    kind: str,
    shape: list[int],
    start: int,
    stop: int,
) -> Array:
    file.seek(origin + start)
    content = bytearray(stop - start)
    file.readinto(content)  # type: ignore[attr-defined]
    array = _shaped(content, _SAFETENSORS_TYPES[kind], tuple(shape), "C", name, path)
    return (array.astype("<u4") << 16).view("<f4") if kind == "BF16" else array
