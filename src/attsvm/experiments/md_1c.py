"""Regularisation paths, and descent inside the cones of the local theorem (claims M1 and M2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attsvm.claims import Claim, Evidence, at_least, at_most, between
from attsvm.experiments.experiment import Cell, Experiment, blocks
from attsvm.experiments.md_1 import POTENTIALS, Solutions, divergences, instances

if TYPE_CHECKING:
    from attsvm.report.style import Picture

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Parameters:
    """The instances of :mod:`attsvm.experiments.md_1`."""

    steps: int = 4000
    path_seeds: int = 10
    starts: int = 2
    seeds: int = 100


QUICK = Parameters(4000, 1, 0, 8)

PATH, CONE = 0, 1
RADII = (5.0, 10.0, 20.0, 40.0, 80.0)
# Divergences at RADII for seed 1, measured for the specification.
REFERENCE = {1.75: (0.259, 0.126, 0.048, 0.016, 0.004), 2.0: (0.219, 0.084, 0.031, 0.0099, 0.0027), 3.0: (0.080, 0.026, 0.008, 0.0025)}
OPENING = 0.01  # divergence of the starts of local runs, at most
FAR = 160.0  # size times the gap of better-scoring tokens
CLOSE = 16.0  # size times the square root of the divergence; that of the path of size s, in solutions, is about (1.6 / s)^2
SHARE = 5e-4  # length of a step against the dual iterate at the start
APART = 0.25  # how far beyond the margin tokens of higher score must stand, or cones become narrower than steps


def cells(parameters: Parameters) -> Iterator[Cell]:
    for p in POTENTIALS:
        for first, count in blocks(parameters.path_seeds, 2):
            yield {"part": PATH, "p": p, "first": first + 1, "count": count, "starts": parameters.starts}
        for first, count in blocks(parameters.seeds, 50):
            yield {"part": CONE, "p": p, "first": first + 1, "count": count, "steps": parameters.steps}


def run(part: int, p: float, first: int, count: int, starts: int = 0, steps: int = 0) -> dict[str, Any]:
    columns = path(p, first, count, starts) if part == PATH else cone(p, first, count, steps)
    return {"part": np.full(count, part), "p": np.full(count, p), "seed": np.arange(first, first + count), **columns}


def path(p: float, first: int, count: int, starts: int) -> dict[str, Any]:
    r"""Divergences of the path from the solution of the optimal tokens at all radii."""
    from attsvm.dynamics import regularization_path
    from attsvm.geometry import Lp
    from attsvm.selection import optimal_tokens

    data, heads = instances(first, count)
    solutions = Solutions(data)(optimal_tokens(data, heads), p)
    found = [regularization_path(data.instance(k), heads[k], Lp(p), RADII, starts=starts).W for k in range(count)]
    return {
        "divergence": np.concatenate([divergences(W[:, None], [s], p) for W, s in zip(found, solutions, strict=True)]),
        "least": [s.norm for s in solutions],
    }


def cone(p: float, first: int, count: int, steps: int) -> dict[str, Any]:
    r"""Descent from the edge of a narrow cone around a locally optimal direction, another than the optimal tokens' where there is one.

    Columns: ``growth``, the least factor of the norm between records; ``widening``, the largest divergence on the way over that at the
    start; ``ascent``, the least share of :math:`\langle-\nabla L,W^{mm}\rangle` in its absolute terms; ``fall``, the last divergence over
    the first.
    """
    from attsvm.data import AttentionData
    from attsvm.dynamics import LogSpaced, train
    from attsvm.geometry import Lp
    from attsvm.models import Attention
    from attsvm.optim import MirrorDescent
    from attsvm.selection import in_bregman_cone, token_scores

    data, heads = instances(first, count)
    selected, solutions = _locally_optimal(data, heads, p)
    scores = token_scores(data, heads)
    starts = [_edge(s, scores[k], p, np.random.default_rng([first + k, 7])) for k, s in enumerate(solutions)]
    begin, sizes = (np.stack(part) for part in zip(*starts, strict=True))
    # queries in units of one over the size: all runs are of size one, and one step length suits them all
    data = AttentionData(data.tokens, data.labels, data.queries * sizes[:, None, None])
    model = Attention.cross(data, heads, None, init=begin)
    # Normalised steps, short against the dual iterate, follow the flow along which plain steps would hardly move: gradients are e^-size.
    lr = SHARE * float(np.mean(Lp(p).value(begin))) ** (p - 1.0)
    trajectory = train(model, data, MirrorDescent(model.parameters(), lr=lr, p=p, normalize="run"), steps, LogSpaced(60))
    divergence = trajectory.direction_divergence(solutions, p).T
    size = Lp(p).value(trajectory.W)
    inside = np.stack(
        [in_bregman_cone(trajectory.W[:, k], s, 1.0001 * divergence[k, 0], 0.999 * size[0, k]) for k, s in enumerate(solutions)]
    )
    return {
        "steps": np.tile(trajectory.steps, (count, 1)),
        "course": divergence,
        "growth": np.exp(np.diff(np.log(size), axis=0).min(axis=0)),
        "widening": divergence.max(axis=1) / divergence[:, 0],
        "inside": inside.all(axis=1),
        "ascent": _ascent(data, heads, selected, solutions, trajectory.W),
        "fall": divergence[:, -1] / divergence[:, 0],
        "other": (trajectory.selected != selected).any(axis=(0, 2)),
        "spurious": (selected != np.argmax(scores, axis=-1)).any(axis=1),
        "start": divergence[:, 0],
        "sizes": sizes,
    }


def _locally_optimal(data: Any, heads: FloatArray, p: float) -> tuple[NDArray[np.int64], list[Any]]:
    """For every run a locally optimal selection: the optimal tokens with one second choice where that is one, else the optimal tokens.

    Tokens of higher score stand :data:`APART`.
    """
    from attsvm.selection import locally_optimal, token_scores

    scores = token_scores(data, heads)
    order = np.argsort(-scores, axis=-1)
    solve = Solutions(data)
    selected = order[..., 0].copy()
    for i in range(data.n):
        tried = order[..., 0].copy()
        tried[:, i] = order[:, i, 1]
        for run, solution in enumerate(solve(tried, p)):
            if solution.status == "optimal" and locally_optimal(solution, scores[run]).all() and _gap(solution, scores[run]) >= APART:
                selected[run] = tried[run]
    return selected, solve(selected, p)


def _gap(solution: Any, scores: FloatArray) -> float:
    """How far beyond the margin the nearest token stands that scores higher than the selected one; infinite without one."""
    margins = solution.margins
    better = scores[margins.sequence, margins.token] > scores[margins.sequence, margins.selected[margins.sequence]]
    return float((margins(solution.W)[better] - 1.0).min(initial=np.inf))


def _edge(solution: Any, scores: FloatArray, p: float, generator: np.random.Generator) -> tuple[FloatArray, float]:
    r"""Weights in a random direction from the solution at the edge of the derived cone, as long as the solution; and their size there.

    With :math:`\rho` the least margin of a token that scores higher than the selected one and :math:`B=\max\|A_{it}\|_q`, all margins move
    by less than a quarter of :math:`(\rho-1)/\|W^{mm}\|_p` within the distance :math:`(\rho-1)/4B\|W^{mm}\|_p`. The size makes such tokens
    weigh :math:`e^{-\mathrm{FAR}/2}` of a neighbour, and the path of that size lie well inside.
    """
    from scipy.optimize import brentq

    from attsvm.geometry import Lp, PowerPotential

    W, margins = solution.W, solution.margins
    axis = W / solution.norm
    aside = generator.standard_normal(W.shape)
    aside /= Lp(p).value(aside)

    def excess(t: float) -> float:
        return float(PowerPotential(p).direction_divergence(axis, axis + t * aside)) - OPENING

    gap = _gap(solution, scores)
    terms = margins.differences[:, :, None] * margins.queries[margins.sequence][:, None, :]
    reach = float(Lp(p).dual.value(terms).max())
    distance = min(brentq(excess, 1e-4, 2.0), gap / (4.0 * reach * solution.norm))
    point: FloatArray = axis + distance * aside
    point *= solution.norm / Lp(p).value(point)
    opening = float(PowerPotential(p).direction_divergence(W, point))
    return point, max(FAR / gap, CLOSE / np.sqrt(opening))


def _ascent(data: Any, heads: FloatArray, selected: NDArray[np.int64], solutions: list[Any], W: FloatArray) -> FloatArray:
    r"""Least share over the records of :math:`\sum_{t\ne\alpha}s_t(\bar\gamma-\gamma_t)q_t`, weighted by slopes, in its absolute terms.

    A common factor of all attention away from the selected tokens does not matter, so none underflows.
    """
    from attsvm.selection import token_scores

    scores = token_scores(data, heads)
    logits = np.einsum("rntd,krde,rne->krnt", data.tokens, W, data.queries, optimize=True)
    at = selected[None, ..., None]
    away = logits - np.take_along_axis(logits, np.broadcast_to(at, (len(W), *at.shape[1:])), axis=-1)
    others = np.arange(data.T) != selected[..., None]
    top = np.where(others, away, -np.inf).max(axis=(-2, -1), keepdims=True)
    weight = np.where(others, np.exp(np.minimum(away - top, 0.0)), 0.0)
    chosen = np.take_along_axis(scores, selected[..., None], axis=-1)
    q = np.ones(scores.shape)
    for run, solution in enumerate(solutions):
        q[run, solution.margins.sequence, solution.margins.token] = solution.margins(solution.W)
    terms = weight * ((chosen - scores) * q / (1.0 + np.exp(chosen)))
    least: FloatArray = (terms.sum(axis=(-2, -1)) / np.abs(terms).sum(axis=(-2, -1))).min(axis=0)
    return least


def _paths(evidence: Evidence, p: float) -> FloatArray:
    return evidence.where(part=PATH, p=p)["divergence"]


def _measure_path_fall(evidence: Evidence) -> FloatArray:
    return np.concatenate([np.diff(_paths(evidence, p), axis=1).max(axis=1) for p in POTENTIALS])


def _measure_path_reference(evidence: Evidence) -> FloatArray:
    first = [evidence.where(part=PATH, p=p, seed=1)["divergence"][0] for p in POTENTIALS]
    return np.concatenate([found[: len(REFERENCE[p])] / REFERENCE[p] for p, found in zip(POTENTIALS, first, strict=True)])


def _measure_path_level(evidence: Evidence) -> FloatArray:
    return np.concatenate([_paths(evidence, p)[:, RADII.index(40.0)] for p in POTENTIALS])


def _cones(column: str) -> Any:
    def measure(evidence: Evidence) -> FloatArray:
        return evidence.where(part=CONE)[column]

    return measure


EDGE = "at the derived opening and size every run should"
CLAIMS = (
    Claim(
        "M1",
        "The regularisation path turns to the solution of the optimal tokens: its divergence falls at every radius.",
        "recalled",
        _measure_path_fall,
        at_most(0.0, "strictly decreasing, the specification's; every seed and p"),
        reference="P3, regularisation path (number recalled); specification T1",
    ),
    Claim(
        "M1b",
        "At R = 40 the divergence is at most .02.",
        "ours",
        _measure_path_level,
        at_most(0.02, "the specification's, which looked at seed 1"),
        reference="specification T1",
        explanation="Seed 4 with p = 1.75 has .0240 at R = 40 and .0075 at R = 80: R is not measured in solutions, and that one "
        "has norm 4.7 where seed 1, which the specification looked at, has 3.5. The other 29 paths are within .02.",
    ),
    Claim(
        "M1c",
        "Divergences of seed 1 at R = 5, 10, 20, 40, 80, relative to the specification's.",
        "ours",
        _measure_path_reference,
        between(0.9, 1.1, "its table has one to three digits"),
        reference="specification T1",
    ),
    Claim(
        "M2",
        "From the edge of a narrow cone around a locally optimal direction, descent never leaves the cone.",
        "recalled",
        _cones("widening"),
        at_most(1.0 + 1e-9, EDGE),
        reference="P3, local convergence (number recalled); specification T2",
    ),
    Claim(
        "M2c",
        "The norm grows on the way.",
        "recalled",
        _cones("growth"),
        at_least(1.0, EDGE),
        reference="specification T2",
    ),
    Claim(
        "M2d",
        "Minus the gradient has a positive inner product with the solution at every record.",
        "recalled",
        _cones("ascent"),
        at_least(1e-6, EDGE + "; a share of the absolute terms, more than rounding"),
        reference="specification T2",
    ),
    Claim(
        "M2e",
        "The direction converges to the local solution: the divergence at the end is smaller than at the start.",
        "recalled",
        _cones("fall"),
        at_most(0.9, EDGE + "; a tenth is more than the steps' own jitter"),
        reference="specification T3",
    ),
)


def plot(evidence: Evidence) -> Iterator[Picture]:
    from attsvm.report.style import ATTENTION, BEST, FAINT, TRAINED, canvas, logarithmic, render

    colours = dict(zip(POTENTIALS, (ATTENTION, TRAINED, BEST), strict=True))
    with canvas(3.0, 1, 2, width=8.4) as (figure, axes):
        for p in POTENTIALS:
            rows = _paths(evidence, p)
            for row in rows:
                axes[0].plot(RADII, row, "-", color=colours[p], linewidth=0.6, alpha=0.5)
            axes[0].plot(RADII, np.exp(np.log(rows).mean(axis=0)), "-", color=colours[p], label=f"p = {p:g}")
            axes[0].plot(RADII[: len(REFERENCE[p])], REFERENCE[p], "x", color=colours[p], markersize=6, markeredgewidth=1.1)
            runs = evidence.where(part=CONE, p=p)
            course, step = runs["course"] / runs["course"][:, :1], runs["steps"][0]
            axes[1].plot(step[1:], np.median(course, axis=0)[1:], "-", color=colours[p])
            low, high = np.quantile(course, (0.05, 0.95), axis=0)
            axes[1].fill_between(step[1:], low[1:], high[1:], color=colours[p], alpha=0.13, linewidth=0)
        axes[0].plot([], [], "x", color=FAINT, label="specification, seed 1")
        axes[1].axhline(1.0, color=FAINT, linewidth=0.8)
        logarithmic(axes[0].xaxis, np.array(RADII))
        logarithmic(axes[0].yaxis, evidence.where(part=PATH)["divergence"])
        logarithmic(axes[1].xaxis, step[1:])
        axes[1].set_ylim(0, None)
        axes[0].set_title("Regularisation path: divergence at radius R")
        axes[1].set_title("From the edge of a cone: divergence over its start")
        axes[0].set_xlabel("R")
        axes[1].set_xlabel("step")
        axes[0].legend(frameon=False, fontsize=8.5, labelcolor=FAINT, loc="lower left")
        yield render(
            figure,
            "paths-and-cones",
            "Global paths and local cones",
            "Left: every seed and the geometric mean; crosses: measured for the specification. Right: median, and 5 to 95 %, of runs "
            "that start at "
            "the edge of a cone around a locally optimal direction; none should rise above one.",
            "Paths fall to below a hundredth of their first value; local runs fall from one.",
        )


EXPERIMENT = Experiment(
    id="md-1c",
    title="Regularisation paths and local cones",
    reference="Optimizing Attention with Mirror Descent, theorems on paths and local convergence (numbers recalled); specification T1, T2",
    protocol="The instances of md-1. Best weights of norm R = 5 to 80 in the norms of p = 1.75, 2, 3, searched from several starts. "
    "Short normalised "
    "steps from the edge of a derived cone (divergence at most .01) around a locally optimal selection that differs from the optimal "
    "one in one sequence "
    "where there is one.",
    parameters=Parameters(),
    quick=QUICK,
    cells=cells,
    run=run,
    claims=CLAIMS,
    plot=plot,
    notes="The size of the start matters: in the same cones at a quarter of the size, 7 in 100 runs first widen by up to 6 %, "
    "whatever the step, "
    "and then converge.",
)
