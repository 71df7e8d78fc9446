r"""Reduction of a programme to the span of its differences and the span of its queries.

With orthonormal bases :math:`P` of :math:`\operatorname{span}\{\delta_c\}` and :math:`Q` of
:math:`\operatorname{span}\{z_i\}`,
:math:`W\mapsto PP^\top W QQ^\top` keeps every margin and raises no unitarily invariant norm, so

.. math:: \min_W\{\|W\| : \langle A_c,W\rangle\ge b_c\} = \min_B\{\|B\| : \langle P^\top
    A_cQ,B\rangle\ge b_c\},\qquad W=PBQ^\top,

with the same multipliers and :math:`B` of size ``min(d_x, m) x min(d_z, n)`` (specification of
*Transformers as Support Vector Machines*, programme S3). Not valid for entrywise norms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attsvm.data import FloatArray
from attsvm.solvers.programme.programme import Programme


@dataclass(frozen=True, eq=False)
class Reduction:
    """A programme in coordinates and its bases.

    Attributes:
        programme: the programme of ``B``; the one given when nothing shrinks.
        left: ``(d_x, k_x)`` with orthonormal columns, or ``None`` for the identity.
        right: ``(d_z, k_z)`` likewise.
    """

    programme: Programme
    left: FloatArray | None
    right: FloatArray | None

    def coordinates(self, W: FloatArray) -> FloatArray:
        """The ``B`` of the weights nearest to ``W`` in the spans."""
        B = W if self.left is None else self.left.T @ W
        return B if self.right is None else B @ self.right

    def lifted(self, B: FloatArray) -> FloatArray:
        """The weights ``left B right^T``."""
        W = B if self.left is None else self.left @ B
        return W if self.right is None else W @ self.right.T


def reduce(p: Programme, differences: bool = True, queries: bool = True) -> Reduction:
    """The programme in the smaller of the given coordinates and those of the spans, side by side,
    on the sides that the norm allows (:attr:`attsvm.geometry.Norm.invariant`).
    """
    left, D = _coordinates(p.D) if differences else (None, p.D)
    right, Z = _coordinates(p.Z) if queries else (None, p.Z)
    return Reduction(p if left is None and right is None else replace(p, D=D, Z=Z), left, right)


def _coordinates(rows: FloatArray) -> tuple[FloatArray | None, FloatArray]:
    """Basis and coordinates of fewer rows than columns; the rows as they are otherwise."""
    count, width = rows.shape
    if count >= width:
        return None, rows
    basis, R = np.linalg.qr(rows.T)
    return basis, np.ascontiguousarray(R.T)
