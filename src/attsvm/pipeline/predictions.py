"""An answer for each row: prediction, probability, the instance that decides and its rival.

Rows are computed and written a few bags at a time, so that neither texts nor tables of answers are
ever held as a whole.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.extras import imported
from attsvm.base.files import atomic_write
from attsvm.datasets import Dataset, Encoded
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.datasets.bags import Bags
from attsvm.datasets.source import View
from attsvm.sklearn import WitnessSVC
from attsvm.sklearn.bag_classifier import BagClassifier
from attsvm.sklearn.evidence import first_and_second, predicted, ranking_weights
from attsvm.sklearn.layers import Layer, Reading, WitnessLayer

PREDICTION_SUFFIXES = (".csv", ".parquet")

# A sign with something behind it; lone signs, as labels are at times, start no formula.
_FORMULA = re.compile(r"[\t\r]|[=+\-@].*[^=+\-@\s]", re.DOTALL)
_BATCH = 4096  # rows of a group of a parquet file

PATCH_COLUMNS: dict[str, type] = {
    "slide": str,
    "patch": int,
    "x": float,
    "y": float,
    "probability": float,
}
"""Columns of a table of patches: ``patch`` counts from 1, ``probability`` is that of being the
witness, or attention."""

Prediction = dict[str, Any]
"""The answer for a row, by column; see :func:`prediction_columns`."""


def prediction_columns(model: BagClassifier, dataset: Dataset) -> dict[str, type]:
    """The columns of predictions with their types.

    ``row`` is the number of the row in its file, from 1, ``id`` its identifier where there is one;
    ``split`` is train, test or new; ``probability`` that of the prediction. ``chosen``
    is the word, patch or instance that decides, ``position`` where it stands, from 1 (a word: where
    first in its text, among all words), and ``attention`` its attention, of witnesses
    ``instance_probability``, the probability that it is the witness. ``rival`` is the next one, and
    ``margin`` how much more the chosen one contributes to the decision value; these are empty for a
    text without a known word.
    """
    weight = "instance_probability" if isinstance(model, WitnessSVC) else "attention"
    return {
        "row": int,
        **({} if dataset.ids is None else {"id": str}),
        "split": str,
        "label": str,
        "prediction": str,
        "probability": float,
        "chosen": str,
        "position": int,
        weight: float,
        "rival": str,
        "rival_position": int,
        "margin": float,
    }


def predictions(
    model: BagClassifier,
    dataset: Dataset,
    encoded: Encoded,
    splits: Mapping[str, IntArray] | None = None,
    shares: Sequence[float] | None = None,
) -> Iterator[Prediction]:
    """The answer for each row of a data set, in its order.

    Of a text without a known word nothing is known but how frequent each class is: the prediction
    is the largest class, with its share as the probability, of balanced classes one over their
    number.

    Args:
        model: a fitted classifier, whose classes are those of ``class_names``.
        dataset: the rows; labels of -1 are missing.
        encoded: its vectors.
        splits: rows of each part by name; all rows are ``new`` without it.
        shares: of the classes among the rows of the fit; without them such a text is answered as
            the model answers a word of zeros.

    Raises:
        InputError: vectors that do not fit the model.
    """
    split_of = np.full(len(dataset), "new" if splits is None else "", dtype=object)
    for name, rows in (splits or {}).items():
        split_of[rows] = name
    names, columns = (*dataset.class_names, ""), prediction_columns(model, dataset)
    unknown = wordless(encoded)
    for positions, bags, layer, reading in model.readings(encoded.bags):
        column = predicted(reading.values)
        of_class = np.arange(len(positions)), column
        probability = model.probabilities(reading.values)[of_class]
        weights = ranking_weights(layer, reading, column, bags)
        first, second = first_and_second(weights, reading, bags.offsets)
        chosen, rival = bags.offsets[:-1] + first, bags.offsets[:-1] + second
        margin = weights[chosen] - weights[rival]
        attention = instance_weights(layer, reading, bags, column)[chosen]
        for k, i in enumerate(positions.tolist()):
            view = encoded.views[i] if encoded.views is not None else {"kind": "array"}
            has_rival = second[k] >= 0
            row = {
                "row": dataset.row(i),
                "id": None if dataset.ids is None else dataset.ids[i],
                "split": split_of[i],
                "label": names[dataset.labels[i]],
                "prediction": names[column[k]],
                "probability": float(probability[k]),
                "chosen": instance_name(view, int(first[k])),
                "position": instance_position(view, int(first[k])),
                "attention": float(attention[k]),
                "instance_probability": float(attention[k]),
                "rival": instance_name(view, int(second[k])) if has_rival else "",
                "rival_position": instance_position(view, int(second[k])) if has_rival else None,
                "margin": float(margin[k]) if has_rival else None,
            }
            if unknown[i] and shares is not None:
                row |= _unknown(names, shares, model.class_weight == "balanced")
            yield {name: row[name] for name in columns}


def _unknown(names: Sequence[str], shares: Sequence[float], is_balanced: bool) -> dict[str, Any]:
    """What is answered of a text without a known word."""
    largest = int(np.argmax(shares))
    return {
        "prediction": names[largest],
        "probability": 1.0 / len(shares) if is_balanced else shares[largest],
        "attention": None,
        "instance_probability": None,
    }


def patches(
    model: BagClassifier, dataset: Dataset, encoded: Encoded, rows: IntArray | None = None
) -> Iterator[dict[str, Any]]:
    """The patches of slides, for a table; see :data:`PATCH_COLUMNS`.

    Args:
        model: a fitted classifier.
        dataset: the slides.
        encoded: their features.
        rows: positions of slides; None for all.
    """
    positions = np.arange(len(dataset)) if rows is None else rows
    for at, bags, layer, reading in model.readings(encoded.bags.take(positions)):
        weights = instance_weights(layer, reading, bags, predicted(reading.values))
        for k, i in enumerate(positions[at].tolist()):
            view = encoded.views[i] if encoded.views is not None else {}
            coordinates = view.get("coordinates")
            for t, weight in enumerate(weights[bags.offsets[k] : bags.offsets[k + 1]].tolist()):
                x, y = (None, None) if coordinates is None else map(float, coordinates[t])
                name = str(i + 1) if dataset.ids is None else dataset.ids[i]
                yield {"slide": name, "patch": t + 1, "x": x, "y": y, "probability": weight}


def instance_weights(layer: Layer, reading: Reading, bags: Bags, column: IntArray) -> FloatArray:
    """``(N,)``: attention, of several heads their mean; of witnesses the probability that each
    instance is the one, of the predicted class where there are more than two.
    """
    if not isinstance(layer, WitnessLayer):
        return np.asarray(reading.attention.mean(axis=1))
    shares = layer.shares(bags.rows, bags.offsets)
    if layer.null:
        return np.asarray(shares.mean(axis=1))
    return np.asarray(shares[np.arange(len(shares)), column[bags.bag]])


def instance_name(view: View, t: int) -> str:
    """An instance in words: the word of a text, the place of a patch, the name of a vector."""
    if view["kind"] == "text":
        spans = view["spans"][t] if t < len(view["spans"]) else []
        return str(view["text"][slice(*spans[0])]) if spans else ""
    if view["kind"] == "image":
        row, column, *_ = view["boxes"][t]
        return f"row {row}, column {column}"
    if "coordinates" in view:
        x, y = view["coordinates"][t]
        return f"x {x:g}, y {y:g}"
    labels = view.get("labels", ())
    return str(labels[t]) if t < len(labels) else f"instance {t + 1}"


def instance_position(view: View, t: int) -> int | None:
    """Where an instance stands, from 1: a word or sentence where it stands first in its text; None
    in a text without a known word.
    """
    position: int | None = view["positions"][t] if "positions" in view else t + 1
    return position


def wordless(encoded: Encoded) -> BoolArray:
    """``(n,)``: whether a row is a text without a known word; such a text is one word of zeros."""
    is_wordless = np.zeros(encoded.bags.n, dtype=np.bool_)
    if encoded.views is not None:
        for i in np.flatnonzero(encoded.bags.lengths == 1).tolist():
            is_wordless[i] = instance_position(encoded.views[i], 0) is None
    return is_wordless


def check_predictions_path(path: Path, must_exist: bool = True) -> None:
    """Refuse, before there is anything to write, a file of predictions of another kind.

    Args:
        path: the file.
        must_exist: whether its folder must be there.

    Raises:
        InputError: neither ``.csv`` nor ``.parquet``, or a folder that does not exist.
        MissingExtraError: a ``.parquet`` file without pyarrow.
    """
    if path.suffix.lower() not in PREDICTION_SUFFIXES:
        raise InputError(
            f"{path} ends in {path.suffix or 'no suffix'}; predictions are written to"
            f" {' or '.join(PREDICTION_SUFFIXES)} files"
        )
    if must_exist and not path.parent.is_dir():
        raise InputError(f"folder {path.parent} does not exist; create it first")
    if path.suffix.lower() == ".parquet":
        imported("pyarrow.parquet", "writing .parquet files", "pyarrow", "parquet")


def write_table(
    rows: Iterable[Mapping[str, Any]],
    columns: Mapping[str, type],
    path: Path,
    delimiter: str | None = None,
) -> int:
    """Write rows to a ``.csv`` or ``.parquet`` file as they come, atomically; returns their number.

    A ``.csv`` file is UTF-8 with the mark by which spreadsheets know it. A text in it that begins
    with a tab, a carriage return, or ``=``, ``+``, ``-`` or ``@`` with more than such signs behind
    it, and is no number, gets an apostrophe in front, so that no spreadsheet takes somebody's text
    for a formula.

    Args:
        rows: each by column.
        columns: with their types.
        path: the file.
        delimiter: of the table that the rows answer. Where it has semicolons, spreadsheets write
            numbers with a decimal comma, and so does a ``.csv`` file; else it has commas and
            points.

    Raises:
        InputError: see :func:`check_predictions_path`.
    """
    check_predictions_path(path)
    with atomic_write(path) as partial:
        if path.suffix.lower() == ".csv":
            return _write_csv(rows, columns, partial, has_semicolons=delimiter == ";")
        return _write_parquet(rows, columns, partial)


def _write_csv(
    rows: Iterable[Mapping[str, Any]],
    columns: Mapping[str, type],
    path: Path,
    has_semicolons: bool,
) -> int:
    delimiter, point = (";", ",") if has_semicolons else (",", ".")
    with path.open("w", encoding="utf-8-sig", newline="", errors="backslashreplace") as file:
        table, count = csv.writer(file, delimiter=delimiter), 0
        table.writerow(columns)
        for row in rows:
            table.writerow([_cell(row[name], point) for name in columns])
            count += 1
    return count


def _cell(value: Any, point: str) -> str:
    """A cell of a ``.csv`` file, with this decimal point."""
    if isinstance(value, float):
        return f"{value:.6g}".replace(".", point)
    text = "" if value is None else str(value)
    return f"'{text}" if _FORMULA.match(text) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _write_parquet(
    rows: Iterable[Mapping[str, Any]], columns: Mapping[str, type], path: Path
) -> int:
    arrow = imported("pyarrow", "writing .parquet files", "pyarrow", "parquet")
    parquet = imported("pyarrow.parquet", "writing .parquet files", "pyarrow", "parquet")
    types = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    schema = arrow.schema([(name, types[kind]) for name, kind in columns.items()])
    rows, count = iter(rows), 0
    with parquet.ParquetWriter(path, schema) as writer:
        while batch := [dict(row) for row in islice(rows, _BATCH)]:
            writer.write_table(arrow.Table.from_pylist(batch, schema))
            count += len(batch)
    return count
