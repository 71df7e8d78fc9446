"""Second opinions: independent solvers agree on right answers, in every norm that they take, and
wrong answers do not pass.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from instances import sphere

from attsvm.data import AttentionData
from attsvm.errors import InputError
from attsvm.geometry import Frobenius, Lp, Nuclear, Schatten, parse_norm
from attsvm.margins import graph_margins, multi_token_margins, relax
from attsvm.solvers import max_margin
from attsvm.solvers.verify.verification import second_opinion, verified

pytest.importorskip("clarabel")
pytest.importorskip("highspy")

NORMS = [
    "fro",
    "l1",
    "linf",
    "lp:1.0001",
    "lp:1.5",
    "lp:3",
    "lp:200",
    "nuc",
    "spec",
    "rows",
    "maxrow",
]


@pytest.mark.parametrize("name", NORMS)
def test_clarabel_agrees_in_every_norm(name: str) -> None:
    for margins in (sphere(6, 8, 10, 0), sphere(3, 4, 12, 1), relax(sphere(5, 5, 4, 2), [0, 2])):
        solution = max_margin(margins, parse_norm(name), verify="clarabel")
        opinion = solution.second_opinion
        assert solution.status == "optimal"
        assert opinion is not None
        assert opinion.solver.startswith("clarabel 0.")
        assert opinion.agrees is True
        assert opinion.difference is not None
        assert opinion.difference <= 1e-7
        assert opinion.gap is not None
        assert opinion.gap <= 1e-7


@pytest.mark.parametrize("name", ["fro", "l1", "linf"])
def test_highs_agrees_where_the_programme_is_linear_or_quadratic(name: str) -> None:
    for margins in (sphere(6, 8, 10, 0), relax(sphere(5, 5, 4, 2), [0, 2])):
        opinion = max_margin(margins, parse_norm(name), verify="highs").second_opinion
        assert opinion is not None
        assert opinion.agrees is True
        assert opinion.difference is not None
        assert opinion.difference <= 1e-8


@pytest.mark.parametrize("name", ["lp:1.5", "nuc", "schatten:3"])
def test_highs_answers_for_feasibility_elsewhere_and_says_so(name: str) -> None:
    opinion = max_margin(sphere(6, 8, 10, 0), parse_norm(name), verify="highs").second_opinion
    assert opinion is not None
    assert opinion.agrees is True
    assert opinion.objective is opinion.difference is None
    assert "only that weights exist" in opinion.reason


@pytest.mark.parametrize("verify", ["clarabel", "highs"])
@pytest.mark.parametrize("name", ["fro", "l1", "lp:3", "nuc"])
def test_verdicts_of_infeasibility(name: str, verify: Any) -> None:
    solution = max_margin(sphere(8, 8, 2, 0), parse_norm(name), verify=verify)
    assert solution.status == "infeasible"
    assert solution.second_opinion is not None
    assert solution.second_opinion.verdict == "infeasible"
    assert solution.second_opinion.agrees is True


@pytest.mark.parametrize("verify", ["clarabel", "highs"])
def test_equalities(verify: Any) -> None:
    rng = np.random.default_rng(0)
    sets = multi_token_margins(
        AttentionData(rng.standard_normal((2, 4, 4)), np.ones(2)),
        np.array([[1, 1, 0, 0], [1, 0, 1, 0]], dtype=bool),
    )
    graph = graph_margins(
        rng.standard_normal((5, 5)), np.array([[0, 1, 2], [0, 2, 1], [0, 1, 3], [4, 0, 1]])
    )
    for margins in (sets, graph):
        for norm in (Frobenius(), Lp(1)):
            opinion = max_margin(margins, norm, verify=verify).second_opinion
            assert opinion is not None
            assert opinion.agrees is True


@pytest.mark.parametrize("verify", ["clarabel", "highs"])
def test_soft_margins_and_scales(verify: Any) -> None:
    for margins in (
        sphere(8, 8, 2, 0),
        replace(sphere(8, 8, 2, 0), differences=sphere(8, 8, 2, 0).differences * 2.0**100),
    ):
        slack = 0.7 * float(np.abs(margins.differences).max()) ** -2
        opinion = max_margin(margins, slack=slack, verify=verify).second_opinion
        assert opinion is not None
        assert opinion.agrees is True
    far = replace(sphere(6, 8, 10, 0), queries=sphere(6, 8, 10, 0).queries * 2.0**450)
    opinion = max_margin(far, verify=verify).second_opinion
    assert opinion is not None
    assert opinion.objective == pytest.approx(
        max_margin(sphere(6, 8, 10, 0)).norm * 2.0**-450, rel=1e-7
    )


@pytest.mark.parametrize("verify", ["clarabel", "highs"])
def test_a_wrong_answer_does_not_pass(verify: Any) -> None:
    """Weights that are too long by a hundred thousandth, and a verdict that is the wrong way
    round.
    """
    solution = max_margin(sphere(6, 8, 10, 0))
    long = verified(replace(solution, W=1.00001 * solution.W, norm=1.00001 * solution.norm), verify)
    assert long.status == "inaccurate"
    assert f"{solution.norm:.6g}"[:6] in long.message
    assert f"ours is {1.00001 * solution.norm:.10g}" in long.message
    assert "disagrees" in long.message
    wrong = verified(replace(solution, status="infeasible", norm=math.inf), verify)
    assert wrong.status == "inaccurate"
    assert "ours is infeasible" in wrong.message
    impossible = max_margin(sphere(8, 8, 2, 0))
    claimed = verified(replace(impossible, status="optimal", norm=1.0, W=np.ones((2, 2))), verify)
    assert claimed.status == "inaccurate"
    assert "its answer is infeasible, ours is 1" in claimed.message


def test_zero_right_hand_sides_need_no_solver() -> None:
    opinion = max_margin(relax(sphere(3, 3, 3, 0), []), verify="clarabel").second_opinion
    assert opinion is not None
    assert opinion.agrees is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"verify": "mosek"}, r"verify is 'mosek'; use 'clarabel' or 'highs'"),
        (
            {"verify": "clarabel", "norm": Schatten(3)},
            r"clarabel has no cone for the norm Schatten\(3\)",
        ),
    ],
)
def test_impossible_requests_are_refused_in_one_sentence(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        max_margin(sphere(3, 3, 3, 0), **arguments)


def test_too_large_and_not_installed_are_said_before_solving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # solving would raise a TypeError
    monkeypatch.setattr("attsvm.solvers.frobenius.solve", None)
    with pytest.raises(
        InputError,
        match=(
            "verify='clarabel' writes out 12600 constraints of 64 x 64 weights, which is too many"
        ),
    ):
        max_margin(sphere(200, 64, 64, 0), verify="clarabel")
    with pytest.raises(
        InputError, match="semidefinite blocks of at most 150 rows here, and these weights need 160"
    ):
        max_margin(sphere(80, 2, 90, 0), Nuclear(), verify="clarabel")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        InputError,
        match=r"needs the package highspy; install it with: pip install 'attsvm\[peers\]'",
    ):
        max_margin(sphere(3, 3, 3, 0), verify="highs")


def test_a_peer_that_gives_no_answer_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from attsvm.solvers.verify import verification
    from attsvm.solvers.verify.peers import Answer

    monkeypatch.setattr(
        verification,
        "by_clarabel",
        lambda rows, norm: Answer("NumericalError", "none", None, None, False),
    )
    solution = max_margin(sphere(3, 3, 3, 0))
    opinion = second_opinion(solution, "clarabel")
    assert opinion.agrees is None
    assert "gave no answer (NumericalError)" in opinion.reason
    assert verified(solution, "clarabel").status == "optimal"
