"""Theorems without a figure: any start, local optima, head and prompt, nonlinear heads.

Random instances on the unit sphere (n = 4, T = 5, d = 6 for descent; n = 2, T = 3 for
enumerations), orthonormal tokens for the concave head. Normalised descent on the prompt takes steps
of a tenth of the solution's norm. With equal scores of all but the optimal tokens (n = 1 and 4, T =
4, d = 12) it starts at 0.1 to 20 norms. With n = 2 (T = 4, d = 4, and T = 3, d = 16) it starts near
every direction whose other rivals stand a tenth of the margin behind. Paths are searched on spheres
by BFGS, those of factors in cones by SLSQP before it, those of head and prompt (n = 4, T = 3, d =
8) at 2000 and 40 solution norms.

Source: Max-Margin Token Selection and Transformers as Support Vector Machines

Notes: Cones of local paths are those of the Frobenius angle, narrow enough for the theorem whatever
norm is bounded. T3 is held here for any number of sequences and any start; the wording of the paper
is unverified.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from attsvm_papers.kit import (
    ATTENTION,
    BEST,
    FAINT,
    INK,
    MOST,
    TRAINED,
    VERDICT,
    Evidence,
    Null,
    at_least,
    at_most,
    claim,
    close_to,
    exchanged,
    grid,
    logarithmic,
    loglog,
    picture,
    replaced,
    rows,
    scales,
    setting,
)
from attsvm_papers.mmts import joint, local_optima, nonlinear_paths, plain_descent, random_prompts
from attsvm_papers.mmts.local_optima import BOUNDS
from attsvm_papers.mmts.prompts import of
from attsvm_papers.tfsvm.local_cones import NARROW, PATH_SIZES, boundary

# Random instances; small ones, because every selection of each is solved.
SCALES = scales(
    seeds=20,
    first_seed=VERDICT,
    path_seeds=20,
    pair_seeds=60,
    draws=100,
    steps=300,
    dimensions=(3, 8, 64, 256),
    mixture_seeds=60,
    strengths=(0.2, 0.3),
    sizes=(3.0, 5.0, 8.0, 12.0, 24.0),
    prompt_steps=3000,
    quick={
        "path_seeds": 6,
        "pair_seeds": 4,
        "draws": 20,
        "mixture_seeds": 12,
        "dimensions": (3, 8, 64),
        "strengths": (0.3,),
        "prompt_steps": 2000,
    },
)

# Mean number of locally optimal selections of 9, n = 2, T = 3, 20 draws; measured by an independent
# program of this project.
LOCAL_COUNTS = {3: 1.65, 8: 1.05, 64: 1.0, 256: 1.0}


def first(count, among="seeds"):
    """The first seeds of all, as an axis."""
    return lambda p: [list(range(getattr(p, among)))[:count]]


@grid(seeds=first(8))
def equivalence(seeds, steps):
    return plain_descent.equivalence(seeds, steps)


@grid(seeds=first(None))
def smoothness(seeds, steps):
    return plain_descent.smoothness(seeds, steps)


@grid(rows("n T d", random_prompts.EQUAL), seeds=first(None))
def equal_scores(n, T, d, seeds, prompt_steps):
    return random_prompts.equal_scores(seeds, (n, T, d), prompt_steps)


@grid(rows("n T d", random_prompts.ENUMERATED), seeds=first(None))
def directions(n, T, d, seeds, prompt_steps):
    return random_prompts.directions(seeds, (n, T, d), prompt_steps)


@grid(common=[0.5, 1.0], seeds=first(None, "pair_seeds"))
def pairs(common, seeds):
    return joint.random_path(seeds, common)


@grid(seeds=first(None, "mixture_seeds"), strength=setting("strengths"))
def mixture(seeds, strength, sizes):
    return nonlinear_paths.mixture(seeds, strength, sizes)


@grid(seeds=first(None))
def ties(seeds):
    return nonlinear_paths.ties(seeds, 30.0)


@grid(seeds=first(None))
def hidden_units(seeds):
    return nonlinear_paths.hidden_units(seeds, 30.0)


@grid(seeds=first(None, "draws"), d=setting("dimensions"))
def enumeration(seeds, d):
    return local_optima.enumeration(seeds, d)


@grid(bound=BOUNDS, seeds=first(None, "path_seeds"))
def local_path(bound, seeds, dimensions):
    return local_optima.local_path(seeds, min(dimensions), PATH_SIZES, bound)


def _at_size(evidence: Evidence, column: str, size: float) -> Any:
    """Per instance that several tokens share, the quantity at a size."""
    return of(evidence, "mixture", several=1.0, size=size)[column]


def on_local(*bounds: str) -> dict[str, Callable[[Evidence], Any]]:
    """The assumption that a row is a local path in one of these norms."""
    return {" or ".join(bounds): lambda e: np.isin(e["bound"], bounds)}


def _measure_local(evidence: Evidence) -> Any:
    """Gap at the largest size, relative to that of the cone's boundary."""
    return evidence["local_gap"][:, -1] / boundary(evidence["degrees"])


GLOBAL = replaced("the global solution", local_gap="local_other")


def other_directions(local: bool) -> Null:
    """The gaps of directions that are not locally optimal, or of those that are, in their place."""

    def exchange(e: Evidence) -> Evidence:
        after, here = e["after"].copy(), e["part"] == "directions"
        after[here] = np.resize(after[here & (e["locally"] == (not local))], here.sum())
        return e.but({"after": after})

    return Null(f"directions that are {'not ' if local else ''}locally optimal", exchange)


def counterexample(evidence: Evidence) -> str:
    """Why descent from any start fails with several sequences."""
    gaps = of(evidence, "equal_scores", n=4)["equal_gap"]
    return (
        f"{(gaps > 0.01).sum()} of {len(gaps)} instances have a start that ends elsewhere, and more"
        " steps do not help. A sequence that begins with a wrong token far ahead keeps it: its pull"
        " falls exponentially with that token's lead, and faster than that of a sequence that"
        " selects rightly with a smaller one. In the plane two sequences of two tokens, best minus"
        " other (1, 0) and (-2, 1), and a start at (5, 0) end at (1, 0) instead of (1, 3): the"
        " second never turns. The norm diverges, and minus the gradient points towards the"
        " max-margin prompt everywhere (T3b); its direction does not follow from that. With one"
        " sequence it does (T3)."
    )


def little_room(evidence: Evidence) -> str:
    """Why a joint path is not at the relaxed solution yet."""
    rows = of(evidence, "pairs")
    late = (rows["pair_supporting"] == 0) & (rows["pair_nu"] > -1e-6) & (rows["pair_apart"] > 0.04)
    late &= rows["pair_relaxed"] > 0.01
    return (
        f"In the {late.sum()} instances that miss it some input beyond the support has a label"
        f" margin of at most {1.0 + rows['pair_spare'][late].max():.4f}. Its constraint is relaxed"
        " where the head outweighs the prompt: where the margin's excess over one, times"
        f" {joint.FASTER:g}, is large against one. The theorem lets the head grow faster; how fast"
        " depends on the data."
    )


UNEQUAL = replaced(
    "unequal scores of the other tokens",
    equal_gap="equal_gap_unequal",
    equal_cosine="equal_cosine_unequal",
)
EIGHT = "8 degrees"


@claim(
    at_most(
        1e-12, "relative to the largest entry, at every record; rounding of a few hundred steps"
    ),
    "recalled",
    "P1, Lemma 1 (number recalled); derived",
    assumes={"run under a fixed prompt": lambda e: np.isfinite(e["equivalence_error"])},
    null=replaced("the same step for both", equivalence_error="equivalence_undivided"),
)
def T1(e):
    """Descent on W under a fixed prompt u with step eta/|u|^2 is descent on p = W'u with step eta:
    W_k = u p_k' / |u|^2.
    """
    return e["equivalence_error"]


@claim(
    at_most(1e-15, "relative to the first loss: rounding of one evaluation"),
    "recalled",
    "smoothness of P1 and P2 (constants recalled)",
    assumes={"run with step 1/L": lambda e: np.isfinite(e["rise"])},
    null=replaced(f"steps of {plain_descent.LONGER:g}/L", rise="rise_longer"),
)
def T2(e):
    """With step 1/L plain descent never raises the loss, for a prompt and for W."""
    return e["rise"]


@claim(
    at_most(0.01, f"{EIGHT} for the worst start, after a path of ten times the largest or more"),
    "recalled",
    "P1, Theorem 1 (number recalled), of one sequence",
    assumes={"one sequence, equal scores": lambda e: np.isfinite(e["equal_gap"]) & (e["n"] == 1)},
    null=UNEQUAL,
)
def T3(e):
    """With one sequence and equal scores of its other tokens descent reaches the max-margin
    direction from any start.
    """
    return e["equal_gap"]


@claim(
    at_least(
        1.0 - 1e-12,
        "the cosine is at least 1/(|p| max |key difference|), which we derive; so it is positive",
    ),
    "recalled",
    "P1, Theorem 1 (number recalled); the bound is derived",
    assumes={"equal scores": lambda e: np.isfinite(e["equal_cosine"])},
    null=UNEQUAL,
    trials="n seed",
)
def T3b(e):
    """With equal scores of the other tokens minus the gradient points towards the max-margin prompt
    at every start, with one sequence and with several.
    """
    return e["equal_cosine"]


@claim(
    at_most(0.01, f"{EIGHT} for the worst start, after a path of ten times the largest or more"),
    "recalled",
    "P1, Theorem 1 (number recalled), read as one of any number of sequences",
    assumes={"four sequences, equal scores": lambda e: np.isfinite(e["equal_gap"]) & (e["n"] == 4)},
    explanation=counterexample,
    null=UNEQUAL,
)
def T3c(e):
    """With several sequences, too, descent reaches the max-margin direction from any start."""
    return e["equal_gap"]


@claim(
    at_most(0.01, f"{EIGHT}; starts are at the edge of a cone that is derived", share=MOST),
    "recalled",
    "P1, Theorem 2 (number recalled); the cone is derived",
    assumes={"locally optimal": lambda e: e["locally"] == 1},
    null=other_directions(True),
    trials="n T d seed",
)
def T4(e):
    """Descent that starts in a narrow cone around a locally optimal direction converges to it."""
    return e["after"]


@claim(
    at_least(0.01, f"{EIGHT}; exceptions would be runs that are still moving", share=MOST),
    "recalled",
    "P1, Theorem 3 (number recalled)",
    assumes={"not locally optimal": lambda e: e["locally"] == 0},
    null=other_directions(False),
    trials="n T d seed",
)
def T6(e):
    """Descent that starts on the ray of a selection that is not locally optimal leaves its
    direction.
    """
    return e["after"]


@claim(
    at_least(0.01, f"{EIGHT}; the optimal token is a neighbour with a higher score", share=MOST),
    "recalled",
    "P2, over-parameterisation (recalled); derived",
    assumes={
        "all tokens support": lambda e: e["all_support"] == 1,
        "they are not the optimal ones": lambda e: e["optimal"] == 0,
    },
    null=other_directions(False),
    trials="n T d seed",
)
def T17(e):
    """So it leaves that of every selection but the optimal one whose tokens all support."""
    return e["after"]


@claim(
    at_most(0.01, f"{EIGHT} for prompt and head, at 40 and 2000 solution norms", share=MOST),
    "recalled",
    "P1, Theorem 4 (number recalled)",
    assumes={
        "all inputs support the head": lambda e: e["pair_supporting"] == 1,
        "the margin drop is proven": lambda e: e["pair_nu"] > 0,
    },
    null=replaced("one input taken for one with room to spare", pair_full="pair_more"),
    trials="common seed",
)
def T7(e):
    """With all inputs support vectors the joint path is in both max-margin directions."""
    return np.maximum(e["pair_full"], e["pair_head"])


@claim(
    at_most(
        0.01,
        f"{EIGHT}, at 40 solution norms; a label margin just above one relaxes later",
        share=MOST,
    ),
    "recalled",
    "P1, Theorem 5 (number recalled)",
    assumes={
        "some input does not support the head": lambda e: e["pair_supporting"] == 0,
        "the two solutions are 16 degrees apart": lambda e: e["pair_apart"] > 0.04,
        "no other selection is known to have a larger label margin": lambda e: e["pair_nu"] > -1e-6,
    },
    explanation=little_room,
    null=replaced("the un-relaxed solution", pair_relaxed="pair_full"),
    trials="common seed",
)
def T8(e):
    """With some that are not, and a head that grows fifty times as far, its prompt is in the
    direction of the relaxed solution.
    """
    return e["pair_relaxed"]


@claim(
    at_most(
        0.05,
        "error at |W| of 12 norms of the max-margin weights over that at 3; it falls as"
        " exp(-size/2) or faster, to 0.011",
        share=MOST,
    ),
    "recalled",
    "P1, Theorem 6 and P2 (numbers recalled)",
    null=replaced("no finite part", finite_error="finite_size"),
    trials="mixture_seed",
)
def T9(e):
    """With a nonlinear head that wants a mixture the regularisation path's finite part converges to
    the prescribed ratios.
    """
    return _at_size(e, "finite_error", 12.0) / _at_size(e, "finite_error", 3.0)


@claim(
    at_most(0.02, "1 - cosine at 12 norms; corrections are of order 1/size, squared", share=MOST),
    "recalled",
    null=replaced("the solution of the likeliest tokens", outside_gap="outside_other"),
    trials="mixture_seed",
)
def T9b(e):
    """The rest of it converges to the max-margin direction of the selected sets."""
    return _at_size(e, "outside_gap", 12.0)


@claim(
    at_most(
        2.0,
        "1 without terms of higher order, which fall as exp(-size/2); a factor of two for those",
        share=MOST,
    ),
    "recalled",
    "P1, Theorem 6 and P2 (numbers recalled); the order is derived",
    null=replaced("the solution of the likeliest tokens", path_gap="path_other"),
    trials="mixture_seed",
)
def T9c(e):
    """So the whole converges in direction: from 8 to 24 norms the tangent of its angle falls as the
    size grows.
    """
    turned = e.but({"path_gap": np.sqrt((1.0 - e["path_gap"]) ** -2 - 1.0)})
    return 3.0 * _at_size(turned, "path_gap", 24.0) / _at_size(turned, "path_gap", 8.0)


@claim(
    at_most(0.02, "1 - cosine at 30 norms; corrections are of order 1/30, squared", share=MOST),
    "recalled",
    assumes={"the second norm is 1 % larger": lambda e: e["second"] > 1.01},
    null=replaced("the selection of second least norm", tie_gap="tie_other"),
)
def T9d(e):
    """With several optimal selections and a head under which mixing hurts, the path takes the one
    of least max-margin norm.
    """
    return e["tie_gap"]


@claim(
    at_most(0.02, "1 - cosine at 30 norms; corrections are of order 1/30, squared", share=MOST),
    "recalled",
    "P1, Theorem 6 and P2 (numbers recalled)",
    assumes={"every mixture has a smaller output": lambda e: np.isfinite(e["hidden_gap"])},
    null=replaced("one token exchanged for its second", hidden_gap="hidden_other"),
)
def T9e(e):
    """Under a head of ReLU units the path takes the tokens of largest output."""
    return e["hidden_gap"]


@claim(
    close_to(
        0.0,
        0.4,
        "two standard deviations of a difference of means of 20 counts, which"
        " deviate by 0.6 at d = 3",
    ),
    assumes={
        "20 draws": lambda e: (
            len(of(e, "enumeration")["d"]) >= 20 * len(of(e, "enumeration").levels("d"))
        )
    },
    null=exchanged("d = 3 and d = 64 exchanged", "d", 3, 64),
    trials="d count_seed",
)
def T17b(evidence):
    """So over-parameterisation removes spurious directions: of nine selections on average 1.65,
    1.05, 1, 1 are locally optimal at d = 3 to 256.
    """
    rows = of(evidence, "enumeration")
    return np.array(
        [
            np.mean(rows.where(d=d)["count"]) - LOCAL_COUNTS[int(d)]
            for d in rows.levels("d")
            if int(d) in LOCAL_COUNTS
        ]
    )


@claim(NARROW, "recalled", assumes=on_local("fro"), null=GLOBAL)
def T18(e):
    """Inside a narrow cone around a locally optimal direction of W the regularisation path
    converges to it.
    """
    return _measure_local(e)


@claim(
    NARROW,
    "recalled",
    assumes={
        **on_local("nuc"),
        "the nuclear solution is not known to be one of several": lambda e: e["unique"] == 1,
    },
    null=GLOBAL,
)
def T18b(e):
    """So does that of factors of bounded size, around the directions that are locally optimal in
    the nuclear norm.
    """
    return _measure_local(e)


@claim(NARROW, "recalled", assumes=on_local("lp:1.5", "lp:3"), null=GLOBAL)
def T18c(e):
    """So do those of W in the l1.5 and the l3 norm, around the directions that are locally optimal
    there.
    """
    return _measure_local(e)


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
    each instance (area: number of instances; dashes: mean of an independent program). Right:
    regularisation paths, of bounded norm or of factors of bounded size, inside cones around
    directions that are locally optimal in that norm and not global; at 1 they lie on the cone's
    edge, below 1e-12 they are drawn there.
    """
    ax = axes[0]
    rows = of(evidence, "mixture", several=1.0)
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
    enumerated = of(evidence, "enumeration")
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
        local = of(evidence, "local_path", bound=bound)
        ax.text(
            0.42 + 0.34 * (k // 2),
            0.2 - 0.08 * (k % 2),
            names[k],
            color=colour,
            transform=ax.transAxes,
            fontsize=8,
        )
        gaps = np.maximum(local["local_gap"] / boundary(local["degrees"])[:, None], 1e-12)
        ax.plot(PATH_SIZES, gaps.T, color=colour, linewidth=1.0, marker="o", markersize=3)
    loglog(ax, np.array(PATH_SIZES), np.array([1e-12, 2.0]))
    ax.set(
        xlabel="norm / norm of the max-margin weights",
        title="local paths: 1 − cosine, cone's edge = 1",
    )
    ax.tick_params(labelcolor=FAINT)
