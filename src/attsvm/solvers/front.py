r"""The public calls: one programme, many programmes, and programmes larger than memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.base.printable import kind
from attsvm.datasets.attention_data import AttentionData, FloatArray
from attsvm.margins import MarginBlocks, Margins, MarginsBatch, PairMargins
from attsvm.margins.checks import check_arrays, check_batch
from attsvm.norms import Frobenius, Lp, MaxRow, Norm, Rows, as_norm
from attsvm.solvers import equalities, frobenius, polyhedral, working_sets
from attsvm.solvers.batch import SolutionBatch, solve_all, solve_with_executor
from attsvm.solvers.outcomes import Request, Solver, out_of_range_solution, restore_scale
from attsvm.solvers.scaling import OutOfRangeError, refuse_infinite, scaled
from attsvm.solvers.solution import MarginSolution
from attsvm.solvers.starts import Start, start_from
from attsvm.solvers.threads import threads_that_pay


def max_margin(
    margins: Margins,
    norm: Norm | str | None = None,
    *,
    slack: float | None = None,
    tol: float | None = None,
    warm_start: MarginSolution | ArrayLike | None = None,
    max_seconds: float | None = None,
) -> MarginSolution:
    r"""The weights of least norm that meet every margin, with a proof.

    .. math:: &\min_W \|W\| \quad\text{subject to}\quad \langle A_c, W\rangle\ge b_c, \\
       &\min_W \tfrac12\|W\|^2 + C\sum_c (b_c-\langle A_c,W\rangle)_+
       \quad\text{with slack } C.

    Rows marked in ``margins.equality`` are met with equality; see
    :mod:`attsvm.solvers.equalities`. Many programmes are solved by :func:`max_margin_batch`,
    programmes larger than memory by :func:`max_margin_blocks`.

    Args:
        margins: the programme; of data and selected tokens
            :func:`~attsvm.margins.selection_margins` makes it.
        norm: the norm to minimise, or its name (``"lp:1.75"``); the Frobenius norm when left out.
        slack: the penalty C of the soft margin; ``None`` for the hard margin. The soft margin
            always has a solution, and its ``W`` is not rescaled.
        tol: largest gap and violation of a solution that is called ``optimal``. When left out, 1e-6
            for the nuclear and the spectral norm and 1e-9 for all others; usually surpassed by
            several digits.
        warm_start: an earlier solution, of any norm, for the same sequences (rows are matched by
            sequence and tokens, see
            :mod:`attsvm.solvers.starts`), or multipliers ``(m,)``.
        max_seconds: wall-clock limit, checked between steps; the best certified weights so far come
            back.

    Returns:
        The solution; its ``status`` says ``optimal``, ``infeasible``, ``almost infeasible`` or
        ``inaccurate``. No exception is raised for the last three.

    Raises:
        InputError: something that is not a programme, an unknown norm, a penalty, tolerance or time
            limit that is not positive, a warm start of another size or with invalid values, a
            negative or non-finite right-hand side, a solution that leaves float64.

    Source:
        Programmes Att-SVM of Tarzanagh et al., *Max-Margin Token Selection in Attention Mechanism*
        and *Transformers as Support Vector Machines* (both 2023).

    Example:
        >>> import attsvm
        >>> toy = attsvm.datasets.toy("plane")
        >>> margins = attsvm.selection_margins(toy.data, attsvm.optimal_tokens(toy.data, toy.head))
        >>> solution = attsvm.max_margin(margins)
        >>> solution.status, solution.W.round(3).tolist()
        ('optimal', [[2.854, -2.703], [5.371, 5.581]])
        >>> [round(attsvm.max_margin(margins, norm).norm, 2) for norm in ("nuc", "spec")]
        [9.75, 6.48]
        >>> between = attsvm.AttentionData([[[2], [1], [3]]], labels=[1], queries=[[1]])
        >>> attsvm.max_margin(attsvm.selection_margins(between, [0])).status
        'infeasible'
    """
    # 1. Read the norm, and check what was given.
    if not isinstance(margins, Margins):
        raise _wrong_kind("max_margin", margins)
    norm = as_norm(norm)
    _check_positive(slack=slack, tol=tol, max_seconds=max_seconds)
    if not isinstance(margins, PairMargins):
        margins = _check_margins(margins)
    elif not working_sets.needs_working_sets(margins):
        margins = margins.restricted(np.arange(margins.m))  # few pairs are written out as rows
    tol = norm.tolerance if tol is None else tol

    def solve_subset(
        subset: Margins, tol: float, dual: FloatArray | None, seconds: float | None
    ) -> MarginSolution:
        return solve_all_rows(subset, norm, slack, tol, dual, seconds)

    with threads_that_pay(margins.m, math.prod(margins.shape)):
        # 2. Few rows, or rows that working sets do not take: all at once.
        are_plain = isinstance(margins, PairMargins) or (
            margins.equality is None and (margins.rhs > 0.0).all()
        )
        if warm_start is not None or not are_plain or not working_sets.needs_working_sets(margins):
            return solve_all_rows(margins, norm, slack, tol, warm_start, max_seconds)
        # 3. Many rows: on those that matter.
        refuse_infinite(margins)
        rows = working_sets.RowsInMemory(margins, norm)
        request = Request(tol, slack, None, max_seconds)
        return working_sets.solve_on_working_sets(rows, norm, request, solve_subset)


def max_margin_batch(
    programmes: Sequence[Margins],
    norm: Norm | str | None = None,
    *,
    slack: float | None = None,
    tol: float | None = None,
    max_seconds: float | None = None,
    executor: Any = None,
) -> SolutionBatch:
    """The solutions of many programmes, each with its own status, as :func:`max_margin` gives them.

    Small hard-margin programmes are solved together in the Frobenius norm and in the entrywise
    norms with p = 1 and infinity, all others one by one, on all cores.

    Args:
        programmes: a sequence of margins, or a :class:`~attsvm.margins.MarginsBatch`, which
            :func:`~attsvm.margins.selection_batch` makes of data with leading axes.
        norm: the norm to minimise, or its name; the Frobenius norm when left out.
        slack: the penalty C of the soft margin; ``None`` for the hard margin.
        tol: as for :func:`max_margin`.
        max_seconds: wall-clock limit for each programme.
        executor: a :class:`concurrent.futures.Executor` that solves shares of the list, with the
            same bits; this process when left out.

    Returns:
        The solutions, ``inaccurate`` where a solution leaves float64.

    Raises:
        InputError: an entry that is not a programme, and what :func:`max_margin` refuses, with the
            position of the programme.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> tokens = np.random.default_rng(0).normal(size=(20, 2, 3, 2))
        >>> data = attsvm.AttentionData(tokens, np.ones((20, 2)), queries=np.ones((20, 2, 1)))
        >>> programmes = attsvm.selection_batch(data, np.zeros((20, 2), dtype=int))
        >>> batch = attsvm.max_margin_batch(programmes)
        >>> len(batch), batch.W.shape, int(batch.optimal.sum())
        (20, (20, 2, 1), 11)
    """
    _check_programmes(programmes)
    norm = as_norm(norm)
    _check_positive(slack=slack, tol=tol, max_seconds=max_seconds)
    solve = partial(_solve_programmes, norm, slack, tol, max_seconds)
    if executor is not None and len(programmes) > 1:
        return solve_with_executor(programmes, solve, executor)
    return solve(0, programmes)


def max_margin_blocks(
    blocks: MarginBlocks,
    norm: Norm | str | None = None,
    *,
    tol: float | None = None,
    max_seconds: float | None = None,
    memory: str | int | None = None,
    executor: Any = None,
) -> MarginSolution:
    r"""The hard-margin solution of a programme whose rows are made or read a block at a time, as
    often as the solver needs them; see :mod:`attsvm.solvers.blocks`.

    Args:
        blocks: the programme, :meth:`attsvm.Margins.from_blocks`.
        norm: the norm to minimise, or its name; the Frobenius norm when left out.
        tol: as for :func:`max_margin`.
        max_seconds: wall-clock limit.
        memory: what the solver takes beside what the process has: bytes, or a text such as
            ``"500MB"``; ``"2GiB"`` when left out.
        executor: a :class:`concurrent.futures.Executor` whose workers make the blocks and look at
            their rows; this process when left out.

    Returns:
        The solution, proved over all rows; its ``margins``, ``dual`` and ``support`` are those of
        the last working set.

    Raises:
        InputError: something that is not a programme of blocks; blocks that have changed between
            two passes over them, or too little memory for them; and what :func:`max_margin`
            refuses.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> rows = np.random.default_rng(0).normal(size=(3, 20, 100))
        >>> blocks = attsvm.Margins.from_blocks(lambda k: rows[k], count=3)
        >>> solution = attsvm.max_margin_blocks(blocks, memory="100MB")
        >>> solution.status, solution.constraints
        ('optimal', 60)
    """
    from attsvm.solvers.blocks import (
        RowsInBlocks,
        parse_memory,
    )  # and with it the pools of processes

    if not isinstance(blocks, MarginBlocks):
        raise _wrong_kind("max_margin_blocks", blocks)
    norm = as_norm(norm)
    _check_positive(tol=tol, max_seconds=max_seconds)
    request = Request(norm.tolerance if tol is None else tol, None, None, max_seconds)

    def solve_roughly(
        subset: Margins, tol: float, dual: FloatArray | None, seconds: float | None
    ) -> MarginSolution:
        with threads_that_pay(subset.m, math.prod(subset.shape)):
            return solve_all_rows(subset, norm, None, tol, dual, seconds, rough=True)

    source = RowsInBlocks(blocks, norm, parse_memory(memory), executor)
    return working_sets.solve_on_working_sets(source, norm, request, solve_roughly)


def _wrong_kind(function: str, programme: Any) -> InputError:
    """The refusal of a first argument, naming the function that takes it."""
    if isinstance(programme, Margins):
        advice = "call max_margin(margins, norm)"
    elif isinstance(programme, MarginBlocks):
        advice = "call max_margin_blocks(blocks, norm)"
    elif isinstance(programme, AttentionData):
        advice = (
            "call max_margin_batch(selection_batch(data, tokens), norm)"
            if programme.batch_shape
            else "call max_margin(selection_margins(data, tokens), norm)"
        )
    elif isinstance(programme, Sequence) and not isinstance(programme, str):
        advice = "call max_margin_batch(programmes, norm)"
    else:
        advice = {
            "max_margin": "give margins, such as selection_margins(data, tokens)",
            "max_margin_batch": "give a list of margins, such as selection_margins(data, tokens)",
            "max_margin_blocks": "give blocks, such as Margins.from_blocks(function, count)",
        }[function]
    return InputError(f"{function} was given {kind(programme)}; {advice}")


def _check_programmes(programmes: Any) -> None:
    """Refuse what is not a sequence of margins."""
    if not isinstance(programmes, Sequence) or isinstance(programmes, str):
        raise _wrong_kind("max_margin_batch", programmes)
    if isinstance(programmes, MarginsBatch):
        check_batch(programmes)
        return
    for k, margins in enumerate(programmes):
        if not isinstance(margins, Margins):
            raise InputError(
                f"entry {k} of the list is {kind(margins)}; give margins, such as"
                " selection_margins(data, tokens)"
            )


def _check_positive(**options: Any) -> None:
    """Refuse options that are neither left out nor positive and finite."""
    for name, value in options.items():
        if value is None:
            continue
        if isinstance(value, str) or not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {kind(value)}; it must be positive and finite")


def _solve_programmes(
    norm: Norm,
    slack: float | None,
    tol: float | None,
    max_seconds: float | None,
    first: int,
    programmes: Sequence[Margins],
) -> SolutionBatch:
    """The solutions of programmes in this process; refusals count them from ``first``."""
    accuracy = norm.tolerance if tol is None else tol

    def solve_one(margins: Margins) -> MarginSolution:
        try:
            return max_margin(margins, norm, slack=slack, tol=tol, max_seconds=max_seconds)
        except OutOfRangeError as error:
            return replace(
                out_of_range_solution(margins, accuracy, slack, str(error)), geometry=norm
            )

    compiled = (norm == Frobenius() or _is_polyhedral(norm)) and slack is None
    request = Request(accuracy, None, None, max_seconds) if compiled else None
    return solve_all(programmes, norm, solve_one, request, first)


def solve_all_rows(
    margins: Margins,
    norm: Norm,
    slack: float | None,
    tol: float,
    warm_start: MarginSolution | ArrayLike | None,
    max_seconds: float | None,
    rough: bool = False,
) -> MarginSolution:
    """The solution of one programme with all of its rows.

    1. Bring the programme to a scale near one.
    2. Carry a warm start over to it.
    3. Solve it by the solver of its norm; with equalities, as pairs of inequalities.
    4. Bring the solution back to the scale of the caller.
    """
    # 1. Scale.
    near = scaled(margins)
    penalty = None if slack is None else near.penalty(slack)
    request = Request(tol, penalty, None, max_seconds, rough=rough)
    # 2. Warm start.
    if warm_start is not None:
        start = (
            start_from(margins, warm_start, slack)
            if isinstance(warm_start, MarginSolution)
            else Start(_check_multipliers(margins, warm_start))
        )
        dual = None if start is None else near.start(start.dual)
        if start is not None and dual is not None:
            unchanged = near.margins is margins  # at another scale the multipliers are start enough
            request = replace(request, warm_start=dual, warm_weights=start.W if unchanged else None)
    # 3. Solve.
    near_norm = _simplest_norm(norm, near.margins.shape)
    solve = _choose_solver(near_norm, slack is not None)
    solution = (
        equalities.solve(near.margins, near_norm, request, solve)
        if margins.equality is not None and margins.equalities.any()
        else solve(near.margins, near_norm, request)
    )
    if solution.geometry is not norm and solution.geometry != norm:
        solution = replace(solution, geometry=norm)
    # 4. Restore.
    if near.margins is not margins:
        solution = restore_scale(solution, margins, near)
    return solution


def _simplest_norm(norm: Norm, shape: tuple[int, int]) -> Norm:
    """The norm of entries that a norm of rows is on weights of one row or one column; else the norm
    itself.
    """
    if not isinstance(norm, Rows | MaxRow) or min(shape) > 1:
        return norm
    return Frobenius() if shape[0] == 1 else Lp(norm.p)


def _is_polyhedral(norm: Norm) -> bool:
    """Whether the unit ball of the norm is a polytope: p = 1 and infinity."""
    return isinstance(norm, Lp) and norm.p in (1.0, math.inf)


def _choose_solver(norm: Norm, soft: bool) -> Solver:
    """The solver of this norm, for soft or for hard margins."""
    if norm == Frobenius():
        return frobenius.solve
    if _is_polyhedral(norm) and not soft:
        return polyhedral.solve
    # These bring SciPy, which takes longer to import than most programmes to solve.
    if _is_polyhedral(norm):
        from attsvm.solvers import hinged

        return hinged.solve
    from attsvm.solvers import splitting

    return splitting.solve


def _check_margins(margins: Margins) -> Margins:
    """The programme in float64, with arrays that fit and right-hand sides that are not negative."""
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


def _check_multipliers(margins: Margins, start: ArrayLike) -> FloatArray:
    """``(m,)`` multipliers to start from, in float64 and not negative on inequalities."""
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
