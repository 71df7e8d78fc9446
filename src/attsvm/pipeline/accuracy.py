"""How well each way of reading the tokens predicts the label, on the three parts of the data."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.datasets import Encoded
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray
from attsvm.pipeline.trained import Trained
from attsvm.sklearn import WitnessSVC, layers
from attsvm.sklearn.pooling import mean_pooling

Predictors = list[tuple[str, str, str, FloatArray]]
"""Name, title and sentence of each, and its values of all sequences, of a control in each draw."""

CONTROL_DRAWS = 20
_TOKENS_READ = 100_000
_TEXT_PENALTIES = (1.0, 10.0, 100.0)


def accuracy_table(
    model: Trained | WitnessSVC, encoded: Encoded, parts: dict[str, IntArray], seed: int
) -> list[dict[str, Any]]:
    """The ``accuracy`` list of ``run.json``: one entry per predictor, the same rows for all of
    them.
    """
    data = encoded.data
    if isinstance(model, WitnessSVC):
        values, pooled, alone = _standard(model, data, parts)
    else:
        values, pooled, alone = _collective(model, data)
    generator, rows = np.random.default_rng([seed, 1]), np.arange(data.n)
    draws = [alone[rows, _random_tokens(data, generator)] for _ in range(CONTROL_DRAWS)]
    values += [
        (
            "mean_pooling",
            "mean-pooling logistic regression",
            (
                "no attention: logistic regression on the mean token, its penalty chosen on the"
                " validation part"
            ),
            pooled,
        ),
        (
            "random_token",
            "random token",
            (
                "control: the same head applied to a random token of the sequence, mean over"
                f" {CONTROL_DRAWS} draws"
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
            _extreme_token(data, parts["train"], seed),
        ),
    ]
    if texts := _texts(encoded):
        what = (
            "no vectors and no attention: logistic regression on the weighted counts of words and"
            " pairs of words, its penalty chosen on the validation part"
        )
        found = _bag_of_words(texts, data.labels, parts)
        values.append(("tfidf", "TF-IDF logistic regression", what, found))
    majority = 1.0 if (data.labels[parts["train"]] > 0).mean() >= 0.5 else -1.0
    what = "always the more frequent label of the training part"
    values.append(("majority", "majority label", what, np.full(data.n, majority)))
    return [_entry(*each, data.labels, parts) for each in values]


def _standard(
    model: WitnessSVC, data: AttentionData, parts: dict[str, IntArray]
) -> tuple[Predictors, FloatArray, FloatArray]:
    """The predictors of the standard assumption, the values of mean pooling ``(n,)``, and the value
    of each token alone ``(n, T)``.
    """
    alone = np.full(data.mask.shape, -np.inf)
    alone[data.mask] = np.concatenate(model.decision_function_instances(data))
    pooled = mean_pooling(data.take(parts["train"]), data.take(parts["validation"]))
    values: Predictors = [
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
            alone[np.arange(data.n), model.select(data)],
        ),
    ]
    return values, pooled.decision(data), alone


def _collective(model: Trained, data: AttentionData) -> tuple[Predictors, FloatArray, FloatArray]:
    """The same of the collective assumption, where the head of the selection says what a token
    alone is worth.
    """
    soft, hard = model.weights_, model.selection_weights_
    margin_tokens = layers.selected_tokens(data, model.solution_.W)
    hard_tokens = layers.selected_tokens(data, hard.W)
    values: Predictors = [
        (
            "soft",
            "soft attention",
            (
                "softmax attention with the weights that joint training had at its smallest"
                " validation loss"
            ),
            layers.soft_values(data, soft.W, soft.head, soft.intercept),
        ),
        (
            "soft_final",
            "soft attention, end of training",
            "softmax attention with the weights at the end of the selection stage",
            layers.soft_values(data, hard.W, hard.head, hard.intercept),
        ),
        (
            "hard",
            "hard selection",
            "the head applied to the one token with the largest trained attention logit",
            layers.token_values(data, hard_tokens, hard.head, hard.intercept),
        ),
        (
            "margin",
            "max-margin selection",
            "the head applied to the one token that the max-margin weights select",
            layers.token_values(data, margin_tokens, hard.head, hard.intercept),
        ),
    ]
    return values, model.baseline_.decision(data), data.tokens @ hard.head + hard.intercept


def _texts(encoded: Encoded) -> list[str]:
    """The texts behind the sequences, as far as a view shows them; none where they are none."""
    if not encoded.views or encoded.views[0].get("kind") != "text":
        return []
    return [str(view["text"]) for view in encoded.views]


def _bag_of_words(texts: list[str], labels: FloatArray, parts: dict[str, IntArray]) -> FloatArray:
    """``(n,)`` values of the baseline that every text classifier has to beat."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    train, validation = parts["train"], parts["validation"]
    counts = TfidfVectorizer(
        sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"\S+", dtype=np.float64
    )
    counts.fit([texts[i] for i in train])
    found = counts.transform(texts)
    fitted = [
        LogisticRegression(C=C, max_iter=300).fit(found[train], labels[train])
        for C in _TEXT_PENALTIES
    ]
    scores = [head.score(found[validation], labels[validation]) for head in fitted]
    return fitted[int(np.argmax(scores))].decision_function(found)


def _extreme_token(data: AttentionData, train: IntArray, seed: int) -> FloatArray:
    """``(n,)`` values of the token with the largest one, of a regression on single tokens in which
    every sequence has the same weight. Of many tokens a random part is read.
    """
    from sklearn.linear_model import LogisticRegression

    i, t = np.nonzero(data.mask[train])
    if len(i) > _TOKENS_READ:
        some = np.random.default_rng([seed, 3]).choice(len(i), _TOKENS_READ, replace=False)
        i, t = i[some], t[some]
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


def _entry(
    name: str,
    title: str,
    what: str,
    values: FloatArray,
    labels: FloatArray,
    parts: dict[str, IntArray],
) -> dict[str, Any]:
    """Accuracies of ``(n,)`` values, or of ``(draws, n)``: ``std`` is over draws, on the test
    part.
    """
    right = (np.atleast_2d(values) > 0) == (labels > 0)
    spread = float(right[:, parts["test"]].mean(axis=1).std()) if values.ndim == 2 else None
    shares = {part: float(right[:, rows].mean()) for part, rows in parts.items()}
    return {"name": name, "title": title, "what": what, **shares, "std": spread}
