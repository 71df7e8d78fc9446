"""Steps that adapt to the gradient, after Vasudeva, Deora and Thrampoulidis: four rules on the same
classification instances.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from attsvm import (
    AttentionData,
    SolutionBatch,
    Trajectory,
    max_margin,
    optimal_tokens,
    selection_margins,
    token_scores,
    train,
)
from attsvm.datasets import gauss
from attsvm.dynamics import AtSteps
from attsvm.models import Attention
from attsvm.optim import SteepestDescent
from attsvm_papers import kit

FloatArray = NDArray[np.float64]

CONSTANT, ROOT, POLYAK, PLAIN = "constant", "root", "Polyak", "plain"
"""Normalised with constant steps, normalised with steps falling like a root, Polyak's, and plain
gradient descent.
"""
NAMES = {
    CONSTANT: "normalised, constant step",
    ROOT: "normalised, step 1/√t",
    POLYAK: "Polyak",
    PLAIN: "gradient descent",
}
RATES = {CONSTANT: 0.05, ROOT: 0.5, POLYAK: 1.0, PLAIN: 1.0}


class Trained(NamedTuple):
    """One block of seeds under one rule: instances, their optimal tokens and solutions, and the
    runs.
    """

    data: AttentionData
    tokens: NDArray[np.int64]
    solutions: SolutionBatch
    trajectory: Trajectory


def marks(steps: int, count: int = 60) -> list[int]:
    """``count`` steps on a log scale from 1 to the last, and the powers of ten between."""
    decades = [10**k for k in range(int(np.log10(steps)) + 1)]
    spaced: list[int] = np.rint(np.geomspace(1, steps, count)).astype(int).tolist()
    return sorted({*spaced, *decades})


def trained(rule: str, seeds: Sequence[int], steps: int) -> Trained:
    """Instances of :func:`attsvm.datasets.gauss` of these seeds, trained from zero weights.

    Polyak's floor is the loss of the optimal tokens, the infimum under a fixed head.
    """
    data, heads = gauss(seed=seeds)
    tokens = optimal_tokens(data, heads)
    model = Attention.cross(data, heads)
    options: dict[str, Any] = {}
    if rule == POLYAK:
        floor = np.logaddexp(0.0, -token_scores(data, heads).max(axis=-1)).mean(axis=-1)
        options = {
            "step_size": "polyak",
            "loss_floor": torch.as_tensor(floor),
            "polyak_factor": 2.0,
        }
    optimizer = SteepestDescent(
        model.parameters(), lr=RATES[rule], normalize=rule != PLAIN, **options
    )
    schedule = (lambda step: float((step + 1.0) ** -0.5)) if rule == ROOT else None
    trajectory = train(model, data, optimizer, steps, AtSteps(marks(steps)), schedule=schedule)
    solutions = max_margin(
        [selection_margins(data.instance(run), tokens[run]) for run in range(len(seeds))], tol=1e-12
    )
    return Trained(data, tokens, solutions, trajectory)


def log_missing(data: AttentionData, tokens: NDArray[np.int64], W: FloatArray) -> FloatArray:
    r"""Logarithm of the largest :math:`1-\varphi_{i,\text{token}_i}` over the sequences,
    ``(records, runs)``, at any saturation.
    """
    logits = np.einsum("rntd,krde,rne->krnt", data.tokens, W, data.queries, optimize=True)
    chosen = np.arange(data.T) == tokens[..., None]
    own = np.sum(np.where(chosen, logits, 0.0), axis=-1, keepdims=True)
    others = np.logaddexp.reduce(np.where(chosen, -np.inf, logits - own), axis=-1)
    return (others - np.logaddexp(0.0, others)).max(axis=-1)


def rate(evidence: kit.Evidence, column: str, first: float, last: float) -> FloatArray:
    """Slopes of the logarithm of a column against that of the step, one per trial, over the records
    from ``first`` to ``last``.
    """
    step = evidence["step"].astype(np.float64)
    inside = (step >= first) & (step <= last)
    return kit.slopes(
        np.log(np.maximum(step, 1.0)), np.log(np.where(inside, evidence[column], 1.0)), inside
    )
