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
from attsvm.data import AttentionData, FloatArray, IntArray, mean_tokens

_LANES = 4  # numbers of a register: shorter rows end in zeros


@dataclass(frozen=True, eq=False)
class Instance:
    """One instance.

    Attributes:
        sequences: what the compiled core reads; it keeps the arrays alive.
        labels: ``(n,)``.
        tokens: ``(N, d_x)``, all visible tokens.
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
        return np.pad(found, ((0, int(self.sequences.d_k) - len(found)), (0, 0)))


def inside(rows: FloatArray, basis: FloatArray | None) -> FloatArray:
    """Rows of factors or weights in coordinates of a basis."""
    return rows if basis is None else basis @ rows


def outside(rows: FloatArray, basis: FloatArray | None, count: int) -> FloatArray:
    """The ``count`` rows whose coordinates these are."""
    return rows[..., :count, :] if basis is None else basis.mT @ rows


def read(
    data: AttentionData,
    keys: FloatArray | None,
    prompt: bool,
    trained: bool,
    reduce: bool,
) -> list[Instance]:
    """The instances of ``data``, all with weights of one shape.

    Args:
        data: one instance, or one per run.
        keys: ``(d_k, d_x)``, the map from tokens to keys; None for the identity.
        prompt: whether every query counts as a one.
        trained: whether a head is trained, which needs the tokens.
        reduce: whether keys and queries may be taken in coordinates of what they span, and keys
            end in zeros.
    """
    ones = [data.instance(r) for r in range(data.batch_shape[0])] if data.batch_shape else [data]
    span = max(int(one.mask.sum()) for one in ones) - data.n
    return [_read(one, keys, prompt, trained, span if reduce else None) for one in ones]


def _read(
    data: AttentionData, keys: FloatArray | None, prompt: bool, trained: bool, span: int | None
) -> Instance:
    lengths, means = data.lengths, mean_tokens(data)
    tokens = np.ascontiguousarray(data.tokens[data.mask])
    centred = tokens - np.repeat(means, lengths, axis=0)
    start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = centred if keys is None else native.products(centred, keys)
    queries = np.ones((data.n, 1)) if prompt else np.array(data.queries)
    U = V = None
    if span is not None:
        # the last token of a sequence is minus the sum of the others
        U = _basis(np.delete(rows, start[1:] - 1, axis=0), -(-span // _LANES) * _LANES)
        V = _basis(queries, data.n)
    rows = rows if U is None else native.products(rows, U)
    if span is not None:
        rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % _LANES)))
    queries = queries if V is None else native.products(queries, V)
    values = (centred, means, (tokens == 0.0).all(axis=1)) if trained else None
    sequences = native.sequences(rows, queries, np.array(data.labels), start, values)
    positions = np.nonzero(data.mask)[1]
    return Instance(sequences, np.array(data.labels), tokens, start, positions, U, V)


def _basis(rows: FloatArray, count: int) -> FloatArray | None:
    """``(count, d)``: orthonormal rows, or zeros, that span these; None where they are no fewer."""
    if count >= rows.shape[1] or count == 0:
        return None
    basis = np.zeros((count, rows.shape[1]))
    found = np.linalg.qr(rows.T)[0].T
    basis[: len(found)] = found
    return basis
