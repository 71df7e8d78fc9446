"""tfsvm-7: which runs are accepted, and what is said of them."""

import numpy as np

from attsvm_papers.kit import experiment
from attsvm_papers.tfsvm import e7_several_tokens as tfsvm_7


def test_cells_hold_enough_seeds_and_no_seed_twice() -> None:
    cells = list(tfsvm_7.descent.cells(experiment("tfsvm-7").parameters))
    for d, share in tfsvm_7.ACCEPTED.items():
        mine = [cell for cell in cells if cell["d"] == d]
        assert sum(len(cell["seeds"]) for cell in mine) * share >= 500
        assert [cell["seeds"][0] for cell in mine] == list(
            range(1, 1 + tfsvm_7.BLOCK * len(mine), tfsvm_7.BLOCK)
        )


def test_accepted_runs_select_clearly_and_have_a_negative_label() -> None:
    found = tfsvm_7.descent(4, range(1, 61), steps=600)
    assert (found["seed"] > 0).any()
    assert (found["label"].min(axis=1) < 0).all()
    assert (found["masked"] <= 1e-6).all()
    np.testing.assert_allclose(found["both"][:, -1], found["refitted"][:, -1], atol=1e-12)
    # Both parts contain the max-margin part; the multiple is fitted.
    assert (
        found["both"][:, -1].mean() < found["margin"][:, -1].mean() < found["single"][:, -1].mean()
    )


def test_a_cell_without_accepted_runs_adds_no_row() -> None:
    assert tfsvm_7.descent(4, range(1, 4), steps=0) == {}  # no step, so no token is left out


def test_flows_have_both_parts_and_the_null_has_neither() -> None:
    found = tfsvm_7.flow("tanh", 8, [100, 101, 102])
    assert (found["sizes"] > 1).any()
    assert (found["outside"][:, -1] < 0.01).all()
    assert (found["outside"][:, -1] < found["outside"][:, 0]).all()
    assert np.median(found["finite"]) < 1e-6
    assert (found["finite_other"] > 0.05).all()
    assert (found["outside_single"][:, -1] > 0.05).all()
