"""Priority graphs: the numbers of the claims at a small scale, and the mathematics that the
experiments lean on.
"""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import graph_svm
from attsvm.datasets.next_token import NextTokenData
from attsvm.margins import graph_margins
from attsvm.selection import local_arcs
from attsvm_papers.graph import e1_priority as graph_1
from attsvm_papers.graph import e5_local_convergence as graph_5
from attsvm_papers.graph import e6_paths as graph_6
from attsvm_papers.graph import priority


def test_acyclic_training_meets_the_programme() -> None:
    found = graph_1.acyclic("b", [6, 4, 6, 8], 0.1, 2000, range(8))
    assert found["cosine"][:, -1].mean() >= 0.997  # that of C4.3's experiment
    assert found["optimal"].all()
    assert (np.diff(found["step"][0]) > 0).all()


def test_the_cyclic_part_oscillates_with_half_a_step() -> None:
    found = graph_1.cyclic(graph_1.CONSTANT, 0.01, 0.0, 4000, range(8))
    np.testing.assert_allclose(found["plateau"] / 0.01, 0.5, atol=0.125)
    assert found["finite"].shape == found["step"].shape
    assert np.nanmin(found["unseen_predicted"][:, 0]) == 1.0


def test_half_margins_are_asked_where_one_token_is_selected() -> None:
    # 0 and 1 share the attention under query 3; 2 has all of it under query 4
    sentences = [[0, 1, 3], [1, 0, 3], [2, 0, 4]]
    data = NextTokenData.from_sentences(sentences, [0, 1, 2], embeddings=5, following=np.arange(5))
    tokens, count = data.distinct()
    mass = np.where(np.isin(tokens, (0, 1)), 0.5, 0.0) * (count > 0)
    mass[2] = tokens[2] == 2
    margins = graph_margins(data.embeddings, local_arcs(data, mass))
    rhs = graph_5._halved(data, mass, margins).rhs
    assert margins.origin is not None
    query = margins.origin[margins.sequence, 0]
    assert set(rhs[(query == 3) & ~margins.equalities]) == {1.0}
    assert set(rhs[query == 4]) == {0.5}
    assert set(rhs[margins.equalities]) == {0.0}


def test_the_sum_of_all_arcs_is_not_the_solution_and_has_no_part_in_the_cycles() -> None:
    (data,) = priority.draws((6, 4, 6, 8), True, [3])
    svm = graph_svm(data)
    arcs = svm.orders.arcs
    E = data.embeddings
    pulls = sum(
        np.outer(E[i] - E[j], E[q])
        for q, i, j in arcs.tolist()
        if svm.component[q, i] != svm.component[q, j]
    )
    found = priority.compared(svm, np.stack([pulls, svm.solution.W]))
    assert found["cosine"][1] == pytest.approx(1.0, abs=1e-12)
    assert 0.2 < found["outside_alike"][1] < 0.999
    assert found["outside_alike"][0] > found["outside"][0]
    np.testing.assert_allclose(
        found["inside_norm"] ** 2 + found["outside_norm"] ** 2, found["norm"] ** 2
    )


def test_paths_at_a_small_scale() -> None:
    path = graph_6.run(2, range(8), [5.0, 20.0, 60.0])
    assert (np.diff(path["cosine"], axis=1) > 0).all()
    assert (path["finite"][:, -1] < 1e-4).all()
