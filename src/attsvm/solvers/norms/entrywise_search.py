"""What the search for a margin knows of the entrywise norms: their energies, the exponents to pass
on the way, and where the programme is linear.
"""

from __future__ import annotations

import math

from attsvm.geometry import Lp, Norm
from attsvm.margins import Margins
from attsvm.solvers.answers.outcomes import Request
from attsvm.solvers.answers.solution import MarginSolution
from attsvm.solvers.facts import unique_weights
from attsvm.solvers.methods.energies import Energy, energy_of
from attsvm.solvers.norms.search import Search

_GENTLE = (1.04, 6.0)  # exponents for which splitting gains quickly
# exponents beyond which the linear programme is a good start
_NEARLY_SUM, _NEARLY_LARGEST = 1.001, 300.0
_WARM = (1.005, 10.0)  # exponents whose duality map leads from multipliers to weights stably


class EntrywiseSearch(Search):
    """One solve; see :class:`attsvm.solvers.norms.search.Search`."""

    def __init__(self, margins: Margins, norm: Norm, request: Request) -> None:
        self._p = exponent_of(norm)
        super().__init__(margins, norm, request)

    def _energy(self, norm: Norm) -> Energy:
        return energy_of(exponent_of(norm))

    def _stages(self) -> list[tuple[Norm, float]]:
        return [(Lp(exponent), rough) for exponent, rough in stages(self._p)]

    def _gentle(self, norm: Norm) -> bool:
        return _GENTLE[0] <= exponent_of(norm) <= _GENTLE[1]

    def _leads(self) -> bool:
        return _WARM[0] <= self._p <= _WARM[1]

    def _reach(self, norm: Norm) -> float:
        return 100.0 if 1.0 < exponent_of(norm) < 2.0 else 10.0

    def _unique(self, solution: MarginSolution) -> bool | None:
        return unique_weights(solution, self._p)


def exponent_of(norm: Norm) -> float:
    """The exponent of an entrywise norm."""
    assert isinstance(norm, Lp)
    return norm.p


def stages(exponent: float) -> list[tuple[float, float]]:
    """Exponents to pass on the way to ``exponent``, each with the gap at which to leave it (0 where
    a fixed number of steps is made).
    """
    if _GENTLE[0] <= exponent <= _GENTLE[1]:
        return []
    if exponent < _GENTLE[0]:
        nearly = 1.0 < exponent < _NEARLY_SUM
        return [
            *(step for step in ((1.1, 0.0), (1.01, 1e-3)) if step[0] > exponent),
            *([(1.0, 1e-9)] if nearly else []),
        ]
    if exponent > _NEARLY_LARGEST:
        return [(4.0, 0.0), *([] if math.isinf(exponent) else [(math.inf, 1e-9)])]
    return [
        step
        for step in ((4.0, 0.0), (8.0, 1e-2), (20.0, 1e-2), (50.0, 1e-2), (100.0, 1e-2))
        if step[0] < exponent / 1.5
    ]
