r"""Sequences of related programmes, each solved from the solution of the one before.

What goes from one solution to the next is in :mod:`attsvm.solvers.starts`. Every solution
is certified from its own margins, as if it had been solved alone; a start only saves time.
"""

from __future__ import annotations

from collections.abc import Sequence

from attsvm.base.errors import InputError
from attsvm.base.printable import kind
from attsvm.margins import Margins
from attsvm.norms import Norm, as_norm
from attsvm.solvers.front import max_margin
from attsvm.solvers.solution import MarginSolution


def margin_path(
    margins: Margins | Sequence[Margins],
    norm: Norm | str | Sequence[Norm | str],
    *,
    slack: float | None = None,
    tol: float | None = None,
    max_seconds: float | None = None,
) -> list[MarginSolution]:
    r"""Solutions of a sequence of related programmes: over norms, over drifting data, over
    selections of a training run.

    .. math:: W_k=\arg\min_W \|W\|_{(k)}\ \text{ subject to }\ \langle A^{(k)}_c,W\rangle\ge
        b^{(k)}_c,\qquad k=1,2,\dots

    Args:
        margins: one programme for all norms, or one for each step, of the same number of sequences
            and the same shape of weights.
        norm: one norm, or the name of one, for all programmes, or one for each step.
        slack: penalty of the soft margin, see :func:`attsvm.solvers.max_margin`; ``None`` for hard
            margins.
        tol: as for :func:`attsvm.solvers.max_margin`.
        max_seconds: wall-clock limit for each programme.

    Returns:
        One solution per step, each with its own certificate and status. A step after one without a
        solution starts from the last that had one.

    Raises:
        InputError: sequences of different lengths, or nothing to vary; and what
            :func:`attsvm.solvers.max_margin` raises.

    Example:
        >>> import attsvm
        >>> toy = attsvm.datasets.toy("plane")
        >>> margins = attsvm.selection_margins(toy.data, attsvm.optimal_tokens(toy.data, toy.head))
        >>> path = attsvm.margin_path(margins, [f"lp:{p}" for p in (1.5, 2, 4)])
        >>> [round(solution.norm, 3) for solution in path]
        [10.496, 8.686, 6.352]
    """
    if not isinstance(margins, Margins | Sequence):
        raise InputError(
            f"margin_path was given {kind(margins)}; give margins, such as"
            " selection_margins(data, tokens), or a list of them"
        )
    programmes = None if isinstance(margins, Margins) else list(margins)
    norms = None if isinstance(norm, Norm | str) else [as_norm(name) for name in norm]
    if programmes is None and norms is None:
        raise InputError(
            "margin_path was given one programme and one norm; give a list of one of them, or call"
            " max_margin"
        )
    if programmes is not None and norms is not None and len(programmes) != len(norms):
        raise InputError(
            f"margin_path was given {len(programmes)} programmes and {len(norms)} norms; give as"
            " many of one as of the other"
        )
    steps = len(programmes if programmes is not None else norms or [])
    solutions: list[MarginSolution] = []
    last: MarginSolution | None = None
    for k in range(steps):
        solution = max_margin(
            margins if isinstance(margins, Margins) else margins[k],
            norm if isinstance(norm, Norm | str) else norm[k],
            slack=slack,
            tol=tol,
            warm_start=last,
            max_seconds=max_seconds,
        )
        solutions.append(solution)
        if solution.status != "infeasible" and solution.gap < 1.0:
            last = solution
    return solutions
