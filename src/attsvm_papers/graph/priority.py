"""Priority-graph data of Li et al. (2024) and how their experiments train on it: random starts, one
run per seed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.datasets.next_token import NextTokenData, priority_graph
from attsvm.dynamics import AtSteps
from attsvm.dynamics.next_token import AttentionCourse, Problem, Rule, attention_stage
from attsvm.selection import GraphSVM, token_masses
from attsvm_papers.kit import slopes

Columns = dict[str, NDArray[Any]]
SETTINGS = ((4, 6, 8, 8), (6, 4, 6, 8))
"""Sentences n, tokens per sentence T, vocabulary K and dimension d of the two settings in the
authors' code.
"""


SLOW = (
    "a few random instances take longer, most of them with solutions twice as long as the"
    " median one"
)
"""Why a statement about every instance is tested on nearly all, after so many steps."""


def draws(setting: Sequence[int], cyclic: bool, seeds: Sequence[int]) -> list[NextTokenData]:
    """Random unit embeddings and sentences, one data set per seed."""
    n, T, K, d = setting
    return [priority_graph(n, T, K, d, seed, cyclic=cyclic) for seed in seeds]


def starts(d: int, seeds: Sequence[int]) -> NDArray[np.float64]:
    r"""``(seeds, d, d)``: entries uniform in :math:`\pm1/\sqrt d`, torch's default for a linear
    layer, which the authors use.
    """
    return np.stack(
        [np.random.default_rng([4, seed]).uniform(-(d**-0.5), d**-0.5, (d, d)) for seed in seeds]
    )


def marks(steps: int) -> list[int]:
    """40 steps from 10 to the last on a log scale; the same number for every length of 100 steps
    and more.
    """
    return np.rint(np.geomspace(10, steps, 40)).astype(int).tolist()


def descend(
    data: Sequence[NextTokenData], rule: Rule, steps: int, seeds: Sequence[int], tail: int = 0
) -> AttentionCourse:
    """The log loss by descent, recorded at the start, at :func:`marks` and at each of the last
    ``tail`` steps.
    """
    records = AtSteps([*marks(steps), *range(steps - tail, steps)])
    start = starts(data[0].d, seeds)
    return attention_stage(Problem.of(data, "log_mass"), rule, steps, init=start, records=records)


def follow(course: AttentionCourse, svms: Sequence[GraphSVM]) -> Columns:
    """What the report of :class:`~attsvm.selection.GraphSVM` says along the course,
    ``(runs, records)`` each.

    ``component`` is the mean over sentences of the attention mass on the winner's component,
    ``outside_norm`` the norm of the weights outside the cyclic subspace.
    """
    reports = [svm.report(course.W[:, run]) for run, svm in enumerate(svms)]
    columns = {
        name: np.stack([getattr(report, name) for report in reports])
        for name in ("cosine", "outside", "finite", "scale", "norm")
    }
    masses = [token_masses(svm.data, course.W[:, run]) for run, svm in enumerate(svms)]
    columns["component"] = np.stack(
        [
            np.sum(mass * svm.winning_component(), axis=-1).mean(axis=-1)
            for mass, svm in zip(masses, svms, strict=True)
        ]
    )
    outside = [
        np.linalg.norm(svm.split(course.W[:, run]).outside, axis=(-2, -1))
        for run, svm in enumerate(svms)
    ]
    columns["outside_norm"] = np.stack(outside)
    columns["step"] = np.tile(course.steps, (len(svms), 1))
    return columns


def certificates(svms: Sequence[GraphSVM]) -> Columns:
    """Whether both components are proved: the max-margin solution's status and gap, the gradient at
    the finite part.
    """
    return {
        "optimal": np.array([svm.solution.status == "optimal" for svm in svms]),
        "directed": np.array([svm.directed for svm in svms]),
        "gap": np.array([svm.solution.gap for svm in svms]),
        "size": np.array([svm.solution.norm for svm in svms]),
        "gradient": np.array([svm.gradient for svm in svms]),
        "floor": np.array([svm.floor for svm in svms]),
        "cyclic": np.array([len(svm.cyclic) for svm in svms]),
    }


def slope(steps: NDArray[Any], values: NDArray[Any], first: float, last: float) -> NDArray[Any]:
    """``(runs,)``: least-squares slopes of log values against log steps, over the records from
    ``first`` to ``last``.
    """
    chosen = np.isin(steps, marks(int(steps[-1]))) & (steps >= first) & (steps <= last)
    with np.errstate(divide="ignore", invalid="ignore"):
        return slopes(np.log(steps), np.log(values), chosen)
