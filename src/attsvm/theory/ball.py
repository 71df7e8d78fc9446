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

# largest change of log mu at once: the predicted point then stays where Newton's method needs few
# steps
_STRIDE = 2.0
_ROUNDS = 400
_CLOSE = 1e-13  # relative distance to the radius


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
        >>> found = attsvm.soft_label_svm(np.eye(2), [[3, 1], [1, 3]])
        >>> path = ball_path(found.likelihood(), radii=[0.1, 0.2])
        >>> np.linalg.norm(path.points, axis=-1).round(6).tolist()
        [0.1, 0.2]
    """

    radii: FloatArray
    points: FloatArray
    multiplier: FloatArray
    loss: FloatArray
    gap: FloatArray


def ball_path(likelihood: Likelihood, radii: Sequence[float]) -> BallPath:
    r"""The points of least loss of every size.

    Args:
        likelihood: in coordinates of an orthonormal basis of its features, any number of instances.
        radii: positive sizes, in the order in which they are searched; increasing ones are fastest.

    Raises:
        InputError: a radius that is not positive and finite.

    Example:
        >>> import numpy as np
        >>> from attsvm.theory import ball_path
        >>> import attsvm
        >>> found = attsvm.soft_label_svm(np.eye(2), [[3, 1], [1, 3]])
        >>> path = ball_path(found.likelihood(), radii=[0.1, 0.2])
        >>> bool(path.loss[1] < path.loss[0]), bool(path.gap.max() < 1e-9)
        (True, True)
    """
    sizes = floats("radii", radii)
    if sizes.ndim != 1 or not len(sizes) or not (np.isfinite(sizes) & (sizes > 0)).all():
        raise InputError(f"radii is {radii!r}; give positive finite numbers")
    shape = likelihood.features.shape[:-3]
    c = np.zeros((*shape, likelihood.dimension))
    theta = np.log(
        np.maximum(np.linalg.norm(likelihood.curvature(c).gradient, axis=-1), 1e-300) / sizes[0]
    )
    found = []
    for R in sizes:
        c, theta, inside = _to_radius(likelihood, c, theta, float(R))
        here = likelihood.curvature(c)
        gap = np.einsum("...p,...p->...", here.gradient, c) + R * np.linalg.norm(
            here.gradient, axis=-1
        )
        found.append((c, np.where(inside, 0.0, np.exp(theta)), here.value, np.maximum(gap, 0.0)))
    points, multiplier, loss, gaps = (np.stack(column) for column in zip(*found, strict=True))
    return BallPath(sizes, points, multiplier, loss, gaps)


def _to_radius(
    likelihood: Likelihood, c: FloatArray, theta: FloatArray, R: float
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Point and logarithm of the multiplier at which the point has norm R, and where even without
    one it stays shorter.
    """
    done = np.zeros(theta.shape, dtype=np.bool_)
    inside = np.zeros(theta.shape, dtype=np.bool_)
    for _ in range(_ROUNDS):
        mu = np.exp(theta)
        best = likelihood.minimise(mu, c)
        c = best.point
        norm = np.linalg.norm(c, axis=-1)
        # dc / dtheta
        turn = -solve_scaled(best.curvature.hessian, mu[..., None], mu[..., None] * c)
        rate = np.einsum("...p,...p->...", turn, c) / np.where(norm > 0, norm, 1.0)
        inside |= (norm < R) & (rate > -_CLOSE * norm)
        done |= (np.abs(norm - R) <= _CLOSE * R) | inside
        if done.all():
            break
        stride = np.clip((R - norm) / np.where(rate < 0, rate, -1.0), -_STRIDE, _STRIDE)
        stride = np.where(done, 0.0, stride)
        theta, c = theta + stride, c + stride[..., None] * turn
    return c, theta, inside
