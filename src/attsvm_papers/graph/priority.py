"""Priority-graph data of Li et al. (2024) and how their experiments train on it: random starts, one
run per seed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.theory import GraphSVM, ball_path, stack_likelihoods, token_masses
from attsvm.theory.next_token import AttentionTrajectory, Problem, StepRule, attention_stage
from attsvm.theory.sentences import NextTokenData, priority_graph
from attsvm.training import AtSteps, direction_gap
from attsvm_papers import kit

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


def draw_data_sets_of_setting(
    setting: Sequence[int], cyclic: bool, seeds: Sequence[int]
) -> list[NextTokenData]:
    """Random unit embeddings and sentences, one data set per seed."""
    n, T, K, d = setting
    return [priority_graph(n, T, K, d, seed, cyclic=cyclic) for seed in seeds]


def uniform_starts(d: int, seeds: Sequence[int]) -> NDArray[np.float64]:
    r"""Starts ``(seeds, d, d)`` with entries uniform in :math:`\pm1/\sqrt d`, torch's default for a
    linear layer, which the authors use.
    """
    return np.stack(
        [np.random.default_rng([4, seed]).uniform(-(d**-0.5), d**-0.5, (d, d)) for seed in seeds]
    )


def log_spaced_steps(steps: int) -> list[int]:
    """40 steps from 10 to the last on a log scale; the same number for every length of 100 steps
    and more.
    """
    return np.rint(np.geomspace(10, steps, 40)).astype(int).tolist()


def train_on_graphs(
    data: Sequence[NextTokenData], rule: StepRule, steps: int, seeds: Sequence[int], tail: int = 0
) -> AttentionTrajectory:
    """The log loss by descent, recorded at the start, at :func:`log_spaced_steps`, at a tenth of
    the steps and at each of the last ``tail`` steps.
    """
    records = AtSteps([*log_spaced_steps(steps), steps // 10, *range(steps - tail, steps)])
    start = uniform_starts(data[0].d, seeds)
    return attention_stage(Problem.of(data, "log_mass"), rule, steps, init=start, records=records)


def compare_with_solution(svm: GraphSVM, W: NDArray[np.float64]) -> Columns:
    """The report of :class:`~attsvm.theory.GraphSVM` on weights ``(records, d, d)``, as columns.

    ``inside_norm`` and ``outside_norm`` are the norms of the weights in the cyclic subspace and
    outside of it. ``cosine_alike`` and ``outside_alike`` are cosines to a direction that is not
    the solution: every arc between components pulls alike.
    """
    report, components = svm.report(W), svm.split(W)
    margins = svm.solution.margins
    all_arcs = svm.split(margins.adjoint(~margins.equalities)).outside
    return {
        **{name: getattr(report, name) for name in ("cosine", "outside", "finite", "norm")},
        "inside_norm": np.linalg.norm(components.inside, axis=(-2, -1)),
        "outside_norm": np.linalg.norm(components.outside, axis=(-2, -1)),
        "cosine_alike": 1.0 - direction_gap(W, all_arcs),
        "outside_alike": 1.0 - direction_gap(components.outside, all_arcs),
    }


ALIKE = kit.replaced("the sum of all arcs", cosine="cosine_alike", outside="outside_alike")
"""In place of the graph programme's solution."""
NO_FINITE_PART = kit.replaced("a finite part of zero", finite="inside_norm")


def compare_along(trajectory: AttentionTrajectory, svms: Sequence[GraphSVM]) -> Columns:
    """Columns of :func:`compare_with_solution` along the trajectory, ``(runs, records)`` each.

    ``component`` is the mean over sentences of the attention mass on the winner's component.
    """
    comparisons = [compare_with_solution(svm, trajectory.W[:, run]) for run, svm in enumerate(svms)]
    columns = kit.stacked(comparisons)
    masses = [token_masses(svm.data, trajectory.W[:, run]) for run, svm in enumerate(svms)]
    columns["component"] = np.stack(
        [
            np.sum(mass * svm.winning_component(), axis=-1).mean(axis=-1)
            for mass, svm in zip(masses, svms, strict=True)
        ]
    )
    columns["step"] = np.tile(trajectory.steps, (len(svms), 1))
    return columns


def certificates(svms: Sequence[GraphSVM]) -> Columns:
    """Whether the max-margin solution is proved, whether it is a direction, and its norm."""
    return {
        "optimal": np.array([svm.solution.status == "optimal" for svm in svms]),
        "directed": np.array([svm.directed for svm in svms]),
        "size": np.array([svm.solution.norm for svm in svms]),
    }


def ball_weights(svms: Sequence[Any], radii: Sequence[float]) -> list[NDArray[np.float64]]:
    """The weights of least loss in balls of these radii ``(radii, ...)``, of every instance."""
    path = ball_path(stack_likelihoods([svm.likelihood() for svm in svms]), radii)
    bases = [svm.basis() for svm in svms]
    return [
        np.tensordot(path.points[:, k, : len(basis)], basis, axes=1)
        for k, basis in enumerate(bases)
    ]


def record_at_tenth(steps: NDArray[Any]) -> int:
    """The index of the record at a tenth of the steps."""
    return int(np.flatnonzero(steps == steps[-1] // 10)[0])


def slopes_at_marks(
    steps: NDArray[Any], values: NDArray[Any], first: float, last: float
) -> NDArray[Any]:
    """Slopes of :func:`kit.exponents` over the records at :func:`log_spaced_steps` ``(runs,)``."""
    return kit.exponents(
        steps, values, first, last, np.isin(steps, log_spaced_steps(int(steps[-1])))
    )
