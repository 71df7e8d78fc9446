"""Labelled texts out of files: ``.csv``, ``.tsv``, ``.jsonl`` (also ``.gz`` and ``.xz``),
``.parquet``, and folders ``pos``/``neg``.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import lzma
import math
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.extras import imported
from attsvm.base.files import digest, is_folder, opened, read_object
from attsvm.base.nearest import did_you_mean
from attsvm.base.printable import has_halves
from attsvm.datasets.attention_data import FloatArray, IntArray

TEXT_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
_COLUMN_NAMES = {
    "text": ("text", "sentence", "review", "content"),
    "label": ("label", "y", "class", "target", "sentiment"),
}

Row = tuple[str, dict[str, Any]]  # where it is ("row 3"), and its fields


@dataclass(frozen=True)
class ReadLimits:
    """How much is read.

    Attributes:
        bytes: of decompressed texts, which are held in memory.
        line: bytes of one record: a longer one is no text.
    """

    bytes: int = 4 << 30
    line: int = 1 << 26


_LIMITS = ReadLimits()


@dataclass(frozen=True, eq=False)
class LabelledTexts:
    """Texts with two classes.

    Attributes:
        texts: one string per row, in file order.
        labels: ``(n,)`` of -1.0 and +1.0.
        class_names: the two label values, the one that sorts first is the negative class.
        sha256: of the file; of a folder, of its files' names and digests.
        held: positions of the texts of a second file, to be held out; None without one.
        repeated: how many of them are texts of the first file, too.
    """

    texts: list[str]
    labels: FloatArray
    class_names: tuple[str, str]
    sha256: str
    held: IntArray | None = None
    repeated: int = 0


def read_texts(
    path: str | Path,
    *,
    text: str | None = None,
    label: str | None = None,
    test: str | Path | None = None,
    limits: ReadLimits = _LIMITS,
) -> LabelledTexts:
    """Read every row of a file, or every ``.txt`` of a folder in IMDb layout.

    Args:
        path: a file, or a folder with ``pos`` and ``neg`` (or ``train/pos`` and ``train/neg``).
        text: column of the texts; default the column called text, sentence, review or content.
        label: column of the labels; default the one called label, y, class, target or sentiment.
        test: a second file or folder, whose texts come behind those of the first.
        limits: how much is read.

    Raises:
        InputError: what cannot be read, with its row, line or byte; not exactly two classes, or
            others in the second file; an empty text.
        MissingExtraError: a ``.parquet`` file without pyarrow.
    """
    path = Path(path)
    if test is not None:
        first = read_texts(path, text=text, label=label, limits=limits)
        second = read_texts(test, text=text, label=label, limits=limits)
        return _behind(first, second, path, test)
    if is_folder(path):
        return _read_folder(path, limits)
    rows = list(_rows(path, text, label, limits))
    if not rows:
        raise InputError(f"{path} holds no rows; give a file with texts and labels")
    labels, class_names = _signs([row[1] for row in rows], path)
    return LabelledTexts([row[0] for row in rows], labels, class_names, digest(path))


def _behind(
    first: LabelledTexts, second: LabelledTexts, path: Path, test: str | Path
) -> LabelledTexts:
    """The texts of two files, those of the second to be held out."""
    if first.class_names != second.class_names:
        raise InputError(
            f"{test} has the labels {' and '.join(second.class_names)}, {path} has"
            f" {' and '.join(first.class_names)}; give texts of the same two classes"
        )
    known = set(first.texts)
    repeated = sum(text in known for text in second.texts)
    if repeated == len(second.texts):
        raise InputError(f"all texts of {test} are in {path}; give texts to be held out")
    texts = first.texts + second.texts
    return LabelledTexts(
        texts,
        np.concatenate([first.labels, second.labels]),
        first.class_names,
        digest(f"{first.sha256} {second.sha256}"),
        np.arange(len(first.texts), len(texts)),
        repeated,
    )


def texts_digest(texts: Iterable[str]) -> str:
    """SHA-256 over texts in order, each with its length in bytes in front."""
    contents = (text.encode("utf-8", "surrogatepass") for text in texts)
    return digest(*(len(content).to_bytes(8, "little") + content for content in contents))


def _check_size(path: Path, size: int, limits: ReadLimits) -> None:
    """Refuse more bytes than are read."""
    if size > limits.bytes:
        raise InputError(f"{path} holds more than {limits.bytes} bytes of text; give fewer texts")


def kind_of(path: Path) -> tuple[str, str]:
    """Format suffix and compression suffix: ``("jsonl", ".xz")``; the latter is empty for plain
    files.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in (".gz", ".xz") else ""
    return (suffixes[-1] if suffixes else ""), compression


def _rows(
    path: Path, text: str | None, label: str | None, limits: ReadLimits
) -> Iterator[tuple[str, str]]:
    """Text and label of each row, checked."""
    suffix, compression = kind_of(path)
    columns: tuple[str, str] | None = None
    for where, fields in _records(path, suffix, compression, limits):
        if columns is None:
            columns = _column("text", text, fields, path), _column("label", label, fields, path)
        for column in columns:
            if fields.get(column) is None:
                raise InputError(
                    f"{path}, {where} has no {column}; every row needs a text and a label"
                )
        content, value = fields[columns[0]], fields[columns[1]]
        if not isinstance(content, str):
            raise InputError(
                f"{path}, {where}: {columns[0]} is {content!r:.40}; choose the column of the texts"
                " with text="
            )
        if not content.strip():
            raise InputError(f"{path}, {where}: {columns[0]} is empty; remove the row")
        if has_halves(content) or has_halves(str(value)):
            raise InputError(
                f"{path}, {where} holds half of a surrogate pair, which is no character; write the"
                " text in UTF-8"
            )
        if isinstance(value, (dict, list)) or str(value).strip() == "":
            raise InputError(
                f"{path}, {where}: {columns[1]} is {value!r:.40}; every row needs one of two labels"
            )
        yield content, str(value).strip()


def _records(path: Path, suffix: str, compression: str, limits: ReadLimits) -> Iterator[Row]:
    """The rows of a file, by its format."""
    if suffix == ".parquet" and not compression:
        return _parquet_records(path, limits)
    if suffix not in (".csv", ".tsv", ".jsonl"):
        raise InputError(
            f"{path} is of no known kind; texts come from {', '.join(TEXT_SUFFIXES)} files"
            " (.parquet aside also as .gz or .xz)"
        )
    lines = _lines(path, compression, limits)
    return (
        _json_records(lines, path)
        if suffix == ".jsonl"
        else _csv_records(lines, path, "," if suffix == ".csv" else "\t", limits)
    )


def _lines(path: Path, compression: str, limits: ReadLimits) -> Iterator[str]:
    """Decoded lines of a UTF-8 file, streamed, each with its line end."""
    unpack: Any = {"": nullcontext, ".gz": gzip.open, ".xz": lzma.open}[compression]
    position = 0
    with opened(path) as content, unpack(content) as file:
        for number in itertools.count(1):
            try:
                raw = file.readline(min(limits.line, limits.bytes - position) + 1)
            except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
                raise InputError(
                    f"{path} cannot be decompressed ({error}); copy or download it again"
                ) from None
            if not raw:
                return
            _check_size(path, position + len(raw), limits)
            if len(raw) > limits.line:
                raise InputError(
                    f"{path}, line {number} is longer than {limits.line} bytes; give one text"
                    " per row"
                )
            try:
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                at = position + error.start
                raise InputError(
                    f"{path}, line {number} is not UTF-8 at byte {at} of the text; convert the file"
                    " to UTF-8"
                ) from None
            position += len(raw)


def _json_records(lines: Iterable[str], path: Path) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = read_object(line)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{path}, line {number} is not JSON ({error}); write one object per line"
            ) from None
        if not isinstance(fields, dict):
            raise InputError(
                f"{path}, line {number} is a {type(fields).__name__}; write one object with text"
                " and label per line"
            )
        yield f"line {number}", fields


def _csv_records(
    lines: Iterable[str], path: Path, delimiter: str, limits: ReadLimits
) -> Iterator[Row]:
    limit = csv.field_size_limit(limits.line)
    try:
        # In .tsv files quotes are ordinary characters; a quoted field may span lines in .csv files.
        reader = csv.reader(
            lines,
            delimiter=delimiter,
            strict=True,
            quoting=csv.QUOTE_MINIMAL if delimiter == "," else csv.QUOTE_NONE,
        )
        header = next(reader, None)
        if header is None:
            return
        if len(set(header)) < len(header):
            raise InputError(
                f"{path} names a column twice ({', '.join(header):.200}); give every column its own"
                " name"
            )
        for row, values in enumerate(reader, start=1):
            if not values:
                continue
            if len(values) != len(header):
                raise InputError(
                    f"{path}, row {row} has {len(values)} fields, the header has {len(header)};"
                    " quote texts that hold separators"
                )
            yield f"row {row}", dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num} is not well-formed ({error}); check its quotes"
        ) from None
    finally:
        csv.field_size_limit(limit)


def _parquet_records(path: Path, limits: ReadLimits) -> Iterator[Row]:
    parquet = imported("pyarrow.parquet", "reading .parquet files", "pyarrow", "parquet")
    from pyarrow import ArrowException

    try:
        with opened(path) as content, parquet.ParquetFile(content) as file:
            groups = (file.metadata.row_group(k) for k in range(file.metadata.num_row_groups))
            _check_size(path, sum(group.total_byte_size for group in groups), limits)
            row = 0
            for batch in file.iter_batches(batch_size=4096):
                for fields in batch.to_pylist():
                    row += 1
                    yield f"row {row}", fields
    except (
        ArrowException,
        OSError,
        UnicodeDecodeError,
    ) as error:  # pyarrow finds damage in several ways
        raise InputError(
            f"{path} is truncated or corrupt ({str(error).splitlines()[0]}); copy or write it again"
        ) from None


def _column(role: str, requested: str | None, fields: dict[str, Any], path: Path) -> str:
    """The name of the column of texts or of labels."""
    columns = ", ".join(str(name) for name in fields)[:300] or "none"
    if requested is not None:
        if requested in fields:
            return requested
        meant = did_you_mean(requested, fields)
        raise InputError(f"{path} has no column {requested}; its columns are {columns}{meant}")
    usual = {str(name).strip().lower(): name for name in reversed(fields)}
    for name in _COLUMN_NAMES[role]:
        if name in usual:
            return usual[name]
    near = filter(None, (did_you_mean(name, fields) for name in _COLUMN_NAMES[role]))
    raise InputError(
        f"{path} has no column called {role}; name the one that holds it with option {role}, its"
        f" columns are {columns}{next(near, '')}"
    )


def _signs(values: list[str], path: Path) -> tuple[FloatArray, tuple[str, str]]:
    """Labels -1 and +1 of two classes, and the names of these."""
    distinct = sorted(set(values))
    if len(distinct) == 1:
        raise InputError(f"{path} has only the label {distinct[0]}; two classes are needed")
    if len(distinct) > 2:
        listing = ", ".join(distinct[:5]) + (", ..." if len(distinct) > 5 else "")
        raise InputError(
            f"{path} has {len(distinct)} different labels ({listing}); keep the rows of two classes"
        )
    negative, positive = sorted(distinct, key=_numbers_first)
    return np.where(np.array(values) == positive, 1.0, -1.0), (negative, positive)


def _numbers_first(value: str) -> tuple[float, str]:
    """Sort key: numbers by value (so that -1 comes before 1 and 2 before 10), then words."""
    try:
        number = float(value)
    except ValueError:
        number = math.inf
    return (math.inf if math.isnan(number) else number), value


def _read_folder(path: Path, limits: ReadLimits) -> LabelledTexts:
    """The texts of a folder in IMDb layout."""
    root = path / "train" if (path / "train" / "pos").is_dir() else path
    texts, signs, lines, total = [], [], [], 0
    for name, sign in (("neg", -1.0), ("pos", 1.0)):
        files = sorted(
            (root / name).glob("*.txt"),
            key=lambda file: (*_numbers_first(file.stem.split("_")[0]), file.name),
        )
        if not files:
            raise InputError(
                f"{root / name} holds no .txt files; a folder of texts needs them in {root / 'neg'}"
                f" and {root / 'pos'}"
            )
        for file in files:
            with opened(file) as content_file:
                raw = content_file.read(limits.bytes - total + 1)
            total += len(raw)
            _check_size(path, total, limits)
            try:
                content = raw.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{file} is not UTF-8 at byte {error.start}; convert the file to UTF-8"
                ) from None
            if not content.strip():
                raise InputError(f"{file} is empty; remove the file")
            line = f"{name}/{file.name} {digest(raw)}\n"
            lines.append(os.fsencode(line))  # a name need not be UTF-8
            texts.append(content)
            signs.append(sign)
    return LabelledTexts(texts, np.array(signs), ("neg", "pos"), digest(*lines))
