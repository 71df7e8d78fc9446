"""Many programmes in one call: every answer is that of the single call, whatever stands next to it
in the batch.
"""

from __future__ import annotations

import numpy as np
import pytest
from instances import cross, prompt, ragged, sphere, with_rhs, written_out
from scipy.optimize import linprog

from attsvm.base.errors import InputError
from attsvm.datasets import unit_sphere
from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import (
    Margins,
    MarginsBatch,
    multi_token_margins,
    optimal_tokens,
    relax,
    selection_batch,
    selection_margins,
)
from attsvm.norms import Frobenius, Lp
from attsvm.solvers import MarginSolution, SolutionBatch, max_margin, max_margin_batch
from attsvm.solvers.proofs import certify_hard


def same(one: MarginSolution, other: MarginSolution) -> None:
    """Bit for bit: both came out of the same compiled code."""
    for name in (
        "status",
        "norm",
        "gap",
        "violation",
        "tol",
        "slack",
        "solver",
        "iterations",
        "message",
        "rank",
        "unique",
    ):
        assert getattr(one, name) == getattr(other, name), name
    for name in ("W", "dual", "support", "slacks"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def mixture() -> list[Margins]:
    """Feasible and infeasible, small and large, of several shapes, with equalities, ties,
    duplicates, zero queries, nothing to ask.
    """
    rng = np.random.default_rng(5)
    X = rng.standard_normal((4, 6, 8))
    X[2, 5] = X[2, 3]
    duplicate = selection_margins(AttentionData(X, np.ones(4)), np.array([0, 0, 3, 0]))
    sets = np.zeros((3, 5), dtype=bool)
    sets[:, :2] = True
    tied = prompt(
        [[[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, -1.0], [0.0, -1.0]]], [0, 0]
    )
    small = sphere(6, 8, 10, 3)
    return [
        sphere(6, 8, 10, 0),
        sphere(6, 8, 2, 1),
        sphere(20, 16, 32, 0),
        duplicate,
        with_rhs(duplicate, (duplicate.sequence != 2).astype(np.float64)),
        cross(
            [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]], [[1.0, 0.0], [0.0, 0.0]], [0, 1]
        ),
        multi_token_margins(AttentionData(rng.standard_normal((3, 5, 7)), np.ones(3)), sets),
        tied,
        with_rhs(small, np.zeros(small.m)),
        with_rhs(small, np.where(np.arange(small.m) % 3 == 0, 0.0, 1.0 + np.arange(small.m))),
        selection_margins(
            AttentionData(np.ones((2, 1, 3)), np.ones(2)), np.zeros(2, dtype=np.int64)
        ),
        ragged(rng, 7, 9, 5, 4, feasible=True),
        ragged(rng, 7, 9, 5, 4, feasible=False),
    ]


def test_a_mixture_gives_what_single_calls_give() -> None:
    programmes = mixture()
    batch = max_margin_batch(programmes)
    assert isinstance(batch, SolutionBatch)
    assert len(batch) == len(programmes)
    for k, (solution, margins) in enumerate(zip(batch, programmes, strict=True)):
        assert solution.margins is margins
        same(solution, max_margin(margins))
        assert (batch.status[k], batch.norm[k], batch.gap[k], batch.violation[k]) == (
            solution.status,
            solution.norm,
            solution.gap,
            solution.violation,
        )
        np.testing.assert_array_equal(batch.W[k], solution.W)
        np.testing.assert_array_equal(batch.dual[batch.rows[k] : batch.rows[k + 1]], solution.dual)
    assert batch.optimal.tolist() == [s.status == "optimal" for s in batch]
    assert {"optimal", "infeasible"} == set(batch.status.tolist())


def test_the_shares_of_several_threads_hold_the_same_bits() -> None:
    programmes = [sphere(6, 8, d, seed) for seed in range(60) for d in (2, 3, 10)]
    by_shape = {d: [each for each in programmes if each.shape == (d, d)] for d in (2, 3, 10)}
    for each in by_shape.values():
        assert sum(margins.m for margins in each) < 4000  # one thread
    # several
    together = max_margin_batch(
        [*by_shape[10], *(sphere(6, 8, 10, 1000 + seed) for seed in range(100))]
    )
    for one, other in zip(max_margin_batch(by_shape[10]), together[:60], strict=True):
        same(one, other)
    for margins, solution in zip(programmes, max_margin_batch(programmes), strict=True):
        same(solution, max_margin(margins))


def test_gaps_and_violations_hold_for_the_original_data() -> None:
    """The certificate is computed once more by other code; both round at the level of 1e-15 times a
    few operations.
    """
    data, v = unit_sphere(6, 8, 10, seed=range(200))
    margins = selection_batch(data, optimal_tokens(data, v))
    batch = max_margin_batch(margins)
    assert batch.optimal.all()
    assert batch.gap.max() <= 1e-12
    assert batch.violation.max() <= 1e-14
    for k in range(0, 200, 7):
        dual = batch.dual[batch.rows[k] : batch.rows[k + 1]]
        assert (dual >= 0).all()
        proof = certify_hard(margins[k], Frobenius(), np.asarray(batch.W[k]), dual)
        assert proof.gap <= 1e-12
        assert proof.norm == pytest.approx(batch.norm[k], rel=1e-14)
        assert max(batch[k].kkt()) <= 1e-12


def test_verdicts_around_the_feasibility_threshold() -> None:
    """d = 2 is mostly infeasible, d = 6 feasible; HiGHS decides the linear programme of each on its
    own.
    """
    programmes = [sphere(6, 8, d, seed) for d in range(2, 7) for seed in range(40)]
    batch = max_margin_batch(programmes)
    for margins, solution in zip(programmes, batch, strict=True):
        A = written_out(margins)
        lp = linprog(
            np.zeros(A.shape[1]), A_ub=-A, b_ub=-margins.rhs, bounds=(None, None), method="highs"
        )
        assert solution.status == {0: "optimal", 2: "infeasible"}[lp.status], solution.message
        same(solution, max_margin(margins))
        if solution.status == "infeasible":
            lam = solution.dual
            assert (lam >= 0).all()
            assert np.linalg.norm(A.T @ lam) <= 1e-12 * lam.sum() * np.linalg.norm(A, axis=1).max()
            # one relation: no row can be spared
            assert np.linalg.matrix_rank(A[lam > 0]) == (lam > 0).sum() - 1
        else:
            assert solution.gap <= 1e-9
    assert 30 <= (batch.status == "infeasible").sum() <= 120


def test_a_tolerance_that_no_arithmetic_reaches_is_not_promised() -> None:
    batch = max_margin_batch([sphere(6, 8, 10, seed) for seed in range(5)], tol=1e-17)
    for solution in batch:
        assert solution.status == "inaccurate" or (
            solution.gap <= 1e-17 and solution.violation <= 1e-17
        )
        assert solution.gap <= 1e-12


def test_other_norms_and_soft_margins_come_as_a_batch_too() -> None:
    programmes = [sphere(6, 8, 10, 0), sphere(6, 8, 2, 1)]
    for arguments in ({"norm": Lp(1.5)}, {"slack": 2.0}):
        batch = max_margin_batch(programmes, **arguments)  # type: ignore[arg-type]
        for solution, margins in zip(batch, programmes, strict=True):
            np.testing.assert_array_equal(solution.W, max_margin(margins, **arguments).W)


def test_indices_slices_and_an_empty_batch() -> None:
    programmes = [sphere(6, 8, 10, seed) for seed in range(3)]
    batch = max_margin_batch(MarginsBatch.stack(programmes))
    assert batch[-1] is batch[2]
    assert [s.norm for s in batch[1:]] == batch.norm[1:].tolist()
    with pytest.raises(IndexError):
        batch[3]
    empty = max_margin_batch([])
    assert len(empty) == 0
    assert list(empty) == []
    assert isinstance(max_margin_batch([sphere(6, 8, 10, 0), sphere(6, 8, 2, 0)]).W, list)


def test_a_programme_that_is_refused_is_named() -> None:
    good = sphere(6, 8, 10, 0)
    with pytest.raises(InputError, match=r"programme 1: margins\.rhs\[2\] is -1"):
        max_margin_batch([good, with_rhs(good, np.r_[1.0, 1.0, -1.0, np.ones(39)])])
    broken = Margins(
        good.differences,
        np.full((6, 10), np.nan),
        good.offsets,
        good.rhs,
        good.token,
        good.selected,
    )
    with pytest.raises(InputError, match=r"programme 2: margins\.queries holds nan"):
        max_margin_batch([good, good, broken])


def test_arrays_of_other_kinds_give_the_same_bits() -> None:
    margins = sphere(6, 8, 10, 4)
    D, b = np.asfortranarray(margins.differences), margins.rhs.astype(np.int64)
    frozen = Margins(D, margins.queries.copy(), margins.offsets, b, margins.token, margins.selected)
    frozen.queries.setflags(write=False)
    same(max_margin(frozen), max_margin(margins))
    same(max_margin_batch([frozen, frozen])[1], max_margin(margins))


@pytest.mark.parametrize("name", ["fro", "l1", "linf"])
@pytest.mark.parametrize("tol", [1e-9, 1e-16, 1e-300])
def test_optimal_in_a_batch_promises_gap_and_violation(name: str, tol: float) -> None:
    """At tolerances about the rounding one of them is often within it alone; so is the status of
    the single solution.
    """
    programmes = [relax(sphere(5, 6, 4, seed), [0, 2]) for seed in range(12)]
    programmes += [sphere(5, 6, 8, seed) for seed in range(12)]
    batch = max_margin_batch(programmes, name, tol=tol)
    some = batch.optimal
    assert some.any() or tol < 1e-16
    assert (np.maximum(batch.gap[some], batch.violation[some]) <= tol).all()
    for k in np.flatnonzero(some)[:20].tolist():
        assert batch[k].status == "optimal"
    one_alone = np.minimum(batch.gap, batch.violation) <= tol
    assert (one_alone & ~some).any() or tol > 1e-16
