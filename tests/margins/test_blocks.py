"""Blocks of a programme: every form says the same as the margins it stands for, and bad ones are
refused by number.
"""

from __future__ import annotations

import numpy as np
import pytest
from explicit import matrices, ragged_data, visible_choice

from attsvm import AttentionData, InputError, Margins, pair_margins, selection_margins
from attsvm.margins import MarginBlocks, relax
from attsvm.margins.block_rows import block_rows

RNG = np.random.default_rng(0)
DATA = ragged_data(RNG, 6, 5, 3, 4)
CHOSEN = visible_choice(RNG, DATA.mask)
ROWS, WHOLE = np.ones((2, 3)), DATA.tokens
SELECTED = selection_margins(DATA, CHOSEN)
UNMASKED = selection_margins(AttentionData(WHOLE, DATA.labels, DATA.queries), CHOSEN)
RELAXED = relax(SELECTED, [0, 2])
PAIRS = pair_margins(RNG.standard_normal((9, 3)), RNG.standard_normal((9, 4)), np.zeros(9, int))


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator for each test, so that no test depends on those that ran before it."""
    return np.random.default_rng(1)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("block", "margins"),
    [
        ((WHOLE, DATA.queries, CHOSEN, DATA.mask), SELECTED),
        ((WHOLE, DATA.queries, CHOSEN), UNMASKED),
        (PAIRS, PAIRS),
        (RELAXED, RELAXED),
        ((SELECTED.differences, SELECTED.queries[SELECTED.sequence]), SELECTED),
    ],
)
def test_every_form_has_the_rows_of_its_margins(block, margins: Margins, exact: bool, rng) -> None:
    found, W = block_rows(block, 0), rng.standard_normal(margins.shape)
    values = found.values(W, exact)
    rows = np.flatnonzero(np.isfinite(values))
    np.testing.assert_allclose(values[rows], margins(W), atol=1e-13)
    assert found.constraints == len(rows) == margins.m
    assert found.shape == margins.shape
    assert len(found.rhs) == len(values)
    some = rows[[0, 3, 4]]
    part, picked = found.write_out(some), margins.restricted([0, 3, 4])
    np.testing.assert_array_equal(part.differences, picked.differences)
    np.testing.assert_array_equal(part.queries[part.sequence], picked.queries[picked.sequence])
    sequence = np.searchsorted(found.offsets, some, side="right") - 1
    np.testing.assert_array_equal(part.numbers[part.sequence], sequence)
    if margins.origin is not None:
        np.testing.assert_array_equal(part.origin, margins.origin[part.numbers])
        assert found.texts == 1
    np.testing.assert_allclose(found.mean(), matrices(margins).sum(axis=0), atol=1e-12)
    assert found.size(exact) >= np.linalg.norm(margins.differences, axis=-1).max() - 1e-12


def test_a_checksum_sees_every_array_and_the_memory_is_theirs(rng) -> None:
    X, Z, chosen = rng.standard_normal((4, 5, 3)), rng.standard_normal((4, 2)), np.arange(4)
    blocks = [(X, Z, chosen), (np.nextafter(X, 9.0), Z, chosen), (X, -Z, chosen)]
    blocks += [(X, Z, chosen[::-1]), (X, Z, chosen, np.ones((4, 5), dtype=bool)), PAIRS]
    sums = [block_rows(block, 0).checksum() for block in blocks]
    assert len(set(sums)) == len(sums)
    assert block_rows((X.copy(), Z.copy(), chosen.copy()), 0).checksum() == sums[0]
    assert block_rows(blocks[0], 0).nbytes == X.nbytes + Z.nbytes + chosen.nbytes


def margins(rhs: list[float], equality: list[bool] | None = None) -> Margins:
    places = np.zeros(2, dtype=int)
    return Margins(ROWS, ROWS, [0, 1, 2], np.array(rhs), places, places, equality)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ((np.ones((2, 3, 4)), np.ones((3, 4)), [0, 0]), "queries has shape"),
        ((np.ones((2, 3, 4)), np.ones((2, 4)), [0]), "selected has shape"),
        ((np.ones((2, 3, 4)), np.ones((2, 4)), [0, 3]), r"selected\[1\] is 3"),
        ((np.ones((2, 3, 4)), np.ones((2, 4)), [0.0, 1.0]), "integer positions"),
        ((np.full((2, 3, 4), np.nan), np.ones((2, 4)), [0, 1]), "holds nan"),
        ((np.ones((1, 2, 4)), np.ones((1, 4)), [1], [[True, False]]), r"selected\[0\] is 1"),
        ((np.ones((1, 2, 4)), np.ones((1, 4)), [1], [[1, 1]]), "must be booleans"),
        ((ROWS, np.ones((3, 3))), "queries has shape"),
        (np.ones(3), "give margins"),
        ((1, 2, 3, 4, 5), "give margins"),
        (margins([1.0, -1.0]), "negative"),
        (margins([1.0, np.inf]), "not finite"),
        (margins([1.0, 1.0], [True, False]), "equalities"),
    ],
)
def test_a_block_that_cannot_be_used_is_named(block, words: str) -> None:
    with pytest.raises(InputError, match=rf"^block 7: .*{words}"):
        block_rows(block, 7)


def test_where_blocks_come_from() -> None:
    assert Margins.from_blocks(lambda k: k, 3).maker(2)() == 2
    assert isinstance(Margins.from_blocks([ROWS]), MarginBlocks)
    for blocks, count, words in (
        (lambda k: k, None, "count is None"),
        (lambda k: k, 0, "count is 0"),
        (lambda k: k, True, "count is True"),
        ((x for x in [1]), None, "no generator"),
        ([], None, "give a function"),
        ([ROWS], 2, "there are 1"),
    ):
        with pytest.raises(InputError, match=words):
            Margins.from_blocks(blocks, count)
