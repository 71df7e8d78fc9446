"""Shared by the experiments on next tokens: sizes and numbers of steps of the paper, solutions,
fitted slopes.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm import MarginSolution, SolutionBatch, max_margin_batch, order_margins
from attsvm.datasets.attention_data import FloatArray
from attsvm.theory import sentences
from attsvm.theory.next_token import Problem
from attsvm.theory.sentences import NextTokenData, arcs
from attsvm_papers import kit

KINDS = ("bipartite", "total")
"""Generators without and with confused tokens; columns of evidence hold the position."""
PUBLISHED = 10_000
"""Steps of stage 2 in the paper's figure, after which bounds are asked for."""


def published_rates(d: int) -> tuple[float, float]:
    """Steps of both stages of the paper: 0.2 and 0.05 over the root of d, where the root is
    unverified.
    """
    return 0.2 / math.sqrt(d), 0.05 / math.sqrt(d)


def draw_data_sets(kind: str, K: int, per_query: int, seeds: Sequence[int]) -> list[NextTokenData]:
    """One data set per seed."""
    generate = {"bipartite": sentences.bipartite, "total": sentences.total}[kind]
    return [generate(K, per_query, seed) for seed in seeds]


def attention_solutions(sets: Sequence[NextTokenData]) -> SolutionBatch:
    """The query-key solution of every data set, certified."""
    return max_margin_batch([order_margins(data.embeddings, arcs(data).arcs) for data in sets])


def output_targets(sets: Sequence[NextTokenData]) -> FloatArray:
    r"""The output target of each run ``(runs, K, d)``,
    :math:`W_{ov}^\star=\sum_x(\mathbf 1_{n(x)}-\frac1K\mathbf 1)e_x^\top`, exact for orthonormal
    embeddings.
    """
    return np.stack(
        [(np.eye(data.K)[data.following] - 1.0 / data.K).T @ data.embeddings for data in sets]
    )


def sums_of_arcs(solutions: Sequence[MarginSolution]) -> FloatArray:
    """Directions that are not the solutions ``(runs, d, d)``: every arc pulls alike."""
    return np.stack(
        [solution.margins.adjoint(np.ones(solution.margins.m)) for solution in solutions]
    )


def random_path_lengths(seeds: Sequence[int], K: int, steps: int) -> FloatArray:
    """The distance to which steps in random directions of K numbers lead, over the length of their
    path ``(runs,)``.
    """
    return np.array([np.linalg.norm(kit.random_steps([23, s], steps, K)) / steps for s in seeds])


def uncentred_targets(sets: Sequence[NextTokenData]) -> FloatArray:
    r"""The output target without its mean ``(runs, K, d)``, :math:`\sum_x\mathbf
    1_{n(x)}e_x^\top`.
    """
    return np.stack([np.eye(data.K)[data.following].T @ data.embeddings for data in sets])


def shares_of_right(problem: Problem, W: ArrayLike) -> FloatArray:
    """The share of sentences whose largest output is their label ``(..., runs)``."""
    right = problem.outputs(W).argmax(axis=-1) == problem.label
    counts = np.diff(problem.run_start)
    return np.add.reduceat(right.astype(np.float64), problem.run_start[:-1], axis=-1) / counts


def by_run(columns: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Columns ``(R, runs, ...)`` with runs first."""
    return {name: np.swapaxes(np.asarray(column), 0, 1) for name, column in columns.items()}
