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
_BYTE_LIMIT = 4 << 30  # of decompressed texts, which are held in memory

_LINE_LIMIT = 1 << 26  # one record of more than 64 MiB is not a text
_COLUMN_NAMES = {
    "text": ("text", "sentence", "review", "content"),
    "label": ("label", "y", "class", "target", "sentiment"),
}

Row = tuple[str, dict[str, Any]]  # where it is ("row 3"), and its fields


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
) -> LabelledTexts:
    """Read every row of a file, or every ``.txt`` of a folder in IMDb layout.

    Args:
        path: a file, or a folder with ``pos`` and ``neg`` (or ``train/pos`` and ``train/neg``).
        text: column of the texts; default the column called text, sentence, review or content.
        label: column of the labels; default the one called label, y, class, target or sentiment.
        test: a second file or folder, whose texts come behind those of the first.

    Raises:
        InputError: what cannot be read, with its row, line or byte; not exactly two classes, or
            others in the second file; an empty text.
        MissingExtraError: a ``.parquet`` file without pyarrow.
    """
    path = Path(path)
    if test is not None:
        first = read_texts(path, text=text, label=label)
        second = read_texts(test, text=text, label=label)
        return _behind(first, second, path, test)
    if is_folder(path):
        return _read_folder(path)
    rows = list(_rows(path, text, label))
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


def _check_size(path: Path, size: int) -> None:
    if size > _BYTE_LIMIT:
        raise InputError(f"{path} holds more than {_BYTE_LIMIT} bytes of text; give fewer texts")


def kind_of(path: Path) -> tuple[str, str]:
    """Format suffix and compression suffix: ``("jsonl", ".xz")``; the latter is empty for plain
    files.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in (".gz", ".xz") else ""
    return (suffixes[-1] if suffixes else ""), compression


def _rows(path: Path, text: str | None, label: str | None) -> Iterator[tuple[str, str]]:
    """Text and label of each row, checked."""
    suffix, compression = kind_of(path)
    columns: tuple[str, str] | None = None
    for where, fields in _records(path, suffix, compression):
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


def _records(path: Path, suffix: str, compression: str) -> Iterator[Row]:
    if suffix == ".parquet" and not compression:
        return _parquet_records(path)
    if suffix not in (".csv", ".tsv", ".jsonl"):
        raise InputError(
            f"{path} is of no known kind; texts come from {', '.join(TEXT_SUFFIXES)} files"
            " (.parquet aside also as .gz or .xz)"
        )
    lines = _lines(path, compression)
    return (
        _json_records(lines, path)
        if suffix == ".jsonl"
        else _csv_records(lines, path, "," if suffix == ".csv" else "\t")
    )


def _lines(path: Path, compression: str) -> Iterator[str]:
    """Decoded lines of a UTF-8 file, streamed, each with its line end."""
    unpack: Any = {"": nullcontext, ".gz": gzip.open, ".xz": lzma.open}[compression]
    position = 0
    with opened(path) as content, unpack(content) as file:
        for number in itertools.count(1):
            try:
                raw = file.readline(min(_LINE_LIMIT, _BYTE_LIMIT - position) + 1)
            except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
                raise InputError(
                    f"{path} cannot be decompressed ({error}); copy or download it again"
                ) from None
            if not raw:
                return
            _check_size(path, position + len(raw))
            if len(raw) > _LINE_LIMIT:
                raise InputError(
                    f"{path}, line {number} is longer than {_LINE_LIMIT} bytes; give one text"
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


def _csv_records(lines: Iterable[str], path: Path, delimiter: str) -> Iterator[Row]:
    limit = csv.field_size_limit(_LINE_LIMIT)
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


def _parquet_records(path: Path) -> Iterator[Row]:
    parquet = imported("pyarrow.parquet", "reading .parquet files", "pyarrow", "parquet")
    from pyarrow import ArrowException

    try:
        with opened(path) as content, parquet.ParquetFile(content) as file:
            groups = (file.metadata.row_group(k) for k in range(file.metadata.num_row_groups))
            _check_size(path, sum(group.total_byte_size for group in groups))
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


def _column(role: str, wanted: str | None, fields: dict[str, Any], path: Path) -> str:
    held = ", ".join(str(name) for name in fields)[:300] or "none"
    if wanted is not None:
        if wanted in fields:
            return wanted
        meant = did_you_mean(wanted, fields)
        raise InputError(f"{path} has no column {wanted}; its columns are {held}{meant}")
    usual = {str(name).strip().lower(): name for name in reversed(fields)}
    for name in _COLUMN_NAMES[role]:
        if name in usual:
            return usual[name]
    near = filter(None, (did_you_mean(name, fields) for name in _COLUMN_NAMES[role]))
    raise InputError(
        f"{path} has no column called {role}; name the one that holds it with option {role}, its"
        f" columns are {held}{next(near, '')}"
    )


def _signs(values: list[str], path: Path) -> tuple[FloatArray, tuple[str, str]]:
    found = sorted(set(values))
    if len(found) == 1:
        raise InputError(f"{path} has only the label {found[0]}; two classes are needed")
    if len(found) > 2:
        shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise InputError(
            f"{path} has {len(found)} different labels ({shown}); keep the rows of two classes"
        )
    negative, positive = sorted(found, key=_numbers_first)
    return np.where(np.array(values) == positive, 1.0, -1.0), (negative, positive)


def _numbers_first(value: str) -> tuple[float, str]:
    """Sort key: numbers by value (so that -1 comes before 1 and 2 before 10), then words."""
    try:
        number = float(value)
    except ValueError:
        number = math.inf
    return (math.inf if math.isnan(number) else number), value


def _read_folder(path: Path) -> LabelledTexts:
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
                raw = content_file.read(_BYTE_LIMIT - total + 1)
            total += len(raw)
            _check_size(path, total)
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
