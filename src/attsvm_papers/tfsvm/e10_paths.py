"""Regularisation paths in many norms.

Two small instances, and random ones with n = 2, T = 4, d = 3; the excess loss is minimised in log
space at fixed size, from random starts and the max-margin direction. That is done for W in the
Frobenius and the l3 norm, for K and Q of bounded size, and for W inside the cone of the theorem
around a locally optimal direction that is not global, 5 degrees wide at most. Then for W in five
other norms, on random instances with n = 3, T = 4, d = 5.

Source: Transformers as Support Vector Machines, Theorem 2

Notes: The cone is in the plane, and in the first draw of the unit sphere that has a locally optimal
direction beside the global one. The draw of the other norms has none. Where a norm has kinks,
solutions need not be unique, so the margin is measured and not the direction, and the search may
stay at the max-margin solution that it starts from, if no other start ends at a smaller loss.
"""

import itertools
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from attsvm import (
    Cone,
    Frobenius,
    Lp,
    Nuclear,
    max_margin,
    optimal_tokens,
    parse_norm,
    regularization_path,
)
from attsvm.datasets import toy, unit_sphere
from attsvm.margins import selection_margins
from attsvm_papers import kit
from attsvm_papers.tfsvm.local_cones import gap_at_boundary, narrow_cone, solve_every_selection

PLANE, SPHERE = INSTANCES = ("plane", "sphere")
"""The toy ``plane`` and :func:`attsvm.datasets.unit_sphere` (2, 3, 4, seed 0)."""
FROBENIUS, NUCLEAR, LP, LOCAL = "Frobenius", "nuclear", "l3", "cone"
"""What is bounded: the Frobenius norm of W, the size of K and Q, the l3 norm of W, or W inside a
cone.
"""
SHAPE = (2, 4, 3)  # n, T, d of random instances
SHAPE_OF_NORMS = (3, 4, 5)  # n, T, d in other norms
WITH_KINKS, SMOOTH = ("spec", "rows", "maxrow"), ("schatten:3", "lp:3")
FARTHEST = 1000.0  # their radius, in norms of the solution
RADII = (10.0, 30.0, 100.0, 300.0, 1000.0)
# Of an independent program at these: direction gaps (Frobenius), set distances (nuclear).
REFERENCE = {
    (PLANE, FROBENIUS): (0.146, 6.3e-3, 5.1e-4, 5.8e-5, 5.2e-6),
    (PLANE, NUCLEAR): (0.599, 0.126, 0.0348, 0.0113, 0.0032),
    (SPHERE, FROBENIUS): (8.3e-3, 1.4e-3, 1.5e-4, 1.8e-5, 1.7e-6),
    (SPHERE, NUCLEAR): (0.217, 0.101, 0.040, 0.0155, 0.0051),
}


@kit.run(instance=INSTANCES, bound=[FROBENIUS, NUCLEAR, LP, LOCAL], quick={"random_starts": 4})
def toys(instance, bound, radii=RADII, random_starts=10):
    norm = {NUCLEAR: Nuclear(), LP: Lp(3)}.get(bound, Frobenius())
    cone: Cone | None = None
    if bound == LOCAL:
        data, head, solution, other_solution = next(
            filter(None, map(_with_local_solution, _draw_instances(instance)))
        )
        cone = narrow_cone(solution)
    else:
        data, head = next(_draw_instances(instance))
        solution = max_margin(selection_margins(data, optimal_tokens(data, head)), norm, tol=1e-9)
        other_norm = Nuclear() if bound == FROBENIUS else Frobenius()
        other_solution = max_margin(solution.margins, other_norm, tol=1e-9)
    path = regularization_path(
        data,
        head,
        norm if bound == LP else None,
        radii,
        "KQ" if bound == NUCLEAR else "W",
        random_starts,
        cone=cone,
    )
    return {
        "radius": np.array(radii),
        "edge": np.nan if cone is None else gap_at_boundary(cone.degrees),
        "gap": path.direction_gap(solution),
        "distance": path.distance(solution),
        "gap_other": path.direction_gap(other_solution),
        "distance_other": path.distance(other_solution),
    }


def _draw_instances(instance: str) -> Iterator[tuple[Any, Any]]:
    """The plane, or the draws of the unit sphere."""
    if instance == PLANE:
        plane: Any = toy(PLANE)
        return iter([(plane.data, plane.head)])
    return (unit_sphere(2, 3, 4, seed) for seed in itertools.count())


def _with_local_solution(instance: tuple[Any, Any]) -> tuple[Any, Any, Any, Any] | None:
    """The draw with its locally optimal solution of least norm that is not global, and the global
    one; None where there is no such solution.
    """
    solutions, is_local, best = solve_every_selection(*instance, tol=1e-12)
    candidates = [solution for k, solution in enumerate(solutions) if is_local[k] and k != best]
    if not candidates:
        return None
    return *instance, min(candidates, key=lambda solution: solution.norm), solutions[best]


@kit.run(seeds=kit.seeds(60, by=10), quick={"random_starts": 4, "seeds": 4}, name="random")
def paths_of_random_instances(seeds, random_starts=10):
    """The best weights of one large size on random instances: W, and factors with as many columns
    as the nuclear solution's rank and with one less.
    """
    rows = []
    for seed in seeds:
        data, head = unit_sphere(*SHAPE, seed)
        margins = selection_margins(data, optimal_tokens(data, head))
        frobenius, nuclear = max_margin(margins), max_margin(margins, Nuclear())
        assert frobenius.status == nuclear.status == "optimal"
        best = _farthest(data, head, frobenius, random_starts)
        row = {
            "far_gap": best.direction_gap(frobenius)[0],
            "far_gap_other": best.direction_gap(nuclear)[0],
        }
        rank = nuclear.rank or 0
        for name, columns in (("far_distance", rank), ("far_fewer", rank - 1)):
            row[name] = np.nan
            if rank > 1 and nuclear.unique is True:
                path = _farthest(data, head, nuclear, random_starts, inner=columns)
                row[name] = path.distance(nuclear)[0]
        rows.append(row)
    return kit.stacked(rows)


@kit.run(
    norm=(*WITH_KINKS, *SMOOTH),
    seeds=kit.seeds(20, by=10, name="norm_seeds"),
    quick={"random_starts": 4, "norm_seeds": 2},
    name="norms",
)
def paths_in_other_norms(norm, seeds, random_starts=10):
    """The best weights of one large size in a norm: how much of the largest margin they miss, as
    a share of it, and how far they are from the solution; the same of the Frobenius solution.
    """
    bound, rows = parse_norm(norm), []
    for seed in seeds:
        data, head = unit_sphere(*SHAPE_OF_NORMS, seed)
        margins = selection_margins(data, optimal_tokens(data, head))
        solution, frobenius = max_margin(margins, bound, tol=1e-9), max_margin(margins)
        assert solution.status == frobenius.status == "optimal"
        radii = [0.1 * FARTHEST * solution.norm, FARTHEST * solution.norm]
        path = regularization_path(data, head, bound, radii, starts=random_starts)
        row = {}
        for name, W in (("", path.W[-1]), ("_frobenius", frobenius.W)):
            row["margin_missed" + name] = 1.0 - solution.norm * margins(W).min() / bound.value(W)
        row["norm_distance"] = path.distance(solution)[-1]
        row["norm_distance_frobenius"] = path.distance(frobenius)[-1]
        rows.append(row)
    return kit.stacked(rows)


def _farthest(data: Any, head: Any, solution: Any, starts: int, inner: int | None = None) -> Any:
    form: Literal["KQ", "W"] = "W" if inner is None else "KQ"
    return regularization_path(
        data, head, None, [FARTHEST * solution.norm], form, starts, inner=inner
    )


def _rows_of_path(evidence: kit.Evidence, instance: str, bound: str) -> kit.Evidence:
    return kit.in_order(evidence, "radius", instance=instance, bound=bound)


OTHER = kit.replaced(
    "the solution of the same tokens in another norm", gap="gap_other", distance="distance_other"
)


def _distance_column(bound: str) -> str:
    return "distance" if bound in (NUCLEAR, LP) else "gap"


def decay_exponent(e, bound):
    """Exponent of the decay between the radii 100 and 1000."""
    rows_of_instances = [_rows_of_path(e, instance, bound) for instance in INSTANCES]
    radii, values = (
        np.array([rows[name] for rows in rows_of_instances])
        for name in ("radius", _distance_column(bound))
    )
    return kit.slopes(np.log(radii), np.log(values), radii >= 100)


@kit.claim(
    kit.between(
        -2.2,
        -1.8,
        "a finite offset of the weights turns the direction by its size over R, and the gap is"
        " half the square",
    ),
    "paper",
    "tfsvm, Theorem 2; the rate is derived",
    null=OTHER,
)
def T12(e):
    """The best W of growing size turns to the Frobenius solution: the gap falls like the size to
    the power -2.
    """
    return decay_exponent(e, FROBENIUS)


@kit.claim(
    kit.between(-1.2, -0.8, "a finite offset over R"),
    "paper",
    "tfsvm, Theorem 2; the rate is derived",
    null=OTHER,
)
def T12b(e):
    """The best factors turn to the nuclear solution: the distance falls like the size to the power
    -1.
    """
    return decay_exponent(e, NUCLEAR)


@kit.several_claims(
    kit.claim(
        kit.at_most(
            0.005,
            "at a thousand solution norms, five units of margin of offset; set on tuning seeds",
            share=kit.MOST,
        ),
        "recalled",
        "tfsvm, general norms (recalled)",
        id=identifier,
        where={"part": "norms", "norm": norm},
        null=kit.replaced("the Frobenius solution", margin_missed="margin_missed_frobenius"),
        words=words,
    )
    for norm, identifier, words in (
        ("spec", "T13", "spectral norm"),
        ("rows", "T13b", "sum of the lengths of rows"),
        ("maxrow", "T13c", "largest length of a row"),
        ("schatten:3", "T13d", "Schatten 3 norm"),
        ("lp:3", "T13e", "l3 norm"),
    )
)
def largest_margins(e):
    """In the {words} the best W has the largest margin of its size: what it misses, relative to
    it.
    """
    return e["margin_missed"]


@kit.claim(
    kit.at_most(
        0.02, "at a thousand solution norms, a few units of offset over a thousand", share=kit.MOST
    ),
    "recalled",
    "tfsvm, general norms (recalled)",
    where={"part": "norms"},
    null=kit.replaced("the Frobenius solution", norm_distance="norm_distance_frobenius"),
    trials="norm seed",
)
def T13f(e):
    """In the Schatten 3 and the l3 norm, whose solutions are unique, the best W turns to the
    solution: distance.
    """
    return {norm: e.where(norm=norm)["norm_distance"] for norm in SMOOTH}


@kit.claim(
    kit.at_most(
        0.01,
        "1 - cosine at radii 300 and 1000 relative to that of the cone's edge: a tenth of the"
        " opening, squared",
    ),
    "recalled",
    "tfsvm, local regularisation path (recalled)",
    null=kit.replaced("the global solution", gap="gap_other"),
    trials="",
    id="T18",
)
def theorem_18(e):
    """Inside a narrow cone around a locally optimal direction that is not global the best W turns
    to that direction.
    """
    paths = [_rows_of_path(e, instance, LOCAL) for instance in INSTANCES]
    return np.concatenate([(path["gap"] / path["edge"])[-2:] for path in paths])


@kit.claim(
    kit.at_most(1e-4, "a few solution norms of offset over a thousand, squared", share=kit.MOST),
    "paper",
    "tfsvm, Theorem 2",
    where={"part": "random"},
    null=kit.replaced("the nuclear solution", far_gap="far_gap_other"),
)
def T12c(e):
    """On random instances the best W of a thousand solution norms is in the direction of the
    Frobenius solution.
    """
    return e["far_gap"]


@kit.claim(
    kit.at_most(
        0.02,
        "a few solution norms of offset over a thousand, as on the two instances",
        share=kit.MOST,
    ),
    "paper",
    "tfsvm, Theorem 2",
    assumes={"one nuclear solution, of rank two or more": lambda e: np.isfinite(e["far_distance"])},
    null=kit.replaced("factors with one column less", far_distance="far_fewer"),
)
def T12d(e):
    """On random instances the best factors with as many columns as the nuclear solution's rank are
    near it at a thousand of its norms: distance.
    """
    return e["far_distance"]


@kit.picture(
    "The best weights of every size",
    "Straight falling lines on logarithmic axes, one per norm, on two instances.",
    3.3,
    1,
    2,
    width=7.6,
    sharey=True,
    name="paths",
)
def draw_paths(evidence, axes):
    """How far the minimiser of the loss at size R is from the max-margin solution in the same norm.
    Crosses: an independent program. Slopes are -2 for cosines and -1 for distances. The cone on
    the right is in another draw; at small sizes the best W lies on its edge.
    """
    titles = ("Toy of Figure 1", "Unit sphere, n = 2, T = 3, d = 4")
    for instance, title, ax in zip(INSTANCES, titles, axes, strict=True):
        for bound, colour, label in (
            (FROBENIUS, kit.TRAINED, "Frobenius: 1 - cosine"),
            (NUCLEAR, kit.BEST, "K and Q: distance to the nuclear solution"),
            (LP, kit.ATTENTION, "l3: distance to the l3 solution"),
            (LOCAL, kit.INK, "in a cone around a local direction: 1 - cosine"),
        ):
            rows = _rows_of_path(evidence, instance, bound)
            ax.plot(rows["radius"], rows[_distance_column(bound)], "o-", color=colour, label=label)
            if (instance, bound) in REFERENCE:
                reference = REFERENCE[instance, bound]
                ax.plot(RADII, reference, "x", color=colour, markersize=7, markeredgewidth=1.2)
        ax.set(xscale="log", yscale="log", ylim=(1e-7, 2), xlabel="size R")
        ax.set_title(title)
    kit.legend_below(axes[0], 2)
