r"""Small programmes of the nuclear and the spectral norm in compiled code: interior points on
positive semidefinite matrices of the size of both sides of the weights together.

Both norms are the linear matrix inequality

.. math:: S=\begin{pmatrix}I&G\\G^\top&I\end{pmatrix}\succeq0 \iff \|G\|\le1 .

* Nuclear norm: :math:`\max_{\lambda\ge0} b^\top\lambda` with :math:`G=A^\top\lambda`; the weights
  are :math:`-2X_{12}` of the multiplier :math:`X\succeq0` of the inequality.
* Spectral norm: the margin :math:`\tau` of :math:`AW\ge\tau b` is maximised over :math:`G=W`; here
  the multipliers of the rows are those of the solution.

So :math:`f^\top y` is maximised over :math:`u=By\ge0` and :math:`S\succeq0`, where :math:`G` is
linear in :math:`y`, with multipliers :math:`x\ge0` and :math:`X\succeq0`. Newton steps are
Mehrotra's with the direction of Helmberg, Rendl, Vanderbei and Wolkowicz (*An interior-point method
for semidefinite programming*, 1996),
:math:`dX=\mu S^{-1}-X-\operatorname{sym}(X\,dS\,S^{-1})`, reduced to :math:`y`. Rows are products
of a difference and a query, which makes the entries of that system sums of four products.

The points are certified by the caller; what does not converge is left to the other methods.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.jit import summing_kernel
from attsvm.solvers.small.small_algebra import length, margins, pull, substitute

_MOST = 40  # iterations
_ENOUGH = 1e-10  # relative distance of the two objectives
_STEP = 0.98  # share of the way to the boundary
_SHORT, _STUCK = 0.1, 3  # steps that gain little, and how many of them end the iteration
_LEAST_TARGET = 1e-6  # share of the mean product that is aimed at
_HALVINGS = 6  # of the interval in which the boundary lies
_FLAT = 4e-15  # pivots of directions of a face on which nothing depends, over the largest entry
_ASIDE, _CENTRE = 0.3, 1.1  # how far the first point is moved inside
_LOW = 0.1


@summing_kernel
def reach(x: FloatArray, dx: FloatArray) -> float:
    """The largest step, at most 1, that leaves positive numbers non-negative."""
    t = 1.0
    for i in range(len(x)):
        if dx[i] < 0.0 and -x[i] > t * dx[i]:
            t = -x[i] / dx[i]
    return t


@summing_kernel
def _factor(H: FloatArray, least: float, L: FloatArray) -> int:
    """The Cholesky factor of ``H`` with inverse pivots on its diagonal; how many pivots were not
    above ``least``, each of which is left out.
    """
    flat = 0
    for i in range(len(H)):
        mine, row = L[i], H[i]
        left = row[i]
        for j in range(i):
            other, total = L[j], row[j]
            for k in range(j):
                total -= mine[k] * other[k]
            total *= other[j]
            mine[j] = total
            left -= total * total
        inside = left > least
        mine[i] = 1.0 / math.sqrt(left) if inside else 0.0
        flat += 0 if inside else 1
    return flat


@summing_kernel
def _inverse(S: FloatArray, L: FloatArray, H: FloatArray, Y: FloatArray) -> bool:
    """``Y = S^-1``, False where ``S`` is not positive definite."""
    if _factor(S, 0.0, L) > 0:
        return False
    for i in range(len(S)):
        for j in range(len(S)):
            total = 1.0 if i == j else 0.0
            for k in range(j, i):
                total -= L[i, k] * H[k, j]
            H[i, j] = total * L[i, i] if j <= i else 0.0
    np.dot(H.T, H, Y)
    return True


@summing_kernel
def _room(X: FloatArray, dX: FloatArray, most: float, H: FloatArray, L: FloatArray) -> float:
    """Nearly the largest step, at most ``most``, that leaves a matrix positive definite."""
    low, high, t = 0.0, most, most
    for _ in range(_HALVINGS + 1):
        for i in range(len(X)):
            for j in range(i + 1):
                H[i, j] = X[i, j] + t * dX[i, j]
        if _factor(H, 0.0, L) == 0:
            low = t
            if t == most:
                break
        else:
            high = t
        t = 0.5 * (low + high)
    return low


@summing_kernel
def _set_off(G: FloatArray, S: FloatArray) -> None:
    """``G`` and its transpose beside the diagonal blocks of ``S``."""
    r = len(G)
    for a in range(r):
        for e in range(G.shape[1]):
            S[a, r + e] = G[a, e]
            S[r + e, a] = G[a, e]


@summing_kernel
def _forth(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    b: FloatArray,
    y: FloatArray,
    moved: FloatArray,
    u: FloatArray,
    G: FloatArray,
) -> None:
    """``u = B y`` and ``G y``: of multipliers (nuclear norm), or of weights and a margin."""
    if len(y) == len(b):
        for c in range(len(b)):
            u[c] = y[c]
        G[:] = 0.0
        pull(D, Z, offsets, y, moved, G)
        return
    for a in range(len(G)):
        for e in range(G.shape[1]):
            G[a, e] = y[a * G.shape[1] + e]
    margins(D, Z, offsets, G, moved, u)
    for c in range(len(b)):
        u[c] -= y[-1] * b[c]


@summing_kernel
def _back(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    b: FloatArray,
    x: FloatArray,
    X: FloatArray,
    moved: FloatArray,
    P: FloatArray,
    y: FloatArray,
) -> None:
    """``y = B^T x + 2 G^T X_12``."""
    r = len(P)
    for a in range(r):
        for e in range(P.shape[1]):
            P[a, e] = 2.0 * X[a, r + e]
    if len(y) == len(b):
        margins(D, Z, offsets, P, moved, y)
        for c in range(len(b)):
            y[c] += x[c]
        return
    pull(D, Z, offsets, x, moved, P)
    for a in range(r):
        for e in range(P.shape[1]):
            y[a * P.shape[1] + e] = P[a, e]
    total = 0.0
    for c in range(len(b)):
        total -= b[c] * x[c]
    y[-1] = total


@summing_kernel
def _along_rows(
    D: FloatArray, Z: FloatArray, offsets: IntArray, X: FloatArray, Y: FloatArray, M: FloatArray
) -> None:
    """The form of ``2 sym(X dS Y)`` on the rows ``D_c Z_i^T``: the lower triangle of ``M``."""
    r, n = D.shape[1], len(Z)
    K, Q = np.empty((2, len(D), r)), np.empty((2, n, n))
    R, moved = np.empty((2, len(D), n)), np.empty((2, n, r))
    for kind in range(2):
        one, two = (X, Y) if kind == 0 else (Y, X)
        for i in range(n):
            for j in range(n):
                total = 0.0
                for e in range(Z.shape[1]):
                    for g in range(Z.shape[1]):
                        total += Z[i, e] * two[r + e, r + g] * Z[j, g]
                Q[kind, i, j] = total
            for a in range(r):
                total = 0.0
                for e in range(Z.shape[1]):
                    total += one[a, r + e] * Z[i, e]
                moved[kind, i, a] = total
        for c in range(len(D)):
            for a in range(r):
                total = 0.0
                for g in range(r):
                    total += one[a, g] * D[c, g]
                K[kind, c, a] = total
            for i in range(n):
                total = 0.0
                for a in range(r):
                    total += D[c, a] * moved[kind, i, a]
                R[kind, c, i] = total
    for i in range(n):
        for c in range(offsets[i], offsets[i + 1]):
            for j in range(i + 1):
                for g in range(offsets[j], min(offsets[j + 1], c + 1)):
                    first, second = 0.0, 0.0
                    for a in range(r):
                        first += K[0, c, a] * D[g, a]
                        second += K[1, c, a] * D[g, a]
                    M[c, g] = (
                        first * Q[0, i, j]
                        + second * Q[1, i, j]
                        + R[0, c, j] * R[1, g, i]
                        + R[1, c, j] * R[0, g, i]
                    )


@summing_kernel
def _along_weights(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    b: FloatArray,
    theta: FloatArray,
    X: FloatArray,
    Y: FloatArray,
    M: FloatArray,
) -> None:
    """The same form on all weights, with ``B^T diag(theta) B`` and the margin as last unknown."""
    r, width = D.shape[1], Z.shape[1]
    T = np.zeros((len(Z), r, r))
    M[-1] = 0.0
    for i in range(len(Z)):
        for c in range(offsets[i], offsets[i + 1]):
            M[-1, -1] += theta[c] * b[c] * b[c]
            for a in range(r):
                share = theta[c] * D[c, a]
                for g in range(a + 1):
                    T[i, a, g] += share * D[c, g]
                for e in range(width):
                    M[-1, a * width + e] -= share * b[c] * Z[i, e]
    for a in range(r):
        for e in range(width):
            row = M[a * width + e]
            for g in range(a + 1):
                for h in range(width):
                    row[g * width + h] = (
                        X[a, g] * Y[r + e, r + h]
                        + Y[a, g] * X[r + e, r + h]
                        + X[a, r + h] * Y[g, r + e]
                        + Y[a, r + h] * X[g, r + e]
                    )
                for i in range(len(Z)):
                    share = T[i, a, g] * Z[i, e]
                    for h in range(width):
                        row[g * width + h] += share * Z[i, h]


@summing_kernel
def _first(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    b: FloatArray,
    W: FloatArray,
    dual: FloatArray,
    moved: FloatArray,
    y: FloatArray,
    u: FloatArray,
    x: FloatArray,
    X: FloatArray,
) -> None:
    """A point inside from weights that meet the margins and their multipliers in another norm."""
    m, nuclear = len(b), len(y) == len(b)
    G, values, lam = np.zeros(W.shape), np.empty(m), dual + _ASIDE * dual.mean()
    margins(D, Z, offsets, W, moved, values)
    pull(D, Z, offsets, lam, moved, G)
    low = _LOW * b.max()
    if nuclear:
        t, stretch = (1.0 - _LOW) / length(G), 1.0 + _ASIDE
        y[:] = t * lam
        u[:] = y
        for c in range(m):
            x[c] = max(stretch * values[c] - b[c], low)
        outer = stretch * W
    else:
        t, tau = (1.0 - _LOW) / length(W), np.inf
        for c in range(m):
            if b[c] > 0.0:
                tau = min(tau, (1.0 - _ASIDE) * t * values[c] / b[c])
        y[:-1] = (t * W).reshape(-1)
        y[-1] = tau
        for c in range(m):
            u[c] = max(t * values[c] - tau * b[c], low * tau)
        x[:] = lam / np.dot(b, lam)
        outer = G / np.dot(b, lam)
    X[:] = 0.0
    _set_off(-0.5 * outer, X)
    for i in range(len(X)):
        X[i, i] = 0.5 * _CENTRE * length(outer)


@summing_kernel
def spectral_point(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    b: FloatArray,
    W: FloatArray,
    dual: FloatArray,
    nuclear: bool,
) -> tuple[FloatArray, FloatArray, int]:
    """Weights and multipliers, both at the scale of the solution, and the number of systems solved.

    Args:
        D: ``(m, r_x)`` differences, of sizes near one.
        Z: ``(n, r_z)`` queries, likewise.
        offsets: ``(n + 1,)`` where the rows of each query begin.
        b: ``(m,)`` right-hand sides, none negative and one positive.
        W: ``(r_x, r_z)`` weights that meet the margins: those of the Frobenius norm.
        dual: ``(m,)`` their multipliers.
        nuclear: the nuclear norm, else the spectral norm.
    """
    m, r = D.shape
    q, k = r + Z.shape[1], m if nuclear else W.size + 1
    matrices, vectors = np.zeros((10, q, q)), np.empty((7, m))
    X, S, Y, C, E = matrices[0], matrices[1], matrices[2], matrices[3], matrices[4]
    T, H, L, dX, dS = matrices[5], matrices[6], matrices[7], matrices[8], matrices[9]
    u, x, du, dx = vectors[0], vectors[1], vectors[2], vectors[3]
    ru, rx, theta = vectors[4], vectors[5], vectors[6]
    G, P = np.empty(W.shape), np.empty(W.shape)
    M, factor, moved = np.empty((k, k)), np.empty((k, k)), np.empty(r)
    y, f, rd, rhs = np.empty(k), np.zeros(k), np.empty(k), np.empty(k)
    if nuclear:
        f[:] = b
    else:
        f[-1] = 1.0
    _first(D, Z, offsets, b, W, dual, moved, y, u, x, X)
    systems, stuck = 0, 0
    for _ in range(_MOST):
        _forth(D, Z, offsets, b, y, moved, ru, G)
        for i in range(q):
            S[i, i] = 1.0
        _set_off(G, S)
        total, whole = np.dot(x, u), 0.0
        for i in range(q):
            whole += X[i, i]
            total += np.dot(X[i], S[i])
        if total <= _ENOUGH * whole or stuck == _STUCK or not _inverse(S, L, H, Y):
            break
        _back(D, Z, offsets, b, x, X, moved, P, rd)
        for c in range(m):
            ru[c] -= u[c]
            theta[c] = x[c] / u[c]
        if nuclear:
            _along_rows(D, Z, offsets, X, Y, M)
            for c in range(m):
                M[c, c] += theta[c]
        else:
            _along_weights(D, Z, offsets, b, theta, X, Y, M)
        top = 0.0
        for i in range(k):
            top = max(top, M[i, i])
        _factor(M, 0.0 if nuclear else _FLAT * top, factor)
        systems += 1
        mean, target, one, two = total / (m + q), 0.0, 0.0, 0.0
        for corrected in range(2):
            # E and du * dx are the products of the steps that were tried first
            for c in range(m):
                rx[c] = (target - (du[c] * dx[c] if corrected else 0.0)) / u[c] - x[c]
                rx[c] -= theta[c] * ru[c]
            for i in range(q):
                for j in range(q):
                    C[i, j] = target * Y[i, j] - X[i, j] - (E[i, j] if corrected else 0.0)
            _back(D, Z, offsets, b, rx, C, moved, P, rhs)
            for i in range(k):
                rhs[i] += f[i] + rd[i]
            substitute(factor, k, rhs)
            _forth(D, Z, offsets, b, rhs, moved, du, P)
            for c in range(m):
                dx[c] = rx[c] - theta[c] * du[c]
                du[c] += ru[c]
            _set_off(P, dS)
            np.dot(X, dS, H)
            np.dot(H, Y, T)
            for i in range(q):
                for j in range(q):
                    dX[i, j] = C[i, j] - 0.5 * (T[i, j] + T[j, i])
            one = _room(S, dS, reach(u, du), H, L)
            two = _room(X, dX, reach(x, dx), H, L)
            if corrected:
                break
            ahead = 0.0
            for c in range(m):
                ahead += (x[c] + two * dx[c]) * (u[c] + one * du[c])
            for i in range(q):
                for j in range(q):
                    ahead += (X[i, j] + two * dX[i, j]) * (S[i, j] + one * dS[i, j])
            target = mean * max(_LEAST_TARGET, (ahead / total) ** 3)
            np.dot(dX, dS, H)
            np.dot(H, Y, T)
            for i in range(q):
                for j in range(q):
                    E[i, j] = 0.5 * (T[i, j] + T[j, i])
        one, two = _STEP * one, _STEP * two
        stuck = _STUCK if max(one, two) < _SHORT else stuck + 1 if min(one, two) < _SHORT else 0
        for i in range(k):
            y[i] += one * rhs[i]
        for c in range(m):
            u[c] += one * du[c]
            x[c] += two * dx[c]
        for i in range(q):
            for j in range(q):
                X[i, j] += two * dX[i, j]
    if nuclear:
        for a in range(r):
            for e in range(Z.shape[1]):
                P[a, e] = -2.0 * X[a, r + e]
        return P, y, systems
    return G / y[-1], x / y[-1], systems
