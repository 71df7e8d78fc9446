"""Theorems without a figure: equivalence, smoothness, nonlinear heads, local optima.

Random instances on the unit sphere (n = 4, T = 5, d = 6 for descent; n = 2, T = 3 for
enumerations), orthonormal tokens for nonlinear heads. Paths are searched on spheres by BFGS, those
of factors in cones by SLSQP before it.

Source: Max-Margin Token Selection and Transformers as Support Vector Machines; specification T1,
T2, T9, T17, T18

Notes: Cones of local paths are those of the Frobenius angle, narrow enough for the theorem whatever
norm is bounded.
"""

from typing import Any

import numpy as np

from attsvm_papers.kit import (
    ATTENTION,
    BEST,
    FAINT,
    INK,
    TRAINED,
    Evidence,
    at_least,
    at_most,
    claim,
    close_to,
    grid,
    logarithmic,
    loglog,
    picture,
    scales,
    setting,
)
from attsvm_papers.mmts import local_optima, nonlinear_paths, plain_descent
from attsvm_papers.mmts.local_optima import BOUNDS

# Random instances; small ones, because every selection of each is solved.
SCALES = scales(
    seeds=20,
    path_seeds=20,
    steps=300,
    dimensions=(3, 8, 64, 256),
    strengths=(0.2, 0.3),
    sizes=(3.0, 5.0, 8.0, 12.0),
    quick={"path_seeds": 6, "dimensions": (3, 8, 64), "strengths": (0.3,)},
)

# Mean number of locally optimal selections of 9, n = 2, T = 3, 20 draws; measured for the
# specification.
LOCAL_SIZES = (30.0, 300.0, 3000.0, 30_000.0)
LOCAL_COUNTS = {3: 1.65, 8: 1.05, 64: 1.0, 256: 1.0}


def first(count):
    """The first seeds of all, as an axis."""
    return lambda p: [list(range(p.seeds))[:count]]


@grid(seeds=first(None))
def equivalence(seeds, steps):
    return plain_descent.equivalence(seeds, steps)


@grid(seeds=first(None))
def smoothness(seeds, steps):
    return plain_descent.smoothness(seeds, steps)


@grid(seeds=first(5), strength=setting("strengths"))
def mixture(seeds, strength, sizes):
    return nonlinear_paths.mixture(seeds, strength, sizes)


@grid(seeds=first(8))
def ties(seeds):
    return nonlinear_paths.ties(seeds, 30.0)


@grid(seeds=first(None), d=setting("dimensions"))
def enumeration(seeds, d):
    return local_optima.enumeration(seeds, d)


@grid(bound=BOUNDS)
def local_path(bound, path_seeds, dimensions):
    seeds = list(range(path_seeds))
    return local_optima.local_path(seeds, min(dimensions), LOCAL_SIZES, bound)


def _of(evidence: Evidence, name: str, **values: Any) -> Evidence:
    return evidence.where(part=name, **values)


def _measure_ratio(evidence: Evidence, column: str) -> Any:
    """Per instance the quantity at the largest size over that at the smallest."""
    rows = _of(evidence, "mixture", several=1.0)
    sizes = rows.levels("size")
    return rows.where(size=sizes[-1])[column] / rows.where(size=sizes[0])[column]


def _local(evidence: Evidence, *bounds: str) -> Evidence:
    rows = _of(evidence, "local_path")
    return rows.take(np.isin(rows["bound"], bounds))


def _measure_local(evidence: Evidence, *bounds: str) -> Any:
    """Gap at the largest size, relative to that of the cone's boundary."""
    rows = _local(evidence, *bounds)
    return rows["local_gap"][:, -1] / (1.0 - np.cos(np.radians(rows["degrees"])))


NARROW = at_most(
    0.01,
    "1 - cosine at 30000 norms relative to that of the cone's boundary: a tenth of the opening,"
    " squared",
)


@claim(
    at_most(
        1e-12, "relative to the largest entry, at every record; rounding of a few hundred steps"
    ),
    "recalled",
    "P1, Lemma 1 (number recalled); derived",
)
def T1(e):
    """Descent on W under a fixed prompt u with step eta/|u|^2 is descent on p = W'u with step eta:
    W_k = u p_k' / |u|^2.
    """
    return _of(e, "equivalence")["equivalence_error"]


@claim(
    at_most(1e-15, "relative to the first loss: rounding of one evaluation"),
    "recalled",
    "smoothness of P1 and P2 (constants recalled)",
)
def T2(e):
    """With step 1/L plain descent never raises the loss, for a prompt and for W."""
    return _of(e, "smoothness")["rise"]


@claim(
    at_most(
        0.05,
        "error at |W| of 12 norms of the max-margin weights over that at 3; it falls as"
        " exp(-size/2) or faster, to 0.011",
    ),
    "recalled",
    "P1, Theorem 6 and P2 (numbers recalled)",
)
def T9(e):
    """With a nonlinear head that wants a mixture the regularisation path's finite part converges to
    the prescribed ratios.
    """
    return _measure_ratio(e, "finite_error")


@claim(
    at_most(0.02, "1 - cosine at 12 norms; corrections are of order 1/size, squared"),
    "recalled",
)
def T9b(e):
    """The rest of it converges to the max-margin direction of the selected sets."""
    return _of(e, "mixture", several=1.0, size=max(_of(e, "mixture").levels("size")))["outside_gap"]


@claim(
    at_most(
        0.5,
        "gap at 12 norms over that at 3, set after the first runs: 1/16 for a small finite"
        " part, 0.33 for one of ten norms, which is most of the path at 3",
    ),
    "recalled",
)
def T9c(e):
    """So the whole converges in direction, as the square of the finite part over the norm."""
    return _measure_ratio(e, "path_gap")


@claim(
    at_most(0.02, "1 - cosine at 30 norms; corrections are of order 1/30, squared"),
    "recalled",
    assumes={"the second norm is 1 % larger": lambda e: _of(e, "ties")["second"] > 1.01},
)
def T9d(e):
    """With several optimal selections and a head under which mixing hurts, the path takes the one
    of least max-margin norm.
    """
    return _of(e, "ties")["tie_gap"]


@claim(
    at_most(0.0, "the optimal token is then a neighbour with a higher score"),
    "recalled",
    "derived",
    assumes={
        "there is such a selection": lambda e: _of(e, "enumeration")["all_support_rivals"] > 0
    },
)
def T17(e):
    """A selection other than the optimal one whose tokens all support its max-margin weights is
    never locally optimal.
    """
    return _of(e, "enumeration")["spurious"]


@claim(
    close_to(
        0.0,
        0.4,
        "no bar stated: two standard deviations of a difference of means of 20 counts, which"
        " deviate by 0.6 at d = 3",
    ),
    assumes={
        "20 draws": lambda e: (
            len(_of(e, "enumeration")["d"]) >= 20 * len(_of(e, "enumeration").levels("d"))
        )
    },
)
def T17b(evidence):
    """So over-parameterisation removes spurious directions: of nine selections on average 1.65,
    1.05, 1, 1 are locally optimal at d = 3 to 256.
    """
    rows = _of(evidence, "enumeration")
    return np.array(
        [
            np.mean(rows.where(d=d)["count"]) - LOCAL_COUNTS[int(d)]
            for d in rows.levels("d")
            if int(d) in LOCAL_COUNTS
        ]
    )


@claim(
    at_least(1.0, "true; it beats every token"),
    "recalled",
    assumes={"d >= max(T - 1, n)": lambda e: _of(e, "enumeration")["d"] >= 2},
)
def T17c(e):
    """The optimal selection is always locally optimal."""
    return _of(e, "enumeration")["optimal_local"]


@claim(
    NARROW,
    "recalled",
)
def T18(e):
    """Inside a narrow cone around a locally optimal direction of W the regularisation path
    converges to it.
    """
    return _measure_local(e, "fro")


@claim(
    NARROW,
    "recalled",
    assumes={
        "the nuclear solution is not known to be one of several": lambda e: (
            _local(e, "nuc")["unique"] == 1
        )
    },
)
def T18b(e):
    """So does that of factors of bounded size, around the directions that are locally optimal in
    the nuclear norm.
    """
    return _measure_local(e, "nuc")


@claim(
    NARROW,
    "recalled",
)
def T18c(e):
    """So do those of W in the l1.5 and the l3 norm, around the directions that are locally optimal
    there.
    """
    return _measure_local(e, "lp:1.5", "lp:3")


@picture(
    "Nonlinear heads, spurious directions, local paths",
    "All errors fall with the norm; at d = 64 and more only one selection is locally optimal.",
    2.8,
    1,
    3,
    width=9.8,
)
def theorems(evidence, axes):
    """Left: the best weights of each norm under a concave head are a finite part that sets the
    ratios inside the selected sets, and a max-margin part. Middle: locally optimal selections of
    each instance (area: number of instances; dashes: mean of the specification). Right:
    regularisation paths, of bounded norm or of factors of bounded size, inside cones around
    directions that are locally optimal in that norm and not global; at 1 they lie on the cone's
    edge, below 1e-12 they are drawn there.
    """
    ax = axes[0]
    rows = _of(evidence, "mixture", several=1.0)
    for seed, strength in sorted(
        {(s, k) for s, k in zip(rows["seed"], rows["strength"], strict=True)}
    ):
        line = rows.where(seed=seed, strength=strength)
        for column, colour in (
            ("finite_error", ATTENTION),
            ("outside_gap", BEST),
            ("path_gap", TRAINED),
        ):
            ax.plot(
                line["size"],
                line[column],
                color=colour,
                linewidth=1.0,
                marker="o",
                markersize=3,
            )
    logarithmic(ax.yaxis, np.array([1e-6, 2.0]))
    ax.set(xlabel="norm / norm of the max-margin weights", title="concave head: path and its parts")
    for k, (words, colour) in enumerate(
        (
            ("1 − cosine", TRAINED),
            ("1 − cosine, diverging part", BEST),
            ("error, finite part", ATTENTION),
        )
    ):
        ax.text(0.03, 0.2 - 0.075 * k, words, color=colour, transform=ax.transAxes, fontsize=8)
    ax = axes[1]
    enumerated = _of(evidence, "enumeration")
    dimensions = enumerated.levels("d")
    for place, d in enumerate(dimensions):
        counts = enumerated.where(d=d)["count"]
        for value in np.unique(counts):
            ax.scatter(
                place,
                value,
                s=12.0 * np.sum(counts == value) * 20 / len(counts),
                color=TRAINED,
                linewidths=0,
            )
        ax.plot(
            place,
            LOCAL_COUNTS.get(int(d), np.nan),
            "_",
            color=ATTENTION,
            markersize=20,
            markeredgewidth=1.6,
        )
    ax.set_xticks(range(len(dimensions)), [f"{d:g}" for d in dimensions])
    ax.set(
        xlim=(-0.5, len(dimensions) - 0.5),
        ylim=(0, 4),
        yticks=range(5),
        xlabel="dimension d",
        title="locally optimal selections of nine",
    )
    ax = axes[2]
    names = ("W, Frobenius", "K and Q", "W, l1.5", "W, l3")
    for k, (bound, colour) in enumerate(zip(BOUNDS, (ATTENTION, BEST, TRAINED, INK), strict=True)):
        local = _local(evidence, bound)
        ax.text(
            0.42 + 0.34 * (k // 2),
            0.2 - 0.08 * (k % 2),
            names[k],
            color=colour,
            transform=ax.transAxes,
            fontsize=8,
        )
        for gap, degrees in zip(local["local_gap"], local["degrees"], strict=True):
            relative = gap / (1.0 - np.cos(np.radians(degrees)))
            ax.plot(
                LOCAL_SIZES,
                np.maximum(relative, 1e-12),
                color=colour,
                linewidth=1.0,
                marker="o",
                markersize=3,
            )
    loglog(ax, np.array(LOCAL_SIZES), np.array([1e-12, 2.0]))
    ax.set(
        xlabel="norm / norm of the max-margin weights",
        title="local paths: 1 − cosine, cone's edge = 1",
    )
    ax.tick_params(labelcolor=FAINT)
