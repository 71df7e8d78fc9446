"""Starts at the edge of narrow cones around locally optimal directions, and the ascent of descent
inside them.
"""

from typing import Any

import numpy as np
from scipy.optimize import brentq

from attsvm import Lp, PowerPotential, locally_optimal, token_scores
from attsvm.datasets.attention_data import FloatArray
from attsvm_papers.md.mirror_runs import Solutions
from attsvm_papers.tfsvm.local_cones import ascent_at

OPENING = 0.01  # divergence of the starts of local runs, at most
FAR = 160.0  # size times the gap of better-scoring tokens
# size times the square root of the divergence; that of the path of size s, in solutions, is about
# (1.6 / s)^2
CLOSE = 16.0
# how far beyond the margin tokens of higher score must stand, or cones become narrower than steps
APART = 0.25


def local_solutions(data: Any, heads: FloatArray, p: float) -> list[Any]:
    """For every run the solution of a locally optimal selection: the optimal tokens with one second
    choice where that is one, else the optimal tokens.

    Tokens of higher score stand :data:`APART`.
    """
    scores = token_scores(data, heads)
    order = np.argsort(-scores, axis=-1)
    solve = Solutions(data)
    selected = order[..., 0].copy()
    for i in range(data.n):
        candidate = order[..., 0].copy()
        candidate[:, i] = order[:, i, 1]
        for run, solution in enumerate(solve(candidate, p)):
            local = solution.status == "optimal" and locally_optimal(solution, scores[run]).all()
            if local and margin_beyond(solution, scores[run]) >= APART:
                selected[run] = candidate[run]
    return solve(selected, p)


def margin_beyond(solution: Any, scores: FloatArray) -> float:
    """The distance beyond the margin of the nearest token that scores higher than the selected one;
    infinite without one.
    """
    margins = solution.margins
    better = (
        scores[margins.sequence, margins.token]
        > scores[margins.sequence, margins.selected[margins.sequence]]
    )
    return float((margins(solution.W)[better] - 1.0).min(initial=np.inf))


def edge_of_cone(
    solution: Any, scores: FloatArray, p: float, generator: np.random.Generator
) -> tuple[FloatArray, float]:
    r"""Weights in a random direction from the solution at the edge of the derived cone, as long as
    the solution; and their size there.

    With :math:`\rho` the least margin of a token that scores higher than the selected one and
    :math:`B=\max\|A_{it}\|_q`, all margins move by less than a quarter of
    :math:`(\rho-1)/\|W^{mm}\|_p` within the distance :math:`(\rho-1)/4B\|W^{mm}\|_p`. The size
    makes such tokens weigh :math:`e^{-\mathrm{FAR}/2}` of a neighbour, and the path of that size
    lie well inside.
    """
    W, margins = solution.W, solution.margins
    axis = W / solution.norm
    aside = generator.standard_normal(W.shape)
    aside /= Lp(p).value(aside)

    def excess(t: float) -> float:
        return float(PowerPotential(p).direction_divergence(axis, axis + t * aside)) - OPENING

    gap = margin_beyond(solution, scores)
    terms = margins.differences[:, :, None] * margins.queries[margins.sequence][:, None, :]
    reach = float(Lp(p).dual.value(terms).max())
    distance = min(brentq(excess, 1e-4, 2.0), gap / (4.0 * reach * solution.norm))
    point: FloatArray = axis + distance * aside
    point *= solution.norm / Lp(p).value(point)
    opening = float(PowerPotential(p).direction_divergence(W, point))
    return point, max(FAR / gap, CLOSE / np.sqrt(opening))


def least_ascent(
    scores: FloatArray, solutions: list[Any], W: FloatArray, along: list[Any] | None = None
) -> FloatArray:
    r"""Least share over the records ``(records, runs, d_x, d_z)`` of
    :math:`\langle-\nabla L,V\rangle` in its absolute terms; V is each run's solution, or that of
    ``along``.
    """
    return np.array(
        [
            ascent_at(solution, scores[run], W[:, run], (along or solutions)[run].W).min()
            for run, solution in enumerate(solutions)
        ]
    )
