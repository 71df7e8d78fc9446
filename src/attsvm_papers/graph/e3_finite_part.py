"""Gradient descent: the finite part is reached like 1/t.

n = 6 sentences of T = 4 of K = 6 tokens with a cycle, unit embeddings in d = 8, log loss; plain
gradient descent with step 1, 20 000 steps from W uniform in ±1/√d.

Source: Mechanics of Next Token Prediction with Self-Attention, main theorem (recalled)

Notes: The infimum of the loss is the reduced loss at the finite part, which Newton's method finds
to rounding.
"""

import numpy as np

from attsvm.theory import graph_svm_batch
from attsvm.theory.next_token import StepRule
from attsvm_papers import kit
from attsvm_papers.graph.priority import (
    ALIKE,
    NO_FINITE_PART,
    SETTINGS,
    SLOW,
    certificates,
    compare_along,
    draw_data_sets_of_setting,
    slopes_at_marks,
    train_on_graphs,
)

RESOLVED = 1e-9
"""Distances to the finite part below it are partly rounding, and have no slope."""


@kit.run(seeds=kit.seeds(100, by=50), quick={"seeds": 20})
def run(seeds, setting=SETTINGS[1], lr=1.0, steps=20_000):
    data = draw_data_sets_of_setting(setting, True, seeds)
    svms = graph_svm_batch(data)
    course = train_on_graphs(data, StepRule(lr, normalize=False), steps, seeds)
    columns = compare_along(course, svms)
    excess = course.loss.T - np.array([svm.floor for svm in svms])[:, None]
    sizes = np.array([svm.solution.norm for svm in svms])
    late = course.steps >= steps / 10
    growth = kit.slopes(
        np.log(np.maximum(course.steps, 1)), columns["outside_norm"] / sizes[:, None], late
    )
    return {
        "excess": excess,
        "excess_slope": slopes_at_marks(course.steps, excess, steps / 10, steps),
        "loss_slope": slopes_at_marks(course.steps, course.loss.T, steps / 10, steps),
        "finite_slope": slopes_at_marks(course.steps, columns["finite"], steps / 10, steps),
        "inside_slope": slopes_at_marks(course.steps, columns["inside_norm"], steps / 10, steps),
        "growth": growth,
        **certificates(svms),
        **columns,
    }


@kit.claim(
    kit.at_most(
        5e-3,
        "set by this project; the distance falls like 1/t",
        share=kit.MOST,
    ),
    "recalled",
    "graph, main theorem",
    null=NO_FINITE_PART,
)
def C4_3f(e):
    """Under gradient descent the part inside the cyclic subspace converges to the finite part."""
    return e["finite"][:, -1]


@kit.claim(
    kit.at_most(
        -0.8,
        f"slope over the last decade of steps; -1 is expected, as for the loss; {SLOW}",
        share=kit.MOST,
    ),
    "recalled",
    assumes={"the distance is not rounding": lambda e: e["finite"][:, -1] > RESOLVED},
    interval=True,
    null=kit.replaced("the distance to a finite part of zero", finite_slope="inside_slope"),
)
def C4_3r(e):
    """Under gradient descent the distance of the cyclic part to the finite part falls like 1/t."""
    return e["finite_slope"]


@kit.claim(
    kit.between(-1.1, -0.9, "slope over the last decade", share=kit.MOST),
    "recalled",
    assumes={"the infimum is not attained": lambda e: e["directed"]},
    interval=True,
    null=kit.replaced("the loss itself", excess_slope="loss_slope"),
)
def C4_3l(e):
    """Under gradient descent the loss falls to its infimum, the reduced loss at the finite part,
    like 1/t.
    """
    return e["excess_slope"]


@kit.claim(
    kit.at_least(
        0.96,
        "norms grow like log t, so 1 - cosine falls only like its square; an independent program"
        f" is at .973 at t = 4000; {SLOW}",
        share=kit.MOST,
    ),
    "recalled",
    "graph, main theorem",
    assumes={"the solution is not zero": lambda e: e["directed"]},
    null=ALIKE,
)
def C4_3o(e):
    """Under gradient descent the part outside the cyclic subspace converges to the direction of the
    graph programme's solution.
    """
    return e["outside"][:, -1]


@kit.claim(
    kit.between(
        0.9,
        1.3,
        "slope over the last decade; 1 in the limit, more while the direction is not yet met",
        share=kit.MOST,
    ),
    assumes={"the solution is not zero": lambda e: e["directed"]},
    interval=True,
    null=kit.replaced(
        "the norm of another instance's solution",
        growth=lambda e: e["growth"] * e["size"] / np.roll(e["size"], 1),
    ),
)
def C4_3n(e):
    """Under gradient descent the norm outside the cyclic subspace grows by the norm of the solution
    per unit of log t.
    """
    return e["growth"]


@kit.picture(
    "Gradient descent settles where normalised steps oscillate",
    "Distance and loss fall like 1/t; the direction improves slowly, as the norm grows like log t.",
    3.0,
    1,
    3,
    width=10.4,
    name="gradient-descent",
)
def gradient_descent(evidence, axes):
    """Gradient descent with step 1 on the cyclic data of graph-1; 25 runs thin, the median of all
    thick, dotted 1/t. Left: distance of the cyclic part of W to the finite part. Middle: loss over
    its infimum. Right: 1 - cosine between the rest of W and the solution of the graph programme.
    """
    steps = evidence["step"][0, 1:]
    panels = (
        (np.maximum(evidence["finite"], 1e-7), "distance to the finite part", kit.TRAINED),
        (np.maximum(evidence["excess"], 1e-7), "loss over its infimum", kit.BEST),
        (1.0 - evidence["outside"][evidence["directed"]], "1 − cosine outside it", kit.TRAINED),
    )
    for ax, (values, title, colour) in zip(axes, panels, strict=True):
        ax.plot(steps, values[:25, 1:].T, color=colour, linewidth=0.5, alpha=0.35)
        ax.plot(steps, np.median(values, axis=0)[1:], color=colour)
        ax.set(xscale="log", yscale="log", xlabel="step", title=title)
    late = steps[steps >= 200]
    for ax in axes[:2]:
        ax.plot(late, 30 / late, ":", color=kit.FAINT, linewidth=1.2)
        ax.set_ylim(bottom=3e-6)
