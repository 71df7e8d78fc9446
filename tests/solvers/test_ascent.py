"""Block ascent: rows that are left out for a while, and parts on several cores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from instances import sphere

from attsvm import AttentionData
from attsvm.margins import Margins, selection_margins
from attsvm.solvers import ascent as module
from attsvm.solvers import max_margin
from attsvm.solvers.ascent import BlockAscent
from attsvm.solvers.programme import equilibrate


def ascended(margins: Margins, **settings: Any) -> BlockAscent:
    programme = equilibrate(margins, None, None)
    ascent = BlockAscent(programme, np.zeros(programme.m))
    for name, value in settings.items():
        setattr(ascent, name, value)
    ascent.run(200, 1e-12, math.inf)
    return ascent


@pytest.fixture(autouse=True)
def sleeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small programmes stand for those whose rows may sleep."""
    monkeypatch.setattr(module, "_WORTH_SLEEP", 0)


def test_all_epochs_of_small_programmes_are_over_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    margins, found = sphere(40, 20, 30, 0), []
    for name, value in (("_WORTH_SLEEP", 1 << 60), ("_WORTH_SLEEP", 0), ("_WAKE", 1)):
        monkeypatch.setattr(module, name, value)
        found.append(ascended(margins))
    small, some_asleep, all_awake = found
    np.testing.assert_array_equal(small.dual, all_awake.dual)
    assert small.epochs == all_awake.epochs
    assert (small.dual != some_asleep.dual).any()


def test_rows_that_sleep_change_no_multiplier(monkeypatch: pytest.MonkeyPatch) -> None:
    margins = sphere(40, 20, 30, 0)
    some = ascended(margins)
    assert (
        some._parts[0]._asleep.mean() > 0.5
    )  # the last epoch looked at all of them, and found them slack
    monkeypatch.setattr(module, "_WAKE", 1)
    all_awake = ascended(margins)
    assert some.residual <= 1e-12
    assert all_awake.residual <= 1e-12
    # two ways to one optimum: residuals of 1e-12 leave multipliers 1e-12 over the least curvature
    np.testing.assert_allclose(some.dual, all_awake.dual, rtol=0, atol=1e-9)


def test_a_row_that_is_needed_later_wakes_up() -> None:
    margins = sphere(40, 20, 30, 1)
    ascent = ascended(margins)
    needed = np.flatnonzero(ascent.dual > 0.0)
    ascent.dual[:] = 0.0
    ascent.W[:] = 0.0
    ascent._parts[0]._asleep[needed] = 1
    ascent.run(200, 1e-12, math.inf)
    assert ascent.residual <= 1e-12
    assert (ascent.dual[needed] > 0.0).all()


@pytest.mark.parametrize("largest_grams", [1 << 26, 0])
def test_epochs_end_at_the_solution_with_and_without_gram_blocks(
    largest_grams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LARGEST_GRAMS", largest_grams)
    margins = sphere(40, 20, 30, 3)
    ascent = ascended(margins)
    assert ascent.residual <= 1e-12
    p = ascent.programme
    W, _ = p.restored(p.adjoint(ascent.dual), ascent.dual)
    np.testing.assert_allclose(W, max_margin(margins).W, rtol=0, atol=1e-10)


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE", 0)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("largest_grams", [1 << 26, 0])
def test_parts_find_the_solution_with_the_same_bits_on_any_number_of_threads(
    largest_grams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LARGEST_GRAMS", largest_grams)
    margins = sphere(40, 10, 100, 2)
    found = []
    for threads in (1, 3):
        monkeypatch.setenv("ATTSVM_THREADS", str(threads))
        ascent = ascended(margins)
        assert len(ascent._parts) == 2
        assert ascent.residual <= 1e-12
        found.append(ascent.dual)
    np.testing.assert_array_equal(*found)
    monkeypatch.setattr(module, "_LARGE", 1 << 60)
    np.testing.assert_allclose(found[0], ascended(margins).dual, rtol=0, atol=1e-9)
    assert max_margin(margins, "fro").status == "optimal"


@pytest.mark.usefixtures("in_parts")
def test_parts_that_hinder_each_other_are_taken_one_after_the_other() -> None:
    tokens, query = np.random.default_rng(0).standard_normal((6, 5)), np.ones(5)
    one, copies = (
        selection_margins(AttentionData([tokens] * n, np.ones(n), [query] * n), [0] * n)
        for n in (1, 16)
    )
    ascent = ascended(copies)
    assert len(ascent._parts) == 1
    alone = max_margin(one, "fro")
    np.testing.assert_allclose(max_margin(copies, "fro").W, alone.W, rtol=0, atol=1e-12)
