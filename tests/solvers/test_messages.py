"""The message of a solution says what its other fields say, whatever was done to the programme on
the way: right-hand sides and rows at another scale, equalities as pairs, rows in blocks.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamed import Selections

from attsvm import (
    AttentionData,
    Margins,
    MarginSolution,
    max_margin,
    max_margin_batch,
    max_margin_blocks,
    selection_margins,
)
from attsvm.base.files import load_arrays, save_arrays

NUMBER = r"(\d[\d.]*(?:e[+-]\d+)?|inf)"


def numbers_are_those_of_the_fields(solution: MarginSolution) -> set[str]:
    """Every number beside a word that names a field equals the field; the words that were there."""
    margins, message = solution.margins, solution.message
    fields: dict[str, tuple[str, Any]] = {
        "norm": (rf"\bnorm {NUMBER}", f"{solution.norm:.6g}"),
        "gap": (rf"\bgap {NUMBER}", f"{solution.gap:.1e}"),
        "violation": (rf"\bviolation {NUMBER}", f"{solution.violation:.1e}"),
        "tolerance": (rf"\btolerance {NUMBER}", f"{solution.tol:.1e}"),
        "support": (r"(\d+) of \d+ constraints", str(len(solution.support))),
        "constraints": (
            r"\d+ of (\d+) constraints",
            str(solution.constraints or margins.m),
        ),
        "equalities": (r"(\d+) of them equalities", str(int(margins.equalities.sum()))),
        "certificate": (
            r"certificate over (\d+) constraints",
            str(np.count_nonzero(solution.dual)),
        ),
        "residual": (rf"residual {NUMBER}", f"{solution.farkas_residual():.0e}"),
        "all": (r"all (\d+) constraints", str(solution.constraints)),
        "blocks": (r"in (\d+) blocks?", str(solution.blocks)),
        "passes": (r"(\d+) passes", str(solution.passes)),
    }
    assert message.startswith(f"{solution.status}: ")
    there = set()
    for name, (pattern, value) in fields.items():
        for number in re.findall(pattern, message):
            assert number == value, (name, message)
            there.add(name)
    if solution.status == "optimal" and solution.norm > 0.0:
        assert there >= {"norm", "gap", "violation", "support", "constraints"}, message
        assert ("equalities" in there) == bool(margins.equalities.any())
    if solution.status == "infeasible" and np.count_nonzero(solution.dual) > 1:
        assert there >= {"certificate", "residual"}, message
    return there


def lattice(rng: np.random.Generator) -> Margins:
    """Whole numbers, some rows equalities of either sign, at scales of 2**-60 to 2**60."""
    n, d_x, d_z = rng.integers((1, 2, 1), (4, 5, 3))
    counts = rng.integers(1, 4, size=n)
    m = int(counts.sum())
    rows = rng.integers(-3, 4, size=(m, d_x)).astype(float)
    queries = rng.integers(-2, 3, size=(n, d_z)).astype(float)
    equality = rng.random(m) < 0.4
    rhs = rng.integers(0, 4, size=m) * np.where(equality, rng.choice([-1.0, 1.0], m), 1.0)
    a, b, c = np.exp2(rng.integers(-60, 61, size=3))
    return Margins(
        rows * a,
        queries * b,
        np.concatenate([[0], np.cumsum(counts)]),
        rhs * c,
        np.arange(m),
        np.zeros(n, dtype=int),
        equality=equality,
    )


@pytest.mark.parametrize(
    ("norm", "count"), [("fro", 300), ("l1", 30), ("linf", 30), ("lp:1.5", 15), ("nuc", 15)]
)
def test_programmes_of_whole_numbers_at_every_scale(norm: str, count: int) -> None:
    rng = np.random.default_rng(0)
    statuses = set()
    for _ in range(count):
        margins = lattice(rng)
        solution = max_margin(margins, norm)
        numbers_are_those_of_the_fields(solution)
        alone = replace(margins, rhs=np.maximum(margins.rhs, 0.0), equality=None)
        numbers_are_those_of_the_fields(max_margin(alone, norm))
        numbers_are_those_of_the_fields(max_margin_batch([alone], norm)[0])
        statuses.add(solution.status)
    assert statuses >= {"optimal", "infeasible"}


def test_an_equality_beside_inequalities_that_ask_for_two() -> None:
    margins = Margins(
        np.array([[2.0, 3.0, -2.0], [-2.0, 2.0, 2.0], [0.0, -2.0, 2.0]]) * 2.0**40,
        np.ones((1, 1)),
        np.array([0, 3]),
        np.array([2.0, 1.0, 1.0]),
        np.array([1, 2, 3]),
        np.array([0]),
        equality=np.array([True, False, False]),
    )
    solution = max_margin(margins)
    assert solution.norm == pytest.approx(float(np.linalg.norm(solution.W)), rel=1e-15)
    assert f"norm {solution.norm:.6g}," in solution.message
    assert "of 3 constraints support it, 1 of them equalities)" in solution.message


def test_soft_margins_and_margins_of_zero() -> None:
    rng = np.random.default_rng(1)
    for _ in range(60):
        margins = replace(lattice(rng), equality=None)
        margins = replace(margins, rhs=np.abs(margins.rhs))
        scale = float(np.abs(margins.rhs).max()) or 1.0
        rows = float(np.abs(margins.differences).max() * np.abs(margins.queries).max()) or 1.0
        numbers_are_those_of_the_fields(max_margin(margins, slack=scale / rows**2))
        nothing = max_margin(replace(margins, rhs=np.zeros(margins.m)))
        assert nothing.message == (
            "optimal: no right-hand side is positive, so the zero weights are the solution"
        )


@pytest.mark.parametrize(("tol", "status"), [(1e-9, "optimal"), (1e-300, "inaccurate")])
def test_programmes_that_are_out_of_reach(tol: float, status: str) -> None:
    rng = np.random.default_rng(2)
    data = AttentionData(rng.normal(size=(4, 3, 5)), np.ones(4), rng.normal(size=(4, 3)))
    solution = max_margin(selection_margins(data, [0, 1, 2, 0]), "lp:1.3", tol=tol)
    assert solution.status == status
    there = numbers_are_those_of_the_fields(solution)
    assert ("tolerance" in there) == (status == "inaccurate")


@pytest.mark.parametrize("chance", [False, True])
def test_blocks(chance: bool) -> None:
    blocks = Selections(50, 9, 2 if chance else 5, 4, chance=chance)
    solution = max_margin_blocks(Margins.from_blocks(blocks, blocks.count))
    assert solution.status == ("infeasible" if chance else "optimal")
    assert numbers_are_those_of_the_fields(solution) >= {"all", "blocks", "passes"}


def test_a_solution_with_other_fields_says_so() -> None:
    data = AttentionData([[[2, 0], [0, 0], [0, 1]]], labels=[1], queries=[[1]])
    solution = max_margin(selection_margins(data, [0]))
    other = replace(solution, norm=7.25, gap=0.5, status="inaccurate", out_of_time=True)
    assert other.message == (
        f"inaccurate: the tolerance 1.0e-09 was not reached (norm 7.25, gap 5.0e-01, violation"
        f" {solution.violation:.1e}); allow more time or a larger tol"
    )


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_files_that_hold_a_message_are_read_and_print_their_fields(
    tmp_path: Path, suffix: str
) -> None:
    rng, path = np.random.default_rng(3), tmp_path / f"old{suffix}"
    kept = [max_margin(lattice(rng)) for _ in range(10)]
    far = Margins(
        np.array([[1e-300]]), np.array([[1e-300]]), [0, 1], np.ones(1), np.array([1]), np.array([0])
    )
    kept.append(max_margin_batch([far])[0])
    assert "leave the range of float64" in kept[-1].message
    assert kept[-1].gap == 1.0
    for solution in kept:
        solution.save(path)
        arrays = load_arrays(path)
        record = json.loads(arrays["record"].tobytes())
        for new in ("blocks", "reason"):
            del record[new]
        record["message"] = solution.message if solution.solver == "none" else "optimal: norm 3"
        text = np.frombuffer(json.dumps(record).encode(), dtype=np.uint8)
        save_arrays(arrays | {"record": text}, path)
        assert MarginSolution.load(path).message == solution.message
