"""The judge: a case by hand, every norm against the library's own certificate, and what proves
nothing.
"""

import numpy as np
import pytest

from attsvm.bench.instances import random_instance
from attsvm.bench.solve import certified_gap, lower_bound, upper_bound
from attsvm.geometry import parse_norm
from attsvm.margins import Margins
from attsvm.solvers import max_margin
from attsvm.solvers.proofs.certificates import certify_hard

NORMS = ["fro", "l1", "linf", "lp:1.75", "lp:3", "nuc", "spec", "schatten:3"]


def two_axes():
    """One sequence, query e_1, differences e_1 and e_2: the first column of W must be at least (1,
    1).
    """
    return Margins(
        np.eye(2),
        np.array([[1.0, 0.0]]),
        np.array([0, 2]),
        np.ones(2),
        np.array([1, 2]),
        np.array([0]),
    )


@pytest.mark.parametrize(
    ("norm", "optimum", "one_multiplier"),
    # W = first column (1, 1); lambda = (1, 0) proves |W_11| >= 1 and no more.
    [
        ("fro", 2**0.5, 1.0),
        ("l1", 2.0, 1.0),
        ("linf", 1.0, 1.0),
        ("lp:3", 2 ** (1 / 3), 1.0),
        ("nuc", 2**0.5, 1.0),
        ("spec", 2**0.5, 1.0),
    ],
)
def test_a_case_by_hand(norm, optimum, one_multiplier):
    norm, margins = parse_norm(norm), two_axes()
    # three times too long: the judge divides by the smallest margin
    W = np.array([[3.0, 0.0], [3.0, 0.0]])
    assert upper_bound(margins, norm, W) == pytest.approx(optimum, rel=1e-15)
    assert lower_bound(margins, norm, np.array([1.0, 0.0])) == pytest.approx(
        one_multiplier, rel=1e-15
    )
    assert certified_gap(margins, norm, W, np.array([1.0, 0.0])) == pytest.approx(
        1 - one_multiplier / optimum, abs=1e-15
    )
    # Equal multipliers are optimal in every one of these norms: a few rounding errors are left.
    assert certified_gap(margins, norm, W, np.array([5.0, 5.0])) <= 1e-15


@pytest.mark.parametrize("norm", NORMS)
def test_it_agrees_with_the_certificate_of_the_solvers(norm):
    norm, margins, rng = parse_norm(norm), random_instance(6, 8, 10, 3), np.random.default_rng(0)
    solution = max_margin(margins)
    W = solution.W + 0.02 * rng.normal(size=margins.shape)
    dual = solution.dual + 0.01 * rng.uniform(size=margins.m)
    gap = certified_gap(margins, norm, W, dual)
    assert 0.01 < gap < 1
    # rounding of a few hundred terms
    assert gap == pytest.approx(certify_hard(margins, norm, W, dual).gap, abs=1e-12)


@pytest.mark.parametrize(
    ("W", "dual"),
    [
        (np.zeros((2, 2)), np.ones(2)),
        (np.array([[1.0, 0.0], [-1.0, 0.0]]), np.ones(2)),  # one margin is negative
        (np.full((2, 2), np.nan), np.ones(2)),
        (np.ones((2, 2)), -np.ones(2)),
        (np.ones((2, 2)), np.zeros(2)),
        (np.ones((2, 2)), np.ones(3)),
        (np.ones((2, 3)), np.ones(2)),
    ],
)
def test_what_proves_nothing_has_gap_one(W, dual):
    assert certified_gap(two_axes(), parse_norm("fro"), W, dual) == 1.0
