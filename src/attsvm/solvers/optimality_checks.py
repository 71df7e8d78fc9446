r"""Checks of certified weights: the residuals of their optimality conditions, their rank,
and whether they are the only ones.

*Rank, nuclear norm.* Let :math:`M=A^\top\lambda/\|A^\top\lambda\|` have singular values
:math:`1=\mu_1\ge\mu_2\ge\dots` and let :math:`\varepsilon` be the gap, so
:math:`\langle M,W^\star\rangle\ge(1-\varepsilon)\|W^\star\|_\star` for *every* solution. With
:math:`W^\star=\sum_i\sigma_iu_iv_i^\top` and :math:`2u^\top Mv\le u^\top|M^\top|u+v^\top|M|v`, the
parts of :math:`u_i,v_i` outside the first :math:`k` singular vectors of :math:`M` lose a factor
:math:`\mu_{k+1}`, and by Ky Fan's inequality

.. math:: \sum_{i>k}\sigma_i(W^\star)\;\le\;\tau_k\,\|W^\star\|_\star,\qquad
    \tau_k=\frac{\varepsilon}{1-\mu_{k+1}} .

Once that is small against :math:`\sigma_1\ge(1-\tau_k)\|W^\star\|_\star/k`, no solution has
numerical rank above :math:`k`. For :math:`\varepsilon=0` this is
:math:`\operatorname{rank}W^\star\le\operatorname{mult}(\mu_1)` (*Transformers as Support Vector
Machines*, Lemma 1; wording recalled).

*Uniqueness.* For :math:`1<p<\infty` the norm is strictly convex and the solution is the only one.
For :math:`p=1,\infty` of the entries a multiplier vector :math:`\lambda` that proves optimality
also says where every solution lies: with :math:`V=A^\top\lambda`, solutions meet the rows with
:math:`\lambda_c>0` exactly, and for :math:`p=1` vanish where :math:`|V_e|<\|V\|_\infty`, for
:math:`p=\infty` are at their bound where :math:`V_e\ne0`. If the columns of those rows on the
remaining entries are independent, there is one solution. Conversely a null vector of all tight rows
on the entries that can move both ways moves the weights without cost (Mangasarian, *Uniqueness of
solution in linear programming*, 1979). The norm of soft-margin solutions is unique, and what was
said holds with the rows :math:`0<\lambda_c<C` in place of :math:`\lambda_c>0`. Solutions of least
nuclear norm are :math:`U_kBV_k^\top` with :math:`B\succeq0` and :math:`U_k,V_k` the first
:math:`k=\operatorname{mult}(\mu_1)` singular vectors of :math:`M`; there is one where the rows with
:math:`\lambda_c>0` determine a symmetric :math:`B`. How far another solution can be then bounds
its singular values too.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.norms import Frobenius, Norm
from attsvm.solvers.proofs import Certificate


class CheckOptions(NamedTuple):
    """From when on numbers count as different from zero, and matrices as too large; untuned.

    Attributes:
        relative: share of the largest singular value below which others do not count.
        least_gap: no gap is trusted below this.
        clear: relative size that counts as different from zero.
        entries: of a matrix whose rank is decided, at most.
        rounding: share of the largest singular value below which others may be rounding.
        injective: smallest singular value of unit rows that determine a face.
    """

    relative: float = 1e-3
    least_gap: float = 1e-13
    clear: float = 1e-6
    entries: int = 1 << 22
    rounding: float = 1e-9
    injective: float = 3e-5


CHECKS = CheckOptions()


class Residuals(NamedTuple):
    r"""How far a solution is from the optimality conditions, recomputed from the caller's margins.

    With :math:`V=A^\top\lambda` stationarity asks for :math:`V\in\|W\|\,\partial\|W\|`, up to a
    positive factor for the hard margin.

    Attributes:
        stationarity: distance of :math:`V` from there, free of scale. Frobenius norm:
            :math:`\|W-V\|_F/\|W\|_F`, the distance itself. Other norms: what Hoelder's inequality
            leaves, :math:`1-\langle V,W\rangle/(\|W\|\,\|V\|_*)`, which is zero exactly when
            :math:`V` is a positive multiple of a subgradient (for the soft margin what Fenchel's
            leaves,
            :math:`(\tfrac12\|W\|^2+\tfrac12\|V\|_*^2-\langle V,W\rangle)/\|W\|^2`); 1 when
            :math:`V=0`.
        primal: largest :math:`b_c-\xi_c-\langle A_c,W\rangle`, 0 when none is positive, in units of
            the largest power of two that is not above the largest :math:`b_c`.
        dual: largest distance of a multiplier to its box, relative to the largest multiplier.
        complementarity: largest :math:`\lambda_c|\langle A_c,W\rangle-b_c+\xi_c|` and, for the soft
            margin,
            :math:`(C-\lambda_c)\xi_c`, relative to :math:`b^\top\lambda`.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 0], [0, 1]]], labels=[1], queries=[[1]])
        >>> max(attsvm.max_margin(attsvm.selection_margins(data, [0])).kkt()) < 1e-9
        True
    """

    stationarity: float
    primal: float
    dual: float
    complementarity: float


def residuals_of(
    margins: Margins,
    norm: Norm,
    W: FloatArray,
    dual: FloatArray,
    slack: float | None,
    slacks: FloatArray,
) -> Residuals:
    """Residuals of the optimality conditions of the programme of these margins, at a scale near
    one, in the norm that was minimised.
    """
    cap = np.inf if slack is None else slack
    room = margins(W) - margins.rhs + slacks
    equalities = margins.equalities
    # An equality is missed on both sides.
    room[equalities] = -np.abs(room[equalities])
    largest = float(np.abs(dual).max(initial=0.0))
    outside = max(float(-dual[~equalities].min(initial=0.0)), float((dual - cap).max(initial=0.0)))
    products = float((np.abs(dual) * np.abs(room)).max(initial=0.0))
    if slack is not None:
        products = max(products, float(((slack - dual) * slacks).max(initial=0.0)))
    total = float(margins.rhs @ dual)
    return Residuals(
        stationarity=_stationarity(margins.adjoint(dual), W, norm, soft=slack is not None),
        primal=max(0.0, float((-room).max(initial=0.0))),
        dual=outside / largest if largest > 0 else outside,
        complementarity=products / total if total > 0 else products,
    )


def _stationarity(V: FloatArray, W: FloatArray, norm: Norm, *, soft: bool) -> float:
    """Distance from stationarity, see :class:`Residuals`; the size of ``V`` where ``W`` is zero."""
    norm_of_W = float(norm.value(W))
    if norm_of_W == 0.0:
        return float(np.abs(V).max(initial=0.0))
    W = W / norm_of_W  # divided before anything is squared
    if norm == Frobenius():
        return float(np.linalg.norm(W - V / norm_of_W))
    size = float(norm.dual_value(V))
    if soft:
        V, share = V / norm_of_W, size / norm_of_W
        return max(0.0, 0.5 + 0.5 * share * share - float(np.sum(V * W)))
    return max(0.0, 1.0 - float(np.sum(V / size * W))) if size > 0.0 else 1.0


class RankAndUniqueness(NamedTuple):
    """The fields of :class:`attsvm.solvers.MarginSolution` of the same names."""

    rank: int
    rank_bound: int | None
    unique: bool | None


def check_rank_and_uniqueness(
    margins: Margins, certificate: Certificate, p: float, options: CheckOptions = CHECKS
) -> RankAndUniqueness:
    """Numerical rank, its certified bound (nuclear) and uniqueness of a certified solution in the
    Schatten norm of exponent ``p``.
    """
    # Divided by the largest entry, since squares of tiny weights underflow.
    values = singular_values(_unit(certificate.W))
    rank = int((values > options.relative * values[0]).sum())
    if p != 1.0:
        return RankAndUniqueness(rank, None, True if p < math.inf else None)
    # The face on which all solutions lie: the first k singular vectors of the pull.
    pulled = margins.adjoint(certificate.dual / certificate.dual.max(initial=0.0))
    left, mu, right = svd(_unit(pulled))
    pull, mu = float(mu[0] * np.abs(pulled).max()), mu / mu[0]
    k = rank_bound(mu, certificate.error, options)
    if k is None:
        return RankAndUniqueness(rank, None, None)
    # Rows with a clear multiplier are tight in every solution, and fix B if they are injective.
    rows = np.flatnonzero(certificate.dual > options.clear * certificate.dual.max())
    least_singular = _determined(margins, rows, left[:, :k], right[:k], options)
    if least_singular <= options.injective:
        return RankAndUniqueness(rank, k, None)
    shares = certificate.dual[rows] / certificate.dual.max() * margins.lengths[rows]
    off_face, on_face = _distance(max(certificate.error, options.least_gap), mu, k, pull / shares)
    # How far another solution can be moves its singular values by no more (Weyl).
    distance = (off_face + (on_face + len(rows) ** 0.5 * off_face) / least_singular) * values.sum()
    most_values = int((values + distance > options.relative * max(values[0] - distance, 0.0)).sum())
    return RankAndUniqueness(rank, min(k, most_values), True)


def numerical_rank(W: FloatArray, options: CheckOptions = CHECKS) -> int:
    """Number of singular values that exceed the share ``options.relative`` of the largest."""
    values = singular_values(_unit(W))
    return int((values > options.relative * values[0]).sum())


def rank_bound(mu: FloatArray, gap: float, options: CheckOptions = CHECKS) -> int | None:
    """The smallest ``k`` that the inequality of this module proves for ``mu`` (the first is 1),
    ``None`` when it proves none.
    """
    for k in range(1, len(mu) + 1):
        # tau_k of the module's docstring.
        rest = float(mu[k]) if k < len(mu) else -np.inf
        tail = max(gap, options.least_gap) / (1.0 - rest) if rest < 1.0 else np.inf
        if k == len(mu) or tail <= options.relative * (1.0 - tail) / k:
            return k if k < len(mu) or gap < 1.0 else None
    return None


def _determined(
    margins: Margins, rows: IntArray, left: FloatArray, right: FloatArray, options: CheckOptions
) -> float:
    r"""The smallest singular value of :math:`B\mapsto(\langle A_c,UBV^\top\rangle)_c` on symmetric
    matrices, for rows of length one; 0 where it is too large to tell.
    """
    i, j = np.triu_indices(left.shape[1])
    # Fewer rows than coordinates of B cannot determine it.
    if not len(i) <= len(rows) <= options.entries // len(i):
        return 0.0
    D = _unit_rows(margins.differences[rows]) @ left
    Z = _unit_rows(margins.queries[margins.sequence[rows]]) @ right.T
    # Coordinates of symmetric matrices, orthonormal by the factors below.
    written = D[:, i] * Z[:, j] + D[:, j] * Z[:, i]
    return float(singular_values(written * np.where(i == j, 0.5, math.sqrt(0.5)))[-1])


def _distance(gap: float, mu: FloatArray, k: int, pull_shares: FloatArray) -> tuple[float, float]:
    r"""How far two points with this gap can be apart, as shares of their norm: off the face, and on
    it beside what follows from that.

    Off the face each is within :math:`2\sqrt{2\tau_k}+\sqrt{2\varepsilon'}`: parts outside the
    first k singular vectors, and the part of :math:`B` that is not symmetric, with
    :math:`\varepsilon'=\varepsilon+\tau_k+1-\mu_k`. On it the rows with positive multipliers, whose
    margins exceed their right-hand sides by at most :math:`\varepsilon\|W\|/\lambda_c`, hold the
    coordinates.
    """
    tail = gap / (1.0 - float(mu[k])) if k < len(mu) else 0.0
    rest = gap + tail + 1.0 - float(mu[k - 1])
    return 2.0 * (2.0 * math.sqrt(2.0 * tail) + math.sqrt(2.0 * rest)), gap * float(
        np.linalg.norm(pull_shares)
    )


def singular_values(W: FloatArray) -> FloatArray:
    """Singular values of the weights, ``(q,)``, falling."""
    try:
        return np.asarray(np.linalg.svd(W, compute_uv=False), dtype=np.float64)
    except np.linalg.LinAlgError:
        return svd(W)[1]


def svd(W: FloatArray, full_matrices: bool = False) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Singular vectors and values of finite weights. LAPACK's fast method (``gesdd``) does not
    converge on rare matrices; its slow one then does.
    """
    try:
        left, s, right = np.linalg.svd(W, full_matrices=full_matrices)
    except np.linalg.LinAlgError:
        from scipy.linalg import svd as slow

        left, s, right = slow(W, full_matrices=full_matrices, lapack_driver="gesvd")
    return left, s, right


def _unit(W: FloatArray) -> FloatArray:
    """The matrix divided by its largest entry."""
    top = float(np.abs(W).max(initial=0.0))
    return W / top if top > 0.0 else W


def _unit_rows(rows: FloatArray) -> FloatArray:
    """The rows divided by their lengths."""
    length = np.linalg.norm(_unit(rows), axis=1, keepdims=True)
    return _unit(rows) / np.where(length > 0.0, length, 1.0)


def unique_weights(solution: Any, p: float, options: CheckOptions = CHECKS) -> bool | None:
    """True or False where it is clear, ``None`` where it is not or the programme is too large.

    ``solution`` is a :class:`attsvm.solvers.MarginSolution` in the norm of the ``p``-th powers of
    the entries.
    """
    if solution.status != "optimal":
        return None
    if 1.0 < p < math.inf:
        return True
    if solution.gap > options.clear**1.5:
        return None
    margins, W, dual = solution.margins, solution.W, solution.dual
    size = np.abs(W)
    pull = np.abs(margins.adjoint(dual))
    if p == 1.0:
        # Entries that are zero in every solution.
        still = pull < (1.0 - options.clear) * pull.max()
        movable = size > options.clear * size.max()
    else:
        # Entries that are at their bound in every solution.
        still = pull > options.clear * pull.max()
        movable = size < (1.0 - options.clear) * size.max()
    room = margins(W) - margins.rhs
    scale = max(float(margins.rhs.max()), 1e-300)
    # Rows that are tight in every solution, and those that are tight in this one.
    bound = dual > options.clear * dual.max()
    tight = room <= options.clear * scale
    if solution.slack is not None:
        bound &= dual < (1.0 - options.clear) * solution.slack
        tight &= room >= -options.clear * scale
    if (
        int(bound.sum()) * int((~still).sum()) > options.entries
        or int(tight.sum()) * int(movable.sum()) > options.entries
    ):
        return None
    held, moved = _columns(solution, bound, ~still), _columns(solution, tight, movable)
    if p == 1.0 and solution.slack is not None:
        # The norm is the same in all solutions. Of hard margins the rows above imply it; here
        # missed rows have a share in it.
        signs = np.sign(W)
        held = np.vstack([held, np.sign(margins.adjoint(dual))[~still]])
        moved = np.vstack([moved, signs[movable]])
    # Held rows that are injective leave one solution; a null vector of all tight ones, several.
    if _are_independent(held, options):
        return True
    return False if movable.any() and not _are_independent(moved, options) else None


def _columns(solution: Any, rows: BoolArray, entries: BoolArray) -> FloatArray:
    """The chosen rows, scaled to a largest entry of one, on the chosen entries."""
    margins = solution.margins
    a, e = np.nonzero(entries)
    D, Z = margins.differences[rows], margins.queries[margins.sequence[rows]]
    D = D / np.maximum(np.abs(D).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    Z = Z / np.maximum(np.abs(Z).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    columns: FloatArray = D[:, a] * Z[:, e]
    return columns


def _are_independent(columns: FloatArray, options: CheckOptions) -> bool:
    """Whether the columns are linearly independent."""
    if columns.shape[1] == 0:
        return True
    if columns.shape[0] < columns.shape[1]:
        return False
    values = np.linalg.svd(columns, compute_uv=False)
    return bool(values[-1] > options.rounding * values[0])
