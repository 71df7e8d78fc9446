"""How well each way of reading the tokens predicts the label, on the three parts of the data."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray
from attsvm.pipeline.attention_model import AttentionModel, mean_pooling
from attsvm.pipeline.padded import Padded
from attsvm.sklearn import WitnessSVC
from attsvm.sklearn.stage import argmax_tokens

Predictor = tuple[str, str, str, FloatArray]
"""Name, title and sentence, and its values ``(n,)`` of all sequences; of a control in each draw."""


def accuracy_table(
    encoded: Padded,
    splits: dict[str, IntArray],
    seed: int,
    predictors: list[Predictor],
    pooled_values: FloatArray,
    token_values: FloatArray,
    control_draws: int = 20,
) -> list[dict[str, Any]]:
    """The ``accuracy`` list of ``run.json``: one entry per predictor, the same rows for all of
    them.

    Args:
        encoded: the data.
        splits: rows of the parts ``train``, ``validation`` and ``test``.
        seed: of random tokens.
        predictors: those of the fit.
        pooled_values: ``(n,)``, of mean pooling.
        token_values: ``(n, T)``, of each token alone.
        control_draws: of random tokens.
    """
    data = encoded.data
    generator, rows = np.random.default_rng([seed, 1]), np.arange(data.n)
    draws = [token_values[rows, _random_tokens(data, generator)] for _ in range(control_draws)]
    predictors = [
        *predictors,
        (
            "mean_pooling",
            "mean-pooling logistic regression",
            (
                "no attention: logistic regression on the mean token, its penalty chosen on the"
                " validation part"
            ),
            pooled_values,
        ),
        (
            "random_token",
            "random token",
            (
                "control: the same head applied to a random token of the sequence, mean over"
                f" {control_draws} draws"
            ),
            np.array(draws),
        ),
        (
            "extreme_token",
            "most extreme token",
            (
                "null: logistic regression on single tokens, each with the label of its sequence,"
                " applied to the token for which it is surest"
            ),
            _extreme_token(data, splits["train"], seed),
        ),
    ]
    if texts := _texts(encoded):
        sentence = (
            "no vectors and no attention: logistic regression on the weighted counts of words and"
            " pairs of words, its penalty chosen on the validation part"
        )
        values = _bag_of_words(texts, data.labels, splits)
        predictors.append(("tfidf", "TF-IDF logistic regression", sentence, values))
    majority = 1.0 if (data.labels[splits["train"]] > 0).mean() >= 0.5 else -1.0
    sentence = "always the more frequent label of the training part"
    predictors.append(("majority", "majority label", sentence, np.full(data.n, majority)))
    return [_entry(predictor, data.labels, splits) for predictor in predictors]


def witness_predictors(
    model: WitnessSVC, data: AttentionData, splits: dict[str, IntArray]
) -> tuple[list[Predictor], FloatArray, FloatArray]:
    """The predictors of the standard assumption, the values of mean pooling ``(n,)``, and the value
    of each token alone ``(n, T)``.
    """
    token_values = np.full(data.mask.shape, -np.inf)
    token_values[data.mask] = np.concatenate(model.decision_function_instances(data))
    pooled = mean_pooling(data.take(splits["train"]), data.take(splits["validation"]))
    predictors: list[Predictor] = [
        (
            "soft",
            "standard assumption",
            (
                "positive where a witness is likely; fitted to training and validation part, its"
                " penalty chosen on sequences left out in turn"
            ),
            model.decision_function(data),
        ),
        (
            "hard",
            "its witness alone",
            "the same model applied to the one token that it selects",
            token_values[np.arange(data.n), model.select(data)],
        ),
    ]
    return predictors, pooled.values(data), token_values


def attention_predictors(
    model: AttentionModel, data: AttentionData
) -> tuple[list[Predictor], FloatArray, FloatArray]:
    """The predictors of the collective assumption, the values of mean pooling ``(n,)``, and the
    value of each token alone ``(n, T)``, by the head of the selection.
    """
    soft, hard = model.weights, model.selection_weights
    predictors: list[Predictor] = [
        (
            "soft",
            "soft attention",
            (
                "softmax attention with the weights that joint training had at its smallest"
                " validation loss"
            ),
            soft.values(data),
        ),
        (
            "soft_final",
            "soft attention, end of training",
            "softmax attention with the weights at the end of the selection stage",
            hard.values(data),
        ),
        (
            "hard",
            "hard selection",
            "the head applied to the one token with the largest trained attention logit",
            hard.token_values(data, argmax_tokens(data, hard.W)),
        ),
        (
            "margin",
            "max-margin selection",
            "the head applied to the one token that the max-margin weights select",
            hard.token_values(data, argmax_tokens(data, model.solution.W)),
        ),
    ]
    return predictors, model.baseline.values(data), data.tokens @ hard.head + hard.intercept


def _texts(encoded: Padded) -> list[str]:
    """The texts behind the sequences, as far as a view shows them; empty for other data."""
    if not encoded.views or encoded.views[0].get("kind") != "text":
        return []
    return [str(view["text"]) for view in encoded.views]


def _bag_of_words(texts: list[str], labels: FloatArray, splits: dict[str, IntArray]) -> FloatArray:
    """Values ``(n,)`` of the baseline that every text classifier has to beat."""
    train, validation = splits["train"], splits["validation"]
    vectorizer = TfidfVectorizer(
        sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"\S+", dtype=np.float64
    )
    vectorizer.fit([texts[i] for i in train])
    counts = vectorizer.transform(texts)
    heads = [
        LogisticRegression(C=C, max_iter=300).fit(counts[train], labels[train])
        for C in (1.0, 10.0, 100.0)
    ]
    scores = [head.score(counts[validation], labels[validation]) for head in heads]
    return heads[int(np.argmax(scores))].decision_function(counts)


def _extreme_token(
    data: AttentionData, train: IntArray, seed: int, most_tokens: int = 100_000
) -> FloatArray:
    """Values ``(n,)`` of the token with the largest one, of a regression on single tokens in which
    every sequence has the same weight. Of more than ``most_tokens`` a random sample is read.
    """
    i, t = np.nonzero(data.mask[train])
    if len(i) > most_tokens:
        sample = np.random.default_rng([seed, 3]).choice(len(i), most_tokens, replace=False)
        i, t = i[sample], t[sample]
    rows = data.tokens[train[i], t]
    unit = float(np.sqrt(np.mean(np.sum(rows**2, axis=1)))) or 1.0
    head = LogisticRegression(max_iter=200)
    labels, weights = data.labels[train[i]], 1.0 / data.lengths[train[i]]
    if len(np.unique(labels)) < 2:
        return np.full(data.n, float(labels[0]))
    head.fit(rows / unit, labels, sample_weight=weights)
    values = data.tokens @ (head.coef_[0] / unit) + head.intercept_[0]
    surest = np.argmax(np.where(data.mask, np.abs(values), -1.0), axis=1)
    return np.asarray(values[np.arange(data.n), surest])


def _random_tokens(data: AttentionData, generator: np.random.Generator) -> IntArray:
    return np.argmax(np.where(data.mask, generator.random(data.mask.shape), -1.0), axis=1)


def _entry(predictor: Predictor, labels: FloatArray, splits: dict[str, IntArray]) -> dict[str, Any]:
    """Accuracies of a predictor by split; ``std`` is over draws of a control."""
    name, title, sentence, values = predictor
    right = (np.atleast_2d(values) > 0) == (labels > 0)
    std = float(right[:, splits["test"]].mean(axis=1).std()) if values.ndim == 2 else None
    shares = {split: float(right[:, rows].mean()) for split, rows in splits.items()}
    return {"name": name, "title": title, "what": sentence, **shares, "std": std}
