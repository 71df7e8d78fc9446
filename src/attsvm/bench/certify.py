r"""The judge of the solver benchmark: one formula for ours and for every peer.

For any :math:`\lambda\ge0` and any :math:`W` whose smallest margin :math:`\mu` is positive,

.. math:: \frac{\mathbf 1^\top\lambda}{\|A^\top\lambda\|_*}\ \le\ \min\{\|V\| : \langle
    A_c,V\rangle\ge1\}\ \le\ \frac{\|W\|}{\mu},
   \qquad \text{gap} = 1-\frac{\mathbf 1^\top\lambda}{\|A^\top\lambda\|_*}\Big/\frac{\|W\|}{\mu}.

The norms of the library are computed here from entries, singular values and lengths of rows, and
not by :mod:`attsvm.geometry`, so that the judge shares nothing with the contestant; any other norm
is asked itself.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import FloatArray
from attsvm.geometry import Norm
from attsvm.geometry.lifts import Entrywise, Lifted, RowLengths, SingularValues
from attsvm.margins import Margins


def certified_gap(margins: Margins, norm: Norm, W: FloatArray, dual: FloatArray) -> float:
    """The gap of weights ``(d_x, d_z)`` and multipliers ``(m,)``, negative ones counted as zero; 1
    when nothing is proved.
    """
    upper, lower = upper_bound(margins, norm, W), lower_bound(margins, norm, dual)
    if not (np.isfinite(upper) and upper > 0.0 and np.isfinite(lower)):
        return 1.0
    return min(1.0, max(0.0, 1.0 - lower / upper))


def upper_bound(margins: Margins, norm: Norm, W: FloatArray) -> float:
    r""":math:`\|W\|/\mu`; ``inf`` without a positive margin."""
    if W.shape != margins.shape or not np.isfinite(W).all():
        return float("inf")
    moved = margins.queries @ W.T
    smallest = float(np.einsum("cd,cd->c", margins.differences, moved[margins.sequence]).min())
    return _value(norm, W) / smallest if smallest > 0.0 else float("inf")


def lower_bound(margins: Margins, norm: Norm, dual: FloatArray) -> float:
    r""":math:`\mathbf 1^\top\lambda/\|A^\top\lambda\|_*`; 0 for multipliers that prove nothing."""
    if dual.shape != (margins.m,) or not np.isfinite(dual).all():
        return 0.0
    lam = np.maximum(dual, 0.0)
    pulled = np.zeros((margins.n, margins.shape[0]))
    np.add.at(pulled, margins.sequence, lam[:, None] * margins.differences)
    bottom = _value(norm, pulled.T @ margins.queries, dual=True)
    return float(lam.sum()) / bottom if bottom > 0.0 else 0.0


def _value(norm: Norm, W: FloatArray, *, dual: bool = False) -> float:
    numbers = _numbers(norm, W)
    if numbers is None or not isinstance(norm, Lifted):
        return float(norm.dual_value(W) if dual else norm.value(W))
    p = norm.p
    if dual:
        p = np.inf if p == 1.0 else 1.0 if np.isinf(p) else p / (p - 1.0)
    return float(np.linalg.norm(numbers, p))


def _numbers(norm: Norm, W: FloatArray) -> FloatArray | None:
    """The vector whose p-norm a norm of the library is."""
    if isinstance(norm, Entrywise):
        return W.ravel()
    if isinstance(norm, SingularValues):
        return np.asarray(np.linalg.svd(W, compute_uv=False))
    return np.asarray(np.linalg.norm(W, axis=1)) if isinstance(norm, RowLengths) else None
