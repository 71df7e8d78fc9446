"""Labelled texts out of tables (:mod:`attsvm.datasets.tables`) and folders ``pos``/``neg``."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict
from unicodedata import normalize

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.files import digest, is_folder, opened
from attsvm.base.nearest import did_you_mean
from attsvm.base.printable import has_halves
from attsvm.datasets.attention_data import IntArray
from attsvm.datasets.tables import (
    LIMITS,
    ReadLimits,
    Row,
    check_size,
    delimiter_of,
    kind_of,
    name_of_label,
    read_rows,
)

_TRUTH = {"true": "1", "false": "0"}
_COLUMN_NAMES = {
    "text": ("text", "sentence", "review", "content"),
    "label": ("label", "y", "class", "target", "sentiment"),
    "id": ("id",),
}


class TextReading(TypedDict, total=False):
    """How a file of texts is read: the keywords of :func:`read_texts`."""

    text: str | None
    label: str | None
    test: str | Path | None
    positive: str | None
    delimiter: str | None
    encoding: str | None
    skip_empty: bool | None
    id: str | None
    classes: Sequence[str] | None
    optional: Sequence[str] | None


@dataclass(frozen=True, eq=False)
class LabelledTexts:
    """Texts with their classes.

    Attributes:
        texts: one string per row, in file order.
        labels: ``(n,)`` positions in ``class_names``.
        class_names: the label values in their order, the one named as positive behind the others.
        sha256: of the file; of a folder, of its files' names and digests.
        held: positions of the texts of a second file, to be held out; None without one.
        repeated: how many of them are texts of the first file, too; without a second file, how
            many texts repeat another.
        skipped: rows without a text or a label that are left out.
        positive: the position of the class that was named as positive; None where none was.
        ids: identifiers of the texts: of a named column, or the names of files; None without.
        numbers: ``(n,)`` numbers of their rows or lines in the file, from 1.
        alike: groups of classes whose names differ in capitals or spaces alone.
        delimiter: between the fields of the file, of the first of two; None where it has none.
    """

    texts: list[str]
    labels: IntArray
    class_names: tuple[str, ...]
    sha256: str
    held: IntArray | None = None
    repeated: int = 0
    skipped: int = 0
    positive: int | None = None
    ids: list[str] | None = None
    numbers: IntArray | None = None
    alike: list[list[str]] = field(default_factory=list)
    delimiter: str | None = None


def read_texts(
    path: str | Path,
    *,
    text: str | None = None,
    label: str | None = None,
    test: str | Path | None = None,
    positive: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    skip_empty: bool | None = None,
    id: str | None = None,
    classes: Sequence[str] | None = None,
    optional: Sequence[str] | None = None,
    limits: ReadLimits = LIMITS,
) -> LabelledTexts:
    """Read every row of a file, or every ``.txt`` of a folder in IMDb layout.

    Missing is what pandas counts as missing: nothing, numbers that are not a number, and in
    ``.csv`` and ``.tsv`` files words such as ``NA`` and ``null`` where a label should be. Labels
    that are one number or truth value are one class (``1`` and ``1.0``, ``True`` and ``TRUE``).

    Args:
        path: a file, or a folder with a folder of ``.txt`` files for each class (or with ``train``,
            which holds these); of ``pos``, ``neg`` and others the others are not read.
        text: column of the texts; default the column called text, sentence, review or content.
        label: column of the labels; default the one called label, y, class, target or sentiment.
        test: a second file or folder, whose texts come behind those of the first.
        positive: the label of the positive class; of two it is by default the one that sorts last.
        delimiter: between the fields of a ``.csv`` file; by default as its header has it.
        encoding: of the characters; by default UTF-8, or UTF-16 where the file says so.
        skip_empty: leave out rows without a text or a label.
        id: column that identifies a text.
        classes: names of the classes of a fitted model, in its order; labels may then be missing,
            and are -1.
        optional: which of ``label`` and ``id`` may be columns that the file lacks; with ``classes``
            a label whose column is not named always may.
        limits: how much is read.

    Raises:
        InputError: what cannot be read, with its row, line or byte; one class only, or nearly as
            many as rows; another class in the second file; rows without a text or a label.
        MissingExtraError: a ``.parquet`` file without pyarrow.
    """
    may_lack = {*(optional or ()), *(["label"] if classes is not None and label is None else [])}
    reading = _Reading(
        text, label, positive, delimiter, encoding, bool(skip_empty), id, may_lack, limits
    )
    first = _read(Path(path), reading, classes, is_labelled=classes is None)
    return first if test is None else _behind(first, Path(path), Path(test), reading)


@dataclass(frozen=True)
class _Reading:
    """How files are read; see :func:`read_texts`."""

    text: str | None
    label: str | None
    positive: str | None
    delimiter: str | None
    encoding: str | None
    skip_empty: bool
    id: str | None
    optional: set[str]
    limits: ReadLimits


def _read(
    path: Path,
    reading: _Reading,
    classes: Sequence[str] | None,
    is_labelled: bool,
    but_has: str = "the model knows",
) -> LabelledTexts:
    """The texts of a file or folder.

    Args:
        path: the file or folder.
        reading: how it is read.
        classes: names of known classes; None where the labels are the classes.
        is_labelled: whether every text needs a label.
        but_has: who has these classes, in a sentence about others.
    """
    delimiter: str | None = None
    if is_folder(path):
        table, sha256 = _read_folder(path, reading, is_labelled)
        ids: list[str] | None = table.ids
    else:
        columns = {"text": reading.text, "label": reading.label}
        columns |= {} if reading.id is None else {"id": reading.id}
        how = {"delimiter": reading.delimiter, "encoding": reading.encoding}
        rows = read_rows(path, **how, limits=reading.limits)
        delimiter = delimiter_of(path, **how)
        table = _table(rows, path, columns, reading, is_labelled)
        sha256, ids = digest(path), table.ids or None
    if not table.texts:
        raise InputError(f"{path} holds no rows; give a file with texts and labels")
    positive = None
    if classes is not None:
        labels, class_names = known_positions(table.labels, path, classes, but_has), tuple(classes)
    else:
        labels, class_names = class_positions(table.labels, path, reading.positive)
        positive = None if reading.positive is None else len(class_names) - 1
    return LabelledTexts(
        table.texts,
        labels,
        class_names,
        sha256,
        skipped=table.skipped,
        positive=positive,
        ids=ids,
        numbers=np.array(table.numbers) if table.numbers else None,
        repeated=len(table.texts) - len(set(table.texts)) if classes is None else 0,
        alike=_alike(class_names) if classes is None else [],
        delimiter=delimiter,
    )


def _alike(names: Sequence[str]) -> list[list[str]]:
    """Groups of names that differ in capitals or spaces alone."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault("".join(normalize("NFKC", name).casefold().split()), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def provenance_of(reading: TextReading) -> dict[str, Any]:
    """How the texts of a data set were read, as its provenance says it."""
    columns = {"text", "label", "test", "classes", "optional"}
    chosen = {
        name: value for name, value in reading.items() if name not in columns and value is not None
    }
    return {"columns": [reading.get("text"), reading.get("label")], **chosen}


def _behind(first: LabelledTexts, path: Path, test: Path, reading: _Reading) -> LabelledTexts:
    """The texts of two files, those of the second, with classes of the first, to be held out."""
    second = _read(test, reading, first.class_names, is_labelled=True, but_has=f"{path} has")
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
        first.skipped + second.skipped,
        first.positive,
        None if first.ids is None or second.ids is None else first.ids + second.ids,
        None
        if first.numbers is None or second.numbers is None
        else np.concatenate([first.numbers, second.numbers]),
        first.alike,
        first.delimiter,
    )


def texts_digest(texts: Iterable[str]) -> str:
    """SHA-256 over texts in order, each with its length in bytes in front."""
    contents = (text.encode("utf-8", "surrogatepass") for text in texts)
    return digest(*(len(content).to_bytes(8, "little") + content for content in contents))


@dataclass
class _Table:
    """Texts, labels and identifiers as they stand in a file, the numbers of their rows, and how
    many rows are left out.
    """

    texts: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    skipped: int = 0

    def skip(self, path: Path, lacking: dict[str, list[str]], skip_empty: bool) -> None:
        """Leave out rows, or refuse all of them in one sentence.

        Args:
            path: the file.
            lacking: where rows are that lack something, by what they have.
            skip_empty: whether they may be left out.
        """
        self.skipped = len(set().union(*lacking.values()))
        if self.skipped and not skip_empty:
            problems = [f"{_listed(rows)} {what}" for what, rows in lacking.items() if rows]
            fill, rows = ("it", "this") if self.skipped == 1 else ("them", "these")
            kind = next(filter(None, lacking.values()))[0].split()[0] + "s" * (self.skipped != 1)
            raise InputError(
                f"{path}: {' and '.join(problems)}; fill {fill} in, or leave {rows} {kind} out with"
                " skip_empty=True"
            )


def _table(
    rows: Iterable[Row],
    path: Path,
    requests: dict[str, str | None],
    reading: _Reading,
    is_labelled: bool,
) -> _Table:
    """The rows of a file, checked.

    Args:
        rows: of the file.
        path: the file.
        requests: the columns that are asked for, by their role.
        reading: what may be left out or missing.
        is_labelled: whether every row needs a label.
    """
    table = _Table()
    without_text: list[str] = []
    without_label: list[str] = []
    columns: dict[str, str] = {}
    first_number, has_texts = "", False
    for where, fields in rows:
        if not columns:
            columns = {
                role: _column(role, name, fields, path)
                for role, name in requests.items()
                if role not in reading.optional or _usual_column(role, name, fields) is not None
            }
        content, value = (
            _decoded(fields.get(columns.get(role, "")), path, where) for role in ("text", "label")
        )
        if content is not None and content == content and not isinstance(content, str):
            # a number among texts is one, a column of numbers or lists is none
            no_text = f"{path}, {where}: {columns['text']} is {content!r:.40}; choose the column"
            no_text += " of the texts with option text"
            if isinstance(content, bool) or not isinstance(content, int | float):
                raise InputError(no_text)
            first_number, content = first_number or no_text, str(content)
        elif isinstance(content, str):
            has_texts = True
        if isinstance(value, (dict, list)):
            raise InputError(
                f"{path}, {where}: {columns['label']} is {value!r:.40}; a label is one word or"
                " number"
            )
        if has_halves(str(content)) or has_halves(str(value)):
            raise InputError(
                f"{path}, {where} holds half of a surrogate pair, which is no character; write the"
                " text in UTF-8"
            )
        has_text = isinstance(content, str) and bool(content.strip())
        name = name_of_label(value, path)
        if not has_text:
            without_text.append(where)
        if not name and is_labelled:
            without_label.append(where)
        elif has_text:
            table.texts.append(str(content))
            table.labels.append(name)
            table.numbers.append(int(where.split()[1]))
            if "id" in columns:
                identifier = _decoded(fields.get(columns["id"]), path, where)
                table.ids.append("" if identifier is None else str(identifier))
    if first_number and not has_texts:
        raise InputError(first_number)
    of_text, of_label = (f"no {columns.get(role)}" for role in ("text", "label"))
    table.skip(path, {of_text: without_text, of_label: without_label}, reading.skip_empty)
    return table


def _decoded(value: Any, path: Path, where: str) -> Any:
    """A value of a row; the characters of bytes, which some programs write for them."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InputError(
            f"{path}, {where} holds bytes that are not UTF-8; write them as text"
        ) from None


def _listed(rows: list[str]) -> str:
    """The count of rows, lines or files and the first numbers or names of them, in words."""
    kind = rows[0].split()[0]
    names = [row.split(maxsplit=1)[1] for row in rows]
    if len(rows) == 1:
        return f"{kind} {names[0]} has"
    more = ", ..." if len(names) > 5 else ""
    return f"{len(rows)} {kind}s ({', '.join(names[:5])}{more}) have"


def _one_spelling(labels: list[str]) -> list[str]:
    """The labels, numbers and truth values that are equal spelled alike: as the shortest is."""
    try:
        numbers = {name: Decimal(_TRUTH.get(name.lower(), name)) for name in set(labels)}
    except ArithmeticError:
        return labels
    shortest: dict[Decimal, str] = {}
    for name, number in sorted(numbers.items(), key=lambda pair: (-len(pair[0]), pair[0])):
        shortest[number] = name
    return [shortest[numbers[name]] for name in labels]


def _column(role: str, requested: str | None, fields: dict[str, Any], path: Path) -> str:
    """The name of the column of texts or of labels."""
    columns = ", ".join(str(name) for name in fields)[:300] or "none"
    is_one = len(fields) == 1 and kind_of(path)[0] in (".csv", ".tsv")
    separated = " (one; if these are several, name what is between: option delimiter)" * is_one
    if (usual := _usual_column(role, requested, fields)) is not None:
        return usual
    if requested is not None:
        meant = did_you_mean(requested, fields)
        raise InputError(
            f"{path} has no column {requested}; its columns are {columns}{separated}{meant}"
        )
    near = filter(None, (did_you_mean(name, fields) for name in _COLUMN_NAMES[role]))
    raise InputError(
        f"{path} has no column called {role}; its columns are {columns}{separated}; name the one"
        f" with the {role} by option {role}{next(near, '')}"
    )


def _usual_column(role: str, requested: str | None, fields: dict[str, Any]) -> str | None:
    """The column that is asked for, or one that is called after its role; None where it lacks."""
    if requested is not None:
        exact = [requested] if requested in fields else []
        return next(
            (name for name in [*exact, *fields] if str(name).strip() == requested.strip()), None
        )
    usual = {str(name).strip().lower(): name for name in reversed(fields)}
    return next((usual[name] for name in _COLUMN_NAMES[role] if name in usual), None)


def known_positions(
    values: list[str], path: Path, classes: Sequence[str], but_has: str = "the model knows"
) -> IntArray:
    """Labels as positions among the names of known classes, -1 where there is none.

    Raises:
        InputError: labels that are none of them; ``but_has`` says who has the others.
    """
    known, written = len(classes), list(filter(None, values))
    spellings = _one_spelling([*classes, *written])
    position = {name: k for k, name in enumerate(spellings[:known])}
    spelling = dict(zip(written, spellings[known:], strict=True))
    unknown = sorted(
        {value for value, name in spelling.items() if name not in position}, key=_numbers_first
    )
    if unknown:
        raise InputError(
            f"{path} has the label{'s' * (len(unknown) > 1)} {_and(unknown)}; {but_has}"
            f" {_and(classes)}; give rows of these classes{did_you_mean(unknown[0], classes)}"
        )
    return np.array([position[spelling[value]] if value else -1 for value in values])


def class_positions(
    values: list[str], path: Path, positive: str | None
) -> tuple[IntArray, tuple[str, ...]]:
    """Labels as positions among the names of the classes, and these names, a positive one last.

    Labels that are one number or truth value are one class.
    """
    values = _one_spelling(values)
    distinct = sorted(set(values), key=_numbers_first)
    if len(distinct) == 1:
        raise InputError(f"{path} has only the label {distinct[0]}; two classes are needed")
    if len(distinct) > max(len(values) / 2, 2):
        raise InputError(
            f"{path} has {len(distinct)} different labels ({_and(distinct)}) in {len(values)} rows;"
            " name the column of the classes with option label"
        )
    if positive is not None:
        *spellings, named = _one_spelling([*distinct, positive.strip()])
        if named not in spellings:
            raise InputError(
                f"positive is {positive}, but {path} has the labels {_and(distinct)}"
                f"{did_you_mean(positive, distinct)}"
            )
        positive = distinct[spellings.index(named)]
    names = sorted(distinct, key=lambda name: name == positive)  # stable
    position = {name: k for k, name in enumerate(names)}
    return np.array([position[value] for value in values]), tuple(names)


def _and(names: Sequence[str], most: int = 5) -> str:
    """Names in a sentence, the first few of many."""
    if len(names) > most:
        return ", ".join([*names[:most], "..."])
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _numbers_first(value: str) -> tuple[float, str]:
    """Sort key: numbers and truth values by value (so that -1 comes before 1 and 2 before 10), then
    words.
    """
    try:
        number = float(_TRUTH.get(value.lower(), value))
    except ValueError:
        number = math.inf
    return (math.inf if math.isnan(number) else number), value


def _read_folder(path: Path, reading: _Reading, is_labelled: bool) -> tuple[_Table, str]:
    """The texts of a folder with a folder for each class, and a digest of names and contents."""
    root = path / "train" if _class_folders(path / "train") else path
    classes = _class_folders(root)
    if not classes and not is_labelled:
        classes = [""]  # new texts of no class
    if not any(_text_files(root / name) for name in classes) or (is_labelled and len(classes) < 2):
        raise InputError(
            f"{path} holds no folders of .txt files, one for each class, such as"
            f" {root / 'neg'} and {root / 'pos'}; put the texts there, or give a file"
        )
    table, total = _Table(), 0
    lines, without_text = [], []
    for name in classes:
        for file in _text_files(root / name):
            with opened(file) as content_file:
                raw = content_file.read(reading.limits.bytes - total + 1)
            total += len(raw)
            check_size(path, total, reading.limits)
            try:
                content = raw.decode(reading.encoding or "utf-8-sig")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{file} is not {reading.encoding or 'UTF-8'} at byte {error.start}; convert"
                    " the file to UTF-8, or name its encoding by option encoding"
                ) from None
            place = f"{name}/{file.name}" if name else file.name
            lines.append(os.fsencode(f"{place} {digest(raw)}\n"))  # a name need not be UTF-8
            if not content.strip():
                without_text.append(f"file {place}")
                continue
            table.texts.append(content)
            table.labels.append(name)
            table.ids.append(place)
    table.skip(path, {"no text": without_text}, reading.skip_empty)
    return table, digest(*lines)


def _class_folders(root: Path) -> list[str]:
    """The folders of a folder that hold texts, ``neg`` and ``pos`` alone where both do."""
    if not root.is_dir():
        return []
    names = sorted(folder.name for folder in root.iterdir() if _text_files(folder))
    return ["neg", "pos"] if {"neg", "pos"} <= {*names} else names


def _text_files(folder: Path) -> list[Path]:
    """The texts in a folder, by their numbers and names."""
    return sorted(
        folder.glob("*.txt"),
        key=lambda file: (*_numbers_first(file.stem.split("_")[0]), file.name),
    )
