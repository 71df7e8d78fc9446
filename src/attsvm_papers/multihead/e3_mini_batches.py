r"""Which convergence survives mini-batches: normalised steps need large batches or momentum.

Twelve sequences of four tokens on the unit sphere, d = 6; W from zero under a fixed linear head,
4000 steps on batches of one, four, or all sequences, drawn anew at every step, or for batches of
one also dealt out epoch by epoch. Steps are normalised to 0.1, normalised to 0.1 behind a mean of
gradients with momentum 0.9, or plain, 20 times the gradient. Programmes are those of the last
selection, certified.

Source: this project; Implicit Bias of Steepest Descent with Mini-batch Stochastic Gradient (2026)
treats linear models

Notes: A plain step is the true gradient in the mean. A normalised one is equally long whatever the
batch holds: a sequence far beyond the margin, alone in its batch, pulls as hard as one that
supports it, and the limit is that of another programme. In larger batches the sequences of smallest
margin decide, and a mean over batches, taken before the norm, gives them back their weight.
"""

from typing import Any

import numpy as np
import torch

from attsvm.attention import Attention, Sequences
from attsvm.datasets import unit_sphere
from attsvm.optim import SteepestDescent
from attsvm.training import direction_gap
from attsvm_papers import kit
from attsvm_papers.multihead.side_by_side import joint_programmes

RULES: dict[str, dict[str, Any]] = {
    "normalised": {"lr": 0.1},
    "momentum": {"lr": 0.1, "momentum": 0.9, "dampening": 0.9},
    "plain": {"lr": 20.0, "normalize": False},
}
ALL = 0  # a batch of all sequences
RUNS = (
    ("normalised", ALL, False),
    ("normalised", 4, False),
    ("normalised", 1, False),
    ("normalised", 1, True),
    ("momentum", 1, False),
    ("plain", 1, False),
)
BATCH_OF_ONE = kit.exchanged("batches of one", "batch", 4, 1)
WITHOUT = kit.exchanged("no momentum", "rule", "momentum", "normalised")
ALL_SEQUENCES = kit.replaced("all sequences at every step", gap="gap_whole")


def draw_batches(n, size, dealt, steps, rng):
    """The sequences of each step ``(steps, size)``."""
    if size == ALL:
        return np.tile(np.arange(n), (steps, 1))
    if not dealt:
        return np.stack([rng.choice(n, size, replace=False) for _ in range(steps)])
    epochs = [rng.permutation(n).reshape(-1, size) for _ in range(-(-steps * size // n))]
    return np.concatenate(epochs)[:steps]


def take_sequences(sequences, rows):
    """These sequences of every run."""
    names = ("values", "keys", "queries", "labels", "mask")
    return Sequences(*(getattr(sequences, name)[:, rows] for name in names))


def descend_on_batches(data, v, rule, order, marks):
    """Weights at the marks, ``(marks, runs, d, d)``, and the selection at the end."""
    model = Attention.cross(data, v)
    descent = SteepestDescent(model.parameters(), **RULES[rule])
    sequences = model.sequences(data)
    weights = []
    for step, rows in enumerate(torch.from_numpy(order), start=1):
        descent.zero_grad()
        is_whole = len(rows) == data.n
        model.loss(sequences if is_whole else take_sequences(sequences, rows)).sum().backward()
        descent.step()
        if step in marks:
            weights.append(model.W.detach().clone().numpy())
    return np.stack(weights), model.selected(sequences).numpy()


@kit.run(
    kit.rows("rule batch dealt", RUNS),
    seeds=kit.seeds(100, by=50),
    quick={"seeds": 8, "steps": 3000},
)
def run(rule, batch, dealt, seeds, n=12, T=4, d=6, steps=4000):
    data, v = unit_sphere(n, T, d, seeds)
    marks = np.unique(np.geomspace(10, steps, 10).astype(int))
    rng = np.random.default_rng([37, seeds[0]])
    W, selected = descend_on_batches(
        data, v, rule, draw_batches(n, batch, dealt, steps, rng), marks
    )
    full_weights, full_selected = descend_on_batches(
        data, v, rule, draw_batches(n, ALL, False, steps, rng), marks[-1:]
    )
    solution, full_solution = (
        joint_programmes(data, selected),
        joint_programmes(data, full_selected),
    )
    return {
        "step": kit.same(marks),
        "gap": direction_gap(W, solution.W).T,
        "gap_whole": direction_gap(full_weights, full_solution.W).T,
        "certified": solution.optimal,
    }


def rows_of_rule(e, rule="normalised", batch=1, dealt=False):
    return e.where(rule=rule, batch=batch, dealt=dealt)


def certified_rows(**fixed):
    return {"certified": lambda e: rows_of_rule(e, **fixed)["certified"]}


@kit.claim(
    kit.at_most(0.04, "16 degrees", share=kit.MOST),
    assumes=certified_rows(batch=4),
    null=BATCH_OF_ONE,
)
def MB1(e):
    """Normalised steps on batches of four converge in direction to the max-margin solution."""
    return rows_of_rule(e, batch=4)["gap"][:, -1]


@kit.claim(
    kit.at_least(0.05, "18 degrees, more than batches of four may have", share=kit.MOST),
    assumes=certified_rows(),
    null=ALL_SEQUENCES,
)
def MB2(e):
    """On batches of one normalised steps do not converge: the direction stays away from the
    solution of its own selection.
    """
    return rows_of_rule(e)["gap"][:, -1]


@kit.claim(
    kit.at_most(0.04, "as for batches of four", share=kit.MOST),
    assumes=certified_rows(rule="momentum"),
    null=WITHOUT,
)
def MB3(e):
    """Behind momentum 0.9 normalised steps on batches of one converge again."""
    return rows_of_rule(e, rule="momentum")["gap"][:, -1]


@kit.claim(
    kit.at_most(
        0.1, "26 degrees; plain steps grow like log(k) and are far from done", share=kit.MOST
    ),
    assumes=certified_rows(rule="plain"),
    null=kit.exchanged("normalised steps", "rule", "plain", "normalised"),
)
def MB4(e):
    """Plain steps on batches of one need neither larger batches nor momentum: they end near their
    solution.
    """
    return rows_of_rule(e, rule="plain")["gap"][:, -1]


@kit.picture(
    "Normalised steps need large batches or momentum",
    "With batches of one and normalised steps the gap stays at a tenth; all others fall.",
    3.0,
    width=5.6,
    name="gaps",
)
def draw_gaps_by_batch(evidence, axes):
    """One minus the cosine to the solution of the own selection by step: median, and the middle
    nine tenths of the trials.
    """
    lines: tuple[tuple[dict[str, Any], str, str, str], ...] = (
        ({"batch": ALL}, kit.TRAINED, "-", "all"),
        ({"batch": 4}, kit.TRAINED, "--", "four"),
        ({}, kit.ATTENTION, "-", "one"),
        ({"rule": "momentum"}, kit.BEST, "-", "one, momentum"),
        ({"rule": "plain"}, kit.BEST, "--", "one, plain steps"),
    )
    step, drawn_gaps = evidence["step"][0], []
    for fixed, colour, style, label in lines:
        rows_of = rows_of_rule(evidence, **fixed)["gap"]
        kit.band(axes[0], step, rows_of, colour, style, (0.05, 0.95), label=label)
        drawn_gaps.append(rows_of.ravel())
    kit.loglog(axes[0], step, np.concatenate(drawn_gaps))
    axes[0].set(xlabel="step", title="1 - cosine, by batch")
    axes[0].legend(frameon=False, fontsize=8, loc="lower left")
