"""Hostile input in every norm: the right answer or one clear sentence, never a wrong `optimal`.

Each case names the answers that are right. Whatever is called optimal or infeasible is proved again
in extended precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from extended import assert_proved, farkas
from instances import cross, prompt, sphere, with_rhs

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins, decoder_margins, multi_token_margins, selection_margins
from attsvm.norms import parse_norm
from attsvm.solvers import max_margin

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
    "schatten:1.5",
    "schatten:3",
    "rows",
    "maxrow",
]

Case = Callable[[], Margins]


def scaled(tokens: float, queries: float, base: Margins | None = None) -> Margins:
    base = sphere(3, 4, 4, 0) if base is None else base
    return replace(base, differences=base.differences * tokens, queries=base.queries * queries)


def duplicates() -> Margins:
    """Every token three times, the selected one once."""
    margins = sphere(3, 4, 4, 1)
    again = np.repeat(np.arange(margins.m), 3)
    offsets = 3 * margins.offsets
    return Margins(
        margins.differences[again],
        margins.queries,
        offsets,
        margins.rhs[again],
        margins.token[again],
        margins.selected,
    )


def selected_twice() -> Margins:
    """A rival equals the selected token: no weights tell them apart."""
    X = np.random.default_rng(0).standard_normal((2, 3, 3))
    X[1, 2] = X[1, 0]
    return selection_margins(AttentionData(X, np.ones(2)), np.array([0, 0]))


def ties() -> Margins:
    """Integer points on a lattice: many constraints tight at once, and many solutions of the
    polyhedral norms.
    """
    return prompt(
        [[[0, 0], [-1, -1], [-1, 1]], [[1, 1], [0, 1], [1, 0]], [[1, 0], [0, 0], [0, -1]]],
        [0, 0, 0],
    )


def rank_deficient() -> Margins:
    """Tokens on a line, queries on another, inside five dimensions."""
    rng = np.random.default_rng(2)
    direction, other = rng.standard_normal(5), rng.standard_normal(5)
    X = np.array([[3.0, 1.0, -1.0], [2.0, 0.5, 0.0]])[:, :, None] * direction
    return cross(X, np.array([1.0, 2.0])[:, None] * other, [0, 0])


def silent_query(rhs: float) -> Margins:
    margins = sphere(3, 4, 4, 3)
    queries = margins.queries.copy()
    queries[1] = 0.0
    return with_rhs(replace(margins, queries=queries), np.where(margins.sequence == 1, rhs, 1.0))


def no_rivals() -> Margins:
    return selection_margins(
        AttentionData(np.random.default_rng(0).standard_normal((3, 1, 4)), np.ones(3)),
        np.zeros(3, dtype=int),
    )


def mixed(spread: float) -> Margins:
    """Sequences of very different sizes in one programme, feasible by a teacher."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((4, 3, 4)) * (spread ** np.array([1.0, -1.0, 0.5, 0.0]))[:, None, None]
    W, Z = rng.standard_normal((4, 3)), rng.standard_normal((4, 3))
    return selection_margins(
        AttentionData(X, np.ones(4), Z), np.einsum("ntd,de,ne->nt", X, W, Z).argmax(axis=1)
    )


def typed(dtype: Any) -> Margins:
    rng = np.random.default_rng(6)
    X, Z = (
        (8 * rng.standard_normal((3, 3, 4))).astype(dtype),
        (8 * rng.standard_normal((3, 3))).astype(dtype),
    )
    return selection_margins(AttentionData(X, np.ones(3), Z), np.array([0, 1, 2]))


def raw(change: Callable[[np.ndarray], Any]) -> Margins:
    """A programme whose arrays are as a caller may hand them over."""
    margins = sphere(3, 4, 4, 8)
    return replace(
        margins,
        differences=change(margins.differences),
        queries=change(margins.queries),
        rhs=change(margins.rhs),
    )


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.setflags(write=False)
    return array


def every_other(array: np.ndarray) -> np.ndarray:
    return np.repeat(array, 2, axis=-1)[..., ::2]


def sets() -> Margins:
    """Equalities at a large scale of the tokens and a small one of the queries."""
    rng = np.random.default_rng(9)
    chosen = np.array([[True, True, False, False], [True, False, True, False]])
    X, Z = 1e120 * rng.standard_normal((2, 4, 4)), 1e-30 * rng.standard_normal((2, 4))
    return multi_token_margins(AttentionData(X, np.ones(2), Z), chosen)


def labels_conflict() -> Margins:
    X = np.array([[[1.0, 2.0]], [[2.0, 4.0]], [[1.0, -1.0]]])
    return decoder_margins(AttentionData(X, np.array([1.0, -1.0, 1.0])), np.zeros(3, dtype=int))


ANSWER, SENTENCE = {"optimal"}, {"sentence"}
CASES: dict[str, tuple[Case, set[str]]] = {
    "tokens 1e-150": (lambda: scaled(1e-150, 1.0), ANSWER),
    "tokens 1e150": (lambda: scaled(1e150, 1.0), ANSWER),
    "queries 1e-150": (lambda: scaled(1.0, 1e-150), ANSWER),
    "queries 1e150": (lambda: scaled(1.0, 1e150), ANSWER),
    "tokens 1e-150, queries 1e150": (lambda: scaled(1e-150, 1e150), ANSWER),
    "tokens 1e150, queries 1e-150": (lambda: scaled(1e150, 1e-150), ANSWER),
    "tokens 1e-70, queries 1e-70": (lambda: scaled(1e-70, 1e-70), ANSWER),
    "both 1e150": (lambda: scaled(1e150, 1e150), SENTENCE),
    "both 1e-150": (lambda: scaled(1e-150, 1e-150), SENTENCE),
    "infeasible at 1e150": (lambda: scaled(1e150, 1e150, sphere(8, 8, 2, 0)), {"infeasible"}),
    "infeasible at 1e-150": (lambda: scaled(1e-150, 1e-150, sphere(8, 8, 2, 0)), {"infeasible"}),
    "right-hand sides 1e30": (lambda: with_rhs(sphere(3, 4, 4, 0), np.full(9, 1e30)), ANSWER),
    "right-hand sides 1e-30": (lambda: with_rhs(sphere(3, 4, 4, 0), np.full(9, 1e-30)), ANSWER),
    "duplicates": (duplicates, ANSWER),
    "selected twice": (selected_twice, {"infeasible"}),
    "ties": (ties, ANSWER),
    "rank deficient": (rank_deficient, ANSWER),
    "silent query": (lambda: silent_query(1.0), {"infeasible"}),
    "silent query, right-hand side 0": (lambda: silent_query(0.0), ANSWER),
    "no rivals": (no_rivals, ANSWER),
    "spread 1e4": (lambda: mixed(1e2), ANSWER),
    # Weights of size 1e8 cost the margins of tokens of size 1e8 all digits; whether they are still
    # beyond doubt depends on the data.
    "spread 1e16": (lambda: mixed(1e8), {"optimal", "inaccurate"}),
    "float16": (lambda: typed(np.float16), ANSWER),
    "int8": (lambda: typed(np.int8), ANSWER),
    "float16 margins": (lambda: raw(lambda array: array.astype(np.float16)), ANSWER),
    "read-only": (lambda: raw(read_only), ANSWER),
    "not contiguous": (lambda: raw(every_other), ANSWER),
    "Fortran order": (lambda: raw(np.asfortranarray), ANSWER),
    "equalities at 1e90": (sets, ANSWER),
    "conflicting labels": (labels_conflict, {"infeasible"}),
    "not a number": (lambda: scaled(1.0, float("nan")), SENTENCE),
    "infinite": (
        lambda: raw(lambda array: np.where(array == array.max(), np.inf, array)),
        SENTENCE,
    ),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("case", CASES)
def test_the_right_answer_or_one_sentence(case: str, name: str) -> None:
    make, right = CASES[case]
    if right == SENTENCE:
        with pytest.raises(InputError) as refused:
            max_margin(make(), parse_norm(name))
        assert "\n" not in str(refused.value)
        return
    solution = max_margin(make(), parse_norm(name))
    assert_proved(solution)
    if name == "lp:200" and solution.status == "inaccurate" and right == ANSWER:
        # The dual norm is nearly the sum of entries, so slopes of relative size 1e-9 count; the
        # last digit is not always reached.
        assert solution.gap <= 1e-8, solution.message
        return
    assert solution.status in right, solution.message


@pytest.mark.parametrize("name", NORMS)
def test_powers_of_two_change_nothing_but_the_scale(name: str) -> None:
    """Homogeneity, bit for bit: W scales inversely with tokens and queries."""
    near, far = (
        max_margin(each, parse_norm(name))
        for each in (scaled(2.0**70, 2.0**-80), scaled(2.0**-300, 2.0**400))
    )
    np.testing.assert_array_equal(far.W, np.ldexp(near.W, -110))
    assert far.gap == near.gap
    assert max(far.kkt()) <= max(near.kkt()) <= 1e-6
    assert far.angle_bound() == near.angle_bound()


def test_soft_margin_scales_with_its_penalty() -> None:
    """W and the penalty at the scale of the tokens: the same support, the same slacks."""
    near, far = (
        max_margin(scaled(1.0, 1.0), slack=0.5),
        max_margin(scaled(2.0**300, 1.0), slack=0.5 * 2.0**-600),
    )
    np.testing.assert_allclose(np.ldexp(far.W, 300), near.W, rtol=1e-9)
    np.testing.assert_allclose(far.slacks, near.slacks, atol=1e-9)
    assert far.status == near.status == "optimal"
    assert far.slack == 0.5 * 2.0**-600
    with pytest.raises(InputError, match=r"slack 0\.5 leaves the range of float64"):
        max_margin(scaled(2.0**-700, 1.0), slack=0.5)


@pytest.mark.parametrize("name", ["fro", "nuc", "l1"])
@pytest.mark.parametrize("slack", [1e250, 1.7e308])
def test_a_penalty_whose_square_is_no_number_is_refused(slack: float, name: str) -> None:
    with pytest.raises(InputError, match=r"leaves the range of float64 .*; give a smaller one"):
        max_margin(sphere(6, 8, 2, 1), name, slack=slack)


def test_contradictions_are_named_at_any_scale() -> None:
    near, far = (max_margin(scaled(each, each, sphere(8, 8, 2, 0))) for each in (1.0, 2.0**450))
    np.testing.assert_array_equal(far.conflict(), near.conflict())
    assert farkas(far) <= 1e-12


def test_bfloat16_tensors_are_read_exactly() -> None:
    torch = pytest.importorskip("torch")
    X = torch.randn(3, 3, 4, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    solution = max_margin(selection_margins(AttentionData(X, np.ones(3)), np.zeros(3, dtype=int)))
    wide = max_margin(
        selection_margins(AttentionData(X.double().numpy(), np.ones(3)), np.zeros(3, dtype=int))
    )
    np.testing.assert_array_equal(solution.W, wide.W)


def test_bfloat16_arrays_are_read_exactly() -> None:
    kinds = pytest.importorskip("ml_dtypes")
    X = np.random.default_rng(0).standard_normal((3, 3, 4)).astype(kinds.bfloat16)
    np.testing.assert_array_equal(AttentionData(X, np.ones(3)).tokens, X.astype(np.float64))
