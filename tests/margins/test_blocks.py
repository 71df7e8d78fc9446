"""Blocks of a programme: every form says the same as the margins it stands for, and bad ones are
refused by number.
"""

from __future__ import annotations

import numpy as np
import pytest
from explicit import matrices, ragged_data, visible_choice

from attsvm import InputError, Margins, pair_margins, selection_margins
from attsvm.margins import MarginBlocks
from attsvm.margins.block_rows import block_rows


@pytest.mark.parametrize("exact", [False, True])
def test_rows_of_tokens_are_those_of_selection_margins(exact: bool) -> None:
    rng = np.random.default_rng(0)
    data = ragged_data(rng, 6, 5, 3, 4)
    chosen = visible_choice(rng, data.mask)
    margins, W = selection_margins(data, chosen), rng.standard_normal((3, 4))
    block = block_rows((data.tokens, data.queries, chosen, data.mask), 0)
    values = block.values(W, exact)
    rows = np.flatnonzero(np.isfinite(values))
    np.testing.assert_allclose(values[rows], margins(W), atol=1e-13)
    assert block.constraints == len(rows) == margins.m
    part = block.chosen(rows)
    np.testing.assert_array_equal(part.differences, margins.differences)
    np.testing.assert_array_equal(part.token, margins.token)
    assert (part.numbers[part.sequence] == margins.sequence).all()
    np.testing.assert_allclose(block.mean(), matrices(margins).sum(axis=0), atol=1e-12)
    longest = np.linalg.norm(margins.differences if exact else data.tokens, axis=-1).max()
    assert block.size(exact) >= longest


def test_rows_of_pairs_are_those_of_the_margins() -> None:
    rng = np.random.default_rng(1)
    margins = pair_margins(rng.standard_normal((9, 3)), rng.standard_normal((9, 3)))
    block, W = block_rows(margins, 0), rng.standard_normal((3, 3))
    for exact in (False, True):
        np.testing.assert_allclose(block.values(W, exact), margins(W), atol=1e-13)
    part = block.chosen(np.array([3, 4, 20]))
    np.testing.assert_array_equal(part.differences, margins.differences[[3, 4, 20]])
    np.testing.assert_array_equal(part.origin, margins.origin[part.numbers])
    assert block.texts == 1


def test_a_checksum_sees_every_bit_and_every_order() -> None:
    rng = np.random.default_rng(2)
    X, Z, chosen = rng.standard_normal((4, 5, 3)), rng.standard_normal((4, 2)), np.arange(4)
    sums = [
        block_rows(parts, 0).checksum()
        for parts in (
            (X, Z, chosen),
            (-X, Z, chosen),
            (X[:, ::-1], Z, chosen),
            (X[..., ::-1], Z, chosen),
            (np.nextafter(X, 9.0), Z, chosen),
            (X, -Z, chosen),
            (X, Z, chosen[::-1]),
            (X, Z, chosen, np.ones((4, 5), dtype=bool)),
        )
    ]
    assert len(set(sums)) == len(sums)
    assert block_rows((X.copy(), Z.copy(), chosen.copy()), 0).checksum() == sums[0]


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
        ((np.ones((2, 3)), np.ones((3, 3))), "queries has shape"),
        ("tokens", "block 7"),
        (np.ones(3), "give margins"),
        ((1, 2, 3, 4, 5), "give margins"),
    ],
)
def test_a_block_that_cannot_be_used_is_named(block, words: str) -> None:
    with pytest.raises(InputError, match=r"^block 7: ") as told:
        block_rows(block, 7)
    assert told.match(words)


def test_margins_that_blocks_cannot_hold() -> None:
    rows = np.ones((2, 3))

    def margins(rhs, equality=None) -> Margins:
        places = np.zeros(2, dtype=int)
        return Margins(rows, rows, [0, 1, 2], np.array(rhs), places, places, equality)

    for bad in (margins([1.0, -1.0]), margins([1.0, np.inf]), margins([1.0, 1.0], [True, False])):
        with pytest.raises(InputError, match="block 0: "):
            block_rows(bad, 0)


def test_where_blocks_come_from() -> None:
    assert Margins.from_blocks(lambda k: k, 3).maker(2)() == 2
    assert isinstance(Margins.from_blocks([np.ones((2, 2))]), MarginBlocks)
    for blocks, count, words in (
        (lambda k: k, None, "count is None"),
        (lambda k: k, 0, "count is 0"),
        ((x for x in [1]), None, "no generator"),
        ([], None, "give a function"),
        ([np.ones((2, 2))], 2, "there are 1"),
    ):
        with pytest.raises(InputError, match=words):
            Margins.from_blocks(blocks, count)
