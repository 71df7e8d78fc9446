"""Softmax and sums over bags that lie one after the other in a table: no padding, no loop over
bags.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.rows import matmul


def sums(values: FloatArray, offsets: IntArray) -> FloatArray:
    """``(n, ...)``: the sum of the rows of each bag; ``values`` is ``(N, ...)``."""
    return _reduce_bags(np.add, values, offsets)


def largest(values: FloatArray, offsets: IntArray) -> FloatArray:
    """``(n, ...)``: the largest row of each bag, column by column."""
    return _reduce_bags(np.maximum, values, offsets)


def _reduce_bags(operation: np.ufunc, values: FloatArray, offsets: IntArray) -> FloatArray:
    """``(n, ...)``: one row for the rows of each bag, faster where all bags have as many."""
    n = len(offsets) - 1
    length, rest = divmod(len(values), n)
    if not rest and (np.diff(offsets) == length).all():
        return np.asarray(operation.reduce(values.reshape(n, length, *values.shape[1:]), axis=1))
    return np.asarray(operation.reduceat(values, offsets[:-1], axis=0))


def softmax(logits: FloatArray, offsets: IntArray) -> tuple[FloatArray, FloatArray]:
    r"""Probabilities ``(N, ...)`` that sum to one in each bag, and ``(n, ...)`` the logarithm of
    what they were divided by, :math:`\log\sum_te^{a_t}`.
    """
    terms, total, top = powers(logits, offsets)
    terms /= np.repeat(total, np.diff(offsets), axis=0)
    return terms, top + np.log(total)


def powers(logits: FloatArray, offsets: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Exponentials ``(N, ...)`` of logits less the largest of their bag, their sums ``(n, ...)``
    and these largest ones ``(n, ...)``.
    """
    top = _reduce_bags(np.maximum, logits, offsets)
    terms = np.repeat(top, np.diff(offsets), axis=0)
    np.subtract(logits, terms, out=terms)
    np.exp(terms, out=terms)
    return terms, _reduce_bags(np.add, terms, offsets), top


def log_sums(logits: FloatArray, offsets: IntArray) -> FloatArray:
    r"""``(n, ...)``: :math:`\log\sum_te^{a_t}` of each bag."""
    _, total, top = powers(logits, offsets)
    return np.asarray(top + np.log(total))


def log_sums_of_others(logits: FloatArray, offsets: IntArray) -> FloatArray:
    r"""``(N, ...)``: :math:`\log\sum_{\tau\ne t}e^{a_\tau}`, over all other rows of the bag;
    ``-inf`` where there are none.
    """
    lengths = np.diff(offsets)
    attention, total = softmax(logits, offsets)
    # one row may hold nearly all of a sum, whose rest is then no difference but a sum of its own
    dominant = attention > 0.5
    others = np.where(dominant, -np.inf, logits)
    top = np.maximum(largest(others, offsets), np.finfo(np.float64).min)
    with np.errstate(divide="ignore"):
        rest = top + np.log(sums(np.exp(others - np.repeat(top, lengths, axis=0)), offsets))
    subtracted = np.repeat(total, lengths, axis=0) + np.log1p(-np.minimum(attention, 0.5))
    return np.where(dominant, np.repeat(rest, lengths, axis=0), subtracted)


def largest_others(values: FloatArray, offsets: IntArray) -> FloatArray:
    """``(N, columns)``: the largest of all other rows of the bag; ``-inf`` where there are none."""
    at = np.zeros(values.shape, dtype=np.bool_)
    for column in range(values.shape[1]):
        first = first_largest(np.ascontiguousarray(values[:, column]), offsets)
        at[offsets[:-1] + first, column] = True
    lengths = np.diff(offsets)
    second = largest(np.where(at, -np.inf, values), offsets)
    best = largest(values, offsets)
    return np.where(at, np.repeat(second, lengths, axis=0), np.repeat(best, lengths, axis=0))


def hardmax(logits: FloatArray, offsets: IntArray) -> FloatArray:
    """``(N, columns)``: in each column 1 at the largest row of each bag, the first one on ties, and
    0 elsewhere.
    """
    shares = np.zeros_like(logits)
    for column in range(logits.shape[1]):
        chosen = first_largest(np.ascontiguousarray(logits[:, column]), offsets)
        shares[offsets[:-1] + chosen, column] = 1.0
    return shares


def first_largest(values: FloatArray, offsets: IntArray) -> IntArray:
    """``(n,)``: where in its bag the largest of ``(N,)`` values is, the first one on ties."""
    lengths = np.diff(offsets)
    at = np.flatnonzero(values == np.repeat(largest(values, offsets), lengths))
    return at[np.searchsorted(at, offsets[:-1])] - offsets[:-1]


def columns(rows: Any, factor: FloatArray) -> FloatArray:
    """``rows @ factor``, one column at a time, which is faster where they are few."""
    if factor.shape[1] > _FEW_COLUMNS or not isinstance(rows, np.ndarray):
        return matmul(rows, factor)
    products = np.empty((len(rows), factor.shape[1]), np.result_type(rows, factor))
    for column, weights in zip(products.T, factor.T, strict=True):
        column[...] = matmul(rows, np.ascontiguousarray(weights))
    return products


def products(rows: Any, moved: FloatArray, offsets: IntArray) -> FloatArray:
    """``(N,)``: the product of each row ``(N, d)`` with the vector of its bag ``(n, d)``."""
    if (moved[0] == moved[-1]).all() and (moved == moved[0]).all():  # one query for all bags
        return matmul(rows, moved[0])
    return np.asarray(np.einsum("nd,nd->n", rows, np.repeat(moved, np.diff(offsets), axis=0)))


def bag_products(rows: Any, factors: FloatArray, offsets: IntArray) -> FloatArray:
    """``(N, columns)``: the rows of each bag times its factor ``(n, d, columns)``."""
    products = np.empty((len(rows), factors.shape[2]), np.result_type(rows, factors))
    for factor, start, stop in zip(factors, offsets, offsets[1:], strict=False):
        products[start:stop] = rows[start:stop] @ factor
    return products


def bag_moments(rows: Any, shares: FloatArray, offsets: IntArray) -> FloatArray:
    """``(n, d, columns)``: the sum of the rows of each bag, as often as ``(N, columns)`` say."""
    moments = np.empty((len(offsets) - 1, rows.shape[1], shares.shape[1]), shares.dtype)
    for moment, start, stop in zip(moments, offsets, offsets[1:], strict=False):
        moment[...] = rows[start:stop].T @ shares[start:stop]
    return moments


_FEW_COLUMNS = 6  # up to which products column by column are faster; measured
