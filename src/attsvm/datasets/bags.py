"""Bags of instances as one table: the one form into which everything that people have is turned.

A bag is a set of instances with one label: a slide of patches, a molecule of conformers, a document
of sentences. The table keeps the instances of all bags as rows without padding, so a bag of a
thousand instances costs its neighbours nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.base.errors import InputError
from attsvm.base.printable import kind
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray, axes, real_array


@dataclass(frozen=True, eq=False)
class Bags:
    """Checked instances, bag by bag.

    Attributes:
        rows: ``(N, d)``, the instances of all bags, those of a bag next to each other.
        offsets: ``(n + 1,)``: bag ``i`` is ``rows[offsets[i]:offsets[i + 1]]``.
        labels: ``(n,)`` labels that came with the bags; None when there were none.
        source: ``(N,)``: the row of the caller's table that each row was; counted through the bags
            when there was no table.
        instance_labels: ``(N,)`` labels of the instances, where somebody knows them; None
            otherwise. Nothing is fitted to them.

    Example:
        >>> from attsvm.datasets.bags import as_bags
        >>> bags = as_bags([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]])
        >>> bags.n, bags.d, bags.lengths.tolist(), bags[1].tolist()
        (2, 2, [1, 2], [[3.0, 4.0], [5.0, 6.0]])
        >>> bags.take([1]).data(labels=[1])
        AttentionData(1 sequences of 2 tokens, d_x=2, d_z=2, 1 of 1 labels +1)
    """

    rows: FloatArray
    offsets: IntArray
    labels: NDArray[Any] | None
    source: IntArray
    instance_labels: NDArray[Any] | None = None

    @property
    def n(self) -> int:
        """Number of bags."""
        return len(self.offsets) - 1

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

    def __getitem__(self, i: int) -> FloatArray:
        """``(T_i, d)``: the instances of one bag."""
        return self.rows[self.offsets[i] : self.offsets[i + 1]]

    def take(self, bags: ArrayLike) -> Bags:
        """The bags at these positions (integers or booleans), in this order."""
        chosen = np.arange(self.n)[np.asarray(bags)]
        lengths = self.lengths[chosen]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        start = np.repeat(self.offsets[chosen] - offsets[:-1], lengths)
        rows = start + np.arange(offsets[-1])
        labels = None if self.labels is None else self.labels[chosen]
        known = None if self.instance_labels is None else self.instance_labels[rows]
        return Bags(self.rows[rows], offsets, labels, self.source[rows], known)

    def data(self, labels: ArrayLike) -> AttentionData:
        """Padded sequences with ``(n,)`` labels of -1 and +1, each queried by its first
        instance.
        """
        mask = np.arange(int(self.lengths.max())) < self.lengths[:, None]
        tokens = np.zeros((*mask.shape, self.d))
        tokens[mask] = self.rows
        return AttentionData(tokens, labels, mask=mask)  # type: ignore[arg-type]


def as_bags(X: Any, groups: ArrayLike | None = None) -> Bags:
    """What people have, as one table.

    Args:
        X: a list of ``(T_i, d)`` arrays; one ``(n, T, d)`` array; a table of ``(N, d)`` rows with
            ``groups``; :class:`~attsvm.AttentionData`; ``sawmil.Bag`` objects or a
            ``sawmil.BagDataset``; torchmil's bags, each with ``X`` and perhaps ``Y``, or one batch
            of them with a ``mask``.
        groups: ``(N,)``, the bag of each row of a table; bags are counted in the order in which
            they first appear, and their rows may be scattered.

    Raises:
        InputError: no bag, a bag without instances, instances of different widths, a value that is
            not finite, groups of another length, a table without groups.

    Example:
        >>> from attsvm.datasets.bags import as_bags
        >>> as_bags([[1.0], [2.0], [3.0]], groups=["b", "a", "b"]).rows.ravel().tolist()
        [1.0, 3.0, 2.0]
    """
    if isinstance(X, Bags):
        return X
    if groups is not None:
        return _grouped(X, groups)
    if isinstance(X, AttentionData):
        return _masked(X.tokens, X.mask, X.labels)
    if hasattr(X, "bags"):  # sawmil.BagDataset
        X = X.bags
    if _is_record(X):  # a batch of torchmil, or one of its bags
        tokens = real_array("X", X["X"])
        if tokens.ndim != 3:
            raise InputError(f"X is one bag of shape {tokens.shape}; give a list of bags")
        mask = X["mask"] if "mask" in X.keys() else np.ones(tokens.shape[:2])  # noqa: SIM118
        return _masked(tokens, real_array("mask", mask) > 0, _plain(X.get("Y", None)))
    if axes(X) == 0:
        raise InputError(
            f"X is {kind(X)}; give a list of bags, each an array (instances, features), one array"
            " (bags, instances, features), or a table of instances with groups"
        )
    ragged = isinstance(X, np.ndarray) and X.dtype == object
    return _listed(list(X)) if ragged or isinstance(X, Sequence) else _array(X)


def bag_labels(y: ArrayLike | None, bags: Bags) -> NDArray[Any]:
    """``(n,)`` labels, one for each bag: ``y``, or what came with the bags when it is None.

    Raises:
        InputError: no labels, another number of them, a label that is missing.
    """
    given = bags.labels if y is None else np.asarray(_plain(y))
    if given is None:
        raise InputError("y is missing; give one label per bag")
    if given.shape == (len(bags.rows),) and len(bags.rows) != bags.n:
        raise InputError(
            f"y has {len(given)} labels, one per instance; give one per bag, of which there are"
            f" {bags.n}, in the order in which they first appear"
        )
    if given.shape != (bags.n,):
        raise InputError(f"y has shape {given.shape}; it must be ({bags.n},), one label per bag")
    if (missing := _missing(given)).any():
        raise InputError(f"y holds no label for bag {int(np.argmax(missing))}; drop the bag")
    return given


def _listed(items: Sequence[Any]) -> Bags:
    if len(items) == 0:
        raise InputError("X holds no bags; give at least one")
    parts, labels = zip(*(_one(item, i) for i, item in enumerate(items)), strict=True)
    width = parts[0].shape[-1]
    for i, part in enumerate(parts):
        if part.ndim != 2:
            raise InputError(
                f"bag {i} has shape {part.shape}; a bag is a table of instances (rows) and features"
            )
        if len(part) == 0:
            raise InputError(f"bag {i} has no instances; drop it or give it one")
        if part.shape[1] != width:
            raise InputError(
                f"bag {i} has {part.shape[1]} features and bag 0 has {width}; all instances need"
                " the same"
            )
    rows = np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
    found = None if any(label is None for label in labels) else np.asarray(labels)
    return _checked(rows, np.array([len(part) for part in parts]), found)


def _one(item: Any, i: int) -> tuple[NDArray[Any], Any]:
    """The instances of one bag and its label, None when it has none."""
    if _is_record(item):
        label = _plain(item.get("Y", None))
        return real_array(f"bag {i}", item["X"]), None if label is None else label.item()
    if hasattr(item, "intra_bag_mask"):  # sawmil.Bag
        if not np.all(item.intra_bag_mask):
            raise InputError(
                f"bag {i} has an intra_bag_mask that leaves instances out, which is not used here;"
                " drop these instances or the mask"
            )
        return real_array(f"bag {i}", item.X), item.y
    return real_array(f"bag {i}", item), None


def _grouped(X: Any, groups: ArrayLike) -> Bags:
    rows, group = real_array("X", X), np.asarray(groups)
    if rows.ndim != 2:
        raise InputError(f"X has shape {rows.shape}; with groups it must be a table of instances")
    if group.shape != (len(rows),):
        raise InputError(
            f"groups has shape {group.shape}; it must be ({len(rows)},), the bag of each row of X"
        )
    if len(rows) == 0:
        raise InputError("X holds no instances; give at least one")
    if (missing := _missing(group)).any():
        raise InputError(f"groups has no bag for row {int(np.argmax(missing))}; drop the row")
    _, first, inverse = np.unique(group, return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first))[inverse]
    source = np.argsort(place, kind="stable")
    return _checked(rows[source], np.bincount(place), None, source)


def _masked(tokens: NDArray[Any], mask: NDArray[np.bool_], labels: Any) -> Bags:
    if tokens.ndim != 3:
        raise InputError(f"X has leading axes {tokens.shape[:-3]}; give one set of bags at a time")
    if mask.shape != tokens.shape[:2]:
        raise InputError(f"mask has shape {mask.shape}; it must be {tokens.shape[:2]}")
    return _checked(tokens[mask], mask.sum(axis=1), labels)


def _array(X: Any) -> Bags:
    array = real_array("X", X)
    if array.ndim == 2:
        raise InputError(
            f"X is a table of {len(array)} rows; give the bag of each row as groups, or a list of"
            " bags. Transformers such as StandardScaler make tables: give them to"
            " attsvm.sklearn.BagFeatures, as in BagFeatures(StandardScaler())"
        )
    if array.ndim != 3 or len(array) == 0:
        raise InputError(f"X has shape {array.shape}; it must be bags x instances x features")
    rows = np.array(array, dtype=np.float64).reshape(-1, array.shape[2])
    return _checked(rows, np.full(len(array), array.shape[1]), None)


def _checked(rows: Any, lengths: IntArray, labels: Any, source: IntArray | None = None) -> Bags:
    """The table, which keeps ``rows``: an array that nobody else writes to."""
    rows = np.ascontiguousarray(rows, dtype=np.float64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if not lengths.all():
        raise InputError(f"bag {int(np.argmin(lengths))} has no instances; drop it or give it one")
    if rows.shape[1] == 0:
        raise InputError("X has instances without features; give at least one")
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        bag = int(np.searchsorted(offsets, row, side="right")) - 1
        raise InputError(
            f"bag {bag} holds {rows[row, column]} in instance {row - offsets[bag]}, feature"
            f" {column}; every value must be finite"
        )
    rows.setflags(write=False)
    return Bags(rows, offsets, labels, np.arange(len(rows)) if source is None else source)


def _is_record(item: Any) -> bool:
    """Whether this is a dictionary or a TensorDict with instances under ``X``."""
    return hasattr(item, "keys") and hasattr(item, "get") and "X" in item.keys()  # noqa: SIM118


def _missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where there is None or not-a-number, which is not equal to itself."""
    return np.array([value is None or value != value for value in values.tolist()], dtype=np.bool_)


def _plain(value: Any) -> Any:
    """Tensors as NumPy arrays, everything else as it is."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value
