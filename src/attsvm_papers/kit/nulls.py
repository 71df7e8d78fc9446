"""Nulls of claims: evidence that is broken in a known way, so that a claim must fail on it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm import InputError
from attsvm.claims import Evidence, Null
from attsvm_papers.kit.captions import one_line

Breaks = Callable[[Evidence], Evidence]
Values = Callable[[NDArray[Any]], ArrayLike]


def null_of(null: Null | Breaks | None) -> Null | None:
    """The null that a function computes, named by its docstring.

    Raises:
        InputError: it has no docstring.
    """
    if null is None or isinstance(null, Null):
        return null
    return Null(one_line(inspect.getdoc(null) or "").removesuffix("."), null)


def replaced(words: str, **columns: str | Callable[[Evidence], ArrayLike]) -> Null:
    """The null in whose evidence other measurements, those of a broken variant, take the place of
    the columns that the claim reads.

    ``replaced("a random direction", gap="gap_random")`` puts the column ``gap_random`` in place of
    ``gap``; a function of the evidence computes what takes its place.
    """
    return Null(
        words,
        lambda e: e.but(
            {
                name: e[source] if isinstance(source, str) else source(e)
                for name, source in columns.items()
            }
        ),
    )


def random_steps(
    key: Sequence[int], steps: int, shape: int | tuple[int, ...]
) -> NDArray[np.float64]:
    """The sum of as many steps of length one in random directions: where weights of this shape
    would be if no gradient pointed anywhere. ``key`` seeds them.
    """
    moves = np.random.default_rng(key).standard_normal((steps, np.prod(shape, dtype=int)))
    moves /= np.linalg.norm(moves, axis=1, keepdims=True)
    return np.asarray(moves.sum(axis=0).reshape(shape))


def exchanged(words: str, column: str, first: Any, second: Any) -> Null:
    """The null with the rows of each of two variants under the name of the other:
    ``exchanged("plain descent in its place", "rule", POLYAK, PLAIN)``.
    """

    def of(e: Evidence) -> Evidence:
        values = e[column]
        return e.but(
            {column: np.where(values == first, second, np.where(values == second, first, values))}
        )

    return Null(words, of)


def at_start(*columns: str, words: str = "before any training") -> Null:
    """The null with the first record of ``(rows, records, ...)`` everywhere: nothing is learned."""
    return _null_of_columns(
        words, columns, lambda values: np.broadcast_to(values[:, :1], values.shape)
    )


def shuffled(*columns: str, within: str = "", words: str = "") -> Null:
    """The null in which every row has another's value, of the row half of them further on: for
    claims that pair columns.

    ``within`` names columns, between spaces; values are exchanged among rows that agree in them. A
    claim about one column alone does not see the order of rows, and needs another null.
    """

    def of(e: Evidence) -> Evidence:
        labels = [e[name].astype(str) for name in within.split()]
        _, group = np.unique(np.stack(labels), axis=1, return_inverse=True) if labels else (0, None)
        order = np.arange(e.rows)
        for members in [order] if group is None else [order[group == k] for k in np.unique(group)]:
            order[members] = np.roll(members, max(1, len(members) // 2))
        return e.but({name: e[name][order] for name in columns})

    return Null(words or f"{' and '.join(columns)} of another instance", of)


def mixed_records(*columns: str, words: str = "its records in random order") -> Null:
    """The null with the records ``(rows, records)`` of a row in random order: no trend is left."""
    return _null_of_columns(words, columns, lambda values: _rng().permuted(values, axis=1))


def noise(*columns: str, low: float = 0.0, high: float = 1.0, words: str = "") -> Null:
    """The null with random numbers between ``low`` and ``high`` where the column has a number."""

    def of(values: NDArray[Any]) -> ArrayLike:
        return np.where(np.isnan(values), np.nan, _rng().uniform(low, high, values.shape))

    return _null_of_columns(words or f"random numbers from {low:g} to {high:g}", columns, of)


def _null_of_columns(words: str, columns: tuple[str, ...], of: Values) -> Null:
    if not columns:
        raise InputError(f"the null {words!r} names no column; say which ones it breaks")
    return Null(words, lambda e: e.but({name: of(e[name]) for name in columns}))


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)  # a verdict is the same every time
