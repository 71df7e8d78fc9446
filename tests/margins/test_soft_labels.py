"""Soft labels: rows by loops from the definition, what hard labels make of them, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from explicit import same_rows
from hypothesis import given
from hypothesis import strategies as st

from attsvm.errors import InputError
from attsvm.margins import log_odds_margins, output_margins, soft_label_margins
from attsvm.margins.soft_labels import soft_labels


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    h = rng.standard_normal((4, 3))
    n = rng.integers(1, 6, (4, 5)) * (rng.random((4, 5)) < 0.5)
    n[np.arange(4), rng.integers(0, 5, 4)] += 1
    return h, n


@given(st.integers(0, 10_000))
def test_rows_by_loops(seed: int) -> None:
    h, n = drawn(seed)
    A, b, equal, odds = [], [], [], []
    for j in range(4):
        anchor = int(np.argmax(n[j]))
        for v in range(5):
            if v == anchor:
                continue
            A.append(np.outer(np.eye(5)[anchor] - np.eye(5)[v], h[j]))
            b.append(0.0 if n[j, v] else 1.0)
            equal.append(bool(n[j, v]))
            if n[j, v]:
                odds.append(np.log(n[j, anchor] / n[j].sum()) - np.log(n[j, v] / n[j].sum()))
    margins = soft_label_margins(h, n)
    same_rows(margins, A, b, equal)
    assert margins.kind == ("support" if any(equal) else "class")
    inside = [a for a, e in zip(A, equal, strict=True) if e]
    same_rows(log_odds_margins(h, n), inside, odds, [True] * len(odds))


@given(st.integers(0, 10_000))
def test_only_supports_matter_and_counts_are_as_good_as_shares(seed: int) -> None:
    h, n = drawn(seed)
    shares = n / n.sum(axis=1, keepdims=True)
    tops = np.where(n == n.max(axis=1, keepdims=True), 9.0, n > 0)  # the same anchors
    for other in (shares, tops):
        a, b = soft_label_margins(h, n), soft_label_margins(h, other)
        for name in ("differences", "queries", "offsets", "rhs", "token", "selected"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    np.testing.assert_allclose(log_odds_margins(h, n).rhs, log_odds_margins(h, shares).rhs)


@given(st.integers(0, 10_000))
def test_hard_labels_are_those_of_an_output_matrix(seed: int) -> None:
    h, n = drawn(seed)
    labels = n.argmax(axis=1)
    soft, hard = soft_label_margins(h, np.eye(5)[labels]), output_margins(h, labels, 5)
    assert soft.equality is None
    assert soft.kind == hard.kind
    for name in ("differences", "queries", "offsets", "rhs", "token", "selected"):
        np.testing.assert_array_equal(getattr(soft, name), getattr(hard, name))
    assert log_odds_margins(h, np.eye(5)[labels]).m == 0


def test_weights_and_entropy_by_hand() -> None:
    labels = soft_labels(np.eye(2), [[1, 1, 0], [0, 0, 6]])
    np.testing.assert_allclose(labels.weights, [0.25, 0.75])
    np.testing.assert_allclose(labels.probabilities, [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    assert labels.entropy == pytest.approx(0.25 * np.log(2.0), rel=1e-15)


@pytest.mark.parametrize(
    ("embeddings", "counts", "words"),
    [
        (np.eye(2), [[1, 0], [0, -1]], r"counts\[1, 1\] is -1; counts are not negative"),
        (np.eye(2), [[1, 0], [0, 0]], r"counts\[1\] is all zero, so nothing follows context 1"),
        (np.eye(2), [[1, 0]], r"counts has shape \(1, 2\); it must be \(2, V\)"),
        (np.ones(2), [[1, 0]], r"embeddings has shape \(2,\)"),
        (np.eye(2), [[1, np.nan], [1, 1]], "every value must be finite"),
        ([[np.inf, 0]], [[1, 0]], "every value must be finite"),
    ],
)
@pytest.mark.parametrize("make", [soft_label_margins, log_odds_margins])
def test_refusals(make, embeddings, counts, words) -> None:
    with pytest.raises(InputError, match=words):
        make(embeddings, counts)
