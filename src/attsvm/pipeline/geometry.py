r"""What is held against the solution of a fit, in the norm of the fit.

Where the norm is strictly convex the solution is one point, and directions are compared: in the
Frobenius norm by the cosine, in the others by :meth:`~attsvm.geometry.Norm.direction_divergence`,
at p = 2 one minus the cosine. In the nuclear, spectral, :math:`\ell_1` and
:math:`\ell_\infty` norms many directions may be best, and what the theory promises of every one of
them is the margin: the comparison is
:math:`1-\text{margin}/\text{best margin}`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from attsvm.data import FloatArray
from attsvm.geometry import Frobenius, Norm
from attsvm.margins import Margins
from attsvm.solvers import MarginSolution

Measure = Literal["cosine", "divergence", "margin"]


def measure_of(norm: Norm) -> Measure:
    """What is compared with the solution."""
    if norm == Frobenius():
        return "cosine"
    return "divergence" if norm.strictly_convex else "margin"


def distances(W: FloatArray, solution: MarginSolution) -> FloatArray:
    """How far weights ``(..., d_x, d_z)`` are from the solution in its measure; 1 where weights or
    solution are zero and point nowhere.

    Rounding adds some 1e-16 to shortfalls of margins and to divergences of singular values, and
    nothing to those of entries.
    """
    norm = solution.geometry
    if not solution.W.any():
        return np.ones(W.shape[:-2])
    if measure_of(norm) != "margin":
        return np.where(W.any(axis=(-2, -1)), norm.direction_divergence(solution.W, W), 1.0)
    looks = W.reshape(-1, *W.shape[-2:])
    reached = (
        np.array([margin_at(norm, solution.margins, look) for look in looks]) / solution.margin
    )
    return np.asarray(np.maximum(1.0 - reached, 0.0).reshape(W.shape[:-2]))


def margin_at(norm: Norm, margins: Margins, W: FloatArray) -> float:
    r"""The smallest margin at :math:`W/\|W\|`; 0 where ``W`` is zero, ``inf`` without
    constraints.
    """
    size = float(norm.value(W))
    return float(margins(W / size if size > 0 else W).min(initial=np.inf))
