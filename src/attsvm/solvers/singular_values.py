r"""Proximal maps of singular values and their derivatives.

The proximal map :math:`X=U\operatorname{diag}(s)V^\top\mapsto U\operatorname{diag}(g)V^\top` has,
in the coordinates :math:`\tilde H=U^\top HV`, the derivative (Lewis and Sendov, *Nonsmooth analysis
of singular values II*, 2005)

.. math:: \alpha_{ij}\tilde H_{ij}+\beta_{ij}\tilde H_{ji},\qquad
          \alpha,\beta=\tfrac12(\Omega^s\pm\Omega^a),\qquad
          \Omega^s_{ij}=\frac{g_i-g_j}{s_i-s_j},\quad \Omega^a_{ij}=\frac{g_i+g_j}{s_i+s_j},

with :math:`g_i/s_i` where an index has no mirror. Rows :math:`H=\delta_cz^\top` share their query
with the other rows of their block, so for two blocks the sum over one index is taken once: with
:math:`\tilde\delta=U^\top\delta`, :math:`\tilde z=V^\top z`,

.. math:: \langle a_c,\mathcal Da_{c'}\rangle=\tilde\delta_{c'}^\top\Big[\tilde\delta_c\circ
    \alpha(\tilde z\circ\tilde z')+\tilde z\circ\beta(\tilde z'\circ\tilde\delta_c)\Big],

:math:`knq^2` multiply-adds for :math:`k` rows in :math:`n` blocks instead of
:math:`k^2d_xd_z`. What :math:`U` and :math:`V` do not span has one factor for each pair of blocks.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.native.lapack import lapack_routine
from attsvm.solvers.programme import Programme

_CLOSE = 1e-8  # relative distance of singular values below which slopes replace differences


class Proximal(NamedTuple):
    r"""A proximal point of singular values with an element of its derivative.

    Attributes:
        values: ``(q,)`` the proximal point.
        slopes: ``(q,)`` diagonal of the derivative.
        joint: ``(q,)`` whose outer square is added to it, where values that are clipped move
            together; else ``None``.
    """

    values: FloatArray
    slopes: FloatArray
    joint: FloatArray | None


def proximal(s: FloatArray, tau: float, spectral: bool) -> Proximal:
    """The singular values that minimise ``tau * norm + |. - s|^2 / 2``: less ``tau`` (nuclear), or
    cut at the level that removes ``tau`` in all (spectral).

    Args:
        s: ``(q,)`` singular values, falling.
        tau: the step.
        spectral: the spectral norm, else the nuclear one.
    """
    if not spectral:
        shrunk = s - tau
        return Proximal(np.maximum(shrunk, 0.0), (shrunk > 0.0).astype(np.float64), None)
    # level of the cut if the first k values are clipped; the right one is above the next value
    levels = (np.cumsum(s) - tau) / np.arange(1, len(s) + 1)
    level = float(levels[np.argmax(levels >= np.append(s[1:], -np.inf))])
    if level <= 0.0:
        return Proximal(np.zeros_like(s), np.zeros_like(s), None)
    is_clipped = s > level
    joint = is_clipped / math.sqrt(max(int(is_clipped.sum()), 1))
    return Proximal(np.minimum(s, level), np.where(is_clipped, 0.0, 1.0), joint)


class PairRates(NamedTuple):
    r"""Factors of entries in the frame of the singular vectors.

    Attributes:
        same: ``(q, q)`` :math:`\alpha`.
        mirrored: ``(q, q)`` :math:`\beta`.
        alone: ``(q,)`` factors of indices without a mirror.
    """

    same: FloatArray
    mirrored: FloatArray
    alone: FloatArray


def pair_rates(s: FloatArray, prox: Proximal) -> PairRates:
    """The factors of the derivative at singular values ``(q,)``."""
    g, slopes = prox.values, prox.slopes
    difference, total = s[:, None] - s, s[:, None] + s
    is_close = np.abs(difference) <= _CLOSE * total
    # Differences of values that nearly coincide are rounding; slopes are their limit.
    symmetric = np.where(
        is_close,
        0.5 * (slopes[:, None] + slopes),
        (g[:, None] - g) / np.where(is_close, 1.0, difference),
    )
    positive = total > 0.0
    skew = np.where(positive, (g[:, None] + g) / np.where(positive, total, 1.0), slopes)
    same, mirrored = 0.5 * (symmetric + skew), 0.5 * (symmetric - skew)
    np.fill_diagonal(same, slopes)
    np.fill_diagonal(mirrored, 0.0)
    alone: FloatArray = np.where(s > 0.0, g / np.where(s > 0.0, s, 1.0), slopes)
    return PairRates(same, mirrored, alone)


def derivative(
    left: FloatArray, s: FloatArray, right: FloatArray, prox: Proximal, H: FloatArray
) -> FloatArray:
    r""":math:`\mathcal DH`, ``(d_x, d_z)``, with the arguments of :func:`curvature`."""
    rates = pair_rates(s, prox)
    rows, columns = left.T @ H, H @ right.T
    inside = rows @ right.T
    mixed = rates.same * inside + rates.mirrored * inside.T
    if prox.joint is not None:
        along = float(prox.joint @ np.diag(inside))
        mixed[np.diag_indices(len(s))] += along * prox.joint
    # Inside the span of both singular vectors, and of one of them alone.
    DH: FloatArray = (left @ mixed + rates.alone * (columns - left @ inside)) @ right
    DH += left @ (rates.alone[:, None] * (rows - inside @ right))
    return DH


def curvature(
    p: Programme,
    rows: IntArray,
    left: FloatArray,
    s: FloatArray,
    right: FloatArray,
    prox: Proximal,
    kind: type[np.floating[Any]] = np.float64,
    products: FloatArray | None = None,
) -> FloatArray:
    r""":math:`(\langle a_c, \mathcal D a_{c'}\rangle)_{c,c'}` for these rows, ``(k, k)``, only its
    upper triangle valid.

    1. Bring differences and queries into the frame of the singular vectors.
    2. Prepare what the singular vectors do not span: products of differences, and of queries.
    3. For each block, take the sum over the entries of its query with those of all later blocks,
       and multiply with the differences.
    4. Add the outer square of values that move together.

    Args:
        p: the programme.
        rows: ``(k,)`` positions, rising.
        left: ``(d_x, q)`` left singular vectors of the argument of the proximal map.
        s: ``(q,)`` its singular values.
        right: ``(q, d_z)`` right singular vectors, as rows.
        prox: the proximal map at ``s``.
        kind: of numbers, ``np.float32`` takes half the time.
        products: ``(m, m)`` of that kind, products of all differences, where they are longer than
            the queries; computed for these rows otherwise.
    """
    blocks, first, counts = np.unique(p.sequence[rows], return_index=True, return_counts=True)
    # 1. The frame of the singular vectors.
    D, Z = p.D[rows], p.Z[blocks]
    U, V = D @ left, Z @ right.T
    rates = pair_rates(s, prox)
    bounds = np.append(first, len(rows)).astype(np.int64)
    # 2. What the singular vectors do not span.
    no_products = np.empty((0, 0))
    D_products, D_factors = no_products, np.zeros((len(V), len(V)))
    Z_products, positions = D_factors, rows
    if D.shape[1] > len(s):
        D_factors = (V * rates.alone) @ V.T
        if products is not None:
            D_products = products
        else:
            D = D.astype(kind, copy=False)
            D_products, positions = D @ D.T, np.arange(len(rows))
    # What lies beyond both bases is multiplied by the factors of one index alone.
    if Z.shape[1] > len(s):
        Z_rest = Z - V @ right
        Z_products = Z_rest @ Z_rest.T
    form = np.zeros((len(rows), len(rows)), kind)
    same, mirrored, alone, U, V, Z_products, D_factors, D_products = (
        array.astype(kind, copy=False)
        for array in (*rates, U, V, Z_products, D_factors, D_products)
    )
    block = np.repeat(np.arange(len(V)), counts)
    V_rows = V[block]
    # 3. Block by block.
    for a in range(len(V)):
        start, stop = bounds[a], bounds[a + 1]
        # Blocks before this one are its mirror image.
        weights = (V[a] * V[a:]) @ same
        weights += np.outer(Z_products[a, a:], alone) - D_factors[a, a:, None]
        mixed = np.repeat(weights, counts[a:], axis=0)
        mixed *= U[start:]
        crossed = (V[a] * U[start:]) @ mirrored
        crossed *= V_rows[start:]
        mixed += crossed
        np.matmul(U[start:stop], mixed.T, out=form[start:stop, start:])
        if len(D_products) > 0:
            block_products = D_products[np.ix_(positions[start:stop], positions[start:])]
            form[start:stop, start:] += D_factors[a, block[start:]] * block_products
    # 4. Values that move together.
    if prox.joint is not None:
        along = np.einsum("ci,ci,i->c", U, V_rows, prox.joint.astype(kind))
        syr = lapack_routine("ssyr" if form.dtype == np.float32 else "dsyr")
        form = syr(1.0, along, a=form.T, lower=1, overwrite_a=1).T
    return form
