"""Block ascent: rows that are left out for a while, and segments on several cores."""

from __future__ import annotations

import math

import numpy as np
import pytest
from instances import sphere

from attsvm import AttentionData
from attsvm.margins import Margins, selection_margins
from attsvm.solvers import max_margin
from attsvm.solvers.ascent import AscentOptions, BlockAscent
from attsvm.solvers.programme import equilibrate

SLEEPING = AscentOptions(numbers_worth_sleep=0)
"""Small programmes stand for those whose rows may sleep."""
IN_SEGMENTS = SLEEPING._replace(numbers_worth_segments=0)


def ascended(margins: Margins, options: AscentOptions = SLEEPING) -> BlockAscent:
    programme = equilibrate(margins, None, None)
    ascent = BlockAscent(programme, np.zeros(programme.m), options)
    ascent.run(200, 1e-12, math.inf)
    return ascent


def test_all_epochs_of_small_programmes_are_over_all_rows() -> None:
    margins = sphere(40, 20, 30, 0)
    small = ascended(margins, AscentOptions())
    some_asleep = ascended(margins)
    all_awake = ascended(margins, AscentOptions(numbers_worth_sleep=0, epochs_per_wake=1))
    np.testing.assert_array_equal(small.dual, all_awake.dual)
    assert small.epochs == all_awake.epochs
    assert (small.dual != some_asleep.dual).any()


def test_rows_that_sleep_change_no_multiplier() -> None:
    margins = sphere(40, 20, 30, 0)
    some_asleep = ascended(margins)
    # the last epoch looked at all rows, and found most of them slack
    assert some_asleep.asleep.mean() > 0.5
    all_awake = ascended(margins, SLEEPING._replace(epochs_per_wake=1))
    assert some_asleep.residual <= 1e-12
    assert all_awake.residual <= 1e-12
    # two ways to one optimum: residuals of 1e-12 leave multipliers 1e-12 over the least curvature
    np.testing.assert_allclose(some_asleep.dual, all_awake.dual, rtol=0, atol=1e-9)


def test_a_row_that_is_needed_later_wakes_up() -> None:
    margins = sphere(60, 10, 12, 2)
    programme = equilibrate(margins, None, None)
    ascent = BlockAscent(programme, np.zeros(programme.m), SLEEPING)
    slept = np.zeros(programme.m, dtype=bool)
    while ascent.epochs < 4000 and ascent.residual > 1e-12:
        ascent.run(3, 1e-12, math.inf)
        slept |= ascent.asleep
    assert ascent.residual <= 1e-12
    support = max_margin(margins).support
    woken = np.intersect1d(support, np.flatnonzero(slept))
    assert len(woken) > 0
    assert (ascent.dual[woken] > 0.0).all()


@pytest.mark.parametrize("gram_entries", [1 << 26, 0])
def test_epochs_end_at_the_solution_with_and_without_gram_blocks(gram_entries: int) -> None:
    margins = sphere(40, 20, 30, 3)
    ascent = ascended(margins, SLEEPING._replace(gram_entries=gram_entries))
    assert ascent.residual <= 1e-12
    p = ascent.programme
    W, _ = p.restored(p.adjoint(ascent.dual), ascent.dual)
    np.testing.assert_allclose(W, max_margin(margins).W, rtol=0, atol=1e-10)


@pytest.mark.parametrize("gram_entries", [1 << 26, 0])
def test_segments_end_with_the_same_bits_on_any_number_of_threads(
    gram_entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    margins = sphere(40, 10, 100, 2)
    duals = []
    for threads in (1, 3):
        monkeypatch.setenv("ATTSVM_THREADS", str(threads))
        ascent = ascended(margins, IN_SEGMENTS._replace(gram_entries=gram_entries))
        assert ascent.segments == 2
        assert ascent.residual <= 1e-12
        duals.append(ascent.dual)
    np.testing.assert_array_equal(*duals)
    np.testing.assert_allclose(duals[0], ascended(margins).dual, rtol=0, atol=1e-9)
    assert max_margin(margins, "fro").status == "optimal"


def test_segments_that_hinder_each_other_are_taken_one_after_the_other() -> None:
    tokens, query = np.random.default_rng(0).standard_normal((6, 5)), np.ones(5)
    one, copies = (
        selection_margins(AttentionData([tokens] * n, np.ones(n), [query] * n), [0] * n)
        for n in (1, 16)
    )
    assert ascended(copies, IN_SEGMENTS).segments == 1
    alone = max_margin(one, "fro")
    np.testing.assert_allclose(max_margin(copies, "fro").W, alone.W, rtol=0, atol=1e-12)
