"""What plain descent does on any instance: one path for a prompt and its key map, and no rise of
the loss at step 1/L (claims T1, T2).
"""

from typing import Any

import numpy as np

from attsvm import AttentionData, LogSpaced, train
from attsvm.datasets import unit_sphere
from attsvm.dynamics import AtSteps
from attsvm.models import Attention
from attsvm.optim import SteepestDescent


def equivalence(seeds: list[int], steps: int) -> dict[str, Any]:
    r"""Plain descent on p with step :math:`\eta`, and on W under a prompt u with
    :math:`\eta/\|u\|^2`, and with :math:`\eta`, from :math:`p_0u^\top/\|u\|^2`.
    """
    errors: list[float] = []
    undivided: list[float] = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        data, head = unit_sphere(4, 5, 6, seed)
        u, p = 2.0 * rng.standard_normal(3), rng.standard_normal(6)
        square = float(u @ u)
        runs = []
        asked = AttentionData(data.tokens, data.labels, np.tile(u, (data.n, 1)))
        start = np.outer(p, u) / square
        for model, seen, lr in (
            (Attention.prompt(data, head, init=p), data, 0.5),
            (Attention.cross(asked, head, None, init=start), asked, 0.5 / square),
            (Attention.cross(asked, head, None, init=start), asked, 0.5),
        ):
            runs.append(
                train(
                    model,
                    seen,
                    SteepestDescent(model.parameters(), lr=lr, normalize=False),
                    steps,
                    LogSpaced(30),
                )
            )
        predicted = runs[0].W * u / square
        size = np.abs(predicted).max(axis=(1, 2))
        for run, found in zip(runs[1:], (errors, undivided), strict=True):
            away = np.abs(run.W - predicted).max(axis=(1, 2))
            found.append(float((away / size).max()))
    return {"equivalence_error": np.array(errors), "equivalence_undivided": np.array(undivided)}


LONGER = 1e5  # times the step that the theorem allows


def smoothness(seeds: list[int], steps: int) -> dict[str, Any]:
    """Largest rise of the loss in a step of plain descent with step 1/L, and with one a
    hundred thousand times as long, for a prompt and for W, relative to the loss.
    """
    rises: dict[float, list[float]] = {1.0: [], LONGER: []}
    for seed in seeds:
        data, head = unit_sphere(4, 5, 6, seed)
        size = np.linalg.norm(data.tokens, ord=2, axis=(-2, -1))
        v = np.linalg.norm(head)
        # the logistic slope is 1/4-Lipschitz and at most 1
        terms = 0.25 * v**2 * size**4 + 3.0 * v * size**3
        start = np.random.default_rng(seed).standard_normal((6, 6))
        for times, found in rises.items():
            models = (
                (Attention.prompt(data, head, init=start[0]), np.mean(terms)),
                (
                    Attention.cross(data, head, init=start),
                    np.mean(terms * np.sum(data.queries**2, axis=1)),
                ),
            )
            for model, L in models:
                lr = times / float(L)
                optimizer = SteepestDescent(model.parameters(), lr=lr, normalize=False)
                loss = train(model, data, optimizer, steps, AtSteps(range(steps))).loss
                found.append(float(np.diff(loss).max() / loss[0]))
    return {
        "seed": np.repeat(seeds, 2),
        "rise": np.array(rises[1.0]),
        "rise_longer": np.array(rises[LONGER]),
    }
