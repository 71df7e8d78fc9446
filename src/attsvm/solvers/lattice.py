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
from typing import Any, NamedTuple

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray


class LatticeOptions(NamedTuple):
    """Numbers of the lattice reduction."""

    lovasz: float = 0.75  # share of a squared length that the next one has at least, as published
    stage_bits: int = 30  # by which large coordinates count more in each stage; untuned
    roundings: int = 12  # of one vector, each of which brings some ten digits


OPTIONS = LatticeOptions()


def nearest_combination(
    basis: Any,
    target: Any,
    deadline: float = math.inf,
    heavy: IntArray | None = None,
    options: LatticeOptions = OPTIONS,
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
        options: numbers of the reduction.
    """
    k = len(basis)
    if heavy is None:
        heavy = np.array([max(int(abs(x)).bit_length() for x in column) for column in basis.T])
        basis, target, heavy = basis[:, heavy > 0], target[heavy > 0], heavy[heavy > 0]
    # 1. Reduce in stages; the rows of `combinations` are the reduced vectors, in the basis.
    combinations = np.array([[int(i == j) for j in range(k)] for i in range(k)], dtype=object)
    highest = int(heavy.max(initial=0))
    stage = int(heavy.min(initial=0)) + options.stage_bits
    while True:
        # Lighter coordinates count as they are; heavy ones up to this stage.
        weight = np.minimum(stage - heavy, 0)
        reduced = _reduce(combinations @ basis, combinations, weight, deadline, options)
        if reduced is None:
            return None
        combinations = reduced
        if stage >= highest:
            break
        stage += options.stage_bits
    # 2. Read off a point.
    return _round_coordinates(combinations @ basis, target) @ combinations


def to_scaled_integers(values: FloatArray, digits: int) -> tuple[Any, IntArray]:
    """Integers, and the power of two with which they are the values times ``2**digits``."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(mantissa, 53).astype(np.int64).astype(object), exponent - 53 + digits


def shift_bits(numbers: Any, power: IntArray) -> Any:
    """Integers times powers of two, rounded down."""
    up = np.maximum(power, 0).astype(object)
    return (numbers << up) >> np.maximum(-power, 0).astype(object)


def _to_floats(vectors: Any, weight: IntArray) -> FloatArray:
    """The vectors in float64, coordinates times ``2**weight``."""
    floats: FloatArray = np.ldexp(vectors.astype(np.float64), weight)
    return floats


def _reduce(
    vectors: Any, combinations: Any, weight: IntArray, deadline: float, options: LatticeOptions
) -> Any:
    """The combinations that make the vectors short and nearly orthogonal; ``None`` out of time.

    1. Take integer multiples of the vectors before off vector ``i``, until its shares of their
       directions round to zero.
    2. Where it is much shorter than the one before (Lovász' condition), exchange the two and go
       back; else go on with the next.
    """
    k, d = vectors.shape
    floats = _to_floats(vectors, weight)
    directions, squares = np.zeros((k, d)), np.zeros(k)

    def orthogonalise(i: int) -> FloatArray:
        """Shares ``(i,)`` of the directions before; writes the direction and squared length of what
        is left.
        """
        rest, shares = floats[i].copy(), np.zeros(i)
        for _ in range(2):  # the second time takes off what the first has rounded
            along = directions[:i] @ rest
            rest -= along @ directions[:i]
            shares += along
        length = float(np.linalg.norm(rest)) or 1.0
        directions[i] = rest / length
        squares[i] = length**2
        return shares

    i = 0
    while i < k:
        # 1. Shorten vector i.
        for _ in range(options.roundings):
            shares = orthogonalise(i)
            # Mostly all round to zero, and one look at all of them is quicker than one at each.
            if not np.rint(shares / np.sqrt(squares[:i])).any():
                break
            for j in range(i - 1, -1, -1):
                times = int(np.rint(shares[j] / np.sqrt(squares[j])))
                # Exact on integers; the shares follow in floating point.
                if times:
                    vectors[i] -= times * vectors[j]
                    combinations[i] -= times * combinations[j]
                    shares[: j + 1] -= times * (directions[: j + 1] @ floats[j])
            floats[i] = _to_floats(vectors[i], weight)
        # 2. Exchange, or go on.
        if i > 0 and squares[i] + shares[i - 1] ** 2 < options.lovasz * squares[i - 1]:
            # Exchanges are what the time goes into.
            if time.monotonic() > deadline:
                return None
            for array in (vectors, combinations, floats):
                array[[i - 1, i]] = array[[i, i - 1]]
            i -= 1
        else:
            i += 1
    return combinations


def _round_coordinates(vectors: Any, target: Any) -> Any:
    """``(k,)`` integer coordinates of a point near the target: one coordinate after the other is
    rounded, the last first, along the orthogonal parts of the vectors.
    """
    weight = np.zeros(vectors.shape[1], dtype=np.int64)
    # Reduced vectors are nearly orthogonal, so float64 tells their shares.
    Q, R = np.linalg.qr(_to_floats(vectors, weight).T)
    coordinates = np.zeros(len(vectors), dtype=object)
    rest = target.copy()
    for i in range(len(vectors) - 1, -1, -1):
        if R[i, i] != 0.0:
            times = int(np.rint(Q[:, i] @ rest.astype(np.float64) / R[i, i]))
            coordinates[i] += times
            rest = rest - times * vectors[i]
    return coordinates
