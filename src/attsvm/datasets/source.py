"""What every source of sequences offers: labels, provenance, and vectors learned from the training
rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray

Kind = Literal["array", "image", "text"]
View = dict[str, Any]
"""How a sequence looks to a person, JSON-ready: the ``view`` of ``examples.json`` in
``docs/run-folder.md``.
"""


Item = TypeVar("Item")


class Views(Sequence[Item]):
    """Views, or other things, made when they are looked at: ``views[i]`` is ``make(i)`` for ``i``
    below ``size``.
    """

    def __init__(self, size: int, make: Callable[[int], Item]) -> None:
        self._size, self._make = size, make

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Item:  # type: ignore[override]
        return self._make(range(self._size)[index])


@dataclass(frozen=True, eq=False, repr=False)
class Encoded(Compact):
    """A data set as vectors.

    Attributes:
        data: one instance over all rows, in the order of :attr:`Dataset.labels`.
        views: ``views[i]`` shows sequence ``i`` with its tokens in place; None when there is
            nothing to show.
        notes: sentences about this encoding (words dropped, texts cut, ...).
    """

    data: AttentionData
    views: Sequence[View] | None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Compact):
    """Labelled sequences that are not yet vectors.

    Attributes:
        name: short name or file name.
        title: one line for a report.
        kind: what a token is: a row of numbers, a patch of an image, a word.
        labels: ``(n,)`` of -1.0 and +1.0, read-only.
        class_names: of the negative and the positive class.
        provenance: JSON-ready: source, sha256, rows, licence or citation.
        notes: sentences about the source.
        encoder: turns the sorted training rows into vectors of all rows.
        held: positions of the rows that are there to be held out; None where any may be.
    """

    name: str
    title: str
    kind: Kind
    labels: FloatArray
    class_names: tuple[str, str]
    provenance: dict[str, Any]
    notes: list[str]
    encoder: Callable[[IntArray], Encoded] = field(repr=False)
    held: IntArray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        labels = np.array(self.labels, dtype=np.float64)
        labels.setflags(write=False)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.labels)

    def encode(self, train: ArrayLike) -> Encoded:
        """Vectors of every row; whatever has to be learned (means, word vectors) is learned from
        the rows ``train`` alone.

        Args:
            train: positions of the training rows, or booleans over all rows; their order and
                repetitions do not matter.

        Raises:
            InputError: no training row, or a position outside the data.
        """
        rows = np.asarray(train)
        if rows.dtype == np.bool_ and rows.shape == (len(self),):
            rows = np.flatnonzero(rows)
        if rows.ndim != 1 or rows.dtype.kind not in "iu" or len(rows) == 0:
            raise InputError(
                f"train has shape {rows.shape} and dtype {rows.dtype}; give a list of at least one"
                " row position"
            )
        rows = np.unique(rows.astype(np.int64))
        if rows[0] < 0 or rows[-1] >= len(self):
            outside = int(rows[0] if rows[0] < 0 else rows[-1])
            raise InputError(
                f"train holds row {outside}; {self.name} has rows 0 to {len(self) - 1}"
            )
        return self.encoder(rows)
