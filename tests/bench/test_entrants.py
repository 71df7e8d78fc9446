"""Every installed peer solves the same programme as we do, in every norm that it takes."""

import warnings

import numpy as np
import pytest

from attsvm.bench import entrants, instances
from attsvm.bench.instances import SIZES, random_instance
from attsvm.bench.solve import certified_gap, upper_bound
from attsvm.errors import InputError
from attsvm.geometry import parse_norm

NORMS = ["fro", "l1", "linf", "lp:1.75", "lp:3", "nuc", "spec"]
PAIRS = [
    (name, norm)
    for name, peer in entrants.PEERS.items()
    for norm in NORMS
    if peer.takes(parse_norm(norm))
]
ACCURACY = 1e-6


def test_every_norm_of_the_papers_has_a_peer_of_another_house():
    assert {norm for name, norm in PAIRS if name != entrants.OURS} == set(NORMS)


@pytest.mark.parametrize(("name", "norm"), PAIRS)
def test_it_reaches_its_accuracy_and_our_value(name, norm):
    peer, norm, margins = entrants.PEERS[name], parse_norm(norm), random_instance(*SIZES["S"], 0)
    if peer.missing():
        pytest.skip(f"{', '.join(peer.missing())} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs
        W, dual = peer.solve(margins, norm, ACCURACY)
    ours, bound = entrants.PEERS[entrants.OURS].solve(margins, norm, 1e-10)
    assert (dual is None) == (name == "linearsvc")
    assert certified_gap(margins, norm, W, bound if dual is None else dual) <= ACCURACY
    assert upper_bound(margins, norm, W) == pytest.approx(
        upper_bound(margins, norm, ours), rel=ACCURACY
    )


def test_the_reduced_programme_has_the_same_margins_and_norm():
    # 8 differences and 4 queries in 10 dimensions: both sides shrink
    margins = random_instance(4, 3, 10, 0)
    spans = instances.reduced(margins)
    B = np.random.default_rng(0).normal(size=spans.margins.shape)
    assert spans.margins.shape == (8, 4)
    np.testing.assert_allclose(margins(spans.lifted(B)), spans.margins(B), atol=1e-13)
    np.testing.assert_allclose(
        np.linalg.svd(spans.lifted(B), compute_uv=False)[:4],
        np.linalg.svd(B, compute_uv=False),
        atol=1e-13,
    )


def test_a_written_out_programme_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(instances, "WRITTEN_ENTRIES", 4199)
    with pytest.raises(instances.RefusedError, match="the written-out programme has"):
        instances.written_out(random_instance(*SIZES["S"], 0))
    monkeypatch.setattr(instances, "WRITTEN_ENTRIES", 42**2 - 1)
    with pytest.raises(instances.RefusedError, match="Gram matrix"):
        instances.gram(random_instance(*SIZES["S"], 0))


def test_peers_are_chosen_by_name_and_ours_is_always_there():
    assert entrants.choose("none") == ["attsvm"]
    assert entrants.choose("all") == list(entrants.PEERS)
    assert entrants.choose("piqp, daqp") == ["attsvm", "daqp", "piqp"]
    with pytest.raises(InputError, match="unknown peer 'gurobi'; known peers: daqp"):
        entrants.choose("daqp,gurobi")
