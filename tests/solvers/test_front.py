"""The front door: what it accepts, what it refuses and in which words, and what importing it
costs.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

import numpy as np
import pytest
from instances import sphere, with_rhs
from judge.kinds import hard

from attsvm.base.errors import InputError
from attsvm.datasets import unit_sphere
from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins, optimal_tokens, selection_batch, selection_margins
from attsvm.norms import Frobenius, parse_norm
from attsvm.solvers import (
    MarginSolution,
    margin_path,
    max_margin,
    max_margin_batch,
    max_margin_blocks,
)


def test_several_programmes_give_several_solutions() -> None:
    programmes = [sphere(6, 8, 10, seed) for seed in range(3)] + [sphere(6, 8, 2, 1)]
    solutions = max_margin_batch(programmes, Frobenius())
    assert [s.status for s in solutions] == ["optimal"] * 3 + ["infeasible"]
    np.testing.assert_array_equal(solutions[1].W, max_margin(programmes[1]).W)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"norm": "manhattan"}, r"unknown norm 'manhattan'; known norms: fro, "),
        ({"norm": 2}, r"norm is 2; give an attsvm.norms.Norm such as Frobenius\(\)"),
        ({"slack": 0.0}, "slack is 0.0; it must be positive and finite"),
        ({"slack": -1.0}, "slack is -1.0"),
        ({"slack": float("inf")}, "slack is inf"),
        ({"slack": float("nan")}, "slack is nan"),
        ({"tol": 0.0}, "tol is 0.0"),
        ({"max_seconds": -1.0}, "max_seconds is -1.0"),
        (
            {"warm_start": np.ones(3)},
            r"warm_start has shape \(3,\); the programme has 42 constraints",
        ),
        ({"warm_start": np.full(42, np.nan)}, r"warm_start\[0\] is nan"),
        ({"warm_start": np.r_[np.ones(41), -1.0]}, r"warm_start\[41\] is -1.0"),
    ],
)
def test_refused_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        max_margin(sphere(6, 8, 10, 0), **arguments)


@pytest.mark.parametrize("name", ["fro", "spectral", "lp:1.75", "schatten:3", "linf"])
def test_a_name_is_as_good_as_the_norm(name: str) -> None:
    margins, norm = sphere(6, 8, 10, 0), parse_norm(name)
    named = max_margin(margins, name)
    np.testing.assert_array_equal(named.W, max_margin(margins, norm).W)
    assert named.geometry == norm
    together = max_margin_batch([margins, margins], name)
    assert [solution.geometry for solution in together] == [norm, norm]
    path = margin_path(margins, ["fro", name])
    assert [solution.geometry for solution in path] == [Frobenius(), norm]


def test_refused_programmes() -> None:
    margins = sphere(6, 8, 10, 0)
    with pytest.raises(
        InputError, match=r"rhs\[2\] is -1; right-hand sides must be zero or positive"
    ):
        max_margin(with_rhs(margins, np.r_[1.0, 1.0, -1.0, np.ones(39)]))
    broken = Margins(
        margins.differences,
        np.full((6, 10), np.inf),
        margins.offsets,
        margins.rhs,
        margins.token,
        margins.selected,
    )
    with pytest.raises(InputError, match=r"margins.queries holds inf at \[0, 0\]"):
        max_margin(broken)
    rng = np.random.default_rng(0)
    huge = AttentionData(1e120 * rng.standard_normal((2, 3, 4)), np.ones(2))
    with pytest.raises(
        InputError, match=r"leave the range of float64; divide the tokens by 2\.0\*\*\d+"
    ):
        max_margin(selection_margins(huge, np.zeros(2, dtype=np.int64)))


def test_import_brings_no_torch() -> None:
    code = (
        "import sys, attsvm.solvers; print([m for m in ('torch', 'scipy.linalg', 'scipy.optimize',"
        " 'concurrent.futures', 'attsvm.datasets.catalogue') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def bad(solution: MarginSolution) -> bool:
    return solution.status == "optimal" and (
        solution.gap > solution.tol or solution.violation > solution.tol
    )


@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-9, 1e-13, 1e-17])
def test_optimal_is_a_promise_at_every_tolerance(tol: float) -> None:
    for seed in range(3):
        assert not bad(max_margin(sphere(20, 16, 32, seed), tol=tol))


def test_certified_angle_to_the_frobenius_solution_holds_and_is_small_at_it() -> None:
    margins = sphere(60, 24, 16, 0)
    exact = max_margin(margins)
    assert exact.angle_bound() <= 1e-6
    for norm in ("lp:1.5", "lp:3", "schatten:1.5", "schatten:3"):
        for tol in (1e-1, 1e-9):
            other = max_margin(margins, norm, tol=tol)
            cosine = np.sum(exact.W * other.W) / (exact.norm * np.linalg.norm(other.W))
            assert 0.01 < np.arccos(cosine) <= other.angle_bound() + exact.angle_bound() < 0.5


def test_residuals_of_the_optimality_conditions() -> None:
    residuals = max_margin(sphere(20, 16, 32, 0)).kkt()
    assert max(residuals) <= 1e-12


@pytest.mark.parametrize(
    ("kind", "seed", "norm"),
    [
        pytest.param("feature-scales", 12001815, "spec", marks=pytest.mark.slow),
        ("soft-hostile", 12004334, "lp:10"),
    ],
)
def test_methods_that_leave_float64_on_the_way_raise_nothing(
    kind: str, seed: int, norm: str
) -> None:
    """Multipliers of 1e160 on the way: an overflow was a warning, a power of it an exception."""
    programme = hard(kind, seed)
    solution = max_margin(programme.margins, norm, slack=programme.slack)
    assert solution.status in ("optimal", "almost infeasible", "inaccurate")


def test_a_selection_may_be_a_list_and_a_batch_of_selections_one_array() -> None:
    data, head = unit_sphere(n=6, T=8, d=10, seed=0)
    tokens = optimal_tokens(data, head)
    alone = max_margin(selection_margins(data, tokens))
    listed = max_margin(selection_margins(data, tokens.tolist()))
    np.testing.assert_array_equal(listed.W, alone.W)
    both = AttentionData(*(np.stack([a, a]) for a in (data.tokens, data.labels, data.queries)))
    batch = max_margin_batch(selection_batch(both, np.stack([tokens, tokens])))
    np.testing.assert_allclose(batch.W[1], alone.W, atol=1e-12)


def test_what_is_no_programme_is_refused_with_the_function_that_takes_it() -> None:
    data, head = unit_sphere(n=6, T=8, d=10, seed=0)
    both = AttentionData(*(np.stack([a, a]) for a in (data.tokens, data.labels, data.queries)))
    tokens = optimal_tokens(data, head)
    margins: Any = selection_margins(data, tokens)
    blocks = Margins.from_blocks([margins])
    solve: Any = max_margin
    batch: Any = max_margin_batch
    in_blocks: Any = max_margin_blocks
    for call, words in (
        (lambda: solve(data), r"call max_margin\(selection_margins\(data, tokens\), norm\)"),
        (lambda: solve(both), r"call max_margin_batch\(selection_batch\(data, tokens\), norm\)"),
        (lambda: solve([margins]), r"call max_margin_batch\(programmes, norm\)"),
        (lambda: solve(blocks), r"call max_margin_blocks\(blocks, norm\)"),
        (
            lambda: solve(tokens),
            r"max_margin was given ndarray of shape \(6,\); give margins",
        ),
        (lambda: solve("tfsvm-1"), "max_margin was given 'tfsvm-1'; give margins, such as"),
        (
            lambda: batch(margins),
            r"max_margin_batch was given .*; call max_margin\(margins,",
        ),
        (lambda: batch(blocks), r"call max_margin_blocks\(blocks, norm\)"),
        (lambda: batch(3), "max_margin_batch was given 3; give a list of margins, such as"),
        (lambda: batch([margins, data]), "entry 1 of the list is AttentionData; give margins"),
        (lambda: in_blocks(margins), r"max_margin_blocks was given .*; call max_margin\("),
        (lambda: in_blocks([margins]), r"call max_margin_batch\(programmes, norm\)"),
        (lambda: in_blocks(3), "give blocks, such as Margins.from_blocks"),
        (lambda: solve(margins, tokens), r"norm is ndarray of shape \(6,\); give"),
        (lambda: solve(margins, Frobenius), "norm is the class Frobenius; give"),
        (lambda: solve(margins, tol="tight"), "tol is 'tight'; it must be positive"),
        (lambda: in_blocks(blocks, max_seconds=-1.0), "max_seconds is -1.0; it must be positive"),
        (lambda: margin_path(cast(Any, data), "fro"), "was given AttentionData; give margins"),
        (lambda: selection_margins(margins, tokens), r"data is Margins of shape \(10, 10\); give"),
    ):
        with pytest.raises(InputError, match=words) as refused:
            call()
        assert "\n" not in str(refused.value)
