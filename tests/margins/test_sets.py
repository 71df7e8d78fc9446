"""Selected sets, the finite component, and their recombination."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from explicit import matrices, ragged_data, same_rows, visible_choice
from hypothesis import given
from hypothesis import strategies as st

from attsvm.data import AttentionData
from attsvm.errors import InputError
from attsvm.margins import (
    finite_component,
    least_norm,
    multi_token_margins,
    ratio_margins,
    recombine,
    relax,
    selection_margins,
    split,
)


def instance(
    seed: int, d: int = 3
) -> tuple[AttentionData, np.ndarray, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    data = ragged_data(rng, 4, 5, d, 4)
    sets = data.mask & (rng.random(data.mask.shape) < 0.5)
    sets[np.arange(4), visible_choice(rng, data.mask)] = True
    s = rng.dirichlet(np.ones(5), 4) + 1e-3
    return data, sets, s, rng


@given(st.integers(0, 10_000))
def test_rows_by_loops(seed: int) -> None:
    data, sets, s, _ = instance(seed)
    A, b, equal, ratios = [], [], [], []
    for i in range(4):
        anchor = int(np.flatnonzero(sets[i])[0])
        for t in range(5):
            if not data.mask[i, t] or t == anchor:
                continue
            A.append(np.outer(data.tokens[i, anchor] - data.tokens[i, t], data.queries[i]))
            b.append(0.0 if sets[i, t] else 1.0)
            equal.append(bool(sets[i, t]))
            if sets[i, t]:
                ratios.append(np.log(s[i, anchor]) - np.log(s[i, t]))
    margins = multi_token_margins(data, sets)
    same_rows(margins, A, b, equal)
    assert margins.equalities.sum() == (sets.sum(axis=1) - 1).sum()
    same_rows(
        ratio_margins(data, sets, s),
        [a for a, e in zip(A, equal, strict=True) if e],
        ratios,
        [True] * len(ratios),
    )


@given(st.integers(0, 10_000))
def test_sets_of_one_token_are_a_selection(seed: int) -> None:
    data, _, s, rng = instance(seed)
    tokens = visible_choice(rng, data.mask)
    sets = np.arange(5) == tokens[:, None]
    ours, theirs = multi_token_margins(data, sets), selection_margins(data, tokens)
    assert ours.equality is None
    for name in ("differences", "queries", "offsets", "rhs", "token", "selected"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    finite = finite_component(data, sets, s)
    assert not finite.W.any()
    assert finite.consistent


@given(st.integers(0, 10_000))
def test_finite_component_is_the_pseudo_inverse(seed: int) -> None:
    data, sets, s, _ = instance(seed, d=6)
    margins = ratio_margins(data, sets, s)
    found = finite_component(data, sets, s)
    A = matrices(margins).reshape(margins.m, 24)
    expected = np.linalg.pinv(A, rcond=1e-12) @ margins.rhs if margins.m else np.zeros(24)
    assert found.consistent
    np.testing.assert_allclose(
        found.W.reshape(-1), expected, atol=1e-9 * max(1.0, np.abs(expected).max())
    )
    assert found.residual <= 1e-10
    assert found.distance <= 1e-9
    for i in range(4):
        logits = data.tokens[i] @ found.W @ data.queries[i]
        inside = np.flatnonzero(sets[i])
        np.testing.assert_allclose(
            np.exp(logits[inside] - logits[inside[0]]), s[i, inside] / s[i, inside[0]], rtol=1e-8
        )


def test_contradictory_ratios_come_with_a_witness() -> None:
    X = np.repeat(np.array([[[0.0, 0.0], [1.0, 2.0]]]), 2, axis=0)
    data = AttentionData(X, np.ones(2), np.ones((2, 1)))
    found = finite_component(data, np.ones((2, 2), bool), [[0.5, 0.5], [0.9, 0.1]])
    assert not found.consistent
    assert found.distance <= 1e-14
    assert found.margins.rhs @ found.dual > 0
    assert np.abs(found.margins.adjoint(found.dual)).max() <= 1e-14


@given(st.integers(0, 10_000))
def test_split_is_an_orthogonal_projection(seed: int) -> None:
    data, sets, _, rng = instance(seed)
    margins = multi_token_margins(data, sets)
    W = rng.standard_normal(margins.shape)
    inside, outside = split(W, margins)
    np.testing.assert_allclose(inside + outside, W, atol=1e-14)
    assert np.abs(margins(outside)[margins.equalities]).max(initial=0.0) <= 1e-11
    again, nothing = split(inside, margins)
    np.testing.assert_allclose(again, inside, atol=1e-11)
    assert np.abs(nothing).max() <= 1e-11
    assert abs(np.sum(inside * outside)) <= 1e-10


def test_recombination() -> None:
    rng = np.random.default_rng(0)
    fin, mm = np.zeros((2, 3)), np.zeros((2, 3))
    fin[0], mm[1] = rng.standard_normal(3), rng.standard_normal(3)
    W = fin + 7.0 * mm
    found = recombine(W, fin, mm)
    assert found.scale == pytest.approx(7.0, rel=1e-14)
    assert found.scale == pytest.approx(np.sum(W * mm) / np.sum(mm * mm), rel=1e-14)
    assert found.cosine == pytest.approx(1.0, abs=1e-15)
    np.testing.assert_allclose(found.W, W, atol=1e-13)
    assert recombine(W, fin, np.zeros((2, 3))).scale == 0.0
    assert np.isnan(recombine(np.zeros((2, 3)), fin, mm).cosine)
    with pytest.raises(InputError, match="finite has shape"):
        recombine(W, fin.T, mm)


def test_restriction_keeps_the_marks() -> None:
    data, sets, _, _ = instance(5)
    margins = multi_token_margins(data, sets)
    part = margins.restricted(margins.equalities)
    assert part.m > 0
    assert part.equalities.all()
    assert (part.rhs == 0).all()


def test_refusals() -> None:
    data, sets, s, _ = instance(1)
    empty = sets.copy()
    empty[2] = False
    hidden = sets | ~data.mask
    negative = np.where(sets, -s, s)
    for call, message in [
        (
            lambda: multi_token_margins(data, sets.astype(int)),
            r"sets has shape \(4, 5\) and dtype int64",
        ),
        (lambda: multi_token_margins(data, sets[:2]), r"sets has shape \(2, 5\)"),
        (lambda: multi_token_margins(data, empty), "sets selects no token of sequence 2"),
        (
            lambda: multi_token_margins(data, hidden),
            r"sets holds token \d of sequence \d, which the mask hides",
        ),
        (lambda: ratio_margins(data, sets, s[0]), r"probabilities has shape \(5,\)"),
        (lambda: ratio_margins(data, sets, s * np.nan), "probabilities holds nan"),
        (lambda: ratio_margins(data, sets, negative), r"probabilities\[0, \d\] is -"),
        (lambda: relax(multi_token_margins(data, sets), [0]), "relax takes inequalities only"),
        (lambda: split(np.ones((2, 2)), multi_token_margins(data, sets)), r"W has shape \(2, 2\)"),
        (
            lambda: least_norm(
                replace(ratio_margins(data, sets, s), queries=np.full((4, 4), np.nan))
            ),
            r"margins\.queries holds",
        ),
    ]:
        with pytest.raises(InputError, match=message):
            call()
