"""Random soft labels: contexts with embeddings and counts of what follows them, and what the
experiment on them measures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from attsvm.datasets.attention_data import FloatArray
from attsvm.theory import SoftLabelSVM
from attsvm.theory.sentences import NextTokenData

Contexts = tuple[FloatArray, FloatArray]
"""Embeddings ``(m, d)`` and counts ``(m, V)``."""


def random_contexts(m: int, V: int, d: int, most: int, seed: int) -> Contexts:
    """Embeddings on the unit sphere; one to ``most`` random tokens follow each context, 1 to 9
    times.
    """
    rng = np.random.default_rng([7, seed])
    h = rng.standard_normal((m, d))
    n = np.zeros((m, V))
    for row, size in zip(n, rng.integers(1, most + 1, m), strict=True):
        row[rng.choice(V, size, replace=False)] = rng.integers(1, 10, size)
    return h / np.linalg.norm(h, axis=1, keepdims=True), n


def two_topics(m: int, V: int, seed: int) -> Contexts:
    """Contexts of two topics in three dimensions: the first coordinate tells the topic, which has
    three tokens of its own; each follows 1 to 9 times. Separable, and for m > 6 not compatible.
    """
    rng = np.random.default_rng([8, seed])
    topic = np.arange(m) % 2
    h = np.column_stack([1.0 - 2.0 * topic, rng.standard_normal((m, 2)) / np.sqrt(2.0)])
    n = np.zeros((m, V))
    tokens = rng.permutation(V)[:6].reshape(2, 3)
    n[np.arange(m)[:, None], tokens[topic]] = rng.integers(1, 10, (m, 3))
    return h / np.linalg.norm(h, axis=1, keepdims=True), n


def most_frequent(contexts: Contexts) -> Contexts:
    """Hard labels in place of soft ones: the most frequent token of every context."""
    h, n = contexts
    return h, np.eye(n.shape[1])[n.argmax(axis=1)]


def reversed_odds(contexts: Contexts) -> Contexts:
    """Contexts with reversed odds: of each support the rare tokens are as frequent as frequent ones
    were.
    """
    h, n = contexts
    in_support = n > 0
    inverse = np.divide(1.0, n, out=np.zeros(n.shape), where=in_support)
    return h, inverse / inverse.sum(axis=1, keepdims=True)


def context_sentences(svm: SoftLabelSVM) -> NextTokenData:
    """Sentences of one token, a context, with the same loss: a sentence for each token that
    follows, weighted by how often. There are no more contexts than tokens.
    """
    h, p, weights = svm.labels
    E = np.zeros((p.shape[1], h.shape[1]))
    E[: len(h)] = h
    j, z = np.nonzero(p)
    return NextTokenData.from_sentences([[x] for x in j], z, weights[j] * p[j, z], E)


def longest_step(svm: SoftLabelSVM) -> float:
    """One over the largest curvature that the loss can have."""
    h, _, weights = svm.labels
    return 2.0 / float(np.linalg.norm((h * weights[:, None]).T @ h, 2))


def off_support(svm: SoftLabelSVM, W: FloatArray) -> FloatArray:
    """The share of all probability ``(rows,)`` that weights ``(V, d)`` give to the token of each
    inequality.
    """
    h, _, weights = svm.labels
    p = softmax(h @ W.T, axis=1) * weights[:, None]
    rows = ~svm.solution.margins.equalities
    return p[svm.solution.margins.sequence[rows], svm.solution.margins.token[rows]]


def inequality_multipliers(svm: SoftLabelSVM) -> FloatArray:
    """The multipliers of the inequalities ``(rows,)``."""
    duals: FloatArray = svm.solution.dual[~svm.solution.margins.equalities]
    return duals


def label_properties(svms: Sequence[SoftLabelSVM]) -> dict[str, NDArray[np.bool_]]:
    """Properties of the labels of each trial, with proof."""
    return {
        "compatible": np.array([svm.compatible for svm in svms]),
        "separable": np.array([svm.separable for svm in svms]),
        "infeasible": np.array([svm.solution.status == "infeasible" for svm in svms]),
    }
