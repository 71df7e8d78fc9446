"""The instances of the solver benchmark and the two forms in which peers take them: written out,
and reduced to their spans.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from attsvm.data import AttentionData, FloatArray
from attsvm.margins import Margins, selection_margins

SIZES: dict[str, tuple[int, int, int]] = {
    "S": (6, 8, 10),
    "M": (20, 16, 32),
    "L": (50, 32, 64),
    "XL": (200, 64, 128),
    "XXL": (1000, 128, 256),
    "H": (2000, 256, 768),
}
"""``(n, T, d)`` by name, smallest first."""

# 256 MiB of float64: beyond it a written-out programme is refused instead of swapped
WRITTEN_ENTRIES = 1 << 25


class RefusedError(Exception):
    """A peer is not asked, and why."""


def random_instance(n: int, T: int, d: int, seed: int) -> Margins:
    r"""Random unit tokens and queries in :math:`\mathbb R^d`; the best token of ``T`` under a
    random signed head is selected.
    """
    rng = np.random.default_rng(seed)

    def unit(*shape: int) -> FloatArray:
        a = rng.standard_normal(shape)
        a /= np.linalg.norm(a, axis=-1, keepdims=True)
        return a

    v, Y = unit(d), np.where(rng.standard_normal(n) > 0, 1.0, -1.0)
    X, Z = unit(n, T, d), unit(n, d)
    return selection_margins(AttentionData(X, Y, Z), (Y[:, None] * (X @ v)).argmax(axis=1))


def written_out(margins: Margins) -> FloatArray:
    r"""``(m, d_x d_z)``: row ``c`` is :math:`\delta_c z_{i(c)}^\top`, what a solver without
    structure is given.

    Raises:
        RefusedError: the matrix has more than ``WRITTEN_ENTRIES`` entries.
    """
    _refuse_beyond(margins.m * math.prod(margins.shape), "the written-out programme")
    return np.einsum("ca,ce->cae", margins.differences, margins.queries[margins.sequence]).reshape(
        margins.m, -1
    )


def gram(margins: Margins) -> FloatArray:
    """``(m, m)`` Gram matrix of the rows, for solvers of the dual.

    Raises:
        RefusedError: the matrix has more than ``WRITTEN_ENTRIES`` entries.
    """
    _refuse_beyond(margins.m**2, "the Gram matrix")
    return margins.gram()


@dataclass(frozen=True, eq=False)
class Spans:
    """A programme in coordinates of the spans of its differences and queries:
    ``W = left B right^T``.
    """

    margins: Margins
    left: FloatArray
    right: FloatArray

    def lifted(self, B: FloatArray) -> FloatArray:
        """The weights of the programme that was reduced."""
        return self.left @ B @ self.right.T


def reduced(margins: Margins) -> Spans:
    """QR of differences and queries, as a user who knows that unitarily invariant norms allow it
    would do before calling a peer.
    """
    left, D = np.linalg.qr(margins.differences.T)
    right, Z = np.linalg.qr(margins.queries.T)
    return Spans(
        replace(margins, differences=np.ascontiguousarray(D.T), queries=np.ascontiguousarray(Z.T)),
        left,
        right,
    )


def _refuse_beyond(entries: int, what: str) -> None:
    if entries > WRITTEN_ENTRIES:
        raise RefusedError(f"{what} has {entries:.1e} entries")
