"""Theorems without a figure: any start, local optima, head and prompt, nonlinear heads.

Random instances on the unit sphere (n = 4, T = 5, d = 6 for descent; n = 2, T = 3 for
enumerations), orthonormal tokens for the concave head. Normalised descent on the prompt takes steps
of a tenth of the solution's norm. With equal scores of all but the optimal tokens (n = 1, T = 8, d
= 4, and n = 4, T = 4, d = 12) it starts at 0.1 to 20 norms; the law of runs that end elsewhere has
400 runs of n = 4. With n = 2 (T = 4, d = 4, and T = 3, d = 16) it starts near every direction whose
other rivals stand a tenth of the margin behind. Paths are searched on spheres by BFGS, those of
factors in cones by SLSQP before it, those of head and prompt (n = 4, T = 3, d = 8) at 40 000 and 40
solution norms.

Source: Max-Margin Token Selection and Transformers as Support Vector Machines

Notes: Cones of local paths are those of the Frobenius angle, narrow enough for the theorem whatever
norm is bounded. That descent reaches the max-margin prompt from any start where scores are equal
is refuted for several sequences, by T3e to T3g and an example in the plane: best minus other (1, 0)
and (-2, 1), from (5, 0), ends at (1, 0), not at (1, 3), at a selection that is locally optimal. So
the theorem is one of a single sequence, or has a condition that was not recalled.
"""

import numpy as np

from attsvm_papers import kit
from attsvm_papers.mmts.joint import pairs
from attsvm_papers.mmts.local_optima import BOUNDS, enumeration, local_path
from attsvm_papers.mmts.plain_descent import LONGER, equivalence, smoothness
from attsvm_papers.mmts.random_prompts import boundary, directions, equal_scores, stuck_runs
from attsvm_papers.tfsvm.local_cones import NARROW, PATH_SIZES, gap_at_boundary
from attsvm_papers.tfsvm.nonlinear_paths import hidden_units, mixture, ties

__all__ = [  # its tables
    "boundary",
    "directions",
    "enumeration",
    "equal_scores",
    "equivalence",
    "hidden_units",
    "local_path",
    "mixture",
    "pairs",
    "smoothness",
    "stuck_runs",
    "ties",
]
LOCAL_COUNTS = {3: (1.43, 0.66), 8: (1.08, 0.28), 64: (1.0, 0.055), 256: (1.0, 0.055)}
"""Locally optimal selections of 9, n = 2, T = 3: mean and standard deviation over 1000 instances of
tuning seeds. At d = 64 and 256 all have one; then fewer than 3 in 1000 have a second, and the
deviation is below the root of that. An independent program has 1.65 and 1.05 of 20 draws at d = 3
and 8, within two deviations of its means.
"""
COUNTED = 1000


def at_size(e, column, size):
    """The column at a size, of the instances whose mixtures have several tokens."""
    return e.where(part="mixture", several=1.0, size=size)[column]


def other_directions(is_local):
    """The gaps of directions that are not locally optimal, or of those that are, in their place."""

    def exchanged(e):
        after, here = e["after"].copy(), e["part"] == "directions"
        after[here] = np.resize(after[here & (e["locally"] == (not is_local))], here.sum())
        return after

    broken = f"directions that are {'not ' if is_local else ''}locally optimal"
    return kit.replaced(broken, after=exchanged)


UNEQUAL = kit.replaced(
    "unequal scores of the other tokens",
    equal_gap="equal_gap_unequal",
    equal_cosine="equal_cosine_unequal",
)
EIGHT = "8 degrees"


@kit.claim(
    kit.at_most(
        1e-12, "relative to the largest entry, at every record; rounding of a few hundred steps"
    ),
    "recalled",
    "mmts, Lemma 1 (number recalled); derived",
    assumes={"run under a fixed prompt": lambda e: np.isfinite(e["equivalence_error"])},
    null=kit.replaced("the same step for both", equivalence_error="equivalence_undivided"),
)
def T1(e):
    """Descent on W under a fixed prompt u with step eta/|u|^2 is descent on p = W'u with step eta:
    W_k = u p_k' / |u|^2.
    """
    return e["equivalence_error"]


@kit.claim(
    kit.at_most(1e-15, "relative to the first loss: rounding of one evaluation"),
    "recalled",
    "smoothness of mmts and tfsvm (constants recalled)",
    assumes={"run with step 1/L": lambda e: np.isfinite(e["rise"])},
    null=kit.replaced(f"steps of {LONGER:g}/L", rise="rise_longer"),
)
def T2(e):
    """With step 1/L plain descent never raises the loss, for a prompt and for W."""
    return e["rise"]


@kit.claim(
    kit.at_most(
        0.01, f"{EIGHT} for the worst start, after a path of ten times the largest or more"
    ),
    "recalled",
    "mmts, Theorem 1 (number recalled), of one sequence",
    assumes={"one sequence, equal scores": lambda e: np.isfinite(e["equal_gap"]) & (e["n"] == 1)},
    null=UNEQUAL,
)
def T3b(e):
    """With one sequence and equal scores of its other tokens descent reaches the max-margin
    direction from any start.
    """
    return e["equal_gap"]


@kit.claim(
    kit.at_least(
        1.0 - 1e-12,
        "the cosine is at least 1/(|p| max |key difference|), which we derive; so it is positive",
    ),
    "recalled",
    "mmts, Theorem 1 (number recalled); the bound is derived",
    assumes={"equal scores": lambda e: np.isfinite(e["equal_cosine"])},
    null=UNEQUAL,
    trials="n seed",
)
def T3d(e):
    """With equal scores of the other tokens minus the gradient points towards the max-margin prompt
    at every start, with one sequence and with several.
    """
    return e["equal_cosine"]


@kit.claim(
    kit.at_most(0.01, f"{EIGHT}, after 3000 steps", share=0.95),
    assumes={"some sequences end at a wrong token": lambda e: np.isfinite(e["law_gap"])},
    null=kit.replaced("the max-margin prompt of all sequences", law_gap="law_gap_all"),
)
def T3e(e):
    """With several sequences and equal scores a run may end with some at a wrong token; then it
    ends at the max-margin prompt of the rightly selecting sequences alone, in 95 of 100 such runs.
    """
    return e["law_gap"]


@kit.claim(
    kit.at_least(
        1.0, "the pull of the others falls like 1/t, of the stuck like t^-lead", share=0.9
    ),
    assumes={"some sequences end at a wrong token": lambda e: np.isfinite(e["law_gap"])},
    null=kit.replaced("at the prompt of another run", law_lead="law_lead_other"),
)
def T3f(e):
    """There every wrong token leads the best one by more than one unit margin of that prompt."""
    return e["law_lead"]


@kit.claim(
    kit.true("leads of .95 and of 1.05 are on either side"),
    null=kit.replaced("a start forty times as near", ends_wrong="ends_wrong_near"),
    trials="start_lead",
    where={"part": "boundary"},
)
def T3g(e):
    """Far out the boundary is a lead of one: two sequences in the plane, the wrong token of the
    second .5 to 2 unit margins ahead.
    """
    return (e["ends_wrong"] == 1.0) == (e["start_lead"] > 1.0)


@kit.claim(
    kit.at_most(0.01, f"{EIGHT}; starts are at the edge of a cone that is derived", share=kit.MOST),
    "recalled",
    "mmts, Theorem 2 (number recalled); the cone is derived",
    assumes={"locally optimal": lambda e: e["locally"] == 1},
    null=other_directions(True),
    trials="n T d seed",
    id="T4",
)
def theorem_4_from_narrow_cones(e):
    """Descent that starts in a narrow cone around a locally optimal direction converges to it."""
    return e["after"]


@kit.claim(
    kit.at_least(0.01, f"{EIGHT}; exceptions would be runs that are still moving", share=kit.MOST),
    "recalled",
    "mmts, Theorem 3 (number recalled)",
    assumes={"not locally optimal": lambda e: e["locally"] == 0},
    null=other_directions(False),
    trials="n T d seed",
    id="T6",
)
def theorem_6_from_rays(e):
    """Descent that starts on the ray of a selection that is not locally optimal, so of every one
    but the optimal whose tokens all support, leaves its direction.
    """
    return e["after"]


@kit.claim(
    kit.at_most(
        0.01, f"{EIGHT} for prompt and head, at 40 and 40 000 solution norms", share=kit.MOST
    ),
    "recalled",
    "mmts, Theorem 4 (number recalled)",
    assumes={
        "all inputs support the head": lambda e: e["pair_supporting"] == 1,
        "the margin drop is proven": lambda e: e["pair_nu"] > 0,
    },
    null=kit.replaced("one input taken for one with room to spare", pair_full="pair_more"),
    trials="common seed",
    id="T7",
)
def theorem_7_joint_paths(e):
    """With all inputs support vectors the joint path is in both max-margin directions."""
    return np.maximum(e["pair_full"], e["pair_head"])


@kit.claim(
    kit.at_most(
        0.01,
        f"{EIGHT}, at 40 solution norms; a label margin just above one relaxes later",
        share=kit.MOST,
    ),
    "recalled",
    "mmts, Theorem 5 (number recalled)",
    assumes={
        "some input does not support the head": lambda e: e["pair_supporting"] == 0,
        "the two solutions are 16 degrees apart": lambda e: e["pair_apart"] > 0.04,
        "no other selection is known to have a larger label margin": lambda e: e["pair_nu"] > -1e-6,
    },
    null=kit.replaced("the un-relaxed solution", pair_relaxed="pair_full"),
    trials="common seed",
    id="T8",
)
def theorem_8_relaxed_paths(e):
    """With some inputs that are not support vectors, and a head that grows a thousand times as far,
    the joint path's prompt is in the direction of the relaxed solution.
    """
    return e["pair_relaxed"]


@kit.claim(
    kit.at_most(
        0.05,
        "error at |W| of 12 norms of the max-margin weights over that at 3; it falls as"
        " exp(-size/2) or faster, to 0.011",
        share=kit.MOST,
    ),
    "recalled",
    "mmts, Theorem 6 and tfsvm (numbers recalled)",
    null=kit.replaced("no finite part", finite_error="finite_size"),
    trials="mixture_seed",
)
def T9(e):
    """With a nonlinear head that wants a mixture the regularisation path's finite part converges to
    the prescribed ratios.
    """
    return at_size(e, "finite_error", 12.0) / at_size(e, "finite_error", 3.0)


@kit.claim(
    kit.at_most(
        0.02, "1 - cosine at 12 norms; corrections are of order 1/size, squared", share=kit.MOST
    ),
    "recalled",
    null=kit.replaced("the solution of the likeliest tokens", outside_gap="outside_other"),
    trials="mixture_seed",
)
def T9b(e):
    """With a nonlinear head that wants a mixture the rest of the regularisation path, beside its
    finite part, converges to the max-margin direction of the selected sets.
    """
    return at_size(e, "outside_gap", 12.0)


@kit.claim(
    kit.at_most(
        2.0,
        "1 without terms of higher order, which fall as exp(-size/2); a factor of two for those",
        share=kit.MOST,
    ),
    "recalled",
    "mmts, Theorem 6 and tfsvm (numbers recalled); the order is derived",
    null=kit.replaced("the solution of the likeliest tokens", path_gap="path_other"),
    trials="mixture_seed",
)
def T9c(e):
    """With a nonlinear head that wants a mixture the whole regularisation path converges in
    direction: from 8 to 24 norms the tangent of its angle falls as the size grows.
    """
    turned = e.but({"path_gap": np.sqrt((1.0 - e["path_gap"]) ** -2 - 1.0)})
    return 3.0 * at_size(turned, "path_gap", 24.0) / at_size(turned, "path_gap", 8.0)


@kit.claim(
    kit.at_most(
        0.02, "1 - cosine at 30 norms; corrections are of order 1/30, squared", share=kit.MOST
    ),
    "recalled",
    assumes={"the second norm is 1 % larger": lambda e: e["second"] > 1.01},
    null=kit.replaced("the selection of second least norm", tie_gap="tie_other"),
)
def T9d(e):
    """With several optimal selections and a head under which mixing hurts, the regularisation path
    takes the one of least max-margin norm.
    """
    return e["tie_gap"]


@kit.claim(
    kit.at_most(
        0.02, "1 - cosine at 30 norms; corrections are of order 1/30, squared", share=kit.MOST
    ),
    "recalled",
    "mmts, Theorem 6 and tfsvm (numbers recalled)",
    assumes={"every mixture has a smaller output": lambda e: np.isfinite(e["hidden_gap"])},
    null=kit.replaced("one token exchanged for its second", hidden_gap="hidden_other"),
)
def T9e(e):
    """Under a head of ReLU units the regularisation path takes the tokens of largest output."""
    return e["hidden_gap"]


@kit.claim(
    kit.close_to(
        0.0,
        3.0,
        f"standard deviations of a difference of means, of these draws and of {COUNTED} others;"
        " three for four dimensions",
    ),
    assumes={"20 draws": lambda e: min(x.rows for x in e.where(part="enumeration").by("d")) >= 20},
    null=kit.exchanged("d = 3 and d = 64 exchanged", "d", 3, 64),
    trials="d count_seed",
)
def T17b(e):
    """Over-parameterisation removes spurious directions: of nine selections on average 1.43, 1.08,
    1, 1 are locally optimal at d = 3, 8, 64, 256.
    """
    deviations = []
    for rows in e.where(part="enumeration").by("d"):
        mean, deviation = LOCAL_COUNTS[int(rows["d"][0])]
        deviation_of_means = deviation * np.sqrt(1.0 / rows.rows + 1.0 / COUNTED)
        deviations.append((np.mean(rows["count"]) - mean) / deviation_of_means)
    return deviations


@kit.claim(
    NARROW,
    "recalled",
    where={"part": "local_path"},
    null=kit.replaced("the global solution", local_gap="local_other"),
)
def T18(e):
    """Inside a narrow cone around a direction that is locally optimal in a norm the regularisation
    path of W in that norm, and of factors in the nuclear one, converges to it, where it is not
    known to be one of several.
    """
    return {
        BOUNDS[rows["bound"][0]]: rows.end("local_gap") / gap_at_boundary(rows["degrees"])
        for rows in e.where(unique=1).by("bound")
    }


SIZE = "norm / norm of the max-margin weights"


@kit.picture(
    "Nonlinear heads, spurious directions, local paths",
    "All errors fall with the norm; at d = 64 and more only one selection is locally optimal.",
    2.8,
    1,
    3,
    width=9.8,
)
def theorems(e, axes):
    """Left: the best weights of each norm under a concave head are a finite part that sets the
    ratios inside the selected sets, and a max-margin part. Middle: locally optimal selections of
    each instance (area: number of instances; dashes: mean of 1000 others). Right:
    regularisation paths, of bounded norm or of factors of bounded size, inside cones around
    directions that are locally optimal in that norm and not global; at 1 they lie on the cone's
    edge, below 1e-12 they are drawn there.
    """
    rows, enumerated = e.where(part="mixture", several=1.0), e.where(part="enumeration")
    names = {
        "path_gap": (kit.TRAINED, "1 − cosine"),
        "outside_gap": (kit.BEST, "1 − cosine, diverging part"),
        "finite_error": (kit.ATTENTION, "error, finite part"),
    }
    for k, (name, (colour, line_label)) in enumerate(names.items()):
        for line in (
            line_rows for strength in rows.by("strength") for line_rows in strength.by("seed")
        ):
            axes[0].plot(line["size"], line[name], "o-", color=colour, linewidth=1.0, ms=3)
        axes[0].text(0.03, 0.2 - 0.075 * k, line_label, color=colour, transform=axes[0].transAxes)
    axes[0].set(yscale="log", ylim=(1e-12, 3.0), xlabel=SIZE)
    axes[0].set_title("concave head: path and its parts")
    for position, rows_of_d in enumerate(enumerated.by("d")):
        values, times = np.unique(rows_of_d["count"], return_counts=True)
        axes[1].scatter(
            [position] * len(values), values, 240.0 * times / rows_of_d.rows, kit.TRAINED, lw=0
        )
        axes[1].plot(
            position, LOCAL_COUNTS[int(rows_of_d["d"][0])][0], "_", color=kit.ATTENTION, ms=20
        )
    axes[1].set_xticks(range(position + 1), [f"{d:g}" for d in enumerated.levels("d")])
    axes[1].set(xlim=(-0.5, position + 0.5), ylim=(0, 4), yticks=range(5), xlabel="dimension d")
    axes[1].set_title("locally optimal selections of nine")
    colours = (kit.ATTENTION, kit.BEST, kit.TRAINED, kit.INK)
    for k, ((bound, label), colour) in enumerate(zip(BOUNDS.items(), colours, strict=True)):
        local = e.take((e["part"] == "local_path") & (e["bound"] == bound))  # perhaps none
        gaps = np.maximum(local["local_gap"] / gap_at_boundary(local["degrees"])[:, None], 1e-12)
        axes[2].plot(PATH_SIZES, gaps.T, "o-", color=colour, linewidth=1.0, ms=3)
        at = (0.05 + 0.35 * (k // 2), 0.2 - 0.08 * (k % 2))
        axes[2].text(*at, label, color=colour, transform=axes[2].transAxes)
    axes[2].set(xscale="log", yscale="log", xlabel=SIZE)
    axes[2].set_title("local paths: 1 − cosine, cone's edge = 1")
