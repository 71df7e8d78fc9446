r"""The weighted Gram matrix of rank-one rows, assembled by blocks of sequences.

.. math:: (A_P\operatorname{diag}(\theta)A_P^\top)_{ij} =
    D_i\operatorname{diag}_a\Big(\sum_e\theta_{ae}z_{ie}z_{je}\Big)D_j^\top

Written out, :math:`k` rows would cost :math:`k^2d_xd_z` multiply-adds; by blocks it is
:math:`k^2d_x + n^2d_xd_z`. Interior-point and Newton methods in every entrywise norm spend their
time here.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.solvers.programme.programme import Programme, explicit_rows

# entries of the written-out rows below which one dense product is quicker than many small ones
_WRITTEN_OUT = 1 << 15


class WeightedGram:
    """The weighted Gram matrix of a fixed set of rows.

    Attributes:
        rows: sorted positions of the rows.
    """

    def __init__(self, programme: Programme, rows: IntArray) -> None:
        self.rows = rows
        self._programme = programme
        self._written = (
            explicit_rows(programme, rows) if len(rows) * programme.dof <= _WRITTEN_OUT else None
        )
        if self._written is None:
            self._D = programme.D[rows]
            active, first, counts = np.unique(
                programme.sequence[rows], return_index=True, return_counts=True
            )
            self._Z = programme.Z[active]
            self._first, self._last = first, first + counts
            self._block = np.repeat(np.arange(len(active)), counts)

    def __call__(self, weights: FloatArray) -> FloatArray:
        """The matrix for ``weights`` ``(d_x, d_z)``: ``(k, k)`` in Fortran order, only its lower
        triangle valid.
        """
        if self._written is not None:
            G: FloatArray = (self._written * weights.reshape(-1)) @ self._written.T
            return G.T
        k = len(self.rows)
        # Upper triangle by rows, the lower one of the transposed view. The rest is zero, not what
        # memory held: callers add to it.
        out = np.zeros((k, k))
        for i, (first, last) in enumerate(zip(self._first, self._last, strict=True)):
            mixed = self._Z[i:] @ (weights * self._Z[i]).T
            scaled = self._D[first:] * mixed[self._block[first:] - i]
            out[first:last, first:] = self._D[first:last] @ scaled.T
        return out.T
