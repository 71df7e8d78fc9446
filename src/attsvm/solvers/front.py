r"""The front door: one call for every programme, norm and number of instances."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Protocol, overload

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data import FloatArray
from attsvm.errors import InputError
from attsvm.geometry import Frobenius, Lp, Norm, Nuclear, Schatten, Spectral
from attsvm.margins import Margins
from attsvm.solvers.batch import SolutionBatch, solve_all
from attsvm.solvers.solution import MarginSolution, Request


class Solver(Protocol):
    """What a solver module offers as ``solve``."""

    def __call__(self, margins: Margins, norm: Norm, request: Request) -> MarginSolution:
        """The solution in ``norm``, certified from ``margins``."""


SOLVERS: dict[type[Norm], str] = {
    Frobenius: "attsvm.solvers.frobenius",
    Lp: "attsvm.solvers.entrywise",
    Schatten: "attsvm.solvers.schatten",
    Nuclear: "attsvm.solvers.schatten",
    Spectral: "attsvm.solvers.schatten",
}
"""The module that solves for each type of norm, imported when first needed. A new norm is a new line here."""


@overload
def max_margin(
    margins: Margins,
    norm: Norm | None = ...,
    *,
    slack: float | None = ...,
    tol: float | None = ...,
    warm_start: MarginSolution | ArrayLike | None = ...,
    max_seconds: float | None = ...,
) -> MarginSolution: ...


@overload
def max_margin(
    margins: Sequence[Margins],
    norm: Norm | None = ...,
    *,
    slack: float | None = ...,
    tol: float | None = ...,
    warm_start: None = ...,
    max_seconds: float | None = ...,
) -> SolutionBatch: ...


def max_margin(
    margins: Margins | Sequence[Margins],
    norm: Norm | None = None,
    *,
    slack: float | None = None,
    tol: float | None = None,
    warm_start: MarginSolution | ArrayLike | None = None,
    max_seconds: float | None = None,
) -> MarginSolution | SolutionBatch:
    r"""The weights of least norm that meet every margin, with a proof.

    .. math:: \min_W \|W\| \ \text{ subject to }\ \langle A_c, W\rangle\ge b_c
       \qquad\text{or, with slack } C,\qquad
       \min_W \tfrac12\|W\|^2 + C\sum_c (b_c-\langle A_c,W\rangle)_+ .

    Rows marked in ``margins.equality`` are met with equality; see :mod:`attsvm.solvers.equalities`.

    Args:
        margins: one programme, or several, as a sequence or a :class:`~attsvm.margins.MarginsBatch`: a :class:`SolutionBatch`
            comes back, in which each has its own status. Small hard-margin programmes of the Frobenius norm are solved together,
            on all cores.
        norm: the norm to minimise; the Frobenius norm when left out.
        slack: the penalty C of the soft margin; ``None`` for the hard margin. The soft margin always has a solution,
            and its ``W`` is not rescaled.
        tol: largest gap and violation of a solution that is called ``optimal``. When left out, 1e-6 for the nuclear
            and the spectral norm and 1e-9 for all others; usually surpassed by several digits.
        warm_start: an earlier solution of a similar programme with the same number of constraints, or its multipliers ``(m,)``.
        max_seconds: wall-clock limit for each programme, checked between steps; the best certified weights so far come back.

    Returns:
        The solution; its ``status`` says ``optimal``, ``infeasible`` or ``inaccurate``. No exception is raised for the last two.

    Raises:
        InputError: a norm without a solver, a penalty, tolerance or time limit that is not positive, a warm start of another size
            or with invalid values, a negative or non-finite right-hand side, data whose scale leaves float64, equalities where the
            solver takes none.

    Source:
        Programmes Att-SVM of Tarzanagh et al., *Max-Margin Token Selection in Attention Mechanism* and
        *Transformers as Support Vector Machines* (both 2023).
    """
    norm = Frobenius() if norm is None else norm
    module = SOLVERS.get(type(norm))
    if module is None:
        known = ", ".join(sorted(kind.__name__ for kind in SOLVERS))
        raise InputError(f"there is no solver for the norm {norm!r}; use one of: {known}")
    for name, value in (("slack", slack), ("tol", tol), ("max_seconds", max_seconds)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value}; it must be positive and finite")
    if not isinstance(margins, Margins):
        if warm_start is not None:
            raise InputError("warm_start belongs to a single programme; solve the programmes of a list one by one to warm-start them")
        together = None
        if norm == Frobenius() and slack is None:
            together = Request(tol=_default_tolerance(norm) if tol is None else tol, slack=None, warm_start=None, max_seconds=max_seconds)
        return solve_all(margins, lambda each: max_margin(each, norm, slack=slack, tol=tol, max_seconds=max_seconds), together)
    _check_finite(margins)
    start = None if warm_start is None else _multipliers(margins, warm_start)
    tol = _default_tolerance(norm) if tol is None else tol
    request = Request(tol=tol, slack=slack, warm_start=start, max_seconds=max_seconds)
    solver: Solver = importlib.import_module(module).solve
    if margins.equalities.any():
        from attsvm.solvers import equalities

        return equalities.solve(margins, norm, request, solver)
    return solver(margins, norm, request)


def _default_tolerance(norm: Norm) -> float:
    """What the best first-order peers reach for the norms that need a semidefinite programme, and rounding's neighbourhood elsewhere."""
    return 1e-6 if isinstance(norm, Schatten) and (norm.p == 1.0 or math.isinf(norm.p)) else 1e-9


def _check_finite(margins: Margins) -> None:
    for name in ("differences", "queries", "rhs"):
        array = getattr(margins, name)
        if not np.isfinite(array).all():
            where = np.argwhere(~np.isfinite(array))[0].tolist()
            raise InputError(f"margins.{name} holds {array[tuple(where)]} at {where}; every value must be finite")
    negative = (margins.rhs < 0) & ~margins.equalities
    if negative.any():
        c = int(np.flatnonzero(negative)[0])
        raise InputError(f"margins.rhs[{c}] is {margins.rhs[c]:g}; right-hand sides must be zero or positive")


def _multipliers(margins: Margins, start: MarginSolution | ArrayLike) -> FloatArray:
    dual = np.asarray(start.dual if isinstance(start, MarginSolution) else start, dtype=np.float64)
    if dual.shape != (margins.m,):
        raise InputError(f"warm_start has shape {dual.shape}; the programme has {margins.m} constraints, so it must be ({margins.m},)")
    wrong = ~np.isfinite(dual) | ((dual < 0) & ~margins.equalities)
    if wrong.any():
        c = int(np.flatnonzero(wrong)[0])
        raise InputError(f"warm_start[{c}] is {dual[c]}; multipliers must be finite and not negative")
    return dual
