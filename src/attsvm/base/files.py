"""Arrays on disk: ``.npz`` and ``.safetensors``, written atomically and read without trust.

Nothing here pickles. NumPy and safetensors read; whatever a hostile or truncated file makes them
raise is one sentence.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.base.errors import InputError
from attsvm.base.interruption import removed_when_interrupted
from attsvm.base.nearest import file_meant
from attsvm.base.printable import escaped, has_halves, name_of

Array = NDArray[Any]

SUFFIXES = (".npz", ".safetensors")

_HEADER = 10_016  # bytes before the numbers of an array, at most: what NumPy takes

_SAFETENSORS_TYPES = (  # that NumPy has, and bfloat16
    *("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "BF16", "F32", "F64"),
)


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


def digest(*contents: Any) -> str:
    """SHA-256, in hexadecimal, of the bytes of all contents, one after the other.

    Args:
        contents: bytes; text, in UTF-8; the path of a file, for its bytes; an array, for its shape,
            type and numbers; any other value as JSON, whatever the order of its keys.

    Raises:
        InputError: what :func:`opened` refuses of a file.
        ValueError: a value with NaN or infinity, which JSON does not have.
    """
    total = hashlib.sha256()
    for content in contents:
        if isinstance(content, bytes):
            total.update(content)
        elif isinstance(content, str):
            total.update(content.encode("utf-8", "surrogatepass"))
        elif isinstance(content, Path):
            with opened(content) as file:
                while block := file.read(2**20):
                    total.update(block)
        elif isinstance(content, np.ndarray):
            total.update(f"{content.shape}{content.dtype}".encode())
            total.update(np.ascontiguousarray(content).data)
        else:
            total.update(json.dumps(content, sort_keys=True, allow_nan=False).encode())
    return total.hexdigest()


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
    _check_target(path)
    partial = path.parent / f".{path.stem[:100]}.{secrets.token_hex(4)}.partial{path.suffix}"
    with removed_when_interrupted(partial):
        try:
            os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except OSError as error:
            raise InputError(
                f"{path} cannot be written ({error.strerror}); choose a folder that you may write"
                " to"
            ) from None
        try:
            yield partial
            _flush(partial)
            partial.replace(path)
            _flush(path.parent)
        finally:
            partial.unlink(missing_ok=True)


_UNFINISHED = re.compile(r"\.(?P<stem>.+)\.[0-9a-f]{8}\.partial(?P<suffix>\.\w+)?")


def is_unfinished_write(name: str, target: str) -> bool:
    """Whether a file of this name is what :func:`atomic_write` to ``target``, a file name, leaves
    when the process is killed.
    """
    match = _UNFINISHED.fullmatch(name)
    return match is not None and (match["stem"], match["suffix"] or "") == (
        Path(target).stem[:100],
        Path(target).suffix,
    )


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
    _check_target(path)


def _check_target(path: Path) -> None:
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
    write = _write_npz if suffix == ".npz" else _write_safetensors
    try:
        with atomic_write(path) as partial, partial.open("wb") as file:
            write(plain, file)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}); check the free space"
        ) from None


def _write_npz(arrays: Mapping[str, Array], file: BinaryIO) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            # A fixed date: equal arrays give equal bytes.
            with archive.open(
                zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), "w", force_zip64=True
            ) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def _write_safetensors(arrays: Mapping[str, Array], file: BinaryIO) -> None:
    """Into this very file: the library's own writer makes one of another name first, which stays
    when the process is killed.
    """
    header, contents, begin = {}, [], 0
    for name in sorted(arrays, key=lambda name: (-arrays[name].itemsize, name)):  # all aligned
        array = arrays[name]
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        kind = "BOOL" if array.dtype == bool else f"{array.dtype.kind}{8 * array.itemsize}".upper()
        offsets = [begin, begin + array.nbytes]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": offsets}
        contents.append(array.reshape(-1).view(np.uint8).data)
        begin = offsets[1]
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    file.writelines(contents)


def load_arrays(path: str | Path) -> dict[str, Array]:
    """Every array of an ``.npz`` or ``.safetensors`` file by name; bfloat16 comes back as float32.

    Raises:
        InputError: no such file, a folder, unknown suffix, truncated or corrupt content, a header
            that announces more bytes than there are, Python objects, or an array type that NumPy
            lacks.
    """
    path = Path(path)
    suffix = _suffix(path)
    with opened(path) as file, _readable(path):
        arrays = _read_npz(file) if suffix == ".npz" else _read_safetensors(file, path)
    for name in arrays:
        if has_halves(name):
            raise _corrupt(path, "the name of an array is not Unicode text")
    return arrays


def flatten(prefix: str, values: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """``{name: value}`` as ``{prefix.name: array}``: a state in one flat dict."""
    return {f"{prefix}.{name}": np.asarray(value) for name, value in values.items()}


def gather(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Array]:
    """The inverse of :func:`flatten`: what ``arrays`` holds under this prefix."""
    start = f"{prefix}."
    return {
        key.removeprefix(start): np.asarray(value)
        for key, value in arrays.items()
        if key.startswith(start)
    }


def mapped_array(path: str | Path) -> Array:
    """The array of an ``.npy`` file, mapped into memory: read where it is used.

    Raises:
        InputError: no such file, truncated or corrupt content, or Python objects.
    """
    path = Path(path)
    with opened(path), _readable(path):
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Whatever a reader of NumPy or safetensors raises, as one sentence."""
    try:
        yield
    except (InputError, OSError):
        raise
    except MemoryError:
        raise InputError(
            f"{path} announces more than the memory takes; copy or write it again, in smaller parts"
        ) from None
    except Exception as error:  # malformed content reaches zipfile, tokenize, ast and others
        if "allow_pickle" in str(error):
            raise InputError(
                f"{path} holds Python objects, which are never loaded; save plain numeric arrays"
            ) from None
        raise _corrupt(path, str(error) or type(error).__name__) from None


def _read_npz(file: BinaryIO) -> dict[str, Array]:
    if not zipfile.is_zipfile(file):
        raise ValueError("it is no zip file")
    arrays: dict[str, Array] = {}
    with np.load(file, allow_pickle=False) as archive:
        for entry in archive.zip.infolist():
            name = entry.filename.removesuffix(".npy")
            if name in arrays:
                raise ValueError("it holds two arrays of one name")
            try:
                array = arrays[name] = archive[name]
            except (MemoryError, OSError):
                raise
            except Exception as error:
                raise ValueError(f"array {name}: {error}") from None
            if not isinstance(array, np.ndarray):
                raise ValueError(f"its member {name} is no array")
            packed = entry.compress_type != zipfile.ZIP_STORED
            if not array.nbytes < entry.file_size < array.nbytes + _HEADER or not (
                packed or entry.compress_size == entry.file_size
            ):
                raise ValueError(f"its directory announces another size of array {name}")
    return arrays


def _read_safetensors(file: BinaryIO, path: Path) -> dict[str, Array]:
    from safetensors import deserialize, safe_open

    with safe_open(path, "numpy") as tensors:
        names = tensors.keys()
        kinds = {name: tensors.get_slice(name).get_dtype() for name in names}
        for name, kind in kinds.items():
            if kind not in _SAFETENSORS_TYPES:
                raise ValueError(f"array {name} has type {kind}, which NumPy lacks")
        arrays = {name: tensors.get_tensor(name) for name in kinds if kinds[name] != "BF16"}
    if len(arrays) < len(kinds):
        for name, entry in deserialize(file.read()):  # type: ignore[no-untyped-call]
            if entry["dtype"] == "BF16":  # the upper half of a float32
                halves = np.frombuffer(entry["data"], "<u2").reshape(entry["shape"])
                arrays[name] = (halves.astype("<u4") << 16).view("<f4")
    return arrays


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


def brief(message: str) -> str:
    """Text from a file, cut and escaped for one sentence."""
    line = escaped(" ".join(message.split()))
    return line if len(line) <= 200 else f"{line[:200]}..."


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON, atomically; refuses NaN and infinities, which JSON does not have.
    Half of a surrogate pair, which UTF-8 does not have, is written as its escape.
    """
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
    write_file(path, f"{text}\n".encode("utf-8", "backslashreplace"))


def read_json(path: Path) -> Any:
    """The content of a JSON file of a run folder.

    Raises:
        InputError: it cannot be read, or is not JSON.
    """
    with opened(path) as file:
        content = file.read()
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); delete it and run the same command again to write it"
            " anew"
        ) from None


def json_object(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def read_object(text: str | bytes) -> Any:
    """The value of a JSON text in which no object has a key twice.

    Raises:
        ValueError: it is not JSON, or of two values of one key it is not clear which is meant.
    """
    return json.loads(text, object_pairs_hook=_refuse_repeated_keys)


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"it has {brief(repeated)} twice")
    return content
