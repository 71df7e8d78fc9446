r"""The soft margin in a norm that is known by its energy.

.. math:: \min_W \tfrac12\|W\|^2+C\sum_c(b_c-\langle A_c,W\rangle)_+,
   \qquad\text{dual}\qquad \max_{0\le\lambda\le C} b^\top\lambda-\tfrac12\|A^\top\lambda\|_*^2.

The stages are those of :mod:`attsvm.solvers.norms.search` with multipliers in a box and half the
squared norm as the energy (:mod:`attsvm.solvers.methods.squared_norms`); they start from the soft
margin in the Frobenius norm, whose multipliers lie in the same box. Between stages the programme is
rescaled, by a power of two, so that its solution has norm about one. At the optimum
:math:`\|W\|=\|A^\top\lambda\|_*`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from attsvm.data import FloatArray
from attsvm.geometry import Frobenius, Norm
from attsvm.solvers import frobenius
from attsvm.solvers.answers.outcomes import solved
from attsvm.solvers.answers.solution import MarginSolution
from attsvm.solvers.norms.search import Search
from attsvm.solvers.programme.programme import Programme
from attsvm.solvers.proofs import Certificate, certify_soft

_MET = 1e-9  # relative shortfall of a margin that counts as met


class SoftSearch(Search):
    """One solve; see :class:`attsvm.solvers.norms.search.Search`.

    Attributes:
        hard: the search for the hard margin in the same norm.
    """

    hard: type[Search]

    def run(self) -> MarginSolution:
        """The best certified solution that the stages reach."""
        warm = self._warm()
        if warm is None or not self._resumed(*warm):
            p = self.programme
            start = frobenius.solve(
                self.margins, Frobenius(), replace(self.request, warm_start=None)
            )
            W, dual = self._start(start)
            self._consider(p, W, dual, start.solver)
            self._consider(p, self._pointed(dual), dual, start.solver)
            if not self._done() and start.slacks.max() <= _MET * self.margins.rhs.max():
                self._try_hard()
            if not self._done():
                for norm, rough in self._stages():
                    W, dual = self._rough(W, dual, norm, rough)
                    self._consider(self.programme, W, dual, "dual Newton")
                self._finish(W, dual)
        assert self.best is not None
        solution = solved(self.margins, self.best, self.request, self.solver, self.iterations)
        return replace(solution, unique=self._unique(solution))

    def _try_hard(self) -> None:
        """The hard margin is the solution as soon as C exceeds all its multipliers, and is quick to
        find.
        """
        hard = self.hard(self.margins, self.norm, replace(self.request, slack=None)).run()
        if hard.status == "optimal":
            p = self.programme
            self._consider(p, *self._start(hard), hard.solver)

    def _pointed(self, dual: FloatArray) -> FloatArray:
        """The weights that the multipliers point to, which are the solution when these are."""
        pulled = self.programme.adjoint(dual)
        size = float(self.norm.dual_value(pulled))
        return size * self.norm.steepest(pulled) if size > 0.0 else np.zeros_like(pulled)

    def _certificate(self, W: FloatArray, dual: FloatArray) -> Certificate:
        assert self.request.slack is not None
        return certify_soft(
            self.margins, self.norm, W, np.minimum(dual, self.request.slack), self.request.slack
        )

    # Unlike hard margins, soft ones have a scale: weights and multipliers that go from stage to
    # stage are in units of `self.programme`.
    def _normalised(
        self, W: FloatArray, dual: FloatArray, norm: Norm
    ) -> tuple[Programme, FloatArray, FloatArray]:
        p = self.programme
        size = float(norm.dual_value(p.adjoint(dual)))
        # Far from the solution the two disagree: then the weights, which are what is to be of norm
        # one.
        if not 0.1 < size / max(float(norm.value(W)), 1e-300) < 10.0:
            size = float(norm.value(W)) or size or 1.0
        k = math.frexp(size)[1]
        self.programme = replace(
            p,
            b=np.ldexp(p.b, -k),
            cap=np.ldexp(p.cap, -k),
            weight_exponent=p.weight_exponent + k,
            dual_exponent=p.dual_exponent + k,
        )
        return self.programme, np.ldexp(W, -k), np.ldexp(dual, -k)

    def _gap(self, p: Programme, W: FloatArray, dual: FloatArray, norm: Norm) -> float:
        missed = np.maximum(p.b - p.values(W), 0.0)
        size, pull = float(norm.value(W)), float(norm.dual_value(p.adjoint(dual)))
        primal = 0.5 * size * size + float(p.cap @ missed)
        lower = float(p.b @ dual) - 0.5 * pull * pull
        return (primal - lower) / primal if primal > 0.0 else math.inf
