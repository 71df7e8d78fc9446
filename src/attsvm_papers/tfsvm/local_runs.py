"""Runs from random weights, the max-margin solutions of the tokens that each selects, and runs that
start beside one of them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attsvm import (
    AttentionData,
    MarginSolution,
    Nuclear,
    max_margin_batch,
    token_scores,
    train,
)
from attsvm.attention import Attention
from attsvm.datasets import unit_sphere
from attsvm.margins import selection_batch
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps
from attsvm_papers import kit
from attsvm_papers.tfsvm.convergence import locally_optimal_selections
from attsvm_papers.tfsvm.local_cones import ascent_in_cone, random_weights_in_cone

EVERY = 20  # steps between two records
WIDE, START = 0.1, 10.0  # angle (radians) and smallest margin at which local runs start


def local_runs(
    n: int,
    T: int,
    d: int,
    steps: int,
    lr: float,
    seeds: Sequence[int],
    factors: bool,
    ridge: float,
    self_attention: bool = False,
) -> dict[str, Any]:
    """One row per seed of :func:`attsvm.datasets.unit_sphere`: normalised descent on W, or on
    factors with a ridge as penalty.

    Its course with the cosines to both solutions of its last selection, what these are, and for W
    the test of the cone around them.
    """
    data, heads = unit_sphere(n, T, d, seeds, self_attention=self_attention)
    model = Attention.cross(
        data,
        heads,
        init=("uniform", seeds[0]),
        parameterization="KQ" if factors else "W",
        penalty=ridge,
    )
    trajectory = train(
        model,
        data,
        SteepestDescent(model.parameters(), lr=lr),
        steps,
        AtSteps(range(0, steps, EVERY)),
    )
    selected = trajectory.selected[-1]
    frobenius = max_margin_batch(selection_batch(data, selected))
    nuclear = max_margin_batch(selection_batch(data, selected), Nuclear())
    assert (frobenius.optimal & nuclear.optimal).all()
    scores = token_scores(data, heads)
    local = locally_optimal_selections(frobenius, scores)
    columns = {
        "step": kit.same(trajectory.steps),
        "probability": trajectory.softmax_probability.mean(axis=-1).T,
        "frobenius": 1.0 - trajectory.direction_gap(frobenius).T,
        "nuclear": 1.0 - trajectory.direction_gap(nuclear).T,
        "size": np.linalg.svd(trajectory.W, compute_uv=False).sum(axis=-1).T,
        "local": local,
    }
    if factors:
        return columns
    tokens = np.random.default_rng(3).integers(T, size=selected.shape)
    random_solutions = max_margin_batch(selection_batch(data, tokens))
    columns["local_random"] = locally_optimal_selections(random_solutions, scores)
    return columns | _run_from_cone(data, heads, selected, (frobenius, nuclear), local, steps)


def _run_from_cone(
    data: Any,
    heads: Any,
    selected: Any,
    solutions_of_norms: tuple[Sequence[MarginSolution], Sequence[MarginSolution]],
    local: Any,
    steps: int,
) -> dict[str, Any]:
    """Measures of both halves of the local theorem: the direction of descent in the cone, and the
    ends of runs from it. Beside them the same for the next run's solution, and for the nuclear one.
    """
    solutions, nuclear = solutions_of_norms
    local_rows = np.flatnonzero(local)
    names = ("ascent", "ascent_other", "before", "after", "after_nuclear", "kept")
    columns = {f"cone_{name}": np.full(len(local), np.nan) for name in names}
    scores = token_scores(data, heads)
    starts = []
    for k in local_rows.tolist():
        generator = np.random.default_rng([17, k])
        columns["cone_ascent"][k], columns["cone_ascent_other"][k] = ascent_in_cone(
            solutions[k], scores[k], generator, solutions[k - 1].W
        )
        starts.append(random_weights_in_cone(solutions[k], WIDE, START, 1, generator)[0])
    subset = AttentionData(
        data.tokens[local_rows],
        data.labels[local_rows],
        data.queries[local_rows],
        data.mask[local_rows],
    )
    model = Attention.cross(subset, heads[local_rows], init=np.stack(starts))
    trajectory = train(
        model, subset, SteepestDescent(model.parameters(), lr=0.1), steps, AtSteps(())
    )
    gaps = trajectory.direction_gap([solutions[k] for k in local_rows.tolist()])
    columns["cone_before"][local_rows], columns["cone_after"][local_rows] = gaps[0], gaps[-1]
    columns["cone_after_nuclear"][local_rows] = trajectory.direction_gap(
        [nuclear[k] for k in local_rows.tolist()]
    )[-1]
    columns["cone_kept"][local_rows] = (trajectory.selected == selected[local_rows]).all(
        axis=(0, -1)
    )
    return columns
