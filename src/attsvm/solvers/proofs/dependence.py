r"""Whether rows depend on each other *exactly*, decided modulo random primes.

Floating-point numbers are integers times powers of two, so rows :math:`\delta_c z_{i(c)}^\top` have
an exact rank, and rounding cannot see it. Elimination modulo a prime :math:`p` can: the rank modulo
:math:`p` is never larger, and smaller only when :math:`p` divides every minor of full size. Columns
are not all eliminated: that every column lies in the span of a few is the case when three random
combinations of all columns do (R. Freivalds, *Fast probabilistic algorithms*, 1979). A wrong answer
needs each of three primes of 31 bits, drawn once and for all, to divide such a minor or to meet
such a combination, which has a chance below 1e-12 for any data that were not made from the primes.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.jit import kernel

_PRIMES = (1496910827, 1907958769, 1561067923)
_COMBINATIONS = 3
_LARGEST = 2e9  # multiplications of one elimination


def spanned(D: FloatArray, Z: FloatArray, owner: IntArray, columns: IntArray) -> bool:
    """Whether these columns of the rows are independent and span all others.

    Args:
        D: ``(k, d_x)`` differences.
        Z: ``(n, d_z)`` queries.
        owner: ``(k,)`` the query of each row.
        columns: positions in the ``d_x d_z`` columns of the rows.

    Returns:
        True only if it is so; False also where the rows are too many to tell.
    """
    if len(columns) > len(D) or len(D) * float(len(columns)) ** 2 > _LARGEST:
        return False
    a, e = columns // Z.shape[1], columns % Z.shape[1]
    for prime in _PRIMES:
        x, z = _residues(D, prime), _residues(Z, prime)[owner]
        rng = np.random.default_rng(prime)
        system = np.empty((len(D), len(columns) + _COMBINATIONS), dtype=np.int64)
        system[:, : len(columns)] = x[:, a] * z[:, e] % prime
        for j in range(_COMBINATIONS):
            weights = rng.integers(1, prime, size=(D.shape[1], Z.shape[1]))
            total = np.zeros(len(D), dtype=np.int64)
            for k in range(Z.shape[1]):
                inner = np.zeros(len(D), dtype=np.int64)
                for i in range(D.shape[1]):
                    inner = (inner + x[:, i] * weights[i, k]) % prime
                total = (total + inner * z[:, k]) % prime
            system[:, len(columns) + j] = total
        if not _eliminated(system, len(columns), prime):
            return False
    return True


def rank(D: FloatArray, Z: FloatArray, owner: IntArray) -> int | None:
    """The rank of the rows; ``None`` where they are too many to tell."""
    columns = D.shape[1] * Z.shape[1]
    if float(len(D)) ** 2 * columns > _LARGEST:
        return None
    found = 0
    for prime in _PRIMES:
        x, z = _residues(D, prime), _residues(Z, prime)[owner]
        system = (x[:, :, None] * z[:, None, :] % prime).reshape(len(D), columns)
        found = max(found, _rank(system, prime))
    return found


def _residues(values: FloatArray, prime: int) -> IntArray:
    mantissa, exponent = np.frexp(values)
    whole = (np.ldexp(mantissa, 53)).astype(np.int64) % prime
    powers, where = np.unique(exponent, return_inverse=True)
    factors = np.array([pow(2, int(k) - 53, prime) for k in powers], dtype=np.int64)
    residues: IntArray = whole * factors[where.reshape(values.shape)] % prime
    return residues


@kernel
def _power(base: int, exponent: int, prime: int) -> int:
    result = 1
    while exponent > 0:
        if exponent & 1:
            result = result * base % prime
        base = base * base % prime
        exponent >>= 1
    return result


@kernel
def _eliminated(system: IntArray, count: int, prime: int) -> bool:
    """True when the first ``count`` columns are independent and the others vanish with them."""
    rows, width = system.shape
    if count > width:
        raise ValueError("count must not exceed the number of columns")
    for j in range(count):
        pivot = -1
        for c in range(j, rows):
            if system[c, j] != 0:
                pivot = c
                break
        if pivot < 0:
            return False
        if pivot != j:
            for k in range(j, width):
                system[j, k], system[pivot, k] = system[pivot, k], system[j, k]
        inverse = _power(system[j, j], prime - 2, prime)
        for k in range(j, width):
            system[j, k] = system[j, k] * inverse % prime
        for c in range(j + 1, rows):
            factor = system[c, j]
            if factor != 0:
                factor = prime - factor
                for k in range(j, width):
                    system[c, k] = (system[c, k] + factor * system[j, k]) % prime
    for c in range(count, rows):
        for k in range(count, width):
            if system[c, k] != 0:
                return False
    return True


@kernel
def _rank(system: IntArray, prime: int) -> int:
    rows, width = system.shape
    found = 0
    for j in range(width):
        pivot = -1
        for c in range(found, rows):
            if system[c, j] != 0:
                pivot = c
                break
        if pivot < 0:
            continue
        for k in range(j, width):
            system[found, k], system[pivot, k] = system[pivot, k], system[found, k]
        inverse = _power(system[found, j], prime - 2, prime)
        for c in range(found + 1, rows):
            factor = system[c, j] * inverse % prime
            if factor != 0:
                factor = prime - factor
                for k in range(j, width):
                    system[c, k] = (system[c, k] + factor * system[found, k]) % prime
        found += 1
        if found == rows:
            break
    return found
