"""Prompt and head trained together on the papers' points, and the regularisation path of the pair
on random instances.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from attsvm import (
    AttentionData,
    Trajectory,
    decoder_margins,
    max_margin,
    prompt_margins,
    regularization_path,
    relaxed_margins,
    train,
)
from attsvm.attention import Attention
from attsvm.datasets import Toy
from attsvm.optim import SteepestDescent
from attsvm.theory import margin_drop_bound
from attsvm.training import AtSteps, direction_gap
from attsvm_papers import kit
from attsvm_papers.mmts.prompts import (
    columns_of_runs,
    draw_prompts,
    draw_ray,
    recorded_steps,
    set_window,
)

Columns = dict[str, NDArray[Any]]
TOKENS = (1, 1, 1)  # the second token is selected everywhere; the first is zero


def train_pair(
    problem: Toy,
    p: ArrayLike,
    v: ArrayLike,
    lr: float,
    steps: int,
    at_steps: Sequence[int],
    kappas: ArrayLike = (1.0,),
) -> Trajectory:
    r"""Normalised descent on head and prompt, each by itself; the head's steps are :math:`\kappa`
    times as long, one run each.
    """
    ratios = np.asarray(kappas, dtype=np.float64)
    model = Attention.prompt(problem.data, v, init=np.asarray(p), runs=len(ratios), train_head=True)
    optimizer = SteepestDescent(model.parameters(), lr=lr)
    return train(
        model,
        problem.data,
        optimizer,
        steps,
        AtSteps(at_steps),
        step_scale={"head.readout": ratios},
    )


def joint_descent_columns(problem: Toy, lr: float, steps: int, kappa: float = 1.0) -> Columns:
    """One row, the papers' run: trajectories of prompt and head, both probabilities by step, and
    the three solutions that it is compared with, that of the head also without labels.
    """
    data = problem.data
    p, v = problem.starts["p"][0], problem.starts["v"][0]
    trajectory = train_pair(problem, p, v, lr, steps, recorded_steps(steps), (kappa,))
    unlabelled = max_margin(decoder_margins(replace(data, labels=np.abs(data.labels)), TOKENS))
    decoder = max_margin(decoder_margins(data, TOKENS))
    full = max_margin(prompt_margins(data, TOKENS))
    relaxed = max_margin(relaxed_margins(data, TOKENS, decoder.support))
    targets = {"full": full.W[:, 0], "relaxed": relaxed.W[:, 0]}
    columns = columns_of_runs(trajectory, targets)
    heads = np.swapaxes(trajectory.head, 0, 1)
    selected = data.tokens[:, 1]
    attention = expit(columns["prompt"] @ selected.T)  # the other token is zero
    values = data.labels * attention * (heads @ selected.T)
    return {
        **columns,
        "head": heads,
        "gap_head": direction_gap(heads[..., None], decoder.W),
        "kept": attention.mean(axis=-1),
        "logistic": expit(values).mean(axis=-1),
        "margins": kit.same(data.labels * (selected @ decoder.W[:, 0])),
        "supporting": kit.same(np.isin(np.arange(data.n), decoder.support)),
        **{name: kit.same(value) for name, value in targets.items()},
        "decoder": kit.same(decoder.W[:, 0]),
        "decoder_unlabelled": kit.same(unlabelled.W[:, 0]),
        "dual": kit.same(full.dual),
    }


def draw_pair(ax: Axes, rows: kit.Evidence) -> None:
    """Prompt and head over the first 200 steps, a dot every ten, with the rays of the solutions:
    the relaxed one, the un-relaxed one (dotted) and the head's.
    """
    draw_ray(ax, rows["full"][0], kit.BEST, linestyle=":")
    draw_ray(ax, rows["relaxed"][0], kit.TRAINED)
    draw_ray(ax, rows["decoder"][0], kit.ATTENTION)
    for column, colour in (("prompt", kit.TRAINED), ("head", kit.ATTENTION)):
        draw_prompts(ax, rows[column], [colour])
        ax.plot(*rows[column][0, 0], "o", color=kit.INK, markersize=4)
    set_window(ax, (-2, 8), (-2.5, 7.5))
    ax.text(0.5, 6.0, "head v", color=kit.ATTENTION, fontsize=8.5)
    ax.text(4.6, -0.9, "prompt p", color=kit.TRAINED, fontsize=8.5)


SHAPE, FAR_OUT, FASTER = (4, 3, 8), 40.0, 1000.0
"""n, T, d of random instances; the prompt's size in norms of its solution, and how many times as
large the head is in norms of its own.
"""


@kit.run(
    common=[0.5, 1.0],
    seeds=kit.seeds(60, by=100, name="pair_seeds"),
    quick={"pair_seeds": 4},
)
def pairs(common, seeds):
    """The joint path at one large pair of radii on random instances: gaps to the solution of all
    constraints, to the relaxed one, and, of a broken variant, to that which relaxes one sequence
    more; and the gap of the head.

    First tokens, which are selected, are the label times a unit vector and ``common`` times a
    direction that all sequences share: with it some sequences do not support the head. The others
    are half as long. ``nu`` is the proven lower bound of the margin-drop assumption.
    """
    n, T, d = SHAPE
    rows = []
    for seed in seeds:
        rng = np.random.default_rng([7, seed])
        labels = np.where(np.arange(n) % 2, -1.0, 1.0)
        shared, *entries = rng.standard_normal((1 + n * T, d))
        tokens = np.array(entries).reshape(n, T, d)
        tokens /= np.linalg.norm(tokens, axis=-1, keepdims=True)
        tokens[:, 1:] *= 0.5
        tokens[:, 0] += labels[:, None] * common * shared / np.linalg.norm(shared)
        data = AttentionData(tokens, labels, np.ones((n, 1)))
        tokens_of_data = np.zeros(n, dtype=np.int64)
        decoder = max_margin(decoder_margins(data, tokens_of_data))
        full = max_margin(prompt_margins(data, tokens_of_data))
        if decoder.status != "optimal" or full.status != "optimal":
            continue
        relaxed, relaxed_too_far = (
            max_margin(relaxed_margins(data, tokens_of_data, support))
            for support in (decoder.support, decoder.support[1:])
        )
        path = regularization_path(
            data,
            decoder.W[:, 0],
            radii=[FAR_OUT * full.norm],
            head_radii=[FASTER * FAR_OUT * decoder.norm],
            parameterization="joint",
            starts=1,
        )
        assert path.head is not None
        rows.append(
            {
                "seed": seed,
                "pair_supporting": len(decoder.support) == n,
                "pair_nu": margin_drop_bound(data, tokens_of_data),
                "pair_full": path.direction_gap(full)[0],
                "pair_relaxed": path.direction_gap(relaxed)[0],
                "pair_more": path.direction_gap(relaxed_too_far)[0],
                "pair_head": direction_gap(path.head[..., None], decoder.W)[0],
                "pair_apart": direction_gap(full.W, relaxed.W),
            }
        )
    return kit.stacked(rows)
