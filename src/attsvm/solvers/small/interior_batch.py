r"""Small hard-margin programmes of the other norms in compiled code, one alone or many at a time.

The Frobenius kernel (:mod:`attsvm.solvers.small.small_frobenius`) decides which have weights, which
does not depend on the norm, and interior points find them: :mod:`attsvm.solvers.small.interior`. A
programme gives the same bits alone and beside others. What comes out is certified from the caller's
numbers; what is not good enough is left to the ordinary solvers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attsvm.cores import shared_out
from attsvm.data import FloatArray, IntArray
from attsvm.geometry import Lp, Norm
from attsvm.margins import Margins, MarginsBatch
from attsvm.solvers.answers.outcomes import Request, infeasible_solution, kept, solved
from attsvm.solvers.answers.solution import MarginSolution
from attsvm.solvers.answers.uniqueness import unique_weights
from attsvm.solvers.programme.choice import FEW, pointed
from attsvm.solvers.programme.scaling import scaled
from attsvm.solvers.programme.threads import one_thread
from attsvm.solvers.proofs.certificates import Certificate, certify_hard
from attsvm.solvers.small import small_frobenius
from attsvm.solvers.small.interior_ranges import entrywise_points

SOLVER = "interior points"
_LARGEST = 1 << 14  # entries of written-out rows up to which this is quicker than other methods


def fits(norm: Norm, rows: int, queries: int, shape: tuple[int, int]) -> bool:
    """Whether a programme of a norm of :func:`attsvm.solvers.programme.choice.pointed` is small
    enough.
    """
    return rows * shape[0] * shape[1] <= _LARGEST


def alone(margins: Margins, norm: Norm, request: Request) -> MarginSolution | None:
    """The solution of one programme, or the contradiction in it; ``None`` where it is not for this
    module, or not settled.
    """
    if (
        not (pointed(norm) and fits(norm, margins.m, margins.n, margins.shape))
        or request.slack is not None
        or not (request.warm_start is None and request.opposite is None)
    ):
        return None
    whole = np.array([0, margins.n])
    found = settle(margins.differences, margins.queries, margins.offsets, whole, margins.rhs, norm)
    if found.outcome[0] == small_frobenius.CONTRADICTION:
        return contradicted(margins, norm, found.dual, request, int(found.systems[0]))
    if found.outcome[0] != small_frobenius.WEIGHTS:
        return None
    proof = certify_hard(margins, norm, found.W[0], found.dual)
    if not kept(proof.error, proof.rounding, request.tol):
        return None
    return finished(margins, norm, proof, request, int(found.systems[0]))


def contradicted(
    margins: Margins, norm: Norm, dual: FloatArray, request: Request, systems: int
) -> MarginSolution | None:
    """The verdict that multipliers of the Frobenius kernel prove, ``None`` where they do not."""
    claim = infeasible_solution(margins, dual, request, "least distance", systems, minimal=True)
    return replace(claim, geometry=norm) if claim.status == "infeasible" else None


def finished(
    margins: Margins, norm: Norm, proof: Certificate, request: Request, systems: int
) -> MarginSolution:
    """The solution of a certificate with what its norm has to say of rank and uniqueness."""
    solution = replace(solved(margins, proof, request, SOLVER, systems), geometry=norm)
    assert isinstance(norm, Lp)
    return replace(solution, unique=unique_weights(solution, norm.p))


class Certified(NamedTuple):
    """Programmes of a batch: what :func:`settle` found, with figures from the certificates; these
    by position; and the solutions that had to be written to see whether they are complete.
    """

    found: small_frobenius.Settled
    proofs: dict[int, Certificate]
    written: dict[int, MarginSolution]


def certified(batch: MarginsBatch, norm: Norm, request: Request) -> Certified:
    """The points of many programmes, each certified by the thread that found it: while one thread
    is in Python, the others are in compiled code.
    """
    proofs: dict[int, Certificate] = {}
    written: dict[int, MarginSolution] = {}

    def certify(k: int, found: small_frobenius.Settled) -> None:
        each = batch[k]
        proof = certify_hard(each, norm, found.W[k], found.dual[batch.rows[k] : batch.rows[k + 1]])
        found.figures[k] = proof.norm, proof.gap, proof.violation, proof.rounding
        found.outcome[k] = small_frobenius.UNSETTLED
        if not (kept(proof.error, proof.rounding, request.tol) and scaled(each).margins is each):
            return
        found.outcome[k], found.W[k], proofs[k] = small_frobenius.WEIGHTS, proof.W, proof

    arrays = batch.differences, batch.queries, batch.offsets, batch.instances, batch.rhs
    return Certified(settle(*arrays, norm, certify), proofs, written)


def settle(
    differences: FloatArray,
    queries: FloatArray,
    offsets: IntArray,
    instances: IntArray,
    rhs: FloatArray,
    norm: Norm,
    then: Callable[[int, small_frobenius.Settled], None] | None = None,
) -> small_frobenius.Settled:
    """Like :func:`attsvm.solvers.small.small_frobenius.settle` in such a norm; the figures are
    not those of this norm. ``then`` is called with each position that has weights.
    """
    assert isinstance(norm, Lp)
    D, Z, b = (small_frobenius.plain(array, np.float64) for array in (differences, queries, rhs))
    starts, parts = (
        small_frobenius.plain(offsets, np.int64),
        small_frobenius.plain(instances, np.int64),
    )
    # entrywise points need no others to start from, but few rows are quickly seen to contradict
    if len(parts) > 2 or len(D) <= FEW:
        found = small_frobenius.settle(D, Z, starts, parts, b)
    else:
        found = small_frobenius.unsettled(D, Z, parts)
        found.outcome[:] = small_frobenius.WEIGHTS

    W, dual, _, outcome, systems = found
    sequence = np.repeat(np.arange(len(Z)), np.diff(starts))
    free = np.flatnonzero((b == 0.0) & ~(D.any(axis=1) & Z.any(axis=1)[sequence]))

    certifying = threading.Lock()  # one thread in Python at a time, all others in compiled code

    def share(part: tuple[int, int]) -> None:
        arrays = *part, D, Z, starts, parts, b, W, dual, outcome, systems
        with one_thread():  # the cores belong to the programmes, and digits depend on threads
            entrywise_points(*arrays, norm.p)
            first, last = np.searchsorted(free, starts[parts[list(part)]])
            dual[free[first:last]] = 0.0  # any multiplier solves a row that says 0 >= 0
            with certifying:
                for k in range(*part):
                    if then is not None and outcome[k] == small_frobenius.WEIGHTS:
                        then(k, found)

    shared_out(share, small_frobenius.shares(starts[parts]))
    return found
