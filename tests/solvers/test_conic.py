"""Interior points for norms of rows, and exponents next to one and far beyond two: programmes that
splitting leaves to them, and the answers of a conic solver.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import peer
import pytest
from extended import assert_proved
from instances import sphere
from well_posed import taught, well_posed

from attsvm.margins import Margins
from attsvm.norms import MaxRow, Rows, parse_norm
from attsvm.solvers import conic, max_margin, max_margin_batch
from attsvm.solvers.iterate import Stop
from attsvm.solvers.programme import Programme, equilibrate

NORMS = ["maxrow", "rows", "lp:20", "lp:40", "lp:100", "lp:1.02"]
FARTHER = ["lp:1000", "lp:1.001", "schatten:40", "schatten:1.02"]
SAME = 1e-6
"""Of two least norms, relative; conic solvers are told 1e-10 and mean their own scale by it."""


def lattice(seed: int) -> Margins:
    """Thirty rows of small integers, eight of them equalities, and weights of eight by four."""
    return taught(np.random.default_rng(seed), 30, (8, 4), 8, True)


@pytest.mark.parametrize(
    ("seed", "norm"), [(27, "maxrow"), *((108, norm) for norm in ("maxrow", "rows", "lp:40"))]
)
def test_lattices_with_equalities_have_the_least_norm_of_clarabel(seed: int, norm: str) -> None:
    found = max_margin(lattice(seed), norm)
    assert_proved(found)
    assert found.status == "optimal", found.message
    assert found.norm == pytest.approx(
        peer.least(found.margins, parse_norm(norm), found.norm), rel=SAME
    )


@pytest.mark.parametrize("norm", [*NORMS, *FARTHER])
@pytest.mark.parametrize("margins", [well_posed(26), well_posed(36), lattice(108)])
def test_well_posed_programmes_end_with_a_certificate(margins: Margins, norm: str) -> None:
    found = max_margin(margins, norm)
    assert found.status == "optimal", found.message
    assert_proved(found)


@pytest.mark.slow
def test_three_hundred_programmes_against_clarabel() -> None:
    """At most three without a certificate, none that is longer than another's by more than
    ``SAME``; Clarabel itself has no answer to a few of large exponents.
    """
    open_, compared = [], 0
    for seed in range(300):
        norm = NORMS[seed % len(NORMS)]
        found = max_margin(well_posed(1000 + seed), norm)
        if found.status != "optimal":
            open_.append((seed, norm, found.message))
            continue
        assert_proved(found)
        other = peer.least(found.margins, parse_norm(norm), found.norm)
        if other is not None:
            compared += 1
            assert found.norm == pytest.approx(other, rel=SAME), (seed, norm)
    assert len(open_) <= 3, open_
    assert compared >= 240


def gap(p: Programme, norm: Rows | MaxRow, W: np.ndarray, dual: np.ndarray) -> float:
    """The relative gap, of weights in which no hard row is missed by more."""
    size, pull = float(norm.value(W)), float(norm.dual_value(p.adjoint(dual)))
    short = p.b - p.values(W)
    if p.hard:
        return max(1.0 - float(p.b @ dual) / (size * pull), float(short.max()))
    primal = 0.5 * size**2 + float(p.cap @ np.maximum(short, 0.0))
    return 1.0 - (float(p.b @ dual) - 0.5 * pull**2) / primal


@pytest.mark.parametrize("norm", [Rows(), MaxRow()])
@pytest.mark.parametrize("slack", [None, 0.05, 1.0, 1e4])
@pytest.mark.parametrize("margins", [sphere(6, 8, 10, 0), sphere(9, 6, 4, 1), sphere(12, 9, 8, 2)])
def test_interior_points_close_the_gap(margins: Margins, slack: float | None, norm) -> None:
    """From any weights, in a few dozen steps, with multipliers in their boxes."""
    p = equilibrate(margins, slack)
    errors: list[float] = []

    def error(W: np.ndarray, dual: np.ndarray) -> float:
        errors.append(gap(p, norm, W, dual))
        return errors[-1]

    start = np.random.default_rng(0).standard_normal(margins.shape)
    W, dual = conic.finish_by_cones(p, norm, start, error, Stop(1e-10, math.inf))
    assert gap(p, norm, W, dual) == min(errors) <= 1e-10
    assert len(errors) <= 40
    assert (dual >= 0.0).all()
    assert (dual <= p.cap).all()


@pytest.mark.parametrize("slack", [None, 1.0])
@pytest.mark.parametrize("norm", [Rows(), MaxRow()])
def test_rows_of_zeros_are_missed_whatever_the_weights_are(norm, slack: float | None) -> None:
    margins = sphere(6, 6, 3, 2)
    silent, rhs = margins.differences.copy(), margins.rhs.copy()
    silent[4], rhs[4] = 0.0, 0.0 if slack is None else 1.0
    p = equilibrate(replace(margins, differences=silent, rhs=rhs), slack)
    W, dual = conic.finish_by_cones(
        p,
        norm,
        np.ones(margins.shape),
        lambda W, dual: gap(p, norm, W, dual),
        Stop(1e-10, math.inf),
    )
    assert gap(p, norm, W, dual) <= 1e-10
    assert dual[4] == (0.0 if slack is None else p.cap[4])


@pytest.mark.parametrize("norm", [Rows(), MaxRow()])
def test_without_time_the_start_comes_back(norm) -> None:
    margins = sphere(6, 8, 10, 0)
    p, start = equilibrate(margins, None), np.ones(margins.shape)
    W, _ = conic.finish_by_cones(p, norm, start, lambda W, dual: 1.0, Stop(1e-10, -math.inf))
    np.testing.assert_array_equal(W, start)
    found = max_margin(lattice(108), norm, max_seconds=1e-9)
    assert found.status in ("optimal", "inaccurate")
    assert math.isfinite(found.norm)


@pytest.mark.parametrize(
    ("norm", "same", "shape"),
    [
        ("maxrow", "linf", (5, 1)),
        ("rows", "l1", (5, 1)),
        ("maxrow", "fro", (1, 5)),
        ("rows", "fro", (1, 5)),
    ],
)
@pytest.mark.parametrize("slack", [None, 0.3])
def test_rows_of_one_entry_and_single_rows(
    norm: str, same: str, shape: tuple[int, int], slack: float | None
) -> None:
    """The norm of rows is one of entries then, bit for bit, and says its own name."""
    margins = taught(np.random.default_rng(3), 12, shape, 2 if slack is None else 0, False)
    if slack is not None:
        margins = replace(margins, equality=None)
    found, other = (max_margin(margins, each, slack=slack) for each in (norm, same))
    assert found.status == "optimal"
    assert found.geometry == parse_norm(norm)
    np.testing.assert_array_equal(found.W, other.W)


def test_a_list_of_programmes_and_warm_starts() -> None:
    programmes = [lattice(27), well_posed(26)]
    both = max_margin_batch(programmes[:1] * 2, "maxrow")
    first = max_margin(programmes[0], "maxrow")
    np.testing.assert_array_equal(both[1].W, first.W)
    again = max_margin(programmes[0], "maxrow", warm_start=first)
    assert again.status == "optimal"
    assert again.norm == pytest.approx(first.norm, rel=1e-9)
