"""Hard programmes, by kind and seed: the same arguments give the same programme everywhere.

Every kind is small (at most six sequences, six tokens, six features), so that exact arithmetic is
cheap. Most kinds mix feasible and infeasible programmes; which is which, the judge finds out. The
kinds of powers of two know the answer. Products, powers and bases are computed one Python number
after the other: the last digits of what BLAS, LAPACK and vector instructions give depend on the
processor, and on the last digits hangs whether some of these programmes have weights.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import (
    Margins,
    multi_token_margins,
    prompt_margins,
    ratio_margins,
    selection_margins,
)

Rng = np.random.Generator


@dataclass(frozen=True, eq=False)
class Hard:
    """A programme with the penalty of its soft margin, or none.

    Attributes:
        margins: the programme.
        slack: the penalty C.
        optimum: the least p-norm of a programme whose answer is known, by exponent of the entries
            and of the singular values alike; ``None`` for the others.
    """

    margins: Margins
    slack: float | None = None
    optimum: Callable[[float], float] | None = None


def hard(kind: str, seed: int) -> Hard:
    """The programme of this kind with this seed."""
    made = KINDS[kind](np.random.default_rng([zlib.crc32(kind.encode()), seed]))
    return made if isinstance(made, Hard) else Hard(made)


def _power(rng: Rng, low: float, high: float) -> float:
    """``10**u``, u uniform."""
    return float(10.0 ** rng.uniform(low, high))


def _powers(rng: Rng, low: float, high: float, shape: Any) -> Any:
    exponents = rng.uniform(low, high, shape)
    return np.array([10.0**u for u in exponents.reshape(-1).tolist()]).reshape(exponents.shape)


def _product(A: Any, B: Any) -> Any:
    """``A @ B``."""
    return np.asarray(A.astype(object) @ B.astype(object), dtype=float)


def _basis(rng: Rng, d: int) -> Any:
    """Orthonormal rows, by Gram and Schmidt."""
    basis: list[Any] = []
    for row in rng.standard_normal((d, d)).astype(object):
        for _ in range(2):
            for other in basis:
                row = row - (row @ other) * other
        basis.append(row / math.sqrt(row @ row))
    return np.array(basis).astype(float)


def _sizes(rng: Rng) -> tuple[int, int, int, int]:
    """Sequences, tokens, features of tokens and of queries."""
    return tuple(int(rng.integers(1, top)) for top in (6, 6, 6, 5))  # type: ignore[return-value]


def _selected(X: Any, Z: Any, tokens: Any, mask: Any = None) -> Margins:
    return selection_margins(AttentionData(X, np.ones(len(X)), Z, mask), np.asarray(tokens))


def _taught(rng: Rng, X: Any, Z: Any) -> Any:
    """The tokens that random weights select: a feasible choice up to rounding."""
    W = rng.standard_normal((X.shape[2], Z.shape[1]))
    return np.einsum("ntd,de,ne->nt", X, W, Z).argmax(axis=1)


def _chosen(rng: Rng, X: Any, Z: Any, feasible: float = 0.7) -> Any:
    """Taught with this probability, else by chance."""
    if rng.random() < feasible:
        return _taught(rng, X, Z)
    return rng.integers(X.shape[1], size=len(X))


def _rows(rng: Rng, rows: Any, queries: int | None = None) -> Margins:
    """One sequence whose differences are these rows (rivals are minus them, the selected is 0)."""
    X = np.concatenate([np.zeros((1, rows.shape[1])), -rows])[None]
    Z = np.ones((1, 1)) if queries is None else rng.standard_normal((1, queries))
    return _selected(X, Z, [0])


def _turned(rng: Rng, rows: Any) -> Any:
    """The rows in another orthonormal basis (rounded), or in another order of features."""
    d = rows.shape[1]
    if rng.random() < 0.5:
        return rows[:, rng.permutation(d)]
    return _product(rows, _basis(rng, d))


def _near_parallel(rng: Rng) -> Margins:
    n, d, e = int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(1, 4))
    T = int(rng.integers(3, 7))
    base = rng.standard_normal((n, 1, d))
    X = base * rng.uniform(0.5, 2.0, (n, T, 1))
    X = X + _powers(rng, -13, -1, (n, T, 1)) * rng.standard_normal((n, T, d))
    X[:, 0] = 0.0
    X = -X
    return _selected(X, rng.standard_normal((n, e)), np.zeros(n, dtype=int))


def _near_contradictory(rng: Rng) -> Margins:
    """Two opposite rows whose sum is of second order, and a third that the sum does not oppose."""
    s = _power(rng, -8, -2) if rng.random() < 0.7 else 2.0 ** -int(rng.integers(4, 28))
    X = np.zeros((1, 4, 3))
    X[0, 1], X[0, 2], X[0, 3] = [-s, -s * s, -s * s], [s, -s * s, -s * s], [0.0, 0.0, 1.0]
    if rng.random() < 0.3:
        X[0, 3, 2] = -1.0
    X = X[:, :, rng.permutation(3)]
    if rng.random() < 0.5:
        X = X * 2.0 ** int(rng.integers(-20, 20))
    return _selected(X, np.ones((1, 1)), [0])


def _nearly_infeasible(rng: Rng) -> Margins:
    """Opposite rows that meet at an angle of 1e-3 to 1e-12."""
    d, gap = int(rng.integers(2, 6)), _power(rng, -12, -3)
    u, v = _basis(rng, d)[:2]
    side = -1.0 if rng.random() < 0.2 else 1.0
    rows = [u + side * gap * v, -u + side * gap * v]
    for _ in range(int(rng.integers(0, 3))):
        rows.append(0.5 * v + rng.standard_normal() * u)
    if rng.random() < 0.4:  # without a part along u: infeasible but for rounding
        rows.append(-side * v + rng.choice([0.0, _power(rng, -3, 0)]) * u)
    scale = _powers(rng, -1, 1, (len(rows), 1))
    return _rows(rng, _turned(rng, np.array(rows) * scale), int(rng.integers(1, 4)))


def _targeted(rng: Rng) -> Margins:
    """A row that a positive combination of the others cancels, up to 1e-3 to 1e-16 or rounding."""
    d = int(rng.integers(2, 5))
    k = int(rng.integers(2, d + 2))
    rows = rng.standard_normal((k, d))
    last = -_product(rng.uniform(0.1, 1.0, k), rows)
    if rng.random() < 0.8:
        last = last + _power(rng, -16, -3) * rng.standard_normal(d)
    return _rows(rng, np.vstack([rows, last]), int(rng.integers(1, 3)))


def _mixed_scales(rng: Rng) -> Margins:
    n, T, d, e = _sizes(rng)
    span = float(rng.choice([8.0, 30.0, 150.0]))
    X = rng.standard_normal((n, T + 1, d)) * _powers(rng, -span, span, (n, T + 1, 1))
    return _selected(X, rng.standard_normal((n, e)), _chosen(rng, X, rng.standard_normal((n, e))))


def _sequence_scales(rng: Rng) -> Margins:
    """Sequences of sizes 1e-6 to 1e6 in one programme."""
    n, T, d, e = _sizes(rng)
    X = rng.standard_normal((n, T + 1, d)) * _powers(rng, -6, 6, (n, 1, 1))
    Z = rng.standard_normal((n, e))
    return _selected(X, Z, _chosen(rng, X, Z, 0.85))


def _feature_scales(rng: Rng) -> Margins:
    n, T, d, e = _sizes(rng)
    span = float(rng.choice([3.0, 8.0, 50.0]))
    X = rng.standard_normal((n, T + 1, d)) * _powers(rng, -span, span, d)
    Z = rng.standard_normal((n, e)) * _powers(rng, -span / 2, span / 2, e)
    return _selected(X, Z, _chosen(rng, X, Z, 0.8))


def _lattice(rng: Rng) -> Margins:
    n, T, d, e = _sizes(rng)
    X = rng.integers(-2, 3, (n, T + 1, d)).astype(float)
    Z = rng.integers(-1, 2, (n, e)).astype(float)
    return _selected(X, Z, _chosen(rng, X, Z, 0.8))


def _masks(rng: Rng) -> Margins:
    n, T, d, e = _sizes(rng)
    X, Z = rng.standard_normal((n, T + 1, d)), rng.standard_normal((n, e))
    mask = rng.random((n, T + 1)) < 0.6
    tokens = _chosen(rng, X, Z)
    mask[np.arange(n), tokens] = True
    return _selected(X, Z, tokens, mask)


def _duplicates(rng: Rng) -> Margins:
    """Tokens that repeat, and now and then a rival equal to the selected token."""
    n, T, d, e = _sizes(rng)
    X, Z = rng.standard_normal((n, T + 1, d)), rng.standard_normal((n, e))
    tokens = _chosen(rng, X, Z, 0.9)
    copied = X[:, rng.integers(T + 1, size=2)]
    copied[:, 0] *= rng.choice([1.0, 0.5])
    if rng.random() > 0.15:  # else the selected token itself may be copied
        hit = (copied == X[np.arange(n), tokens][:, None]).all(axis=2)
        copied[hit] -= 1.0
    margins = _selected(np.concatenate([X, copied], axis=1), Z, tokens)
    if rng.random() < 0.3:  # rows of zeros that ask for nothing
        rhs = margins.rhs.copy()
        D = margins.differences.copy()
        D[0], rhs[0] = 0.0, 0.0
        margins = replace(margins, differences=D, rhs=rhs)
    return margins


def _equalities(rng: Rng) -> Margins:
    n, T, d, e = _sizes(rng)
    X, Z = rng.standard_normal((n, T + 1, d + 1)), rng.standard_normal((n, e))
    sets = rng.random((n, T + 1)) < 0.35
    sets[np.arange(n), _taught(rng, X, Z)] = True
    return multi_token_margins(AttentionData(X, np.ones(n), Z), sets)


def _near_equalities(rng: Rng) -> Margins:
    """Equal tokens that nearly depend on each other."""
    n, d, e = int(rng.integers(1, 4)), int(rng.integers(2, 6)), int(rng.integers(1, 4))
    X, Z = rng.standard_normal((n, 5, d)), rng.standard_normal((n, e))
    X[:, 2] = 2.0 * X[:, 1] - X[:, 0]
    if rng.random() < 0.7:
        X[:, 2] += _power(rng, -14, -2) * rng.standard_normal((n, d))
    sets = np.zeros((n, 5), dtype=bool)
    sets[:, : int(rng.integers(2, 4))] = True
    return multi_token_margins(AttentionData(X, np.ones(n), Z), sets)


def _ratios(rng: Rng) -> Margins:
    n, T, d, e = _sizes(rng)
    X, Z = rng.standard_normal((n, T + 1, d + 1)), rng.standard_normal((n, e))
    sets = rng.random((n, T + 1)) < 0.6
    sets[:, 0] = True
    shares = _powers(rng, -4, 0, (n, T + 1))
    return ratio_margins(AttentionData(X, np.ones(n), Z), sets, shares)


def _soft(rng: Rng) -> Hard:
    n, T, d, e = _sizes(rng)
    X, Z = rng.standard_normal((n, T + 1, d)), rng.standard_normal((n, e))
    return Hard(_selected(X, Z, _chosen(rng, X, Z, 0.3)), slack=_power(rng, -6, 15))


def _soft_hostile(rng: Rng) -> Hard:
    """The soft margin on programmes of the other kinds."""
    other = (_near_parallel, _nearly_infeasible, _targeted, _lattice, _duplicates, _feature_scales)
    margins = other[int(rng.integers(len(other)))](rng)
    return Hard(margins, slack=_power(rng, -6, 15))


def _rank_deficient(rng: Rng) -> Margins:
    n, T, d, e = _sizes(rng)
    X = _product(
        rng.standard_normal((n, T + 1, 1 + d // 3)), rng.standard_normal((1 + d // 3, d + 1))
    )
    Z = rng.standard_normal((n, 1)) * rng.standard_normal((1, e + 1))
    return _selected(X, Z, _chosen(rng, X, Z, 0.8))


def _collinear(rng: Rng) -> Margins:
    """Tokens on a line: exactly, or up to rounding."""
    n, T, d, e = _sizes(rng)
    line = rng.standard_normal(d)
    exact = rng.random() < 0.5
    steps = rng.integers(-4, 5, (n, T + 1, 1)) if exact else rng.uniform(-4, 4, (n, T + 1, 1))
    X = steps * (np.round(4 * line) if exact else line)
    Z = rng.standard_normal((n, e))
    return _selected(X + (0.0 if exact else rng.standard_normal(d)), Z, _chosen(rng, X, Z))


def _many_tokens(rng: Rng) -> Margins:
    n, d, e = int(rng.integers(1, 5)), int(rng.integers(1, 3)), int(rng.integers(1, 3))
    X, Z = rng.standard_normal((n, 6, d)), rng.standard_normal((n, e))
    return _selected(X, Z, _chosen(rng, X, Z, 0.85))


def _sides(rng: Rng) -> Margins:
    """Right-hand sides from 1e-9 to 1e9 of each other, some zero, all times 1e-80 to 1e80."""
    n, T, d, e = _sizes(rng)
    X, Z = rng.standard_normal((n, T + 1, d + 1)), rng.standard_normal((n, e))
    margins = _selected(X, Z, _taught(rng, X, Z))
    span = float(rng.choice([1.0, 4.0, 9.0]))
    rhs = _powers(rng, -span, span, margins.m) * _power(rng, -80, 80)
    return replace(margins, rhs=np.where(rng.random(margins.m) < 0.2, 0.0, rhs))


def _single(rng: Rng) -> Hard:
    """One constraint: the answer is its side over the dual norm of its row."""
    d, e = int(rng.integers(1, 7)), int(rng.integers(1, 5))
    X = rng.standard_normal((1, 2, d)) * _power(rng, -100, 100)
    return Hard(_selected(X, rng.standard_normal((1, e)), [0]))


def _degenerate(rng: Rng) -> Margins:
    """More constraints tight at one vertex than it has dimensions."""
    d, e = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    n = int(rng.integers(1, 5))
    W = rng.integers(-2, 3, (d, e)).astype(float)
    X, Z = np.zeros((n, 7, d)), rng.integers(-1, 2, (n, e)).astype(float)
    for i in range(n):
        along = W @ Z[i]
        X[i, 0] = along
        draws = rng.integers(-3, 4, (200, d)).astype(float)
        tight = draws[draws @ along == 1.0] if along.any() else draws
        X[i, 1:] = X[i, 0] - tight[:6] if len(tight) >= 6 else X[i, 0] - along
        if not along.any():
            X[i, 0] = X[i, 1]
            Z[i] = 0.0
    mask = np.ones((n, 7), dtype=bool)
    mask[~Z.any(axis=1), 1:] = False
    return _selected(X, Z, np.zeros(n, dtype=int), mask)


def _powers_of_two(rng: Rng) -> Hard:
    """Row i asks for entry (i, i) alone, at a power of two: the weights are diagonal, and every
    norm of them is that of their diagonal.
    """
    d = int(rng.integers(1, 6))
    span = int(rng.choice([3, 20, 200]))
    powers = rng.integers(-span, span + 1, d)
    X = np.zeros((d, 2, d))
    X[np.arange(d), 0, np.arange(d)] = 2.0 ** powers.astype(float)
    diagonal = 2.0 ** -powers.astype(float)

    def optimum(p: float) -> float:
        top = float(diagonal.max())
        if np.isinf(p):
            return top
        with np.errstate(under="ignore"):
            return top * float(((diagonal / top) ** p).sum() ** (1.0 / p))

    return Hard(_selected(X, np.eye(d), np.zeros(d, dtype=int)), optimum=optimum)


def _prompt(rng: Rng) -> Margins:
    """A prompt vector whose separation is close: many rivals, one direction."""
    n, T, d, _ = _sizes(rng)
    X = rng.standard_normal((n, T + 1, d))
    direction = rng.standard_normal(d)
    tokens = _product(X, direction).argmax(axis=1)
    near = X[np.arange(n), tokens]
    gap = _power(rng, -10, -1)
    X[:, 0] = (
        near - gap * direction / _product(direction, direction) + gap * rng.standard_normal((n, d))
    )
    data = AttentionData(X, np.ones(n), np.ones((n, 1)))
    return prompt_margins(data, np.where(tokens == 0, (tokens + 1) % (T + 1), tokens))


def _unimodular(rng: Rng) -> Margins:
    """Integer rows of determinant one and entries up to 2**49, and a row that they cancel exactly
    or up to one unit: whether weights exist hangs on digits beyond twice those of float64.
    """
    d = int(rng.integers(2, 5))
    U = np.eye(d, dtype=object)
    while True:
        i, j = rng.choice(d, 2, replace=False)
        grown = U.copy()
        grown[i] = U[i] + int(rng.choice([-3, -2, -1, 1, 2, 3])) * U[j]
        if max(abs(a) for a in grown.reshape(-1)) >= 2**49:
            break
        U = grown
    last: Any = -np.sum([int(rng.integers(1, 4)) * row for row in U], axis=0)
    last[int(rng.integers(d))] += int(rng.choice([-1, 0, 1]))
    rows = np.vstack([U, last]).astype(float)
    return _rows(rng, rows * 2.0 ** rng.integers(-50, 1, (d + 1, 1)).astype(float))


def _crowded(rng: Rng) -> Margins:
    """More constraints than entries of the weights, most of them close to the selected token."""
    n, d, e = int(rng.integers(4, 7)), int(rng.integers(2, 5)), int(rng.integers(1, 4))
    X, Z = rng.standard_normal((n, 6, d)), rng.standard_normal((n, e))
    tokens = _chosen(rng, X, Z, 0.9)
    near = X[np.arange(n), tokens][:, None] + 10.0 ** rng.uniform(-6, 0) * (
        X - X.mean(axis=1)[:, None]
    )
    W = rng.standard_normal((d, e))
    if rng.random() < 0.5:  # the close ones are ranked by other weights
        tokens = np.einsum("ntd,de,ne->nt", near, W, Z).argmax(axis=1)
    return _selected(near, Z, tokens)


def _joined(rng: Rng) -> Margins:
    """The sequences of two hard programmes in one, each times a scale of its own."""
    parts = []
    for _ in range(2):
        part = PLAIN[int(rng.integers(len(PLAIN)))](rng)
        size = _power(rng, -4, 4) if rng.random() < 0.5 else 1.0
        parts.append(replace(part, differences=part.differences * size))
    shape = [max(part.shape[k] for part in parts) for k in (0, 1)]

    def wide(array: Any, width: int) -> Any:
        return np.pad(array, ((0, 0), (0, width - array.shape[1])))

    return Margins(
        np.concatenate([wide(part.differences, shape[0]) for part in parts]),
        np.concatenate([wide(part.queries, shape[1]) for part in parts]),
        np.concatenate([parts[0].offsets, parts[0].m + parts[1].offsets[1:]]),
        np.concatenate([part.rhs for part in parts]),
        np.concatenate([part.token for part in parts]),
        np.concatenate([part.selected for part in parts]),
    )


PLAIN = (
    _near_parallel,
    _near_contradictory,
    _targeted,
    _lattice,
    _masks,
    _rank_deficient,
    _collinear,
    _many_tokens,
    _degenerate,
)


def _soft_separable(rng: Rng) -> Hard:
    """A penalty beyond the multipliers of the hard margin, which is then the solution."""
    n, T, d, e = _sizes(rng)
    X, Z = rng.standard_normal((n, T + 1, d + 1)), rng.standard_normal((n, e))
    return Hard(_selected(X, Z, _taught(rng, X, Z)), slack=_power(rng, 0, 15))


KINDS: dict[str, Callable[[Rng], Margins | Hard]] = {
    "near-parallel": _near_parallel,
    "near-contradictory": _near_contradictory,
    "nearly-infeasible": _nearly_infeasible,
    "targeted": _targeted,
    "mixed-scales": _mixed_scales,
    "sequence-scales": _sequence_scales,
    "feature-scales": _feature_scales,
    "lattice": _lattice,
    "masks": _masks,
    "duplicates": _duplicates,
    "equalities": _equalities,
    "near-equalities": _near_equalities,
    "ratios": _ratios,
    "soft": _soft,
    "soft-hostile": _soft_hostile,
    "rank-deficient": _rank_deficient,
    "collinear": _collinear,
    "many-tokens": _many_tokens,
    "sides": _sides,
    "single": _single,
    "degenerate": _degenerate,
    "powers-of-two": _powers_of_two,
    "prompt": _prompt,
    "crowded": _crowded,
    "joined": _joined,
    "soft-separable": _soft_separable,
    "unimodular": _unimodular,
}
