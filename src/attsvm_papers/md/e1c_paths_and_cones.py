"""Regularisation paths and local cones.

Random instances like those of md-1. Best weights of norm R = 5 to 80 in the norms of p = 1.75, 2,
3, searched from several starts. Short normalised steps from the edge of a derived cone (divergence
at most .01) around a locally optimal selection that differs from the optimal one in one sequence
where there is one.

Source: Optimizing Attention with Mirror Descent, theorems on paths and local convergence (numbers
recalled)
"""

from typing import Any

import numpy as np

from attsvm import (
    AttentionData,
    LogSpaced,
    Lp,
    optimal_tokens,
    regularization_path,
    token_scores,
    train,
)
from attsvm.attention import Attention
from attsvm.datasets.attention_data import FloatArray
from attsvm.optim import MirrorDescent
from attsvm_papers import kit
from attsvm_papers.md.mirror_runs import (
    COLOURS,
    POTENTIALS,
    Solutions,
    divergences,
    mirror_instances,
)
from attsvm_papers.md.narrow_cones import edge_of_cone, least_ascent, local_solutions

PATH, CONE = "path", "cone"
RADII = (5.0, 10.0, 20.0, 40.0, 80.0)
SHARE = 5e-4  # length of a step against the dual iterate at the start


@kit.run(
    p=POTENTIALS, seeds=kit.seeds(100, by=10, start=1), quick={"starts": 0, "seeds": 4}, name="path"
)
def divergences_along_path(p, seeds, starts=4):
    r"""Divergences of the path from the solution of the optimal tokens at all radii."""
    data, heads = mirror_instances(seeds)
    solutions = Solutions(data)(optimal_tokens(data, heads), p)
    path_weights = [
        regularization_path(data.instance(k), heads[k], Lp(p), RADII, starts=starts).W
        for k in range(len(seeds))
    ]
    return {
        "divergence": np.concatenate(
            [divergences(W[:, None], [s], p) for W, s in zip(path_weights, solutions, strict=True)]
        ),
    }


@kit.run(p=POTENTIALS, seeds=kit.seeds(100, by=50, start=1), quick={"seeds": 4})
def cone(p, seeds, steps=4000):
    r"""Descent from the edge of a narrow cone around a locally optimal direction, another than the
    optimal tokens' where there is one.

    Columns: ``growth``, the least factor of the norm between records; ``widening``, the largest
    divergence on the way over that at the start; ``ascent``, the least share of
    :math:`\langle-\nabla L,W^{mm}\rangle` in its absolute terms; ``fall``, the last divergence over
    the first. Those with ``_turned`` are of a fortieth of the steps from the same start with all
    labels turned round, for which other tokens score best; ``ascent_other`` is along the solution
    of another run.
    """
    data, heads = mirror_instances(seeds)
    solutions = local_solutions(data, heads, p)
    scores = token_scores(data, heads)
    starts = [
        edge_of_cone(s, scores[k], p, np.random.default_rng([seeds[k], 7]))
        for k, s in enumerate(solutions)
    ]
    begin, sizes = (np.stack(array) for array in zip(*starts, strict=True))
    # queries in units of one over the size: all runs are of size one, and one step length suits
    # them all
    queries = data.queries * sizes[:, None, None]
    # Normalised steps, short against the dual iterate, follow the flow along which plain steps
    # would hardly move: gradients are e^-size.
    lr = SHARE * float(np.mean(Lp(p).value(begin))) ** (p - 1.0)
    measures: dict[str, Any] = {}
    for name, sign, length in (("_turned", -1.0, steps // 40), ("", 1.0, steps)):
        labelled = AttentionData(data.tokens, sign * data.labels, queries)
        model = Attention.cross(labelled, heads, None, init=begin)
        descent = MirrorDescent(model.parameters(), lr=lr, p=p, normalize=True)
        trajectory = train(model, labelled, descent, length, LogSpaced(60))
        divergence = trajectory.direction_divergence(solutions, p).T
        size = Lp(p).value(trajectory.W)
        measures |= {
            "growth" + name: np.exp(np.diff(np.log(size), axis=0).min(axis=0)),
            "widening" + name: divergence.max(axis=1) / divergence[:, 0],
            "fall" + name: divergence[:, -1] / divergence[:, 0],
        }
    W = trajectory.W * sizes[:, None, None]
    return {
        "steps": kit.same(trajectory.steps),
        "course": divergence,
        **measures,
        "ascent": least_ascent(scores, solutions, W),
        "ascent_other": least_ascent(scores, solutions, W, [*solutions[1:], solutions[0]]),
    }


def _divergences_at_radii(evidence: kit.Evidence, p: float) -> FloatArray:
    return evidence.where(part=PATH, p=p)["divergence"]


def _column_of_cones(evidence: kit.Evidence, column: str) -> Any:
    return evidence.where(part=CONE)[column]


TURNED = kit.replaced(
    "all labels turned round",
    **{name: f"{name}_turned" for name in ("widening", "growth", "fall")},
)
EDGE = "derived: at this opening and size every run must"


@kit.claim(
    kit.at_most(0.0, "strictly decreasing", share=kit.MOST),
    "recalled",
    "md, regularisation path (number recalled)",
    null=kit.mixed_records("divergence", words="its radii in random order"),
)
def M1(evidence):
    """The regularisation path turns to the solution of the optimal tokens: its divergence falls at
    every radius.
    """
    return np.concatenate(
        [np.diff(_divergences_at_radii(evidence, p), axis=1).max(axis=1) for p in POTENTIALS]
    )


@kit.claim(
    kit.at_most(
        0.5,
        "a rate of 1 / R or faster",
        share=kit.MOST,
    ),
    reference="md, regularisation path (number recalled)",
    null=kit.mixed_records("divergence", words="its radii in random order"),
)
def M1d(evidence):
    """From R = 20 on the divergence of the regularisation path from its solution halves at every
    doubling of the radius.
    """
    first_record = RADII.index(20.0)
    ratios = [
        rows[:, first_record + 1 :] / rows[:, first_record:-1]
        for rows in (_divergences_at_radii(evidence, p) for p in POTENTIALS)
    ]
    return np.concatenate([ratio.max(axis=1) for ratio in ratios])


@kit.claim(
    kit.at_most(1.0 + 1e-9, EDGE),
    "recalled",
    "md, local convergence (number recalled)",
    null=TURNED,
)
def M2(e):
    """From the edge of a narrow cone around a locally optimal direction, descent never leaves the
    cone.
    """
    return _column_of_cones(e, "widening")


@kit.claim(
    kit.at_least(1.0, EDGE),
    "recalled",
    "md, local convergence (number recalled)",
    null=TURNED,
)
def M2c(e):
    """From the edge of a narrow cone around a locally optimal direction, the norm grows all the
    way.
    """
    return _column_of_cones(e, "growth")


@kit.claim(
    kit.at_least(1e-6, EDGE + "; a share of the absolute terms, more than rounding"),
    "recalled",
    "md, local convergence (number recalled)",
    null=kit.replaced("along the solution of another instance", ascent="ascent_other"),
)
def M2d(e):
    """On the way from the edge of a narrow cone around a locally optimal direction, minus the
    gradient has a positive inner product with the solution at every record.
    """
    return _column_of_cones(e, "ascent")


@kit.claim(
    kit.at_most(0.9, EDGE + "; a tenth is more than the steps' own jitter", share=kit.MOST),
    "recalled",
    "md, convergence of directions (number recalled)",
    null=TURNED,
)
def M2e(e):
    """From the edge of a narrow cone the direction converges to the local solution: the divergence
    at the end is smaller than at the start.
    """
    return _column_of_cones(e, "fall")


MOST_RUNS = (0.05, 0.95)


@kit.picture(
    "Global paths and local cones",
    "Medians of paths fall to a hundredth of their first value; the largest stay level at"
    " first. Local runs fall from one.",
    3.0,
    1,
    2,
    width=8.4,
    name="paths-and-cones",
)
def paths_and_cones(evidence, axes):
    """Left: median, 5 to 95 % and largest of all seeds. Right: median, and 5 to
    95 %, of runs that start at the edge of a cone around a locally optimal direction; none should
    rise above one.
    """
    for p in POTENTIALS:
        rows = _divergences_at_radii(evidence, p)
        axes[0].plot(RADII, rows.max(axis=0), ":", color=COLOURS[p], linewidth=1.0)
        kit.band(axes[0], RADII, rows, COLOURS[p], shares=MOST_RUNS, label=f"p = {p:g}", shade=0.13)
        runs = evidence.where(part=CONE, p=p)
        relative, step = runs["course"] / runs["course"][:, :1], runs["steps"][0]
        kit.band(axes[1], step[1:], relative[:, 1:], COLOURS[p], shares=MOST_RUNS, shade=0.13)
    axes[0].plot([], [], ":", color=kit.FAINT, linewidth=1.0, label="largest")
    axes[1].axhline(1.0, color=kit.FAINT, linewidth=0.8)
    axes[0].set(xscale="log", yscale="log", xlabel="R")
    axes[1].set(xscale="log", ylim=(0, None), xlabel="step")
    axes[0].set_title("Regularisation path: divergence at radius R")
    axes[1].set_title("From the edge of a cone: divergence over its start")
    kit.legend(axes[0], loc="lower left")
