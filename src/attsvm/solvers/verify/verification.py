r"""A second opinion: the same programme through CLARABEL or HiGHS.

The programme is written out row by row from the caller's margins and handed to the peer's own
interface (:mod:`attsvm.solvers.verify.peers`); nothing is shared with the solvers of this room.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from importlib.metadata import version
from typing import Literal

import numpy as np

from attsvm.errors import InputError
from attsvm.geometry import Frobenius, Norm
from attsvm.margins import Margins
from attsvm.solvers.answers.solution import MarginSolution, SecondOpinion
from attsvm.solvers.programme.scaling import scaled
from attsvm.solvers.verify.peers import Answer, by_clarabel, by_highs, invariant, written_out

Verifier = Literal["clarabel", "highs"]

_PACKAGES = {"clarabel": "clarabel", "highs": "highspy"}
_LARGEST = 1 << 24  # entries of the written-out rows
_LARGEST_BLOCK = 150  # rows of a semidefinite block
# relative; interior points end at 1e-8 to 1e-10 of their own measure, which bounds the objective
# less tightly
_AGREEMENT = 1e-6
_ROUGH_AGREEMENT = 1e-3  # where the peer itself reports reduced accuracy


def check_verifier(verify: str, norm: Norm, margins: Margins, slack: float | None) -> None:
    """Refuse what cannot be verified, before anything is solved.

    Raises:
        InputError: an unknown or missing solver, a norm that it has no form for, or a programme too
            large to write out.
    """
    if verify not in _PACKAGES:
        raise InputError(f"verify is {verify!r}; use 'clarabel' or 'highs'")
    if importlib.util.find_spec(_PACKAGES[verify]) is None:
        raise InputError(
            f"verify={verify!r} needs the package {_PACKAGES[verify]}; install it with: pip install"
            " 'attsvm[peers]'"
        )
    spectral = norm.acts_on == "singular values" and norm != Frobenius()
    if verify == "clarabel" and norm != Frobenius() and norm.cones((1, 1)) is None:
        raise InputError(
            f"clarabel has no cone for the norm {norm!r}; verify='highs' checks whether any weights"
            " meet the margins"
        )
    if verify == "highs" and slack is not None and norm != Frobenius():
        raise InputError(
            f"highs cannot solve the soft margin in the norm {norm!r}; use verify='clarabel'"
        )
    width, height = _spans(margins) if invariant(norm) else margins.shape
    if margins.m * width * height > _LARGEST:
        raise InputError(
            f"verify={verify!r} writes out {margins.m} constraints of {width} x {height} weights,"
            " which is too many; verify fewer sequences"
        )
    if verify == "clarabel" and spectral and width + height > _LARGEST_BLOCK:
        raise InputError(
            f"clarabel takes semidefinite blocks of at most {_LARGEST_BLOCK} rows here, and these"
            f" weights need {width + height}; verify fewer sequences"
        )


def second_opinion(solution: MarginSolution, verify: Verifier) -> SecondOpinion:
    """The same programme through another solver, compared with ``solution``; see
    :func:`check_verifier` for what is refused.

    Raises:
        InputError: see :func:`check_verifier`.
    """
    norm = solution.geometry
    check_verifier(verify, norm, solution.margins, solution.slack)
    near = solution.near()
    # In units in which our weights have norm one the peer's absolute tolerances mean the same at
    # every scale.
    unit = near.norm if 0.0 < near.norm < math.inf else 1.0
    rows = written_out(near.margins, near.slack, unit, invariant(norm))
    if not solution.has_weights and not (rows.equal & (rows.b != 0.0)).any():
        # Whether weights exist is asked of rows and right-hand sides of size one: larger ones meet
        # larger right-hand sides.
        rows = rows._replace(b=np.sign(rows.b))
    if not (np.abs(rows.b) > 0.0).any():
        answer = Answer("nothing to solve", "optimal", 0.0, 0.0, False)
    else:
        answer = by_clarabel(rows, norm) if verify == "clarabel" else by_highs(rows, norm)
    return _compared(solution, near, answer, f"{verify} {version(_PACKAGES[verify])}", unit)


def verified(solution: MarginSolution, verify: Verifier) -> MarginSolution:
    """The solution with its second opinion; ``inaccurate`` when the two disagree."""
    opinion = second_opinion(solution, verify)
    if opinion.agrees is not False or solution.status in ("inaccurate", "almost infeasible"):
        return replace(solution, second_opinion=opinion)
    ours = "infeasible" if solution.status == "infeasible" else f"{_objective(solution):.10g}"
    theirs = opinion.verdict if opinion.objective is None else f"{opinion.objective:.10g}"
    message = (
        f"inaccurate: {opinion.solver} disagrees: its answer is {theirs}, ours is {ours}"
        f" ({solution.message})"
    )
    return replace(solution, status="inaccurate", message=message, second_opinion=opinion)


def _compared(
    solution: MarginSolution, near: MarginSolution, answer: Answer, solver: str, unit: float
) -> SecondOpinion:
    tolerance = max(_ROUGH_AGREEMENT if answer.rough else _AGREEMENT, 2.0 * solution.tol)
    objective = difference = None
    agrees: bool | None = None
    if answer.objective is not None:
        power = 1 if solution.slack is None else 2
        theirs = answer.objective * unit**power
        ours = _objective(near)
        difference = abs(theirs - ours) / ours if ours > 0.0 else abs(theirs)
        objective = float(np.ldexp(theirs, scaled(solution.margins).weights * power))
    if answer.verdict == "none":
        reason = f"{solver} gave no answer ({answer.status}), so there is nothing to compare"
    elif solution.status == "almost infeasible":
        difference = None
        reason = f"theirs {answer.verdict}, and ours proves neither"
    elif solution.status == "infeasible" or answer.verdict == "infeasible":
        agrees, difference = solution.status == answer.verdict, None
        reason = (
            f"whether any weights meet the margins: ours {solution.status}, theirs {answer.verdict}"
        )
    elif difference is None:
        agrees, reason = (
            True,
            f"only that weights exist: {solver} cannot minimise the norm {solution.geometry!r}",
        )
    else:
        agrees = difference <= tolerance
        why = (
            f"{solver} reports reduced accuracy"
            if answer.rough
            else "what the stopping rules of both leave open"
        )
        reason = f"the objectives, to {tolerance:.0e} relative: {why}"
    return SecondOpinion(
        solver,
        answer.status,
        answer.verdict,
        objective,
        difference,
        answer.gap,
        tolerance,
        agrees,
        reason,
    )


def _objective(solution: MarginSolution) -> float:
    """The norm, or the penalised objective of the soft margin."""
    if solution.slack is None:
        return solution.norm
    return 0.5 * solution.norm * solution.norm + solution.slack * float(solution.slacks.sum())


def _spans(margins: Margins) -> tuple[int, int]:
    return min(margins.shape[0], margins.m), min(margins.shape[1], margins.n)
