"""Bags of instances as one table: the form into which whatever people have is turned.

A bag is a set of instances with one label: a slide of patches, a molecule of conformers, a document
of sentences. The table keeps the instances of all bags as rows without padding, so a bag of a
thousand instances costs its neighbours nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.base.errors import InputError
from attsvm.base.printable import kind
from attsvm.datasets.attention_data import (
    AttentionData,
    FloatArray,
    IntArray,
    as_array,
    axes,
    given_away,
)
from attsvm.datasets.rows import ListedRows, RowReader, is_stored, pieces, tables_of

Names = NDArray[Any]
"""``(n,)`` or ``(d,)`` names of bags, of groups or of features."""

_FLOATS = (np.float16, np.float32, np.float64)  # types of rows that stay as they are
_SMALL = 1_000_000  # numbers up to which a copy in one array is quicker than a list of arrays


@dataclass(frozen=True, eq=False)
class Bags:
    """Checked instances, bag by bag: a sequence of ``(T_i, d)`` arrays.

    Attributes:
        rows: ``(N, d)``, the instances of all bags, those of a bag next to each other: an array of
            any float type, which may be the caller's, :class:`~attsvm.datasets.rows.ListedRows`, or
            a table on disk of h5py or zarr. ``np.asarray(bags.rows)`` is always an array.
        offsets: ``(n + 1,)``: bag ``i`` is ``rows[offsets[i]:offsets[i + 1]]``.
        labels: ``(n,)`` labels that came with the bags; None when there were none.
        source: ``(N,)``: the row of the caller's table that each row was; counted through the bags
            when there was no table.
        instance_labels: ``(N,)`` labels of the instances, where somebody knows them; None
            otherwise. Nothing is fitted to them.
        names: ``(n,)`` identifiers of the bags; None when they have none.
        groups: ``(n,)`` the patient, or whatever else must not be torn apart by folds, of each bag;
            None when bags stand alone.
        queries: ``(n, d_z)`` the query of each bag; None where an estimator makes it from the
            instances.
        feature_names: ``(d,)`` names of the columns of a data frame; None of other tables.

    Example:
        >>> from attsvm.datasets.bags import as_bags
        >>> bags = as_bags([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]])
        >>> len(bags), bags.d, bags.lengths.tolist(), bags[-1].tolist()
        (2, 2, [1, 2], [[3.0, 4.0], [5.0, 6.0]])
        >>> bags[1:].data(labels=[1])
        AttentionData(1 sequences of 2 tokens, d_x=2, d_z=2, 1 of 1 labels +1)
    """

    rows: Any
    offsets: IntArray
    labels: NDArray[Any] | None
    source: IntArray
    instance_labels: NDArray[Any] | None = None
    names: Names | None = None
    groups: Names | None = None
    feature_names: Names | None = None
    queries: FloatArray | None = None

    @property
    def n(self) -> int:
        """Number of bags."""
        return len(self.offsets) - 1

    def __len__(self) -> int:
        return self.n

    @property
    def d(self) -> int:
        """Features of an instance."""
        return int(self.rows.shape[1])

    @property
    def lengths(self) -> IntArray:
        """``(n,)``: instances of each bag."""
        return np.diff(self.offsets)

    @property
    def bag(self) -> IntArray:
        """``(N,)``: the bag of each row."""
        return np.repeat(np.arange(self.n), self.lengths)

    @overload
    def __getitem__(self, chosen: int | np.integer[Any]) -> FloatArray: ...

    @overload
    def __getitem__(self, chosen: slice | ArrayLike) -> Bags: ...

    def __getitem__(self, chosen: Any) -> FloatArray | Bags:
        """The instances ``(T_i, d)`` of one bag, counted from the end when negative; or the bags of
        a slice, of positions, or of a mask.
        """
        if not isinstance(chosen, Integral):
            return self.take(chosen)
        i = int(chosen)
        if not -self.n <= i < self.n:
            raise IndexError(f"bag {i} of {self.n}")
        i %= self.n
        return np.asarray(self.rows[int(self.offsets[i]) : int(self.offsets[i + 1])])

    def __iter__(self) -> Iterator[FloatArray]:
        return (self[i] for i in range(self.n))

    def blocks(self) -> Iterator[tuple[IntArray, Bags]]:
        """Positions of a few bags, and these bags with instances in memory and float64, those of a
        very long bag as :class:`~attsvm.datasets.rows.LongRows`; all bags in turn, each once.
        """
        for block in RowReader(self.rows, self.offsets, np.float64).blocks():
            bags = block.bags
            rows = slice(self.offsets[bags[0]], self.offsets[bags[-1] + 1])
            # what is on disk was not checked before
            for start, read in pieces(block.rows):
                check_finite(read, self.offsets, rows.start + start)
            yield (
                bags,
                replace(
                    self,
                    rows=block.rows,
                    offsets=block.cuts,
                    labels=_at(self.labels, bags),
                    source=self.source[rows],
                    instance_labels=_at(self.instance_labels, rows),
                    names=_at(self.names, bags),
                    groups=_at(self.groups, bags),
                    queries=_at(self.queries, bags),
                ),
            )

    def take(self, bags: ArrayLike | slice) -> Bags:
        """The bags at these positions (a slice, integers or booleans), in this order; only of a
        small array are rows copied.
        """
        chosen = np.arange(self.n)[bags if isinstance(bags, slice) else np.asarray(bags)]
        lengths = self.lengths[chosen]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        # the position here of each row that is taken: that in its bag, from where the bag begins
        moved = np.repeat(self.offsets[chosen] - offsets[:-1], lengths)
        rows = moved + np.arange(offsets[-1])
        is_small = isinstance(self.rows, np.ndarray) and self.rows.size <= _SMALL
        if is_small:
            taken = self.rows[rows]
        else:
            ranges = zip(self.offsets[chosen], self.offsets[chosen + 1], strict=True)
            taken = ListedRows(
                [table for a, b in ranges for table in tables_of(self.rows, int(a), int(b))]
            )
        return Bags(
            taken,
            offsets,
            _at(self.labels, chosen),
            self.source[rows],
            _at(self.instance_labels, rows),
            _at(self.names, chosen),
            _at(self.groups, chosen),
            self.feature_names,
            _at(self.queries, chosen),
        )

    def data(self, labels: ArrayLike) -> AttentionData:
        """Padded sequences with ``(n,)`` labels of -1 and +1, each with the query of its bag; with
        its first instance where bags have no queries.
        """
        mask = np.arange(int(self.lengths.max())) < self.lengths[:, None]
        tokens = np.zeros((*mask.shape, self.d))
        tokens[mask] = np.asarray(self.rows)
        tokens = given_away(tokens)
        return AttentionData(tokens, labels, self.queries, mask)  # type: ignore[arg-type]


def as_bags(X: Any, bag_ids: ArrayLike | None = None) -> Bags:
    """The bags of whatever form as one table.

    Args:
        X: a list of ``(T_i, d)`` arrays or data frames; one ``(n, T, d)`` array, in which instances
            that are masked are left out; a table of ``(N, d)`` rows with ``bag_ids``;
            :class:`~attsvm.AttentionData`; ``sawmil.Bag`` objects or a ``sawmil.BagDataset``;
            torchmil's bags, each with ``X`` and perhaps ``Y``, or one batch of them with a
            ``mask``; a dictionary of bags by name; a ``torch.utils.data.Dataset`` of bags, or of
            pairs of a bag and its label; a folder of :func:`attsvm.datasets.read_bags`.
        bag_ids: ``(N,)``, the bag of each row of a table; bags are counted in the order in which
            they first appear, and their rows may be scattered.

    Raises:
        InputError: no bag, a bag without instances, instances of different widths or columns, a
            value that is not finite, a sparse matrix, ids of another length, a table without them.

    Example:
        >>> from attsvm.datasets.bags import as_bags
        >>> as_bags([[1.0], [2.0], [3.0]], bag_ids=["b", "a", "b"]).rows.ravel().tolist()
        [1.0, 3.0, 2.0]
    """
    if isinstance(X, Bags):
        return X
    if bag_ids is not None:
        return _from_table(X, bag_ids)
    if isinstance(X, AttentionData):  # sequences are bags
        return replace(_from_padded(X.tokens, X.mask, X.labels), queries=X.queries)
    if _is_sparse(X) or _is_frame(X):  # a table, of which instances() refuses the sparse one
        raise _no_bag_ids(len(instances("X", X)[0]))
    if hasattr(X, "bags") and hasattr(X, "coordinates"):  # a folder of bags
        bags = _from_list(list(X.bags))
        return replace(bags, labels=X.labels, names=np.array(X.names), groups=X.groups)
    if hasattr(X, "bags"):  # sawmil.BagDataset
        X = X.bags
    if _is_record(X):  # a batch of torchmil, or one of its bags
        tokens = instances("X", X["X"])[0]
        if tokens.ndim != 3:
            raise InputError(f"X is one bag of shape {tokens.shape}; give a list of bags")
        mask = X["mask"] if "mask" in X.keys() else np.ones(tokens.shape[:2])  # noqa: SIM118
        return _from_padded(tokens, instances("mask", mask)[0] > 0, _plain(X.get("Y", None)))
    if isinstance(X, Mapping):  # bags by name
        return replace(_from_list(list(X.values())), names=np.array(list(X)))
    if _is_map_dataset(X):  # of bags, or of pairs with a label
        pairs = [X[i] for i in range(len(X))]
        X = [pair[0] if isinstance(pair, tuple) else pair for pair in pairs]
        bags = _from_list(X)
        if not all(isinstance(pair, tuple) and len(pair) > 1 for pair in pairs):
            return bags
        return replace(bags, labels=np.array([_plain(pair[1]) for pair in pairs]).reshape(-1))
    if isinstance(X, np.ma.MaskedArray) and X.ndim == 3:  # padded
        hidden: NDArray[np.bool_] = np.ma.getmaskarray(X)
        if (hidden.any(axis=2) != hidden.all(axis=2)).any():
            raise InputError(
                "X masks single features of an instance; mask all of its features, or fill them in"
            )
        return _from_padded(instances("X", X.data)[0], ~np.asarray(hidden.all(axis=2)), None)
    if isinstance(X, str | bytes) or (not isinstance(X, Sequence) and axes(X) == 0):
        raise InputError(
            f"X is {kind(X)}; give a list of bags, each an array (instances, features), one array"
            " (bags, instances, features), or a table of instances with bag_ids"
        )
    is_ragged = isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1
    return _from_list(list(X)) if is_ragged or isinstance(X, Sequence) else _from_cube(X)


def bag_labels(y: ArrayLike | None, bags: Bags) -> NDArray[Any]:
    """``(n,)`` labels: those given, else those that came with the bags; see :func:`per_bag`.

    Raises:
        InputError: there are none, there is not one per bag, or one is missing.
    """
    if y is None and bags.labels is None:
        raise InputError("y is missing; give one label per bag")
    labels = bags.labels if y is None else per_bag("y", y, bags, "label")
    assert labels is not None
    if (missing := _missing(labels)).any():
        raise InputError(f"y holds no label for bag {int(np.argmax(missing))}; drop the bag")
    return labels


def per_bag(name: str, values: Any, bags: Bags, noun: str) -> NDArray[Any]:
    """``(n,)`` values, one per bag, in the order of the bags.

    A pandas Series whose index holds the names of the bags is aligned by it; one that is numbered
    from 0 on, like every other array, is in the order in which bags first appear.

    Args:
        name: of the argument, for messages.
        values: of the bags.
        bags: which may have names.
        noun: what a value is called, for messages.

    Raises:
        InputError: another number of values, or an index that neither counts nor names the bags.

    Example:
        >>> from attsvm.datasets.bags import as_bags, per_bag
        >>> per_bag("y", [1, 0], as_bags([[[1.0]], [[2.0]]]), "label").tolist()
        [1, 0]
    """
    array = np.asarray(_plain(values))
    if array.shape == (bags.rows.shape[0],) and bags.rows.shape[0] != bags.n:
        raise InputError(
            f"{name} has {len(array)} {noun}s, one per instance; give one per bag, of which there"
            f" are {bags.n}, in the order in which they first appear"
        )
    index = getattr(values, "index", None)
    if bags.names is not None and index is not None and not callable(index) and array.ndim == 1:
        return array[_order_of_names(name, index, bags.names)]
    if array.shape != (bags.n,):
        raise InputError(
            f"{name} has shape {array.shape}; it must be ({bags.n},), one {noun} per bag"
        )
    return array


def _order_of_names(name: str, index: Any, names: Names) -> IntArray:
    """``(n,)``: where in a Series the value of each bag is, by its index."""
    keys, bags, n = list(index), names.tolist(), len(names)
    is_numbered = type(index).__name__ == "RangeIndex" and keys == list(range(n))
    # an index that pandas made says nothing about bags, unless they are the same numbers
    if is_numbered and (bags == keys or set(bags) != set(keys)):
        return np.arange(n)
    if is_numbered:
        raise InputError(
            f"{name} is numbered from 0 to {n - 1}, and so are the bags, which first appear in"
            f" another order; give {name}.to_numpy() for that order, or name the index after bags"
        )
    position = {key: i for i, key in enumerate(keys)}
    missing = [bag for bag in bags if bag not in position]
    if missing:
        raise InputError(
            f"the index of {name} does not hold the bag {missing[0]!r}; index {name} by bag_ids, or"
            f" give {name}.to_numpy() in the order in which bags first appear"
        )
    if len(position) != len(keys):
        raise InputError(f"the index of {name} holds a bag twice; give one value per bag")
    return np.array([position[bag] for bag in bags], dtype=np.int64)


def instances(name: str, value: Any) -> tuple[Any, Names | None]:
    """An array of floats, or a table on disk as it is; and the names of its columns where it is a
    frame.

    Raises:
        InputError: sparse or masked values, rows of different lengths, or anything but real
            numbers: complex numbers, dates, texts.

    Example:
        >>> from attsvm.datasets.bags import instances
        >>> instances("X", [[1, 2.5]])[0].tolist()
        [[1.0, 2.5]]
    """
    if _is_sparse(value):
        raise InputError(f"{name} is a sparse matrix; give {name}.toarray()")
    if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
        raise InputError(f"{name} holds masked values; fill them in, or drop their instances")
    if _is_frame(value):
        # a frame column by column, in the type that holds the numbers of all of them
        columns = [_real(f"column {c!r} of {name}", _column(value, c)) for c in value.columns]
        dtype = np.result_type(*{column.dtype for column in columns}) if columns else np.float64
        table = np.empty((len(value), len(columns)), dtype)
        for j, column in enumerate(columns):
            table[:, j] = column
        texts = all(isinstance(column, str) for column in value.columns)
        return table, np.array(value.columns, dtype=object) if texts and columns else None
    if is_stored(value):  # read at once only where its type must change
        return (value if np.dtype(value.dtype).kind == "f" else _real(name, value[:])), None
    return _real(name, as_array(name, value)), None


def _real(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """The array, in float64 where it holds integers, booleans or objects that are numbers."""
    if array.dtype.kind == "O" and all(
        isinstance(value, Real | np.bool_) or _is_missing(value) for value in array.flat
    ):
        numbers = [np.nan if _is_missing(value) else float(value) for value in array.flat]
        return np.array(numbers, dtype=np.float64).reshape(array.shape)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} has dtype {array.dtype}; give real numbers")
    return array if array.dtype in _FLOATS else array.astype(np.float64)


def _column(frame: Any, name: Any) -> NDArray[Any]:
    """``(N,)``: a column of a frame of pandas or polars, whatever stores it there, as an array."""
    column = frame[name]
    if getattr(column, "ndim", 1) != 1:
        raise InputError(f"X has several columns {name!r}; give each a name of its own")
    return np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)


def _is_frame(value: Any) -> bool:
    """Whether this is a table with columns: of pandas, polars or what behaves like them."""
    columns = getattr(value, "columns", None)
    return columns is not None and not callable(columns) and hasattr(value, "__getitem__")


def _is_sparse(value: Any) -> bool:
    """Whether this is a sparse matrix or array of SciPy, or a sparse tensor."""
    if hasattr(value, "is_sparse") and value.is_sparse:
        return True
    return hasattr(value, "toarray") and hasattr(value, "nnz")


def _from_list(bags: Sequence[Any]) -> Bags:
    """The table of a list of bags."""
    if len(bags) == 0:
        raise InputError("X holds no bags; give at least one")
    tables, labels, columns = zip(*map(_one_bag, bags, range(len(bags))), strict=True)
    width, names = (tables[0].shape or (0,))[-1], columns[0]
    for i, (table, others) in enumerate(zip(tables, columns, strict=True)):
        if len(table.shape) != 2:
            raise InputError(
                f"bag {i} has shape {table.shape}; a bag is a table of instances (rows) and"
                " features"
            )
        if table.shape[0] == 0:
            raise InputError(f"bag {i} has no instances; drop it or give it one")
        if table.shape[1] != width:
            raise InputError(
                f"bag {i} has {table.shape[1]} features and bag 0 has {width}; all instances need"
                " the same"
            )
        if (names is None) != (others is None) or (names is not None and list(names) != [*others]):
            raise InputError(
                f"bag {i} and bag 0 have different columns, or in another order; give the same"
            )
    small = sum(table.shape[0] for table in tables) * width <= _SMALL
    in_memory = all(isinstance(table, np.ndarray) for table in tables)
    rows = np.concatenate(tables) if small and in_memory else ListedRows(tables)
    known = None if any(label is None for label in labels) else np.asarray(labels)
    lengths = np.array([table.shape[0] for table in tables])
    return _checked(rows, lengths, known, feature_names=names)


def _one_bag(bag: Any, i: int) -> tuple[NDArray[Any], Any, Names | None]:
    """The instances of one bag, its label and the names of its features, None when it has none."""
    name = f"bag {i}"
    if _is_record(bag):
        label = _plain(bag.get("Y", None))
        table, columns = instances(name, bag["X"])
        return table, None if label is None else label.item(), columns
    if hasattr(bag, "intra_bag_mask"):  # sawmil.Bag
        if not np.all(bag.intra_bag_mask):
            raise InputError(
                f"bag {i} has an intra_bag_mask that leaves instances out, which is not used here;"
                " drop these instances or the mask"
            )
        table, columns = instances(name, bag.X)
        return table, bag.y, columns
    table, columns = instances(name, bag)
    return table, None, columns


def _from_table(X: Any, bag_ids: ArrayLike) -> Bags:
    """The table of rows with the bag of each, bags in the order in which they first appear."""
    rows, columns = instances("X", X)
    ids = np.asarray(_plain(bag_ids))
    if len(rows.shape) != 2:
        raise InputError(f"X has shape {rows.shape}; with bag_ids it must be a table of instances")
    if ids.shape != (rows.shape[0],):
        raise InputError(
            f"bag_ids has shape {ids.shape}; it must be ({rows.shape[0]},), the bag of each"
            " row of X"
        )
    if rows.shape[0] == 0:
        raise InputError("X holds no instances; give at least one")
    if (missing := _missing(ids)).any():
        raise InputError(f"bag_ids has no bag for row {int(np.argmax(missing))}; drop the row")
    # the position of each row's bag among bags in the order in which they first appear
    names, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))[inverse]
    # rows in the order of their bags, and those of a bag as they were
    source = np.argsort(rank, kind="stable")
    is_scattered = (np.diff(rank) < 0).any()
    if is_scattered and not isinstance(rows, np.ndarray):
        raise InputError(
            "X is on disk and the rows of a bag are scattered over it; store those of a bag next to"
            " each other, or give a list with a data set for each bag"
        )
    return _checked(
        rows[source] if is_scattered else rows,
        np.bincount(rank),
        None,
        source,
        names[np.argsort(first)],
        columns,
    )


def _from_padded(tokens: NDArray[Any], mask: NDArray[np.bool_], labels: Any) -> Bags:
    """The table of padded bags ``(n, T, d)``, of the instances that ``(n, T)`` mask shows."""
    if tokens.ndim != 3:
        raise InputError(f"X has leading axes {tokens.shape[:-3]}; give one set of bags at a time")
    if mask.shape != tokens.shape[:2]:
        raise InputError(f"mask has shape {mask.shape}; it must be {tokens.shape[:2]}")
    return _checked(tokens[mask], mask.sum(axis=1), labels)


def _from_cube(X: Any) -> Bags:
    """The table of bags of equal length, ``(n, T, d)``."""
    array = instances("X", X)[0]
    if array.ndim == 2:
        raise _no_bag_ids(len(array))
    if array.ndim != 3 or len(array) == 0:
        raise InputError(f"X has shape {array.shape}; it must be bags x instances x features")
    rows = array.reshape(-1, array.shape[2])
    return _checked(rows, np.full(len(array), array.shape[1]), None)


def _no_bag_ids(rows: int) -> InputError:
    return InputError(
        f"X is a table of {rows} rows; give the bag of each row as bag_ids, or a list of"
        " bags. Transformers such as StandardScaler make tables: give them to"
        " attsvm.sklearn.BagFeatures, as in BagFeatures(StandardScaler())"
    )


def _checked(
    rows: Any,
    lengths: IntArray,
    labels: Any,
    source: IntArray | None = None,
    names: Names | None = None,
    feature_names: Names | None = None,
) -> Bags:
    """The table of bags of ``(n,)`` lengths, which keeps ``rows`` where they are.

    Raises:
        InputError: a bag without instances, no features, or in memory a value that is not finite;
            what is on disk is checked whenever it is read.
    """
    if isinstance(rows, np.ndarray):  # which may be the caller's, and is never written to
        rows = rows.view()
        rows.setflags(write=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if not lengths.all():
        raise InputError(f"bag {int(np.argmin(lengths))} has no instances; drop it or give it one")
    if rows.shape[1] == 0:
        raise InputError("X has instances without features; give at least one")
    tables = rows.tables if isinstance(rows, ListedRows) else [rows]
    if all(isinstance(table, np.ndarray) for table in tables):
        for block in RowReader(rows, offsets, rows.dtype).blocks():
            begin = int(offsets[block.bags[0]])
            for start, read in pieces(block.rows):
                check_finite(read, offsets, begin + start)
    source = np.arange(rows.shape[0]) if source is None else source
    return Bags(rows, offsets, labels, source, None, names, None, feature_names)


def check_finite(rows: NDArray[Any], offsets: IntArray, begin: int) -> None:
    """Refuse rows that hold infinities or what is no number.

    Args:
        rows: ``(R, d)``, neighbours in a table.
        offsets: ``(n + 1,)``: where bags begin in the table.
        begin: the position of the first row in the table.

    Raises:
        InputError: names the first such value.
    """
    # a finite sum has finite terms; terms are looked at one by one where it is not
    with np.errstate(invalid="ignore", over="ignore"):
        if np.isfinite(rows.sum(dtype=np.float64)) or np.isfinite(rows).all():
            return
    row, column = np.argwhere(~np.isfinite(rows))[0]
    bag = int(np.searchsorted(offsets, begin + row, side="right")) - 1
    raise InputError(
        f"bag {bag} holds {rows[row, column]} in instance {begin + row - offsets[bag]}, feature"
        f" {column}; every value must be finite"
    )


def _at(values: NDArray[Any] | None, positions: IntArray | slice) -> NDArray[Any] | None:
    """Some of the values, where there are any."""
    return None if values is None else values[positions]


def _is_record(bag: Any) -> bool:
    """Whether this is a dictionary or a TensorDict with instances under ``X``."""
    if _is_frame(bag) or not (hasattr(bag, "keys") and hasattr(bag, "get")):
        return False
    return "X" in bag.keys()  # noqa: SIM118 - a TensorDict is asked for its keys


def _is_map_dataset(value: Any) -> bool:
    """Whether this is a data set of torch whose items have positions."""
    return any(base.__module__.startswith("torch.utils.data") for base in type(value).__mro__)


def _is_missing(value: Any) -> bool:
    """Whether this is None, pandas' NA or not-a-number, which is not equal to itself."""
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def _missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """``(n,)``: whether a value is missing."""
    return np.array([_is_missing(value) for value in values.tolist()], dtype=np.bool_)


def _plain(value: Any) -> Any:
    """A tensor as a NumPy array, everything else as it is."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value
