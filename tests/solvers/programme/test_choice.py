"""The choice of a solver: what the default is and why, what the alternatives answer, and what does
not fit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from instances import sphere

from attsvm.data import AttentionData
from attsvm.errors import InputError
from attsvm.geometry import Frobenius, Lp, Nuclear, Schatten, parse_norm
from attsvm.margins import ratio_margins
from attsvm.solvers import choose, max_margin, solver_names


@pytest.mark.parametrize(
    "name", ["fro", "l1", "linf", "lp:1.5", "lp:3", "nuc", "spec", "schatten:3"]
)
@pytest.mark.parametrize("size", [(6, 8, 10), (20, 16, 16)])
def test_every_alternative_answers_within_what_both_certify(
    name: str, size: tuple[int, int, int]
) -> None:
    margins, norm = sphere(*size, seed=0), parse_norm(name)
    choice = choose(margins, norm)
    default = max_margin(margins, norm)
    np.testing.assert_array_equal(max_margin(margins, norm, solver=choice.name).W, default.W)
    assert default.status == "optimal"
    for alternative in choice.alternatives:
        other = max_margin(margins, norm, solver=alternative)
        assert other.status != "infeasible"
        assert other.gap <= 0.05, (alternative, other.message)
        # Both norms lie above the least one, each by no more than its gap.
        assert abs(other.norm - default.norm) <= (other.gap + default.gap + 1e-12) * max(
            other.norm, default.norm
        )
        assert other.gap <= 1e-9 or alternative == "entrywise-splitting" or name in ("nuc", "spec")


@pytest.mark.parametrize("solver", ["nnls", "proximal"])
def test_methods_that_see_contradictions_prove_them_alone(solver: str) -> None:
    solution = max_margin(sphere(8, 8, 2, 0), solver=solver)
    assert solution.status == "infeasible"
    assert solution.farkas_residual() <= 1e-12


def test_methods_run_alone() -> None:
    margins = sphere(6, 8, 10, 0)
    shown = {name: max_margin(margins, solver=name).solver for name in choose(margins).alternatives}
    assert max_margin(margins, solver="small").solver == "principal pivoting"
    assert shown["active-set"] == "block ascent + pivoting"
    assert shown["ascent"] == "block ascent"
    assert shown["nnls"].startswith("non-negative least squares")
    assert shown["proximal"].startswith("proximal multipliers")
    assert max_margin(margins, Nuclear(), solver="schatten-newton").solver == "semismooth Newton"
    assert (
        max_margin(margins, Nuclear(), solver="schatten-splitting").solver
        == "alternating directions"
    )
    assert max_margin(margins, Lp(3), solver="entrywise-newton").solver.startswith("dual Newton")


def test_the_reason_names_the_size_and_what_it_decides() -> None:
    small, large = choose(sphere(6, 8, 10, 0)), choose(sphere(50, 16, 16, 0))
    assert (small.name, large.name) == ("small", "active-set")
    assert small.alternatives == ("active-set", "ascent", "pivoting", "nnls", "proximal")
    assert large.alternatives == ("ascent", "pivoting", "proximal")
    assert "42 constraints on 10 x 10 weights are few enough" in small.why
    assert "too many for least squares" in large.why
    assert "nnls" not in choose(sphere(6, 8, 10, 0), slack=1.0).alternatives
    assert choose(sphere(6, 8, 10, 0), Lp(2)) == choose(sphere(6, 8, 10, 0), Schatten(2)) == small
    assert "linear programme" in choose(sphere(6, 8, 10, 0), Lp(1)).why
    assert {small.name, *small.alternatives} <= set(solver_names())


def test_equalities_alone_are_a_linear_system() -> None:
    data = AttentionData(np.random.default_rng(0).standard_normal((2, 3, 3)), np.ones(2))
    margins = ratio_margins(
        data,
        np.array([[True, True, False], [True, False, True]]),
        np.array([[0.7, 0.3, 0.0], [0.4, 0.0, 0.6]]),
    )
    assert choose(margins).name == "least-norm"
    assert max_margin(margins).solver == "least norm"
    for solver in choose(margins).alternatives:
        np.testing.assert_allclose(
            max_margin(margins, solver=solver).W, max_margin(margins).W, atol=1e-8
        )
    assert (
        choose(replace(margins, equality=np.array([True, False]), rhs=np.abs(margins.rhs))).name
        == "active-set"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"solver": "simplex"},
            (
                "unknown solver 'simplex'; solvers are: least-norm, small, active-set, ascent,"
                " pivoting"
            ),
        ),
        (
            {"solver": "ascent", "norm": Lp(1)},
            r"'ascent' does not take this programme in the norm Lp\(1\); choose from: entrywise, ",
        ),
        (
            {"solver": "schatten", "norm": Frobenius()},
            r"'schatten' does not take .* Frobenius\(\); choose from: small, active-set, ascent",
        ),
        (
            {"solver": "nnls", "slack": 1.0},
            r"\(it is for .* hard margins with at most 131072 entries\); choose from: active-set",
        ),
        (
            {"solver": "small", "slack": 1.0},
            r"hard margins with at most 256 inequalities\); choose from: active-set",
        ),
    ],
)
def test_a_mismatch_names_solver_norm_and_choices(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        max_margin(sphere(6, 8, 10, 0), **arguments)
