r"""Newton's method for the nuclear and the spectral norm, where splitting crawls.

Around weights :math:`W` an augmented Lagrangian minimises over the multipliers, which stay
non-negative,

.. math:: \varphi(\lambda)=-b^\top\lambda+\max_{W'}\big\{\langle
    A^\top\lambda,W'\rangle-f(W')-\tfrac1{2\sigma}\|W'-W\|_F^2\big\}
          +\tfrac\nu2\|\lambda-\lambda_0\|^2,\qquad
          \nabla\varphi(\lambda)=A\,\operatorname{prox}_{\sigma f}(W+\sigma
          A^\top\lambda)-b+\nu(\lambda-\lambda_0),

from multipliers :math:`\lambda_0`, and takes the maximiser as the next :math:`W`: proximal steps in
both, which keep the Newton systems definite when active rows outnumber the directions left
(Rockafellar 1976; with Newton steps for singular values as in Jiang, Sun and Toh, *A partial
proximal point algorithm for nuclear norm regularized matrix least squares problems*, 2014). A
Newton step goes to the least value of the quadratic model over non-negative multipliers, which a
few exchanges of free rows find (:class:`QuadraticModel`). A handful of outer steps reach rounding
level from where alternating directions crawl.

Where rows are many, two things save systems. A larger :math:`\sigma'=\gamma\sigma` magnifies
what the weights moved last, :math:`W-W_0`, and its first Newton step would start from singular
values that this has scrambled. But :math:`W` is the proximal point of
:math:`\tilde X=W+\gamma(X-W)`, too, whatever :math:`f` is, so the margins at the same multipliers
are :math:`A[W+\mathcal D_{\tilde X}(\gamma(W-W_0))]` to first order, and the step is made from
there. And the factor of one system serves the next steps as long as they gain.

The proximal map :math:`X=U\operatorname{diag}(s)V^\top\mapsto U\operatorname{diag}(g)V^\top`
has, in the coordinates :math:`\tilde H=U^\top HV`, the derivative (Lewis and Sendov, *Nonsmooth
analysis of singular values II*, 2005)

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
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.solvers.facts import svd
from attsvm.solvers.programme import Programme
from attsvm.solvers.threads import all_threads

MANY = 500  # positive multipliers from which digits beyond the tolerance are not cheap
_PROXIMAL = 0.1  # nu in units of |W|^2 / (sigma |dual|^2)
_RIDGE = 1e-13  # relative to the mean diagonal of the Newton matrix
_MOST_RIDGE = 1e-2
_HALVINGS = 25
_NOISE = 1e-15  # rounding of a margin, relative to the argument of the proximal map
_LONGEST = 10.0  # first step, in units of the largest multiplier
_ENOUGH = 0.4  # share of the first slope that a step may climb back
_GAIN = 0.7  # of what is missed, from which a factor is not used again
_BAND = 0.03  # rows so near to their right-hand sides, in units of the largest, get a place in it
_LARGEST = 1 << 25  # entries of a Newton matrix
_CLOSE = 1e-8  # relative distance of singular values below which slopes replace differences
_ROUNDS = 4  # of exchanges of free rows
_FEW = 8  # a border is at most the free rows divided by this
_OUTER_STEPS, _NEWTON_STEPS = 20, 60
_INNER_TOLERANCE = 1e-13
_SHARE = 0.1
_GROWTH, _RETREAT, _LARGEST_SIGMA = 30.0, 5.0, 1e7
_FEW_DIGITS = 1.5e6  # sigma up to which Newton systems are solved in 32 bits
_FURTHER, _LEAST, _MOST = 1.0, 3.0, 30.0  # growth in units of what it moves, and its bounds
_WORTH = 0.7  # share of the error that is left, below which the same sigma is worth another step
_MOST_WORSE = 4  # outer steps without progress


class Proximal(NamedTuple):
    r"""A proximal point of singular values ``(q,)`` with an element of its derivative: a diagonal
    of ``rates``, and the outer square of ``joint`` where values that are clipped move together.
    """

    sizes: FloatArray
    rates: FloatArray
    joint: FloatArray | None


def proximal(falling: FloatArray, tau: float, spectral: bool) -> Proximal:
    """The singular values that minimise ``tau * norm + |. - falling|^2 / 2``: less ``tau``
    (nuclear), or cut at the level that removes ``tau`` in all (spectral).
    """
    if not spectral:
        rest = falling - tau
        return Proximal(np.maximum(rest, 0.0), (rest > 0.0).astype(np.float64), None)
    levels = (np.cumsum(falling) - tau) / np.arange(1, len(falling) + 1)
    level = float(levels[np.argmax(levels >= np.append(falling[1:], -np.inf))])
    if level <= 0.0:
        return Proximal(np.zeros_like(falling), np.zeros_like(falling), None)
    clipped = falling > level
    joint = clipped / math.sqrt(max(int(clipped.sum()), 1))
    return Proximal(np.minimum(falling, level), np.where(clipped, 0.0, 1.0), joint)


def finish(
    p: Programme,
    spectral: bool,
    start: tuple[FloatArray, FloatArray, float],
    error: Callable[[FloatArray, FloatArray], float],
    consider: Callable[[FloatArray, FloatArray], float],
    stop: tuple[float, float, float],
) -> tuple[FloatArray, FloatArray]:
    """Outer steps with growing weight while they help; weights and multipliers to go on from.

    Args:
        p: the programme, its solution of norm about one.
        spectral: the spectral norm, else the nuclear one.
        start: weights, multipliers of the norm and the step of their splitting.
        error: of weights and multipliers, in floating point.
        consider: certifies weights and multipliers and keeps the best; the least error so far.
        stop: the error that is aimed at, the one that is enough where rows are many, and the time.
    """
    aim, enough, deadline = stop
    newton = AugmentedLagrangian(p, spectral, *start)
    W, dual, worse, before = start[0], start[1], 0, math.inf
    left = best = error(W, dual)
    coarse = _SHARE * float(p.b.max())
    for _ in range(_OUTER_STEPS):
        # Where systems are large, inner problems are solved to a share of the error, and only what
        # is good enough is certified.
        many = np.count_nonzero(newton.dual) > MANY
        tolerance = max(_INNER_TOLERANCE, coarse * min(left, 1.0) if many else 0.0)
        worse += 1
        if newton.advance(tolerance, _NEWTON_STEPS, deadline):
            last, left = left, error(newton.W, newton.dual)
            if left <= enough or not many:
                best = consider(newton.W, newton.dual)
            growth = newton.growth(left / last) if many else _GROWTH
            newton.sigma = min(growth * newton.sigma, _LARGEST_SIGMA)
            if left < before:
                W, dual, worse, before = newton.W, newton.dual, 0, left
            else:
                coarse /= 10.0
        else:
            newton.sigma /= _RETREAT
        done = best <= (enough if many else aim)
        if done or time.monotonic() > deadline or worse == _MOST_WORSE:
            break
    consider(W, dual)
    return W, dual


class _Point(NamedTuple):
    """Multipliers with everything that follows from them."""

    dual: FloatArray
    left: FloatArray
    s: FloatArray
    right: FloatArray
    prox: Proximal
    W: FloatArray
    gradient: FloatArray


class _Outer(NamedTuple):
    """The last outer step: where it ended, around which weights, with which ``sigma``."""

    end: _Point
    centre: FloatArray
    sigma: float


class AugmentedLagrangian:
    r"""Weights and multipliers; :meth:`advance` makes one outer step in place.

    Attributes:
        W: weights.
        dual: ``(m,)`` multipliers, non-negative, :math:`A^\top\lambda\in\partial f(W)` in the
            limit.
        sigma: weight of the proximal term.
    """

    def __init__(
        self,
        programme: Programme,
        spectral: bool,
        weights: FloatArray,
        dual: FloatArray,
        sigma: float,
    ) -> None:
        self.programme, self.spectral = programme, spectral
        self.W, self.dual, self.sigma = weights, dual.copy(), sigma
        self._nu = 0.0
        self._scale = programme.diagonal
        self._kind: type[np.floating[Any]] = np.float32
        self._known: dict[type[np.floating[Any]], FloatArray] = {}
        self._last: _Outer | None = None
        self._model: QuadraticModel | None = None
        self._rows: IntArray = np.empty(0, dtype=np.int64)  # of the model

    def advance(self, tolerance: float, steps: int, deadline: float) -> bool:
        """Minimise the inner problem to a projected gradient of ``tolerance`` and update; False
        when ``steps`` or the clock ran out first.

        Without an answer the multipliers move as far as they came, the weights stay, and ``sigma``
        should shrink.
        """
        length = float(np.linalg.norm(self.dual))
        self._nu = (
            _PROXIMAL * float(np.sum(self.W**2)) / (self.sigma * length * length)
            if length > 0.0
            else 1.0 / self.sigma
        )
        self._scale = np.maximum(self.sigma * self.programme.diagonal, self._nu)
        at, self._kind = self._point(self.dual), np.float32
        ahead, done, before = self._ahead(at), False, np.inf
        if self._last is None or self._last.sigma != self.sigma:
            self._model = None
        for _ in range(steps):
            # The scaled gradient step says which multipliers want to be zero, and its length how
            # far from stationary they are.
            pushed = np.maximum(at.dual - at.gradient / self._scale, 0.0)
            missed = float((np.abs(at.dual - pushed) * self._scale).max(initial=0.0))
            if missed <= tolerance + _NOISE * float(at.s[0]):
                at, done = at._replace(dual=pushed), True
                break
            if missed > _GAIN * before:
                self._model = None
            following = self._step(at, ahead, missed) if time.monotonic() <= deadline else None
            if following is None:
                break
            at = ahead = following
            before = missed
        self.dual = at.dual
        if done:
            self._last = _Outer(at, self.W, self.sigma)
            self.W = at.W
        return done

    def moved(self) -> float:
        """How far the margins would move if the next outer step moved the weights as the last one
        did, with the same ``sigma``.
        """
        assert self._last is not None
        at, centre, _ = self._last
        along = derivative(at.left, at.s, at.right, at.prox, at.W - centre)
        return float(np.abs(self.programme.values(along)).max(initial=0.0))

    def growth(self, gained: float) -> float:
        """Of sigma, as far as it moves margins by no more than they are, where systems are large;
        none while the error is halved without.
        """
        moved = max(self.moved(), 1e-9)
        most = min(_MOST, max(_FEW_DIGITS / self.sigma, 1.0))
        growth = min(_FURTHER * float(self.programme.b.max()) / moved, most)
        if growth >= _LEAST:
            return growth
        return 1.0 if gained < _WORTH else _LEAST

    def _ahead(self, at: _Point) -> _Point:
        """What a Newton step from the end of the last outer step needs to know; ``at`` where there
        was none, or rows are few.
        """
        if self._last is None or np.count_nonzero(at.dual) <= MANY:
            return at
        p, (end, centre, sigma) = self.programme, self._last
        growth, g = self.sigma / sigma, end.prox.sizes
        s = g + growth * (end.s - g)
        prox = proximal(s, self.sigma, self.spectral)
        W = self.W + derivative(end.left, s, end.right, prox, growth * (self.W - centre))
        return end._replace(dual=at.dual, s=s, prox=prox, W=W, gradient=p.values(W) - p.b)

    def _point(self, dual: FloatArray) -> _Point:
        p = self.programme
        left, s, right = svd(self.W + self.sigma * p.adjoint(dual))
        prox = proximal(s, self.sigma, self.spectral)
        W = (left * prox.sizes) @ right
        return _Point(
            dual, left, s, right, prox, W, p.values(W) - p.b + self._nu * (dual - self.dual)
        )

    def _step(self, at: _Point, ahead: _Point, missed: float) -> _Point | None:
        """One more step with the factor that is there, or one from ``ahead`` with few digits, or
        one from ``at``.
        """
        found = None if self._model is None else self._towards(at, at.gradient)
        if found is not None:
            return found
        near = 0.0
        if np.count_nonzero(at.dual) > MANY:
            near = min(missed, _BAND * float(self.programme.b.max()))
        rows: IntArray = np.flatnonzero((at.dual > 0.0) | (ahead.gradient < near))
        many = len(rows) > MANY
        form = self._form(ahead, rows) if many and self._kind is np.float32 else None
        if form is not None:
            form[np.diag_indices(len(rows))] += self._nu
            self._model, self._rows = QuadraticModel(form), rows
            found = self._towards(at, ahead.gradient)
            if found is not None:
                return found
        self._kind, self._model = np.float64, None
        rows = np.flatnonzero((at.dual > 0.0) | (at.gradient < 0.0))
        form = self._form(at, rows)
        if form is None:
            return None
        ridge, diagonal = _RIDGE, np.diag_indices(len(rows))
        size = max(float(np.mean(form[diagonal])), 1e-12 * self.sigma)
        plain = form[diagonal] + self._nu
        while True:
            form[diagonal] = plain + ridge * size
            self._model, self._rows = QuadraticModel(form), rows
            found = self._towards(at, at.gradient)
            if found is None or not many:
                self._model = None
            if found is not None:
                return found
            ridge *= 100.0
            if ridge > _MOST_RIDGE:
                return self._search(at, rows, -at.gradient[rows] / self._scale[rows])

    def _towards(self, at: _Point, gradient: FloatArray) -> _Point | None:
        """A step to the least value of the model with this gradient."""
        assert self._model is not None
        rows = self._rows
        new = self._model.nearest(gradient[rows], at.dual[rows])
        return None if new is None else self._search(at, rows, new - at.dual[rows])

    def _form(self, at: _Point, rows: IntArray) -> FloatArray | None:
        """The upper triangle of the Newton matrix without its proximal term."""
        known = self._products(rows, self._kind)
        form = curvature(self.programme, rows, at.left, at.s, at.right, at.prox, self._kind, known)
        if form is not None:
            form *= self.sigma
        return form

    def _products(self, rows: IntArray, kind: type[np.floating[Any]]) -> FloatArray | None:
        """Of all differences, kept once most rows need theirs."""
        p = self.programme
        if p.D.shape[1] <= p.Z.shape[1] or 2 * len(rows) < p.m or p.m**2 > _LARGEST:
            return None
        if kind not in self._known:
            D = p.D.astype(kind)
            self._known[kind] = D @ D.T
        return self._known[kind]

    def _search(self, at: _Point, rows: IntArray, direction: FloatArray) -> _Point | None:
        """A step along the projection of the ray onto non-negative multipliers.

        By convexity the slope at the end bounds the change: where it has not turned upwards by
        much, the end is no higher than the start.
        """
        if not np.isfinite(direction).all():
            return None
        t = min(
            1.0,
            _LONGEST
            * (float(at.dual.max()) + 1.0 / self.sigma)
            / max(float(np.abs(direction).max()), 1e-300),
        )
        falling = (direction < 0.0) & (at.dual[rows] > 0.0)
        # the first multiplier reaches zero here
        block = float((at.dual[rows][falling] / -direction[falling]).min(initial=np.inf))
        for _ in range(_HALVINGS):
            dual = np.zeros_like(at.dual)
            moved = at.dual[rows] + t * direction
            dual[rows] = np.where(moved > 1e-14 * at.dual[rows], moved, 0.0)
            change = dual - at.dual
            first = float(at.gradient @ change)
            if first >= 0.0:
                return None
            end = self._point(dual)
            if float(end.gradient @ change) <= -_ENOUGH * first:
                return end
            shorter = t * (0.5 if t > 0.1 else 0.2)
            t = block if shorter < block < t else shorter
        return None


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
        prox: the proximal map at ``s``.
        kind: of numbers, ``np.float32`` takes half the time.
        known: ``(m, m)`` of that kind, products of all differences, where they are longer than
            the queries; computed for these rows otherwise.
    """
    from scipy.linalg.blas import get_blas_funcs

    if len(rows) ** 2 > _LARGEST:
        return None
    active, first, counts = np.unique(p.sequence[rows], return_index=True, return_counts=True)
    D, Z = p.D[rows], p.Z[active]
    U, V = D @ left, Z @ right.T
    rates = pair_rates(s, prox)
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
    U, V, beyond, factors, products = (
        each.astype(kind, copy=False) for each in (U, V, beyond, factors, products)
    )
    block = np.repeat(np.arange(len(V)), counts)
    mine = V[block]
    for a in range(len(V)):
        start, stop = bounds[a], bounds[a + 1]
        weights = (V[a] * V[a:]) @ rates.same
        weights += np.outer(beyond[a, a:], rates.alone) - factors[a, a:, None]
        mixed = np.repeat(weights, counts[a:], axis=0)
        mixed *= U[start:]
        crossed = (V[a] * U[start:]) @ rates.mirrored
        crossed *= mine[start:]
        mixed += crossed
        np.matmul(U[start:stop], mixed.T, out=form[start:stop, start:])
        if len(products) > 0:
            whole = products[np.ix_(places[start:stop], places[start:])]
            form[start:stop, start:] += factors[a, block[start:]] * whole
    if prox.joint is not None:
        along = np.einsum("ci,ci,i->c", U, mine, prox.joint.astype(kind))
        syr = get_blas_funcs("syr", (form,))
        form = syr(1.0, along, a=form.T, lower=1, overwrite_a=1).T
    return form


def derivative(
    left: FloatArray, s: FloatArray, right: FloatArray, prox: Proximal, H: FloatArray
) -> FloatArray:
    r""":math:`\mathcal DH`, ``(d_x, d_z)``; see :func:`curvature`."""
    rates = pair_rates(s, prox)
    rows, columns = left.T @ H, H @ right.T
    inside = rows @ right.T
    mixed = rates.same * inside + rates.mirrored * inside.T
    if prox.joint is not None:
        along = float(prox.joint @ np.diag(inside))
        mixed[np.diag_indices(len(s))] += along * prox.joint
    moved = left @ mixed + rates.alone * (columns - left @ inside)
    turned: FloatArray = moved @ right + left @ (rates.alone[:, None] * (rows - inside @ right))
    return turned


class _Rates(NamedTuple):
    r""":math:`\alpha,\beta` ``(q, q)`` and the factors of indices without a mirror ``(q,)``."""

    same: FloatArray
    mirrored: FloatArray
    alone: FloatArray


def pair_rates(s: FloatArray, prox: Proximal) -> _Rates:
    """The factors of entries in the frame of the singular vectors."""
    g, rates = prox.sizes, prox.rates
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


class QuadraticModel:
    r"""The least value of a quadratic model over non-negative multipliers, from some near it, by
    block principal pivoting on a matrix that is written out: the free multipliers solve a linear
    system, those with the wrong sign change sides. One factorisation serves several rounds, and
    gradients. Where few rows :math:`N` enter its rows :math:`F` and few rows :math:`R` leave them,
    the system is bordered,

    .. math:: \begin{pmatrix}K_{FF}&B\\B^\top&C\end{pmatrix}\begin{pmatrix}x_F\\y\end{pmatrix}
        =\begin{pmatrix}w_F\\c\end{pmatrix},\qquad B=(K_{FN},\,I_{FR}),\quad
        C=\begin{pmatrix}K_{NN}&\\&0\end{pmatrix},\quad c=(w_N,0),

    and only a matrix of the size of :math:`N` and :math:`R` is solved anew.

    A form and the factor that serves several gradients, at multipliers that have moved on, too.

    Args:
        form: ``(k, k)``, its upper triangle, in numbers of 32 or of 64 bits: what is solved for is
            the step, which is short where few digits would not do.
    """

    def __init__(self, form: FloatArray) -> None:
        from scipy.linalg.blas import get_blas_funcs
        from scipy.linalg.lapack import get_lapack_funcs

        self._symv, self._trsv, self._trsm = get_blas_funcs(("symv", "trsv", "trsm"), (form,))
        self._potrf = get_lapack_funcs("potrf", (form,))
        self._form = self._factor = form
        self._part: IntArray = np.empty(0, dtype=np.int64)  # the rows of the factor
        self._bordered = self._part  # rows whose columns of the border are solved, and these
        self._border = np.empty((0, 0), form.dtype)

    def nearest(self, gradient: FloatArray, dual: FloatArray) -> FloatArray | None:
        """The multipliers of least model value after a few exchanges of those that are free;
        ``None`` where the form is not definite.

        Args:
            gradient: ``(k,)`` at ``dual``.
            dual: ``(k,)`` multipliers.
        """
        symv, turned = self._symv, self._form.T  # its lower triangle, in Fortran order
        free = dual > 0.0
        if not free.any():
            free = gradient < 0.0
        step = np.zeros(len(dual))
        for _ in range(_ROUNDS):
            if not self._factored(free):
                return None
            ends = np.where(free, 0.0, -dual)
            beyond = ends.copy()
            beyond[self._part] = 0.0
            wanted = -gradient - symv(1.0, turned, beyond, lower=1) if beyond.any() else -gradient
            found = self._solution(wanted, free, ends)
            if found is None:
                return None
            step = found
            slope = symv(1.0, turned, step, lower=1) + gradient
            wrong: BoolArray = np.where(free, dual + step < 0.0, slope < 0.0)
            if not wrong.any():
                break
            free = free ^ wrong
            if not free.any():
                return None
        return np.maximum(dual + step, 0.0)

    def _factored(self, free: BoolArray) -> bool:
        """Whether there is a factor of nearly the free rows; it is made where there was none."""
        part = self._part
        changed = np.count_nonzero(free) - len(part) + 2 * np.count_nonzero(~free[part])
        if _FEW * changed <= len(part):
            return True
        self._part = part = np.flatnonzero(free)
        self._bordered = np.empty(0, dtype=np.int64)
        self._border = np.empty((len(part), 0), self._form.dtype, order="F")
        with all_threads(len(part)):
            self._factor, failed = self._potrf(
                self._form[np.ix_(part, part)].T, lower=1, clean=0, overwrite_a=1
            )
        return not failed

    def _solution(self, wanted: FloatArray, free: BoolArray, ends: FloatArray) -> FloatArray | None:
        """Of the linear system of the free rows where the others are to be ``ends``; ``None`` where
        it is singular.
        """
        from scipy.linalg.lapack import dsysv

        part, trsv = self._part, self._trsv
        found, inside = ends.copy(), np.zeros(len(wanted), dtype=np.bool_)
        inside[part] = True
        entering, leaving = np.flatnonzero(free & ~inside), part[~free[part]]
        half = trsv(self._factor, wanted[part], lower=1)
        count, rows = len(entering), np.append(entering, leaving)
        if len(rows) > 0:
            border = self._columns(rows, inside)
            corner = np.zeros((len(rows), len(rows)))
            corner[:count, :count] = _between(self._form, entering, entering)
            corner -= border.T @ border
            sides = np.append(wanted[entering], ends[leaving])
            outer, failed = dsysv(corner, sides - border.T @ half)[2:]
            if failed:
                return None
            half = half - border @ outer.astype(half.dtype)
            found[entering] = outer[:count]
        found[part] = trsv(self._factor, half, lower=1, trans=1)
        found[leaving] = ends[leaving]
        return found

    def _columns(self, rows: IntArray, inside: BoolArray) -> FloatArray:
        """:math:`L^{-1}B` for these rows; those that were asked for before are not solved again."""
        new = np.setdiff1d(rows, self._bordered)
        if len(new) > 0:
            fresh = np.zeros((len(new), len(self._part)), self._factor.dtype).T  # Fortran order
            entering = ~inside[new]
            fresh[:, entering] = _between(self._form, self._part, new[entering])
            leaving = np.flatnonzero(~entering)
            fresh[np.searchsorted(self._part, new[leaving]), leaving] = 1.0
            solved = self._trsm(1.0, self._factor, fresh, lower=1, overwrite_b=1)
            self._border = np.asfortranarray(np.concatenate([self._border, solved], axis=1))
            self._bordered = np.append(self._bordered, new)
        order = np.argsort(self._bordered)
        columns: FloatArray = self._border[
            :, order[np.searchsorted(self._bordered, rows, sorter=order)]
        ]
        return columns


def _between(form: FloatArray, rows: IntArray, columns: IntArray) -> FloatArray:
    """Entries of a symmetric matrix whose upper triangle is there."""
    low, high = np.minimum.outer(rows, columns), np.maximum.outer(rows, columns)
    entries: FloatArray = form[low, high]
    return entries
