"""The compiled splitting: bounds of its scratch space, contradictions, and the counters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attsvm import native
from attsvm.norms import parse_norm
from attsvm.solvers.energy import Energy

GUARD = 64


def _solved(name, D, Z, offsets, b, cap=math.inf, most=400):
    """The outcome, iterate, weights and multipliers; numbers beyond the scratch space stay."""
    m, dx, dz = len(D), D.shape[1], Z.shape[1]
    rows = native.ProgrammeRows(D, Z, b, np.full(m, cap), offsets, np.zeros(m, np.uint8))
    W, dual = np.zeros((dx, dz)), np.zeros(m)
    order, side = np.empty(m, np.int64), np.zeros(m, np.uint8)
    size = native.library.splitting_room(m, len(Z), dx, dz)
    room = np.full(size + GUARD, 7.0)
    gauge = Energy(parse_norm(name), math.isfinite(cap)).gauge
    state = native.SplittingState(W, dual, room, target=1e-11, most=most)
    addresses = [native.address(x, x.dtype.type, *x.shape) for x in (order, side)]
    outcome = native.library.splitting(rows, gauge, *addresses, state)
    assert (room[size:] == 7.0).all()
    return outcome, state, W, dual


def _rows(seed, n, T, dx, dz):
    rng = np.random.default_rng(seed)
    head = rng.standard_normal((dx, dz))
    Z = rng.standard_normal((n, dz))
    D = rng.standard_normal((n * T, dx))
    sequence = np.repeat(np.arange(n), T)
    D *= np.sign(np.einsum("cd,cd->c", D, (Z @ head.T)[sequence]))[:, None]
    return D, Z, np.arange(0, n * T + 1, T)


@pytest.mark.parametrize("name", ["nuc", "spec", "schatten:3", "lp:1.5", "lp:8", "rows", "maxrow"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 2, 1, 4), (4, 3, 5, 1), (5, 4, 6, 3)])
def test_weights_meet_every_margin_and_multipliers_their_bound(name, shape):
    D, Z, offsets = _rows(0, *shape)
    b = np.linspace(0.5, 1.0, len(D))
    outcome, state, W, dual = _solved(name, D, Z, offsets, b)
    assert outcome == native.SOLVED
    assert state.error <= 1e-11
    assert state.iterations % 5 == 0
    sequence = np.repeat(np.arange(len(Z)), np.diff(offsets))
    values = np.einsum("cd,cd->c", D, (Z @ W.T)[sequence])
    norm, pulled = parse_norm(name), (D * dual[:, None]).T @ Z[sequence]
    ratio = (values / b).min()
    assert (dual >= 0.0).all()
    assert b @ dual / norm.dual_value(pulled) >= norm.value(W) / ratio * (1 - 1e-10)


@pytest.mark.parametrize("name", ["nuc", "lp:3"])
def test_a_contradiction_comes_with_its_multipliers(name):
    D, Z, offsets = _rows(1, 3, 4, 3, 2)
    D[1] = -D[0]
    outcome, _, _, dual = _solved(name, D, Z, offsets, np.ones(len(D)))
    assert outcome == native.CONTRADICTION
    sequence = np.repeat(np.arange(len(Z)), np.diff(offsets))
    pulled = (D * dual[:, None]).T @ Z[sequence]
    assert dual.min() >= 0.0 < dual.sum()
    assert np.abs(pulled).max() <= 1e-12 * dual.max()


def test_iterations_end_where_they_are_told_to():
    D, Z, offsets = _rows(2, 6, 5, 8, 6)
    outcome, state, _, _ = _solved("nuc", D, Z, offsets, np.ones(len(D)), most=7)
    assert (outcome, state.iterations) == (native.STOPPED, 7)
    assert 1e-11 < state.error < math.inf
