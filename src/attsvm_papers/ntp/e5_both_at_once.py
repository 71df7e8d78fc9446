"""Both matrices from the start, with a norm each or with one norm for the pair (specification
P3-E5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.claims import Claim, Evidence, at_least
from attsvm_papers.kit import Cell, Experiment
from attsvm_papers.ntp.two_stages import (
    accuracy,
    attention_solutions,
    band,
    by_run,
    draw,
    output_targets,
    rates,
)

if TYPE_CHECKING:
    from attsvm.report.style import Picture


@dataclass(frozen=True)
class Parameters:
    """Data without confused tokens; all sentences, those of one token too."""

    K: int = 20
    per_query: int = 4
    steps: int = 10_000
    seeds: int = 10


QUICK = Parameters(seeds=2)
NORMS = ("block", "joint")


def cells(parameters: Parameters) -> Iterator[Cell]:
    shape = {
        "K": parameters.K,
        "per_query": parameters.per_query,
        "steps": parameters.steps,
        "first": 0,
        "count": parameters.seeds,
    }
    yield from ({**shape, "norm": norm} for norm in NORMS)


def run(K: int, per_query: int, steps: int, first: int, count: int, norm: str) -> dict[str, Any]:
    from attsvm.dynamics import LogSpaced
    from attsvm.dynamics.next_token import Problem, Rule, joint

    eta0, eta = rates(K)
    sets = draw("bipartite", K, per_query, first, count)
    course = joint(sets, Rule(eta), steps, output_lr=eta0, norm=norm, records=LogSpaced(150))  # type: ignore[arg-type]
    assert course.attention.values is not None
    final = Problem.of(sets, values=course.attention.values[-1])
    solutions, target = attention_solutions(sets), output_targets(sets)
    columns = {
        "attention_error": course.attention.direction_error(solutions),
        "output_error": course.output.direction_error(target),
        "attention_norm": course.attention.norm,
        "output_norm": course.output.norm,
        "loss": course.attention.loss,
    }
    return {
        "norm": np.full(count, NORMS.index(norm)),
        "seed": np.arange(first, first + count),
        "step": np.tile(course.attention.steps, (count, 1)),
        "attention_cosine": course.attention.cosine(solutions)[-1],
        "output_cosine": course.output.cosine(target)[-1],
        "accuracy": accuracy(final, course.attention.W[-1]),
        **by_run(columns),
    }


CLAIMS = tuple(
    Claim(
        f"P3-E5{letter}",
        f"{words}: {statement}.",
        "ours",
        lambda e, index=index, column=column: e.where(norm=index)[column],  # type: ignore[misc]
        at_least(bound, "the specification's, after 10 000 steps"),
        reference="specification P3-E5, an ablation that the paper does not make",
    )
    for letter, index, words, column, bound, statement in (
        ("a", 0, "A norm each", "accuracy", 1.0, "every sentence is predicted"),
        ("b", 1, "One norm", "accuracy", 1.0, "every sentence is predicted"),
        (
            "c",
            0,
            "A norm each",
            "output_cosine",
            0.999,
            "the output matrix points along its solution",
        ),
        ("d", 1, "One norm", "output_cosine", 0.999, "the output matrix points along its solution"),
        (
            "e",
            0,
            "A norm each",
            "attention_cosine",
            0.98,
            "the query-key matrix points along its solution",
        ),
        (
            "f",
            1,
            "One norm",
            "attention_cosine",
            0.98,
            "the query-key matrix points along its solution",
        ),
    )
)


def plot(evidence: Evidence) -> Iterator[Picture]:
    from attsvm.report.style import ATTENTION, FAINT, TRAINED, canvas, logarithmic, render

    with canvas(2.9, 1, 3, width=8.6) as (figure, axes):
        for index, colour, words in ((0, TRAINED, "a norm each"), (1, ATTENTION, "one norm")):
            rows = evidence.where(norm=index)
            step = rows["step"][0]
            late = step >= 1
            band(axes[0], step[late], rows["loss"][:, late], colour)
            band(axes[1], step[late], rows["output_error"][:, late], colour)
            band(axes[1], step[late], rows["attention_error"][:, late], colour, "--")
            band(axes[2], step, rows["output_norm"], colour)
            band(axes[2], step, rows["attention_norm"], colour, "--")
            axes[0].plot([], [], color=colour, label=words)
        for style, words in (("-", "output matrix"), ("--", "query-key matrix")):
            axes[2].plot([], [], style, color=FAINT, label=words)
        for ax in axes[:2]:
            logarithmic(ax.xaxis, np.array([1.0, 10_000.0]))
        logarithmic(axes[0].yaxis, evidence["loss"])
        logarithmic(axes[1].yaxis, evidence["output_error"][:, 1:])
        axes[2].set_xticks([0, 5000, 10_000], ["0", "5000", "10 000"])
        for ax in (axes[0], axes[2]):
            ax.legend(frameon=False, fontsize=8.5, labelcolor=FAINT)
        for ax, title in zip(axes, ("Loss", "Direction errors", "Norms"), strict=True):
            ax.set_title(title)
            ax.set_xlabel("step")
        yield render(
            figure,
            "both-at-once",
            "Both matrices from the start",
            "Medians and ranges over seeds; dashed lines are the query-key matrix. With one norm"
            " the output matrix takes most of the step at first, and the query-key matrix follows"
            " more slowly.",
            "Both losses fall to zero; both directions converge, the query-key matrix more slowly"
            " under one norm.",
        )


EXPERIMENT = Experiment(
    id="ntp-5",
    title="Ablation: both matrices from the start",
    reference="specification P3-E5 (proposed there)",
    protocol=(
        "Data as in ntp-3 without confused tokens, sentences of one token included; 10 000"
        " normalised steps of both matrices from zero, 0.2 / sqrt(d) for the output and 0.05 /"
        " sqrt(d) for the query-key matrix; with a norm per matrix, and with one for the pair."
    ),
    parameters=Parameters(),
    quick=QUICK,
    cells=cells,
    run=run,
    claims=CLAIMS,
    plot=plot,
)
