"""Loops over the rows of large programmes are shared out among threads, with the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from instances import sphere

from attsvm.margins.operator import Margins, SweepOptions
from attsvm.solvers.programme import ProgrammeOptions, equilibrate


@pytest.mark.parametrize("threads", [1, 3])
def test_values_and_adjoint_of_shares(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    margins, rng = sphere(30, 9, 12, 0), np.random.default_rng(1)
    W, dual = rng.standard_normal(margins.shape), rng.random(margins.m)
    plain = equilibrate(margins, None, None)
    monkeypatch.setenv("ATTSVM_THREADS", str(threads))
    shared = equilibrate(margins, None, None, ProgrammeOptions(shared_entries=0))
    np.testing.assert_array_equal(shared.D, plain.D)
    np.testing.assert_array_equal(shared.Z, plain.Z)
    np.testing.assert_array_equal(shared.dual_exponent, plain.dual_exponent)
    found = shared.values(W), shared.adjoint(dual)
    # products of other shapes round otherwise
    np.testing.assert_allclose(found[0], plain.values(W), rtol=0, atol=1e-13)
    np.testing.assert_allclose(found[1], plain.adjoint(dual), rtol=0, atol=1e-13)
    monkeypatch.setenv("ATTSVM_THREADS", "2")
    np.testing.assert_array_equal(shared.values(W), found[0])
    np.testing.assert_array_equal(shared.adjoint(dual), found[1])


def test_margins_of_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    margins, rng = sphere(30, 9, 12, 0), np.random.default_rng(1)
    W, dual = rng.standard_normal(margins.shape), rng.random(margins.m)
    moved = np.abs(margins.queries) @ np.abs(W).T
    plain = margins(W), margins.adjoint(dual), margins.along_sizes(moved)
    written = np.einsum("cd,cd->c", np.abs(margins.differences), moved[margins.sequence])
    np.testing.assert_allclose(plain[2], written, rtol=1e-14)
    monkeypatch.setattr(Margins, "sweep", SweepOptions(block_numbers=16, threaded_numbers=0))
    monkeypatch.setenv("ATTSVM_THREADS", "3")
    shared = margins(W), margins.adjoint(dual), margins.along_sizes(moved)
    for some, all_at_once in zip(shared, plain, strict=True):
        np.testing.assert_array_equal(some, all_at_once)
