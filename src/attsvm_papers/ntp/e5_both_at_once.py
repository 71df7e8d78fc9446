"""Ablation: both matrices from the start.

Data as in ntp-3 without confused tokens, sentences of one token included. Both matrices take 10 000
normalised steps from zero, of 0.2 / sqrt(d) for the output and 0.05 / sqrt(d) for the query-key
matrix; with a norm per matrix, and with one for the pair.

Source: this project
"""

import numpy as np

from attsvm import LogSpaced
from attsvm.dynamics.next_token import Problem, Rule, joint
from attsvm_papers import kit
from attsvm_papers.ntp.two_stages import (
    accuracy,
    attention_solutions,
    by_run,
    draw,
    output_targets,
    rates,
    sums_of_arcs,
    uncentred,
)


@kit.run(norm=["block", "joint"], seeds=kit.seeds(10, by=100), quick={"seeds": 2})
def run(seeds, norm, K=20, per_query=4, steps=10_000):
    eta0, eta = rates(K)
    sets = draw("bipartite", K, per_query, seeds)
    course = joint(sets, Rule(eta), steps, output_lr=eta0, norm=norm, records=LogSpaced(150))
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
        "step": kit.same(course.attention.steps),
        "attention_cosine": course.attention.cosine(solutions)[-1],
        "attention_cosine_alike": course.attention.cosine(sums_of_arcs(solutions))[-1],
        "output_cosine": course.output.cosine(target)[-1],
        "output_cosine_uncentred": course.output.cosine(uncentred(sets))[-1],
        "accuracy": accuracy(final, course.attention.W[-1]),
        "accuracy_start": accuracy(final, course.attention.W[0]),
        **by_run(columns),
    }


NULLS = {
    "accuracy": kit.replaced("attention before any training", accuracy="accuracy_start"),
    "output_cosine": kit.replaced(
        "a target that is not centred", output_cosine="output_cosine_uncentred"
    ),
    "attention_cosine": kit.replaced(
        "the sum of all arcs", attention_cosine="attention_cosine_alike"
    ),
}


PREDICTED = ("accuracy", 1.0, "every sentence is predicted")
OUTPUT = ("output_cosine", 0.999, "the output matrix points along its solution")
ATTENTION = ("attention_cosine", 0.98, "the query-key matrix points along its solution")
EACH, ONE = ("block", "A norm each"), ("joint", "One norm")


@kit.each(
    kit.claim(
        kit.at_least(bound, "after 10 000 steps", share=kit.MOST),
        reference="an ablation that the paper does not make",
        id=f"P3-E5{letter}",
        statement=f"{words}: {statement}.",
        where={"norm": norm},
        null=NULLS[column],
        column=column,
    )
    for letter, (norm, words), (column, bound, statement) in (
        *(("a", EACH, PREDICTED), ("b", ONE, PREDICTED)),
        *(("c", EACH, OUTPUT), ("d", ONE, OUTPUT)),
        *(("e", EACH, ATTENTION), ("f", ONE, ATTENTION)),
    )
)
def reached(e, column):
    return e[column]


@kit.picture(
    "Both matrices from the start",
    "Both losses fall to zero; both directions converge, the query-key matrix more slowly"
    " under one norm.",
    2.9,
    1,
    3,
    width=8.6,
    name="both-at-once",
)
def both_at_once(evidence, axes):
    """Medians and ranges over seeds; dashed lines are the query-key matrix. With one norm the
    output matrix takes most of the step at first, and the query-key matrix follows more slowly.
    """
    for (norm, words), colour in ((EACH, kit.TRAINED), (ONE, kit.ATTENTION)):
        rows = evidence.where(norm=norm)
        step = rows["step"][0]
        late = step >= 1
        kit.band(axes[0], step[late], rows["loss"][:, late], colour, label=words.lower())
        kit.band(axes[1], step[late], rows["output_error"][:, late], colour)
        kit.band(axes[1], step[late], rows["attention_error"][:, late], colour, "--")
        kit.band(axes[2], step, rows["output_norm"], colour)
        kit.band(axes[2], step, rows["attention_norm"], colour, "--")
    for style, words in (("-", "output matrix"), ("--", "query-key matrix")):
        axes[2].plot([], [], style, color=kit.FAINT, label=words)
    for ax in axes[:2]:
        kit.logarithmic(ax.xaxis, np.array([1.0, 10_000.0]))
    kit.logarithmic(axes[0].yaxis, evidence["loss"])
    kit.logarithmic(axes[1].yaxis, evidence["output_error"][:, 1:])
    axes[2].set_xticks([0, 5000, 10_000], ["0", "5000", "10 000"])
    for ax in (axes[0], axes[2]):
        kit.legend(ax)
    for ax, title in zip(axes, ("Loss", "Direction errors", "Norms"), strict=True):
        ax.set(title=title, xlabel="step")
