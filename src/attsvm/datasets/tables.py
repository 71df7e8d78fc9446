"""Rows of tables: ``.csv`` and ``.tsv`` as people and spreadsheets write them, ``.jsonl`` (all of
these also as ``.gz`` and ``.xz``) and ``.parquet``.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attsvm.base.errors import InputError
from attsvm.base.extras import imported
from attsvm.base.files import opened, read_object

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")

Row = tuple[str, dict[str, Any]]  # where it is ("row 3"), and its fields
_DELIMITERS = ",;\t|"
_MARKS = (
    # those of UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_UNMARKED = ((rb"([^\0]\0){4}", "utf-16-le"), (rb"(\0[^\0]){4}", "utf-16-be"))
_NO_TEXT = (
    (b"PK\x03\x04", "a ZIP archive or an Excel workbook; save the table as .csv"),
    (b"\xd0\xcf\x11\xe0", "an Excel workbook; save the table as .csv"),
    (b"\x1f\x8b", "compressed by gzip; let its name end in .gz"),
    (b"\xfd7zXZ", "compressed by xz; let its name end in .xz"),
    (b"PAR1", "a Parquet file; let its name end in .parquet"),
)
# What pandas counts as missing in a file of characters; numbers that are none count everywhere.
_MISSING = frozenset(
    (
        *("#N/A", "#N/A N/A", "#NA", "<NA>", "N/A", "NA", "n/a", "NULL", "null", "None"),
        *("NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
    )
)


@dataclass(frozen=True)
class ReadLimits:
    """How much is read.

    Attributes:
        bytes: of decompressed texts, which are held in memory.
        line: bytes of one record: a longer one is no text.
    """

    bytes: int = 4 << 30
    line: int = 1 << 26


LIMITS = ReadLimits()


class NotUtf8Error(InputError):
    """A file has bytes that are no UTF-8."""


def check_size(path: Path, size: int, limits: ReadLimits) -> None:
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


def name_of_label(value: Any, path: Path) -> str:
    """The label of a row as text, empty where it is missing: nothing, a number that is none, and in
    files of characters what pandas counts as missing.
    """
    if value is None or value != value:
        return ""
    name = str(value).strip()
    return "" if name in _MISSING and kind_of(path)[0] in (".csv", ".tsv") else name


def read_rows(
    path: Path,
    *,
    delimiter: str | None = None,
    encoding: str | None = None,
    limits: ReadLimits = LIMITS,
) -> Iterator[Row]:
    r"""The rows of a file, by its format: where each is, and its fields by column.

    A ``.csv`` file may have commas, semicolons, tabs or bars between its fields, say so in a first
    line ``sep=;``, have empty rows and columns at its ends, and leave out empty fields at the end
    of a row. Columns of one name are told apart by their places: ``score (column 3)``. A line of
    ``.jsonl`` may end in a comma. Lines may end as on any system.

    Args:
        path: the file.
        delimiter: between the fields; by default the one that the header of a ``.csv`` file has
            most of, and a tab in ``.tsv`` files; ``\t`` is a tab.
        encoding: of the characters; by default UTF-8, or UTF-16 or UTF-32 where the file's first
            bytes say so.
        limits: how much is read.

    Raises:
        InputError: another format, what cannot be read, with its row, line or byte.
        MissingExtraError: a ``.parquet`` file without pyarrow.
    """
    suffix, compression = kind_of(path)
    if suffix == ".parquet" and not compression:
        return _parquet_records(path, limits)
    if suffix not in TABLE_SUFFIXES or suffix == ".parquet":
        raise InputError(
            f"{path} is not a format that attsvm reads; texts come in"
            f" {', '.join(TABLE_SUFFIXES)} files (.parquet aside also as .gz or .xz)"
        )
    delimiter = _named_delimiter(suffix, delimiter)
    lines = _lines(path, compression, encoding, limits)
    if suffix == ".jsonl":
        return _json_records(lines, path)
    return _csv_records(lines, path, delimiter, limits)


def delimiter_of(
    path: Path, *, delimiter: str | None = None, encoding: str | None = None
) -> str | None:
    """What stands between the fields of a file; None of files that have no delimiter.

    Args:
        path: the file.
        delimiter: the one that is named, see :func:`read_rows`.
        encoding: of the characters.
    """
    suffix, compression = kind_of(path)
    if suffix not in (".csv", ".tsv"):
        return None
    lines = _lines(path, compression, encoding, LIMITS)
    return _beginning(lines, _named_delimiter(suffix, delimiter))[2]


def of_another_file(
    path: Path, *, delimiter: str | None = None, encoding: str | None = None
) -> dict[str, str]:
    """A delimiter and an encoding that were named for another file, as far as they fit this one:
    the encoding where it is not UTF-8, the delimiter where its header has it.

    Args:
        path: the file.
        delimiter: that of the other one.
        encoding: that of the other one.

    Raises:
        InputError: no such file.
    """
    suffix, compression = kind_of(path)
    if suffix not in (".csv", ".tsv", ".jsonl"):
        return {}
    fits: dict[str, str] = {}
    if encoding is not None:
        try:
            for _ in _lines(path, compression, None, LIMITS):
                pass
        except NotUtf8Error:
            fits["encoding"] = encoding
    if delimiter is not None and suffix != ".jsonl":
        lines = _lines(path, compression, fits.get("encoding"), LIMITS)
        if (_named_delimiter(suffix, delimiter) or "") in _beginning(lines, None)[0]:
            fits["delimiter"] = delimiter
    return fits


def _named_delimiter(suffix: str, delimiter: str | None) -> str | None:
    """The delimiter that is named, or that of ``.tsv`` files; None where the header shows it."""
    if delimiter is None:
        return "\t" if suffix == ".tsv" else None
    delimiter = "\t" if delimiter == r"\t" else delimiter  # as a shell hands it over
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise InputError(f"delimiter is {delimiter!r}; give one character, such as ';' or '\\t'")
    return delimiter


def _lines(path: Path, compression: str, encoding: str | None, limits: ReadLimits) -> Iterator[str]:
    """Decoded lines of a file, streamed, each with its line end."""
    if encoding is not None:
        try:
            " ".encode(encoding)  # others than of text are known, too
        except (LookupError, ValueError):
            raise InputError(
                f"encoding is {encoding!r}, which is none that Python knows; try 'utf-8', 'cp1252'"
                " or 'utf-16'"
            ) from None
    unpack: Any = {"": nullcontext, ".gz": gzip.open, ".xz": lzma.open}[compression]
    with opened(path) as content, unpack(content) as file:
        try:
            beginning = file.peek(8)[:8]
        except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
            raise _damaged(path, error) from None
        for mark, what in _NO_TEXT:
            if beginning.startswith(mark):
                raise InputError(f"{path} is {what}")
        # a mark is no text in any other encoding
        marked = beginning.startswith((codecs.BOM_UTF8, *(mark for mark, _ in _MARKS)))
        if encoding := _encoding_of(beginning) if marked or encoding is None else encoding:
            yield from _encoded_lines(file, path, encoding, limits)
        else:
            yield from _utf8_lines(file, path, limits)


def _encoding_of(beginning: bytes) -> str | None:
    """What the first bytes of a file say about its encoding; None where they may be UTF-8."""
    marked = (encoding for mark, encoding in _MARKS if beginning.startswith(mark))
    # Every other byte of Latin letters in UTF-16 is zero.
    zeros = (encoding for pattern, encoding in _UNMARKED if re.match(pattern, beginning))
    return next(itertools.chain(marked, zeros), None)


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} cannot be decompressed ({error}); copy or download it again")


def _utf8_lines(file: Any, path: Path, limits: ReadLimits) -> Iterator[str]:
    """Lines of UTF-8, of which a wrong byte has a position."""
    position = 0
    for number in itertools.count(1):
        try:
            raw = file.readline(min(limits.line, limits.bytes - position) + 1)
        except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
            raise _damaged(path, error) from None
        if not raw:
            return
        check_size(path, position + len(raw), limits)
        if len(raw) > limits.line:
            raise _too_long(path, number, limits)
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            at = position + error.start
            raise NotUtf8Error(
                f"{path}, line {number} is not UTF-8 at byte {at} of the text; convert the file to"
                " UTF-8, or name its encoding (often cp1252) by option encoding"
            ) from None
        position += len(raw)
        # old Macintosh files end lines in a carriage return alone
        yield from re.split(r"(?<=\r)(?!\n)", line) if "\r" in line else (line,)


def _encoded_lines(file: Any, path: Path, encoding: str, limits: ReadLimits) -> Iterator[str]:
    """Lines in another encoding."""
    size = 0
    with io.TextIOWrapper(file, encoding, newline="") as text:
        for number in itertools.count(1):
            try:
                line = text.readline(limits.line + 1)
            except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
                raise _damaged(path, error) from None
            except UnicodeError as error:
                raise InputError(
                    f"{path}, line {number} is not {encoding} ({error}); name its encoding"
                    " by option encoding"
                ) from None
            if not line:
                return
            size += len(line)
            check_size(path, size, limits)
            if len(line) > limits.line:
                raise _too_long(path, number, limits)
            yield line.removeprefix("\ufeff") if number == 1 else line


def _too_long(path: Path, number: int, limits: ReadLimits) -> InputError:
    return InputError(
        f"{path}, line {number} is longer than {limits.line} bytes; give one text per row"
    )


def _json_records(lines: Iterable[str], path: Path) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        content = line.strip().removesuffix(",")
        if not content:
            continue
        if number == 1 and re.match(r"\[\s*(\{|$)", content):
            raise InputError(
                f"{path} begins as one JSON array; write one object per line (JSON Lines)"
            )
        try:
            fields = read_object(content)
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
    lines: Iterator[str], path: Path, delimiter: str | None, limits: ReadLimits
) -> Iterator[Row]:
    limit = csv.field_size_limit(limits.line)
    first, skipped, delimiter = _beginning(lines, delimiter)
    # In .tsv files quotes are ordinary characters; a quoted field may span lines elsewhere.
    is_plain = kind_of(path)[0] == ".tsv"
    reader = csv.reader(
        itertools.chain([first], lines),
        delimiter=delimiter,
        strict=True,
        quoting=csv.QUOTE_NONE if is_plain else csv.QUOTE_MINIMAL,
        # only where quotes would not be seen else
        skipinitialspace=re.search(rf'{re.escape(delimiter)} +"', first) is not None,
    )
    begin, row = 0, 0
    try:
        header: list[str] = []
        for values in reader:
            begin, is_empty = reader.line_num, not any(map(str.strip, values))
            if not header:
                header = [] if is_empty else _column_names(values)
                continue
            row += 1
            if is_empty:
                continue
            while len(values) > len(header) and not values[-1].strip():
                values.pop()
            # A spreadsheet may leave out what is empty at the end of a row. One field of many is
            # rather a row that is delimited otherwise.
            if len(values) > len(header) or 1 == len(values) < len(header):
                raise InputError(
                    f"{path}, row {row} has {len(values)} field{'s' * (len(values) != 1)}, the"
                    f" header ({', '.join(header):.80}) has {len(header)}; quote texts that hold"
                    f" {delimiter!r}, or name another delimiter by option delimiter"
                )
            values += [""] * (len(header) - len(values))
            yield f"row {row}", dict(zip(header, values, strict=True))
    except csv.Error as error:
        begin, end = skipped + begin + 1, skipped + reader.line_num
        where = f"line {end} is" if begin == end else f"lines {begin} to {end} are"
        raise InputError(
            f"{path}, {where} not well-formed ({error}); check the quotes there"
        ) from None
    finally:
        csv.field_size_limit(limit)


def _column_names(header: list[str]) -> list[str]:
    """The names of columns, those of the same name with their places."""
    names = [name.strip() for name in header]
    while not names[-1]:  # columns that a spreadsheet has emptied
        names.pop()
    places = {name: names.count(name) for name in names}
    return [
        name if places[name] == 1 else f"{name} (column {place})".lstrip()
        for place, name in enumerate(names, start=1)
    ]


def _beginning(lines: Iterator[str], delimiter: str | None) -> tuple[str, int, str]:
    """The header of a table, how many lines are above it, and what stands between its fields."""
    first, skipped = next(lines, ""), 0
    # What a spreadsheet writes for another one.
    if declared := re.fullmatch(r"sep=(.)[\r\n]*", first):
        delimiter = delimiter or declared.group(1)
        first, skipped = next(lines, ""), 1
    while first and not first.strip():
        first, skipped = next(lines, ""), skipped + 1
    return first, skipped, delimiter or _most_frequent(first)


def _most_frequent(header: str) -> str:
    """The separator that a header has most of, outside quotes; a comma where it has none."""
    unquoted = re.sub(r'"[^"]*"', "", header)
    return max(_DELIMITERS, key=unquoted.count)


def _parquet_records(path: Path, limits: ReadLimits) -> Iterator[Row]:
    parquet = imported("pyarrow.parquet", "reading .parquet files", "pyarrow", "parquet")
    from pyarrow import ArrowException

    try:
        with opened(path) as content, parquet.ParquetFile(content) as file:
            groups = (file.metadata.row_group(k) for k in range(file.metadata.num_row_groups))
            check_size(path, sum(group.total_byte_size for group in groups), limits)
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
