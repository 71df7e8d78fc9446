"""What every source of sequences offers: labels, provenance, and vectors learned from the training
rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.base.errors import InputError
from attsvm.base.files import brief
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray
from attsvm.datasets.bags import Bags
from attsvm.datasets.queries import table_queries

Kind = Literal["array", "image", "text", "slide"]
View = dict[str, Any]
"""How a sequence looks to a person, JSON-ready: the ``view`` of ``examples.json`` in
``docs/run-folder.md``.
"""


Learned = Mapping[str, NDArray[Any]]
"""Arrays that a data set has learned from its training rows, by name: means, directions, words."""

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
    """A data set as vectors: one bag per sequence, one instance per token, without padding.

    Attributes:
        bags: all sequences, in the order of :attr:`Dataset.labels`, and without labels. The
            ``rows`` are of any float type and may lie on disk: read them by ``bags.blocks()``,
            ``bags[i]`` or ``bags.take(positions)``. ``queries`` is there where a source has its
            own.
        views: ``views[i]`` shows sequence ``i``, the ``t``-th of its tokens for row ``t`` of its
            bag; None when there is nothing to show.
        notes: sentences about this encoding (words dropped, texts cut, ...).
        query: how an estimator makes the query of a sequence whose source has none, see
            :class:`attsvm.sklearn.AttentionSVC`.
        learned: what was learned from the training rows; with it :meth:`Dataset.encode_as` encodes
            other rows alike.
    """

    bags: Bags
    views: Sequence[View] | None
    notes: list[str] = field(default_factory=list)
    query: Literal["mean", "constant", "first"] = "mean"
    learned: Learned = field(default_factory=dict)

    def queries(self, bags: Bags) -> FloatArray:
        """``(n, d_z)`` queries of some of the sequences, which are in memory."""
        if bags.queries is not None:
            return bags.queries
        return table_queries(np.asarray(bags.rows, np.float64), bags.offsets, self.query)

    def data(self, labels: ArrayLike) -> AttentionData:
        """Padded sequences of float64 with their queries and ``(n,)`` labels of -1 and +1, for
        whatever takes :class:`~attsvm.AttentionData`; small data only.
        """
        return replace(self.bags, queries=self.queries(self.bags)).data(labels)

    def take(self, rows: IntArray) -> Encoded:
        """The sequences at these positions."""
        views = self.views
        return replace(
            self,
            bags=self.bags.take(rows),
            views=None if views is None else Views(len(rows), lambda i: views[int(rows[i])]),
        )


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Compact):
    """Labelled sequences that are not yet vectors.

    Attributes:
        name: short name or file name.
        title: one line for a report.
        kind: what a token is: a row of numbers, a patch of an image or of a slide, a
            word.
        labels: ``(n,)`` positions in ``class_names``, integers, read-only; -1 of rows without a
            label, which only data sets read with ``classes`` have.
        class_names: of two classes or more, as the user writes them; of two the second is the
            positive one.
        provenance: JSON-ready: source, sha256, rows, licence or citation.
        notes: sentences about the source.
        learn: what the sorted training rows teach.
        apply: vectors of all rows, by what was learned.
        held: positions of the rows that are there to be held out; None where any may be.
        positive: the class that the user names as positive, a position in ``class_names``; None
            where nobody did.
        ids: identifiers of the rows; None where they have none.
        numbers: ``(n,)`` numbers of the rows in their file, from 1; None where none was left out.
        options: the options of :func:`attsvm.datasets.load` that read it.
    """

    name: str
    title: str
    kind: Kind
    labels: IntArray
    class_names: tuple[str, ...]
    provenance: dict[str, Any]
    notes: list[str]
    learn: Callable[[IntArray], Learned] = field(repr=False)
    apply: Callable[[Learned], Encoded] = field(repr=False)
    held: IntArray | None = field(default=None, repr=False)
    positive: int | None = None
    ids: Sequence[str] | None = field(default=None, repr=False)
    numbers: IntArray | None = field(default=None, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        labels = np.array(self.labels, dtype=np.int64)
        labels.setflags(write=False)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.labels)

    def row(self, i: int) -> int:
        """The number, from 1, of the row at position ``i`` in its file."""
        return i + 1 if self.numbers is None else int(self.numbers[i])

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
        learned = self.learn(rows)
        return replace(self.apply(learned), learned=learned)

    def encode_as(self, learned: Learned) -> Encoded:
        """Vectors of every row by what another data set of this kind has learned.

        Args:
            learned: :attr:`Encoded.learned` of that data set.

        Raises:
            InputError: it was learned by another kind of data set.
        """
        try:
            return replace(self.apply(learned), learned=learned)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise InputError(
                f"{self.name} cannot be read as the data of the fit was ({type(error).__name__}:"
                f" {brief(str(error))}); give data of the same kind"
            ) from None
