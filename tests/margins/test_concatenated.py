"""Programmes end to end in memory are the same programmes, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from explicit import ragged_data, visible_choice

from attsvm.data import AttentionData
from attsvm.errors import InputError
from attsvm.margins import (
    Margins,
    MarginsBatch,
    multi_token_margins,
    selection_batch,
    selection_margins,
)

ARRAYS = ("differences", "queries", "offsets", "rhs", "token", "selected")


def same(one: Margins, other: Margins) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.equality is None


def instances(seed: int, count: int) -> tuple[list[AttentionData], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    data = [ragged_data(rng, 4, 6, 3, 2) for _ in range(count)]
    return data, [visible_choice(rng, each.mask) for each in data]


def test_stacked_programmes_come_back_one_by_one() -> None:
    rng = np.random.default_rng(0)
    programmes = []
    for n, longest in ((1, 1), (5, 7), (2, 3), (3, 9)):  # the first asks for nothing
        data = ragged_data(rng, n, longest, 4, 3)
        programmes.append(selection_margins(data, visible_choice(rng, data.mask)))
    assert programmes[0].m == 0
    batch = MarginsBatch.stack(programmes)
    assert len(batch) == 4
    assert batch.shape == (4, 3)
    np.testing.assert_array_equal(np.diff(batch.rows), [each.m for each in programmes])
    for one, other in zip(batch, programmes, strict=True):
        same(one, other)
    same(batch[-1], programmes[3])
    same(batch[1:3][1], programmes[2])
    with pytest.raises(IndexError):
        batch[4]


@pytest.mark.parametrize("leading", [(6,), (2, 3)])
def test_selection_of_every_instance(leading: tuple[int, ...]) -> None:
    data, tokens = instances(1, 6)
    together = AttentionData(
        np.stack([each.tokens for each in data]).reshape(*leading, 4, 6, 3),
        np.stack([each.labels for each in data]).reshape(*leading, 4),
        np.stack([each.queries for each in data]).reshape(*leading, 4, 2),
        np.stack([each.mask for each in data]).reshape(*leading, 4, 6),
    )
    batch = selection_batch(together, np.stack(tokens).reshape(*leading, 4))
    assert len(batch) == 6
    for one, each, selected in zip(batch, data, tokens, strict=True):
        same(one, selection_margins(each, selected))


def test_one_instance_is_a_batch_of_one() -> None:
    (data,), (tokens,) = instances(2, 1)
    batch = selection_batch(data, tokens)
    assert len(batch) == 1
    same(batch[0], selection_margins(data, tokens))


def test_refused_selections() -> None:
    X = np.zeros((2, 3, 4, 5))
    mask = np.ones((2, 3, 4), dtype=bool)
    mask[1, 2, 3] = False
    data = AttentionData(X, np.ones((2, 3)), None, mask)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"tokens has shape \(3,\); it must be \(2, 3\)"):
        selection_batch(data, np.zeros(3, dtype=int))
    with pytest.raises(InputError, match="give integer positions"):
        selection_batch(data, np.zeros((2, 3)))
    for position in (-1, 3, 4):
        tokens = np.zeros((2, 3), dtype=int)
        tokens[1, 2] = position
        with pytest.raises(
            InputError,
            match=rf"tokens holds {position} at \[1, 2\], which is not a visible position",
        ):
            selection_batch(data, tokens)


def test_refused_stacks() -> None:
    (data,), (tokens,) = instances(3, 1)
    margins = selection_margins(data, tokens)
    with pytest.raises(InputError, match="there are no programmes"):
        MarginsBatch.stack([])
    other = selection_margins(
        AttentionData(data.tokens, data.labels, np.ones((4, 1)), data.mask), tokens
    )
    with pytest.raises(InputError, match=r"programme 1 has weights \(3, 1\), programme 0 \(3, 2\)"):
        MarginsBatch.stack([margins, other])
    sets = data.mask.copy()
    if not multi_token_margins(data, sets).equalities.any():
        pytest.fail("the example needs an equality")
    with pytest.raises(InputError, match="programme 1 holds equalities"):
        MarginsBatch.stack([margins, multi_token_margins(data, sets)])
