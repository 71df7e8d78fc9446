r"""Integers whose combination of given vectors is near a given one.

A. K. Lenstra, H. W. Lenstra and L. Lovász, *Factoring polynomials with rational coefficients*
(1982), make vectors short and nearly orthogonal by integer combinations; rounding one coordinate
after the other along these comes near any point (L. Babai, *On Lovász' lattice reduction and the
nearest lattice point problem*, 1986). Vectors are integers and stay exact; the orthogonal parts
that steer the reduction are floating-point numbers, computed again from the integers whenever these
change (P. Nguyen and D. Stehlé, *Floating-point LLL revisited*, 2005).
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray

_LOVASZ = 0.75  # share of a length that the next one keeps at least
_STAGE = 30  # bits by which large coordinates count more from one reduction to the next
_ROUNDS = 12  # of rounding one vector, each of which brings some ten digits


def nearest_combination(
    basis: Any, target: Any, deadline: float = math.inf, heavy: IntArray | None = None
) -> Any:
    """Integers ``n`` that make ``basis.T @ n`` near ``target``, ``(k,)``; ``None`` out of time.

    1. Coordinates of very different sizes are weighed in stages, the large ones more each time,
       which keeps the vectors of each stage far from parallel.
    2. A point near the target is read off the reduced vectors.

    Args:
        basis: ``(k, d)`` integers, a vector in each row.
        target: ``(d,)`` integers.
        deadline: of :func:`time.monotonic`.
        heavy: ``(d,)`` exponents of the sizes of the coordinates; those of the largest entries when
            left out.
    """
    k = len(basis)
    if heavy is None:
        heavy = np.array([max(int(abs(x)).bit_length() for x in column) for column in basis.T])
        basis, target, heavy = basis[:, heavy > 0], target[heavy > 0], heavy[heavy > 0]
    turned = np.array([[int(i == j) for j in range(k)] for i in range(k)], dtype=object)
    high = int(heavy.max(initial=0))
    cap = int(heavy.min(initial=0)) + _STAGE
    while True:  # 1
        weight = np.minimum(cap - heavy, 0)
        reduced = _reduced(turned @ basis, turned, weight, deadline)
        if reduced is None:
            return None
        turned = reduced
        if cap >= high:
            break
        cap += _STAGE
    return _rounded(turned @ basis, target) @ turned  # 2


def to_scaled_integers(values: FloatArray, digits: int) -> tuple[Any, IntArray]:
    """Integers, and the power of two with which they are the values times ``2**digits``."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(mantissa, 53).astype(np.int64).astype(object), exponent - 53 + digits


def shift_bits(numbers: Any, power: IntArray) -> Any:
    """Integers times powers of two, rounded down."""
    up = np.maximum(power, 0).astype(object)
    return (numbers << up) >> np.maximum(-power, 0).astype(object)


def _floats(vectors: Any, weight: IntArray) -> FloatArray:
    found: FloatArray = np.ldexp(vectors.astype(np.float64), weight)
    return found


def _reduced(vectors: Any, turned: Any, weight: IntArray, deadline: float) -> Any:
    """The combinations that make the vectors short."""
    k, d = vectors.shape
    near = _floats(vectors, weight)
    directions, squares = np.zeros((k, d)), np.zeros(k)

    def orthogonal(i: int) -> FloatArray:
        """Shares of the vectors before, and what is left of this one."""
        rest, shares = near[i].copy(), np.zeros(i)
        for _ in range(2):
            along = directions[:i] @ rest
            rest -= along @ directions[:i]
            shares += along
        directions[i] = rest / (length := float(np.linalg.norm(rest)) or 1.0)
        squares[i] = length**2
        return shares

    i = 0
    while i < k:
        for _ in range(_ROUNDS):
            shares = orthogonal(i)
            changed = False
            for j in range(i - 1, -1, -1):
                times = int(np.rint(shares[j] / np.sqrt(squares[j])))
                if times:
                    vectors[i] -= times * vectors[j]
                    turned[i] -= times * turned[j]
                    shares[: j + 1] -= times * (directions[: j + 1] @ near[j])
                    changed = True
            if not changed:
                break
            near[i] = _floats(vectors[i], weight)
        if i > 0 and squares[i] + shares[i - 1] ** 2 < _LOVASZ * squares[i - 1]:
            if time.monotonic() > deadline:
                return None
            for each in (vectors, turned, near):
                each[[i - 1, i]] = each[[i, i - 1]]
            i -= 1
        else:
            i += 1
    return turned


def _rounded(vectors: Any, target: Any) -> Any:
    """Coordinates of a point near the target in the vectors."""
    weight = np.zeros(vectors.shape[1], dtype=np.int64)
    near = _floats(vectors, weight)
    Q, R = np.linalg.qr(near.T)
    found = np.zeros(len(vectors), dtype=object)
    rest = target.copy()
    for i in range(len(vectors) - 1, -1, -1):
        if R[i, i] != 0.0:
            times = int(np.rint(Q[:, i] @ rest.astype(np.float64) / R[i, i]))
            found[i] += times
            rest = rest - times * vectors[i]
    return found
