"""The ten pictures of the page about the theory, each drawn from a computation with attsvm's public
functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.attention import Attention, LambdaHead
from attsvm.optim import MirrorDescent, SteepestDescent
from attsvm.report.style import (
    ATTENTION,
    BEST,
    FAINT,
    INK,
    TRAINED,
    Picture,
    canvas,
    logarithmic,
    render,
)
from attsvm.training import AtSteps


def _descend(
    problem: Any, steps: int, starts: Any = None, lr: float = 0.1, record: Any = None
) -> Any:
    """Normalised gradient descent on the prompt of a toy, from each of its starts."""
    first = problem.starts["p"] if starts is None else np.asarray(starts)
    model = Attention.prompt(
        problem.lifted, problem.value_head, keys=problem.keys, runs=len(first), init=first
    )
    return attsvm.train(
        model,
        problem.lifted,
        SteepestDescent(model.parameters(), lr=lr),
        steps,
        record or AtSteps(range(steps + 1)),
    )


def _plane(ax: Any, x: tuple[float, float], y: tuple[float, float]) -> None:
    ax.set_xlim(*x)
    ax.set_ylim(*y)
    ax.set_aspect("equal")
    ax.set_xlabel("p₁")
    ax.set_ylabel("p₂", rotation=0)


def _ray(ax: Any, direction: Any, colour: str) -> None:
    ax.plot(
        *np.stack([np.zeros(2), 100 * direction / np.linalg.norm(direction)], axis=1),
        "--",
        color=colour,
        linewidth=1.2,
    )


def selection() -> Picture:
    """Softmax of the same logits, scaled up: from a mean to a choice."""
    data, head = attsvm.datasets.unit_sphere(n=1, T=5, d=6, seed=0)
    solution = attsvm.max_margin(attsvm.selection_margins(data, attsvm.optimal_tokens(data, head)))
    model = Attention.cross(
        data, head, runs=3, init=np.stack([scale * solution.W for scale in (0.0, 1.5, 10.0)])
    )
    shares = model.probabilities(data).detach().numpy()[:, 0]
    with canvas(2.3, 1, 3, width=6.6, sharey=True) as (figure, axes):
        for ax, share, title in zip(
            axes,
            shares,
            ("weights zero: the mean", "small weights: a mixture", "large weights: a choice"),
            strict=True,
        ):
            colours = [
                ATTENTION if t == share.argmax() and share.max() > share.min() + 1e-9 else TRAINED
                for t in range(5)
            ]
            ax.bar(range(1, 6), share, color=colours, width=0.7)
            ax.set_ylim(0, 1)
            ax.set_xticks(range(1, 6))
            ax.set_xlabel("token")
            ax.set_title(title)
        axes[0].set_ylabel("attention")
        words = "Equal bars, then unequal ones, then one bar of height one."
        return render(figure, "selection", "Attention as selection", "", words)


def half_spaces() -> Picture:
    """Every rival token forbids a half-space of prompts; the nearest prompt that is left is the
    max-margin prompt.
    """
    problem = attsvm.datasets.toy("single_global")
    margins = attsvm.prompt_margins(problem.data, [0])
    best = attsvm.max_margin(margins).W[:, 0]
    x = np.array([-2.0, 2.0])
    labels = ((BEST, "2", (0.68, 1.35)), (ATTENTION, "3", (-1.55, 0.62)))
    with canvas(3.2, width=4.4) as (figure, axes):
        ax = axes[0]
        for difference, (colour, name, place) in zip(margins.differences, labels, strict=True):
            edge = (1.0 - difference[0] * x) / difference[1]
            ax.plot(x, edge, color=colour, linewidth=1.1)
            ax.fill_between(x, edge, -3.0, color=colour, alpha=0.12, linewidth=0)
            ax.text(*place, f"token {name} too close", color=colour)
        _ray(ax, best, INK)
        ax.annotate(
            "",
            best,
            (0, 0),
            arrowprops={
                "arrowstyle": "-|>",
                "color": INK,
                "linewidth": 1.8,
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )
        ax.text(0.06, 0.3, "max-margin prompt")
        ax.text(-1.45, 1.35, "token 1 wins\nby the margin", color=FAINT)
        _plane(ax, (-1.6, 1.9), (-1.0, 1.8))
        words = "Two half-planes are shaded; an arrow ends at the nearest point of the rest."
        return render(figure, "half-spaces", "Margins are half-spaces", "", words)


def paths() -> Picture:
    """Six starts, one limit."""
    problem = attsvm.datasets.toy("single_global")
    best = attsvm.max_margin(attsvm.prompt_margins(problem.data, [0])).W[:, 0]
    course = _descend(problem, 300).W[..., 0]
    with canvas(3.4, width=4.4) as (figure, axes):
        _ray(axes[0], best, BEST)
        for run in np.swapaxes(course, 0, 1):
            axes[0].plot(*run.T, color=TRAINED, linewidth=1.1)
            axes[0].plot(*run[0], "o", color=INK, markersize=3.5)
        axes[0].text(0.35, 17, "max-margin\ndirection", color=BEST)
        axes[0].text(-8.6, 9, "descent", color=TRAINED)
        _plane(axes[0], (-10, 12), (-3, 20))
        words = "Six lines rise left of a dashed ray and turn until they run beside it."
        return render(figure, "paths", "Gradient descent takes the ray's direction", "", words)


def two_limits() -> Picture:
    """The same data, two starts, two limits."""
    problem = attsvm.datasets.toy("single_local")
    rays = [
        attsvm.max_margin(attsvm.prompt_margins(problem.data, [token])).W[:, 0] for token in (0, 1)
    ]
    trajectory = _descend(problem, 200, [[0.0, 0.5], [0.0, -1.5]])
    with canvas(3.0, width=4.4) as (figure, axes):
        for run in range(2):
            colour = (TRAINED, ATTENTION)[trajectory.selected[-1, run, 0]]
            _ray(axes[0], rays[trajectory.selected[-1, run, 0]], colour)
            axes[0].plot(*trajectory.W[:, run, :, 0].T, color=colour)
            axes[0].plot(*trajectory.W[0, run, :, 0], "o", color=INK, markersize=3.5)
        axes[0].text(1.0, 8.2, "selects token 1, the best", color=TRAINED)
        axes[0].text(2.6, 0.75, "selects token 2,\nwhich beats its neighbour", color=ATTENTION)
        _plane(axes[0], (-2.5, 12), (-2.5, 10))
        words = "One line turns upwards, the other to the right; each follows its own dashed ray."
        return render(figure, "two-limits", "A local optimum", "", words)


def growth() -> Picture:
    """The gap of the direction in log space, and what the textbook gradient makes of it in single
    precision.
    """
    problem = attsvm.datasets.toy("multiple_global")
    best = attsvm.max_margin(attsvm.prompt_margins(problem.data, [0, 0, 0])).W[:, 0]
    unit = best / np.linalg.norm(best)
    steps = 20_000
    marks = np.unique(np.rint(np.geomspace(1, steps, 90)).astype(int))
    exact = _descend(problem, steps, [[0.0, 0.0]], record=AtSteps([0, *marks]))
    keys, scores = problem.data.tokens.astype(np.float32), problem.scores.astype(np.float32)
    p, textbook = np.zeros(2, np.float32), np.zeros((len(marks), 2))
    for step in range(1, steps + 1):
        logits = keys @ p
        share = np.exp(logits - logits.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        value = (share * scores).sum(axis=1, keepdims=True)
        down = np.einsum("nt,ntd->d", share * (scores - value) / (1 + np.exp(value)), keys)
        p += np.float32(0.1) * down / np.maximum(np.linalg.norm(down), np.float32(1e-9))
        if step in marks:
            textbook[marks == step] = p
    size = np.linalg.norm(textbook, axis=1)
    with canvas(2.7, 1, 2, width=6.6) as (figure, axes):
        axes[0].plot(marks, exact.norm[1:, 0], color=TRAINED)
        axes[0].plot(marks, size, "--", color=ATTENTION)
        axes[0].set_title("norm")
        gaps = exact.direction_gap(best[:, None])[1:, 0]
        axes[1].plot(marks, gaps, color=TRAINED)
        axes[1].plot(marks, np.maximum(1.0 - textbook @ unit / size, 1e-9), "--", color=ATTENTION)
        axes[1].set_title("gap of the direction, 1 − cosine")
        for ax, values in zip(axes, (exact.norm[1:, 0], gaps), strict=True):
            logarithmic(ax.xaxis, marks.astype(float))
            logarithmic(ax.yaxis, values)
            ax.set_xlabel("step")
        axes[0].text(1.3, 300, "log space", color=TRAINED)
        axes[0].text(60, 1.2, "textbook, float32", color=ATTENTION)
        words = "One line goes on falling; the dashed one stops falling."
        return render(figure, "growth", "The norm grows, the direction settles", "", words)


def factors() -> Picture:
    """Singular values of the two max-margin solutions and of the two trained matrices."""
    data, head = attsvm.datasets.unit_sphere(n=6, T=8, d=10, seed=3)
    factored: dict[str, Any] = {"parameterization": "KQ", "init": ("uniform", 0)}
    with canvas(2.6, 1, 2, width=6.6, sharey=True) as (figure, axes):
        for ax, name, norm, words, options in (
            (axes[0], "W trained directly", attsvm.Frobenius(), "least Frobenius norm", {}),
            (
                axes[1],
                "W = K Qᵀ, factors trained",
                attsvm.Nuclear(),
                "least nuclear norm",
                factored,
            ),
        ):
            model = Attention.cross(data, head, runs=1, **options)
            run = attsvm.train(model, data, SteepestDescent(model.parameters(), lr=0.1), 4000)
            best = attsvm.max_margin(attsvm.selection_margins(data, run.selected[-1, 0]), norm)
            for W, shift, colour, label in (
                (run.W[-1, 0], -0.19, TRAINED, "trained"),
                (best.W, 0.19, BEST, words),
            ):
                sizes = np.linalg.svd(W, compute_uv=False)[:7]
                ax.bar(np.arange(1, 8) + shift, sizes / sizes[0], 0.36, color=colour, label=label)
            ax.set_title(name)
            ax.set_xlabel("singular value")
            ax.legend(frameon=False, fontsize=8.5)
        axes[0].set_ylabel("relative to the first")
        words = (
            "Six singular values on the left, fewer on the right, equal for training and solution."
        )
        return render(figure, "factors", "W against K and Q", "", words)


def geometries() -> Picture:
    """Mirror descent in three potentials against the solutions in three norms."""
    from matplotlib.patches import Rectangle

    powers, rates, runs = (1.75, 2.0, 3.0), (0.2, 0.5, 5.0), 4
    data, heads = attsvm.datasets.unit_sphere(6, 8, 10, seed=range(runs))
    table = np.zeros((3, 3))
    for row, (p, lr) in enumerate(zip(powers, rates, strict=True)):
        model = Attention.cross(data, heads)
        optimizer = MirrorDescent(model.parameters(), lr=lr, p=p, normalize=True)
        run = attsvm.train(model, data, optimizer, 700, AtSteps([0]), snapshots=False)
        chosen = [
            attsvm.selection_margins(data.instance(k), tokens)
            for k, tokens in enumerate(run.selected[-1])
        ]
        for column, q in enumerate(powers):
            table[row, column] = np.median(
                run.direction_gap(attsvm.max_margin_batch(chosen, attsvm.Lp(q)))[-1]
            )
    shade = 0.04 + 0.4 * (np.log10(table / table.max()) / np.log10(table.min() / table.max()))
    with canvas(2.9, width=4.4) as (figure, axes):
        for row, column in np.ndindex(3, 3):
            corner = (column - 0.5, row - 0.5)
            axes[0].add_patch(
                Rectangle(corner, 1, 1, facecolor=BEST, alpha=shade[row, column], linewidth=0)
            )
            weight = "bold" if row == column else "normal"
            axes[0].text(
                column, row, f"{table[row, column]:.4f}", ha="center", va="center", weight=weight
            )
        names = [f"p = {p:g}" for p in powers]
        axes[0].set_xlim(-0.5, 2.5)
        axes[0].set_ylim(2.5, -0.5)
        axes[0].set_xticks(range(3), names)
        axes[0].set_yticks(range(3), names)
        axes[0].set_xlabel("norm of the max-margin solution")
        axes[0].set_ylabel("potential of mirror descent")
        words = "A table of nine gaps; the three on the diagonal are the smallest of their rows."
        return render(figure, "geometries", "The geometry decides", "", words)


def overparameterisation() -> Picture:
    """Shares of runs against the dimension."""
    dimensions, n, T = (2, 4, 8, 16, 32, 64, 128), 4, 5
    shares = np.zeros((2, len(dimensions)))
    for place, d in enumerate(dimensions):
        data, heads = attsvm.datasets.unit_sphere(n, T, d, seed=range(40))
        model = Attention.cross(data, heads)
        run = attsvm.train(
            model,
            data,
            SteepestDescent(model.parameters(), lr=0.1),
            1000,
            AtSteps([0]),
            snapshots=False,
        )
        best = attsvm.optimal_tokens(data, heads)
        saturated = run.softmax_probability[-1].min(axis=1) > 0.99
        shares[:, place] = (
            np.mean(saturated & (run.selected[-1] == best).all(axis=1)),
            np.mean([attsvm.all_support(data.instance(k), best[k]) for k in range(40)]),
        )
    with canvas(2.6) as (figure, axes):
        for line, colour, label in zip(
            shares,
            (TRAINED, BEST),
            ("descent ends at the best tokens", "every token is a support token"),
            strict=True,
        ):
            axes[0].plot(dimensions, 100 * line, "o-", color=colour, label=label)
        axes[0].set_xscale("log", base=2)
        axes[0].set_xticks(dimensions, [str(d) for d in dimensions])
        axes[0].set_ylim(-3, 103)
        axes[0].set_xlabel("dimension of tokens")
        axes[0].set_ylabel("share of instances, %")
        axes[0].legend(frameon=False, fontsize=8, loc=(0.085, 0.17))
        words = "Both shares rise to 100 % with the dimension, one early, one late."
        return render(figure, "overparameterisation", "More dimensions, fewer traps", "", words)


def several_tokens() -> Picture:
    """The head that wants mixtures: predicted and trained attention, and the gap with and without
    the finite component.
    """
    import torch

    from attsvm.theory import sparsemax_selection

    data, head = attsvm.datasets.orthonormal(3, 4, seed=2)
    strength = 0.75
    mixture = sparsemax_selection(attsvm.token_scores(data, head), strength)
    finite = attsvm.finite_component(data, mixture.sets, mixture.probabilities).W
    direction = attsvm.max_margin(attsvm.multi_token_margins(data, mixture.sets)).W
    model = Attention.cross(
        data, LambdaHead(torch.from_numpy(head), strength), runs=1, init="zeros"
    )
    run = attsvm.train(
        model,
        data,
        SteepestDescent(model.parameters(), lr=0.1),
        1500,
        schedule=lambda step: 1.0 if step < 500 else 500.0 / step,
    )
    trained = model.probabilities(data).detach().numpy()[0]
    gap = [1.0 - attsvm.recombine(W, finite, direction).cosine for W in run.W[1:, 0]]
    alone = run.direction_gap(direction)[1:, 0]
    with canvas(2.7, 1, 2, width=6.8) as (figure, axes):
        place = np.arange(12) + np.repeat(np.arange(3), 4)
        axes[0].bar(place, trained.ravel(), 0.7, color=TRAINED, label="trained")
        axes[0].plot(
            place,
            mixture.probabilities.ravel(),
            "_",
            color=BEST,
            markersize=13,
            markeredgewidth=2.2,
            label="predicted",
        )
        axes[0].set_xticks([1.5, 6.5, 11.5], ["sequence 1", "sequence 2", "sequence 3"])
        axes[0].set_ylim(0, 1.25)
        axes[0].legend(frameon=False, fontsize=8.5, ncols=2, loc="upper center")
        axes[0].set_title("attention of each token")
        axes[1].plot(run.steps[1:], alone, "--", color=ATTENTION)
        axes[1].plot(run.steps[1:], gap, color=TRAINED)
        logarithmic(axes[1].xaxis, run.steps[1:].astype(float))
        logarithmic(axes[1].yaxis, np.array([*gap, *alone]))
        axes[1].set_xlabel("step")
        axes[1].set_title("1 − cosine to the prediction")
        axes[1].text(120, 0.2, "direction alone", color=ATTENTION)
        axes[1].text(60, 0.008, "finite part + direction", color=TRAINED)
        words = "Trained bars meet predicted marks; the solid gap falls below the dashed one."
        return render(figure, "several-tokens", "Several tokens", "", words)


def joint() -> Picture:
    """Prompt and head trained together; one sequence does not support the head."""
    problem = attsvm.datasets.toy("joint_nonsupport")
    data, tokens = problem.data, [1, 1, 1]
    decoder = attsvm.max_margin(attsvm.decoder_margins(data, tokens))
    relaxed = attsvm.max_margin(attsvm.relaxed_margins(data, tokens, decoder.support)).W[:, 0]
    strict = attsvm.max_margin(attsvm.prompt_margins(data, tokens)).W[:, 0]
    v, p = problem.starts["v"][0], problem.starts["p"][0]
    model = Attention.prompt(data, v, runs=1, init=p, train_head=True)
    run = attsvm.train(
        model, data, SteepestDescent(model.parameters(), lr=0.1), 300, AtSteps(range(301))
    )
    with canvas(3.0, 1, 2, width=6.8) as (figure, axes):
        _ray(axes[0], strict, FAINT)
        _ray(axes[0], relaxed, BEST)
        axes[0].plot(*run.W[:, 0, :, 0].T, color=TRAINED)
        axes[0].plot(*p, "o", color=INK, markersize=3.5)
        axes[0].text(3, 5.4, "margin 1 in all sequences", color=FAINT)
        axes[0].text(9, -2.2, "relaxed", color=BEST)
        axes[0].set_title("prompt")
        _plane(axes[0], (-3, 24), (-10, 12))
        _ray(axes[1], decoder.W[:, 0], BEST)
        axes[1].plot(*run.head[:, 0].T, color=TRAINED)
        axes[1].plot(*v, "o", color=INK, markersize=3.5)
        axes[1].set_title("head")
        axes[1].set_xlim(-8, 8)
        axes[1].set_ylim(-2, 24)
        axes[1].set_xlabel("v₁")
        axes[1].set_ylabel("v₂", rotation=0)
        axes[1].text(0.8, 20, "max-margin head", color=BEST)
        words = "The prompt follows the relaxed ray, not the steeper one; the head rises."
        return render(figure, "joint", "Head and attention together", "", words)


PICTURES = (
    selection,
    half_spaces,
    paths,
    two_limits,
    growth,
    factors,
    geometries,
    overparameterisation,
    several_tokens,
    joint,
)
