"""Keys and queries trained apart find the nuclear margin; trained as one matrix, the Frobenius
margin (specification P6-E1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.claims import Claim, Evidence, at_least, at_most, between, true
from attsvm_papers.kit import Cell, Experiment, cut
from attsvm_papers.rates.adaptive import marks

if TYPE_CHECKING:
    from attsvm.dynamics.next_token import AttentionCourse
    from attsvm.report.style import Picture


@dataclass(frozen=True)
class Parameters:
    """Token-priority data without cycles, n = 4, T = 6, K = d = 8; ``steps`` of 0.01 are the
    specification's, then on to ``far``.
    """

    steps: int = 20_000
    far: int = 100_000
    seeds: int = 12


SETTING = (4, 6, 8, 8)
SMALL, IDENTITY, LARGE, WHOLE, HALF = range(5)
"""Factors from small Gaussian, identity and large Gaussian starts, one matrix from zero, and the
small start with half the step.
"""
FACTORED = (SMALL, IDENTITY, LARGE)
LR, MATRIX_LR = 0.01, 0.05


def cells(parameters: Parameters) -> Iterator[Cell]:
    for first, count in cut(parameters.seeds, 12):
        for kind in (SMALL, IDENTITY, LARGE, WHOLE, HALF):
            yield {
                "kind": kind,
                "first": first,
                "count": count,
                "steps": parameters.steps,
                "far": parameters.far,
            }


def starts(kind: int, d: int, first: int, count: int) -> tuple[Any, Any]:
    """K and Q, ``(count, d, d)`` each: Gaussian entries of deviation 0.01 or 1, or a tenth of the
    identity.
    """
    if kind == IDENTITY:
        same = np.broadcast_to(0.1 * np.eye(d), (count, d, d))
        return same, same
    scale = 1.0 if kind == LARGE else 0.01
    draws = np.stack(
        [
            np.random.default_rng([6, seed]).standard_normal((2, d, d))
            for seed in range(first, first + count)
        ]
    )
    return scale * draws[:, 0], scale * draws[:, 1]


def run(kind: int, first: int, count: int, steps: int, far: int) -> dict[str, Any]:
    from attsvm.datasets.next_token import arcs, priority_graph
    from attsvm.dynamics import AtSteps
    from attsvm.dynamics.next_token import Problem, Rule, attention_stage, factored_stage
    from attsvm.geometry import Nuclear
    from attsvm.margins import order_margins
    from attsvm.solvers import max_margin

    data = [priority_graph(*SETTING, seed) for seed in range(first, first + count)]
    margins = [order_margins(one.embeddings, arcs(one).arcs) for one in data]
    nuclear, frobenius = max_margin(margins, Nuclear()), max_margin(margins)
    best = np.array([solution.margin for solution in nuclear])
    problem, start = Problem.of(data, "log_mass"), starts(kind, SETTING[3], first, count)
    same = {"seed": np.arange(first, first + count), "kind": np.full(count, kind)}
    if kind == HALF:  # twice the steps: the same length of path
        course = factored_stage(problem, Rule(LR / 2), 2 * steps, init=start, records=AtSteps(()))
        return same | _drift(course, -1)
    records = AtSteps([*marks(steps), steps])
    if kind == WHOLE:
        course = attention_stage(problem, Rule(MATRIX_LR), far, records=records)
    else:
        course = factored_stage(problem, Rule(LR), far, init=start, records=records)
    sizes = np.linalg.svd(course.W, compute_uv=False)
    total = np.maximum(
        sizes.sum(axis=-1, keepdims=True), np.finfo(np.float64).tiny
    )  # W is zero at the start of one kind
    shares = np.maximum(sizes / total, np.finfo(np.float64).tiny)
    least = np.stack([[one(W[run]).min() for run, one in enumerate(margins)] for W in course.W])
    columns = {
        "step": np.tile(course.steps, (count, 1)),
        "ratio": (least / total[..., 0] / best).T,
        "rank": np.exp(-np.sum(shares * np.log(shares), axis=-1)).T,
        "frobenius_ratio": (
            np.array([1.0 / Nuclear().value(solution.W) for solution in frobenius]) / best
        ),
        "certified": np.array(
            [
                a.status == "optimal" and b.status == "optimal"
                for a, b in zip(nuclear, frobenius, strict=True)
            ]
        ),
    }
    at = int(np.flatnonzero(course.steps == steps)[0])
    return same | columns | ({} if kind == WHOLE else _drift(course, at))


def _drift(course: AttentionCourse, record: int) -> dict[str, Any]:
    r"""How far :math:`K^\top K-Q^\top Q` is from where it started, and :math:`\|K\|_F^2`."""
    K, Q = course.factors["K"], course.factors["Q"]
    kept = K.mT @ K - Q.mT @ Q
    return {
        "drift": np.linalg.norm(kept[record] - kept[0], axis=(-2, -1)),
        "size": np.sum(K[record] ** 2, axis=(-2, -1)),
    }


def _of(evidence: Evidence, kind: int) -> Evidence:
    rows = evidence.where(kind=kind)
    return rows.take(np.argsort(rows["seed"]))


def _ratio(evidence: Evidence, kinds: tuple[int, ...], step: int | None = None) -> Any:
    """Margin ratios at a step, the last when None, one per trial."""
    found = []
    for kind in kinds:
        rows = _of(evidence, kind)
        at = -1 if step is None else int(np.flatnonzero(rows["step"][0] == step)[0])
        found.append(rows["ratio"][:, at])
    return np.concatenate(found)


def _lead(step: int | None) -> Any:
    def measure(evidence: Evidence) -> Any:
        solution = np.concatenate([_of(evidence, kind)["frobenius_ratio"] for kind in FACTORED])
        return _ratio(evidence, FACTORED, step) - solution

    return measure


STEPS, FAR = Parameters().steps, Parameters().far
LONG = {"100 000 steps": lambda e: np.array(np.nanmax(e["step"]) >= FAR)}
CLAIMS = (
    Claim(
        "C6.1",
        "The margin of the product of the factors, relative to the best one in nuclear norm, at"
        " step 20 000.",
        "seen",
        lambda e: _ratio(e, FACTORED, STEPS),
        at_least(0.93, "the specification's; one on the limit"),
        reference="P6, implicit bias of key and query; specification P6-E1",
    ),
    Claim(
        "C6.1a",
        "It is at least 0.98 in half of the runs.",
        "ours",
        lambda e: _ratio(e, FACTORED, STEPS),
        at_least(0.98, "the specification's", share=0.5),
    ),
    Claim(
        "C6.1b",
        "It is above that of the Frobenius solution: lead at step 20 000.",
        "ours",
        _lead(STEPS),
        at_least(0.0, "the specification's; factors prefer another norm"),
        explanation=(
            "Two of 36 runs are below, by 0.028 and 0.008: both start small on the one instance"
            " whose Frobenius solution has 0.995 of the best nuclear margin."
        ),
    ),
    Claim(
        "C6.1c",
        "The same at step 100 000.",
        "ours",
        _lead(None),
        at_least(
            0.0,
            "where the Frobenius solution itself is nearly optimal the factors need longer to"
            " pass it",
        ),
        LONG,
        explanation=(
            "One of 36 runs is still below, by 0.008, on the instance whose Frobenius solution has"
            " 0.995 of the best nuclear margin."
        ),
    ),
    Claim(
        "C6.1d",
        "One matrix W goes to the Frobenius solution instead: its ratio minus that solution's.",
        "seen",
        lambda e: _ratio(e, (WHOLE,)) - _of(e, WHOLE)["frobenius_ratio"],
        between(-0.01, 0.01, "the direction is within 1e-3 of the solution at this norm"),
        reference="P6, combined weights",
    ),
    Claim(
        "C6.1e",
        "Both programmes of every instance are certified.",
        "ours",
        lambda e: np.concatenate([_of(e, kind)["certified"] for kind in (*FACTORED, WHOLE)]),
        true("ratios to a margin that is not the best one would mean nothing"),
    ),
    Claim(
        "C6.1f",
        "The flow conserves K'K - Q'Q, and steps of size h miss that by O(h): drift at half the"
        " step over drift, at equal length of path.",
        "ours",
        lambda e: _of(e, HALF)["drift"] / _of(e, SMALL)["drift"],
        at_most(
            0.6,
            "one half, derived; one-sided because drifts of both signs cancelled on two seeds (.03"
            " and .05)",
        ),
    ),
    Claim(
        "C6.1g",
        "The drift is small: relative to the squared norm of K at step 20 000.",
        "ours",
        lambda e: np.concatenate(
            [_of(e, kind)["drift"] / _of(e, kind)["size"] for kind in FACTORED]
        ),
        at_most(
            1e-3,
            "each step adds its square, at most 1e-4, and 20 000 of them cancel in part; the norm"
            " is of order 1e4",
        ),
    ),
)


def plot(evidence: Evidence) -> Iterator[Picture]:
    from attsvm.report.style import (
        ATTENTION,
        BEST,
        INK,
        TRAINED,
        canvas,
        label_ends,
        logarithmic,
        render,
    )

    colours = {SMALL: TRAINED, IDENTITY: BEST, LARGE: ATTENTION, WHOLE: INK}
    short = {SMALL: "small start", IDENTITY: "identity", LARGE: "large start", WHOLE: "one matrix"}
    with canvas(3.0, 1, 2, width=8.0) as (figure, axes):
        for ax, column in zip(axes, ("ratio", "rank"), strict=True):
            ends = []
            for kind, colour in colours.items():
                rows = _of(evidence, kind)
                step = rows["step"][0]
                late = step >= 10
                values = rows[column][:, late]
                low, middle, high = np.quantile(values, (0.1, 0.5, 0.9), axis=0)
                ax.fill_between(step[late], low, high, color=colour, alpha=0.15, linewidth=0)
                ax.plot(step[late], middle, color=colour)
                ends.append((float(middle[-1]), short[kind], colour))
            logarithmic(ax.xaxis, step[late].astype(float))
            ax.set_xlim(10, step[-1])
            ax.set_xlabel("step")
            ax.set_ylim(*((0.5, 1.02) if column == "ratio" else (1.0, 8.0)))
            label_ends(ax, ends, 0.065)
        axes[0].set_title("margin / best margin, nuclear norm")
        axes[1].set_title("effective rank of the weights, of 8")
        yield render(
            figure,
            "factored",
            "Keys and queries apart prefer few directions",
            "Median over seeds with the middle 80 %. Left: smallest margin over nuclear norm,"
            " relative to the best possible one. Right: exponential of the entropy of the"
            " normalised singular values.",
            "Three curves of factors rise to one with two or three directions; the curve of a"
            " single matrix stops near 0.92 with more.",
        )


EXPERIMENT = Experiment(
    id="factored-1",
    title="Separate keys and queries maximise the nuclear margin",
    reference=(
        "Implicit Regularization of Gradient Flow on One-Layer Softmax Attention; specification"
        " P6-E1"
    ),
    protocol=(
        "Token-priority data without cycles (n = 4, T = 6, K = d = 8, random unit embeddings), log"
        " loss of the attention mass. Steps of 0.01 in the joint norm of K and Q, gradients in log"
        " space, from three starts; for comparison one matrix W from zero with steps of 0.05. Both"
        " max-margin programmes are certified."
    ),
    parameters=Parameters(),
    quick=Parameters(far=STEPS, seeds=3),
    cells=cells,
    run=run,
    claims=CLAIMS,
    plot=plot,
    notes=(
        "The paper trains classification with an exponential loss and proves the bias for aligned"
        " or diagonal starts; data, loss and starts are the specification's."
    ),
)
