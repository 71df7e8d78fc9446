r"""The numbers of ``run.json`` and the arrays behind them, computed from a fitted estimator and the
original data; and the few dozen sequences that the report shows with their tokens in place.

What is compared with the solution depends on the norm of the fit. Where the norm is strictly convex
the solution is one point, and directions are compared: in the Frobenius norm by the cosine, in the
others by :meth:`~attsvm.norms.Norm.direction_divergence`, at p = 2 one minus the cosine. In the
nuclear, spectral, :math:`\ell_1` and :math:`\ell_\infty` norms many directions may be best, and
what the theory promises of every one of them is the margin: the comparison is
:math:`1-\text{margin}/\text{best margin}`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from attsvm.datasets.arrays import array_view
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray
from attsvm.margins import optimal_tokens, token_scores
from attsvm.norms import Frobenius, Norm
from attsvm.pipeline.attention_model import AttentionModel
from attsvm.pipeline.padded import Padded
from attsvm.sklearn.explaining import smallest_margins
from attsvm.sklearn.stage import argmax_tokens, logits, probabilities
from attsvm.solvers import MarginSolution, Status, locally_optimal
from attsvm.training import direction_gap


@dataclass(frozen=True)
class ReportSizes:
    """How much of a fit its report shows: what a reader can follow.

    Attributes:
        per_group: sequences of a group of examples.
        support: support constraints that are listed with their words or patches.
        words: chosen words of a class.
        plane_sequences: sequences in the plane.
        plane_tokens: tokens of each of them.
    """

    per_group: int = 8
    support: int = 12
    words: int = 15
    plane_sequences: int = 5
    plane_tokens: int = 8


SIZES = ReportSizes()
Measure = Literal["cosine", "divergence", "margin"]


def measure_of(norm: Norm) -> Measure:
    """The measure by which trained weights are compared with the solution."""
    if norm == Frobenius():
        return "cosine"
    return "divergence" if norm.strictly_convex else "margin"


def distances(W: FloatArray, solution: MarginSolution) -> FloatArray:
    """Distance of weights ``(..., d_x, d_z)`` from the solution in its measure; 1 where weights or
    solution are zero and point nowhere.

    Rounding adds some 1e-16 to shortfalls of margins and to divergences of singular values, and
    nothing to those of entries.
    """
    norm = solution.geometry
    if not solution.W.any():
        return np.ones(W.shape[:-2])
    if measure_of(norm) != "margin":
        return np.where(W.any(axis=(-2, -1)), norm.direction_divergence(solution.W, W), 1.0)
    reached = (
        np.array(
            [
                smallest_margins(solution.margins, matrix, norm).min()
                for matrix in W.reshape(-1, *W.shape[-2:])
            ]
        )
        / solution.margin
    )
    return np.asarray(np.maximum(1.0 - reached, 0.0).reshape(W.shape[:-2]))


Arrays = dict[str, np.ndarray[Any, Any]]


def selection_results(
    model: AttentionModel, train: AttentionData, saturation: float
) -> dict[str, Any]:
    """Numbers of sequences that select one token, and of those that select the best one."""
    several, steps = train.lengths >= 2, model.trajectory.steps
    probability = model.trajectory.softmax_probability[-1]
    half = int(np.searchsorted(steps, steps[-1] / 2))
    midway = model.trajectory.softmax_probability[half] >= saturation
    selected = model.solution.margins.selected
    scores = token_scores(train, model.selection_weights.head)
    best = scores.max(axis=1, keepdims=True)
    is_optimal = scores[np.arange(train.n), selected] == best[:, 0]
    local = (
        locally_optimal(model.solution, scores)
        if model.solution.status == "optimal" and model.solution.slack is None
        else None
    )
    return {
        "sequences": int(several.sum()),
        "single_token": int((~several).sum()),
        "threshold": saturation,
        "saturated": int((probability >= saturation)[several].sum()),
        "midway": {"step": int(steps[half]), "saturated": int(midway[several].sum())},
        "mean_probability": float(probability[several].mean()),
        "min_probability": float(probability[several].min()),
        "optimal": int(is_optimal[several].sum()),
        "optimal_ties": int(((scores == best).sum(axis=1) > 1)[several].sum()),
        "locally_optimal": None if local is None else bool(local[several].all()),
        "locally_optimal_sequences": None if local is None else int(local[several].sum()),
    }


def margin_results(model: AttentionModel) -> dict[str, Any]:
    """The certified programme, and how much of its margin the trained weights reach."""
    solution, W = model.solution, model.selection_weights.W
    trained = smallest_margins(solution.margins, W, model.norm)
    norm, smallest = float(model.norm.value(W)), float(trained.min())
    return solution_results(solution, model.hard_status) | {
        "trained_norm": norm,
        "trained_min_margin": smallest * norm,
        "trained_margin": smallest,
        "trained_margin_ratio": smallest / solution.margin if solution.margin > 0 else 0.0,
    }


def solution_results(solution: MarginSolution, hard_status: Status) -> dict[str, Any]:
    """The certified programme of the selections, and the status of their hard margin."""
    norm = solution.geometry
    return {
        "status": solution.status,
        "geometry": norm.name,
        "geometry_title": norm.title,
        "unique": True
        if solution.status == "optimal" and measure_of(norm) != "margin"
        else solution.unique,
        "hard": solution.slack is None,
        "hard_status": hard_status,
        "slack": solution.slack,
        "norm": solution.norm,
        "margin": solution.margin,
        "gap": solution.gap,
        "violation": solution.violation,
        "tol": solution.tol,
        "out_of_time": solution.out_of_time,
        "constraints": solution.margins.m,
        "support_constraints": len(solution.support),
        "support_sequences": len(np.unique(solution.margins.sequence[solution.support])),
        "solver": solution.solver,
        "iterations": solution.iterations,
        "message": solution.message,
    }


def direction_results(model: AttentionModel) -> tuple[dict[str, Any], Arrays]:
    """The ``direction`` of ``run.json``, trained weights beside max-margin weights, and the curves
    ``(R,)`` of gap and distance over the records.
    """
    # The trajectory is in internal units, which differ from the data's by one positive factor:
    # directions and ratios are the same.
    W, solution, trajectory = model.selection_weights.W, model.solution, model.trajectory
    gaps = trajectory.direction_gap(solution.W)
    distance = distances(trajectory.W, solution)
    steps = trajectory.steps
    # Records at a tenth and at half of the training.
    tenth, half = (int(np.searchsorted(steps, steps[-1] / count)) for count in (10, 2))
    last = float(direction_gap(W, solution.W))
    is_hard_margin = solution.status == "optimal" and solution.slack is None
    return {
        "cosine": 1.0 - last,
        "gap": last,
        "angle_degrees": float(np.degrees(2.0 * np.arcsin(min(np.sqrt(last / 2.0), 1.0)))),
        "certified_angle_degrees": float(np.degrees(solution.angle_bound()))
        if is_hard_margin and model.norm == Frobenius()
        else None,
        "first_gap": float(gaps[tenth]),
        "measure": measure_of(model.norm),
        "distance": float(distances(W, solution)),
        "first_distance": float(distance[tenth]),
        "midway_distance": float(distance[half]),
        "falling": bool(distance[-1] < min(0.9 * distance[tenth], distance[half])),
    }, {"trajectory_direction_gap": gaps, "trajectory_distance": distance}


def run_arrays(
    model: AttentionModel,
    train: AttentionData,
    splits: dict[str, IntArray],
    curves: Arrays,
    saturation: float,
) -> Arrays:
    """The content of ``arrays.safetensors``; see ``docs/run-folder.md``."""
    solution, soft, hard = model.solution, model.weights, model.selection_weights
    trajectory, joint = model.trajectory, model.joint_trajectory
    optimal = optimal_tokens(train, hard.head, ties="first")
    plane = plane_arrays(
        train,
        solution.margins.selected,
        token_scores(train, hard.head),
        solution.support_tokens(),
    )
    return {
        "W": hard.W,
        "head": hard.head,
        "intercept": np.array(hard.intercept),
        "W_soft": soft.W,
        "head_soft": soft.head,
        "intercept_soft": np.array(soft.intercept),
        "W_margin": solution.W,
        "dual": solution.dual,
        "margin_values": solution.margins(solution.W),
        "constraint_sequence": solution.margins.sequence,
        "constraint_token": solution.margins.token,
        "selected": solution.margins.selected,
        "optimal": optimal,
        "probability": trajectory.softmax_probability[-1],
        "trained_margins": smallest_margins(solution.margins, hard.W, model.norm),
        "best_margins": smallest_margins(solution.margins, solution.W, model.norm),
        "support_tokens": solution.support_tokens(),
        "attention_mean": np.stack(
            [
                (train.queries[train.labels == label] @ hard.W.T).mean(axis=0)
                for label in (-1.0, 1.0)
            ]
        ),
        **splits,
        **plane,
        "trajectory_step": trajectory.steps,
        "trajectory_loss": trajectory.loss,
        "trajectory_norm": (
            trajectory.norm if model.norm == Frobenius() else model.norm.value(trajectory.W)
        )
        / model.unit,
        **curves,
        "trajectory_probability": trajectory.softmax_probability.mean(axis=-1),
        "trajectory_saturated": trajectory.saturated(saturation),
        "trajectory_optimal": (trajectory.selected == optimal).mean(axis=-1),
        "joint_step": joint.steps,
        "joint_loss": joint.loss,
        "joint_validation_loss": joint.observed["validation_loss"],
        "joint_validation_accuracy": joint.observed["validation_accuracy"],
    }


def chosen_words(
    encoded: Padded, tokens: IntArray, values: FloatArray, names: tuple[str, ...], test: IntArray
) -> list[dict[str, Any]]:
    """The ``words`` of ``run.json``: for each class that a chosen word alone speaks for, the words
    chosen most often in all texts, and on which share of the held-out texts among them it is right;
    empty where sequences are no texts.

    Args:
        encoded: the data.
        tokens: ``(n,)``: the chosen token of each sequence.
        values: ``(n,)``: what it says alone; positive is the second class.
        names: of the classes.
        test: the held-out sequences.
    """
    views = encoded.views
    if not views or views[0].get("kind") != "text":
        return []
    chosen = [_chosen_word(view, int(t)) for view, t in zip(views, tokens, strict=True)]
    is_test = np.zeros(len(chosen), dtype=np.bool_)
    is_test[test] = True
    right = (values > 0) == (encoded.data.labels > 0)
    classes = []
    for sign, name in zip((False, True), names, strict=True):
        rows: dict[str, list[int]] = {}
        for i in np.flatnonzero((values > 0) == sign):
            if chosen[i]:
                rows.setdefault(chosen[i], []).append(int(i))
        frequent = sorted(rows, key=lambda word: (-len(rows[word]), word))[: SIZES.words]
        words = []
        for word in frequent:
            held_out = [i for i in rows[word] if is_test[i]]
            share = float(right[held_out].mean()) if held_out else None
            words.append(
                {"word": word, "times": len(rows[word]), "held_out": len(held_out), "right": share}
            )
        classes.append({"class": name, "texts": int(sum(map(len, rows.values()))), "words": words})
    return classes


def _chosen_word(view: dict[str, Any], token: int) -> str:
    spans = view["spans"][token] if token < len(view["spans"]) else []
    return str(view["text"][slice(*spans[0])]).lower() if spans else ""


def plane_arrays(
    train: AttentionData, selected: IntArray, scores: FloatArray, support: IntArray
) -> dict[str, Any]:
    """``plane_*`` of ``arrays.safetensors``, see ``docs/run-folder.md``: a few sequences, those of
    the support constraints first. Empty where tokens do not have two features, or no sequence has
    from two to eight of them.

    Args:
        train: the training part.
        selected: ``(n,)`` token positions.
        scores: ``(n, T)``.
        support: ``(k, 2)``, sequence and token of each support constraint, by falling dual.
    """
    if train.d_x != 2:
        return {}
    order = dict.fromkeys([*support[:, 0].tolist(), *range(train.n)])
    counts = train.mask.sum(axis=1)
    rows = [i for i in order if 2 <= counts[i] <= SIZES.plane_tokens][: SIZES.plane_sequences]
    if not rows:
        return {}
    return {
        "plane_sequence": np.array(rows, dtype=np.int64),
        "plane_tokens": train.tokens[rows],
        "plane_queries": train.queries[rows],
        "plane_labels": train.labels[rows],
        "plane_mask": train.mask[rows],
        "plane_selected": selected[rows],
        "plane_scores": scores[rows],
    }


def choose_examples(
    model: AttentionModel, encoded: Padded, splits: dict[str, IntArray], seed: int
) -> list[dict[str, Any]]:
    """The content of ``examples.json``: support sequences of the training part, then confident,
    wrong and typical ones of the test part.
    """
    data, weights, test = encoded.data, model.selection_weights, splits["test"]
    tokens = argmax_tokens(data, weights.W)
    values = weights.token_values(data, tokens)
    right = (values > 0) == (data.labels > 0)
    # support tokens count within the training part
    support_rows = dict.fromkeys(model.solution.support_tokens()[: SIZES.support, 0].tolist())
    support = splits["train"][list(support_rows)]
    by_confidence = test[np.argsort(-np.abs(values[test]), kind="stable")]
    confident = _both_labels(by_confidence[right[by_confidence]], data)
    wrong = by_confidence[~right[by_confidence]][: SIZES.per_group]
    others = np.setdiff1d(test[right[test]], confident)
    typical = _both_labels(np.random.default_rng([seed, 2]).permutation(others), data)
    groups = [
        ("support", "train", support),
        ("confident", "test", confident),
        ("wrong", "test", wrong),
        ("typical", "test", typical),
    ]
    chosen = np.array([int(i) for _, _, rows in groups for i in rows], dtype=np.int64)
    if not len(chosen):
        return []
    titles = [(group, split) for group, split, rows in groups for _ in rows]
    entries = _entries(model, data.take(chosen), chosen, tokens[chosen], values[chosen])
    return [
        {"part": split, "group": group, **entry, "view": _view(encoded, entry["sequence"])}
        for (group, split), entry in zip(titles, entries, strict=True)
    ]


def _both_labels(rows: IntArray, data: AttentionData) -> IntArray:
    """The first rows of both labels in turn, half of each where there are enough."""
    positive, negative = rows[data.labels[rows] > 0], rows[data.labels[rows] < 0]
    most = SIZES.per_group
    half = most // 2
    return np.concatenate(
        [
            negative[: max(half, most - len(positive))],
            positive[: max(half, most - len(negative))],
        ]
    )[: SIZES.per_group]


def _view(encoded: Padded, i: int) -> dict[str, Any]:
    if encoded.views is not None:
        return dict(encoded.views[i])
    return array_view(np.flatnonzero(encoded.data.mask[i]))


def _entries(
    model: AttentionModel,
    data: AttentionData,
    sequences: IntArray,
    tokens: IntArray,
    values: FloatArray,
) -> Iterator[dict[str, Any]]:
    """The entries of ``examples.json`` about these sequences.

    Args:
        model: the trained attention.
        data: the sequences.
        sequences: ``(n,)``, their positions in the whole data.
        tokens: ``(n,)``, the token that each selects.
        values: ``(n,)``, the value of that token alone.
    """
    probability = probabilities(data, model.weights.W)
    scores = data.labels[:, None] * (data.tokens @ model.selection_weights.head)
    W, rows = model.solution.W, np.arange(data.n)
    unit_logits = logits(data, W / (float(model.norm.value(W)) or 1.0))
    margins = unit_logits[rows, tokens][:, None] - unit_logits
    margins[rows, tokens] = np.inf
    for k, visible in enumerate(data.mask):
        lone, length = visible.sum() < 2, int(np.flatnonzero(visible)[-1]) + 1
        yield {
            "sequence": int(sequences[k]),
            "label": int(data.labels[k]),
            "predicted": 1 if values[k] > 0 else -1,
            "value": float(values[k]),
            "selected": int(tokens[k]),
            "probability": probability[k][:length].tolist(),
            "score": scores[k][:length].tolist(),
            "margin": None if lone else float(margins[k].min()),
            "rival": None if lone else int(np.argmin(margins[k])),
        }
