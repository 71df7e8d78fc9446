"""Toys in the plane: how W and factors move, seen through the two vectors they make of the
queries.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from attsvm import Nuclear, max_margin, optimal_tokens, selection_margins, train
from attsvm.datasets import toy
from attsvm.dynamics import AtSteps, direction_gap
from attsvm.models import Attention
from attsvm.optim import SteepestDescent
from attsvm_papers.kit import (
    ATTENTION,
    BEST,
    INK,
    TRAINED,
    Evidence,
    legend,
    loglog,
    replaced,
    same,
)
from attsvm_papers.tfsvm.guarded import EPSILON, GuardedDescent

W, PUBLISHED, SEPARATE, TOGETHER = range(4)
"""Ways to train: W; factors with the released ridge and guard; in log space, normalised separately;
the same, normalised together.
"""
MARKS = (
    *range(200),
    *range(200, 2001, 10),
    *(round(10.0**exponent) for exponent in np.linspace(3.4, 5.0, 17)),
    10000,
    20000,
)


def trajectories(name: str, method: int, starts: int, steps: int, lr: float) -> dict[str, Any]:
    """One row per start of a toy: weights and their distance to both solutions at :data:`MARKS`
    (the published way ends at step 2000).

    Columns: ``start``, ``step``, ``W``, ``frobenius`` and ``nuclear`` (direction gaps
    to the certified solutions), ``size`` (nuclear norm), ``second`` (second singular value over the
    first), ``K`` and ``Q`` (norms of the factors, NaN for W), the solutions and their norms, and
    ``error_frobenius``, ``error_nuclear``: their largest entrywise distance to the reference.

    Args:
        name: of the toy, see :func:`attsvm.datasets.toy`.
        method: W from zero, or a way to train factors from Q = 0 and K of normal entries of size
            0.1.
        starts: how many starts of the factors.
        steps: of normalised gradient descent.
        lr: its step size.
    """
    problem = toy(name)
    data, head = problem.data, problem.head
    assert head is not None
    margins = selection_margins(data, optimal_tokens(data, head))
    frobenius, nuclear = max_margin(margins, tol=1e-12), max_margin(margins, Nuclear(), tol=1e-10)
    runs = 1 if method == W else starts
    marks = AtSteps(MARKS).steps(steps)
    K = np.stack(
        [0.1 * np.random.default_rng([1, start]).standard_normal((2, 2)) for start in range(runs)]
    )
    model = Attention.cross(
        data,
        head,
        runs=runs,
        init=None if method == W else (K, np.zeros_like(K)),
        parameterization="W" if method == W else "KQ",
        stacked=method == TOGETHER,
        penalty=EPSILON if method == PUBLISHED else 0.0,
    )
    if method == PUBLISHED:
        course = train(
            model, data, GuardedDescent(model.parameters(), lr), min(steps, 2000), AtSteps(MARKS)
        )
    else:
        course = train(
            model, data, SteepestDescent(model.parameters(), lr=lr), steps, AtSteps(MARKS)
        )
    weights = np.full((len(marks), runs, 2, 2), np.nan)
    weights[: len(course.W)] = course.W
    parts = course.parameters
    pair = (
        (parts["KQ"][..., :2, :], parts["KQ"][..., 2:, :])
        if method == TOGETHER
        else (parts.get("K"), parts.get("Q"))
    )
    norms = {name: np.full((len(marks), runs), np.nan) for name in "KQ"}
    for name, part in zip("KQ", pair, strict=True):
        if part is not None:
            norms[name][: len(part)] = np.linalg.norm(part, axis=(-2, -1))
    sizes = np.linalg.svd(np.nan_to_num(weights), compute_uv=False)
    missing = np.isnan(weights).any(axis=(-2, -1))
    gaps = {
        key: np.where(missing, np.nan, direction_gap(weights, best)).T
        for key, best in (("frobenius", frobenius), ("nuclear", nuclear))
    }
    return {
        "start": np.arange(runs),
        "step": same(marks),
        "W": np.moveaxis(weights, 1, 0),
        **gaps,
        "size": np.where(missing, np.nan, sizes.sum(axis=-1)).T,
        "second": (
            np.where(
                missing, np.nan, sizes[..., 1] / np.maximum(sizes[..., 0], np.finfo(float).tiny)
            ).T
        ),
        "K": norms["K"].T,
        "Q": norms["Q"].T,
        "solved_frobenius": same(frobenius.W),
        "solved_nuclear": same(nuclear.W),
        "error_frobenius": np.abs(frobenius.W - problem.reference["W"]).max(),
        "error_nuclear": np.abs(nuclear.W - problem.reference["W_nuclear"]).max(),
        "nuclear_norm": nuclear.norm,
        "frobenius_norm": frobenius.norm,
        "frobenius_size": np.linalg.svd(frobenius.W, compute_uv=False).sum(),
    }


def _apart(rows: Evidence) -> Any:
    return np.abs(rows["solved_frobenius"] - rows["solved_nuclear"]).max(axis=(-2, -1))


SWAPPED = replaced(
    "each solution as that of the other norm", error_frobenius=_apart, error_nuclear=_apart
)


def second_of_frobenius(rows: Evidence) -> Any:
    """The Frobenius solution's second singular value over the first, at every record."""
    sizes = np.linalg.svd(rows["solved_frobenius"], compute_uv=False)
    return np.broadcast_to((sizes[:, 1] / sizes[:, 0])[:, None], rows["second"].shape)


def draw_courses(ax: Any, rows: Evidence, queries: Any, every: int, colour: str) -> None:
    """The curves W(k) z_i of the first start, with an arrow every so many steps inside the axes'
    limits.
    """
    W, step = rows["W"][0], rows["step"][0]
    for z in queries:
        points = W @ z
        ax.plot(*points.T, "-", color=colour, linewidth=1.4)
        marked = np.flatnonzero((step % every == 0) & (step > 0) & (step <= 2000))
        for k in marked.tolist():
            if all(
                low < value < high
                for value, (low, high) in zip(
                    points[k], (ax.get_xlim(), ax.get_ylim()), strict=True
                )
            ):
                ax.annotate(
                    "",
                    points[k],
                    points[k - 1],
                    arrowprops={
                        "arrowstyle": "-|>",
                        "color": colour,
                        "linewidth": 0,
                        "mutation_scale": 9,
                    },
                )


def draw_rays(ax: Any, directions: Iterable[Any], style: str, colour: str) -> None:
    """Rays from the origin beyond the axes' limits."""
    for direction in directions:
        end = 1e3 * direction / np.linalg.norm(direction)
        ax.plot([0, end[0]], [0, end[1]], style, color=colour, linewidth=1.1)


def draw_gaps(ax: Any, evidence: Evidence) -> None:
    """Direction gap of every start to the solution of its own norm, on logarithmic axes."""
    seen = []
    for method, column, colour, label in (
        (W, "frobenius", TRAINED, "W"),
        (PUBLISHED, "nuclear", ATTENTION, "K and Q as published"),
        (SEPARATE, "nuclear", INK, "no ridge, two norms"),
        (TOGETHER, "nuclear", BEST, "no ridge, one norm"),
    ):
        rows = evidence.where(method=method)
        step, gaps = rows["step"][0][1:], rows[column][:, 1:]
        lines = ax.plot(step, gaps.T, "-", color=colour, linewidth=1.2)
        lines[0].set_label(label)
        seen.append(gaps.ravel())
    loglog(ax, step, np.concatenate(seen))
    ax.set(xlabel="step", ylabel="1 - cosine")
    legend(ax, loc="lower left")
