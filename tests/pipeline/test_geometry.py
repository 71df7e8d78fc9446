"""What is compared in which norm: zero at the solution, blind to scale, and the same as independent
formulas.
"""

import numpy as np
import pytest

import attsvm
from attsvm.norms import Lp, PowerPotential, parse_norm
from attsvm.pipeline.results import distances, measure_of, solution_results


@pytest.fixture(scope="module")
def margins():
    data, v = attsvm.datasets.unit_sphere(n=5, T=4, d=4, seed=1)
    return attsvm.selection_margins(data, attsvm.optimal_tokens(data, v))


@pytest.mark.parametrize("name", ["fro", "nuc", "spec", "l1", "linf", "lp:1.3", "schatten:3"])
def test_the_distance_is_zero_at_the_solution_and_blind_to_scale(name, margins):
    solution = attsvm.max_margin(margins, parse_norm(name))
    generator = np.random.default_rng(2)
    W = solution.W + 0.3 * np.abs(solution.W).max() * generator.normal(size=(3, *solution.W.shape))
    assert distances(7.0 * solution.W, solution) <= 1e-9  # as exact as the certificate
    assert (distances(W, solution) > 1e-3).all()
    np.testing.assert_allclose(distances(1e5 * W, solution), distances(W, solution), rtol=1e-9)
    assert distances(np.zeros_like(W), solution).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("p", [1.2, 1.75, 4.0])
def test_the_divergence_is_bregmans_between_unit_directions(p, margins):
    norm = Lp(p)
    solution = attsvm.max_margin(margins, norm)
    W = np.random.default_rng(0).normal(size=solution.W.shape)
    goal, unit = (matrix / norm.value(matrix) for matrix in (solution.W, W))
    assert distances(W, solution) == pytest.approx(PowerPotential(p).bregman(goal, unit), rel=1e-12)


def test_a_divergence_of_singular_values_does_not_see_rotations(margins):
    norm = parse_norm("schatten:3")
    solution = attsvm.max_margin(margins, norm)
    generator = np.random.default_rng(0)
    W = generator.normal(size=solution.W.shape)
    (U, _), (V, _) = (np.linalg.qr(generator.normal(size=(4, 4))) for _ in range(2))
    goal = solution.W / norm.value(solution.W)
    turned = 1.0 - np.sum(norm.subgradient(U @ W @ V) * (U @ goal @ V))
    assert distances(W, solution) == pytest.approx(turned, rel=1e-12)


def test_every_best_direction_has_distance_zero():
    r"""One constraint, :math:`W_{11}\ge1`: in the norm of the largest entry the other weight may be
    anything in [-1, 1].
    """
    data = attsvm.AttentionData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.ones(1), np.ones((1, 1)))
    solution = attsvm.max_margin(attsvm.selection_margins(data, np.array([0])), parse_norm("linf"))
    assert solution_results(solution, "optimal")["unique"] is solution.unique is False
    W = np.array([[[1.0], [1.0]], [[1.0], [-1.0]], [[1.0], [0.0]], [[1.0], [2.0]]])
    np.testing.assert_allclose(distances(W, solution), [0, 0, 0, 0.5], atol=1e-12)


def test_norms_have_titles_and_what_is_measured_depends_on_how_many_directions_are_best():
    found = {
        "fro": ("Frobenius norm", "cosine"),
        "lp:1.75": ("ℓ1.75 norm", "divergence"),
        "schatten:3": ("Schatten-3 norm", "divergence"),
        "nuc": ("nuclear norm", "margin"),
        "spec": ("spectral norm", "margin"),
        "l1": ("ℓ1 norm", "margin"),
        "linf": ("ℓ∞ norm", "margin"),
        "rows": ("norm of rows", "margin"),
        "maxrow": ("norm of the largest row", "margin"),
    }
    for name, known in found.items():
        norm = parse_norm(name)
        assert (norm.title, measure_of(norm)) == known
