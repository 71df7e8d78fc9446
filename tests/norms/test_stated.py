"""A norm may state any of its methods and leave the others to defaults: every combination works, or
is refused when the class is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from attsvm import InputError, MaxRow, Rows, max_margin
from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import selection_margins
from attsvm.norms import Norm

WAYS = ("prox", "project", "dual", "dual_value", "subgradient")
OTHERS = ("title", "logit_reach", "descent", "strictly_convex", "tolerance", "invariant")


def subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    return [chosen for size in range(len(names) + 1) for chosen in combinations(names, size)]


def stating(known: Norm, ways: Sequence[str], partner: Any = None) -> type[Norm]:
    """A class that states what ``known`` is, and of its other methods these ``ways``; ``partner``
    makes its dual.
    """

    def passed_on(name: str) -> Any:
        if isinstance(getattr(known, name), str | bool | float | tuple):
            return property(lambda self: getattr(known, name))
        return lambda self, *arguments: getattr(known, name)(*arguments)

    stated = {name: passed_on(name) for name in ("value", "steepest", *ways) if name != "dual"}
    if "dual" in ways:
        stated["dual"] = property(lambda self: partner())
    label = f"stated {known.name} by {' and '.join(ways)}"
    return type("Stated", (Norm,), stated | {"name": property(lambda self: label)})


def with_its_dual(ways: Sequence[str], others: Sequence[str]) -> tuple[Norm, Norm]:
    """A norm of these ways and its dual, which is stated by ``others`` if ``ways`` have it."""
    norm = stating(Rows(), ways, lambda: dual())
    dual = stating(MaxRow(), (*others, "dual"), norm) if "dual" in ways else None
    return norm(), norm().dual


def enough(ways: Sequence[str]) -> bool:
    """What the documentation of a norm asks for."""
    one = "prox" in ways or "project" in ways
    return one and ("dual" in ways or ("dual_value" in ways and "subgradient" in ways))


def is_the_norm(norm: Norm, known: Norm, name: str) -> None:
    """Every method gives what the norm gives."""
    rng = np.random.default_rng(0)
    for W in (rng.normal(size=(3, 2)), rng.normal(size=(4, 3, 2)), np.zeros((3, 2))):
        size = float(known.dual_value(W).max())
        for method, arguments in (
            ("value", ()),
            ("steepest", ()),
            ("dual_value", ()),
            ("subgradient", ()),
            *((way, (t,)) for way in ("prox", "project") for t in (0.0, 0.4 * size, 3.0 * size)),
            *((way, (np.full(W.shape[:-2], 0.3),)) for way in ("prox", "project")),
        ):
            np.testing.assert_allclose(
                getattr(norm, method)(W, *arguments),
                getattr(known, method)(W, *arguments),
                rtol=1e-12,
                atol=1e-12 * size,  # halving ends where a radius rounds
                err_msg=f"{method} of {name}",
            )


@pytest.fixture(scope="module")
def margins():
    rng = np.random.default_rng(0)
    data = AttentionData(rng.normal(size=(2, 3, 2)), np.ones(2), rng.normal(size=(2, 2)))
    return selection_margins(data, [0, 0])


@pytest.mark.parametrize("ways", subsets(WAYS), ids=" ".join)
def test_every_combination_of_methods_works_or_is_refused(ways, margins) -> None:
    partners: list[tuple[str, ...]] = [("prox",), ("project",), ("prox", "project")]
    for other in partners if "dual" in ways else [()]:
        if not enough(ways):
            with pytest.raises(TypeError, match=r"^the norm Stated must define [a-z_ ,]+$"):
                with_its_dual(ways, other)
            continue
        pair = with_its_dual(ways, other)
        for norm, known in zip(pair, (Rows(), MaxRow()), strict=True):
            is_the_norm(norm, known, f"{norm.name}, dual by {other}")
            solution = max_margin(margins, norm, tol=1e-6)
            assert solution.status == "optimal", norm.name
            best = max_margin(margins, known)
            assert solution.norm == pytest.approx(best.norm, rel=2e-6)  # both within their gaps


@pytest.mark.parametrize("ways", subsets(OTHERS), ids=" ".join)
def test_what_else_is_stated_changes_no_solution(ways, margins) -> None:
    norm = stating(Rows(), ("prox", "dual_value", "subgradient", *ways))()
    solution = max_margin(margins, norm, tol=1e-6)
    assert solution.status == "optimal"
    assert solution.norm == pytest.approx(max_margin(margins, Rows()).norm, rel=2e-6)
    tokens, queries = margins.differences[None], margins.queries[:1]
    assert norm.logit_reach(tokens, queries) >= Rows().logit_reach(tokens, queries) * (1 - 1e-12)


def test_a_radius_below_zero_is_refused_however_the_maps_are_stated() -> None:
    for way in ("prox", "project"):
        norm = stating(Rows(), (way, "dual_value", "subgradient"))()
        for of in (norm, norm.dual):
            for name in ("prox", "project"):
                with pytest.raises(InputError, match="must be numbers >= 0"):
                    getattr(of, name)(np.ones((2, 2)), -1.0)
