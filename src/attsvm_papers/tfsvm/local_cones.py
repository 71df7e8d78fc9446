r"""The derived cone of the local theorems: the angle by which weights may turn from a solution
before another rival overtakes its neighbours.

With :math:`\rho` the least margin of a non-neighbour, :math:`B=\max\|A_{it}\|_F` and
:math:`\Theta=1/\|W^{mm}\|_F`, the margins of unit directions at a chord c move by at most Bc, and a
third of :math:`\Theta(\rho-1)` leaves the neighbours in front.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from attsvm import (
    AttentionData,
    Cone,
    MarginSolution,
    Norm,
    locally_optimal,
    max_margin_batch,
    optimal_tokens,
    selection_margins,
    token_scores,
)
from attsvm.datasets.attention_data import FloatArray
from attsvm_papers import kit

# exp(-FAR) is what a non-neighbour may weigh against a neighbour at the edge of the derived cone
FAR = 30.0
POINTS = 50  # random weights there
WIDEST = 5.0  # degrees of the half-angle of a narrow cone
PATH_SIZES = (30.0, 1000.0, 30_000.0)  # of the weights of local paths, in norms of the solution
NARROW = kit.at_most(
    0.01,
    "1 - cosine at 30000 norms relative to that of the cone's boundary: a tenth of the opening,"
    " squared",
    share=kit.MOST,
)


def solve_every_selection(
    data: AttentionData, head: FloatArray, norm: Norm | None = None, tol: float = 1e-11
) -> tuple[list[MarginSolution], NDArray[np.bool_], int]:
    """The solution of every selection in a norm, whether it is locally optimal there, and which of
    them is the optimal one.
    """
    scores = token_scores(data, head)
    choices = list(itertools.product(range(data.T), repeat=data.n))
    # gaps of paths fall below what the default tolerance leaves of a direction
    solutions = max_margin_batch(
        [selection_margins(data, choice) for choice in choices], norm, tol=tol
    )
    is_local = [s.status == "optimal" and locally_optimal(s, scores).all() for s in solutions]
    return (
        list(solutions),
        np.array(is_local),
        choices.index(tuple(optimal_tokens(data, head).tolist())),
    )


def half_angle(solution: MarginSolution, movement: float) -> float:
    """Half-angle in radians of the cone in which margins of weights of the solution's size move by
    ``movement`` at most.
    """
    margins = solution.margins
    reach = (
        np.linalg.norm(margins.differences, axis=1)
        * np.linalg.norm(margins.queries, axis=1)[margins.sequence]
    ).max()
    chord = movement / (float(np.linalg.norm(solution.W)) * float(reach))
    return float(2.0 * np.arcsin(min(1.0, 0.5 * chord)))


def margin_surplus(solution: MarginSolution) -> float:
    r""":math:`\rho-1`, infinite where every rival is a neighbour."""
    margins = solution.margins
    return float(np.delete(margins(solution.W), solution.support).min(initial=np.inf)) - 1.0


def narrow_cone(solution: MarginSolution) -> Cone:
    """The cone of Frobenius angles in which neighbours stay ahead of other rivals, of half-angle 5
    degrees at most.
    """
    degrees = float(np.degrees(half_angle(solution, margin_surplus(solution) / 3.0)))
    return Cone(solution.W, min(WIDEST, degrees))


def gap_at_boundary(degrees: FloatArray | float) -> FloatArray:
    """1 - cosine at the boundary of a cone."""
    edge: FloatArray = 1.0 - np.cos(np.radians(degrees))
    return edge


def random_weights_in_cone(
    solution: MarginSolution,
    angle: float,
    radius: float,
    count: int,
    generator: np.random.Generator,
) -> FloatArray:
    """Random weights ``(count, d_x, d_z)`` at this angle to a Frobenius solution, of size
    ``radius`` solutions.
    """
    direction = solution.W / solution.norm
    aside = generator.standard_normal((count, *direction.shape))
    aside -= np.sum(aside * direction, axis=(-2, -1), keepdims=True) * direction
    aside /= np.linalg.norm(aside, axis=(-2, -1), keepdims=True)
    return radius * solution.norm * (np.cos(angle) * direction + np.sin(angle) * aside)


def ascent_in_cone(
    solution: MarginSolution,
    scores: FloatArray,
    generator: np.random.Generator,
    *others: FloatArray,
) -> list[float]:
    r"""Least share of :math:`\langle-\nabla L(W),W^{mm}\rangle` in its absolute terms, over random
    W at the edge of the derived cone; then the same with each of ``others`` in place of
    :math:`W^{mm}`.

    In the cone of opening :math:`\sqrt{2\mu}=\Theta(\rho-1)/4B` margins move by less than a third
    of :math:`\Theta(\rho-1)`. At the size chosen, non-neighbours weigh :math:`e^{-\mathrm{FAR}}` of
    a neighbour. The solution is that of the Frobenius norm.
    """
    gap = min(margin_surplus(solution), 1.0)
    W = random_weights_in_cone(
        solution, half_angle(solution, 0.25 * gap), 3.0 * FAR / gap, POINTS, generator
    )
    return [float(ascent_at(solution, scores, W, along).min()) for along in (solution.W, *others)]


def ascent_at(
    solution: MarginSolution, scores: FloatArray, W: FloatArray, along: FloatArray | None = None
) -> FloatArray:
    r"""Shares ``(points,)`` of :math:`\langle-\nabla L(W),V\rangle` in its absolute terms, for
    weights ``(points, d_x, d_z)``; V is ``along``, the solution itself when left out.

    The sum is that of :math:`s_t(\bar\gamma-\gamma_t)q_t` over all rivals t, q their margins in V,
    weighted by the slopes of the loss, with :math:`\bar\gamma` the mean score under attention.
    A common factor of all attention away from the selected tokens does not matter, so none
    underflows.
    """
    margins = solution.margins
    logits = np.einsum(
        "cd,pde,ce->pc", margins.differences, W, margins.queries[margins.sequence], optimize=True
    )
    least = logits.min(axis=1, keepdims=True)
    weight = np.exp(least - logits)
    best = scores[np.arange(margins.n), margins.selected]
    lead = best[margins.sequence] - scores[margins.sequence, margins.token]
    # How far the mean score is behind the best one, (points, n), from attention itself.
    sequence_of_row = np.arange(margins.n)[:, None] == margins.sequence
    odds = np.exp(-np.maximum(logits, -700.0))
    behind = (odds * lead) @ sequence_of_row.T / (1.0 + odds @ sequence_of_row.T)
    slope = 1.0 / (1.0 + np.exp(best - behind))
    share = weight / (1.0 + odds @ sequence_of_row.T)[:, margins.sequence]
    terms = (
        share
        * (lead - behind[:, margins.sequence])
        * margins(solution.W if along is None else along)
        * slope[:, margins.sequence]
    )
    return terms.sum(axis=1) / np.abs(terms).sum(axis=1)
