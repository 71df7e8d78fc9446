"""The constraint operator against tensors written out in full, whether its rows are in memory or
formed of keys that they share.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from explicit import ragged_data, visible_choice
from hypothesis import given
from hypothesis import strategies as st

from attsvm import AttentionData, Margins, pair_margins, selection_margins, sequence_margins
from attsvm.margins.operator import SweepOptions

RNG = np.random.default_rng


def written_out(margins: Margins) -> np.ndarray:
    return np.einsum("ca,ce->cae", margins.differences, margins.queries[margins.sequence])


@given(st.integers(0, 10_000), st.sampled_from(["ragged", "uniform", "pairs", "equal pairs"]))
def test_the_operator_is_that_of_the_written_out_tensors(seed: int, form: str) -> None:
    rng = RNG(seed)
    n, d_x, d_z = (int(k) for k in rng.integers(1, 6, 3))
    if form == "ragged":
        data = ragged_data(rng, n, 6, d_x, d_z)
        margins = selection_margins(data, visible_choice(rng, data.mask))
    elif form == "uniform":
        data = AttentionData(rng.normal(size=(n, 4, d_x)), np.ones(n), rng.normal(size=(n, d_z)))
        margins = selection_margins(data, rng.integers(4, size=n))
    else:
        keys, queries = rng.normal(size=(6, d_x)), rng.normal(size=(6, d_z))
        margins = pair_margins(keys, queries, np.zeros(6, dtype=int), causal=form == "pairs")
    A, W, lam = written_out(margins), rng.normal(size=margins.shape), rng.normal(size=margins.m)
    lam[rng.integers(margins.m + 1) :] = 0.0
    # a few rows at a time, on several threads, as for large programmes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Margins, "sweep", SweepOptions(2 * d_x, 0 if seed % 2 else 1 << 22))
        np.testing.assert_allclose(margins(W), np.einsum("cae,ae->c", A, W), atol=1e-12)
        np.testing.assert_allclose(margins.adjoint(lam), np.einsum("c,cae->ae", lam, A), atol=1e-12)
        moved, sizes = rng.random((margins.n, d_x)), np.abs(margins.differences)
        expected = np.einsum("ca,ca->c", sizes, moved[margins.sequence])
        np.testing.assert_allclose(margins.along_sizes(moved), expected, atol=1e-12)
        lengths = np.linalg.norm(A.reshape(margins.m, -1), axis=1)
        np.testing.assert_allclose(margins.lengths, lengths, atol=1e-12)
        np.testing.assert_allclose(margins.gram(), np.einsum("cae,kae->ck", A, A), atol=1e-11)
        if "pairs" in form:
            np.testing.assert_allclose(margins.estimate(W), margins(W), atol=1e-12)
    chosen = rng.random(margins.m) < 0.5
    for part in (margins.restricted(chosen), margins.restricted(np.flatnonzero(chosen))):
        np.testing.assert_array_equal(written_out(part), A[chosen])
        np.testing.assert_array_equal(part.token, margins.token[chosen])
        np.testing.assert_array_equal(part.sequence, margins.sequence[chosen])


@pytest.mark.parametrize("causal", [True, False])
def test_pairs_have_the_bits_of_rows_written_out(causal: bool) -> None:
    keys, queries = RNG(0).normal(size=(2, 150, 64))
    margins = pair_margins(keys, queries, causal=causal)
    written = margins.restricted(np.arange(margins.m))
    W, dual = RNG(1).normal(size=(64, 64)), RNG(1).random(margins.m)
    assert margins.m * 64 > margins.sweep.block_numbers  # more than one block
    assert (margins(W) == written(W)).all()
    assert (margins.adjoint(dual) == written.adjoint(dual)).all()
    moved = np.abs(queries @ W.T)
    assert (margins.along_sizes(moved) == written.along_sizes(moved)).all()


def test_a_text_that_attends_to_itself_is_the_programme_of_positions() -> None:
    tokens = RNG(0).normal(size=(12, 4))
    selected = np.array([int(RNG(j).integers(j + 1)) for j in range(12)])
    pairs = pair_margins(tokens, tokens, selected)
    rows = sequence_margins(AttentionData(tokens[None], np.ones(1)), selected[None], causal=True)
    for name in ("differences", "token", "selected", "origin", "offsets"):
        np.testing.assert_array_equal(getattr(pairs, name), getattr(rows, name), err_msg=name)
    some = pair_margins(tokens, tokens[[3, 7]], selected[[3, 7]], positions=[3, 7])
    np.testing.assert_array_equal(
        some.differences, rows.restricted(np.isin(rows.sequence, (3, 7))).differences
    )
    seen = np.tri(12, dtype=bool)
    assert (pair_margins(tokens, tokens, selected, visible=seen).token == pairs.token).all()


def test_a_query_selects_the_key_that_it_likes_best_among_those_that_it_sees() -> None:
    keys, queries = RNG(0).normal(size=(2, 9, 4))
    found = pair_margins(keys, queries).selected
    assert found.tolist() == [int(np.argmax(keys[: j + 1] @ queries[j])) for j in range(9)]


def test_equivalent_tokens_are_no_rivals() -> None:
    keys, queries = RNG(0).normal(size=(2, 10, 4))
    keys[7] = keys[3]
    selected, classes = np.full(10, 3), np.arange(10)
    classes[8] = 3
    equal = pair_margins(keys, queries, selected, causal=False)
    declared = pair_margins(keys, queries, selected, causal=False, classes=classes)
    assert set(equal.token) == set(range(10)) - {3, 7}
    assert set(declared.token) == set(range(10)) - {3, 7, 8}


def test_texts_do_not_see_each_other() -> None:
    keys, queries = RNG(0).normal(size=(2, 9, 4))
    chosen = [[0, 1, 0, 2], [0, 1, 1, 2, 0]]
    both = pair_margins([keys[:4], keys[4:]], [queries[:4], queries[4:]], chosen)
    alone = pair_margins(keys[4:], queries[4:], chosen[1])
    W = RNG(2).normal(size=(4, 4))
    assert (both(W)[both.offsets[4] :] == alone(W)).all()
    np.testing.assert_allclose(both.estimate(W), both(W), atol=1e-12)
    assert both.origin[:, 0].tolist() == [0] * 4 + [1] * 5


def test_memory_is_a_number_a_row() -> None:
    """1,024 positions of 64 features: 268 megabytes written out."""
    keys, queries = RNG(0).normal(size=(2, 1024, 64))
    tracemalloc.start()
    margins = pair_margins(keys, queries)
    margins(np.eye(64))
    margins.adjoint(np.ones(margins.m))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert margins.m == 1023 * 512
    assert peak < 50e6
