r"""The max-margin programme in a norm that is known by its value, its dual and its proximal map
alone.

.. math:: \min_W \|W\| \ \text{ s.t. }\ \langle A_c,W\rangle\ge b_c .

Nothing else is asked of the norm (:class:`attsvm.geometry.Norm`), so this is what solves in a new
one. Splitting comes near, and proximal multipliers with semismooth Newton steps on the dual finish;
their matrix is the derivative of the proximal map on the active rows. A norm that no rotation from
the left changes is minimised in the span of the differences, and one that none from the right
changes in the span of the queries.
"""

from __future__ import annotations

from dataclasses import replace

from attsvm.data import FloatArray
from attsvm.geometry import Norm
from attsvm.margins import Margins
from attsvm.solvers.answers.outcomes import Request, zero_solution
from attsvm.solvers.answers.solution import MarginSolution
from attsvm.solvers.methods.energies import Energy, Itself
from attsvm.solvers.methods.squared_norms import HalfSquare
from attsvm.solvers.norms.search import Search
from attsvm.solvers.norms.soft_search import SoftSearch
from attsvm.solvers.programme.reduction import reduce
from attsvm.solvers.proofs import Certificate


class GeneralSearch(Search):
    """One solve; see :class:`attsvm.solvers.norms.search.Search`."""

    def __init__(self, margins: Margins, norm: Norm, request: Request) -> None:
        super().__init__(margins, norm, request)
        self.reduction = reduce(self.programme, *norm.invariant)
        self.programme = self.reduction.programme

    def _energy(self, norm: Norm) -> Energy:
        return Itself(norm)

    def _coordinates(self, W: FloatArray) -> FloatArray:
        return self.reduction.coordinates(super()._coordinates(W))

    def _certificate(self, W: FloatArray, dual: FloatArray) -> Certificate:
        return super()._certificate(self.reduction.lifted(W), dual)


class SoftGeneralSearch(SoftSearch, GeneralSearch):
    """The soft margin; see :class:`attsvm.solvers.norms.soft_search.SoftSearch`."""

    hard = GeneralSearch

    def _energy(self, norm: Norm) -> Energy:
        return HalfSquare(norm, Itself(norm))


def solve(margins: Margins, norm: Norm, request: Request) -> MarginSolution:
    """Solve the programme of this module; see :func:`attsvm.solvers.max_margin`."""
    if not (margins.rhs > 0).any():
        return replace(zero_solution(margins, norm, request), unique=True)
    search = GeneralSearch if request.slack is None else SoftGeneralSearch
    return search(margins, norm, request).run()
