"""The number of an array: another one for other bytes, types, shapes, and whatever came before."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.margins.checksums import checksum


@pytest.mark.parametrize("length", [0, 1, 7, 8, 31, 32, 33, 100])
def test_every_bit_counts(length: int) -> None:
    some = np.random.default_rng(length).integers(0, 256, length).astype(np.uint8)
    seen = {checksum(some)}
    for k, bit in np.ndindex(length, 8):
        other = some.copy()
        other[k] ^= 1 << bit
        seen.add(checksum(other))
    assert len(seen) == 8 * length + 1
    assert checksum(some.copy()) in seen


def test_order_type_shape_and_what_came_before_count() -> None:
    some = np.arange(64, dtype=np.int64)
    rolled = np.roll(some, 4)  # as many words as are read at a time
    others = [some[::-1], some.reshape(8, 8).T, some.reshape(8, 8), some.view(np.float64), rolled]
    others += [some[:63], np.zeros(64, dtype=np.int64), np.zeros(0)]
    numbers = {checksum(each) for each in (some, *others)}
    assert len(numbers | {checksum(some, 1), checksum(some, checksum(some))}) == len(others) + 3


def test_memory_that_is_not_aligned_gives_the_number_of_its_bytes() -> None:
    some = np.random.default_rng(0).standard_normal(20)
    raw = np.zeros(8 * 20 + 3, dtype=np.uint8)
    raw[3:] = some.view(np.uint8)
    apart = np.ndarray(20, np.float64, raw.data, 3)
    assert not apart.flags.aligned
    assert checksum(apart) == checksum(some)
