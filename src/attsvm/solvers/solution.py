"""What a solver hands back: the weights together with everything needed to check them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.margins import Margins

Status = Literal["optimal", "infeasible", "inaccurate"]


@dataclass(frozen=True, eq=False)
class MarginSolution:
    r"""The solution of ``minimise ||W|| subject to <A_c, W> >= b_c`` with its proof.

    Attributes:
        margins: the programme that was solved.
        status: ``optimal`` promises ``gap`` and ``violation`` within ``tol``; ``infeasible`` promises that ``dual`` is a
            Farkas certificate (see :meth:`farkas_residual`); ``inaccurate`` promises nothing beyond the numbers shown.
        W: ``(d_x, d_z)``, scaled so that the smallest margin meets its right-hand side; zeros when infeasible.
        norm: :math:`\|W\|` in the norm of the programme; ``inf`` when infeasible.
        dual: ``(m,)``, :math:`\lambda\ge 0`. For the Frobenius norm :math:`W=\sum_c\lambda_c A_c` at the optimum.
        gap: rigorous relative duality gap, computed from ``W`` and ``dual`` and the original data.
        violation: largest :math:`b_c - \langle A_c, W\rangle` (0 when none is positive).
        support: sorted positions of the constraints that hold with equality (to ``1e-5`` relative), zero dual included.
        tol: the tolerance that was asked for.
        slack: the penalty C of the soft margin, ``None`` for the hard margin.
        slacks: ``(m,)`` how far each constraint is missed; zeros for the hard margin.
        solver: which algorithm produced it.
        iterations: epochs or iterations it took.
        message: one sentence for a person.
    """

    margins: Margins
    status: Status
    W: FloatArray
    norm: float
    dual: FloatArray
    gap: float
    violation: float
    support: IntArray
    tol: float
    slack: float | None
    slacks: FloatArray
    solver: str
    iterations: int
    message: str

    @property
    def margin(self) -> float:
        r"""The margin :math:`1/\|W\|` of the unit-norm direction (for right-hand sides of one); 0 when infeasible."""
        return 0.0 if self.norm == np.inf or self.norm == 0.0 else 1.0 / self.norm
