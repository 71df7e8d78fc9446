"""Where the theorems start: cones of weights around a max-margin direction."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data import BoolArray, FloatArray
from attsvm.errors import InputError
from attsvm.geometry import Lp
from attsvm.solvers.solution import MarginSolution


def in_angular_cone(
    W: ArrayLike, solution: MarginSolution, mu: float, radius: float = 0.0
) -> BoolArray:
    r"""Whether weights lie in :math:`C_{\mu,R}=\{\|W\|_F\ge R,\ \cos\angle(W,W^{mm})\ge1-\mu\}`,
    the cone of the local theorems.

    Args:
        W: ``(..., d_x, d_z)``.
        solution: the max-margin solution on the axis.
        mu: opening, between 0 and 1.
        radius: R.

    Raises:
        InputError: a solution that does not exist, weights of another shape.

    Source: Tarzanagh et al., *Transformers as Support Vector Machines* (2023).

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 0]]], labels=[1], queries=[[1]])
        >>> solution = attsvm.max_margin(data, [0])  # along [1, 0]
        >>> W = np.array([[[3.0], [0.3]], [[3.0], [3.0]]])
        >>> attsvm.selection.in_angular_cone(W, solution, mu=0.1).tolist()
        [True, False]
    """
    weights, size = _sized(W, solution)
    axis = solution.W / np.linalg.norm(solution.W)
    return (
        (size >= radius) & (size > 0) & (np.sum(weights * axis, axis=(-2, -1)) >= (1.0 - mu) * size)
    )


def in_bregman_cone(
    W: ArrayLike, solution: MarginSolution, mu: float, radius: float = 0.0
) -> BoolArray:
    r"""Whether weights lie in
    :math:`C_{p,\mu,R}=\{\|W\|_p\ge R,\ D_\psi(W^{mm}/\|W^{mm}\|_p,\ W/\|W\|_p)\le\mu\}`.

    The cone of the local theorems of :math:`\ell_p` mirror descent, with the p of the solution's
    norm; at p = 2 that of
    :func:`in_angular_cone`.

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
        >>> solution = attsvm.max_margin(data, [0], attsvm.Lp(3))  # along [1, 0]
        >>> W = np.array([[[3.0], [0.3]], [[3.0], [3.0]]])
        >>> attsvm.selection.in_bregman_cone(W, solution, mu=0.1).tolist()
        [True, False]
    """
    weights, _ = _sized(W, solution)
    norm = Lp(2) if solution.geometry == Lp(2) else solution.geometry
    if not isinstance(norm, Lp):
        raise InputError(
            f"a Bregman cone needs a solution of an entrywise norm Lp(p), not of {norm.name}; solve"
            " with norm=Lp(p)"
        )
    size = norm.value(weights)
    divergence = norm.direction_divergence(solution.W, weights)
    return (size >= radius) & (divergence <= mu)


def in_margin_cone(
    W: ArrayLike, solution: MarginSolution, mu: float, radius: float = 0.0
) -> BoolArray:
    r"""Whether weights lie in
    :math:`S_{\mu,R}=\{\|W\|_F\ge R,\ \min_c\langle A_c,W\rangle/\|W\|_F\ge\mu/\|W^{mm}\|_F\}`.

    The cone of the global theorems.

    Args:
        W: ``(..., d_x, d_z)``.
        solution: the max-margin solution for the optimal tokens.
        mu: share of the largest possible margin, between 0 and 1.
        radius: R.

    Raises:
        InputError: a solution that does not exist, weights of another shape.

    Source: Tarzanagh et al., *Transformers as Support Vector Machines* (2023).

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 0]]], labels=[1], queries=[[1]])
        >>> solution = attsvm.max_margin(data, [0])  # along [1, 0]
        >>> W = np.array([[[3.0], [0.3]], [[-1.0], [3.0]]])
        >>> attsvm.selection.in_margin_cone(W, solution, mu=0.5).tolist()
        [True, False]
    """
    weights, size = _sized(W, solution)
    margins = solution.margins
    flat = weights.reshape(-1, *margins.shape)
    least = np.array([margins(one).min(initial=np.inf) for one in flat]).reshape(size.shape)
    return (size >= radius) & (size > 0) & (least >= mu * size / np.linalg.norm(solution.W))


def _sized(W: ArrayLike, solution: MarginSolution) -> tuple[FloatArray, FloatArray]:
    if not solution.has_weights:
        raise InputError("there is no cone around an infeasible solution; check its status first")
    weights = np.asarray(W, dtype=np.float64)
    if weights.shape[-2:] != solution.W.shape:
        raise InputError(
            f"W has shape {weights.shape}; its last two axes must be {solution.W.shape}, those of"
            " the solution"
        )
    size: FloatArray = np.linalg.norm(weights, axis=(-2, -1))
    return weights, size
