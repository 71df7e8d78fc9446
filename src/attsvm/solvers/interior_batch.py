r"""Small hard-margin programmes of the other norms in compiled code, one alone or many at a time.

The Frobenius kernel (:mod:`attsvm.solvers.small`) decides which have weights, which does not depend
on the norm, and interior points find them: :mod:`attsvm.solvers.interior` for entrywise norms,
:mod:`attsvm.solvers.interior_spectra`, on the spans of differences and queries, for the nuclear and
the spectral norm. A programme gives the same bits alone and beside others. What comes out is
certified from the caller's numbers; what is not good enough is left to the ordinary solvers.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.geometry import Lp, Norm, Schatten
from attsvm.jit import summing_kernel
from attsvm.margins import Margins, MarginsBatch
from attsvm.solvers import rank, small
from attsvm.solvers.certificates import Certificate, certify_hard
from attsvm.solvers.choice import FEW
from attsvm.solvers.interior import interior_point
from attsvm.solvers.interior_spectra import spectral_point
from attsvm.solvers.kernels import fitting
from attsvm.solvers.outcomes import Request, kept, solved
from attsvm.solvers.scaling import scaled
from attsvm.solvers.small_algebra import margins, scales
from attsvm.solvers.solution import MarginSolution
from attsvm.solvers.uniqueness import unique_weights

SOLVER = "interior points"
_LARGEST = 1 << 14  # entries of written-out rows up to which this is quicker than other methods
_LEAST = 1.2  # exponent above one whose duality map interior points follow
_DEPENDENT = 1e-24  # squared distance to earlier rows, relative, of rows that lie in their span
_NONE = -100_000
_APART = 1e-8  # slack of rows that are not active, and multipliers that are none, relative


def takes(norm: Norm) -> bool:
    """Whether interior points are there for the norm."""
    if isinstance(norm, Lp):
        return norm.p in (1.0, math.inf) or _LEAST <= norm.p < 2.0
    return isinstance(norm, Schatten) and norm.p in (1.0, math.inf)


def fits(norm: Norm, rows: int, queries: int, shape: tuple[int, int]) -> bool:
    """Whether a programme of a norm that :func:`takes` says is small enough."""
    if isinstance(norm, Lp):
        return rows * shape[0] * shape[1] <= _LARGEST
    return rows <= FEW and rows * min(shape[0], rows) * min(shape[1], queries) <= _LARGEST


def alone(margins: Margins, norm: Norm, request: Request) -> MarginSolution | None:
    """The solution of one programme; ``None`` where it is not for this module, has no weights, or
    is not settled.
    """
    if (
        not (takes(norm) and fits(norm, margins.m, margins.n, margins.shape))
        or (request.slack, request.method) != (None, None)
        or not (request.warm_start is None and request.opposite is None)
    ):
        return None
    whole = np.array([0, margins.n])
    found = settle(margins.differences, margins.queries, margins.offsets, whole, margins.rhs, norm)
    if found.outcome[0] != small.WEIGHTS:
        return None
    proof = certify_hard(margins, norm, found.W[0], found.dual)
    if not kept(proof.error, proof.rounding, request.tol):
        return None
    return finished(margins, norm, proof, request, int(found.systems[0]))


def finished(
    margins: Margins, norm: Norm, proof: Certificate, request: Request, systems: int
) -> MarginSolution:
    """The solution of a certificate with what its norm has to say of rank and uniqueness."""
    solution = replace(solved(margins, proof, request, SOLVER, systems), geometry=norm)
    if isinstance(norm, Lp):
        return replace(solution, unique=unique_weights(solution, norm.p))
    assert isinstance(norm, Schatten)
    return replace(solution, **rank.facts(margins, norm, proof, norm.p)._asdict())


def certified(batch: MarginsBatch, norm: Norm) -> tuple[small.Settled, dict[int, Certificate]]:
    """The points of many programmes, with figures from the certificates of those that have one."""
    arrays = batch.differences, batch.queries, batch.offsets, batch.instances, batch.rhs
    found, proofs = settle(*arrays, norm), {}
    for k in np.flatnonzero(found.outcome == small.WEIGHTS).tolist():
        each = batch[k]
        proof = certify_hard(each, norm, found.W[k], found.dual[batch.rows[k] : batch.rows[k + 1]])
        found.figures[k] = proof.norm, proof.gap, proof.violation, proof.rounding
        if scaled(each).margins is each and proof.shortness == 0.0:
            found.W[k], proofs[k] = proof.W, proof
        else:
            found.outcome[k] = small.UNSETTLED
    return found, proofs


def ranked(norm: Norm) -> bool:
    """Whether solutions may not be :func:`complete`."""
    return isinstance(norm, Schatten) and norm.p == 1.0


def complete(solution: MarginSolution) -> bool:
    """False where the rank of nuclear solutions asks for more digits, which are found elsewhere."""
    return (
        not ranked(solution.geometry)
        or solution.rank == solution.rank_bound == solution.rank_proved
    )


def settle(
    differences: FloatArray,
    queries: FloatArray,
    offsets: IntArray,
    instances: IntArray,
    rhs: FloatArray,
    norm: Norm,
) -> small.Settled:
    """Like :func:`attsvm.solvers.small.settle` in a norm that :func:`takes` names; the figures are
    not those of this norm.
    """
    assert isinstance(norm, Lp | Schatten)
    spectra = isinstance(norm, Schatten)
    D, Z, b = (small.plain(array, np.float64) for array in (differences, queries, rhs))
    starts, parts = small.plain(offsets, np.int64), small.plain(instances, np.int64)
    if spectra or len(parts) > 2:  # alone, entrywise points need no others to start from
        found = small.settle(D, Z, starts, parts, b)
    else:
        found = small.unsettled(D, Z, parts)
        found.outcome[:] = small.WEIGHTS

    W, dual, _, outcome, systems = found

    def share(part: tuple[int, int]) -> None:
        arrays = *part, D, Z, starts, parts, b, W, dual, outcome, systems
        if spectra:
            _spectral_points(*arrays, norm.p == 1.0)
        else:
            _entrywise_points(*arrays, norm.p)

    small.shared_out(share, small.shares(starts[parts]))
    return found


@summing_kernel
def _entrywise_points(
    first: int,
    last: int,
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    instances: IntArray,
    b: FloatArray,
    W: FloatArray,
    dual: FloatArray,
    outcome: IntArray,
    systems: IntArray,
    p: float,
) -> None:
    """Weights and multipliers of the programmes ``first`` to ``last - 1`` whose outcome is
    ``WEIGHTS``; it becomes ``UNSETTLED`` where none were found.
    """
    _fitting(first, last, D, Z, offsets, instances, b, W, dual, outcome, systems)
    for k in range(first, last):
        if outcome[k] != small.WEIGHTS:
            continue
        outcome[k], begin, end = small.UNSETTLED, instances[k], instances[k + 1]
        start, stop = offsets[begin], offsets[end]
        d, z, bounds = D[start:stop].copy(), Z[begin:end].copy(), offsets[begin : end + 1] - start
        size, near = np.empty(len(d)), np.empty(len(d))
        power = _near_one(d, z, bounds, b[start:stop], size, near)
        if power == _NONE:
            continue
        rows = np.empty((len(d), W[k].size))
        for i in range(len(z)):
            for c in range(bounds[i], bounds[i + 1]):
                for a in range(d.shape[1]):
                    for e in range(z.shape[1]):
                        rows[c, a * z.shape[1] + e] = d[c, a] * z[i, e]
        flat, lam, systems[k] = interior_point(rows, near, p)
        W[k] = flat.reshape(W[k].shape)
        if _written(d, z, bounds, near, size, power, p, W[k], lam, dual[start:stop]):
            outcome[k] = small.WEIGHTS


@summing_kernel
def _spectral_points(
    first: int,
    last: int,
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    instances: IntArray,
    b: FloatArray,
    W: FloatArray,
    dual: FloatArray,
    outcome: IntArray,
    systems: IntArray,
    nuclear: bool,
) -> None:
    """The same from weights and multipliers of the Frobenius norm."""
    _fitting(first, last, D, Z, offsets, instances, b, W, dual, outcome, systems)
    for k in range(first, last):
        if outcome[k] != small.WEIGHTS:
            continue
        outcome[k], begin, end = small.UNSETTLED, instances[k], instances[k + 1]
        start, stop = offsets[begin], offsets[end]
        d, z, bounds = D[start:stop].copy(), Z[begin:end].copy(), offsets[begin : end + 1] - start
        size, near = np.empty(len(d)), np.empty(len(d))
        power = _near_one(d, z, bounds, b[start:stop], size, near)
        if power == _NONE:
            continue
        left, right, lam = _span(d), _span(z), np.empty(len(d))
        for c in range(len(d)):
            lam[c] = dual[start + c] / size[c]
        inner = np.dot(np.dot(left, W[k]), right.T.copy())
        for a in range(len(left)):
            for e in range(len(right)):
                inner[a, e] = math.ldexp(inner[a, e], -power)
        inner, lam, systems[k] = spectral_point(
            np.dot(d, left.T.copy()), np.dot(z, right.T.copy()), bounds, near, inner, lam, nuclear
        )
        W[k] = np.dot(np.dot(left.T.copy(), inner), right)
        if _written(d, z, bounds, near, size, power, 0.0, W[k], lam, dual[start:stop]):
            outcome[k] = small.WEIGHTS


@summing_kernel
def _fitting(
    first: int,
    last: int,
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    instances: IntArray,
    b: FloatArray,
    W: FloatArray,
    dual: FloatArray,
    outcome: IntArray,
    systems: IntArray,
) -> None:
    """Refuse arrays that do not fit together."""
    fitting(offsets, len(D))
    fitting(instances, len(Z))
    if len(offsets) != len(Z) + 1 or len(b) != len(D) or len(dual) != len(D):
        raise ValueError(
            "offsets must have an entry per query and one more, b and dual one per row"
        )
    count = len(instances) - 1
    if len(W) != count or W.shape[1] != D.shape[1] or W.shape[2] != Z.shape[1]:
        raise ValueError("W must have an entry per programme, of the widths of D and Z")
    if len(outcome) != count or len(systems) != count or first < 0 or last > count:
        raise ValueError(
            "outcome and systems must have an entry per programme, first and last be among them"
        )


@summing_kernel
def _near_one(
    d: FloatArray,
    z: FloatArray,
    offsets: IntArray,
    b: FloatArray,
    size: FloatArray,
    near: FloatArray,
) -> int:
    """Rows, queries and right-hand sides times powers of two that bring them near one: ``size`` is
    that of ``A_c``, the weights are to be multiplied by 2 to what is returned; ``_NONE`` where
    nothing can be done.
    """
    factor, highest = np.empty(len(z)), 0.0
    if not (scales(d, size) and scales(z, factor)):
        return _NONE
    for i in range(len(z)):
        for e in range(z.shape[1]):
            z[i, e] *= factor[i]
        for c in range(offsets[i], offsets[i + 1]):
            for a in range(d.shape[1]):
                d[c, a] *= size[c]
            size[c] *= factor[i]
            near[c] = b[c] * size[c]
            highest = max(highest, near[c])
    if not 0.0 < highest < np.inf:
        return _NONE
    power = math.frexp(highest)[1]
    for c in range(len(near)):
        near[c] = math.ldexp(near[c], -power)
    return power


@summing_kernel
def _span(rows: FloatArray) -> FloatArray:
    """An orthonormal basis of a space that holds the rows, as rows; all of it unless there are
    fewer rows than columns. Gram and Schmidt's method, twice.
    """
    count, width = rows.shape
    if count >= width:
        return np.eye(width)
    basis, found = np.zeros((count, width)), 0
    for c in range(count):
        v = basis[found]
        before = 0.0
        for e in range(width):
            v[e] = rows[c, e]
            before += v[e] * v[e]
        for _ in range(2):
            for other in range(found):
                along = np.dot(basis[other], v)
                for e in range(width):
                    v[e] -= along * basis[other, e]
        left = np.dot(v, v)
        if left > _DEPENDENT * before:
            v /= math.sqrt(left)
            found += 1
        else:
            v[:] = 0.0
    return basis[:found]


@summing_kernel
def _written(
    d: FloatArray,
    z: FloatArray,
    offsets: IntArray,
    near: FloatArray,
    size: FloatArray,
    power: int,
    p: float,
    W: FloatArray,
    lam: FloatArray,
    dual: FloatArray,
) -> bool:
    """Weights that meet the margins and ``dual`` in the caller's units, where there are such."""
    values, ratio, largest, total = np.empty(len(near)), np.inf, 0.0, 0.0
    margins(d, z, offsets, W, np.empty(d.shape[1]), values)
    for c in range(len(near)):
        largest = max(largest, lam[c])
        if near[c] > 0.0:
            ratio = min(ratio, values[c] / near[c])
    if not (0.0 < ratio < np.inf and 0.0 < largest < np.inf):
        return False
    for c in range(len(near)):
        # what interior points leave to rows that are not active is what their gap is made of
        if values[c] / ratio - near[c] > _APART and lam[c] < _APART * largest:
            lam[c] = 0.0
        total += near[c] * lam[c]
    length, most = 0.0, 0.0
    for a in range(W.shape[0]):
        for e in range(W.shape[1]):
            W[a, e] /= ratio
            entry = abs(W[a, e])
            most = max(most, entry)
            if 0.0 < p < np.inf:
                length += entry**p
            W[a, e] = math.ldexp(W[a, e], power)
    # entrywise, multipliers are those of half the square: b @ dual is the square of the norm
    stretch = 1.0
    if p > 0.0:
        length = most if p == np.inf else length ** (1.0 / p)
        stretch = math.ldexp(length * length / total, power)
    for c in range(len(near)):
        dual[c] = stretch * (lam[c] * size[c])
    return True
