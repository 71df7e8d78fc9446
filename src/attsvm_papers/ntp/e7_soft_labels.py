r"""Soft labels: what an output matrix learns where several tokens follow a context.

Eight contexts, ten tokens, cross-entropy of a linear output matrix from zero. The first kind of
labels has random unit embeddings with d = 16 and one to four tokens that follow each context. The
second has two topics with d = 3 whose odds no weights meet; the third is the first with d = 3,
which nothing separates. 40 000 steps: of plain gradient descent with step 1 / L, of normalised
descent with steps of 0.05, or with steps of 0.5 / sqrt(t). Paths are minimisers in balls. Shares
are of twelve contexts and six tokens, by dimension.

Source: Thrampoulidis, Implicit Optimization Bias of Next-token Prediction in Linear Models (2024),
arXiv 2402.18551, abstract; another paper than that of ntp-1 to ntp-5

Notes: Counts of the contexts are 1 to 9. Labels are compatible where log-odds have a solution, and
separable where the margin programme has one; every answer is proved by multipliers. Where labels
are separable and not compatible, the finite part is the minimiser of the loss inside supports, and
the infimum of the loss is above the entropy: this project, after Ji and Telgarsky.
"""

from typing import Any

import numpy as np

from attsvm.margins import least_norm
from attsvm.theory import log_odds_margins, soft_label_svm_batch
from attsvm.theory.next_token import StepRule, output_stage
from attsvm.training import AtSteps, direction_gap
from attsvm_papers import kit
from attsvm_papers.graph.priority import ball_weights, record_at_tenth
from attsvm_papers.ntp.contexts import (
    context_sentences,
    inequality_multipliers,
    label_properties,
    longest_step,
    most_frequent,
    off_support,
    random_contexts,
    reversed_odds,
    two_topics,
)

BOTH, SEPARABLE, COMPATIBLE, HARD = "both", "separable", "compatible", "hard"
PLAIN, CONSTANT, DECAYING = "plain", "constant", "decaying"
STEPS = {CONSTANT: StepRule(0.05), DECAYING: StepRule(0.5, decay=0.5)}
RUNS = (
    (BOTH, PLAIN),
    (SEPARABLE, PLAIN),
    (COMPATIBLE, PLAIN),
    (BOTH, CONSTANT),
    (BOTH, DECAYING),
    (HARD, CONSTANT),
)
RADII = (10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
CONTEXTS, TOKENS = 12, 6  # of the shares
FEW = 6  # dimensions, half of the contexts
FAR = 16.0  # norms of the max-margin solution: exp(-16) is 1e-7


def draw_labels(kind, m, V, seeds):
    if kind == SEPARABLE:
        return [two_topics(m, V, seed) for seed in seeds]
    d = 3 if kind == COMPATIBLE else 16
    contexts = [random_contexts(m, V, d, 4, seed) for seed in seeds]
    return [most_frequent(pair) for pair in contexts] if kind == HARD else contexts


def solve_labels(pairs):
    return soft_label_svm_batch([h for h, _ in pairs], [n for _, n in pairs])


@kit.run(
    kit.rows("kind rule", RUNS),
    seeds=kit.seeds(100, by=50),
    quick={"seeds": 6, "steps": 10_000},
    name="trained",
)
def train_with_steps(kind, rule, seeds, m=8, V=10, steps=40_000):
    pairs = draw_labels(kind, m, V, seeds)
    svms, hard = solve_labels(pairs), solve_labels([most_frequent(pair) for pair in pairs])
    plain = StepRule(tuple(longest_step(svm) for svm in svms), normalize=False)
    marks = np.unique(np.rint(np.geomspace(10, steps, 25)).astype(int))
    trajectory = output_stage(
        [context_sentences(svm) for svm in svms],
        STEPS.get(rule, plain),
        steps,
        records=AtSteps([*marks, steps // 10]),
    )
    measures = [
        _measure_parts(svm, other, pair, trajectory.W[:, run])
        for run, (svm, other, pair) in enumerate(zip(svms, hard, pairs, strict=True))
    ]
    return {
        "step": kit.same(trajectory.steps),
        "over_entropy": trajectory.loss.T - np.array([[svm.entropy] for svm in svms]),
        "size": np.array([np.linalg.norm(svm.finite) for svm in svms]),
        **kit.stacked(measures),
        **label_properties(svms),
    }


def _measure_parts(svm, hard, pair, W):
    """Measures of a trajectory ``(records, V, d)`` in both parts, and of their nulls."""
    components, report = svm.split(W), svm.report(W)
    other = svm.split(hard.solution.W).outside
    reversed_finite = svm.split(least_norm(log_odds_margins(*reversed_odds(pair))).W).inside
    masses, dual = off_support(svm, W[-1])[:, None], inequality_multipliers(svm)[:, None]
    return {
        "finite": report.finite,
        "finite_reversed": np.linalg.norm(components.inside - reversed_finite, axis=(-2, -1)),
        "finite_squares": np.linalg.norm(components.inside - svm.odds.W, axis=(-2, -1)),
        "gap": 1.0 - report.outside,
        "gap_hard": direction_gap(components.outside, other),
        "outside": np.linalg.norm(components.outside, axis=(-2, -1)),
        "dual_gap": direction_gap(masses, dual),
        "dual_even": direction_gap(np.ones(dual.shape), dual),
    }


@kit.run(seeds=kit.seeds(40, by=40, name="paths"), quick={"paths": 5}, name="paths")
def paths_in_balls(seeds, m=8, V=10):
    pairs = draw_labels(BOTH, m, V, seeds)
    svms, hard = solve_labels(pairs), solve_labels([most_frequent(pair) for pair in pairs])
    weights = ball_weights(svms, RADII)
    measures = [
        _measure_parts(svm, other, pair, W)
        for svm, other, pair, W in zip(svms, hard, pairs, weights, strict=True)
    ]
    return {
        "radius": kit.same(RADII),
        **{
            name: np.array(
                [direction_gap(W, svm.solution.W) for W, svm in zip(weights, best, strict=True)]
            )
            for name, best in (("path", svms), ("path_hard", hard))
        },
        "path_finite": np.array([measures_of_path["finite"] for measures_of_path in measures]),
        "path_finite_reversed": np.array(
            [measures_of_path["finite_reversed"] for measures_of_path in measures]
        ),
        "norm": np.array([svm.solution.norm for svm in svms]),
        **label_properties(svms),
    }


@kit.run(
    width=tuple(range(2, 13)),
    seeds=kit.seeds(100, by=100),
    quick={"seeds": 6, "width": (3, 6, 12)},
    name="shares",
)
def shares_of_conditions(width, seeds):
    pairs = [random_contexts(CONTEXTS, TOKENS, width, 3, seed) for seed in seeds]
    return label_properties(solve_labels(pairs))


def last_tenfold(e, column):
    """Slope of log values against log steps between a tenth of the steps and the last."""
    step = e["step"][0]
    tenth_record = record_at_tenth(step)
    return np.log(e.end(column) / e[column][:, tenth_record]) / np.log(
        step[-1] / step[tenth_record]
    )


AT = {"part": "trained", "kind": BOTH, "rule": PLAIN}
PROVED: dict[str, Any] = {
    "where": AT,
    "assumes": {"both conditions are proved": lambda e: e["separable"] * e["compatible"]},
}
ABSTRACT = "Thrampoulidis (2024), abstract"
NOT_COMPATIBLE = kit.exchanged("labels whose odds no weights meet", "kind", BOTH, SEPARABLE)
REVERSED = kit.replaced(
    "the odds reversed", finite="finite_reversed", path_finite="path_finite_reversed"
)
MOST_FREQUENT = kit.replaced(
    "the solution for the most frequent tokens alone",
    gap="gap_hard",
    path="path_hard",
)


@kit.claim(
    kit.at_most(1e-3, "nats"),
    "paper",
    ABSTRACT + ": conditions that enable reaching the data-entropy lower bound",
    **PROVED,
    null=NOT_COMPATIBLE,
)
def SL1(e):
    """Where labels are compatible and separable, the loss of gradient descent reaches their
    entropy.
    """
    return e.end("over_entropy")


@kit.claim(
    kit.at_most(0.01, "of its norm"),
    "paper",
    ABSTRACT + ": logits' differences of in-support tokens equal their log-odds",
    **PROVED,
    null=REVERSED,
)
def SL2(e):
    """The part of W in the span of differences inside supports converges to the solution of the
    log-odds.
    """
    return e.end("finite") / e["size"]


@kit.claim(
    kit.between(
        -1.15, -0.85, "between a tenth of the steps and the last; -1 is expected", share=kit.MOST
    ),
    **PROVED,
    interval=True,
    null=REVERSED,
)
def SL2r(e):
    """The distance of the part of W in the span of differences inside supports to the solution of
    the log-odds falls like 1/t.
    """
    return last_tenfold(e, "finite")


@kit.claim(
    kit.at_most(0.03, "14 degrees"),
    "paper",
    ABSTRACT + ": in the orthogonal subspace GD selects the direction that maximizes a margin",
    **PROVED,
    null=MOST_FREQUENT,
)
def SL3(e):
    """The part of W orthogonal to the span of differences inside supports turns to the max-margin
    solution of the supports.
    """
    return e.end("gap")


@kit.claim(
    kit.at_most(
        1.15, "the end over a tenth of the steps; the norm itself grows by 1.3", share=kit.MOST
    ),
    **PROVED,
    null=MOST_FREQUENT,
)
def SL3b(e):
    """The part of W orthogonal to the span of differences inside supports stays at a bounded
    distance from the ray of the max-margin solution, so the angle falls like 1/log t.
    """
    distance = e["outside"] * np.sqrt(e["gap"] * (2.0 - e["gap"]))
    return distance[:, -1] / distance[:, record_at_tenth(e["step"][0])]


@kit.claim(
    kit.at_most(0.02, "11 degrees", share=kit.MOST),
    **PROVED,
    null=kit.replaced("the same for every token", dual_gap="dual_even"),
)
def SL4(e):
    """The probabilities that are left on tokens off the supports become proportional to the
    multipliers of the max-margin programme.
    """
    return e["dual_gap"]


def rows_with_condition(kind, **proved):
    """Labels of which exactly this is proved."""

    def fails(e):
        return np.all([e[name] == value for name, value in proved.items()], axis=0)

    return {"where": AT | {"kind": kind}, "assumes": {"the condition fails, with proof": fails}}


ODDS_FAIL: dict[str, Any] = rows_with_condition(SEPARABLE, separable=1, compatible=0)
MARGIN_FAILS: dict[str, Any] = rows_with_condition(COMPATIBLE, infeasible=1, compatible=1)


@kit.claim(
    kit.at_most(0.05, "of its norm", share=kit.MOST),
    **ODDS_FAIL,
    null=kit.replaced("the least-squares solution of the log-odds", finite="finite_squares"),
)
def SL5(e):
    """Where labels are separable and their odds cannot be met, the part in the span converges to
    the minimiser of the loss inside supports.
    """
    return e.end("finite") / e["size"]


@kit.claim(
    kit.at_least(
        0.5, "of what was left at a tenth of the steps; 0.1 where it is reached", share=kit.MOST
    ),
    **MARGIN_FAILS,
    null=kit.exchanged("labels that are separable too", "kind", COMPATIBLE, BOTH),
)
def SL6(e):
    """Where the odds can be met and nothing separates the supports, the loss stays above the
    entropy.
    """
    return e.end("over_entropy") / e["over_entropy"][:, record_at_tenth(e["step"][0])]


@kit.claim(
    kit.between(0.95, 1.1, "steps of 0.05", share=kit.MOST),
    where=AT | {"rule": CONSTANT},
    null=kit.exchanged("steps that decay", "rule", CONSTANT, DECAYING),
)
def SL7(e):
    """Normalised steps of constant length end half a step from the finite part: they go to and fro
    around it.
    """
    return e.end("finite") / 0.025


@kit.claim(
    kit.at_most(2.5, "in the last tenfold of steps; with hard labels ten"),
    where=AT | {"rule": CONSTANT},
    null=kit.exchanged("the most frequent token as a hard label", "kind", BOTH, HARD),
)
def SL7g(e):
    """Normalised steps of constant length buy no length where labels are soft: the diverging part
    grows like a logarithm, with hard labels like t.
    """
    return e.end("outside") / e["outside"][:, record_at_tenth(e["step"][0])]


PROVED_OF_PATHS: dict[str, Any] = {
    "where": {"part": "paths"},
    "assumes": {"both conditions are proved": lambda e: e["separable"] == 1},
}


@kit.claim(
    kit.at_most(0.003, "4 degrees, at R = 160"),
    "recalled",
    "theorem on the ridge-constrained path",
    **PROVED_OF_PATHS,
    null=MOST_FREQUENT,
)
def SL8(e):
    """Weights of least loss and norm R turn to the max-margin solution."""
    return e.at("path", 160.0, "radius")


@kit.claim(
    kit.at_most(
        1e-4,
        f"at the first radius of {FAR:g} norms: exponentially, 1e-7 times a distance of 3 to 23",
    ),
    "recalled",
    "theorem on the ridge-constrained path",
    **PROVED_OF_PATHS,
    null=REVERSED,
)
def SL8f(e):
    """The part of weights of least loss and norm R in the span of differences inside supports
    converges to the solution of the log-odds.
    """
    record = np.searchsorted(RADII, FAR * e["norm"]).clip(max=len(RADII) - 1)
    return e["path_finite"][np.arange(e.rows), record]


@kit.claim(
    kit.true("a theorem: linearly independent embeddings reach any logits"),
    "paper",
    "Thrampoulidis (2024), abstract of version 1: these conditions hold under overparameterization",
    where={"part": "shares", "width": CONTEXTS},
    null=kit.exchanged("half as many dimensions as contexts", "width", CONTEXTS, FEW),
)
def SL9(e):
    """With as many dimensions as contexts, random embeddings make any labels compatible and
    separable.
    """
    return e["compatible"] * e["separable"]


@kit.picture(
    "Soft labels: the finite part and the margin",
    "The loss reaches the entropy with both conditions only; the finite part is reached by plain"
    " steps like 1/t, by normalised ones to half a step; the direction meets the margin solution of"
    " the supports, not that of hard labels; with as many dimensions as contexts both conditions"
    " hold.",
    6.0,
    2,
    2,
    width=8.6,
    name="parts",
)
def draw_parts(evidence: kit.Evidence, axes: Any) -> None:
    """Median and range over trials. Loss over the entropy under plain descent, for labels of which
    both conditions hold or one. Distance to the finite part, both hold, by steps. 1 - cosine of the
    part orthogonal to the span, to the max-margin solution of the supports and to that of the most
    frequent tokens. Shares of labels on twelve contexts for which each condition holds, by
    dimension; both do from the dotted line on, whatever the labels.
    """
    lines: Any = (
        (axes[0, 0], "over_entropy", kit.TRAINED, "both", {}),
        (axes[0, 0], "over_entropy", kit.BEST, "separable only", {"kind": SEPARABLE}),
        (axes[0, 0], "over_entropy", kit.ATTENTION, "compatible only", {"kind": COMPATIBLE}),
        (axes[0, 1], "finite", kit.TRAINED, "plain", {}),
        (axes[0, 1], "finite", kit.ATTENTION, "normalised", {"rule": CONSTANT}),
        (axes[0, 1], "finite", kit.BEST, "normalised, decaying", {"rule": DECAYING}),
        (axes[1, 0], "gap", kit.TRAINED, "soft labels", {}),
        (axes[1, 0], "gap_hard", kit.ATTENTION, "hard labels", {}),
    )
    for ax, column, colour, label, values in lines:
        rows = evidence.where(**AT | values)
        if "kind" in values:
            rows = rows.take(
                rows["compatible" if values["kind"] == SEPARABLE else "separable"] == 0
            )
        is_late = rows["step"][0] >= 10
        values_from_ten = np.maximum(rows[column][:, is_late], 1e-7)
        kit.band(ax, rows["step"][0, is_late], values_from_ten, colour, label=label)
        ax.set(xscale="log", yscale="log", xlabel="step")
    shares = evidence.where(part="shares")
    for name, colour in (("compatible", kit.BEST), ("separable", kit.TRAINED)):
        means = [rows_of_width[name].mean() for rows_of_width in shares.by("width")]
        axes[1, 1].plot(shares.levels("width"), means, "o-", ms=4, color=colour, label=name)
    axes[1, 1].axvline(CONTEXTS, color=kit.FAINT, linestyle=":", linewidth=1.2)
    axes[1, 1].set(xlabel="dimension", ylim=(-0.03, 1.05))
    titles = [
        *("Loss over the entropy", "Distance to the finite part"),
        *("1 - cosine to the margin solution of", "Share of random labels"),
    ]
    for ax, title in zip(axes.flat, titles, strict=True):
        ax.set_title(title)
        kit.legend(ax)
