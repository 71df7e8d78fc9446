"""Pictures from Python, notebook cells, and what results print."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import attsvm
from attsvm.base.errors import InputError
from attsvm.claims import Claim, Evidence, at_most
from attsvm.datasets import toy, unit_sphere
from attsvm.sklearn import WitnessSVC


def axes() -> Any:
    return Figure().subplots()


@pytest.fixture(scope="module")
def planar() -> attsvm.MarginSolution:
    return attsvm.max_margin(attsvm.prompt_margins(toy("multiple_global").data, [0, 0, 0]))


@pytest.fixture(scope="module")
def trajectory() -> attsvm.Trajectory:
    problem = toy("single_global")
    model = attsvm.attention.Attention.prompt(
        problem.lifted, problem.value_head, keys=problem.keys, runs=6, init=problem.starts["p"]
    )
    step = attsvm.optim.SteepestDescent(model.parameters(), lr=0.1)
    return attsvm.train(model, problem.lifted, step, 200, attsvm.LogSpaced(20))


def clouds(ax: Any) -> list[np.ndarray]:
    """The points of every line in the axes."""
    return [np.stack(line.get_data(), axis=1) for line in ax.get_lines()]


def test_data_are_drawn_where_they_lie() -> None:
    data = toy("single_global").data
    ax = axes()
    assert data.plot([0], ax=ax) is ax
    drawn = clouds(ax)
    assert any(np.array_equal(points, data.tokens[0]) for points in drawn)
    assert any(np.array_equal(points, data.tokens[0, :1]) for points in drawn)


def test_half_planes_touch_the_solution(planar: attsvm.MarginSolution) -> None:
    ax = axes()
    planar.plot(ax)
    best = planar.W[:, 0]
    lines = [points for points in clouds(ax) if len(points) == 2 and np.abs(points).max() > 1.5]

    def distance(line: np.ndarray) -> float:
        along = (line[1] - line[0]) / np.linalg.norm(line[1] - line[0])
        away = best - line[0]
        return float(abs(away[0] * along[1] - away[1] * along[0]))

    assert "max-margin prompt, Frobenius norm" in ax.get_title(loc="center") + ax.get_title("left")
    touching = sum(distance(line) < 1e-9 for line in lines)
    assert touching >= len(planar.support)
    assert any(np.allclose(points[-1], best) for points in clouds(ax))


def test_infeasible_half_planes_say_so() -> None:
    data = attsvm.AttentionData([[[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]], [1.0], [[1.0]])
    ax = axes()
    attsvm.max_margin(attsvm.selection_margins(data, [0])).plot(ax)
    assert "no prompt" in ax.get_title(loc="center") + ax.get_title(loc="left")


def test_margins_of_other_weights_are_counted() -> None:
    data, head = unit_sphere(n=6, T=5, d=8, seed=0)
    solution = attsvm.max_margin(
        attsvm.selection_margins(data, attsvm.optimal_tokens(data, head)), attsvm.Nuclear()
    )
    ax = solution.plot(axes())
    counts, edges, _ = ax.patches[0].get_data()
    assert counts.sum() == data.n
    assert edges[np.flatnonzero(counts)[0]] >= 1 - 0.06


@pytest.mark.parametrize("quantity", ["loss", "probability", "norm"])
def test_a_course_has_a_line_per_run(trajectory: attsvm.Trajectory, quantity: str) -> None:
    ax = trajectory.plot(quantity, ax=axes())
    assert len(ax.get_lines()) == 6
    assert ax.get_xscale() == "log"


def test_gap_and_path_need_what_they_say(trajectory: attsvm.Trajectory) -> None:
    best = attsvm.max_margin(attsvm.prompt_margins(toy("single_global").data, [0]))
    gaps = trajectory.plot(target=best, ax=axes())
    first = gaps.get_lines()[0].get_ydata()
    np.testing.assert_array_equal(first, trajectory.direction_gap(best)[1:, 0])
    path = trajectory.plot("path", target=best, ax=axes())
    assert any(np.array_equal(points, trajectory.W[:, 0, :, 0]) for points in clouds(path))
    for options, words in (
        ({"quantity": "gap"}, "needs a target"),
        ({"quantity": "speed"}, "choose one of loss"),
    ):
        with pytest.raises(InputError, match=words):
            trajectory.plot(ax=axes(), **options)


def test_a_gap_to_an_infeasible_programme_is_refused(trajectory: attsvm.Trajectory) -> None:
    data = attsvm.AttentionData(np.zeros((1, 2, 2)), [1.0], [[1.0]])
    infeasible = attsvm.max_margin(attsvm.prompt_margins(data, [0]))
    with pytest.raises(InputError, match="the target has no weights to compare with"):
        trajectory.plot("gap", infeasible, axes())


def test_only_the_plane_is_drawn() -> None:
    data, _ = unit_sphere(n=3, T=4, d=5, seed=0)
    with pytest.raises(InputError, match="needs two"):
        data.plot(ax=axes())
    with pytest.raises(InputError, match="one per sequence"):
        toy("single_global").data.plot([7], ax=axes())


def test_new_axes_come_from_pyplot() -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    with plt.rc_context({"backend": "agg"}):
        ax = toy("joint").data.plot()
        assert ax.figure.number in plt.get_fignums()
        plt.close(ax.figure)


def test_results_print_in_a_few_words(
    planar: attsvm.MarginSolution, trajectory: attsvm.Trajectory
) -> None:
    data, _ = unit_sphere(n=500, T=20, d=30, seed=0)
    for each in (planar, trajectory, data, toy("joint").data):
        assert 20 < len(repr(each)) <= 300
        assert "array" not in repr(each)
    assert "optimal" in repr(planar)
    assert "500 sequences of 20 tokens" in repr(data)


def test_notebook_cells_say_what_was_found(planar: attsvm.MarginSolution) -> None:
    text = planar._repr_html_()
    assert "optimal" in text
    assert f"{planar.margin:.4f}"[:5] in text
    data = attsvm.AttentionData([[[0.0], [1.0], [-1.0]]], [1.0], [[1.0]])
    hopeless = attsvm.max_margin(attsvm.selection_margins(data, [0]))
    assert "sequence 0: token 0 over token" in hopeless._repr_html_()
    both = attsvm.max_margin_batch([planar.margins, hopeless.margins])._repr_html_()
    assert "2 programmes" in both
    assert '>infeasible</th><td style="text-align: left">1<' in both
    claim = Claim("T<1>", "a < b", "ours", lambda e: e["a"], at_most(1.0, "one"))
    assert "T&lt;1&gt;" in claim._repr_html_()
    verdict = claim.check(Evidence({"a": np.array([2.0])}))
    assert "✗ fails" in verdict._repr_html_()
    assert "a &lt; b" in verdict._repr_html_()


@pytest.mark.filterwarnings("ignore:bags left out are not predicted")
def test_an_estimator_is_shown_as_scikit_learn_shows_its_own() -> None:
    from attsvm.sklearn import AttentionSVC

    model = AttentionSVC(heads=2, penalty=0.125)
    labels = np.arange(16) % 2
    bags = np.random.default_rng(0).normal(size=(16, 3, 2)) + 2.0 * labels[:, None, None]
    for shown in (model, model.fit(bags, labels)):
        bundle = shown._repr_mimebundle_()
        assert bundle["text/plain"] == repr(shown)
        assert len(repr(shown)) <= 300
        assert "AttentionSVC" in bundle["text/html"]
        assert "0.125" in bundle["text/html"]


def test_a_path_of_radii_is_its_loss_or_its_gap_to_a_target() -> None:
    data, head = attsvm.datasets.unit_sphere(3, 3, 4, seed=0)
    solution = attsvm.max_margin(attsvm.selection_margins(data, attsvm.optimal_tokens(data, head)))
    path = attsvm.regularization_path(data, head, radii=[3, 30], starts=2)
    gap = path.direction_gap(solution)
    for target, values in ((None, np.exp(path.log_excess)), (solution, gap)):
        ax = path.plot(target, ax=axes())
        np.testing.assert_array_equal(ax.lines[0].get_xydata(), np.stack([[3, 30], values], axis=1))


def test_an_explanation_is_the_margins_of_its_bags() -> None:
    bags = attsvm.datasets.planted_witnesses("linear", n=20, instances=5, seed=0, d=3)
    explanation = WitnessSVC(penalty=0.01).fit(bags, bags.labels).explain(bags)
    ax = explanation.plot(axes())
    assert ax.lines[0].get_xdata()[0] == explanation.margins.min()
    assert ax.patches[0].get_data().values.sum() == np.isfinite(explanation.margins).sum()
