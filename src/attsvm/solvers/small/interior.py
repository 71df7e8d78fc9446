r"""Small programmes of the entrywise norms in compiled code: interior points on written-out rows.

Mehrotra's method (*On the implementation of a primal-dual interior point method*, 1992), where
every Newton system is reduced to the multipliers,

.. math:: (A\Theta A^\top+\operatorname{diag}(s_c/\lambda_c))\,d\lambda=\dots,\qquad s=AW-b,

with :math:`\Theta` from what is left of the programme:

* :math:`p=1`: :math:`W=U-V` with :math:`U,V\ge0` and reduced costs :math:`1\mp A^\top\lambda`;
* :math:`p=\infty`: the margin :math:`\tau` of :math:`AW\ge\tau b` is maximised in the box
  :math:`-1\le W\le1`, because minimising the bound of the box cancels;
* :math:`1<p\le2`: :math:`W=\operatorname{sp}(A^\top\lambda,q-1)` is eliminated, and
  :math:`\Theta` is its derivative.

The points are certified by the caller; what does not converge is left to the other methods, and so
is the verdict on programmes without a solution.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import FloatArray
from attsvm.jit import summing_kernel
from attsvm.solvers.small.small_algebra import factorise, substitute

_MOST, _IDLE = 60, 6  # iterations, and those without a better point
_ENOUGH = 1e-13  # relative gap
_STEP = 0.995  # share of the way to the boundary


@summing_kernel
def reach(x: FloatArray, dx: FloatArray) -> float:
    """The largest step, at most 1, that leaves positive numbers non-negative."""
    t = 1.0
    for i in range(len(x)):
        if dx[i] < 0.0 and -x[i] > t * dx[i]:
            t = -x[i] / dx[i]
    return t


@summing_kernel
def _bounds(A: FloatArray, b: FloatArray, w: FloatArray, lam: FloatArray, p: float) -> float:
    """The relative gap of ``w`` and ``lam``, at the scales at which they are best."""
    values, pulled = np.dot(A, w), np.dot(lam, A)
    ratio, top = np.inf, 0.0
    for c in range(len(b)):
        top += lam[c] * b[c]
        if b[c] > 0.0:
            ratio = min(ratio, values[c] / b[c])
        elif values[c] < 0.0:
            return np.inf
    size, dual = 0.0, 0.0
    if p == 1.0:
        size, dual = np.abs(w).sum(), np.abs(pulled).max()
    elif p == np.inf:
        size, dual = np.abs(w).max(), np.abs(pulled).sum()
    else:
        q = p / (p - 1.0)
        size, dual = (np.abs(w) ** p).sum() ** (1.0 / p), (np.abs(pulled) ** q).sum() ** (1.0 / q)
    if not (ratio > 0.0 and size > 0.0 and dual > 0.0):
        return np.inf
    return float(1.0 - ratio * top / (size * dual))


@summing_kernel
def interior_point(A: FloatArray, b: FloatArray, p: float) -> tuple[FloatArray, FloatArray, int]:
    """Weights and multipliers, each at its own scale (zeros where none were found), and
    the number of systems solved.

    Args:
        A: ``(m, k)`` rows of sizes near one.
        b: ``(m,)`` right-hand sides, none negative and one positive.
        p: 1, ``inf``, or in between up to 2.
    """
    m, k = A.shape
    box, smooth = p == np.inf, 1.0 < p < np.inf
    power = 1.0 / (p - 1.0) if smooth else 1.0
    lam, s, tau = np.ones(m), np.ones(m), 0.0
    pulled = np.dot(lam, A)
    w, u, v = np.zeros(k), np.ones(k), np.ones(k)
    zu, zv = np.ones(k), np.ones(k)
    if p == 1.0:  # reduced costs that are exact
        lam /= 2.0 * max(np.abs(pulled).max(), 1e-300)
        pulled = np.dot(lam, A)
        zu, zv = 1.0 - pulled, 1.0 + pulled
    elif box:
        lam /= b.sum()
        pulled = np.dot(lam, A)
        centre = np.abs(pulled).mean() + 1e-300
        zu, zv = np.maximum(pulled, 0.0) + centre, np.maximum(-pulled, 0.0) + centre
        s = b + 0.1 * b.max()
        tau = -1.0
    else:
        q = power + 1.0
        lam *= (b.sum() / max((np.abs(pulled) ** q).sum(), 1e-300)) ** (1.0 / (q - 1.0))
    best, w_best, lam_best = np.inf, np.zeros(k), np.zeros(m)
    idle, systems, weight = 0, 0, 0.0
    K, L, order = np.empty((m, m)), np.empty((m, m)), np.arange(m)
    for _ in range(_MOST):
        pulled = np.dot(lam, A)
        theta, shift = np.empty(k), np.zeros(k)
        if smooth:
            size = np.abs(pulled)
            w = np.sign(pulled) * size**power
            theta = power * size ** (power - 1.0)
        elif box:
            theta = 1.0 / (zu / u + zv / v)
        else:
            w = u - v
            theta = u / zu + v / zv
        gap = _bounds(A, b, w, lam, p)
        if gap < best:
            idle = 0 if gap < 0.5 * best else idle + 1
            best, w_best, lam_best = gap, w.copy(), lam.copy()
        else:
            idle += 1
        if best <= _ENOUGH or idle > _IDLE:
            break
        K[:] = np.dot(A * theta, A.T)
        for c in range(m):
            K[c, c] += s[c] / lam[c]
        if box:
            # The multipliers move along b @ dlam = 0, nearly; across it the matrix is singular.
            weight = np.trace(K) / np.dot(b, b)
            K += weight * np.outer(b, b)
        systems += 1
        if factorise(K, order, 0, m, L) < m:
            break
        missed = (tau if box else 1.0) * b + s - np.dot(A, w)
        if box:
            missed += weight * (1.0 - np.dot(b, lam)) * b
        off = (zu - zv - pulled) if box else np.zeros(k)
        mu = np.dot(lam, s)
        if not smooth:
            mu += np.dot(u, zu) + np.dot(v, zv)
        mu /= m if smooth else m + 2 * k
        edge = b.copy()
        if box:
            substitute(L, m, edge)
        ru, rv, rs = -u * zu, -v * zv, -lam * s
        dlam, ds, dw, dtau = lam, s, w, 0.0
        du, dv, dzu, dzv = u, v, zu, zv
        for corrected in range(2):
            if box:
                shift = (off + ru / u - rv / v) * theta
            elif not smooth:
                shift = rv / zv - ru / zu
            dlam = missed + np.dot(A, shift) + rs / lam
            substitute(L, m, dlam)
            if box:
                dtau = (1.0 - np.dot(b, lam) - np.dot(b, dlam)) / np.dot(b, edge)
                dlam += dtau * edge
            ds = (rs - s * dlam) / lam
            moved = np.dot(dlam, A)
            if box:
                dw = theta * moved - shift
                du, dv = -dw, dw
                dzu, dzv = (ru + zu * dw) / u, (rv - zv * dw) / v
            elif not smooth:
                du, dv = (ru + u * moved) / zu, (rv - v * moved) / zv
                dzu, dzv = -moved, moved
            one, two = reach(s, ds), reach(lam, dlam)
            if not smooth:
                one = min(one, reach(u, du), reach(v, dv))
                two = min(two, reach(zu, dzu), reach(zv, dzv))
            if smooth:
                one = two = min(one, two)
            if corrected:
                break
            ahead = np.dot(lam + two * dlam, s + one * ds)
            if not smooth:
                ahead += np.dot(u + one * du, zu + two * dzu) + np.dot(v + one * dv, zv + two * dzv)
            ahead /= m if smooth else m + 2 * k
            target = mu * (ahead / mu) ** 3
            rs = target - lam * s - ds * dlam
            ru, rv = target - u * zu - du * dzu, target - v * zv - dv * dzv
        one, two = min(1.0, _STEP * one), min(1.0, _STEP * two)
        s, lam = s + one * ds, lam + two * dlam
        if box:
            w, tau = w + one * dw, tau + one * dtau
        if not smooth:
            u, v, zu, zv = u + one * du, v + one * dv, zu + two * dzu, zv + two * dzv
    return w_best, lam_best, systems
