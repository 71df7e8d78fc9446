r"""Regularisation paths of the log loss, :math:`\bar W(R)=\arg\min_{\|W\|_F\le R}L(W)`, many
instances at once, with a proof each.

The loss is convex, so there is one such point, and :math:`\nabla L(\bar W)=-\mu\bar W` with one
multiplier :math:`\mu\ge0`. Along
:math:`\theta=\log\mu` the minimiser of :math:`L+\tfrac\mu2\|W\|^2` moves at about the norm of the
max-margin weights per unit; Newton's method on :math:`\theta` meets every radius. Regularisation
path of Li et al., *Mechanics of Next Token Prediction with Self-Attention* (2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import BoolArray, FloatArray, floats
from attsvm.theory.likelihood import Likelihood, solve_scaled


@dataclass(frozen=True)
class BallOptions:
    """Numbers of :func:`ball_path`."""

    stride: float = 2.0  # largest change of log mu: few Newton steps from the predicted point
    rounds: int = 400  # of a radius; untuned, ten suffice between neighbours
    tolerance: float = 1e-13  # relative distance to the radius: rounding of a norm


OPTIONS = BallOptions()


@dataclass(frozen=True, eq=False, repr=False)
class BallPath(Compact):
    r"""Best points of every radius.

    Attributes:
        radii: ``(k,)``.
        points: ``(k, ..., p)``, coordinates of the weights.
        multiplier: ``(k, ...)``, :math:`\mu`; 0 where the loss has a minimiser inside the ball.
        loss: ``(k, ...)``.
        gap: ``(k, ...)``, the Frank-Wolfe gap :math:`\langle\nabla L,\bar W\rangle+R\|\nabla L\|`,
            an upper bound on
            :math:`L(\bar W)-\min_{\|W\|\le R}L`.

    Example:
        >>> import numpy as np
        >>> from attsvm.theory import ball_path
        >>> import attsvm
        >>> svm = attsvm.soft_label_svm(np.eye(2), [[3, 1], [1, 3]])
        >>> path = ball_path(svm.likelihood(), radii=[0.1, 0.2])
        >>> np.linalg.norm(path.points, axis=-1).round(6).tolist()
        [0.1, 0.2]
    """

    radii: FloatArray
    points: FloatArray
    multiplier: FloatArray
    loss: FloatArray
    gap: FloatArray


def ball_path(
    likelihood: Likelihood, radii: Sequence[float], options: BallOptions = OPTIONS
) -> BallPath:
    r"""The points of least loss of every size.

    Args:
        likelihood: in coordinates of an orthonormal basis of its features, any number of instances.
        radii: positive sizes, in the order in which they are searched; increasing ones are fastest.
        options: steps and tolerance of the search.

    Raises:
        InputError: a radius that is not positive and finite.

    Example:
        >>> import numpy as np
        >>> from attsvm.theory import ball_path
        >>> import attsvm
        >>> svm = attsvm.soft_label_svm(np.eye(2), [[3, 1], [1, 3]])
        >>> path = ball_path(svm.likelihood(), radii=[0.1, 0.2])
        >>> bool(path.loss[1] < path.loss[0]), bool(path.gap.max() < 1e-9)
        (True, True)
    """
    sizes = check_radii(radii)
    shape = likelihood.features.shape[:-3]
    c = np.zeros((*shape, likelihood.dimension))
    theta = np.log(
        np.maximum(np.linalg.norm(likelihood.curvature(c).gradient, axis=-1), 1e-300) / sizes[0]
    )
    records = []
    for R in sizes:
        c, theta, inside = _to_radius(likelihood, c, theta, float(R), options)
        curvature = likelihood.curvature(c)
        gap = np.einsum("...p,...p->...", curvature.gradient, c) + R * np.linalg.norm(
            curvature.gradient, axis=-1
        )
        records.append(
            (c, np.where(inside, 0.0, np.exp(theta)), curvature.value, np.maximum(gap, 0.0))
        )
    points, multiplier, loss, gaps = (np.stack(column) for column in zip(*records, strict=True))
    return BallPath(sizes, points, multiplier, loss, gaps)


def check_radii(radii: Sequence[float]) -> FloatArray:
    """Radii of a path as an array ``(k,)``, all positive and finite; others are refused."""
    sizes = floats("radii", radii)
    if sizes.ndim != 1 or not len(sizes) or not (np.isfinite(sizes) & (sizes > 0)).all():
        raise InputError(f"radii is {radii!r}; give positive finite numbers")
    return sizes


def _to_radius(
    likelihood: Likelihood, c: FloatArray, theta: FloatArray, R: float, options: BallOptions
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Point ``(..., p)`` and logarithm of the multiplier ``(...)`` at which the point has norm R,
    and whether it stays shorter even without one.

    1. Minimise the loss with the ridge mu, from the predicted point.
    2. Differentiate the minimiser along theta = log mu: (H + mu I) dc/dtheta = -mu c.
    3. Finish instances whose norm is R, or no longer grows.
    4. Move theta by a Newton step on the norm, and the point along its derivative.
    """
    done = np.zeros(theta.shape, dtype=np.bool_)
    inside = np.zeros(theta.shape, dtype=np.bool_)
    for _ in range(options.rounds):
        # 1. the minimiser
        mu = np.exp(theta)
        best = likelihood.minimise(mu, c)
        c = best.point
        norm = np.linalg.norm(c, axis=-1)
        # 2. its derivative
        turn = -solve_scaled(best.curvature.hessian, mu[..., None], mu[..., None] * c)
        rate = np.einsum("...p,...p->...", turn, c) / np.where(norm > 0, norm, 1.0)
        # 3. finished instances
        inside |= (norm < R) & (rate > -options.tolerance * norm)
        done |= (np.abs(norm - R) <= options.tolerance * R) | inside
        if done.all():
            break
        # 4. a Newton step, no longer than the stride
        stride = (R - norm) / np.where(rate < 0, rate, -1.0)
        stride = np.clip(stride, -options.stride, options.stride)
        stride = np.where(done, 0.0, stride)
        theta, c = theta + stride, c + stride[..., None] * turn
    return c, theta, inside
