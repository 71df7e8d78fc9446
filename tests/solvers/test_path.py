"""Sequences of related programmes: every step is what it is alone, whatever it starts from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from instances import sphere, with_rhs

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins, selection_margins
from attsvm.norms import Frobenius, Lp, Norm, Nuclear, Schatten, Spectral
from attsvm.solvers import margin_path, max_margin

INF = float("inf")
NORMS: list[Norm] = [
    Frobenius(),
    Lp(1.75),
    Lp(1.1),
    Lp(1),
    Lp(INF),
    Lp(3),
    Nuclear(),
    Spectral(),
    Schatten(3),
]


def drifted(margins: Margins, size: float, seed: int) -> Margins:
    rng = np.random.default_rng(seed)
    D, Z = (a + size * rng.standard_normal(a.shape) for a in (margins.differences, margins.queries))
    return replace(margins, differences=D, queries=Z)


def selections(steps: int) -> list[Margins]:
    """A training run's selections: sequence by sequence, another token of random data is selected
    (feasible: d >= n).
    """
    rng = np.random.default_rng(4)
    data = AttentionData(rng.standard_normal((6, 7, 9)), np.ones(6), rng.standard_normal((6, 9)))
    tokens = rng.integers(7, size=6)
    out = [selection_margins(data, tokens.copy())]
    for i in range(steps):
        tokens[i] = (tokens[i] + 1) % 7
        out.append(selection_margins(data, tokens.copy()))
    return out


def test_through_all_norms() -> None:
    margins = sphere(6, 8, 10, 0)
    path = margin_path(margins, NORMS)
    for norm, step in zip(NORMS, path, strict=True):
        alone = max_margin(margins, norm)
        assert step.status == "optimal"
        assert step.gap <= step.tol
        assert step.norm == pytest.approx(alone.norm, rel=2 * step.tol)
        assert step.unique == alone.unique


@pytest.mark.parametrize("norm", NORMS, ids=repr)
def test_drifting_data(norm: Norm) -> None:
    programmes = [sphere(6, 8, 10, 1)]
    for k, size in enumerate((1e-9, 1e-4, 1e-2, 0.3)):
        programmes.append(drifted(programmes[-1], size, k))
    for margins, step in zip(programmes, margin_path(programmes, norm), strict=True):
        alone = max_margin(margins, norm)
        assert step.status == alone.status
        assert step.norm == pytest.approx(alone.norm, rel=2 * step.tol)


@pytest.mark.parametrize("norm", NORMS, ids=repr)
def test_selections_of_a_training_run(norm: Norm) -> None:
    programmes = selections(4)
    for margins, step in zip(programmes, margin_path(programmes, norm), strict=True):
        assert step.status == "optimal"
        assert step.norm == pytest.approx(max_margin(margins, norm).norm, rel=2 * step.tol)


def test_rows_are_matched_by_sequence_and_tokens() -> None:
    from attsvm.solvers.starts import start_from

    before, after = selections(1)
    found = max_margin(before)
    start = start_from(after, found, None)
    assert start is not None
    # Only sequence 0 selects another token; elsewhere multipliers are kept up to one common factor.
    kept = after.sequence > 0
    assert not start.dual[~kept].any()
    old = {(int(before.sequence[c]), int(before.token[c])): found.dual[c] for c in range(before.m)}
    wanted = np.array(
        [old[int(after.sequence[c]), int(after.token[c])] for c in np.flatnonzero(kept)]
    )
    factor = start.dual[kept].sum() / wanted.sum()
    np.testing.assert_allclose(start.dual[kept], factor * wanted, rtol=1e-12)


def test_an_infeasible_step_is_stepped_over() -> None:
    good, bad = sphere(6, 8, 10, 2), sphere(6, 8, 10, 2)
    bad = replace(bad, differences=np.where(np.arange(bad.m)[:, None] == 3, 0.0, bad.differences))
    path = margin_path([good, bad, good], Lp(1.5))
    assert [step.status for step in path] == ["optimal", "infeasible", "optimal"]
    assert path[2].norm == pytest.approx(path[0].norm, rel=1e-9)
    assert path[2].iterations < path[0].iterations


@pytest.mark.parametrize("p", [1.0, 1.5, 3.0])
def test_soft_margins(p: float) -> None:
    programmes = [sphere(10, 8, 3, 0), drifted(sphere(10, 8, 3, 0), 1e-2, 0)]
    for margins, step in zip(programmes, margin_path(programmes, Lp(p), slack=0.5), strict=True):
        alone = max_margin(margins, Lp(p), slack=0.5)
        assert step.status == "optimal"
        objectives = [0.5 * s.norm**2 + 0.5 * s.slacks.sum() for s in (step, alone)]
        assert objectives[0] == pytest.approx(objectives[1], rel=1e-8)


def test_a_solution_nearby_saves_iterations() -> None:
    margins = sphere(20, 16, 32, 0)
    cold = max_margin(margins, Lp(1.1))
    warm = max_margin(drifted(margins, 1e-4, 0), Lp(1.1), warm_start=cold)
    assert warm.iterations < cold.iterations


def test_refusals() -> None:
    margins = sphere(6, 8, 10, 0)
    with pytest.raises(InputError, match="one programme and one norm"):
        margin_path(margins, Frobenius())
    with pytest.raises(InputError, match="2 programmes and 1 norms"):
        margin_path([margins, margins], [Frobenius()])
    with pytest.raises(
        InputError,
        match=(
            r"warm_start solves 5 sequences with weights \(10, 10\); the programme has 6 sequences"
        ),
    ):
        max_margin(margins, warm_start=max_margin(sphere(5, 8, 10, 0)))
    nothing = max_margin(with_rhs(margins, np.zeros(margins.m)))
    assert max_margin(margins, Lp(1.5), warm_start=nothing).status == "optimal"
