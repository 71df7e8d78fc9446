"""A concave head that selects several tokens.

n = 3 sequences of T = d = 4 orthonormal tokens with label +1; head v'o - strength |o|^2; W from
zero, logistic loss, normalised gradient descent with step 0.1 for 3000 steps, or decaying for 6000.
Predictions use the scores alone, never the trained softmax.

Source: Transformers as Support Vector Machines, mode of the released code (figure recalled);
specification E2.8
"""

from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from attsvm import (
    AttentionData,
    finite_component,
    max_margin,
    multi_token_margins,
    recombine,
    token_scores,
    train,
)
from attsvm.datasets import orthonormal
from attsvm.dynamics import AtSteps, direction_gap
from attsvm.margins import split
from attsvm.models import Attention, LambdaHead
from attsvm.optim import SteepestDescent
from attsvm.selection import sparsemax_selection
from attsvm_papers.kit import (
    ATTENTION,
    BEST,
    FAINT,
    TRAINED,
    Evidence,
    at_least,
    at_most,
    between,
    blocks,
    claim,
    grid,
    logarithmic,
    picture,
    scales,
)

# Instances of :func:`attsvm.datasets.orthonormal`; normalised gradient descent on W from zero,
# steps fixed or decaying.
SCALES = scales(
    strengths=(0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0),
    n=3,
    d=4,
    steps=3000,
    lr=0.1,
    seeds=30,
    quick={"strengths": (0.05, 0.2, 0.5, 1.0, 2.0), "seeds": 10},
)

# Measured for the specification at other draws: strength, mean number of selected tokens, median
# cosines to both parts and to the max-margin part.
REFERENCE = {
    0.05: (1.20, 0.996, 0.996),
    0.1: (1.28, 0.993, 0.993),
    0.2: (1.53, 0.985, 0.984),
    0.3: (2.07, 0.986, 0.981),
    0.5: (2.40, 0.982, 0.964),
    0.75: (2.97, 0.993, 0.965),
    1.0: (3.40, 0.998, 0.912),
}
# steps in which a decaying step halves: a thousandth of 0.1 after 6000 steps, and 87 of path in all
HALVES = 600
RADII = (
    3.0,
    10.0,
    30.0,
)  # sizes of the weights of the regularisation path, in units of the max-margin norm
PATHS = 3  # draws whose path is followed


@grid(seeds=blocks(30))
def run(n, d, steps, lr, seeds, strengths):
    one, head = orthonormal(n, d, seeds)
    strength = np.repeat(strengths, len(seeds))
    data = AttentionData(
        *(np.concatenate([part] * len(strengths)) for part in (one.tokens, one.labels, one.queries))
    )
    heads = np.concatenate([head] * len(strengths))
    scores = token_scores(data, heads)
    predicted = [sparsemax_selection(scores[k], strength[k]) for k in range(len(strength))]
    columns: dict[str, Any] = {
        "strength": strength,
        "seed": np.tile(np.array(seeds), len(strengths)),
        "selected": np.array([mixture.sets.sum(axis=-1).mean() for mixture in predicted]),
        "all_selected": np.array([mixture.sets.all() for mixture in predicted]),
    }
    for name, length, schedule in (
        ("fixed", steps, None),
        ("decay", 2 * steps, lambda step: 0.5 ** (step / HALVES)),
    ):
        model = Attention.cross(
            data, LambdaHead(torch.from_numpy(heads), torch.from_numpy(strength))
        )
        course = train(
            model,
            data,
            SteepestDescent(model.parameters(), lr=lr),
            length,
            AtSteps(()),
            schedule=schedule,
        )
        s = model.probabilities(data).detach().numpy()
        columns[f"error_{name}"] = np.array(
            [np.abs(s[k] - predicted[k].probabilities).max() for k in range(len(strength))]
        )
        columns[f"norm_{name}"] = course.norm[-1]
        compared = [
            _compare(data.instance(k), predicted[k], course.W[-1, k]) for k in range(len(strength))
        ]
        for index, key in enumerate(("both", "margin", "finite")):
            columns[f"{key}_{name}"] = np.array([row[index] for row in compared])
    paths = [
        (
            _path(data.instance(k), heads[k], strength[k], predicted[k])
            if columns["seed"][k] < PATHS
            else np.full((2, len(RADII)), np.nan)
        )
        for k in range(len(strength))
    ]
    return columns | {"path": np.stack(paths)}


def _compare(data: Any, mixture: Any, W: Any) -> tuple[float, float, float]:
    """Cosines of W to both parts together and to the max-margin part, and the distance of its
    finite part to the predicted one.
    """
    programme = multi_token_margins(data, mixture.sets)
    margin = max_margin(programme)
    finite = finite_component(
        data, mixture.sets, np.where(mixture.sets, mixture.probabilities, 1.0)
    )
    both = recombine(W, finite.W, margin.W).cosine
    alone = (
        float(np.vdot(W, margin.W) / np.linalg.norm(W) / margin.norm) if margin.norm > 0 else np.nan
    )
    return both, alone, float(np.linalg.norm(split(W, programme)[0] - finite.W))


def _path(data: Any, head: Any, strength: float, mixture: Any) -> Any:
    """Best weights of growing size: direction gap to the max-margin part and distance of the finite
    part to the predicted one.
    """
    programme = multi_token_margins(data, mixture.sets)
    margin = max_margin(programme)
    if margin.status != "optimal" or margin.norm == 0.0:
        return np.full((2, len(RADII)), np.nan)
    finite = finite_component(
        data, mixture.sets, np.where(mixture.sets, mixture.probabilities, 1.0)
    ).W
    tokens, queries, v = (torch.tensor(part) for part in (data.tokens, data.queries, head))

    def loss(flat: Any, radius: float) -> tuple[float, Any]:
        free = torch.tensor(flat, requires_grad=True)
        W = (radius * free / free.norm()).reshape(programme.shape)
        s = torch.softmax((tokens @ (queries @ W.T)[..., None])[..., 0], dim=-1)
        output = (s[:, None] @ tokens)[:, 0]
        value = torch.nn.functional.softplus(
            -(output @ v - strength * (output**2).sum(dim=-1))
        ).mean()
        value.backward()
        assert free.grad is not None
        return float(value.detach()), free.grad.numpy()

    found = []
    for factor in RADII:
        radius = float(factor * margin.norm)
        # The sphere of this radius, from the prediction of that size.
        room = np.sqrt(max(radius**2 - float(np.linalg.norm(finite)) ** 2, 1e-6 * radius**2))
        start = finite + room / margin.norm * margin.W
        best = minimize(
            loss,
            start.ravel(),
            args=(radius,),
            jac=True,
            method="BFGS",
            options={"gtol": 1e-14, "maxiter": 400},
        )
        W = radius * best.x.reshape(programme.shape) / np.linalg.norm(best.x)
        found.append(
            (
                float(direction_gap(W, margin)),
                float(np.linalg.norm(split(W, programme)[0] - finite)),
            )
        )
    return np.array(found).T


def _median(evidence: Evidence, column: str) -> Any:
    return np.array(
        [
            np.nanmedian(evidence.where(strength=each)[column])
            for each in evidence.levels("strength")
            if each in REFERENCE
        ]
    )


@claim(
    at_most(
        1e-3,
        "the specification's bar for decaying steps, asked of the median draw as its .016 for"
        " fixed steps is: of 30 draws 20 to 26 meet it at each strength up to 1, the others are"
        " still moving or at another local optimum; of other seeds (from 5000) the median at"
        " strength 1 is 1.5e-3",
    ),
    reference="derived; P2 has a related lemma (recalled)",
)
def T21(e):
    """Training ends at the sparsemax of scores over twice the strength, known before it starts."""
    return [np.median(e.where(strength=each)["error_decay"]) for each in e.levels("strength")]


@claim(
    at_least(-1e-3, "medians at every strength up to 1; equal where one token is selected"),
    "paper",
    "P2, a proposed equivalence supported by experiment",
)
def T19(e):
    """The two predicted parts together are closer to the trained weights than the max-margin part
    alone.
    """
    return _median(e, "both_fixed") - _median(e, "margin_fixed")


@claim(
    at_most(
        0.02,
        "at 30 times the max-margin norm; the finite part still turns the direction by its size"
        " over the radius",
    ),
    "recalled",
    "P1 Theorem 6 and P2 (recalled); proof idea derived",
    assumes={"a path was followed": lambda e: np.isfinite(e["path"][:, 0, -1])},
)
def T9(e):
    """Best weights of growing size turn to the max-margin part of the predicted sets."""
    return e["path"][:, 0, -1]


@claim(
    at_most(0.05, "at 10 times the max-margin norm, where masked tokens weigh e^-10", share=0.9),
    "recalled",
    "P1 Theorem 6 and P2 (recalled); proof idea derived",
    assumes={"a path was followed": lambda e: np.isfinite(e["path"][:, 1, 1])},
)
def T9b(e):
    """Their component in the span of the selected differences is the finite part."""
    return e["path"][:, 1, 1]


@claim(
    at_least(0.0, "the support of a projection onto the simplex grows as its argument shrinks"),
)
def E2_8a(e):
    """The number of selected tokens does not fall when the strength grows."""
    return np.diff(
        np.stack([e.where(strength=each)["selected"] for each in e.levels("strength")]), axis=0
    ).ravel()


@claim(
    at_least(
        0.0,
        "from each strength to the next, up to 1; the specification measured 0, 0, .001, .005,"
        " .018, .028, .086",
    ),
    assumes={"30 draws": lambda e: len(np.unique(e["seed"])) >= 30},
)
def E2_8b(e):
    """The advantage of both parts widens with the strength."""
    return np.diff(_median(e, "both_fixed") - _median(e, "margin_fixed"))


@claim(
    between(
        -0.3, 0.3, "other draws: two standard errors of a mean over 30 draws of three sequences"
    ),
    assumes={"30 draws": lambda e: len(np.unique(e["seed"])) >= 30},
)
def E2_8c(e):
    """Mean numbers of selected tokens are those of the specification."""
    return [
        np.mean(e.where(strength=each)["selected"]) - REFERENCE[each][0]
        for each in e.levels("strength")
        if each in REFERENCE
    ]


@claim(
    between(-0.01, 0.01, "other draws"),
    assumes={"30 draws": lambda e: len(np.unique(e["seed"])) >= 30},
)
def E2_8d(e):
    """Median cosines to both parts are those of the specification."""
    return _median(e, "both_fixed") - [
        REFERENCE[each][1] for each in e.levels("strength") if each in REFERENCE
    ]


@claim(
    at_most(
        0.05,
        "distance to the predicted finite weights, which here are all there is; probabilities"
        " are exact to 1e-3",
        share=0.9,
    ),
)
def E2_8e(e):
    """At strength 2 everything is selected and the weights stay finite."""
    return np.where(
        e.where(strength=2.0)["all_selected"], e.where(strength=2.0)["finite_decay"], np.inf
    )


@claim(
    at_most(0.0165, "the specification's .016 to its three digits: jitter of steps of 0.1"),
    assumes={"30 draws": lambda e: len(np.unique(e["seed"])) >= 30},
)
def E2_8f(e):
    """With fixed steps the largest probability error stays below .016 in the median."""
    return [np.median(e.where(strength=each)["error_fixed"]) for each in e.levels("strength")]


@picture(
    "A head that asks for several tokens, and gets them",
    "The number of selected tokens rises from 1.2 to 4 with the strength; prediction errors"
    " stay below two percent.",
    3.0,
    1,
    3,
    width=8.8,
    name="strength",
)
def draw_strength(evidence, axes):
    """Selected sets and probabilities are predicted before training by a sparsemax of the scores.
    Crosses: the specification's own run. Errors below 1e-6 are drawn at 1e-6.
    """
    strengths = evidence.levels("strength")
    axes[0].plot(
        strengths,
        [np.mean(evidence.where(strength=each)["selected"]) for each in strengths],
        "o-",
        color=TRAINED,
    )
    axes[0].plot(
        [*REFERENCE],
        [row[0] for row in REFERENCE.values()],
        "x",
        color=FAINT,
        markersize=7,
        markeredgewidth=1.2,
    )
    axes[0].set(title="Selected tokens, mean", ylim=(0.9, 4.1))
    few = [each for each in strengths if each in REFERENCE]
    for column, colour, label in (
        ("both", BEST, "finite + max-margin"),
        ("margin", TRAINED, "max-margin alone"),
    ):
        axes[1].plot(
            few, 1.0 - _median(evidence, f"{column}_fixed"), "o-", color=colour, label=label
        )
    axes[1].plot(
        few,
        [1 - REFERENCE[each][1] for each in few],
        "x",
        color=BEST,
        markersize=7,
        markeredgewidth=1.2,
    )
    axes[1].plot(
        few,
        [1 - REFERENCE[each][2] for each in few],
        "x",
        color=TRAINED,
        markersize=7,
        markeredgewidth=1.2,
    )
    axes[1].set_title("1 - cosine, median")
    for column, colour, label in (
        ("fixed", ATTENTION, "steps of 0.1"),
        ("decay", BEST, "decaying steps"),
    ):
        values = np.array(
            [np.median(evidence.where(strength=each)[f"error_{column}"]) for each in strengths]
        )
        axes[2].plot(
            strengths, np.maximum(values, 1e-6), "o-", color=colour, label=label, clip_on=False
        )
    axes[2].set_title("Error of the probabilities, median")
    for ax in axes:
        logarithmic(ax.xaxis, np.array(strengths))
        ax.set_xlabel("strength of the head")
    logarithmic(axes[1].yaxis, np.array([1e-3, 0.1]))
    logarithmic(axes[2].yaxis, np.array([1e-6, 0.1]))
    axes[2].set_ylim(1e-6, 0.1)
    for ax in axes[1:]:
        ax.legend(frameon=False, fontsize=8.5, labelcolor=FAINT)
