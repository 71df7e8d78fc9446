r"""A new norm is one class: the row norm :math:`\sum_i\|W_i\|_2`, defined here and nowhere else, is
solved, trained for, fitted, followed along its path, measured and reported.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import attsvm
from attsvm.cli import main
from attsvm.norms import Norm, parse_norm
from attsvm.optim import SteepestDescent
from attsvm.sklearn import AttentionSVC, Limits


class SumOfRows(Norm):
    """Sum of the Euclidean lengths of the rows."""

    name = "sum-of-rows"
    title = "sum of row lengths"
    invariant = False, True  # rotations of the queries

    def value(self, W):
        return self._lengths(W).sum(-1)

    def dual_value(self, G):
        return self._lengths(G).max(-1)

    def steepest(self, G):
        lengths = self._lengths(G)
        first = lengths.argmax(-1)[..., None] == self._positions(lengths)
        return first[..., None] * self.subgradient(G)

    def subgradient(self, W):
        lengths = self._lengths(W)[..., None]
        return W / (lengths + (lengths == 0))

    def prox(self, W, t):
        lengths = self._lengths(W)
        left = lengths - (np.asarray(t)[..., None] if isinstance(W, np.ndarray) else t)
        return (left * (left > 0))[..., None] * self.subgradient(W)

    def _lengths(self, W):
        return (W * W).sum(-1) ** 0.5

    def _positions(self, lengths):
        like = torch.arange if isinstance(lengths, torch.Tensor) else np.arange
        return like(lengths.shape[-1])


@pytest.fixture(scope="module")
def instance():
    return attsvm.datasets.unit_sphere(6, 8, 10, seed=0)


@pytest.fixture(scope="module")
def margins(instance):
    data, v = instance
    return attsvm.selection_margins(data, attsvm.optimal_tokens(data, v))


def through_clarabel(margins, dual=False, slack=None):
    """The least norm as one writes it in cvxpy; ``dual``: in the largest length of a row."""
    cvxpy = pytest.importorskip("cvxpy")
    W = cvxpy.Variable(margins.shape)
    lengths = cvxpy.norm(W, 2, axis=1)
    size = cvxpy.max(lengths) if dual else cvxpy.sum(lengths)
    rows = np.einsum("ca,ce->cae", margins.differences, margins.queries[margins.sequence])
    made = rows.reshape(margins.m, -1) @ cvxpy.vec(W, order="C")
    if slack is None:
        equal = margins.equalities
        met = [made[~equal] >= margins.rhs[~equal], made[equal] == margins.rhs[equal]]
        problem = cvxpy.Problem(cvxpy.Minimize(size), met)
    else:
        missed = cvxpy.sum(cvxpy.pos(margins.rhs - made))
        problem = cvxpy.Problem(cvxpy.Minimize(0.5 * cvxpy.square(size) + slack * missed))
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-9)
    return float(problem.solve(solver="CLARABEL", **tight))


@pytest.mark.parametrize("dual", [False, True])
def test_max_margin_is_certified_and_agrees_with_clarabel(margins, dual):
    norm = SumOfRows().dual if dual else SumOfRows()
    solution = attsvm.max_margin(margins, norm)
    assert solution.status == "optimal"
    assert max(solution.gap, solution.violation) <= norm.tolerance == 1e-9
    assert solution.kkt().stationarity <= 1e-8
    assert solution.norm == pytest.approx(through_clarabel(margins, dual), rel=1e-8)
    assert solution.geometry == norm == parse_norm(norm.name)
    assert norm.dual.dual == norm


@pytest.mark.parametrize("slack", [0.1, 10.0])
def test_soft_margins_agree_with_clarabel(slack):
    data, v = attsvm.datasets.unit_sphere(8, 8, 2, seed=0)
    margins = attsvm.selection_margins(data, attsvm.optimal_tokens(data, v))
    assert attsvm.max_margin(margins, SumOfRows()).status == "infeasible"
    solution = attsvm.max_margin(margins, SumOfRows(), slack=slack)
    objective = 0.5 * solution.norm**2 + slack * float(solution.slacks.sum())
    assert solution.status == "optimal"
    assert objective == pytest.approx(through_clarabel(margins, slack=slack), rel=1e-8)


def test_equalities_and_warm_starts(margins):
    pytest.importorskip("clarabel")
    rng = np.random.default_rng(0)
    sets = np.array([[1, 1, 0, 0], [1, 0, 1, 0]], dtype=bool)
    data = attsvm.AttentionData(rng.standard_normal((2, 4, 4)), np.ones(2))
    sets_margins = attsvm.multi_token_margins(data, sets)
    equal = attsvm.max_margin(sets_margins, SumOfRows())
    assert equal.status == "optimal"
    assert equal.norm == pytest.approx(through_clarabel(sets_margins), rel=1e-6)
    solution = attsvm.max_margin(margins, "sum-of-rows")
    again = attsvm.max_margin(margins, "sum-of-rows", warm_start=solution)
    assert again.norm == pytest.approx(solution.norm, rel=1e-8)


def test_the_projection_follows_from_the_proximal_map():
    rng = np.random.default_rng(0)
    W, t, norm = rng.standard_normal((4, 3)), 0.9, SumOfRows()
    near = norm.project(W, 2.0)
    assert norm.value(near) == pytest.approx(2.0, rel=1e-12)
    slack = 2.0 * norm.dual_value(W - near) - np.sum((W - near) * near)
    assert slack == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(norm.dual.project(W, t) + norm.prox(W, t), W, atol=1e-15)


def test_steepest_descent_trains_and_its_checkpoint_reads_back(instance, margins, tmp_path):
    data, v = instance
    solution = attsvm.max_margin(margins, SumOfRows())
    model = attsvm.attention.Attention.cross(data, head=v)
    optimizer = SteepestDescent(model.parameters(), lr=0.05, norm=SumOfRows())
    before = model.W.detach().clone()
    attsvm.train(model, data, optimizer, 1)
    step = (model.W.detach() - before).numpy()
    assert np.count_nonzero(np.abs(step).sum(axis=1)) == 1  # one row moves
    assert SumOfRows().value(step) == pytest.approx(0.05, rel=1e-12)
    course = attsvm.train(model, data, optimizer, 4000)
    size = float(SumOfRows().value(course.W[-1]))
    assert margins(course.W[-1]).min() / size >= 0.9 * solution.margin
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt")["param_groups"][0]["norm"] == SumOfRows()


def test_regularization_path_bounds_the_norm(instance):
    data, v = instance
    path = attsvm.regularization_path(data, v, SumOfRows(), radii=[1.0, 10.0], starts=2)
    np.testing.assert_allclose(SumOfRows().value(path.W), [1.0, 10.0], rtol=1e-12)
    assert path.log_excess[1] < path.log_excess[0]


def test_the_estimator_explains_in_it():
    rng = np.random.default_rng(1)
    bags = [rng.standard_normal((5, 4)) + 0.5 * np.sign(k % 2 - 0.5) for k in range(24)]
    model = AttentionSVC(penalty=0.01).fit(bags, np.arange(24) % 2)
    found = model.explain(bags, norm=SumOfRows(), limits=Limits(steps=200))
    assert found.solution.geometry == SumOfRows()
    assert found.solution.status == "optimal"
    assert found.selected.shape == (24,)


@pytest.mark.slow
def test_the_commands_know_it(tmp_path, capsys):
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["norms"]
    assert listed["sum-of-rows"] == "Sum of the Euclidean lengths of the rows."
    arguments = "--norm sum-of-rows --steps 100 --records 6 --quiet"
    out, labels = tmp_path / "run", np.arange(40) % 2
    tokens = np.random.default_rng(0).standard_normal((40, 5, 4)) + labels[:, None, None]
    np.savez(tmp_path / "data.npz", X=tokens, y=2 * labels - 1)
    assert main(["fit", str(tmp_path / "data.npz"), *arguments.split(), "--out", str(out)]) == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "sum of row lengths" in page
    assert "steepest descent in the sum of row lengths" in page
