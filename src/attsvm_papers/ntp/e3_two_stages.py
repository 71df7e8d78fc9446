"""Two-stage training of a one-layer transformer.

K = d = 20, four sentences per query (80), without and with confused tokens. Stage 1: 1000
normalised steps of 0.2 / sqrt(d) on the output matrix; stage 2: 100 000 of 0.05 / sqrt(d) on the
query-key matrix. Solutions are certified.

Source: Huang, Liang and Yang (2024), Algorithm 1 and Figure 2

Notes: The paper says only that its data are random, realizable and of 20 tokens; generators and
numbers of steps are this project's.
"""

import math
from typing import Any

import numpy as np

from attsvm import LogSpaced
from attsvm.dynamics import AtSteps
from attsvm.dynamics.next_token import Rule, attention_stage, output_stage, two_stage
from attsvm_papers.kit import (
    FAINT,
    MOST,
    VERDICT,
    Evidence,
    at_least,
    at_most,
    band,
    between,
    blocks,
    claim,
    close_to,
    each,
    grid,
    legend,
    logarithmic,
    loglog,
    mixed_records,
    picture,
    replaced,
    same,
    scales,
    slopes,
    true,
)
from attsvm_papers.ntp.two_stages import (
    KINDS,
    PUBLISHED,
    accuracy,
    attention_solutions,
    by_run,
    draw,
    output_targets,
    rates,
    slope,
    sums_of_arcs,
)

# Vocabulary of K tokens, ``per_query`` sentences per query; steps of both stages.
SCALES = scales(
    K=20,
    per_query=4,
    first_steps=1000,
    steps=100_000,
    seeds=10,
    first_seed=VERDICT,
    quick={"steps": 10_000, "seeds": 2},
)
_K = SCALES.parameters.K
BLOCK = 2
HASTE = 1000.0
"""Of steps that are too long, in steps of the paper."""
TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-6, 1e-8)


@grid(kind=KINDS, seeds=blocks(BLOCK))
def run(K, per_query, kind, seeds, first_steps, steps):
    eta0, eta = rates(K)
    sets = draw(kind, K, per_query, seeds)
    marks = np.rint(10.0 ** (np.arange(int(40 * math.log10(steps)) + 1) / 40)).astype(int).tolist()
    output, attention = two_stage(
        sets, Rule(eta0), Rule(eta), (first_steps, steps), records=AtSteps(marks), watch=True
    )
    solutions = attention_solutions(sets)
    alike = sums_of_arcs(solutions)
    problem, at = attention.problem, attention.steps
    hasty = attention_stage(problem, Rule(HASTE * eta), 200, records=AtSteps(()), watch=True)
    error, other = (attention.direction_error(target) for target in (solutions, alike))
    here = int(np.flatnonzero(at == PUBLISHED)[0])
    alpha = eta0 * first_steps / math.sqrt(K - 1)
    # the slope of the loss in the missing mass: alpha K e^-alpha p_y
    log_factor = math.log(alpha * K) - alpha - math.log1p((K - 1) * math.exp(-alpha))
    columns = {
        "output_loss": output.loss,
        "output_error": output.direction_error(output_targets(sets)),
        "output_norm": output.norm,
        "loss": attention.loss,
        "log_gap": attention.log_gap,
        "error": error,
        "norm": attention.norm,
        "log_missing": attention.log_missing,
        "alignment": attention.alignment(solutions),
        "alignment_other": attention.alignment(np.roll(solutions.W, 1, axis=2)),
        "pushed": _pushed(problem, attention.W, alpha, K),
    }
    return {
        "kind": np.full(len(seeds), KINDS.index(kind)),
        "step": same(at),
        "output_step": same(output.steps),
        "eta": np.full(len(seeds), eta),
        "last_step": np.full(len(seeds), steps),
        "cosine": attention.cosine(solutions)[here],
        "cosine_alike": attention.cosine(alike)[here],
        "accuracy": accuracy(problem, attention.W[here]),
        "accuracy_start": accuracy(problem, attention.W[0]),
        "missing": attention.log_missing[here],
        "path": attention.norm[here] / (eta * PUBLISHED),
        "error_slope": slope(at, np.log(error), 1e3, 1e4),
        "error_slope_alike": slope(at, np.log(other), 1e3, 1e4),
        "late_error_slope": slope(at, np.log(error), 1e4, 1e5),
        "late_error_slope_alike": slope(at, np.log(other), 1e4, 1e5),
        "loss_rate": slope(at, attention.log_gap, 5e3, 1e4, log=False) * -solutions.norm / eta,
        "coefficient": np.exp(
            attention.log_gap[here]
            - log_factor
            - problem.log_mean(problem.log_missing(attention.W[here]))
        ),
        "last_rise": attention.last_rise,
        "last_rise_hasty": hasty.last_rise,
        "solution_norm": solutions.norm,
        "certified": solutions.optimal,
        **_end_to_end(sets, solutions.norm, K),
        **by_run(columns),
    }


def _pushed(problem: Any, W: Any, alpha: float, K: int) -> Any:
    r"""``(R, runs)``: whether minus the gradient of some sentence raises the score of a token that
    is not its winner.

    The sign of :math:`p_l+\varphi_\star(1-p_y)-\sum_{j\ne\star}\varphi_jp_j`; n is
    injective, so the output's logit of :math:`n(x_j)` is the common part plus
    :math:`\alpha\varphi_j`.
    """
    phi = np.exp(problem.log_attention(W))
    lengths = np.diff(problem.start)
    absent = K - lengths
    odds = np.exp(alpha * phi)
    starts = problem.start[:-1]
    p = odds / np.repeat(np.add.reduceat(odds, starts, axis=-1) + absent, lengths, axis=-1)
    other = np.ones(len(problem.token), dtype=bool)
    other[problem.own] = False
    share = np.add.reduceat(np.where(other, phi * p, 0.0), starts, axis=-1)
    rest = np.add.reduceat(np.where(other, p, 0.0), starts, axis=-1) + absent / (
        np.add.reduceat(odds, starts, axis=-1) + absent
    )
    level = np.repeat(phi[..., problem.own] * rest - share, lengths, axis=-1)
    up = other & (p + level < 0.0)
    return np.logical_or.reduceat(up, problem.start[problem.run_start[:-1]], axis=-1)


def _end_to_end(sets: Any, norms: Any, K: int) -> dict[str, Any]:
    r"""Steps of stage 2 until :math:`L\le2\varepsilon`, times :math:`\eta/\|W_{kq}^\star\|`, where
    stage 1 had gone to :math:`\varepsilon`; and the loss of stage 1 over :math:`\varepsilon`, then
    and after two steps in a hundred less.
    """
    eta0, eta = rates(K)
    lengths = np.zeros((len(sets), len(TOLERANCES)))
    floors, short = np.zeros((2, *lengths.shape))
    for k, epsilon in enumerate(TOLERANCES):
        first = math.ceil(math.sqrt(K - 1) / eta0 * math.log((K - 1) / epsilon))
        course = two_stage(
            sets, Rule(eta0), Rule(eta), (first, 4000), records=LogSpaced(1000)
        ).attention
        reached = course.loss <= 2.0 * epsilon
        when = np.where(reached.any(axis=0), course.steps[reached.argmax(axis=0)], np.inf)
        lengths[:, k] = when * eta / norms
        floors[:, k] = course.problem.floor() / epsilon
        less = output_stage(sets, Rule(eta0), int(0.98 * first), records=AtSteps(()))
        short[:, k] = less.loss[-1] / epsilon
    return {"end_to_end": lengths, "first_stage": floors, "first_stage_short": short}


def _kind(e: Evidence, column: str, index: int, scale: float = 1.0) -> Any:
    return scale * e.where(kind=index)[column]


def _late(index: int) -> dict[str, Any]:
    return {"100 000 steps": lambda e: e.where(kind=index)["last_step"] >= 100_000}


ALIKE = replaced(
    "the sum of all arcs",
    cosine="cosine_alike",
    error_slope="error_slope_alike",
    late_error_slope="late_error_slope_alike",
)
"""In place of the max-margin solution."""
FIGURE = "P3, Figure 2, right panels"


@claim(
    at_least(0.99, "8 degrees", share=MOST),
    "paper",
    reference=f"{FIGURE}; abstract: to the direction of the max-margin solution",
    id="P3-E3a",
    assumes={"a certified solution": lambda e: e["certified"] == 1},
    null=ALIKE,
)
def P3_E3a(e):
    """After 10 000 steps the query-key matrix points along the max-margin solution: the cosine is
    at least .99.
    """
    return e["cosine"]


@claim(
    at_least(1.0, "realizable data", share=MOST),
    reference=(FIGURE),
    id="P3-E3b",
    null=replaced("before any training of attention", accuracy="accuracy_start"),
)
def P3_E3b(e):
    """Every training sentence is predicted after 10 000 steps."""
    return e["accuracy"]


EARLIER = replaced(
    "after a tenth of these steps",
    missing=lambda e: e["log_missing"][:, int(np.argmax(e["step"][0] >= PUBLISHED / 10))],
)


@each(
    claim(
        at_most(bound, "set by this project", share=MOST),
        "ours",
        reference=FIGURE,
        id=f"P3-E3{letter}",
        statement=(
            f"{words}: after 10 000 steps no sentence leaves more than {bound:g} of its attention"
            " to other tokens."
        ),
        null=EARLIER,
        index=index,
    )
    for letter, index, words, bound in (
        ("c", 0, "No confused tokens", 1e-7),
        ("d", 1, "Confused tokens", 1e-4),
    )
)
def missing(e, index):
    return np.exp(e.where(kind=index)["missing"])


@claim(
    at_least(
        0.5,
        "cosine at every record; the claim is a positive constant, an independent program"
        " has .84 and .69 on two seeds each",
        share=MOST,
    ),
    null=replaced("the solution with the scores of another query", alignment="alignment_other"),
)
def C3_5a(e):
    """Minus the gradient makes an acute angle with the solution along the whole path, bounded away
    from a right one.
    """
    return e["alignment"].min(axis=1)


@claim(
    at_most(
        -1,
        "the last step at which it rose, -1 for none; counted at every step of the run, on the"
        " exact logarithm of the gap",
        share=MOST,
    ),
    null=replaced(f"steps {HASTE:g} times as long", last_rise="last_rise_hasty"),
)
def C3_5b(e):
    """Confused tokens: the loss over its floor falls at every step."""
    return _kind(e, "last_rise", 1)


@claim(
    at_most(
        1000,
        "last record at which minus a sentence's gradient raises one; an independent program has"
        " 90 to 400",
        share=MOST,
    ),
    null=mixed_records("pushed"),
)
def C3_4(e):
    """Tokens that should lose are pushed up early on only."""
    return np.where(e["pushed"], e["step"], -1).max(axis=1)


@claim(
    between(0.95, 1.0 + 1e-12, "a path is no longer than its steps", share=MOST),
    "paper",
    reference="P3, a norm that grows linearly",
    null=replaced("steps in random directions", path=lambda e: np.full(e.rows, PUBLISHED**-0.5)),
)
def C3_6(e):
    """The norm grows linearly: after 10 000 steps it is at least .95 of the length of the path, and
    never more than all of it.
    """
    return e["path"]


@each(
    claim(
        at_most(
            bound,
            "log-log slope, between the proved 1/2 and the expected log t / t",
            share=MOST,
        ),
        "paper",
        reference="P3, abstract: sub-linearly (exponent unknown)",
        id=f"C3.7{letter}",
        statement=(
            f"{words}: the direction error falls at least like t to the power {bound:g} on steps"
            f" {low} to {high}."
        ),
        assumes=_late(index) if column == "late_error_slope" else {},
        interval=True,
        null=ALIKE,
        column=column,
        index=index,
    )
    for letter, index, words, column, bound, low, high in (
        ("a", 0, "No confused tokens", "error_slope", -0.45, "1000", "10 000"),
        ("b", 1, "Confused tokens", "error_slope", -0.45, "1000", "10 000"),
        ("c", 0, "No confused tokens", "late_error_slope", -0.7, "10 000", "100 000"),
        ("d", 1, "Confused tokens", "late_error_slope", -0.7, "10 000", "100 000"),
    )
)
def sublinear_direction(e, column, index):
    return _kind(e, column, index)


@each(
    claim(
        close_to(
            1.0,
            0.05,
            "slope of its logarithm on steps 5000 to 10 000, relative to the prediction",
            share=MOST,
        ),
        "paper",
        reference="P3, abstract: a linear rate; the constant is derived",
        id=f"C3.8{letter}",
        statement=(
            f"{words}: the loss over its floor falls by eta / |W*| per step, a linear rate."
        ),
        interval=True,
        null=replaced(
            "the norm of the other kind's solution",
            loss_rate=lambda e: e["loss_rate"] * e["solution_norm"][::-1] / e["solution_norm"],
        ),
        column="loss_rate",
        index=index,
    )
    for letter, index, words in (("a", 0, "No confused tokens"), ("b", 1, "Confused tokens"))
)
def linear_loss(e, column, index):
    return _kind(e, column, index)


@claim(
    at_most(
        2e-3,
        "relative, at step 10 000: the next term is about alpha = 10 times the missing mass,"
        " which is at most 1e-4",
        share=MOST,
    ),
    null=replaced(
        "K - 1 in place of K",
        coefficient=lambda e: e["coefficient"] * _K / (_K - 1),
    ),
)
def C3_8c(e):
    """It is alpha K exp(-alpha) p_y times the mean mass off the winners, to first order."""
    return np.abs(e["coefficient"] - 1.0)


@claim(
    between(
        0.9,
        1.2,
        "one in the limit, derived: of the loss over its floor, alpha K p_y m in units of epsilon,"
        " only alpha = log((K - 1) / epsilon) is left to attention; 1.04 to 1.11 on four tuning"
        " runs",
        share=MOST,
    ),
    reference="P3's two rates bound it by |W*| / eta log(C / epsilon), which is far more",
    interval=True,
    null=replaced(
        "the logarithm of 1 / epsilon, as the bound has it",
        end_to_end=lambda e: np.broadcast_to(-np.log(TOLERANCES), e["end_to_end"].shape),
    ),
)
def C3_9(evidence):
    """End to end: where stage 1 went to epsilon, the steps of stage 2 to a loss of 2 epsilon grow
    by |W*| / eta per unit of log log((K - 1) / epsilon).
    """
    alpha = np.log((_K - 1) / np.array(TOLERANCES))
    return slopes(np.log(alpha), evidence["end_to_end"], np.array(True))


@claim(
    true("derived from the closed form of C3.1"),
    id="P3-E3e",
    null=replaced("two steps in a hundred less", first_stage="first_stage_short"),
)
def P3_E3e(e):
    """Stage 1 reaches epsilon in sqrt(K - 1) / eta log((K - 1) / epsilon) steps."""
    return e["first_stage"].max(axis=1) <= 1.0


COLOURS = ("#00639c", "#b84a00")
WORDS = ("no confused tokens", "confused tokens")


@picture(
    "Two-stage training, as the paper draws it",
    "In both stages the loss falls, the direction error goes to zero and the norm grows"
    " along a line.",
    4.9,
    2,
    3,
    width=8.6,
    name="both-stages",
)
def both_stages(evidence, axes):
    """Loss, direction error and norm of both stages; medians and ranges over seeds. The loss of
    stage 2 falls to what stage 1 left.
    """
    for index in evidence.levels("kind"):
        rows, colour = evidence.where(kind=index), COLOURS[int(index)]
        step, first = rows["step"][0], rows["output_step"][0]
        seen, early = step <= PUBLISHED, first > 0
        band(axes[0, 0], first, rows["output_loss"], colour)
        band(axes[0, 1], first[early], np.maximum(rows["output_error"][:, early], 1e-17), colour)
        band(axes[0, 2], first, rows["output_norm"], colour)
        band(axes[1, 0], step[seen], rows["loss"][:, seen], colour, label=WORDS[int(index)])
        band(axes[1, 1], step[seen], rows["error"][:, seen], colour)
        band(axes[1, 2], step[seen], rows["norm"][:, seen], colour)
    logarithmic(axes[0, 0].yaxis, evidence["output_loss"])
    logarithmic(axes[0, 1].yaxis, np.array([1e-17, 1.0]))
    axes[0, 1].set_ylim(1e-17, 1.0)
    axes[0, 1].text(
        0.5,
        0.55,
        "on the solution's ray\nfrom the first step on",
        transform=axes[0, 1].transAxes,
        ha="center",
        color=FAINT,
    )
    logarithmic(axes[1, 0].yaxis, evidence["loss"])
    legend(axes[1, 0])
    axes[1, 1].set_ylim(0, None)
    for row, (stage, matrix) in enumerate((("Stage 1", "output"), ("Stage 2", "query-key"))):
        for ax, title in zip(
            axes[row],
            (f"{stage}: loss", f"{stage}: direction error", f"Norm of the {matrix} matrix"),
            strict=True,
        ):
            ax.set(title=title, xlabel="step")
    for ax in axes[1]:
        ax.set_xticks([0, 5000, 10_000], ["0", "5000", "10 000"])


@picture(
    "The rates of stage 2",
    "On log axes the error falls ever more steeply; the loss gaps of all seeds run parallel"
    " to the predicted line.",
    3.0,
    1,
    3,
    width=8.6,
    name="rates",
)
def rates_of_stage_2(evidence, axes):
    """The direction error falls like t to the power -1/2 and then faster; over its floor the loss
    falls at the predicted rate.
    """
    for index in evidence.levels("kind"):
        rows, colour = evidence.where(kind=index), COLOURS[int(index)]
        step = rows["step"][0]
        seen, late = step <= PUBLISHED, step >= 10
        band(axes[0], step[late], rows["error"][:, late], colour)
        unit = rows["eta"][:, None] * step[seen] / rows["solution_norm"][:, None]
        gaps = np.exp(rows["log_gap"][:, seen])
        axes[1].plot(unit.T, gaps.T, color=colour, linewidth=0.8, alpha=0.7)
        band(axes[2], step[late], rows["alignment"][:, late], colour, label=WORDS[int(index)])
    last = float(evidence["step"].max())
    x = np.geomspace(1000, last, 20)
    axes[0].plot(x, 0.6 * (x / 1000.0) ** -0.5, "--", color=FAINT, linewidth=1)
    axes[0].text(
        x[6],
        0.63 * (x[6] / 1000.0) ** -0.5,
        "slope −1/2",
        color=FAINT,
        fontsize=8.5,
        va="bottom",
    )
    loglog(axes[0], np.array([10.0, last]), np.array([1e-3, 2.0]))
    u = np.array([4.0, 22.0])
    axes[1].plot(u, 3e-3 * np.exp(-u), "--", color=FAINT, linewidth=1)
    axes[1].text(10.5, 3e-8, "predicted\nslope", color=FAINT, fontsize=8.5, ha="right", va="top")
    logarithmic(axes[1].yaxis, np.exp(evidence["log_gap"][:, evidence["step"][0] <= PUBLISHED]))
    logarithmic(axes[2].xaxis, np.array([10.0, last]))
    axes[2].set_ylim(0, 1.02)
    legend(axes[2], loc="lower right")
    titles = (
        "Direction error",
        "Loss over its floor, every seed",
        "Cosine of −gradient and solution",
    )
    for ax, title, label in zip(
        axes, titles, ("step", "step × step size / |W*|", "step"), strict=True
    ):
        ax.set(title=title, xlabel=label)
