"""Queries for sequences that come without one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import (
    AttentionData,
    BoolArray,
    FloatArray,
    IntArray,
    real_array,
)
from attsvm.datasets.rows import LongRows, bag_sums


def table_queries(rows: FloatArray, offsets: IntArray, kind: str) -> FloatArray:
    """``(n, d_z)`` queries of bags: ``mean`` ``[1, m / |m|] / sqrt(2)``, ``constant`` ``[1]``,
    ``first`` the first instance.

    The constant entry of ``mean`` lets ``W`` prefer tokens whatever the bag; the rest lets the
    preference depend on the bag.

    Args:
        rows: ``(N, d)``, bag after bag.
        offsets: ``(n + 1,)``: where each bag begins.
        kind: see above.

    Raises:
        InputError: unknown kind.
    """
    n = len(offsets) - 1
    if kind == "constant":
        return np.ones((n, 1))
    if kind == "first":
        return np.asarray(rows[offsets[:-1]])
    if kind == "mean":
        lengths = np.diff(offsets)[:, None]
        mean = bag_sums(_ordinary(rows, offsets), offsets) / lengths
        length = np.linalg.norm(mean, axis=1, keepdims=True)
        return np.hstack([np.ones((n, 1)), mean / np.where(length > 0, length, 1.0)]) / np.sqrt(2.0)
    raise InputError(f"query is {kind!r}; choose 'mean', 'constant' or 'first'")


def _ordinary(rows: Any, offsets: IntArray, largest: int = 500) -> Any:
    """Bags whose numbers lie near the ends of float64, scaled by a power of two so that sums and
    squares are numbers; all others, of binary exponents up to ``largest``, as they are.
    """
    if isinstance(rows, LongRows):
        return rows
    _, exponent = np.frexp(np.maximum.reduceat(np.abs(rows).max(axis=1), offsets[:-1]))
    far = np.abs(exponent) > largest
    if not far.any():
        return rows
    power = np.repeat(np.where(far, -exponent, 0), np.diff(offsets))
    return np.ldexp(rows, power[:, None])


def self_attention(data: AttentionData, position: int = 0) -> AttentionData:
    """Sequences that are each queried by their own token at ``position``.

    Raises:
        InputError: a position that some sequence does not have.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[1.0, 0.0], [0.0, 2.0]]], labels=[1.0], queries=[[0.5]])
        >>> attsvm.self_attention(data, position=1).queries.tolist()
        [[0.0, 2.0]]
    """
    if not 0 <= position < data.T or not data.mask[..., position].all():
        raise InputError(
            f"position is {position}, which is not a visible token of every sequence; choose"
            " another"
        )
    return AttentionData(data.tokens, data.labels, data.tokens[..., position, :], data.mask)


def sequence_pairs(
    data: AttentionData,
    labels: ArrayLike,
    causal: bool = False,
    mask: ArrayLike | None = None,
) -> AttentionData:
    """Every visible position as a query of its own: the pairs :math:`(X_i, x_{ij})` with labels
    :math:`Y_{ij}`, one sequence each.

    Pairs come sequence by sequence, in the order of :func:`attsvm.sequence_margins`; a causal pair
    sees the tokens up to its position. Tokens are copied once for each pair, so that everything
    that knows single queries (models, scores, margins, conditions) applies.

    Args:
        data: one instance; its queries and labels play no part.
        labels: ``(n, T)``, -1 or +1 at visible positions.
        causal: whether position ``j`` sees only the tokens up to ``j``.
        mask: booleans ``(T, T)`` or ``(n, T, T)``, which tokens position ``j`` sees at ``[j]``,
            beside that: ``abs(np.subtract.outer(np.arange(T), np.arange(T))) <= 2`` is a window.

    Raises:
        InputError: leading axes, labels of another shape or value, a mask of another shape, or one
            under which a visible position sees nothing.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[1.0], [2.0], [3.0]]], labels=[1.0])
        >>> pairs = attsvm.sequence_pairs(data, labels=[[1, 1, -1]], causal=True)
        >>> pairs.queries.tolist(), pairs.lengths.tolist()
        ([[1.0], [2.0], [3.0]], [1, 2, 3])
    """
    signs = real_array("labels", labels).astype(np.float64)
    if data.batch_shape or signs.shape != data.mask.shape:
        raise InputError(
            f"labels has shape {signs.shape} for positions {data.mask.shape}; give one instance and"
            " one label per position"
        )
    i, j = np.nonzero(data.mask)
    visible = data.mask[i] & (np.arange(data.T) <= j[:, None]) if causal else data.mask[i]
    if mask is not None:
        visible = visible & _visible_pairs(mask, data)[i, j]
        if not visible.any(axis=1).all():
            k = int(np.argmin(visible.any(axis=1)))
            raise InputError(
                f"position {j[k]} of sequence {i[k]} sees no token under this mask; show it one,"
                " its own for example"
            )
    return AttentionData(data.tokens[i], signs[i, j], data.tokens[i, j], visible)


def _visible_pairs(mask: ArrayLike, data: AttentionData) -> BoolArray:
    """A mask of positions for every sequence, ``(n, T, T)``."""
    pairs, shape = real_array("mask", mask), (data.n, data.T, data.T)
    if pairs.shape not in (shape, shape[1:]) or pairs.dtype.kind != "b":
        raise InputError(
            f"mask has shape {pairs.shape} and dtype {pairs.dtype}; give booleans {shape[1:]} or"
            f" {shape}, what each position sees"
        )
    return np.broadcast_to(pairs, shape)


def head_pairs(data: AttentionData, heads: int) -> AttentionData:
    r"""Every head of a layer as a query of its own: the pairs :math:`(X_i, e_h\otimes z_i)`, one
    sequence each, the heads of a sequence one after the other.

    Queries of different heads lie in blocks of their own, so weights of all pairs are
    :math:`W=[W_1\dots W_H]`, ``(d_x, heads * d_z)``: head ``h`` asks with :math:`W_hz_i`, and the
    Frobenius norm of :math:`W` is that of all heads together. Everything that knows single queries
    (margins, solutions, conditions) then knows the heads' joint programme;
    descent with a block for every head trains the layer. Tokens are copied once for each head.

    Args:
        data: sequences, with any leading axes.
        heads: how many.

    Raises:
        InputError: fewer than one head.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[1.0], [2.0]]], labels=[1.0], queries=[[5.0]])
        >>> attsvm.head_pairs(data, heads=2).queries.tolist()
        [[5.0, 0.0], [0.0, 5.0]]
    """
    if isinstance(heads, bool) or not isinstance(heads, (int, np.integer)) or heads < 1:
        raise InputError(f"heads is {heads!r}; give a number of heads, 1 or more")
    blocks = np.kron(np.eye(heads), data.queries[..., None, :]).astype(np.float64)
    return AttentionData(
        np.repeat(data.tokens, heads, axis=-3),
        np.repeat(data.labels, heads, axis=-1),
        blocks.reshape(*data.batch_shape, data.n * heads, heads * data.d_z),
        np.repeat(data.mask, heads, axis=-2),
    )
