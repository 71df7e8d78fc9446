r"""The front door: one call for every programme, norm and number of instances."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data import AttentionData, FloatArray
from attsvm.errors import InputError
from attsvm.geometry import Frobenius, Lp, MaxRow, Norm, Rows, as_norm
from attsvm.margins import (
    MarginBlocks,
    Margins,
    MarginsBatch,
    PairMargins,
    selection_batch,
    selection_margins,
)
from attsvm.margins.consistency import check_arrays, check_batch
from attsvm.printable import kind
from attsvm.solvers import equalities, rows
from attsvm.solvers.batch import SolutionBatch, solve_all, spread
from attsvm.solvers.outcomes import Request, Solver, out_of_range, rescaled
from attsvm.solvers.scaling import OutOfRangeError, check_finite, scaled
from attsvm.solvers.solution import MarginSolution
from attsvm.solvers.starts import Start, carried
from attsvm.solvers.threads import threads_that_pay


@overload
def max_margin(
    margins: AttentionData,
    tokens: ArrayLike,
    norm: Norm | str | None = ...,
    *,
    slack: float | None = ...,
    tol: float | None = ...,
    warm_start: MarginSolution | ArrayLike | None = ...,
    max_seconds: float | None = ...,
) -> MarginSolution: ...


@overload
def max_margin(
    margins: Margins,
    norm: Norm | str | None = ...,
    *,
    slack: float | None = ...,
    tol: float | None = ...,
    warm_start: MarginSolution | ArrayLike | None = ...,
    max_seconds: float | None = ...,
) -> MarginSolution: ...


@overload
def max_margin(
    margins: MarginBlocks,
    norm: Norm | str | None = ...,
    *,
    tol: float | None = ...,
    max_seconds: float | None = ...,
    memory: str | int | None = ...,
    executor: Any = ...,
) -> MarginSolution: ...


@overload
def max_margin(
    margins: Sequence[Margins],
    norm: Norm | str | None = ...,
    *,
    slack: float | None = ...,
    tol: float | None = ...,
    warm_start: None = ...,
    max_seconds: float | None = ...,
    executor: Any = ...,
) -> SolutionBatch: ...


def max_margin(  # type: ignore[misc]  # the norm is second beside margins, third beside data
    margins: AttentionData | Margins | MarginBlocks | Sequence[Margins],
    tokens: ArrayLike | Norm | str | None = None,
    norm: Norm | str | None = None,
    *,
    slack: float | None = None,
    tol: float | None = None,
    warm_start: MarginSolution | ArrayLike | None = None,
    max_seconds: float | None = None,
    memory: str | int | None = None,
    executor: Any = None,
) -> MarginSolution | SolutionBatch:
    r"""The weights of least norm that meet every margin, with a proof.

    .. math:: \min_W \|W\| \ \text{ subject to }\ \langle A_c, W\rangle\ge b_c
       \qquad\text{or, with slack } C,\qquad
       \min_W \tfrac12\|W\|^2 + C\sum_c (b_c-\langle A_c,W\rangle)_+ .

    Rows marked in ``margins.equality`` are met with equality; see
    :mod:`attsvm.solvers.equalities`.

    Args:
        margins: data, with the tokens that are selected; or one programme; or several, as a
            sequence or a :class:`~attsvm.margins.MarginsBatch`: a :class:`SolutionBatch` comes
            back, in which each has its own status, ``inaccurate`` where a solution leaves float64.
            Data with leading axes are several programmes. Small hard-margin programmes are solved
            together in the Frobenius norm and in the entrywise norms with p = 1 and infinity, all
            others one by one, on all cores. Or a programme of blocks, :meth:`Margins.from_blocks`,
            see :mod:`attsvm.solvers.blocks`.
        tokens: ``(n,)``, the selected token of each sequence of the data, for the programme of
            :func:`~attsvm.margins.selection_margins`. Margins hold their tokens, and the norm
            follows them: ``max_margin(data, tokens, "nuc")``, ``max_margin(margins, "nuc")``.
        norm: the norm to minimise, or its name (``"lp:1.75"``); the Frobenius norm when left out.
        slack: the penalty C of the soft margin; ``None`` for the hard margin. The soft margin
            always has a solution, and its ``W`` is not rescaled.
        tol: largest gap and violation of a solution that is called ``optimal``. When left out, 1e-6
            for the nuclear and the spectral norm and 1e-9 for all others; usually surpassed by
            several digits.
        warm_start: an earlier solution, of any norm, for the same sequences (rows are matched by
            sequence and tokens, see
            :mod:`attsvm.solvers.starts`), or multipliers ``(m,)``.
        max_seconds: wall-clock limit for each programme, checked between steps; the best certified
            weights so far come back.
        memory: of a programme of blocks, what the solver takes beside what the process has: bytes,
            or a text such as ``"500MB"``; ``"2GiB"`` when left out.
        executor: a :class:`concurrent.futures.Executor`; this process when left out. Of several
            programmes it solves parts of the list, with the same bits; of a programme of blocks its
            workers make the blocks and look at their rows.

    Returns:
        The solution; its ``status`` says ``optimal``, ``infeasible``, ``almost infeasible`` or
        ``inaccurate``. No exception is raised for the last three.

    Raises:
        InputError: data without tokens, an unknown norm, a penalty, tolerance or time limit that
            is not positive, a warm start of another size or with invalid values, a negative or
            non-finite right-hand side, a single programme whose solution leaves float64; blocks
            that have changed between two passes over them, or too little memory for them.

    Source:
        Programmes Att-SVM of Tarzanagh et al., *Max-Margin Token Selection in Attention Mechanism*
        and *Transformers as Support Vector Machines* (both 2023).

    Example:
        >>> import attsvm
        >>> toy = attsvm.datasets.toy("plane")
        >>> solution = attsvm.max_margin(toy.data, attsvm.optimal_tokens(toy.data, toy.head))
        >>> solution.status, solution.W.round(3).tolist()
        ('optimal', [[2.854, -2.703], [5.371, 5.581]])
        >>> [round(attsvm.max_margin(solution.margins, norm).norm, 2) for norm in ("nuc", "spec")]
        [9.75, 6.48]
        >>> between = attsvm.AttentionData([[[2], [1], [3]]], labels=[1], queries=[[1]])
        >>> attsvm.max_margin(between, [0]).status
        'infeasible'
    """
    margins, norm = _programmes(margins, tokens, norm)
    in_blocks = isinstance(margins, MarginBlocks)
    misplaced = {"slack": slack, "warm_start": warm_start} if in_blocks else {"memory": memory}
    for name, value in misplaced.items():
        if value is not None:
            raise InputError(
                f"{name} is not for {'programmes of blocks' if in_blocks else 'margins in memory'};"
                f" leave it out{'' if in_blocks else ', or give Margins.from_blocks'}"
            )
    positive: dict[str, Any] = {"slack": slack, "tol": tol, "max_seconds": max_seconds}
    for name, value in positive.items():
        if value is None:
            continue
        if isinstance(value, str) or not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {kind(value)}; it must be positive and finite")
    if isinstance(margins, MarginBlocks):
        from attsvm.solvers.blocks import InBlocks, bytes_of  # and with it the pools of processes

        request = Request(norm.tolerance if tol is None else tol, None, None, max_seconds)

        def roughly(
            part: Margins, near: float, start: FloatArray | None, left: float | None
        ) -> MarginSolution:
            with threads_that_pay(part.m, math.prod(part.shape)):
                return _direct(part, norm, None, near, start, left, rough=True)

        source = InBlocks(margins, norm, bytes_of(memory), executor)
        return rows.solve(source, norm, request, roughly)
    if not isinstance(margins, Margins):
        if isinstance(margins, MarginsBatch):
            check_batch(margins)
        if warm_start is not None:
            raise InputError(
                "warm_start belongs to a single programme; solve the programmes of a list one by"
                " one to warm-start them"
            )
        if executor is not None and len(margins) > 1:
            return spread(margins, partial(_several, norm, positive), executor)
        return _several(norm, positive, 0, margins)
    if executor is not None:
        raise InputError(
            "executor belongs to a list of programmes, or to one of blocks; leave it out for a"
            " single one in memory"
        )
    if isinstance(margins, PairMargins):
        if not rows.worth(margins):
            margins = margins.restricted(np.arange(margins.m))
    else:
        margins = _checked(margins)
    tol = norm.tolerance if tol is None else tol

    def inner(
        part: Margins, near: float, start: FloatArray | None, left: float | None
    ) -> MarginSolution:
        return _direct(part, norm, slack, near, start, left)

    with threads_that_pay(margins.m, math.prod(margins.shape)):
        if (
            warm_start is None
            and rows.worth(margins)
            and (
                isinstance(margins, PairMargins)
                or (margins.equality is None and (margins.rhs > 0.0).all())
            )
        ):
            check_finite(margins)
            whole = rows.InMemory(margins, norm)
            return rows.solve(whole, norm, Request(tol, slack, None, max_seconds), inner)
        return _direct(margins, norm, slack, tol, warm_start, max_seconds)


def _several(
    norm: Norm, options: dict[str, Any], first: int, programmes: Sequence[Margins]
) -> SolutionBatch:
    """Several programmes in this process; what is refused is counted from ``first``."""
    tol = norm.tolerance if options["tol"] is None else options["tol"]

    def alone(each: Margins) -> MarginSolution:
        try:
            return max_margin(each, norm, **options)
        except OutOfRangeError as error:
            return replace(out_of_range(each, tol, options["slack"], str(error)), geometry=norm)

    together = (norm == Frobenius() or _polyhedral(norm)) and options["slack"] is None
    request = Request(tol, None, None, options["max_seconds"]) if together else None
    return solve_all(programmes, norm, alone, request, first)


def _programmes(
    margins: Any, tokens: Any, norm: Norm | str | None
) -> tuple[Margins | MarginBlocks | Sequence[Margins], Norm]:
    """What to solve, in which norm."""
    if isinstance(margins, AttentionData):
        if tokens is None or isinstance(tokens, str | Norm):
            raise InputError(
                "max_margin was given data without the tokens that are selected; call"
                " max_margin(data, tokens), with tokens such as optimal_tokens(data, head)"
            )
        make = selection_batch if margins.batch_shape else selection_margins
        return make(margins, tokens), as_norm(norm)
    if tokens is not None and norm is not None:
        raise InputError(
            f"tokens is {kind(tokens)} beside margins, which hold their tokens; call"
            " max_margin(data, tokens, norm) or max_margin(margins, norm)"
        )
    programmes = [] if isinstance(margins, Margins | MarginBlocks) else margins
    if not isinstance(programmes, Sequence) or isinstance(programmes, str):
        raise InputError(
            f"max_margin was given {kind(margins)}; give data and tokens, margins such as"
            " selection_margins(data, tokens), or a list of margins"
        )
    for k, each in enumerate(() if isinstance(programmes, MarginsBatch) else programmes):
        if not isinstance(each, Margins):
            raise InputError(
                f"entry {k} of the list is {kind(each)}; give margins, such as"
                " selection_margins(data, tokens)"
            )
    return margins, as_norm(tokens if norm is None else norm)


def _direct(
    margins: Margins,
    norm: Norm,
    slack: float | None,
    tol: float,
    warm_start: MarginSolution | ArrayLike | None,
    max_seconds: float | None,
    rough: bool = False,
) -> MarginSolution:
    """One programme with all of its rows, at a scale near one, by the solver of its norm."""
    near = scaled(margins)
    penalty = None if slack is None else near.penalty(slack)
    request = Request(tol, penalty, None, max_seconds, rough=rough)
    if warm_start is not None:
        start = (
            carried(margins, warm_start, slack)
            if isinstance(warm_start, MarginSolution)
            else Start(_multipliers(margins, warm_start))
        )
        dual = None if start is None else near.start(start.dual)
        if start is not None and dual is not None:
            unchanged = near.margins is margins  # at another scale the multipliers are start enough
            request = replace(request, warm_start=dual, warm_weights=start.W if unchanged else None)
    near_norm = _simplest(norm, near.margins.shape)
    solve = _solver_of(_module_of(near_norm, slack is not None))
    found = (
        equalities.solve(near.margins, near_norm, request, solve)
        if margins.equality is not None and margins.equalities.any()
        else solve(near.margins, near_norm, request)
    )
    if found.geometry is not norm and found.geometry != norm:
        found = replace(found, geometry=norm)
    if near.margins is not margins:
        found = rescaled(found, margins, near)
    return found


def _simplest(norm: Norm, shape: tuple[int, int]) -> Norm:
    """The norm of entries that a norm of rows is on weights of one row or one column; else the norm
    itself.
    """
    if not isinstance(norm, Rows | MaxRow) or min(shape) > 1:
        return norm
    return Frobenius() if shape[0] == 1 else Lp(norm.p)


def _polyhedral(norm: Norm) -> bool:
    return isinstance(norm, Lp) and norm.p in (1.0, math.inf)


def _module_of(norm: Norm, soft: bool) -> str:
    """The module that solves programmes of this norm, of soft or of hard margins."""
    if norm == Frobenius():
        return "attsvm.solvers.frobenius"
    if _polyhedral(norm):
        return "attsvm.solvers.hinged" if soft else "attsvm.solvers.polyhedral"
    return "attsvm.solvers.splitting"


@functools.cache
def _solver_of(module: str) -> Solver:
    """The solver of a module, imported where it is first asked for."""
    solve: Solver = importlib.import_module(module).solve
    return solve


def _checked(margins: Margins) -> Margins:
    """The programme in float64, its arrays as they were when it was made."""
    check_arrays(margins)
    D, Z, rhs = margins.differences, margins.queries, margins.rhs
    if not D.dtype == Z.dtype == rhs.dtype == np.float64:
        D, Z, rhs = (np.asarray(array, np.float64) for array in (D, Z, rhs))
        margins = replace(margins, differences=D, queries=Z, rhs=rhs)
    if D.shape[1] == 0 or Z.shape[1] == 0:
        raise InputError(
            f"the weights of these margins have shape {margins.shape}; tokens and queries need at"
            " least one feature"
        )
    negative = rhs < 0.0
    if np.count_nonzero(negative) and (negative & ~margins.equalities).any():
        negative &= ~margins.equalities
        c = int(np.flatnonzero(negative)[0])
        raise InputError(
            f"margins.rhs[{c}] is {rhs[c]:g}; right-hand sides must be zero or positive"
        )
    return margins


def _multipliers(margins: Margins, start: ArrayLike) -> FloatArray:
    dual = np.asarray(start, dtype=np.float64)
    if dual.shape != (margins.m,):
        raise InputError(
            f"warm_start has shape {dual.shape}; the programme has {margins.m} constraints, so it"
            f" must be ({margins.m},)"
        )
    wrong = ~np.isfinite(dual) | ((dual < 0) & ~margins.equalities)
    if wrong.any():
        c = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"warm_start[{c}] is {dual[c]}; multipliers must be finite and not negative"
        )
    return dual
