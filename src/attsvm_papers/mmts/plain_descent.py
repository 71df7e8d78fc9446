"""What plain descent does on any instance: one path for a prompt and its key map, and no rise of
the loss at step 1/L (claims T1, T2).
"""

from typing import Any

import numpy as np

from attsvm import LogSpaced, train
from attsvm.datasets import unit_sphere
from attsvm.dynamics import AtSteps
from attsvm.models import Attention
from attsvm.optim import SteepestDescent


def equivalence(seeds: list[int], steps: int) -> dict[str, Any]:
    r"""Plain descent on p with step :math:`\eta`, and on W under a prompt u with
    :math:`\eta/\|u\|^2` from :math:`up_0^\top/\|u\|^2`.
    """
    errors = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        data, head = unit_sphere(4, 5, 6, seed)
        u, p = 2.0 * rng.standard_normal(3), rng.standard_normal(6)
        square = float(u @ u)
        runs = []
        for options, init, lr in (
            ({}, p, 0.5),
            ({"prompt": u}, np.outer(u, p) / square, 0.5 / square),
        ):
            model = Attention.prompt(data, head, init=init, **options)  # type: ignore[arg-type]
            runs.append(
                train(
                    model,
                    data,
                    SteepestDescent(model.parameters(), lr=lr, normalize=False),
                    steps,
                    LogSpaced(30),
                )
            )
        prompts, matrices = runs[0].W[..., 0], runs[1].parameters["W"]
        predicted = u[:, None] * prompts[:, None, :] / square
        errors.append(
            float(
                (
                    np.abs(matrices - predicted).max(axis=(1, 2))
                    / np.abs(predicted).max(axis=(1, 2))
                ).max()
            )
        )
    return {"equivalence_error": np.array(errors)}


def smoothness(seeds: list[int], steps: int) -> dict[str, Any]:
    """Largest rise of the loss in a step of plain descent with step 1/L, for a prompt and for W,
    relative to the loss.
    """
    rises, falls = [], []
    for seed in seeds:
        data, head = unit_sphere(4, 5, 6, seed)
        size = np.linalg.norm(data.tokens, ord=2, axis=(-2, -1))
        v = np.linalg.norm(head)
        terms = (
            0.25 * v**2 * size**4 + 3.0 * v * size**3
        )  # the logistic slope is 1/4-Lipschitz and at most 1
        start = np.random.default_rng(seed).standard_normal((6, 6))
        models = (
            (Attention.prompt(data, head, init=start[0]), np.mean(terms)),
            (
                Attention.cross(data, head, init=start),
                np.mean(terms * np.sum(data.queries**2, axis=1)),
            ),
        )
        for model, L in models:
            optimizer = SteepestDescent(model.parameters(), lr=1.0 / float(L), normalize=False)
            loss = train(model, data, optimizer, steps, AtSteps(range(steps))).loss
            rises.append(float(np.diff(loss).max() / loss[0]))
            falls.append(float(1.0 - loss[-1] / loss[0]))
    return {"rise": np.array(rises), "fall": np.array(falls)}
