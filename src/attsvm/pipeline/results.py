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

from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from attsvm.datasets import Encoded
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray
from attsvm.margins import optimal_tokens, token_scores
from attsvm.norms import Frobenius, Norm
from attsvm.pipeline.accuracy import ChosenTokens
from attsvm.pipeline.class_words import class_words
from attsvm.pipeline.model import RunData, RunModel
from attsvm.sklearn.choosing import margin_values
from attsvm.sklearn.evidence import predicted
from attsvm.sklearn.explaining import smallest_margins
from attsvm.sklearn.layers import PooledLayer
from attsvm.sklearn.preparation import units
from attsvm.sklearn.stage import Weights, logits
from attsvm.solvers import MarginSolution, Status, locally_optimal
from attsvm.training import Trajectory, direction_gap


@dataclass(frozen=True)
class ReportSizes:
    """How much of a fit its report shows: what a reader can follow.

    Attributes:
        per_group: sequences of a group of examples.
        support: support constraints that are listed with their words or patches.
        words: chosen words of a class.
        often: words that are chosen most often, of a class that has none of its own.
        held_out: fewest held-out texts of a class in which such a word is chosen.
        plane_sequences: sequences in the plane.
        plane_tokens: tokens of each of them.
    """

    per_group: int = 8
    support: int = 12
    words: int = 15
    often: int = 3
    held_out: int = 3
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


@dataclass(frozen=True, eq=False)
class AttentionTheory:
    """Attention that was trained on alone, and the margin of its selections.

    Attributes:
        data: the sequences, +1 in the class that is told from the others.
        weights: attention and head at the end.
        trajectory: records.
        lr: length of its steps.
        solution: the max-margin solution of the selections.
        hard_status: the status of the hard margin.
        unit: of the weights in the trajectory: root-mean-square norm of tokens times that of
            queries.
    """

    data: AttentionData
    weights: Weights
    trajectory: Trajectory
    lr: float
    solution: MarginSolution
    hard_status: Status
    unit: float

    @property
    def norm(self) -> Norm:
        """The geometry of descent and margin."""
        return self.solution.geometry


def attention_theory(model: RunModel) -> AttentionTheory | None:
    """What the explanation of attention holds; None of witnesses."""
    explanation = model.explanation
    if explanation.weights is None or explanation.trajectory is None or explanation.lr is None:
        return None
    tokens, z = units(explanation.data)
    return AttentionTheory(
        explanation.data,
        explanation.weights,
        explanation.trajectory,
        explanation.lr,
        explanation.solution,
        explanation.hard_status,
        tokens * z,
    )


def selection_results(theory: AttentionTheory, saturation: float) -> dict[str, Any]:
    """Numbers of sequences that select one token, and of those that select the best one."""
    train, trajectory = theory.data, theory.trajectory
    several, steps = train.lengths >= 2, trajectory.steps
    probability = trajectory.softmax_probability[-1]
    half = int(np.searchsorted(steps, steps[-1] / 2))
    midway = trajectory.softmax_probability[half] >= saturation
    selected = theory.solution.margins.selected
    scores = token_scores(train, theory.weights.head)
    best = scores.max(axis=1, keepdims=True)
    is_optimal = scores[np.arange(train.n), selected] == best[:, 0]
    local = (
        locally_optimal(theory.solution, scores)
        if theory.solution.status == "optimal" and theory.solution.slack is None
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


def margin_results(theory: AttentionTheory) -> dict[str, Any]:
    """The certified programme, and how much of its margin the trained weights reach."""
    solution, W = theory.solution, theory.weights.W
    trained = smallest_margins(solution.margins, W, theory.norm)
    norm, smallest = float(theory.norm.value(W)), float(trained.min())
    return solution_results(solution, theory.hard_status) | {
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


def direction_results(theory: AttentionTheory) -> tuple[dict[str, Any], Arrays]:
    """The ``direction`` of ``run.json``, trained weights beside max-margin weights, and the curves
    ``(R,)`` of gap and distance over the records.
    """
    # The trajectory is in internal units, which differ from the data's by one positive factor:
    # directions and ratios are the same.
    W, solution, trajectory = theory.weights.W, theory.solution, theory.trajectory
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
        if is_hard_margin and theory.norm == Frobenius()
        else None,
        "first_gap": float(gaps[tenth]),
        "measure": measure_of(theory.norm),
        "distance": float(distances(W, solution)),
        "first_distance": float(distance[tenth]),
        "midway_distance": float(distance[half]),
        "falling": bool(distance[-1] < min(0.9 * distance[tenth], distance[half])),
    }, {"trajectory_direction_gap": gaps, "trajectory_distance": distance}


def run_arrays(
    run: RunData, model: RunModel, theory: AttentionTheory, curves: Arrays, saturation: float
) -> Arrays:
    """The content of ``arrays.safetensors``; see ``docs/run-folder.md``."""
    solution, weights, trajectory = theory.solution, theory.weights, theory.trajectory
    train, norm = theory.data, theory.norm
    scores = token_scores(train, weights.head)
    optimal = optimal_tokens(train, weights.head, ties="first")
    plane = plane_arrays(train, solution.margins.selected, scores, solution.support_tokens())
    return {
        "W": weights.W,
        "head": weights.head,
        "intercept": np.array(weights.intercept),
        **_layer_arrays("soft", cast(PooledLayer, model.estimator.predictor_.layer)),
        **_layer_arrays("hard", cast(PooledLayer, model.chooser.predictor_.layer)),
        "W_margin": solution.W,
        "dual": solution.dual,
        "margin_values": solution.margins(solution.W),
        "constraint_sequence": solution.margins.sequence,
        "constraint_token": solution.margins.token,
        "selected": solution.margins.selected,
        "optimal": optimal,
        "probability": trajectory.softmax_probability[-1],
        "trained_margins": smallest_margins(solution.margins, weights.W, norm),
        "best_margins": smallest_margins(solution.margins, solution.W, norm),
        "support_tokens": solution.support_tokens(),
        "attention_mean": np.stack(
            [
                (train.queries[train.labels == label] @ weights.W.T).mean(axis=0)
                for label in (-1.0, 1.0)
            ]
        ),
        "train": run.train,
        "test": run.test,
        "explained": run.explained,
        "explained_rows": np.array([run.dataset.row(i) for i in run.explained.tolist()]),
        **plane,
        "trajectory_step": trajectory.steps,
        "trajectory_loss": trajectory.loss,
        "trajectory_norm": (trajectory.norm if norm == Frobenius() else norm.value(trajectory.W))
        / theory.unit,
        **curves,
        "trajectory_probability": trajectory.softmax_probability.mean(axis=-1),
        "trajectory_saturated": trajectory.saturated(saturation),
        "trajectory_optimal": (trajectory.selected == optimal).mean(axis=-1),
    }


def _layer_arrays(name: str, layer: PooledLayer) -> Arrays:
    """Attention, head and intercept of a model, of two classes those of its one value."""
    two = len(layer.intercept) == 1
    return {
        f"W_{name}": layer.W[0],
        f"head_{name}": layer.V[0, :, 0] if two else layer.V[0],
        f"intercept_{name}": layer.intercept[0] if two else layer.intercept,
    }


def chosen_words(run: RunData, model: RunModel) -> list[dict[str, Any]]:
    """The ``words`` of ``run.json``: for each class the words that belong to it (see
    :func:`~attsvm.pipeline.class_words.class_words`) among those that say most for it in the texts
    that the model gives to it, at least three of them held out, most frequent first, and on which
    share of the held-out texts the model is right; and the words that are chosen most often,
    whether they belong to it or not. Empty where instances are no words.
    """
    views = run.encoded.views
    if not views or run.token_kind != "text":
        return []
    tokens = model.estimator.select(run.encoded.bags)
    classes = model.estimator.predict(run.encoded.bags)
    texts = [_words_of(view) for view in views]
    # a view of a long text may end before its last words
    chosen = [
        words[t] if t < len(words) else "" for words, t in zip(texts, tokens.tolist(), strict=True)
    ]
    belonging = class_words(texts, chosen, classes)
    is_test = np.zeros(len(chosen), dtype=np.bool_)
    is_test[run.test] = True
    right = classes == run.labels
    # a text without a witness has no word that says most
    first = 1 if model.explanation.weights is None and len(run.classes) == 2 else 0
    entries = []
    for k in range(first, len(run.classes)):
        rows: dict[str, list[int]] = {}
        for i in np.flatnonzero(classes == k):
            if chosen[i]:
                rows.setdefault(chosen[i], []).append(int(i))
        words = []
        for word in belonging.get(k, []):
            held_out = [i for i in rows[word] if is_test[i]]
            if len(held_out) >= SIZES.held_out:
                share = float(right[held_out].mean())
                times = {"times": len(rows[word]), "held_out": len(held_out)}
                words.append({"word": word, **times, "right": share})
        entry = {"class": run.classes[k], "texts": int(sum(map(len, rows.values())))}
        often = sorted(rows, key=lambda word: (-len(rows[word]), word))[: SIZES.often]
        entries.append({**entry, "words": words[: SIZES.words], "often": often})
    return entries


def _words_of(view: dict[str, Any]) -> list[str]:
    """The words of a text in lower case, one for each of its tokens; empty where a view shows
    none.
    """
    text = view["text"]
    return [text[slice(*spans[0])].lower() if spans else "" for spans in view["spans"]]


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
    run: RunData, model: RunModel, theory: AttentionTheory, chosen: ChosenTokens, seed: int
) -> list[dict[str, Any]]:
    """The content of ``examples.json``: wrong, confident and typical sequences of the test part,
    then support sequences of the theory.
    """
    values = model.estimator.decision_function(run.encoded.bags.take(run.test))
    values = values[:, None] if values.ndim == 1 else values
    classes, labels = predicted(values), run.labels[run.test]
    lead = np.full(len(run.labels), np.nan)
    lead[run.test] = margin_values(values, classes)
    right, by_lead = classes == labels, np.argsort(-margin_values(values, classes), kind="stable")
    by_lead = by_lead[~run.wordless[run.test[by_lead]]]  # the model does not answer the others
    confident = _in_turn(by_lead[right[by_lead]], labels)[: SIZES.per_group]
    wrong = by_lead[~right[by_lead]][: SIZES.per_group]
    others = np.setdiff1d(by_lead[right[by_lead]], confident)
    typical = _in_turn(np.random.default_rng([seed, 2]).permutation(others), labels)
    # support tokens count within the sequences of the theory
    support = list(dict.fromkeys(theory.solution.support_tokens()[: SIZES.support, 0].tolist()))
    groups = [
        ("wrong", "test", run.test[wrong]),
        ("confident", "test", run.test[confident]),
        ("typical", "test", run.test[typical[: SIZES.per_group]]),
        ("support", "train", run.explained[support]),
    ]
    entries = []
    of_theory = dict(zip(run.explained.tolist(), theory.solution.margins.selected, strict=True))
    for group, split, rows in groups:
        for i in rows.tolist():
            token = of_theory[i] if group == "support" else chosen.tokens[i]
            bags = run.encoded.bags.take([i])
            shares = model.estimator.attention(bags)[0]
            value = model.estimator.decision_function(bags)
            entry = {
                "part": split,
                "group": group,
                "sequence": i,
                "row": run.dataset.row(i),
                "label": int(run.labels[i]),
                "predicted": int(model.estimator.predict(bags)[0]),
                "value": float(lead[i]) if split == "test" else float(np.max(np.abs(value))),
                "selected": int(token),
                "probability": shares.tolist(),
                **_unit_margin(run, theory, i, int(token), group == "support"),
                "view": _view(run.encoded, i),
            }
            entries.append(entry)
    return entries


def _in_turn(rows: IntArray, labels: IntArray) -> IntArray:
    """The rows with their classes in turn, each class in the order of ``rows``."""
    turns = np.zeros(len(rows), dtype=np.int64)
    for k in np.unique(labels[rows]):
        in_class = labels[rows] == k
        turns[in_class] = np.arange(in_class.sum())
    return rows[np.argsort(turns, kind="stable")]


def _view(encoded: Encoded, i: int) -> dict[str, Any]:
    if encoded.views is not None:
        return dict(encoded.views[i])
    length = int(encoded.bags.lengths[i])
    return {"kind": "array", "labels": [f"token {t}" for t in range(length)]}


def _unit_margin(
    run: RunData, theory: AttentionTheory, i: int, token: int, is_support: bool
) -> dict[str, Any]:
    """How far a token of a sequence is ahead of its nearest rival at max-margin weights of norm
    one, and that rival; None where the theory does not speak of the sequence.
    """
    data = run.encoded.take(np.array([i])).data([1.0])
    if data.T < 2 or not (is_support or len(run.classes) == 2):
        return {"margin": None, "rival": None}
    W = theory.solution.W
    unit_logits = logits(data, W / (float(theory.norm.value(W)) or 1.0))[0]
    margins = unit_logits[token] - unit_logits
    margins[token] = np.inf
    repeated = (data.tokens[0] == data.tokens[0, token]).all(axis=1)
    margins[repeated] = np.inf  # equal tokens cannot be told apart
    if not np.isfinite(margins).any():
        return {"margin": None, "rival": None}
    return {"margin": float(margins.min()), "rival": int(np.argmin(margins))}
