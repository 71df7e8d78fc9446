"""Losses shift the prompt and leave its direction.

Two sequences of two tokens, optimal scores C and 1, others 0; normalised gradient descent with step
0.1 from zero under linear, logistic and exponential loss.

Source: Max-Margin Token Selection, Figure 4 (number recalled)

Notes: The paper shows the linear and the logistic loss. Runs with C = 1 go straight along the ray.
"""

from typing import Any

import numpy as np

from attsvm import AttentionData, regularization_path, train
from attsvm.attention import Attention, Exponential, Linear, Logistic
from attsvm.datasets import toy
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps
from attsvm_papers import kit
from attsvm_papers.mmts.prompts import SHOWN, columns_of_runs, draw_ray, recorded_steps, set_window

LOSSES = {"linear": Linear(), "logistic": Logistic(), "exponential": Exponential()}
COLOURS = {"linear": kit.BEST, "logistic": kit.TRAINED, "exponential": kit.ATTENTION}


@kit.run(loss_name=LOSSES, name="descent")
def descend_under_loss(
    loss_name, scores=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 100), lr=0.1, steps=100_000
):
    problems = [toy("losses", C=C) for C in scores]
    lifted = [problem.lifted for problem in problems]
    data = AttentionData(
        *(
            np.stack([getattr(lifted_problem, name) for lifted_problem in lifted])
            for name in ("tokens", "labels", "queries")
        )
    )
    head, keys = problems[0].value_head, problems[0].keys
    model = Attention.prompt(data, head, keys=keys, loss=LOSSES[loss_name])
    descent = SteepestDescent(model.parameters(), lr=lr)
    trajectory = train(model, data, descent, steps, AtSteps(recorded_steps(steps)))
    return {
        "C": np.asarray(scores, float),
        "predicted": offset(loss_name, scores),
        **columns_of_runs(trajectory, {"limit": problems[0].reference["p"]}),
    }


@kit.run(loss_name=LOSSES, quick={"path_scores": (1, 10, 100)}, name="path")
def path_under_loss(loss_name, path_scores=(1, 2, 5, 10, 100), radius=1000.0):
    problems: list[Any] = [toy("losses", C=C) for C in path_scores]
    ends = [
        regularization_path(
            problem.lifted,
            problem.value_head,
            radii=[30.0, radius],
            parameterization="prompt",
            keys=problem.keys,
            loss=LOSSES[loss_name],
        ).W[-1, :, 0]
        for problem in problems
    ]
    return {
        "C": np.asarray(path_scores, float),
        "predicted": offset(loss_name, path_scores),
        "path_end": np.array(ends),
    }


def offset(loss, C):
    r"""The closed form :math:`\frac12\log\frac{C|\ell'(C)|}{|\ell'(1)|}`, the limit of the second
    coordinate.
    """
    log_slope: Any = {
        "linear": np.zeros_like,
        "logistic": lambda u: -np.logaddexp(0.0, u),
        "exponential": lambda u: -u,
    }[loss]
    scores = np.asarray(C, dtype=np.float64)
    return 0.5 * (np.log(scores) + log_slope(scores) - log_slope(np.ones_like(scores)))


def first_step(e: kit.Evidence) -> kit.Evidence:
    """Every record is that of the first step, which the loss decides."""
    return e.but({"gap_limit": np.broadcast_to(e["gap_limit"][:, 1:2], e["gap_limit"].shape)})


OTHER_FORM = kit.shuffled("predicted", within="part C", words="the closed form of another loss")


@kit.claim(
    kit.at_most(
        1.2e-5,
        "1 - cosine after 100000 steps: an offset of 47.04 (C = 100) at a norm"
        " of 10000 is a gap of 1.11e-5",
    ),
    null=first_step,
)
def T22(e):
    """The loss does not change the direction: all runs converge to (1, 0), whatever C and loss."""
    return e.where(part="descent").at("gap_limit", 100_000)


@kit.claim(
    kit.close_to(0.0, 1e-3, "to three decimals; the closed form is derived"),
    null=OTHER_FORM,
)
def T22b(e):
    """The loss changes a finite offset of the prompt: its second coordinate converges to half the
    logarithm of C |l'(C)| / |l'(1)|.
    """
    return (
        e.where(part="descent").at("prompt", 100_000)[:, 1] - e.where(part="descent")["predicted"]
    )


@kit.claim(
    kit.at_most(
        0.005,
        "relative; at radius 1000 an offset of o still moves by about o / 1000, and by more"
        " where tanh is not yet one",
    ),
    null=OTHER_FORM,
)
def E1_6c(evidence):
    """The regularisation path has the offset that the loss gives to descent: half the logarithm of
    C |l'(C)| / |l'(1)| in the second coordinate.
    """
    # relative to what a circle of radius R allows: its arc bends by the offset's square over 2 R
    rows = evidence.where(part="path")
    size = np.maximum(1.0, np.abs(rows["predicted"]))
    return np.abs(rows["path_end"][:, 1] - rows["predicted"]) / size


@kit.picture(
    "The loss shifts the prompt and leaves its direction",
    "Linear loss: parallel lines above the axis. Logistic and exponential loss: parallel"
    " lines below, deeper with C.",
    2.9,
    1,
    3,
    width=9.8,
    name="losses",
)
def draw_losses(evidence, axes):
    """Prompts over the first 200 steps from zero. The first sequence's optimal score is C from 1
    (light) to 10 (dark) and 100 (dashed), the second's is 1. Every run turns parallel to the ray
    (1, 0), at a height that the loss decides; with logistic and exponential loss and C = 100 that
    height is −47, far below the picture.
    """
    rows = evidence.where(part="descent")
    for ax, loss in zip(axes, LOSSES, strict=True):
        draw_ray(ax, (1.0, 0.0), kit.FAINT)
        runs = rows.where(loss_name=loss)
        for C, prompt in zip(runs["C"], runs["prompt"][:, : SHOWN + 1], strict=True):
            style = {"alpha": 0.25 + 0.075 * min(C, 10.0), "linestyle": "--" if C > 10 else "-"}
            ax.plot(*prompt.T, color=COLOURS[loss], linewidth=1.2, **style)
        set_window(ax, (-2, 12), (-6, 6))
        ax.set(xticks=range(-2, 13, 2), title=f"{loss} loss")
    axes[0].text(7.5, 3.1, "C = 100 dashed", color=kit.BEST, fontsize=8.5, ha="center")


@kit.picture(
    "The offset in closed form",
    "Three curves from zero at C = 1: one rises, two fall; dots and crosses lie on them.",
    2.7,
    width=5.2,
)
def offsets(evidence, axes):
    """Lines: half the logarithm of C |ℓ′(C)| / |ℓ′(1)|. Dots: descent after 100 000 steps. Crosses:
    the regularisation path at norm 1000. At C = 100 the limits are 2.30, −47.04 and −47.20.
    """
    rows, path = evidence.where(part="descent"), evidence.where(part="path")
    ax = axes[0]
    grid = np.linspace(1, 10, 100)
    for loss in LOSSES:
        runs, ends = rows.where(loss_name=loss), path.where(loss_name=loss)
        ax.plot(grid, offset(loss, grid), color=COLOURS[loss], linewidth=1.0)
        ax.plot(runs["C"], runs.at("prompt", 100_000)[:, 1], "o", color=COLOURS[loss], label=loss)
        ax.plot(ends["C"], ends["path_end"][:, 1], "x", color=kit.INK, markersize=7)
    ax.set(
        xlim=(0.7, 10.4),
        ylim=(-3.8, 1.5),
        xticks=range(1, 11),
        xlabel="optimal score C",
        title="limit of the second coordinate",
    )
    kit.legend(ax, loc="lower left")
