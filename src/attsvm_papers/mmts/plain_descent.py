"""Plain descent on any instance: one path for a prompt and its key map, and no rise of the loss at
step 1/L (claims T1, T2).
"""

import numpy as np

from attsvm import AttentionData, LogSpaced, train
from attsvm.attention import Attention
from attsvm.datasets import unit_sphere
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps
from attsvm_papers import kit

LONGER = 1e5  # times the step that the theorem allows


def plain_descent(model, data, lr, steps, record):
    optimizer = SteepestDescent(model.parameters(), lr=lr, normalize=False)
    return train(model, data, optimizer, steps, record)


@kit.run(seeds=kit.seeds(8, by=8, name="equivalence_seeds"))
def equivalence(seeds, steps=300):
    r"""Plain descent on p with step :math:`\eta`, and on W under a prompt u with
    :math:`\eta/\|u\|^2`, and with :math:`\eta`, from :math:`p_0u^\top/\|u\|^2`.
    """
    rows = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        data, head = unit_sphere(4, 5, 6, seed)
        u, p = 2.0 * rng.standard_normal(3), rng.standard_normal(6)
        prompted = AttentionData(data.tokens, data.labels, np.tile(u, (data.n, 1)))
        start = np.outer(p, u) / (u @ u)
        prompt = plain_descent(
            Attention.prompt(data, head, init=p), data, 0.5, steps, LogSpaced(30)
        )
        predicted = prompt.W * u / (u @ u)
        row = {}
        for name, lr in (("error", 0.5 / (u @ u)), ("undivided", 0.5)):
            model = Attention.cross(prompted, head, None, init=start)
            W = plain_descent(model, prompted, lr, steps, LogSpaced(30)).W
            errors, sizes = (np.abs(x).max(axis=(1, 2)) for x in (W - predicted, predicted))
            row[f"equivalence_{name}"] = (errors / sizes).max()
        rows.append(row)
    return kit.stacked(rows)


@kit.run(seeds=kit.seeds(20, by=100))
def smoothness(seeds, steps=300):
    """Largest rise of the loss in a step of plain descent with step 1/L, and with one a
    hundred thousand times as long, for a prompt and for W, relative to the loss.
    """
    rows = []
    for seed in seeds:
        data, head = unit_sphere(4, 5, 6, seed)
        size = np.linalg.norm(data.tokens, ord=2, axis=(-2, -1))
        v = np.linalg.norm(head)
        # the logistic slope is 1/4-Lipschitz and at most 1
        terms = 0.25 * v**2 * size**4 + 3.0 * v * size**3
        start = np.random.default_rng(seed).standard_normal((6, 6))
        for make, init, L in (
            (Attention.prompt, start[0], np.mean(terms)),
            (Attention.cross, start, np.mean(terms * np.sum(data.queries**2, axis=1))),
        ):
            losses = [
                plain_descent(
                    make(data, head, init=init), data, lr, steps, AtSteps(range(steps))
                ).loss
                for lr in (1.0 / L, LONGER / L)
            ]
            rise, longer = (np.diff(loss, axis=0).max() / loss[0].item() for loss in losses)
            rows.append({"seed": seed, "rise": rise, "rise_longer": longer})
    return kit.stacked(rows)
