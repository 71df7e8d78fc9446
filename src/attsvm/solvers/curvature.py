r"""Generalised Hessian of the Moreau envelope of a singular-value function, written on rows.

The proximal map :math:`X=U\operatorname{diag}(s)V^\top\mapsto U\operatorname{diag}(g)V^\top` has,
in the coordinates
:math:`\tilde H=U^\top HV`, the derivative (Lewis and Sendov, *Nonsmooth analysis of singular values
II*, 2005)

.. math:: \tfrac12\Omega^s_{ij}(\tilde H_{ij}+\tilde H_{ji})+\tfrac12\Omega^a_{ij}(\tilde
    H_{ij}-\tilde H_{ji}),\qquad
          \Omega^s_{ij}=\frac{g_i-g_j}{s_i-s_j},\quad \Omega^a_{ij}=\frac{g_i+g_j}{s_i+s_j},

with :math:`g_i/s_i` where an index has no mirror. For rows :math:`H=\delta_cz^\top` the quadratic
form is a sum of squares of scaled sums and differences of :math:`\tilde\delta_i\tilde z_j` and
:math:`\tilde\delta_j\tilde z_i`: the *features* below. With a threshold only pairs with one index
above it appear, :math:`r(d_x+d_z-r)` features instead of :math:`d_xd_z`.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.solvers.energies import Energy, Largest, Proximal
from attsvm.solvers.programme import Programme

_LARGEST = 1 << 25  # entries of a matrix of features


def curvature(
    p: Programme,
    rows: IntArray,
    left: FloatArray,
    s: FloatArray,
    right: FloatArray,
    energy: Energy,
    prox: Proximal,
) -> FloatArray | None:
    r""":math:`(\langle a_c, \mathcal D a_{c'}\rangle)_{c,c'}` for these rows, or ``None`` when it
    is too large to form.

    Args:
        p: the programme.
        rows: ``(k,)`` positions.
        left: ``(d_x, d_x)`` left singular vectors of the argument of the proximal map.
        s: ``(q,)`` its singular values.
        right: ``(d_z, d_z)`` right singular vectors, as rows.
        energy: of the singular values.
        prox: its proximal map at ``s``, as one row.
    """
    above = int((s > prox.threshold).sum())
    smooth, capped = energy.degree != 1.0, isinstance(energy, Largest)
    width = p.dof if smooth else above * (len(left) + len(right))
    if len(rows) * (width + len(rows)) > _LARGEST:
        return None
    D, Z = p.D[rows] @ left, p.Z[p.sequence[rows]] @ right.T
    if smooth:
        features = _smooth_features(D, Z, s, prox)
    else:
        features = _threshold_features(D, Z, s, prox.threshold, above, capped)
    form: FloatArray = features @ features.T
    # The cap of the spectral norm is the identity less a soft threshold.
    return p.gram(rows) - form if capped else form


def _threshold_features(
    D: FloatArray, Z: FloatArray, s: FloatArray, level: float, r: int, centred: bool
) -> FloatArray:
    """``(k, features)`` of the soft threshold at ``level``; ``centred``: the level moves so that
    the sum above it stays.
    """
    k, q = len(D), len(s)
    top, rest = s[:r], s[r:]
    P = D[:, :r, None] * Z[:, None, :r]
    i, j = np.triu_indices(r, 1)
    diagonal = np.einsum("kii->ki", P)
    parts = [diagonal - diagonal.mean(axis=1, keepdims=True) if centred and r else diagonal]
    upper, lower = P[:, i, j], P[:, j, i]
    parts.append((upper + lower) * np.sqrt(0.5))
    parts.append(
        (upper - lower) * np.sqrt(0.5 * (top[i] + top[j] - 2.0 * level) / (top[i] + top[j]))
    )
    gain = (top - level)[:, None]
    upper, lower = D[:, :r, None] * Z[:, None, r:q], Z[:, :r, None] * D[:, None, r:q]
    parts.append(((upper + lower) * np.sqrt(0.5 * gain / (top[:, None] - rest))).reshape(k, -1))
    parts.append(((upper - lower) * np.sqrt(0.5 * gain / (top[:, None] + rest))).reshape(k, -1))
    alone = np.sqrt(gain / top[:, None])
    parts.append((D[:, :r, None] * Z[:, None, q:] * alone).reshape(k, -1))
    parts.append((Z[:, :r, None] * D[:, None, q:] * alone).reshape(k, -1))
    return np.hstack(parts)


def _smooth_features(D: FloatArray, Z: FloatArray, s: FloatArray, prox: Proximal) -> FloatArray:
    """``(k, d_x d_z)`` features of a proximal map with values and rates at every singular value."""
    k, q, g, rates = len(D), len(s), prox.W[0], prox.rate[0]
    i, j = np.triu_indices(q, 1)
    apart, total = s[i] - s[j], s[i] + s[j]
    close = apart <= 1e-8 * total
    mirrored = np.where(
        close, 0.5 * (rates[i] + rates[j]), (g[i] - g[j]) / np.where(close, 1.0, apart)
    )
    turned = np.where(total > 0.0, (g[i] + g[j]) / np.where(total > 0.0, total, 1.0), rates[i])
    alone = np.sqrt(np.where(s > 0.0, g / np.where(s > 0.0, s, 1.0), rates))
    upper, lower = D[:, i] * Z[:, j], D[:, j] * Z[:, i]
    return np.hstack(
        [
            D[:, :q] * Z[:, :q] * np.sqrt(rates),
            (upper + lower) * np.sqrt(0.5 * np.maximum(mirrored, 0.0)),
            (upper - lower) * np.sqrt(0.5 * turned),
            (D[:, :q, None] * Z[:, None, q:] * alone[:, None]).reshape(k, -1),
            (Z[:, :q, None] * D[:, None, q:] * alone[:, None]).reshape(k, -1),
        ]
    )
