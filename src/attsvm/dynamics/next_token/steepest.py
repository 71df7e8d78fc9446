r"""Steepest descent of the query-key matrix in any norm, with momentum, and of its factors
:math:`W=KQ^\top`.

Steps are those of :class:`attsvm.optim.SteepestDescent` with ``dampening = momentum``. Momentum
averages gradients whose sizes may be any powers of ten; see
:mod:`attsvm.dynamics.scale_free_descent`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data import FloatArray, IntArray
from attsvm.dynamics.next_token.course import AttentionCourse
from attsvm.dynamics.next_token.problem import Problem
from attsvm.dynamics.next_token.stages import RECORDS, Records, Rule, _start
from attsvm.dynamics.scale_free_descent import Gradient, Steepest, descend
from attsvm.errors import InputError
from attsvm.geometry import Norm, as_norm


def steepest_stage(
    problem: Problem,
    norm: Norm | str,
    rule: Rule,
    steps: int,
    *,
    momentum: float = 0.0,
    init: ArrayLike | None = None,
    records: Records = RECORDS,
) -> AttentionCourse:
    r"""NSD and NMD of Fan et al. (2025):
    :math:`W_{t+1}=W_t-\eta_t\arg\max_{\|\Delta\|\le1}\langle M_t,\Delta\rangle`.

    :math:`M_t=\beta M_{t-1}+(1-\beta)\nabla L(W_t)`, :math:`M_{-1}=0`.

    Args:
        problem: see :meth:`Problem.of`.
        norm: the geometry, such as ``Spectral()`` or its name, ``spec``.
        rule: normalised, constant or decaying.
        steps: how many.
        momentum: :math:`\beta`, from 0 to below 1.
        init: ``(d, d)`` or ``(runs, d, d)``, zero when left out.
        records: when to look.

    Raises:
        InputError: a rule that is not normalised, a momentum out of range, or an init of another
            shape.
    """
    runs, _, d = problem.embeddings.shape
    W = _start("init", init, runs, (d, d))

    def gradient(W: FloatArray) -> tuple[FloatArray, FloatArray]:
        return problem.gradient(W)

    marks, looks, stopped = _descend(gradient, W, norm, rule, steps, momentum, records)
    return AttentionCourse(marks, looks, stopped, problem=problem)


def factored_stage(
    problem: Problem,
    rule: Rule,
    steps: int,
    *,
    init: tuple[ArrayLike, ArrayLike],
    norm: Norm | str | None = None,
    momentum: float = 0.0,
    records: Records = RECORDS,
) -> AttentionCourse:
    r"""Normalised descent on the pair :math:`(K,Q)`, :math:`W=KQ^\top`, with one norm for the pair
    stacked as ``(2d, m)``.

    Args:
        problem: see :meth:`Problem.of`.
        rule: normalised, constant or decaying.
        steps: how many.
        init: K and Q, ``(d, m)`` or ``(runs, d, m)`` each. Zero is a saddle: the gradient of either
            factor is a multiple of the other.
        norm: of the stacked pair, Frobenius when left out.
        momentum: see :func:`steepest_stage`.
        records: when to look.

    Returns:
        The course of W; ``factors`` holds those of K and Q.

    Raises:
        InputError: factors of other shapes, or the errors of :func:`steepest_stage`.
    """
    runs, _, d = problem.embeddings.shape
    m = np.asarray(init[0]).shape[-1]
    K, Q = (_start(f"init[{k}]", start, runs, (d, m)) for k, start in enumerate(init))

    def gradient(pair: FloatArray) -> tuple[FloatArray, FloatArray]:
        K, Q = pair[:, :d], pair[:, d:]
        G, log_scale = problem.gradient(K @ Q.mT)
        return np.concatenate([G @ Q, G.mT @ K], axis=-2), log_scale

    marks, looks, stopped = _descend(
        gradient,
        np.concatenate([K, Q], axis=-2),
        norm,
        rule,
        steps,
        momentum,
        records,
    )
    K, Q = looks[..., :d, :], looks[..., d:, :]
    return AttentionCourse(marks, K @ Q.mT, stopped, problem=problem, factors={"K": K, "Q": Q})


def _descend(
    gradient: Gradient,
    W: FloatArray,
    norm: Norm | str | None,
    rule: Rule,
    steps: int,
    momentum: float,
    records: Records,
) -> tuple[IntArray, FloatArray, IntArray]:
    if not rule.normalize or rule.polyak is not None:
        raise InputError(
            "steepest descent in a norm takes normalised steps here; use a Rule with normalize=True"
            " and no polyak"
        )
    if not 0.0 <= momentum < 1.0:
        raise InputError(f"momentum is {momentum}; give 0 <= momentum < 1")
    rates, marks = rule.rates(len(W)), records.steps(steps)
    looks, stopped = descend(
        gradient,
        W,
        Steepest(as_norm(norm), momentum),
        lambda t: rates / (t + 1.0) ** rule.decay,
        marks,
    )
    return marks, looks, stopped
