"""P6 and P7: programmes of diagonal weights, conserved quantities, and the margins of multiclass
data.
"""

import numpy as np
import pytest
from scipy.optimize import linprog

from attsvm.norms import Lp
from attsvm.solvers import max_margin
from attsvm.theory import order_margins
from attsvm.theory.sentences import arcs, priority_graph
from attsvm_papers.factored import e1_nuclear_margin as factored_1
from attsvm_papers.factored import e2_diagonal as factored_2
from attsvm_papers.spectral import e1_four_norms as spectral_1
from attsvm_papers.spectral import e2_multiclass as spectral_2


def test_the_diagonal_programme_is_the_linear_one_of_scipy() -> None:
    data = priority_graph(4, 6, 8, 8, 3)
    margins = order_margins(data.embeddings, arcs(data).arcs)
    programme = factored_2.diagonal(margins)
    beta = np.random.default_rng(0).standard_normal(8)
    np.testing.assert_allclose(
        programme(beta[:, None]), margins(np.diag(beta)), rtol=1e-12, atol=1e-14
    )
    A = programme.differences
    reference = linprog(
        np.ones(16), A_ub=-np.concatenate([A, -A], axis=1), b_ub=-np.ones(len(A)), bounds=(0, None)
    )
    assert max_margin(programme, Lp(1)).norm == pytest.approx(reference.fun, rel=1e-8)


def test_small_steps_conserve_the_difference_of_both_gram_matrices() -> None:
    whole, half = (
        factored_1.run(kind, range(2), 500, 500) for kind in (factored_1.SMALL, factored_1.HALF)
    )
    # one half up to the second order in the step
    np.testing.assert_allclose(half["drift"] / whole["drift"], 0.5, atol=0.1)


def test_ratios_never_exceed_one_and_the_proxy_keeps_its_bounds() -> None:
    for found, count in (
        (spectral_1.run(1, 0.9, range(2), 200, 200), len(spectral_1.NAMES)),
        (spectral_2.run(3, range(1), 20), len(spectral_2.NORMS)),
    ):
        for k in range(count):
            assert (found[f"share{k}"] <= 1.0 + 1e-6).all()  # the tolerance of the margin
        push = found["push"] - found["log_margin"][:, None]
        assert (push >= -1e-5).all()


@pytest.mark.parametrize("optimiser", range(len(spectral_2.OPTIMISERS)))
def test_every_optimiser_has_a_fresh_direction_of_unit_size(optimiser: int) -> None:
    G = np.random.default_rng(2).standard_normal((2, 4, 5))
    D = spectral_2.steepest_or_adam(optimiser)(G, np.array([0.0, -900.0]))
    sizes = [
        np.abs(D).max(axis=(1, 2)),
        np.linalg.norm(D, axis=(1, 2)),
        np.linalg.norm(D, ord=2, axis=(1, 2)),
    ]
    np.testing.assert_allclose(sizes[spectral_2.OWN[optimiser]], 1.0, rtol=1e-12)
