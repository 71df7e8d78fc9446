"""Labelled texts out of tables (:mod:`attsvm.datasets.tables`) and folders ``pos``/``neg``."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

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
    name_of_label,
    read_rows,
)

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


@dataclass(frozen=True, eq=False)
class LabelledTexts:
    """Texts with their classes.

    Attributes:
        texts: one string per row, in file order.
        labels: ``(n,)`` positions in ``class_names``.
        class_names: the label values in their order, the one named as positive behind the others.
        sha256: of the file; of a folder, of its files' names and digests.
        held: positions of the texts of a second file, to be held out; None without one.
        repeated: how many of them are texts of the first file, too.
        skipped: rows without a text or a label that are left out.
        positive: the position of the class that was named as positive; None where none was.
        ids: identifiers of the texts: of a named column, or the names of files; None without.
        numbers: ``(n,)`` numbers of their rows or lines in the file, from 1.
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
    limits: ReadLimits = LIMITS,
) -> LabelledTexts:
    """Read every row of a file, or every ``.txt`` of a folder in IMDb layout.

    Missing is what pandas counts as missing: nothing, numbers that are not a number, and in
    ``.csv`` and ``.tsv`` files words such as ``NA`` and ``null`` where a label should be. Labels
    that are one number are one class (``1`` and ``1.0``).

    Args:
        path: a file, or a folder with ``pos`` and ``neg`` (or ``train/pos`` and ``train/neg``).
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
        limits: how much is read.

    Raises:
        InputError: what cannot be read, with its row, line or byte; one class only, or nearly as
            many as rows; another class in the second file; rows without a text or a label.
        MissingExtraError: a ``.parquet`` file without pyarrow.
    """
    path = Path(path)
    if test is not None:
        first, second = (
            read_texts(
                file,
                text=text,
                label=label,
                positive=positive,
                delimiter=delimiter,
                encoding=encoding,
                skip_empty=skip_empty,
                id=id,
                limits=limits,
            )
            for file in (path, test)
        )
        return _behind(first, second, path, test)
    if is_folder(path):
        return _read_folder(path, positive, classes, limits)
    rows = read_rows(path, delimiter=delimiter, encoding=encoding, limits=limits)
    columns = {"text": text, "label": label} | ({} if id is None else {"id": id})
    table = _table(rows, path, columns, bool(skip_empty), is_labelled=classes is None)
    if not table.texts:
        raise InputError(f"{path} holds no rows; give a file with texts and labels")
    if classes is None:
        labels, class_names = class_positions(_one_spelling(table.labels), path, positive)
    else:
        labels, class_names = known_positions(table.labels, path, classes), tuple(classes)
    return LabelledTexts(
        table.texts,
        labels,
        class_names,
        digest(path),
        skipped=table.skipped,
        positive=None if positive is None else len(class_names) - 1,
        ids=None if id is None else table.ids,
        numbers=np.array(table.numbers),
    )


def provenance_of(reading: TextReading) -> dict[str, Any]:
    """How the texts of a data set were read, as its provenance says it."""
    columns = {"text", "label", "test", "classes"}
    chosen = {
        name: value for name, value in reading.items() if name not in columns and value is not None
    }
    return {"columns": [reading.get("text"), reading.get("label")], **chosen}


def _behind(
    first: LabelledTexts, second: LabelledTexts, path: Path, test: str | Path
) -> LabelledTexts:
    """The texts of two files, those of the second to be held out."""
    position = {name: k for k, name in enumerate(first.class_names)}
    if not position.keys() >= set(second.class_names):
        raise InputError(
            f"{test} has the labels {_and(second.class_names)}, {path} has"
            f" {_and(first.class_names)}; give texts of the same classes"
        )
    second_labels = np.array([position[name] for name in second.class_names])[second.labels]
    known = set(first.texts)
    repeated = sum(text in known for text in second.texts)
    if repeated == len(second.texts):
        raise InputError(f"all texts of {test} are in {path}; give texts to be held out")
    texts = first.texts + second.texts
    return LabelledTexts(
        texts,
        np.concatenate([first.labels, second_labels]),
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


def _table(
    rows: Iterable[Row],
    path: Path,
    requests: dict[str, str | None],
    skip_empty: bool,
    is_labelled: bool,
) -> _Table:
    """The rows of a file, checked.

    Args:
        rows: of the file.
        path: the file.
        requests: the columns that are asked for, by their role.
        skip_empty: leave out rows without a text or a label.
        is_labelled: whether every row needs a label.
    """
    table = _Table()
    without_text: list[str] = []
    without_label: list[str] = []
    columns: dict[str, str] = {}
    for where, fields in rows:
        if not columns:
            columns = {
                role: _column(role, name, fields, path)
                for role, name in requests.items()
                if role != "label" or is_labelled or _usual_column(role, name, fields) is not None
            }
        content, value = fields.get(columns["text"]), fields.get(columns.get("label", ""))
        # numbers, lists and the like are no texts, and no labels
        if not (content is None or isinstance(content, str) or content != content):
            raise InputError(
                f"{path}, {where}: {columns['text']} is {content!r:.40}; choose the column of the"
                " texts with text="
            )
        if isinstance(value, (dict, list)):
            raise InputError(
                f"{path}, {where}: {columns['label']} is {value!r:.40}; every row needs a label"
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
                identifier = fields.get(columns["id"])
                table.ids.append("" if identifier is None else str(identifier))
    table.skipped = len({*without_text, *without_label})
    if table.skipped and not skip_empty:
        problems = [
            f"{_listed(rows)} no {columns[role]}"
            for rows, role in ((without_text, "text"), (without_label, "label"))
            if rows
        ]
        raise InputError(
            f"{path}: {' and '.join(problems)}; fill them in, or leave these rows out with"
            " skip_empty=True"
        )
    return table


def _listed(rows: list[str]) -> str:
    """The count of rows or lines and the first numbers of them, in words."""
    kind = rows[0].split()[0]
    numbers = [row.split()[1] for row in rows]
    if len(rows) == 1:
        return f"{kind} {numbers[0]} has"
    more = ", ..." if len(numbers) > 5 else ""
    return f"{len(rows)} {kind}s ({', '.join(numbers[:5])}{more}) have"


def _one_spelling(labels: list[str]) -> list[str]:
    """The labels, numbers that are equal spelled alike: as the shortest of them is."""
    try:
        numbers = {name: float(name) for name in set(labels)}
    except ValueError:
        return labels
    shortest: dict[float, str] = {}
    for name, number in sorted(numbers.items(), key=lambda pair: (-len(pair[0]), pair[0])):
        shortest[number] = name
    return [shortest[numbers[name]] for name in labels]


def _column(role: str, requested: str | None, fields: dict[str, Any], path: Path) -> str:
    """The name of the column of texts or of labels."""
    columns = ", ".join(str(name) for name in fields)[:300] or "none"
    if requested is not None:
        if requested in fields:
            return requested
        meant = did_you_mean(requested, fields)
        raise InputError(f"{path} has no column {requested}; its columns are {columns}{meant}")
    if (usual := _usual_column(role, None, fields)) is not None:
        return usual
    near = filter(None, (did_you_mean(name, fields) for name in _COLUMN_NAMES[role]))
    raise InputError(
        f"{path} has no column called {role}; its columns are {columns}; name the one with the"
        f" {role} by option {role}{next(near, '')}"
    )


def _usual_column(role: str, requested: str | None, fields: dict[str, Any]) -> str | None:
    """The column that is asked for, or one that is called after its role; None where it lacks."""
    if requested is not None:
        return requested if requested in fields else None
    usual = {str(name).strip().lower(): name for name in reversed(fields)}
    return next((usual[name] for name in _COLUMN_NAMES[role] if name in usual), None)


def known_positions(values: list[str], path: Path, classes: Sequence[str]) -> IntArray:
    """Labels as positions among the names of known classes, -1 where there is none.

    Raises:
        InputError: a label that is none of them.
    """
    known, spellings = len(classes), _one_spelling([*classes, *filter(None, values)])
    position = {name: k for k, name in enumerate(spellings[:known])}
    spelling = dict(zip(filter(None, values), spellings[known:], strict=True))
    unknown = [value for value, name in spelling.items() if name not in position]
    if unknown:
        raise InputError(
            f"{path} has the label {unknown[0]}; the model knows {_and(classes)}"
            f"{did_you_mean(unknown[0], classes)}"
        )
    return np.array([position[spelling[value]] if value else -1 for value in values])


def class_positions(
    values: list[str], path: Path, positive: str | None
) -> tuple[IntArray, tuple[str, ...]]:
    """Labels as positions among the names of the classes, and these names, a positive one last."""
    distinct = sorted(set(values), key=_numbers_first)
    if len(distinct) == 1:
        raise InputError(f"{path} has only the label {distinct[0]}; two classes are needed")
    if len(distinct) > max(len(values) / 2, 2):
        raise InputError(
            f"{path} has {len(distinct)} different labels ({_and(distinct)}) in {len(values)} rows;"
            " name the column of the classes with option label"
        )
    if positive is not None and positive not in distinct:
        raise InputError(
            f"positive is {positive}, but {path} has the labels {_and(distinct)}"
            f"{did_you_mean(positive, distinct)}"
        )
    names = sorted(distinct, key=lambda name: name == positive)  # stable
    position = {name: k for k, name in enumerate(names)}
    return np.array([position[value] for value in values]), tuple(names)


def _and(names: Sequence[str], most: int = 5) -> str:
    """Names in a sentence, the first few of many."""
    if len(names) > most:
        return ", ".join([*names[:most], "..."])
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _numbers_first(value: str) -> tuple[float, str]:
    """Sort key: numbers by value (so that -1 comes before 1 and 2 before 10), then words."""
    try:
        number = float(value)
    except ValueError:
        number = math.inf
    return (math.inf if math.isnan(number) else number), value


def _read_folder(
    path: Path, positive: str | None, classes: Sequence[str] | None, limits: ReadLimits
) -> LabelledTexts:
    """The texts of a folder in IMDb layout."""
    root = path / "train" if (path / "train" / "pos").is_dir() else path
    texts, values, ids, lines, total = [], [], [], [], 0
    for name in ("neg", "pos"):
        files = sorted(
            (root / name).glob("*.txt"),
            key=lambda file: (*_numbers_first(file.stem.split("_")[0]), file.name),
        )
        if not files:
            raise InputError(
                f"{root / name} holds no .txt files; put the texts in {root / 'neg'} and"
                f" {root / 'pos'}, or give a file"
            )
        for file in files:
            with opened(file) as content_file:
                raw = content_file.read(limits.bytes - total + 1)
            total += len(raw)
            check_size(path, total, limits)
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
            values.append(name)
            ids.append(f"{name}/{file.name}")
    if classes is None:
        labels, class_names = class_positions(values, path, positive)
    else:
        labels, class_names = known_positions(values, path, classes), tuple(classes)
    named = None if positive is None else len(class_names) - 1
    return LabelledTexts(texts, labels, class_names, digest(*lines), positive=named, ids=ids)
