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
class Instance:
    """One instance.

    Attributes:
        sequences: what the compiled core reads; it keeps the arrays alive.
        labels: ``(n,)``.
        tokens: ``(N, d_v)``, the values of all visible tokens.
        start: ``(n + 1,)``, where each sequence begins.
        positions: ``(N,)``, where each token stands in its sequence.
        U: ``(r_k, d_k)``, orthonormal rows that span the centred keys, and zeros; None for all of
            them.
        V: ``(r_z, d_z)``, the same for queries.
    """

    sequences: native.Sequences
    labels: FloatArray
    tokens: FloatArray
    start: IntArray
    positions: IntArray
    U: FloatArray | None
    V: FloatArray | None

    def scores(self, head: FloatArray) -> FloatArray:
        """``(N,)``: label times score of every token, without the intercept. Equal tokens have
        equal bits.
        """
        values = native.products(self.tokens, head[None])[:, 0]
        return np.repeat(self.labels, np.diff(self.start)) * values

    def inside(self, W: FloatArray) -> FloatArray:
        r"""``(r_z, r_k)``: the transpose of :math:`U^\top WV` for ``W`` ``(d_k, d_z)``."""
        return inside(self.keys_inside(W).T, self.V)

    def keys_inside(self, rows: FloatArray) -> FloatArray:
        """``(r_k, m)``: rows ``(d_k, m)`` in coordinates of the keys."""
        found = inside(rows, self.U)
        wide = np.zeros((int(self.sequences.d_k), found.shape[1]))
        wide[: len(found)] = found
        return wide


def inside(rows: FloatArray, basis: FloatArray | None) -> FloatArray:
    """Rows of factors or weights in coordinates of a basis."""
    return rows if basis is None else basis @ rows


def outside(rows: FloatArray, basis: FloatArray | None, count: int) -> FloatArray:
    """The ``count`` rows whose coordinates these are."""
    return rows[..., :count, :] if basis is None else basis.mT @ rows


def read(data: AttentionData, inputs: Inputs, trained: bool, reduce: bool) -> list[Instance]:
    """The instances of ``data``, all with weights of one shape.

    Args:
        data: one instance, or one per run.
        inputs: what a model makes of data.
        trained: whether a head is trained, which needs the values.
        reduce: whether keys and queries may be taken in coordinates of what they span, and keys
            end in zeros.
    """
    keyed, matrix = inputs.keyed(data)
    valued = inputs.valued(data)
    same = keyed is valued
    of_values = _instances(valued)
    of_keys = of_values if same else _instances(keyed)
    masks, labels = data.mask.reshape(-1, data.n, data.T), data.labels.reshape(-1, data.n)
    count = len(masks)
    asked = np.ones((*data.labels.shape, 1)) if inputs.prompt else data.queries
    queries = np.array(asked.reshape(count, data.n, -1), order="C")
    span = int(masks.sum(axis=(1, 2)).max()) - data.n
    V = _basis(queries, data.n) if reduce else None
    found = []
    for k, visible in enumerate(masks):
        sequence, positions = np.nonzero(visible)
        start = np.concatenate([[0], np.cumsum(np.bincount(sequence, minlength=data.n))])
        lengths = np.diff(start)
        own, centred, means = _visible(of_values, k, visible, lengths)
        values = (centred, means, (own == 0.0).all(axis=1)) if trained else None
        rows = centred if same else _visible(of_keys, k, visible, lengths)[1]
        rows = rows if matrix is None else native.products(rows, matrix)
        U = None
        if reduce:
            # the last token of a sequence is minus the sum of the others
            others = np.delete(rows, start[1:] - 1, axis=0) if span < rows.shape[1] else rows
            U = _basis(others, -(-span // _LANES) * _LANES)
            rows = _wide(rows) if U is None else native.products(rows, U)
        moved = queries[k] if V is None else native.products(queries[k], V[k])
        signs = labels[k].copy()
        sequences = native.sequences(rows, moved, signs, start, values)
        of_query = None if V is None else V[k]
        found.append(Instance(sequences, signs, own, start, positions, U, of_query))
    return found


def _instances(data: AttentionData) -> tuple[FloatArray, FloatArray]:
    """Tokens ``(count, n, T, d)`` and the means ``(count, n, d)`` of their sequences."""
    shape = data.n, data.T, data.d_x
    return data.tokens.reshape(-1, *shape), mean_tokens(data).reshape(-1, data.n, data.d_x)


def _visible(
    of: tuple[FloatArray, FloatArray], k: int, visible: BoolArray, lengths: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Tokens ``(N, d)`` of instance ``k``, the same less the mean of their sequence, and the
    means.
    """
    tokens, means = of[0][k][visible], of[1][k].copy()
    return tokens, tokens - np.repeat(means, lengths, axis=0), means


def _wide(rows: FloatArray) -> FloatArray:
    """Rows that fill whole registers."""
    if rows.shape[1] % _LANES == 0:
        return rows
    wide = np.zeros((len(rows), -(-rows.shape[1] // _LANES) * _LANES))
    wide[:, : rows.shape[1]] = rows
    return wide


def _basis(rows: FloatArray, count: int) -> FloatArray | None:
    """``(..., count, d)``: orthonormal rows, or zeros, that span these ``(..., k, d)``; None where
    they are no fewer.
    """
    if count >= rows.shape[-1] or count == 0:
        return None
    basis = np.zeros((*rows.shape[:-2], count, rows.shape[-1]))
    found = np.linalg.qr(rows.mT)[0].mT
    basis[..., : found.shape[-2], :] = found
    return basis
