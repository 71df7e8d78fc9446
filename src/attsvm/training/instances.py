r"""Instances as the compiled loop reads them: visible tokens end to end, keys measured from the
mean of their sequence, and keys and queries in coordinates of what they span.

Steps of descent move :math:`W` by sums of :math:`x_{it}z_i^\top`, so what of :math:`W` is outside
the spans of centred keys and queries never moves. With orthonormal bases :math:`U,V` of both,
descent on :math:`U^\top WV` is descent on :math:`W`, in Frobenius's norm, on rows that may be much
shorter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm import native
from attsvm.attention import Inputs
from attsvm.datasets.attention_data import (
    AttentionData,
    BoolArray,
    FloatArray,
    IntArray,
    mean_tokens,
)

_LANES = 4  # numbers of a register: shorter rows end in zeros


@dataclass(frozen=True, eq=False)
class ReducedInstance:
    """One instance in coordinates of what its keys and queries span.

    Attributes:
        sequences: the arrays of the compiled core.
        labels: ``(n,)``.
        tokens: ``(N, d_v)``, the values of all visible tokens.
        start: ``(n + 1,)``, where each sequence begins.
        positions: ``(N,)``, the position of each token in its sequence.
        U: ``(r_k, d_k)``, orthonormal rows that span the centred keys, and zeros; None for all of
            them.
        V: ``(r_z, d_z)``, orthonormal rows that span the queries, and zeros; None for all of them.
    """

    sequences: native.SequenceArrays
    labels: FloatArray
    tokens: FloatArray
    start: IntArray
    positions: IntArray
    U: FloatArray | None
    V: FloatArray | None

    def scores(self, head: FloatArray) -> FloatArray:
        """Label times score of every token, ``(N,)``, without the intercept. Equal tokens have
        equal bits.
        """
        values = native.products_by_row(self.tokens, head[None])[:, 0]
        return np.repeat(self.labels, np.diff(self.start)) * values

    def coordinates(self, W: FloatArray) -> FloatArray:
        r"""The transpose of :math:`U^\top WV`, ``(r_z, r_k)``, for ``W`` ``(d_k, d_z)``."""
        return to_coordinates(self.key_coordinates(W).T, self.V)

    def key_coordinates(self, rows: FloatArray) -> FloatArray:
        """Coordinates ``(r_k, m)`` of rows ``(d_k, m)`` in the basis of the keys, and zeros."""
        coordinates = to_coordinates(rows, self.U)
        padded = np.zeros((int(self.sequences.d_k), coordinates.shape[1]))
        padded[: len(coordinates)] = coordinates
        return padded


def to_coordinates(rows: FloatArray, basis: FloatArray | None) -> FloatArray:
    """Coordinates of rows ``(d, m)`` in a basis ``(r, d)``; the rows themselves without one."""
    return rows if basis is None else basis @ rows


def from_coordinates(coordinates: FloatArray, basis: FloatArray | None, count: int) -> FloatArray:
    """Rows ``(..., count, m)`` that have these coordinates in a basis."""
    return coordinates[..., :count, :] if basis is None else basis.mT @ coordinates


def read_instances(
    data: AttentionData, inputs: Inputs, trained: bool, reduce: bool
) -> list[ReducedInstance]:
    """The instances of ``data``, all with weights of one shape.

    For each instance:

    1. Visible tokens are laid end to end, and keys and values measured from their means.
    2. Keys are mapped by the matrix of ``inputs``, if there is one.
    3. Keys and queries are taken in coordinates of what they span, where that is shorter.

    Args:
        data: one instance, or one per run.
        inputs: how the model reads data.
        trained: whether a head is trained, which needs the values.
        reduce: whether keys and queries may be taken in coordinates of what they span, and keys
            end in zeros.
    """
    keyed, matrix = inputs.keyed(data)
    valued = inputs.valued(data)
    shares_tokens = keyed is valued
    value_means = _tokens_and_means(valued)
    key_means = value_means if shares_tokens else _tokens_and_means(keyed)
    masks, labels = data.mask.reshape(-1, data.n, data.T), data.labels.reshape(-1, data.n)
    queries = np.ones((*data.labels.shape, 1)) if inputs.prompt else data.queries
    queries = np.array(queries.reshape(len(masks), data.n, -1), order="C")
    # n means are taken from N tokens, so centred keys span N - n dimensions at most
    span = int(masks.sum(axis=(1, 2)).max()) - data.n
    V = _spanning_basis(queries, data.n) if reduce else None
    instances = []
    for k, visible in enumerate(masks):
        # 1. visible tokens end to end
        sequence, positions = np.nonzero(visible)
        start = np.concatenate([[0], np.cumsum(np.bincount(sequence, minlength=data.n))])
        lengths = np.diff(start)
        tokens, centred, means = _centre_visible(value_means, k, visible, lengths)
        values = (centred, means, (tokens == 0.0).all(axis=1)) if trained else None
        keys = centred if shares_tokens else _centre_visible(key_means, k, visible, lengths)[1]
        # 2. keys of the model
        keys = keys if matrix is None else native.products_by_row(keys, matrix)
        # 3. coordinates
        U = None
        if reduce:
            # the last token of a sequence is minus the sum of the others
            others = np.delete(keys, start[1:] - 1, axis=0) if span < keys.shape[1] else keys
            U = _spanning_basis(others, -(-span // _LANES) * _LANES)
            keys = _pad_rows(keys) if U is None else native.products_by_row(keys, U)
        basis = None if V is None else V[k]
        query_rows = queries[k] if basis is None else native.products_by_row(queries[k], basis)
        signs = labels[k].copy()
        sequences = native.SequenceArrays(keys, query_rows, signs, start, values)
        instances.append(ReducedInstance(sequences, signs, tokens, start, positions, U, basis))
    return instances


def _tokens_and_means(data: AttentionData) -> tuple[FloatArray, FloatArray]:
    """Tokens ``(count, n, T, d)`` and the means ``(count, n, d)`` of their sequences."""
    shape = data.n, data.T, data.d_x
    return data.tokens.reshape(-1, *shape), mean_tokens(data).reshape(-1, data.n, data.d_x)


def _centre_visible(
    tokens_and_means: tuple[FloatArray, FloatArray], k: int, visible: BoolArray, lengths: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Tokens ``(N, d)`` of instance ``k``, the same less the mean of their sequence, and the
    means.
    """
    tokens, means = tokens_and_means[0][k][visible], tokens_and_means[1][k].copy()
    return tokens, tokens - np.repeat(means, lengths, axis=0), means


def _pad_rows(rows: FloatArray) -> FloatArray:
    """The rows, with zeros behind them that fill whole registers."""
    if rows.shape[1] % _LANES == 0:
        return rows
    padded = np.zeros((len(rows), -(-rows.shape[1] // _LANES) * _LANES))
    padded[:, : rows.shape[1]] = rows
    return padded


def _spanning_basis(rows: FloatArray, count: int) -> FloatArray | None:
    """Orthonormal rows, or zeros, ``(..., count, d)``, that span these ``(..., k, d)``; None where
    they are no fewer than ``d``.
    """
    if count >= rows.shape[-1] or count == 0:
        return None
    basis = np.zeros((*rows.shape[:-2], count, rows.shape[-1]))
    orthonormal = np.linalg.qr(rows.mT)[0].mT
    basis[..., : orthonormal.shape[-2], :] = orthonormal
    return basis
