"""The model of a run folder: written by ``attsvm fit``, asked about new rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from attsvm.base.errors import InputError
from attsvm.base.files import brief, digest, load_arrays, read_json, save_arrays, write_json
from attsvm.base.printable import name_of
from attsvm.base.store import read_run
from attsvm.datasets import Dataset, Encoded, load
from attsvm.datasets.catalogue import kind_of_data
from attsvm.datasets.source import Kind
from attsvm.datasets.tables import of_another_file
from attsvm.pipeline.predictions import (
    Prediction,
    check_predictions_path,
    prediction_columns,
    predictions,
    write_table,
)
from attsvm.sklearn.bag_classifier import BagClassifier
from attsvm.sklearn.saved import MODEL, WEIGHTS, load_classifier, save_classifier

FORMAT = "attsvm-encoding/1"
ENCODING, LEARNED = "encoding.json", "encoding.safetensors"
"""How rows become vectors, and what was learned for it."""
MODEL_FILES = (MODEL, WEIGHTS, ENCODING, LEARNED)

_OF_THE_FIT = ("labels", "test", "positive", "skip_empty", "classes", "cache", "progress", "device")


def save_fitted(
    folder: Path,
    model: BagClassifier,
    dataset: Dataset,
    encoded: Encoded,
    shares: Sequence[float] | None = None,
) -> None:
    """Write :data:`MODEL_FILES` into a run folder.

    Args:
        folder: the run's.
        model: fitted to some rows of the data set.
        dataset: the rows.
        encoded: their vectors.
        shares: of the classes among the rows of the fit.
    """
    save_classifier(model, folder)
    save_arrays(encoded.learned, folder / LEARNED)
    options = {name: value for name, value in dataset.options.items() if name not in _OF_THE_FIT}
    content = {
        "format": FORMAT,
        "kind": dataset.kind,
        "class_names": list(dataset.class_names),
        "shares": None if shares is None else list(shares),
        "options": {
            name: str(value) if isinstance(value, Path) else value
            for name, value in options.items()
        },
        "encoder": dataset.provenance.get("encoder"),
        "sha256": digest(folder / LEARNED),
    }
    write_json(folder / ENCODING, content)


@dataclass(frozen=True, eq=False)
class FittedRun:
    """The model of a finished run; see :func:`load_run`.

    Attributes:
        folder: the run's.
        model: the fitted :class:`~attsvm.sklearn.AttentionSVC` or ``WitnessSVC``.
        class_names: of its classes, as the data of the fit writes them.
        options: how the data of the fit was read; see :func:`attsvm.datasets.load`.
    """

    folder: Path
    model: BagClassifier
    class_names: tuple[str, ...]
    options: dict[str, Any]
    _content: dict[str, Any] = field(repr=False)
    _learned: dict[str, NDArray[Any]] = field(repr=False)

    def predict(
        self, data: str | Path, *, out: str | Path | None = None, **options: Any
    ) -> list[Prediction]:
        """The answer for each row of a file, folder or named data set, in its order.

        Rows are read and encoded as those of the fit were; labels and identifiers may be missing.
        A delimiter or an encoding that the fit was told holds for files that have it.

        Args:
            data: what :func:`attsvm.datasets.load` takes, of the kind that the run was fitted to.
            out: a ``.csv`` or ``.parquet`` file that is written instead of returning the answers.
            **options: of :func:`attsvm.datasets.load` that differ from those of the fit, such as
                the column of the texts.

        Returns:
            A dictionary for each row, by the columns of ``predictions.csv``
            (``pandas.DataFrame`` takes them); empty with ``out``.

        Raises:
            InputError: what the reader refuses, data of another kind or width, an encoder that is
                not the one of the fit, a label that the model does not know, or a file of another
                kind.
        """
        if out is not None:
            check_predictions_path(Path(out))  # before a long encoding
        dataset, encoded = self.read(data, **options)
        columns, rows = self.answers(dataset, encoded)
        if out is None:
            return list(rows)
        write_table(rows, columns, Path(out), dataset.provenance.get("delimiter"))
        return []

    @property
    def kind(self) -> Kind:
        """Kind of its tokens; see :class:`attsvm.datasets.Dataset`."""
        kind: Kind = self._content["kind"]
        return kind

    def answers(
        self, dataset: Dataset, encoded: Encoded
    ) -> tuple[dict[str, type], Iterator[Prediction]]:
        """The columns of :meth:`predict` and the answers one by one, of rows from :meth:`read`."""
        rows = predictions(self.model, dataset, encoded, shares=self._content.get("shares"))
        first = next(rows)  # whatever is refused is refused here
        return prediction_columns(self.model, dataset), itertools.chain([first], rows)

    def read(self, data: str | Path, **options: Any) -> tuple[Dataset, Encoded]:
        """Rows, and their vectors as those of the fit were made."""
        content = self._content
        if (kind := kind_of_data(data)) not in (None, content["kind"]):
            raise InputError(
                f"{data} holds {_PLURAL[str(kind)]}, and {name_of(self.folder)} was fitted to"
                f" {_PLURAL[content['kind']]}; give data of the same kind"
            )
        dataset = load(data, **self._reading(data, options), classes=self.class_names)
        if dataset.class_names != self.class_names:
            raise InputError(
                f"{data} has the classes {' and '.join(dataset.class_names[:5])}, and"
                f" {name_of(self.folder)} was fitted to {' and '.join(self.class_names[:5])}"
            )
        if dataset.provenance.get("encoder") != content["encoder"]:
            raise InputError(
                f"the encoder {self.options.get('encoder')} is not the one of the fit: its files"
                f" have another digest; give the model with which {name_of(self.folder)} was fitted"
            )
        encoded = dataset.encode_as(self._learned)
        if encoded.bags.d != self.model.n_features_in_:
            raise InputError(
                f"{data} has {encoded.bags.d} features per instance, and {name_of(self.folder)} was"
                f" fitted to {self.model.n_features_in_}; give vectors of the same kind"
            )
        return dataset, encoded

    def _reading(self, data: str | Path, options: dict[str, Any]) -> dict[str, Any]:
        """How these rows are read: as those of the fit, but for the options that the user names and
        what belongs to a file alone.
        """
        if self.kind != "text":
            return {**self.options, **options}
        of_the_file = {name: self.options.get(name) for name in ("delimiter", "encoding")}
        fitting = of_another_file(Path(data), **of_the_file)
        kept = {name: value for name, value in self.options.items() if name not in of_the_file}
        optional = [name for name in ("label", "id") if name not in options]
        return {"optional": optional, **kept, **fitting, **options}


_PLURAL = {"array": "vectors", "image": "images", "text": "texts", "slide": "bags in files"}


def load_run(folder: str | Path) -> FittedRun:
    """The model of a finished run of ``attsvm fit``, for new rows.

    Args:
        folder: the run folder.

    Raises:
        InputError: no such run, one that is not finished, one of a version that kept no model, or
            files that are not as they were written.

    Example:
        >>> from pathlib import Path
        >>> import attsvm
        >>> from attsvm.pipeline.fit import fit_dataset
        >>> from attsvm.pipeline.settings import FitSettings
        >>> dataset = attsvm.datasets.load("unit_sphere:40,4,3,0")
        >>> settings = FitSettings(selection_steps=100)
        >>> _ = fit_dataset(dataset, settings, Path("runs/sphere"))  # attsvm fit
        >>> answer = attsvm.load_run("runs/sphere").predict("unit_sphere:40,4,3,0")[0]
        >>> sorted(answer)[:5]
        ['attention', 'chosen', 'label', 'margin', 'position']
    """
    folder = Path(folder)
    command = read_run(folder).get("command", "fit")
    if command != "fit":
        raise InputError(
            f"{folder} is a run of attsvm {command}; give the folder of an attsvm fit to predict"
        )
    missing = [name for name in MODEL_FILES if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"{folder} has no {missing[0]}, so it cannot predict; fit again into another folder"
        )
    content, model = read_json(folder / ENCODING), load_classifier(folder)
    learned = load_arrays(folder / LEARNED)
    try:
        if content["format"] != FORMAT or digest(folder / LEARNED) != content["sha256"]:
            raise ValueError(f"format {content['format']!r}, or arrays of another run")
        class_names, options = tuple(map(str, content["class_names"])), dict(content["options"])
        shares = content.get("shares")
        if shares is not None and len(shares) != len(class_names):
            raise ValueError("shares of other classes")
        if len(class_names) != len(model.classes_) or content["kind"] not in _PLURAL:
            raise ValueError("classes or kind of another model")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{folder / ENCODING} is not as attsvm fit writes it ({type(error).__name__}:"
            f" {brief(str(error))}); fit again into another folder"
        ) from None
    return FittedRun(folder, model, class_names, options, content, learned)
