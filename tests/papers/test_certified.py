"""Solutions that the experiments of max-margin rates hold training against are proved."""

import numpy as np

from attsvm import optimal_tokens
from attsvm.datasets import unit_sphere
from attsvm.selection import feasible
from attsvm_papers.factored import e1_nuclear_margin as factored_1
from attsvm_papers.factored import e2_diagonal as factored_2
from attsvm_papers.tfsvm import e4_rank as tfsvm_4


def test_every_rank_is_decided_and_the_nuclear_one_proved() -> None:
    found = tfsvm_4.run(5, 5, False, 3, range(10))
    data, heads = unit_sphere(5, 5, 3, range(10))
    assert found["feasible"].tolist() == feasible(data, optimal_tokens(data, heads)).tolist()
    kept = found["feasible"]
    assert kept.any()
    assert (found["nuc_bound"][kept] == found["nuc_rank"][kept]).all()


def test_margins_of_next_token_data_are_certified() -> None:
    assert factored_1.run(factored_1.SMALL, [0, 1], 20, 20)["certified"].all()


def test_a_diagonal_programme_is_solved_or_refuted() -> None:
    found = factored_2.run(0.1, range(6), 10)
    assert np.isfinite(found["ratio"][found["feasible"]]).all()
    assert np.isnan(found["round_ratio"]).tolist() == (~found["feasible"]).tolist()
