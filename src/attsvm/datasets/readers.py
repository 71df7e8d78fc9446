"""Labelled texts out of tables (:mod:`attsvm.datasets.tables`) and folders ``pos``/``neg``."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    """

    texts: list[str]
    labels: IntArray
    class_names: tuple[str, ...]
    sha256: str
    held: IntArray | None = None
    repeated: int = 0
    skipped: int = 0
    positive: int | None = None


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
                limits=limits,
            )
            for file in (path, test)
        )
        return _behind(first, second, path, test)
    if is_folder(path):
        return _read_folder(path, positive, limits)
    rows = read_rows(path, delimiter=delimiter, encoding=encoding, limits=limits)
    texts, values, skipped = _texts_and_labels(rows, path, text, label, bool(skip_empty))
    if not texts:
        raise InputError(f"{path} holds no rows; give a file with texts and labels")
    labels, class_names = _classes(_one_spelling(values), path, positive)
    named = None if positive is None else len(class_names) - 1
    return LabelledTexts(texts, labels, class_names, digest(path), skipped=skipped, positive=named)


def provenance_of(reading: TextReading) -> dict[str, Any]:
    """How the texts of a data set were read, as its provenance says it."""
    columns = {"text", "label", "test"}
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
    )


def texts_digest(texts: Iterable[str]) -> str:
    """SHA-256 over texts in order, each with its length in bytes in front."""
    contents = (text.encode("utf-8", "surrogatepass") for text in texts)
    return digest(*(len(content).to_bytes(8, "little") + content for content in contents))


def _texts_and_labels(
    rows: Iterable[Row], path: Path, text: str | None, label: str | None, skip_empty: bool
) -> tuple[list[str], list[str], int]:
    """Texts and labels of all rows, checked, and how many rows without them are left out."""
    texts: list[str] = []
    labels: list[str] = []
    without_text: list[str] = []
    without_label: list[str] = []
    columns: tuple[str, str] | None = None
    for where, fields in rows:
        if columns is None:
            columns = _column("text", text, fields, path), _column("label", label, fields, path)
        content, value = fields.get(columns[0]), fields.get(columns[1])
        # numbers, lists and the like are no texts, and no labels
        if not (content is None or isinstance(content, str) or content != content):
            raise InputError(
                f"{path}, {where}: {columns[0]} is {content!r:.40}; choose the column of the texts"
                " with text="
            )
        if isinstance(value, (dict, list)):
            raise InputError(
                f"{path}, {where}: {columns[1]} is {value!r:.40}; every row needs a label"
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
        if not name:
            without_label.append(where)
        elif has_text:
            texts.append(str(content))
            labels.append(name)
    skipped = len({*without_text, *without_label})
    if skipped and not skip_empty:
        assert columns is not None
        problems = [
            f"{_listed(places)} no {column}"
            for places, column in ((without_text, columns[0]), (without_label, columns[1]))
            if places
        ]
        raise InputError(
            f"{path}: {' and '.join(problems)}; fill them in, or leave these rows out with"
            " skip_empty=True"
        )
    return texts, labels, skipped


def _listed(places: list[str]) -> str:
    """How many rows or lines there are, and the first of them."""
    kind = places[0].split()[0]
    numbers = [place.split()[1] for place in places]
    if len(places) == 1:
        return f"{kind} {numbers[0]} has"
    more = ", ..." if len(numbers) > 5 else ""
    return f"{len(places)} {kind}s ({', '.join(numbers[:5])}{more}) have"


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
    usual = {str(name).strip().lower(): name for name in reversed(fields)}
    for name in _COLUMN_NAMES[role]:
        if name in usual:
            return usual[name]
    near = filter(None, (did_you_mean(name, fields) for name in _COLUMN_NAMES[role]))
    raise InputError(
        f"{path} has no column called {role}; name the one that holds it with option {role}, its"
        f" columns are {columns}{next(near, '')}"
    )


def _classes(
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
            f"positive is {positive}, {path} has the labels {_and(distinct)}"
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


def _read_folder(path: Path, positive: str | None, limits: ReadLimits) -> LabelledTexts:
    """The texts of a folder in IMDb layout."""
    root = path / "train" if (path / "train" / "pos").is_dir() else path
    texts, values, lines, total = [], [], [], 0
    for name in ("neg", "pos"):
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
    labels, class_names = _classes(values, path, positive)
    named = None if positive is None else len(class_names) - 1
    return LabelledTexts(texts, labels, class_names, digest(*lines), positive=named)
