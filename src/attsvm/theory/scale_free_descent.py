r"""Descent along directions that do not see the size of a gradient: steepest descent in a norm, and
Adam without its constant.

A gradient comes as ``(G, log_scale)`` per run and means :math:`e^{\text{log\_scale}}G`. Averages of
past gradients carry such a logarithm too, so that steps keep their direction when gradients are far
below the smallest float.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.norms import Norm

Gradient = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
Direction = Callable[[FloatArray, FloatArray], FloatArray]
"""Direction ``(runs, m, n)`` that is subtracted from the weights, times the step, from gradients of
that shape and the logarithms ``(runs,)`` of their factors. It remembers past gradients, so it
serves one training.
"""


class Average:
    r""":math:`M_t=\beta M_{t-1}+(1-\beta)G_t`, :math:`M_{-1}=0`, as ``value`` ``(runs, m, n)``
    times :math:`e^{\text{log}}`.
    """

    def __init__(self, beta: float) -> None:
        if not 0.0 <= beta < 1.0:
            raise InputError(f"the weight of the past is {beta}; give a number from 0 to below 1")
        self.value, self.log = np.zeros(()), np.array(-np.inf)
        self._shares = (np.log(beta) if beta else -np.inf, np.log1p(-beta))

    def add(self, G: FloatArray, log_scale: FloatArray) -> None:
        """Take in the next gradients. Zero gradients have a logarithm of minus infinity, or none
        that matters.
        """
        if self._shares[0] == -np.inf:
            self.value, self.log = G, log_scale
            return
        past, now = self.log + self._shares[0], log_scale + self._shares[1]
        self.log = np.maximum(past, now)
        base = np.where(np.isfinite(self.log), self.log, 0.0)
        self.value = (
            np.exp(past - base)[..., None, None] * self.value
            + np.exp(now - base)[..., None, None] * G
        )


class Steepest:
    r"""NSD and, with momentum, NMD of Fan, Schmidt and Thrampoulidis (2025):
    :math:`\arg\max_{\|D\|\le1}\langle M_t,D\rangle`.

    Args:
        norm: the geometry.
        momentum: :math:`\beta` of the :class:`Average`, 0 for the gradient itself.
    """

    def __init__(self, norm: Norm, momentum: float = 0.0) -> None:
        self.norm = norm
        self._average = Average(momentum)

    def __call__(self, G: FloatArray, log_scale: FloatArray) -> FloatArray:
        """See :data:`Direction`; zero where the average is."""
        self._average.add(G, log_scale)
        return self.norm.steepest(self._average.value)


class Adam:
    r"""Adam without a stability constant: :math:`\hat m_t/\sqrt{\hat v_t}`, entry by entry, 0 where
    all gradients were.

    Its steps see no factor of the loss, and their entries are of order one: a geometry close to the
    maximum norm.

    Args:
        betas: weights of the past of both averages.
    """

    def __init__(self, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self._betas, self._step = betas, 0
        self._first, self._second = Average(betas[0]), Average(betas[1])

    def __call__(self, G: FloatArray, log_scale: FloatArray) -> FloatArray:
        """See :data:`Direction`."""
        self._first.add(G, log_scale)
        self._second.add(G**2, 2.0 * log_scale)
        self._step += 1
        first, second = (1.0 - beta**self._step for beta in self._betas)
        with np.errstate(invalid="ignore"):
            ratio = np.exp(self._first.log - 0.5 * self._second.log) * np.sqrt(second) / first
        size = np.sqrt(self._second.value)
        safe = np.where(size > 0.0, size, 1.0)
        return np.where(size > 0.0, ratio[..., None, None] * self._first.value / safe, 0.0)


def descend_scale_free(
    gradient: Gradient,
    start: FloatArray,
    direction: Direction,
    rate: Callable[[int], FloatArray | float],
    marks: IntArray,
) -> tuple[FloatArray, IntArray]:
    """``W -= rate(t) * direction(gradient(W))`` from step 0 to the last mark.

    Args:
        gradient: from weights ``(runs, m, n)`` to gradients and the logarithms ``(runs,)`` of their
            factors.
        start: ``(runs, m, n)``.
        direction: a fresh one.
        rate: step length at step t, one number or ``(runs,)``.
        marks: increasing steps from 0 on, at which the weights are kept.

    Returns:
        weights at the marks ``(R, runs, m, n)``, and the step ``(runs,)`` at which the direction
        was exactly zero, -1 if it never was.
    """
    W = np.array(start, dtype=np.float64)
    recorded = np.zeros((len(marks), *W.shape))
    stopped = np.full(len(W), -1, dtype=np.int64)
    for k, (here, there) in enumerate(zip(marks, [*marks[1:], marks[-1]], strict=True)):
        recorded[k] = W
        for t in range(int(here), int(there)):
            D = direction(*gradient(W))
            stopped[(stopped < 0) & ~D.any(axis=(-2, -1))] = t
            W -= np.asarray(rate(t))[..., None, None] * D
    return recorded, stopped
