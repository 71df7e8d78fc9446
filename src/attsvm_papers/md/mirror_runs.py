"""Mirror descent in three potentials on the random instances of the third paper, and the solutions
that it is held against.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm import AttentionData, Lp, PowerPotential, max_margin, selection_margins, train
from attsvm.datasets import unit_sphere
from attsvm.dynamics import AtSteps
from attsvm.models import Attention
from attsvm.optim import MirrorDescent
from attsvm_papers.md.published import published_descent

FloatArray = NDArray[np.float64]

POTENTIALS = (1.75, 2.0, 3.0)
STEPS = {1.75: 1500, 2.0: 2000, 3.0: 20_000}
RECORDS = 100
PUBLISHED, EXACT = 0, 1


def instances(seeds: Sequence[int]) -> tuple[AttentionData, FloatArray]:
    return unit_sphere(6, 8, 10, seeds)


def descend(
    data: AttentionData,
    heads: FloatArray,
    seeds: Sequence[int],
    p: float,
    steps: int,
    mode: int,
    records: int = RECORDS,
) -> dict[str, Any]:
    """Weights at evenly spaced records ``(records + 1, runs, d, d)``, and what is selected at the
    last; a start for each seed and p.
    """
    d = heads.shape[1]
    # the released code does not seed the starts, so every p has its own
    start = np.stack(
        [
            np.random.default_rng([seed, POTENTIALS.index(p)]).standard_normal((d, d))
            for seed in seeds
        ]
    )
    at = np.unique(np.rint(np.linspace(0, steps, records + 1)).astype(int)).tolist()
    if mode == EXACT:
        model = Attention.cross(data, heads, None, init=start)
        trajectory = train(
            model,
            data,
            MirrorDescent(model.parameters(), lr=0.1, p=p, normalize=True),
            steps,
            AtSteps(at),
        )
        W = trajectory.W
    else:
        W, _ = published_descent(data, heads, start, p, 0.1, steps, at)
        model = Attention.cross(data, heads, None, init=W[-1])
        trajectory = train(
            model, data, MirrorDescent(model.parameters(), lr=0.1, p=p, normalize=True), 0
        )
    return {
        "step": np.array(at),
        "W": W,
        "selected": trajectory.selected[-1],
        "loss": trajectory.loss[-1],
        "probability": trajectory.softmax_probability[-1].min(axis=-1),
    }


class Solutions:
    """Max-margin solutions of selections, each solved once, all of one norm together."""

    def __init__(self, data: AttentionData) -> None:
        self._data = data
        self._known: dict[tuple[float, int, bytes], Any] = {}

    def __call__(self, selected: NDArray[np.int64], q: float) -> list[Any]:
        """One solution per run of the selections ``(runs, n)``, in the norm of exponent q."""
        keys = [(q, run, row.tobytes()) for run, row in enumerate(selected)]
        missing = [run for run, key in enumerate(keys) if key not in self._known]
        programmes = [selection_margins(self._data.instance(run), selected[run]) for run in missing]
        for run, solution in zip(
            missing, max_margin(programmes, Lp(q)) if programmes else [], strict=True
        ):
            self._known[keys[run]] = solution
        return [self._known[key] for key in keys]


def divergences(W: FloatArray, solutions: list[Any], p: float) -> FloatArray:
    """``(runs, records)``."""
    targets = np.stack([solution.W for solution in solutions])
    return PowerPotential(p).direction_divergence(np.broadcast_to(targets, W.shape), W).T
