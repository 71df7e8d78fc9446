"""Cones of weights around a max-margin direction, where the local theorems start."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import BoolArray, FloatArray
from attsvm.norms.lifts import Entrywise
from attsvm.solvers.solution import MarginSolution


def in_bregman_cone(
    W: ArrayLike, solution: MarginSolution, mu: float, radius: float = 0.0
) -> BoolArray:
    r"""Whether weights lie in
    :math:`C_{p,\mu,R}=\{\|W\|_p\ge R,\ D_\psi(W^{mm}/\|W^{mm}\|_p,\ W/\|W\|_p)\le\mu\}`.

    The cone of the local theorems of :math:`\ell_p` mirror descent, with the p of the solution's
    norm. At p = 2 it is :math:`\{\|W\|_F\ge R,\ \cos\angle(W,W^{mm})\ge1-\mu\}`, the cone of those
    of gradient descent (Tarzanagh et al., *Transformers as Support Vector Machines*, 2023).

    Args:
        W: ``(..., d_x, d_z)``.
        solution: the max-margin solution of an entrywise norm, 1 < p < inf, on the axis.
        mu: opening, between 0 and 2.
        radius: R, in the norm of the solution.

    Raises:
        InputError: a solution that does not exist or is of another norm, weights of another shape.

    Source: Julistiono, Ataee Tarzanagh and Azizan, *Optimizing Attention with Mirror Descent*.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 0]]], labels=[1], queries=[[1]])
        >>> margins = attsvm.selection_margins(data, [0])
        >>> solution = attsvm.max_margin(margins, attsvm.Lp(3))  # along [1, 0]
        >>> W = np.array([[[3.0], [0.3]], [[3.0], [3.0]]])
        >>> attsvm.theory.in_bregman_cone(W, solution, mu=0.1).tolist()
        [True, False]
    """
    if not solution.has_weights:
        raise InputError("there is no cone around an infeasible solution; check its status first")
    weights = np.asarray(W, dtype=np.float64)
    if weights.shape[-2:] != solution.W.shape:
        raise InputError(
            f"W has shape {weights.shape}; its last two axes must be {solution.W.shape}, those of"
            " the solution"
        )
    norm = solution.geometry
    if not isinstance(norm, Entrywise):
        raise InputError(
            f"a Bregman cone needs a solution of an entrywise norm Lp(p), not of {norm.name}; solve"
            " with norm=Lp(p)"
        )
    divergence: FloatArray = norm.direction_divergence(solution.W, weights)
    return (norm.value(weights) >= radius) & (divergence <= mu)
