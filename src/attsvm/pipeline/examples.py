"""The few dozen sequences that the report shows with their tokens in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.data import AttentionData, IntArray
from attsvm.datasets import Encoded
from attsvm.fitting import layers
from attsvm.sklearn import AttentionSVC

PER_GROUP = 8
SUPPORT_CONSTRAINTS = 12  # the report lists so many, and shows their words or patches


def choose_examples(
    model: AttentionSVC, encoded: Encoded, parts: dict[str, IntArray], seed: int
) -> list[dict[str, Any]]:
    """The content of ``examples.json``: support sequences of the training part, then confident,
    wrong and typical ones of the test part.
    """
    data, hard, test = encoded.data, model.selection_weights_, parts["test"]
    tokens = layers.selected_tokens(data, hard.W)
    values = layers.token_values(data, tokens, hard.head, hard.intercept)
    right = (values > 0) == (data.labels > 0)
    holding = dict.fromkeys(
        model.solution_.support_tokens()[:SUPPORT_CONSTRAINTS, 0].tolist()
    )  # numbered within the training part
    support = parts["train"][list(holding)]
    by_confidence = test[np.argsort(-np.abs(values[test]), kind="stable")]
    confident = _both_labels(by_confidence[right[by_confidence]], data)
    wrong = by_confidence[~right[by_confidence]][:PER_GROUP]
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
    shown = _Shown(model, data, chosen, tokens, values)
    labels = [(group, part) for group, part, rows in groups for _ in rows]
    return [
        {"part": part, "group": group, **shown.entry(k), "view": _view(encoded, int(i))}
        for k, ((group, part), i) in enumerate(zip(labels, chosen, strict=True))
    ]


def _both_labels(rows: IntArray, data: AttentionData) -> IntArray:
    """The first rows of both labels in turn, half of each where there are enough."""
    positive, negative = rows[data.labels[rows] > 0], rows[data.labels[rows] < 0]
    half = PER_GROUP // 2
    return np.concatenate(
        [
            negative[: max(half, PER_GROUP - len(positive))],
            positive[: max(half, PER_GROUP - len(negative))],
        ]
    )[:PER_GROUP]


def _view(encoded: Encoded, i: int) -> dict[str, Any]:
    if encoded.views is not None:
        return dict(encoded.views[i])
    return {
        "kind": "array",
        "labels": [f"token {t}" for t in range(int(np.flatnonzero(encoded.data.mask[i])[-1]) + 1)],
    }


class _Shown:
    """Everything about the chosen sequences, computed at once."""

    def __init__(
        self,
        model: AttentionSVC,
        data: AttentionData,
        chosen: IntArray,
        tokens: IntArray,
        values: Any,
    ) -> None:
        self.chosen, self.data = chosen, data
        self.tokens, self.values = tokens[chosen], values[chosen]
        part = AttentionData(
            data.tokens[chosen], data.labels[chosen], data.queries[chosen], data.mask[chosen]
        )
        self.probability = layers.probabilities(part, model.weights_.W)
        self.scores = part.labels[:, None] * (part.tokens @ model.selection_weights_.head)
        W = model.solution_.W
        size = float(model.norm_.value(W)) or 1.0
        logits = layers.logits(part, W / size)
        rows = np.arange(part.n)
        margins = logits[rows, self.tokens][:, None] - np.where(part.mask, logits, -np.inf)
        margins[rows, self.tokens] = np.inf
        self.rival, self.margin = np.argmin(margins, axis=1), margins.min(axis=1)

    def entry(self, k: int) -> dict[str, Any]:
        i = int(self.chosen[k])
        visible = self.data.mask[i]
        lone = visible.sum() < 2
        return {
            "sequence": i,
            "label": int(self.data.labels[i]),
            "predicted": 1 if self.values[k] > 0 else -1,
            "value": float(self.values[k]),
            "selected": int(self.tokens[k]),
            "probability": self.probability[k][: self._length(visible)].tolist(),
            "score": self.scores[k][: self._length(visible)].tolist(),
            "margin": None if lone else float(self.margin[k]),
            "rival": None if lone else int(self.rival[k]),
        }

    @staticmethod
    def _length(visible: Any) -> int:
        return int(np.flatnonzero(visible)[-1]) + 1
