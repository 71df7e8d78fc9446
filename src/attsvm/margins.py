r"""The one constraint operator of the house.

Every max-margin programme of the theory asks for a small matrix :math:`W` with

.. math:: \langle A_c, W\rangle \ge b_c, \qquad A_c = \delta_c\, z_{i(c)}^\top,

where :math:`\delta_c` is a difference of tokens and :math:`z_{i(c)}` the query of the sequence that constraint
:math:`c` belongs to. :class:`Margins` keeps the :math:`\delta_c` and the :math:`z_i` and never forms an :math:`A_c`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data import AttentionData, FloatArray, IntArray
from attsvm.errors import InputError


@dataclass(frozen=True, eq=False)
class Margins:
    r"""Linear margins :math:`m_c(W) = \delta_c^\top W z_{i(c)}` with right-hand sides :math:`b_c`.

    Constraints are stored sequence by sequence: those of sequence ``i`` are ``offsets[i]:offsets[i + 1]``,
    so sequences of different lengths need no padding.

    Attributes:
        differences: ``(m, d_x)``, row ``c`` is :math:`\delta_c`.
        queries: ``(n, d_z)``.
        offsets: ``(n + 1,)``, non-decreasing, from 0 to m.
        rhs: ``(m,)``, :math:`b_c`.
        token: ``(m,)``, the position of the token that constraint ``c`` asks the selected one to beat.
        selected: ``(n,)``, the position of the selected token of each sequence.
    """

    differences: FloatArray
    queries: FloatArray
    offsets: IntArray
    rhs: FloatArray
    token: IntArray
    selected: IntArray

    @property
    def m(self) -> int:
        """Number of constraints."""
        return int(self.differences.shape[0])

    @property
    def n(self) -> int:
        """Number of sequences."""
        return int(self.queries.shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(d_x, d_z)`` of the weights."""
        return int(self.differences.shape[1]), int(self.queries.shape[1])

    @cached_property
    def sequence(self) -> IntArray:
        """``(m,)``: the sequence that each constraint belongs to."""
        return np.repeat(np.arange(self.n), np.diff(self.offsets))

    @cached_property
    def _uniform(self) -> int:
        """Constraints per sequence when all sequences have the same number, else 0."""
        counts = np.diff(self.offsets)
        return int(counts[0]) if self.n and counts[0] > 0 and (counts == counts[0]).all() else 0

    def __call__(self, W: ArrayLike) -> FloatArray:
        r""":math:`(\langle A_c, W\rangle)_c`, shape ``(m,)``: one product ``Z W^T`` and one row-wise product with the differences."""
        moved: FloatArray = self.queries @ np.asarray(W, dtype=np.float64).T
        return self.along(moved)

    def along(self, moved: FloatArray) -> FloatArray:
        """Margins from the moved queries ``(n, d_x)``, row ``i`` being :math:`W z_i`."""
        if self._uniform:
            blocks = self.differences.reshape(self.n, self._uniform, -1)
            return np.asarray(np.matmul(blocks, moved[:, :, None]).reshape(self.m))
        out = np.empty(self.m)
        for start in range(0, self.m, _CHUNK):
            part = slice(start, start + _CHUNK)
            np.einsum("cd,cd->c", self.differences[part], moved[self.sequence[part]], out=out[part])
        return out

    def adjoint(self, dual: ArrayLike) -> FloatArray:
        r""":math:`\sum_c \lambda_c A_c`, shape ``(d_x, d_z)``: one segmented sum of the differences and one product with the queries."""
        lam = np.asarray(dual, dtype=np.float64)
        if self._uniform:
            blocks = self.differences.reshape(self.n, self._uniform, -1)
            pulled = np.matmul(lam.reshape(self.n, 1, self._uniform), blocks)[:, 0, :]
        else:
            pulled = np.zeros((self.n, self.differences.shape[1]))
            filled = np.flatnonzero(np.diff(self.offsets))
            if len(filled):
                pulled[filled] = np.add.reduceat(lam[:, None] * self.differences, self.offsets[filled], axis=0)
        adjoint: FloatArray = pulled.T @ self.queries
        return adjoint

    def gram(self, constraints: ArrayLike | None = None) -> FloatArray:
        r""":math:`\langle A_c, A_{c'}\rangle = (\delta_c^\top\delta_{c'})(z_{i(c)}^\top z_{i(c')})` on these constraints (default: all)."""
        index = np.arange(self.m) if constraints is None else np.asarray(constraints)
        D, Z = self.differences[index], self.queries[self.sequence[index]]
        return (D @ D.T) * (Z @ Z.T)

    def restricted(self, constraints: ArrayLike) -> Margins:
        """The same programme with only these constraints (sorted positions or a boolean mask); sequences keep their numbers."""
        chosen = np.asarray(constraints)
        index = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else np.unique(chosen)
        counts = np.bincount(self.sequence[index], minlength=self.n)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return Margins(self.differences[index], self.queries, offsets, self.rhs[index], self.token[index], self.selected)


_CHUNK = 1 << 15  # rows gathered at a time: bounds the copy of moved queries to a few tens of megabytes


def selection_margins(data: AttentionData, tokens: ArrayLike) -> Margins:
    r"""The margins of a selection: :math:`(x_{i\alpha_i} - x_{it})^\top W z_i \ge 1` for all visible :math:`t\ne\alpha_i`.

    The programme Att-SVM of *Transformers as Support Vector Machines*; with one-dimensional queries equal to one it is the
    prompt programme of *Max-Margin Token Selection in Attention Mechanism*.

    Args:
        data: one instance (no leading axes).
        tokens: ``(n,)`` integers, the selected token :math:`\alpha_i` of each sequence.

    Raises:
        InputError: leading axes, wrong shape, a position that is out of range or masked.
    """
    if data.batch_shape:
        raise InputError(f"data has leading axes {data.batch_shape}; choose one instance with data.instance(k)")
    selected = np.asarray(tokens)
    if selected.shape != (data.n,):
        raise InputError(f"tokens has shape {selected.shape}; it must be ({data.n},), one selected token per sequence")
    if selected.dtype.kind not in "iu":
        raise InputError(f"tokens has dtype {selected.dtype}; give integer positions")
    selected = selected.astype(np.int64)
    outside = (selected < 0) | (selected >= data.T)
    if outside.any():
        i = int(np.flatnonzero(outside)[0])
        raise InputError(f"tokens[{i}] is {selected[i]}; sequence {i} has positions 0 to {data.T - 1}")
    rows = np.arange(data.n)
    if not data.mask[rows, selected].all():
        i = int(np.flatnonzero(~data.mask[rows, selected])[0])
        raise InputError(f"tokens[{i}] is {selected[i]}, which the mask of sequence {i} hides; select a visible token")
    others = data.mask.copy()
    others[rows, selected] = False
    sequence, token = np.nonzero(others)
    differences = data.tokens[sequence, selected[sequence]] - data.tokens[sequence, token]
    offsets = np.concatenate([[0], np.cumsum(others.sum(axis=1))])
    return Margins(differences, np.array(data.queries), offsets, np.ones(len(token)), token, selected)
