"""Outcomes of trained runs: at the globally optimal tokens, at locally optimal ones, or at
neither.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm import (
    AttentionData,
    Margins,
    MarginSolution,
    Trajectory,
    locally_optimal,
    max_margin_batch,
    optimal_tokens,
    token_scores,
)
from attsvm.claims import Evidence, Null

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
    a feasible, locally optimal selection; includes global), ``separable`` (the trained selection
    is feasible) and ``cosine`` to the solution of the trained selection, NaN where there is none.
    Beside them ``local_random`` (random tokens are feasible and locally optimal) and
    ``cosine_other`` (to the solution of another run).

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
    tokens = np.random.default_rng(5).integers(data.T, size=selected.shape)
    best_solutions, trained_solutions, random_solutions = (
        max_margin_batch(
            [
                constraints(data.instance(run), tokens_of_run)
                for run, tokens_of_run in enumerate(selections)
            ]
        )
        for selections in (optimal, selected, tokens)
    )
    saturated = trajectory.softmax_probability[-1].min(axis=-1) > SATURATED
    cosine = 1.0 - trajectory.direction_gap(trained_solutions)[-1]
    return {
        "feasible": best_solutions.optimal,
        "saturated": saturated,
        "global": saturated & (selected == optimal).all(axis=-1),
        "local": saturated & locally_optimal_selections(trained_solutions, scores),
        "local_random": locally_optimal_selections(random_solutions, scores),
        "separable": trained_solutions.optimal,
        "cosine": np.where(trained_solutions.optimal, cosine, np.nan),
        "cosine_other": 1.0
        - trajectory.direction_gap([*trained_solutions[1:], trained_solutions[0]])[-1],
    }


def locally_optimal_selections(
    solutions: Sequence[MarginSolution], scores: NDArray[Any]
) -> NDArray[np.bool_]:
    """True for the selections, one of each run, that are feasible and locally optimal."""
    return np.array(
        [
            solution.status == "optimal" and bool(locally_optimal(solution, scores_of_run).all())
            for solution, scores_of_run in zip(solutions, scores, strict=True)
        ]
    )


def mixed_sizes(*columns: str) -> Null:
    """The null in which every row has the value of a random instance of any size."""

    def of(e: Evidence) -> Evidence:
        finite_rows = np.flatnonzero(np.isfinite(e[columns[0]].astype(np.float64)))
        order = np.arange(e.rows)
        order[finite_rows] = np.random.default_rng(0).permutation(finite_rows)
        return e.but({name: e[name][order] for name in columns})

    return Null("instances of all sizes mixed", of)


def trend(shares: ArrayLike, slack: float) -> NDArray[np.float64]:
    """Growth of shares from one to the next, each with ``slack`` added, and the growth of all, with
    ``slack`` taken off: none is negative when shares grow.
    """
    line = np.asarray(shares, dtype=np.float64)
    return np.concatenate([np.diff(line) + slack, [line[-1] - line[0] - slack]])
