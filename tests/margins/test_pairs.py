"""Programmes over shared keys: the same bits as rows written out, without writing them out."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from attsvm import AttentionData, InputError, max_margin, pair_margins, sequence_margins


def two(T: int = 30, d: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(T, d)), rng.normal(size=(T, d))


@pytest.mark.parametrize("causal", [True, False])
def test_the_bits_of_rows_written_out(causal: bool) -> None:
    keys, queries = two(150)
    margins = pair_margins(keys, queries, causal=causal)
    written = margins.restricted(np.arange(margins.m))
    rng = np.random.default_rng(1)
    W, dual = rng.normal(size=(4, 4)), rng.random(margins.m)
    assert margins.m > 8192
    assert (margins(W) == written(W)).all()
    assert (margins.adjoint(dual) == written.adjoint(dual)).all()
    moved = np.abs(queries @ W.T)
    assert (margins.along_sizes(moved) == written.along_sizes(moved)).all()
    assert (margins.differences == written.differences).all()
    np.testing.assert_allclose(margins.estimate(W), written(W), atol=1e-12)


def test_a_text_that_attends_to_itself_is_the_programme_of_positions() -> None:
    tokens, _ = two(12)
    data = AttentionData(tokens[None], np.ones(1))
    selected = np.array([int(np.random.default_rng(j).integers(j + 1)) for j in range(12)])
    pairs = pair_margins(tokens, tokens, selected)
    rows = sequence_margins(data, selected[None], causal=True)
    W = np.random.default_rng(2).normal(size=(4, 4))
    assert (pairs(W) == rows(W)).all()
    assert (pairs.token == rows.token).all()
    assert (pairs.origin[:, 1] == rows.origin[:, 1]).all()


def test_equivalent_tokens_are_no_rivals() -> None:
    keys, queries = two(10)
    keys[7] = keys[3]
    selected = np.full(10, 3)
    equal = pair_margins(keys, queries, selected, causal=False)
    assert not np.isin(equal.token, (3, 7)).any()
    classes = np.arange(10)
    classes[8] = 3
    declared = pair_margins(keys, queries, selected, causal=False, classes=classes)
    assert not np.isin(declared.token, (3, 7, 8)).any()
    assert declared.m == equal.m - 10


def test_texts_do_not_see_each_other() -> None:
    keys, queries = two(9)
    both = pair_margins([keys[:4], keys[4:]], [queries[:4], queries[4:]])
    alone = pair_margins(keys[4:], queries[4:])
    W = np.random.default_rng(2).normal(size=(4, 4))
    assert (both(W)[both.offsets[4] :] == alone(W)).all()
    assert both.origin[4:, 0].tolist() == [1] * 5


def test_memory_is_a_number_a_row() -> None:
    """1,024 positions of 64 features: 268 megabytes written out."""
    keys, queries = two(1024, 64)
    tracemalloc.start()
    margins = pair_margins(keys, queries)
    margins(np.eye(64))
    margins.adjoint(np.ones(margins.m))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert margins.m == 1023 * 512
    assert peak < 50e6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"selected": np.full(30, 29)}, r"selected\[0\]  is 29, which the query at position 0"),
        ({"selected": np.full(30, 30)}, "the text has positions 0 to 29"),
        ({"positions": np.arange(5)}, r"positions has shape \(5,\)"),
        ({"classes": np.arange(5)}, r"classes has shape \(5,\)"),
        ({"visible": np.ones((3, 3))}, "visible has shape"),
    ],
)
def test_refusals(change: dict, message: str) -> None:
    keys, queries = two()
    with pytest.raises(InputError, match=message.replace("  ", " +")):
        pair_margins(keys, queries, **change)


def test_widths_that_differ_need_a_selection() -> None:
    keys, queries = two()
    with pytest.raises(InputError, match="give selected"):
        pair_margins(keys, queries[:, :3])
    assert max_margin(pair_margins(keys, queries[:, :3], np.arange(30))).status in (
        "optimal",
        "infeasible",
    )
