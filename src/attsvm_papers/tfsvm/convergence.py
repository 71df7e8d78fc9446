"""Where trained runs end up: at the globally optimal tokens, at locally optimal ones, or at
neither.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm import (
    AttentionData,
    Margins,
    Trajectory,
    locally_optimal,
    max_margin,
    optimal_tokens,
    token_scores,
)

Columns = dict[str, NDArray[Any]]
SATURATED = 0.99


def outcomes(
    data: AttentionData,
    heads: NDArray[Any],
    trajectory: Trajectory,
    constraints: Callable[..., Margins],
) -> Columns:
    """One row per run: what the trained selection is, and how close the direction is to its
    max-margin solution.

    Columns: ``feasible`` (the optimal tokens can be selected), ``saturated`` (every sequence gives
    one token more than 0.99), ``global`` (saturated at the optimal tokens), ``local`` (saturated at
    a feasible, locally optimal selection; includes global), ``all_support`` (every token is a
    support token of the optimal solution), ``separable`` (the trained selection is feasible) and
    ``cosine`` to the solution of the trained selection, NaN where there is none.

    Args:
        data: one instance per run.
        heads: ``(runs, d_x)``.
        trajectory: the runs.
        constraints: the programme of a selection, :func:`~attsvm.margins.selection_margins` or
            another of its form.
    """
    optimal = optimal_tokens(data, heads, ties="first")
    scores = token_scores(data, heads)
    selected = trajectory.selected[-1]
    runs = len(selected)
    best = max_margin([constraints(data.instance(run), optimal[run]) for run in range(runs)])
    reached = max_margin([constraints(data.instance(run), selected[run]) for run in range(runs)])
    saturated = trajectory.softmax_probability[-1].min(axis=-1) > SATURATED
    separable = np.array([solution.status == "optimal" for solution in reached])
    local = np.array(
        [
            ok and bool(locally_optimal(solution, scores[run]).all())
            for run, (ok, solution) in enumerate(zip(separable, reached, strict=True))
        ]
    )
    cosine = 1.0 - trajectory.direction_gap(reached)[-1]
    return {
        "feasible": np.array([solution.status == "optimal" for solution in best]),
        "saturated": saturated,
        "global": saturated & (selected == optimal).all(axis=-1),
        "local": saturated & local,
        "all_support": np.array(
            [s.status == "optimal" and len(s.support) == s.margins.m for s in best]
        ),
        "separable": separable,
        "cosine": np.where(separable, cosine, np.nan),
    }
