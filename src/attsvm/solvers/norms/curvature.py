r"""Generalised Hessian of the Moreau envelope of a singular-value function, written on rows.

The proximal map :math:`X=U\operatorname{diag}(s)V^\top\mapsto U\operatorname{diag}(g)V^\top` has,
in the coordinates
:math:`\tilde H=U^\top HV`, the derivative (Lewis and Sendov, *Nonsmooth analysis of singular values
II*, 2005)

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

from typing import Any, NamedTuple

import numpy as np

from attsvm.cores import shared_out
from attsvm.data import FloatArray, IntArray
from attsvm.jit import summing_kernel
from attsvm.solvers.frobenius import shares
from attsvm.solvers.methods.energies import Proximal
from attsvm.solvers.programme.programme import Programme

LARGEST = 1 << 25  # entries of the matrix
_WORTH_SHARING = 500  # rows from which on threads save more than their start costs
_CLOSE = 1e-8  # relative distance of singular values below which slopes replace differences


def curvature(
    p: Programme,
    rows: IntArray,
    left: FloatArray,
    s: FloatArray,
    right: FloatArray,
    prox: Proximal,
    kind: type[np.floating[Any]] = np.float64,
    known: FloatArray | None = None,
) -> FloatArray | None:
    r""":math:`(\langle a_c, \mathcal D a_{c'}\rangle)_{c,c'}` for these rows, ``(k, k)``, only its
    upper triangle valid, or ``None`` when it is too large to form.

    Args:
        p: the programme.
        rows: ``(k,)`` positions, rising.
        left: ``(d_x, q)`` left singular vectors of the argument of the proximal map.
        s: ``(q,)`` its singular values.
        right: ``(q, d_z)`` right singular vectors, as rows.
        prox: the proximal map at ``s``, as one row.
        kind: of numbers, ``np.float32`` takes half the time.
        known: ``(m, m)`` of that kind, products of all differences, where they are longer than
            the queries; computed for these rows otherwise.
    """
    from scipy.linalg.blas import get_blas_funcs

    if len(rows) ** 2 > LARGEST:
        return None
    active, first, counts = np.unique(p.sequence[rows], return_index=True, return_counts=True)
    D, Z = p.D[rows], p.Z[active]
    U, V = D @ left, Z @ right.T
    rates = _rates(s, prox)
    bounds = np.append(first, len(rows)).astype(np.int64)
    # What the singular vectors do not span: products of differences, and of queries.
    products, factors = np.empty((0, 0)), np.zeros((len(V), len(V)))
    beyond, places = factors, rows
    if D.shape[1] > len(s):
        factors = (V * rates.alone) @ V.T
        if known is not None:
            products = known
        else:
            D = D.astype(kind, copy=False)
            products, places = D @ D.T, np.arange(len(rows))
    if Z.shape[1] > len(s):
        other = Z - V @ right
        beyond = other @ other.T
    form = np.zeros((len(rows), len(rows)), kind)
    rates = _Rates(*(each.astype(kind, copy=False) for each in rates))
    given = (each.astype(kind, copy=False) for each in (U, V, beyond, factors, products))
    arrays: Any = (bounds, places, rates, *given, form)
    parts = shares(bounds) if len(rows) >= _WORTH_SHARING else [(0, len(V))]
    shared_out(lambda part: _by_blocks(*part, *arrays), parts)
    if prox.joint is not None:
        along = np.einsum("ci,ci,i->c", U, np.repeat(V, counts, axis=0), prox.joint[0])
        syr = get_blas_funcs("syr", (form,))
        form = syr(prox.sign, along, a=form.T, lower=1, overwrite_a=1).T
    return form


def derivative(
    left: FloatArray, s: FloatArray, right: FloatArray, prox: Proximal, H: FloatArray
) -> FloatArray:
    r""":math:`\mathcal DH`, ``(d_x, d_z)``; see :func:`curvature`."""
    rates = _rates(s, prox)
    rows, columns = left.T @ H, H @ right.T
    inside = rows @ right.T
    mixed = rates.same * inside + rates.mirrored * inside.T
    if prox.joint is not None:
        joint = prox.joint[0]
        mixed[np.diag_indices(len(s))] += prox.sign * float(joint @ np.diag(inside)) * joint
    along = left @ mixed + rates.alone * (columns - left @ inside)
    turned: FloatArray = along @ right + left @ (rates.alone[:, None] * (rows - inside @ right))
    return turned


class _Rates(NamedTuple):
    r""":math:`\alpha,\beta` ``(q, q)`` and the factors of indices without a mirror ``(q,)``."""

    same: FloatArray
    mirrored: FloatArray
    alone: FloatArray


def _rates(s: FloatArray, prox: Proximal) -> _Rates:
    g, rates = prox.W[0], prox.rate[0]
    apart, total = s[:, None] - s, s[:, None] + s
    close = np.abs(apart) <= _CLOSE * total
    slopes = np.where(
        close, 0.5 * (rates[:, None] + rates), (g[:, None] - g) / np.where(close, 1.0, apart)
    )
    positive = total > 0.0
    turned = np.where(positive, (g[:, None] + g) / np.where(positive, total, 1.0), rates)
    same, mirrored = 0.5 * (slopes + turned), 0.5 * (slopes - turned)
    np.fill_diagonal(same, rates)
    np.fill_diagonal(mirrored, 0.0)
    alone: FloatArray = np.where(s > 0.0, g / np.where(s > 0.0, s, 1.0), rates)
    return _Rates(same, mirrored, alone)


@summing_kernel
def _by_blocks(
    start: int,
    stop: int,
    bounds: IntArray,
    places: IntArray,
    rates: _Rates,
    U: FloatArray,
    V: FloatArray,
    beyond: FloatArray,
    factors: FloatArray,
    products: FloatArray,
    out: FloatArray,
) -> None:
    """The form of the rows of some blocks with those of all later ones: of differences ``(k, q)``
    and queries ``(n, q)``, of products of whole differences in these ``places``, whose parts
    outside have ``factors``, and of products ``beyond`` of what is outside of queries.
    """
    k, n, q = len(U), len(V), V.shape[1]
    same, mirrored, alone = rates
    mixed, turned, both = np.empty_like(U), np.empty_like(U), np.empty_like(V)
    for a in range(start, stop):
        first, last = bounds[a], bounds[a + 1]
        for e in range(a, n):
            for i in range(q):
                both[e, i] = V[a, i] * V[e, i]
        weights = np.dot(both[a:], same)
        for c in range(first, k):
            for i in range(q):
                turned[c, i] = V[a, i] * U[c, i]
        crossed = np.dot(turned[first:], mirrored)
        for e in range(a, n):
            here, query = weights[e - a], V[e]
            for i in range(q):
                here[i] += alone[i] * beyond[a, e] - factors[a, e]
            for c in range(bounds[e], bounds[e + 1]):
                mine, row, across = mixed[c], U[c], crossed[c - first]
                for i in range(q):
                    mine[i] = here[i] * row[i] + query[i] * across[i]
        out[first:last, first:] = np.dot(U[first:last], mixed[first:].T)
        if len(products) > 0:
            for c in range(first, last):
                entries, whole = out[c], products[places[c]]
                for e in range(a, n):
                    for d in range(bounds[e], bounds[e + 1]):
                        entries[d] += factors[a, e] * whole[places[d]]
