"""Mirror descent in three potentials on the random instances of the third paper, and the solutions
that it is held against.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm import (
    AttentionData,
    Lp,
    PowerPotential,
    max_margin_batch,
    selection_margins,
    train,
)
from attsvm.attention import Attention
from attsvm.datasets import unit_sphere
from attsvm.datasets.attention_data import FloatArray
from attsvm.optim import MirrorDescent
from attsvm.training import AtSteps
from attsvm_papers import kit
from attsvm_papers.md.published import published_descent

POTENTIALS = (1.75, 2.0, 3.0)
COLOURS = dict(zip(POTENTIALS, (kit.ATTENTION, kit.TRAINED, kit.BEST), strict=True))
STEPS = {1.75: 1500, 2.0: 2000, 3.0: 20_000}
RECORDS = 100
LR = 0.1
PUBLISHED, EXACT = 0, 1


def mirror_instances(seeds: Sequence[int]) -> tuple[AttentionData, FloatArray]:
    return unit_sphere(6, 8, 10, seeds)


def mirror_descent(
    data: AttentionData,
    head: FloatArray,
    start: FloatArray,
    p: float,
    mode: int,
    at: Sequence[int],
    *,
    joint: bool = False,
) -> tuple[FloatArray, FloatArray]:
    """Weights ``(records, runs, d_x, d_z)`` and heads ``(records, runs, d_x)`` of normalised
    descent in steps of 0.1, in the published arithmetic or the exact one, up to the last record.
    """
    if mode == PUBLISHED:
        return published_descent(data, head, start, p, LR, at, joint=joint)
    model = Attention.cross(data, head, None, init=start, train_head=joint)
    descent = MirrorDescent(model.parameters(), lr=LR, p=p, normalize=True)
    trajectory = train(model, data, descent, at[-1], AtSteps(at))
    return trajectory.W, trajectory.head


def descend_from_seeds(
    data: AttentionData,
    heads: FloatArray,
    seeds: Sequence[int],
    p: float,
    mode: int,
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
    at = np.unique(np.rint(np.linspace(0, STEPS[p], RECORDS + 1)).astype(int)).tolist()
    W, _ = mirror_descent(data, heads, start, p, mode, at)
    return {"step": np.array(at), "W": W, "selected": attended_tokens(data, W[-1])}


def attended_tokens(data: AttentionData, W: FloatArray) -> NDArray[np.int64]:
    """The tokens ``(runs, n)`` of largest attention."""
    return np.einsum("rntd,rde,rne->rnt", data.tokens, W, data.queries).argmax(axis=-1)


class Solutions:
    """Max-margin solutions of selections, each solved once, all of one norm together."""

    def __init__(self, data: AttentionData) -> None:
        self._data = data
        self._solved: dict[tuple[float, int, bytes], Any] = {}

    def __call__(self, selected: NDArray[np.int64], q: float) -> list[Any]:
        """One solution per run of the selections ``(runs, n)``, in the norm of exponent q."""
        keys = [(q, run, row.tobytes()) for run, row in enumerate(selected)]
        missing = [run for run, key in enumerate(keys) if key not in self._solved]
        programmes = [selection_margins(self._data.instance(run), selected[run]) for run in missing]
        for run, solution in zip(
            missing, max_margin_batch(programmes, Lp(q)) if programmes else [], strict=True
        ):
            self._solved[keys[run]] = solution
        return [self._solved[key] for key in keys]


def divergences(W: FloatArray, solutions: list[Any], p: float) -> FloatArray:
    """Divergences of the weights from the solutions ``(runs, records)``."""
    targets = np.stack([solution.W for solution in solutions])
    return PowerPotential(p).direction_divergence(np.broadcast_to(targets, W.shape), W).T
