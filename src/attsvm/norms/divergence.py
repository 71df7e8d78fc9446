r"""The Bregman divergence of :math:`\frac1p\|W\|_p^p`, to the last digits."""

from __future__ import annotations

import numpy as np

from attsvm.norms.array_api import Array, divisor, namespace


def bregman(V: Array, W: Array, p: float) -> Array:
    """Divergences of matrices on the last two axes; see :meth:`attsvm.PowerPotential.bregman`."""
    xp = namespace(V, W)
    larger = xp.maximum(xp.abs(V), xp.abs(W))
    scale = xp.max(larger, axis=(-2, -1))
    safe = divisor(scale)[..., None, None]
    with np.errstate(all="ignore"):
        terms = (larger / safe) ** p * _unit_divergence(V, W, larger, p)
        return scale**p * xp.sum(terms, axis=(-2, -1)) / p


def _unit_divergence(V: Array, W: Array, larger: Array, p: float) -> Array:
    r""":math:`p\,D(v,w)/\max(|v|,|w|)^p`, entry by entry, each region by the form that does not
    cancel there.

    1. The ratio of the smaller to the larger entry, and one minus it.
    2. The two closed forms, for signs that agree and that differ.
    3. A Taylor series of 28 terms where the entries are within a quarter of each other over p.
    """
    xp = namespace(V, W)
    one = xp.ones_like(larger)
    # 1. the ratio
    grown = xp.abs(V) > xp.abs(W)
    ratio = xp.where(grown, W, V) / xp.where(larger > 0, larger, one)
    # in [-1, 1], negative where the signs differ
    ratio = xp.where(xp.where(grown, V, W) < 0, -ratio, ratio)
    size = xp.abs(ratio)
    below = (larger - xp.minimum(xp.abs(V), xp.abs(W))) / xp.where(larger > 0, larger, one)
    logarithm = xp.where(below < 0.5, xp.log1p(-below), xp.log(size))
    # 2. closed forms
    less = xp.expm1((p - 1.0) * logarithm)  # size^(p-1) - 1
    same = xp.where(grown, -less - (p - 1.0) * below * (1 + less), size * less + (p - 1.0) * below)
    opposite = xp.where(
        grown,
        1 + (p - 1.0) * size * (1 + less) + p * (1 + less),
        size * (1 + less) + (p - 1.0) + p * size,
    )
    divergence = xp.where(ratio < 0, opposite, same)

    # 3. the series, by Horner's scheme
    change = (V - W) / xp.where(W != 0, W, one)
    close = (xp.abs(change) * max(1.0, p) <= 0.25) & (W != 0)
    change = xp.where(close, change, 0 * one)
    series = one
    for k in range(30, 2, -1):
        series = 1 + series * change * ((p - k + 1.0) / k)
    near = p * (p - 1.0) / 2 * change * change * series
    near = near * xp.where(grown, xp.exp(p * logarithm), one)
    divergence = xp.where(close, near, divergence)
    return xp.where(larger > 0, xp.where(divergence > 0, divergence, 0 * one), 0 * one)
