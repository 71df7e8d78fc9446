"""Attention and decoder trained together.

Gaussian tokens, n = 6, T = 5, d = 48, both parts from zero, each with its own normalised steps:
0.05 for the attention weights, (t+1)^(-2/3) for the decoder, which has no intercept. Solutions are
those of the tokens that are optimal under the last decoder.

Source: Implicit Bias and Fast Convergence Rates for Self-attention, joint training

Notes: Which tokens are optimal is decided by the decoder, so with a trained one it is part of the
result. From zero about four runs in ten settle on another selection than the planted head's, and
both machines hold for it.
"""

from typing import Any

import numpy as np

from attsvm import (
    decoder_margins,
    max_margin_batch,
    optimal_tokens,
    selection_margins,
    train,
)
from attsvm.attention import Attention
from attsvm.datasets import gauss
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps, direction_gap
from attsvm_papers import kit
from attsvm_papers.rates.adaptive import log_slopes, log_spaced_records

LR, DECODER_LR = 0.05, 1.0
WINDOW = (10_000, 100_000)


def decoder_factor(step: int) -> float:
    """The decoder's factor: with it the norm of the decoder grows like the cube root of the
    step.
    """
    return float((step + 1.0) ** (-2.0 / 3.0))


def _of_next_instance(values: Any) -> Any:
    """The values of the next instance of the block, as a null."""
    return (
        np.roll(values, -1, axis=0) if isinstance(values, np.ndarray) else [*values[1:], values[0]]
    )


@kit.run(seeds=kit.seeds(10, by=5), quick={"steps": 20_000, "seeds": 2})
def run(seeds, steps=100_000):
    data, planted = gauss(seed=seeds)
    model = Attention.cross(data, np.zeros_like(planted), intercept=None, train_head=True)
    groups = [{"params": [model.W], "lr": LR}, {"params": [model.head.readout], "lr": DECODER_LR}]
    schedule = {"head.readout": decoder_factor}
    trajectory = train(
        model,
        data,
        SteepestDescent(groups, lr=LR),
        steps,
        AtSteps(log_spaced_records(steps)),
        schedule=schedule,
    )
    tokens = optimal_tokens(data, trajectory.head[-1])
    instances = [data.instance(k) for k in range(len(seeds))]
    attention = max_margin_batch(
        [selection_margins(instance, tokens[k]) for k, instance in enumerate(instances)], tol=1e-12
    )
    decoder = max_margin_batch(
        [decoder_margins(instance, tokens[k]) for k, instance in enumerate(instances)], tol=1e-12
    )
    return {
        "step": kit.same(trajectory.steps),
        "loss": trajectory.loss.T,
        "cosine": 1.0 - trajectory.direction_gap(attention).T,
        "cosine_decoder": 1.0 - direction_gap(trajectory.head[..., None], decoder).T,
        "other": 1.0 - trajectory.direction_gap(_of_next_instance(attention)).T[:, -1:],
        "other_decoder": 1.0
        - direction_gap(trajectory.head[-1][..., None], _of_next_instance(decoder))[:, None],
        "norm": trajectory.norm.T,
        "norm_decoder": np.linalg.norm(trajectory.head, axis=-1).T,
        "selected": (trajectory.selected[-1] == tokens).all(axis=-1),
        "at_start": (trajectory.selected[0] == tokens).all(axis=-1),
        "planted": (tokens == optimal_tokens(data, planted)).all(axis=-1),
        "certified": attention.optimal & decoder.optimal,
    }


LONG = {"100 000 steps": lambda e: np.full(e.rows, e["step"].max() >= WINDOW[1])}


@kit.claim(
    kit.between(0.3, 0.4, "1/3 with the factors of a finite time", share=kit.MOST),
    "paper",
    "rates, joint training, exp(-t^(1/3)); the decoder's step is derived",
    assumes=LONG,
    interval=True,
    null=kit.replaced(
        "a decoder whose length stays",
        loss=lambda e: e["loss"] ** (1.0 / np.maximum(e["norm_decoder"], 1.0)),
    ),
)
def C5_4(e):
    """The loss falls like exp(-c t^(1/3)): slope of log(-log L) against log t from step 10 000 to
    100 000.
    """
    return log_slopes(e.but({"fall": -np.log(e["loss"])}), "fall", *WINDOW)


@kit.claim(
    kit.at_least(0.99, "at step 100 000", share=kit.MOST),
    "recalled",
    "rates, joint training",
    assumes=LONG,
    null=kit.replaced("the separator of another instance", cosine_decoder="other_decoder"),
)
def C5_4a(e):
    """The decoder turns to the max-margin separator of the tokens that are optimal under it: last
    cosine.
    """
    return e["cosine_decoder"][:, -1]


@kit.claim(
    kit.at_least(0.999, "at step 100 000", share=kit.MOST),
    "recalled",
    "rates, joint training",
    assumes=LONG,
    null=kit.replaced("the solution of another instance", cosine="other"),
)
def C5_4b(e):
    """The attention weights turn to the max-margin solution of the tokens that are optimal under
    the trained decoder: last cosine.
    """
    return e["cosine"][:, -1]


@kit.claim(
    kit.true("the fixed point that both machines describe", share=kit.MOST),
    null=kit.replaced("before any training", selected="at_start"),
)
def C5_4c(e):
    """Every sequence selects the token that is optimal under the trained decoder."""
    return e["selected"]


@kit.claim(
    kit.between(
        0.31, 0.36, "1/3 is derived: steps of t^(-2/3) that point the same way", share=kit.MOST
    ),
    assumes=LONG,
    interval=True,
    null=kit.replaced("the attention weights, whose steps stay", norm_decoder="norm"),
)
def C5_4d(e):
    """The norm of the decoder grows like the cube root of the step."""
    return log_slopes(e, "norm_decoder", *WINDOW)


@kit.picture(
    "Attention and decoder together",
    "Three panels on logarithmic axes: straight lines of slope one third, falling direction"
    " gaps, growing norms.",
    2.9,
    1,
    3,
    width=8.8,
    name="joint",
)
def draw_joint_training(evidence, axes):
    """One line per seed. Left: the loss falls like exp(-c t^(1/3)), faster where all labels are
    equal. Middle: attention weights and decoder converge to the max-margin solutions of the tokens
    that are optimal under the trained decoder. Right: their norms.
    """
    step = evidence["step"][0]
    is_late = step >= 10
    falls = -np.log(evidence["loss"][:, is_late])
    axes[0].plot(step[is_late], falls.T, color=kit.TRAINED, linewidth=0.9, alpha=0.8)
    middle = float(np.median(falls[:, -1]))
    axes[0].plot(
        step[is_late],
        middle * (step[is_late] / step[-1]) ** (1 / 3),
        "--",
        color=kit.FAINT,
        linewidth=1.0,
    )
    axes[0].text(
        12,
        1.25 * middle * (12 / step[-1]) ** (1 / 3),
        "t^(1/3)",
        color=kit.FAINT,
        fontsize=8.5,
        rotation=22,
    )
    for ax, pairs in (
        (axes[1], (("cosine", kit.TRAINED, "attention"), ("cosine_decoder", kit.BEST, "decoder"))),
        (axes[2], (("norm", kit.TRAINED, "attention"), ("norm_decoder", kit.BEST, "decoder"))),
    ):
        ends = []
        for column, colour, label in pairs:
            curves = (
                1.0 - evidence[column][:, is_late]
                if ax is axes[1]
                else evidence[column][:, is_late]
            )
            curves = np.maximum(curves, 1e-9)
            ax.plot(step[is_late], curves.T, color=colour, linewidth=0.9, alpha=0.8)
            ends.append((float(np.median(curves[:, -1])), label, colour))
        kit.logarithmic(ax.yaxis, np.concatenate([line.get_ydata() for line in ax.get_lines()]))
        ax.set_xlim(10, step[-1])
        kit.label_ends(ax, ends, 0.1)
    kit.logarithmic(axes[0].yaxis, falls)
    for ax, title in zip(
        axes, ("-log of the loss", "1 - cosine to the own solution", "norm"), strict=True
    ):
        kit.logarithmic(ax.xaxis, np.array([10.0, step[-1]]))
        ax.set(xlim=(10, step[-1]), title=title, xlabel="step")
        ax.tick_params(labelcolor=kit.FAINT)
