"""tfsvm-11: self-attention."""

import pytest

from attsvm.store.code import closure
from attsvm_papers.kit import experiment
from attsvm_papers.tfsvm import e11_self_attention as tfsvm_11


@pytest.mark.parametrize("own", [False, True])
def test_any_selection_is_feasible_at_the_dimension_of_the_theorem(own) -> None:
    found = tfsvm_11.random_selections(4, 6, range(30), own)
    assert found["selectable"].all()
    assert not found["selectable_plane"].all()


def test_cells_know_the_experiments_that_they_repeat() -> None:
    seen = closure(experiment("tfsvm-11").run)
    assert {
        f"attsvm_papers.tfsvm.{name}"
        for name in ("e3_local_convergence", "e4_rank", "e5_convergence")
    } <= set(seen)


def test_claims_and_pictures_decide_no_numbers() -> None:
    seen = closure(experiment("tfsvm-4").run)["attsvm_papers.tfsvm.e4_rank"]
    assert "'run'" in seen
    assert "E2_4a" not in seen
    assert "ranks_as_published" not in seen
    assert "reading error of the plot" not in seen
