"""How well each way of reading the tokens predicts the label, on the training and the test part."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from attsvm.datasets import Encoded
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.rows import pieces
from attsvm.pipeline.model import RunData, RunModel
from attsvm.pipeline.settings import FitSettings
from attsvm.sklearn import segments
from attsvm.sklearn.evidence import predicted
from attsvm.sklearn.layers import Layer, PooledLayer
from attsvm.sklearn.moments import bag_means
from attsvm.sklearn.preparation import split_by_class

NULLS = ("mean_pooling", "random_token", "extreme_token", "majority")
"""Predictors that a fit has to beat to mean anything."""


@dataclass(frozen=True)
class BaselineOptions:
    """How the methods beside the model are fitted.

    Attributes:
        validation: share of the training part on which a penalty is chosen; then all is fitted to.
        draws: of random tokens.
        tokens: most single tokens that the most extreme one is learned from.
        pooled: inverse penalties of mean pooling, relative to the mean squared norm of a mean.
        words: inverse penalties of weighted counts of words.
    """

    validation: float = 0.15
    draws: int = 20
    tokens: int = 100_000
    pooled: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
    words: tuple[float, ...] = (1.0, 10.0, 100.0)


@dataclass(frozen=True, eq=False)
class ChosenTokens:
    """One token of each sequence, and the class that it speaks for alone.

    Attributes:
        tokens: ``(n,)`` positions.
        classes: ``(n,)``.
    """

    tokens: IntArray
    classes: IntArray


@dataclass(frozen=True, eq=False)
class _Method:
    """A way to predict; ``classes`` is ``(n,)``, of a control ``(draws, n)``."""

    name: str
    title: str
    what: str
    classes: IntArray


def accuracy_table(
    run: RunData,
    model: RunModel,
    settings: FitSettings,
    options: BaselineOptions | None = None,
) -> tuple[list[dict[str, Any]], ChosenTokens]:
    """The ``accuracy`` list of ``run.json``, one entry per method and the same rows for all of
    them; and the chosen tokens, by which the entry ``hard`` predicts.
    """
    options = options or BaselineOptions()
    methods, chosen, alone = _model_methods(run, model)
    offsets, lengths = run.encoded.bags.offsets, run.encoded.bags.lengths
    generator = np.random.default_rng([settings.seed, 1])
    draws = [
        alone[offsets[:-1] + np.floor(generator.random(len(lengths)) * lengths).astype(np.int64)]
        for _ in range(options.draws)
    ]
    methods += [
        _Method(
            "mean_pooling",
            "mean-pooling logistic regression",
            (
                "no attention: logistic regression on the mean token, its penalty chosen on a part"
                " of the training sequences"
            ),
            _regression(bag_means(run.encoded.bags), run, settings, options, options.pooled),
        ),
        _Method(
            "random_token",
            "random token",
            (
                "control: a random token of the sequence, read like the chosen one, mean over"
                f" {options.draws} draws"
            ),
            np.array(draws),
        ),
        _Method(
            "extreme_token",
            "most extreme token",
            (
                "null: logistic regression on single tokens, each with the label of its sequence,"
                " applied to the token for which it is surest"
            ),
            _extreme_token(run, settings, options),
        ),
    ]
    methods = [replace(method, classes=run.answered(method.classes)) for method in methods]
    if texts := _texts(run.encoded):
        methods.append(
            _Method(
                "tfidf",
                "TF-IDF logistic regression",
                (
                    "no vectors and no attention: logistic regression on the weighted counts of"
                    " words and pairs of words, its penalty chosen on a part of the training texts"
                ),
                _bag_of_words(texts, run, settings, options),
            )
        )
    frequent = int(np.argmax(np.bincount(run.labels[run.train])))
    methods.append(
        _Method(
            "majority",
            "majority label",
            f"always {run.classes[frequent]}, the most frequent label of the training part",
            np.full(len(run.labels), frequent),
        )
    )
    return [_entry(method, run) for method in methods], chosen


def _model_methods(run: RunData, model: RunModel) -> tuple[list[_Method], ChosenTokens, IntArray]:
    """What the model itself predicts, its chosen tokens, and the class ``(N,)`` of each token
    alone.
    """
    estimator, layer = model.estimator, model.chooser.predictor_.layer
    offsets = run.encoded.bags.offsets[:-1]
    everything = estimator.predict(run.encoded.bags)
    alone = classes_alone(run.encoded, layer)
    if model.explanation.weights is None:
        tokens = estimator.select(run.encoded.bags)
        chosen = ChosenTokens(tokens, alone[offsets + tokens])
        what = "a witness decides; the penalty is chosen on sequences left out in turn"
        return (
            [
                _Method("soft", "witness model", what, everything),
                _Method(
                    "hard",
                    "chosen token alone",
                    "the same model applied to the one token that it selects",
                    chosen.classes,
                ),
            ],
            chosen,
            alone,
        )
    tokens = argmax_instances(run.encoded, cast(PooledLayer, layer).W[0])
    chosen = ChosenTokens(tokens, alone[offsets + tokens])
    methods = [
        _Method(
            "soft",
            "soft attention",
            "softmax attention, its penalties chosen on sequences left out in turn",
            everything,
        ),
        _Method(
            "hard",
            "chosen token alone",
            "attention and head fitted to decide by the one token with the most attention",
            chosen.classes,
        ),
    ]
    if len(run.classes) == 2:  # the theory tells one class from the others
        margin = argmax_instances(run.encoded, model.explanation.solution.W)
        what = "the same head applied to the one token that the max-margin weights select"
        classes = alone[offsets + margin]
        methods.append(_Method("margin", "max-margin selection", what, classes))
    return methods, chosen, alone


def classes_alone(encoded: Encoded, layer: Layer) -> IntArray:
    """``(N,)``: the class of every token as a sequence of its own."""
    blocks = (predicted(layer.alone(bags.rows)) for _, bags in encoded.bags.blocks())
    return np.concatenate(list(blocks)).astype(np.int64)


def argmax_instances(encoded: Encoded, W: FloatArray) -> IntArray:
    """``(n,)`` positions of the tokens with the largest logit under ``(d_x, d_z)`` weights."""
    positions = []
    for _, bags in encoded.bags.blocks():
        logits = segments.products(bags.rows, encoded.queries(bags) @ W.T, bags.offsets)
        positions.append(segments.first_largest(logits, bags.offsets))
    return np.concatenate(positions)


def _texts(encoded: Encoded) -> list[str]:
    """The texts behind the sequences, as far as a view shows them; empty for other data."""
    if not encoded.views or encoded.views[0].get("kind") != "text":
        return []
    return [str(view["text"]) for view in encoded.views]


def _regression(
    features: Any,
    run: RunData,
    settings: FitSettings,
    options: BaselineOptions,
    relative: Sequence[float],
) -> IntArray:
    """Classes ``(n,)`` by logistic regression on ``(n, d)`` features of the training part, the
    inverse penalty, relative to the mean squared norm of a row, chosen on a part of it.
    """
    train, labels = run.train, run.labels
    squares = features[train].power(2) if hasattr(features, "power") else features[train] ** 2
    unit = float(squares.sum()) / len(train) or 1.0
    rest, check = split_by_class(labels[train], options.validation, settings.seed, run.classes)

    def fit(rows: IntArray, strength: float) -> LogisticRegression:
        head = LogisticRegression(
            C=strength / unit, max_iter=1000, class_weight=settings.class_weight
        )
        with warnings.catch_warnings():
            # a weak penalty has its optimum far away; the loss judges where it stopped
            warnings.simplefilter("ignore", ConvergenceWarning)
            return head.fit(features[rows], labels[rows])

    losses = [
        log_loss(
            labels[train[check]],
            fit(train[rest], strength).predict_proba(features[train[check]]),
            labels=np.arange(len(run.classes)),
        )
        for strength in relative
    ]
    best = relative[int(np.argmin(losses))]
    return np.asarray(fit(train, best).predict(features), dtype=np.int64)


def _bag_of_words(
    texts: list[str], run: RunData, settings: FitSettings, options: BaselineOptions
) -> IntArray:
    """Classes ``(n,)`` of the baseline that every text classifier has to beat."""
    vectorizer = TfidfVectorizer(
        sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"\S+", dtype=np.float64
    )
    vectorizer.fit([texts[i] for i in run.train])
    return _regression(vectorizer.transform(texts), run, settings, options, options.words)


def _extreme_token(run: RunData, settings: FitSettings, options: BaselineOptions) -> IntArray:
    """Classes ``(n,)`` by the token that a regression is surest of, in which every sequence has the
    same weight; of many tokens a random sample of sequences is read.
    """
    bags, classes = run.encoded.bags, run.labels
    order = np.random.default_rng([settings.seed, 3]).permutation(run.train)
    many = int(np.searchsorted(np.cumsum(bags.lengths[order]), options.tokens)) + 1
    sample = bags.take(np.sort(order[:many]))
    labels = classes[np.sort(order[:many])]
    if len(np.unique(labels)) < 2:
        return np.full(len(classes), int(labels[0]))
    rows = np.asarray(sample.rows, np.float64)
    unit = float(np.sqrt(np.mean(np.sum(rows**2, axis=1)))) or 1.0
    head = LogisticRegression(max_iter=200, class_weight=settings.class_weight)
    weights = np.repeat(1.0 / sample.lengths, sample.lengths)
    head.fit(rows / unit, np.repeat(labels, sample.lengths), sample_weight=weights)
    surest = []
    for _, block in bags.blocks():
        read = [head.predict_proba(rows / unit) for _, rows in pieces(block.rows)]
        shares = np.concatenate(read)
        first = segments.first_largest(shares.max(axis=1), block.offsets)
        surest.append(head.classes_[np.argmax(shares[block.offsets[:-1] + first], axis=1)])
    return np.concatenate(surest)


def _entry(method: _Method, run: RunData) -> dict[str, Any]:
    """Accuracies of a method by part, its recall of each class in the test part, and their mean;
    ``std`` is over draws of a control.
    """
    right = np.atleast_2d(method.classes) == run.labels
    test = right[:, run.test]
    of_class = [run.labels[run.test] == k for k in range(len(run.classes))]
    recall = [float(test[:, rows].mean()) if rows.any() else None for rows in of_class]
    known = [share for share in recall if share is not None]
    return {
        "name": method.name,
        "title": method.title,
        "what": method.what,
        "train": float(right[:, run.train].mean()),
        "test": float(test.mean()),
        "std": float(test.mean(axis=1).std()) if method.classes.ndim == 2 else None,
        "recall": recall,
        "balanced": float(np.mean(known)),
    }
