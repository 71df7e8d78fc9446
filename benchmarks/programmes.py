"""Programmes that benchmarks share, forms that other solvers take, one certificate for all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins, selection_margins
from attsvm.norms import Norm

FloatArray = NDArray[np.float64]

SIZES = {
    "S": (6, 8, 10),
    "M": (20, 16, 32),
    "L": (50, 32, 64),
    "XL": (200, 64, 128),
    "XXL": (1000, 128, 256),
    "H": (2000, 256, 768),
}
"""``(n, T, d)`` by name, smallest first."""

PACKAGES = (
    *("attsvm", "numpy", "scipy", "scikit-learn", "torch", "cvxpy"),
    *("clarabel", "daqp", "highspy", "osqp", "piqp", "quadprog", "scs"),
)
"""Whose versions a benchmark tells."""

WRITTEN_ENTRIES = 1 << 25
"""Largest matrix that another solver is handed: 256 MiB."""


class Refused(Exception):  # noqa: N818 - an outcome, not an error
    """A peer is not asked, and why."""


def random_instance(n: int, T: int, d: int, seed: int) -> Margins:
    """Random unit tokens and queries in d dimensions; the best token of ``T`` under a random signed
    head is selected.
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
    """``(m, d_x d_z)``: every row as a vector, which a solver without structure is given.

    Raises:
        Refused: it has more than :data:`WRITTEN_ENTRIES` entries.
    """
    D, Z = margins.differences, margins.queries[margins.sequence]
    if D.size * Z.shape[1] > WRITTEN_ENTRIES:
        raise Refused("the written-out rows are too large")
    return np.einsum("ca,ce->cae", D, Z).reshape(margins.m, -1)


def gram(margins: Margins) -> FloatArray:
    """``(m, m)`` Gram matrix of the rows, for solvers of the dual.

    Raises:
        Refused: it has more than :data:`WRITTEN_ENTRIES` entries.
    """
    if margins.m**2 > WRITTEN_ENTRIES:
        raise Refused("the Gram matrix is too large")
    return margins.gram()


def reduced(margins: Margins) -> tuple[Margins, FloatArray, FloatArray]:
    """The programme in coordinates of the spans of its differences and queries, and their bases, as
    one reduces it by hand where the norm allows it.
    """
    left, D = np.linalg.qr(margins.differences.T)
    right, Z = np.linalg.qr(margins.queries.T)
    small = replace(
        margins, differences=np.ascontiguousarray(D.T), queries=np.ascontiguousarray(Z.T)
    )
    return small, left, right


def certified_gap(margins: Margins, norm: Norm, W: FloatArray, dual: FloatArray) -> float:
    r"""The relative duality gap :math:`1-\frac{\mathbf 1^\top\lambda}{\|A^\top\lambda\|_*}\big/
    \frac{\|W\|}{\min_c\langle A_c,W\rangle}` of weights ``(d_x, d_z)`` and multipliers ``(m,)``,
    negative ones counted as zero; 1 when nothing is proved.
    """
    if W.shape != margins.shape or dual.shape != (margins.m,):
        return 1.0
    moved = margins.queries @ W.T
    smallest = np.einsum("cd,cd->c", margins.differences, moved[margins.sequence]).min()
    lam = np.maximum(dual, 0.0)
    pulled = np.zeros((margins.n, margins.shape[0]))
    np.add.at(pulled, margins.sequence, lam[:, None] * margins.differences)
    p = exponent(norm)
    q = np.inf if p == 1.0 else 1.0 if np.isinf(p) else p / (p - 1.0)
    bottom = np.linalg.norm(numbers(norm, pulled.T @ margins.queries), q)
    size = np.linalg.norm(numbers(norm, W), p)
    if not (smallest > 0.0 and bottom > 0.0 and np.isfinite(size)):
        return 1.0
    return float(min(1.0, max(0.0, 1.0 - lam.sum() / bottom * smallest / size)))


def exponent(norm: Norm) -> float:
    """The p of the vector norm behind a norm of matrices."""
    named = {"fro": 2.0, "nuc": 1.0, "spec": np.inf}
    return named[norm.name] if norm.name in named else float(norm.name.split(":")[1])


def numbers(norm: Norm, W: FloatArray) -> FloatArray:
    """The numbers of a matrix of which that norm is taken: singular values or entries."""
    if norm.name in ("nuc", "spec") or norm.name.startswith("schatten"):
        return np.asarray(np.linalg.svd(W, compute_uv=False))
    return W.ravel()
