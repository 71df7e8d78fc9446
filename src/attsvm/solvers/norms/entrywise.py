r"""The max-margin programme in the entrywise norms.

.. math:: \min_W \|W\|_p \ \text{ s.t. }\ \langle A_c,W\rangle\ge b_c, \qquad 1\le p\le\infty.

The programmes that :math:`\ell_p` mirror descent converges to (Julistiono, Tarzanagh and Azizan,
*Optimizing Attention with Mirror Descent*, 2024); :math:`p=1` and :math:`p=\infty` are linear
programmes, whose hard margins are for :mod:`attsvm.solvers.polyhedral`. Other hard margins are
found by :mod:`attsvm.solvers.norms.entrywise_search`, soft ones by
:mod:`attsvm.solvers.norms.soft_search`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from attsvm.geometry import Lp, Norm
from attsvm.margins import Margins
from attsvm.solvers import frobenius, polyhedral
from attsvm.solvers.answers.outcomes import Request, zero_solution
from attsvm.solvers.answers.solution import MarginSolution
from attsvm.solvers.methods.energies import Energy
from attsvm.solvers.methods.squared_norms import squared_norm
from attsvm.solvers.norms.entrywise_search import EntrywiseSearch, exponent_of
from attsvm.solvers.norms.soft_search import SoftSearch


class SoftEntrywiseSearch(SoftSearch, EntrywiseSearch):
    """The soft margin; see :class:`attsvm.solvers.norms.soft_search.SoftSearch`."""

    hard = EntrywiseSearch

    def _energy(self, norm: Norm) -> Energy:
        return squared_norm(exponent_of(norm))


def solve(margins: Margins, norm: Norm, request: Request) -> MarginSolution:
    """Solve the programme of this module; see :func:`attsvm.solvers.max_margin`."""
    assert isinstance(norm, Lp)
    if norm.p == 2.0:
        solution = frobenius.solve(margins, norm, request)
        return replace(solution, unique=True if solution.status == "optimal" else None)
    if not (margins.rhs > 0).any():
        return replace(zero_solution(margins, norm, request), unique=True)
    if request.slack is not None:
        return SoftEntrywiseSearch(margins, norm, request).run()
    if norm.p in (1.0, math.inf):
        return polyhedral.solve(margins, norm, request)
    return EntrywiseSearch(margins, norm, request).run()
