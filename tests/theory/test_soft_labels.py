"""Both parts of an output matrix on soft labels: closed forms, certificates, another solver, and
the loss itself.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax

from attsvm.base.errors import InputError
from attsvm.theory import SoftLabelSVM, soft_label_svm, soft_label_svm_batch


def drawn(m: int, V: int, d: int, seed: int, most: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    n = np.zeros((m, V))
    for row in n:
        support = rng.choice(V, rng.integers(1, most + 1), replace=False)
        row[support] = rng.integers(1, 8, len(support))
    return rng.standard_normal((m, d)), n


def loss(found: SoftLabelSVM, W: np.ndarray, inside: bool = False) -> float:
    """Cross-entropy from its definition; ``inside`` with the softmax of supports only."""
    h, p, weights = found.labels
    logits = h @ W.T
    rows = log_softmax(np.where((p > 0) | (not inside), logits, -np.inf), axis=1)
    return -float(weights @ (p * np.where(p > 0, rows, 0.0)).sum(axis=1))


def test_orthonormal_embeddings_in_closed_form() -> None:
    p = np.array([[0.5, 0.3, 0.2, 0.0, 0.0], [0.0, 0.0, 0.6, 0.4, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
    found = soft_label_svm(np.eye(3), p)
    inside = p > 0
    np.testing.assert_allclose(
        found.solution.W.T, inside - inside.sum(axis=1, keepdims=True) / 5, atol=1e-12
    )
    logs = np.log(p, out=np.zeros(p.shape), where=inside)
    centred = np.where(inside, logs - logs.sum(1, keepdims=True) / inside.sum(1, keepdims=True), 0)
    np.testing.assert_allclose(found.finite.T, centred, atol=1e-12)
    assert len(found.subspace) == 3  # two differences of the first context, one of the second


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_independent_embeddings_reach_the_entropy_along_both_parts(seed: int) -> None:
    found = soft_label_svm(*drawn(5, 6, 7, seed))
    W, finite = found.solution.W, found.finite
    assert found.compatible
    assert found.separable
    assert found.solution.gap <= 1e-9
    assert np.abs(found.split(W).inside).max() <= 1e-9 * found.solution.norm
    np.testing.assert_allclose(found.split(finite).outside, 0.0, atol=1e-10)
    np.testing.assert_allclose(finite, found.odds.W, atol=1e-9)
    assert found.gradient <= 1e-12
    assert found.floor == pytest.approx(found.entropy, abs=1e-13)
    assert loss(found, finite + 60.0 * W) == pytest.approx(found.entropy, abs=1e-12)


@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_several_are_solved_as_one_by_one(seed: int) -> None:
    (h, n), (g, k) = drawn(4, 5, 3, seed), drawn(2, 4, 3, seed)
    for together, alone in zip(
        soft_label_svm_batch([h, g, h], [n, k, 3.0 * n]),
        [soft_label_svm(h, n), soft_label_svm(g, k), soft_label_svm(h, n)],
        strict=True,
    ):
        assert together.solution.status == alone.solution.status
        assert together.compatible == alone.compatible
        assert together.floor == pytest.approx(alone.floor, abs=1e-11)
        np.testing.assert_allclose(together.finite, alone.finite, atol=1e-5)


def two_topics(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Four contexts each of two topics with tokens of their own, in two dimensions."""
    rng = np.random.default_rng(seed)
    topic = np.repeat([0, 1], 4)
    n = np.zeros((8, 6))
    n[np.arange(8)[:, None], 3 * topic[:, None] + np.arange(3)] = rng.integers(1, 9, (8, 3))
    return np.column_stack([1.0 - 2.0 * topic, rng.standard_normal(8)]), n


@pytest.mark.parametrize("seed", range(4))
def test_odds_that_cannot_be_met_are_refuted_and_the_finite_part_minimises(seed: int) -> None:
    found = soft_label_svm(*two_topics(seed))
    assert found.separable
    assert not found.compatible
    rows, y = found.odds.margins, found.odds.dual
    written = np.einsum("cv,cd->cvd", rows.differences, rows.queries[rows.sequence])
    assert np.abs(np.tensordot(y, written, axes=1)).max() <= 1e-12 * (rows.rhs @ y)
    assert found.floor > found.entropy + 1e-3
    assert found.floor == pytest.approx(loss(found, found.finite, inside=True), rel=1e-13)
    best = minimize(
        lambda c: loss(found, np.tensordot(c, found.subspace, axes=1), inside=True),
        np.zeros(len(found.subspace)),
        method="BFGS",
        options={"gtol": 1e-9},
    )
    assert found.floor == pytest.approx(best.fun, abs=1e-12)
    # a root of the value's rounding
    np.testing.assert_allclose(
        np.tensordot(best.x, found.subspace, axes=1), found.finite, atol=1e-5
    )
    assert loss(found, found.finite + 60.0 * found.solution.W) == pytest.approx(found.floor)
    assert loss(found, found.odds.W + 60.0 * found.solution.W) > found.floor + 1e-4


def test_supports_that_nothing_separates_are_refuted_in_words() -> None:
    h, n = np.array([[1.0], [-1.0], [2.0]]), np.array([[1, 1, 0], [2, 1, 0], [0, 0, 1]])
    found = soft_label_svm(h, n)
    assert found.solution.status == "infeasible"
    assert not found.separable
    assert not found.directed
    assert "no output matrix separates the support with token" in found.solution.message
    assert "of context" in found.solution.message
    rows, y = found.solution.margins, found.solution.dual
    assert (y[~rows.equalities] >= 0).all()
    assert rows.rhs @ y > 0
    assert np.abs(rows.adjoint(y)).max() <= 1e-12 * (rows.rhs @ y)
    silent = soft_label_svm(np.zeros((1, 2)), [[1, 1, 0]])
    assert "the embedding of context 0 is zero, so its logits are all equal" in (
        silent.solution.message
    )


def test_what_rounding_decides_is_left_open() -> None:
    """Rank two up to rounding: separable only by weights of norm 1e16."""
    rng = np.random.default_rng(3)
    h = rng.standard_normal((6, 2)) @ rng.standard_normal((2, 6))
    n = np.eye(4)[[0, 1, 2, 3, 0, 1]] + np.eye(4)[[1, 2, 3, 0, 2, 3]]
    found = soft_label_svm(h, n)
    assert not found.separable
    assert found.solution.status != "infeasible"


def test_the_likelihood_is_the_loss_in_other_coordinates() -> None:
    for pair in (drawn(5, 6, 4, 1), two_topics(0)):
        found = soft_label_svm(*pair)
        basis = found.basis()
        flat = basis.reshape(len(basis), -1)
        np.testing.assert_allclose(flat @ flat.T, np.eye(len(basis)), atol=1e-12)
        W = np.random.default_rng(0).standard_normal(found.finite.shape)
        at = np.tensordot(basis, W, axes=2)
        assert found.likelihood().value(at) == pytest.approx(loss(found, W), rel=1e-12)


def test_hard_labels_have_no_finite_part_and_full_supports_no_direction() -> None:
    h, _ = drawn(4, 5, 4, 0)
    hard = soft_label_svm(h, np.eye(5)[[0, 1, 1, 4]])
    assert hard.subspace.shape == (0, 5, 4)
    assert (hard.entropy, hard.floor) == (0.0, 0.0)
    inside, outside = hard.split(h.T[0] * np.ones((5, 1)))
    assert not inside.any()
    assert outside.any()
    full = soft_label_svm(h, np.arange(1, 21).reshape(4, 5))
    assert full.separable
    assert not full.directed
    assert np.isnan(full.report(full.finite).cosine)
    assert loss(full, full.finite) == pytest.approx(full.entropy, rel=1e-12)


def test_refusals() -> None:
    h, n = drawn(4, 5, 4, 0)
    assert soft_label_svm(h.tolist(), n.tolist()).finite.shape == (5, 4)
    for call, words in (
        (lambda: soft_label_svm_batch([h, h], [n]), "2 matrices of embeddings and 1 of counts"),
        (lambda: soft_label_svm([], []), r"embeddings has shape \(0,\)"),
        (lambda: soft_label_svm(h, -n - 1), r"counts\[0, 0\]"),
    ):
        with pytest.raises(InputError, match=words):
            call()
