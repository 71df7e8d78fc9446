r"""A head's weights beside the max-margin solution of their own selections, and beside nulls.

The queries that a head is sure of (top mass above a threshold) ask for margins,

.. math:: (x_{\alpha_j}-x_t)^\top Wz_j\ge1,

and :math:`W^{mm}` is their certified solution of least norm. The cosine of :math:`W` and
:math:`W^{mm}` says little by itself: constraints alone pin a good part of any weights that meet
them. So it is compared with nulls, other weights on the same inputs:

* ``heads``: the other heads of the layer, on the programme of this one,
* ``random``: the same singular values with random singular vectors,
* ``rotated``: the same two subspaces, singular vectors rotated inside them,
* ``permuted``: left singular vectors paired with other right ones,
* ``reflected``: :math:`RWR`, where :math:`R` puts random signs on the main directions of the
  inputs and leaves their mean: on Gaussian inputs of the same mean and covariance nothing tells it
  from :math:`W`, so what is left above it is not due to how :math:`W` lies in that covariance
  (not for heads with rotary positions, whose :math:`W` is the identity);

the last four with *their own* selections, scaled until they are as sure of as many queries, and
solved again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins import PairMargins
from attsvm.norms import Norm
from attsvm.solvers import MarginSolution, max_margin
from attsvm.transformers.head_findings import Comparison
from attsvm.transformers.head_inputs import HeadInputs
from attsvm.transformers.null_weights import Null, equally_sure_queries, null_factors
from attsvm.transformers.selections import HeadSelections


@dataclass(frozen=True)
class AuditSettings:
    """How heads are compared; see :func:`~attsvm.transformers.audit`.

    Attributes:
        norms, nulls, threshold, most, draws, seed, center, max_seconds: its arguments.
        fewest: sure queries that a head needs to be compared at all; untuned.
        slack: price of slack, over the mean square of a logit of unit weights, in programmes whose
            selections contradict each other; untuned.
    """

    norms: Sequence[str | Norm] = ("fro",)
    nulls: Sequence[Null] = ("heads", "permuted")
    threshold: float = 0.5
    most: int = 80
    draws: int = 3
    seed: int = 0
    center: bool = True
    max_seconds: float = 20.0
    fewest: int = 10
    slack: float = 10.0


class HeadComparison:
    """One head that is to be compared: its inputs, what it selects, and of what it is sure.

    Attributes:
        inputs: keys and queries as its weights see them.
        sure: numbers of the queries that it is sure of, ascending.
        members: those of them that make its programme.
    """

    def __init__(
        self,
        inputs: HeadInputs,
        selections: HeadSelections,
        settings: AuditSettings,
        rng: np.random.Generator,
    ) -> None:
        self.inputs, self._settings, self._rng = inputs, settings, rng
        self._selected, self.sure = selections.selected, selections.sure
        self._position = np.concatenate([text.positions for text in inputs.layer.texts])
        self.members = self._draw_members(self.sure)

    def compare(self, norm: Norm) -> tuple[Comparison, MarginSolution]:
        """The comparison of the head in this norm, and the solution of its selections.

        1. Solve the programme of its members.
        2. Solve it again on texts drawn with replacement, and try it on the others.
        3. Compute the cosines of the nulls.
        """
        W = self.inputs.weights()
        # 1.
        programme = self.inputs.programme(self.members, self._selected)
        solution, status = solve_or_soften(programme, norm, self._settings)
        # 2. before 3.: both draw from the same generator
        resampled, agreement, baseline = self._try_on_other_texts(W, norm)
        # 3.
        nulls = {null: self._null_cosines(null, norm, solution) for null in self._settings.nulls}
        comparison = Comparison(
            norm.name,
            status,
            programme.m,
            cosine(W, solution.W),
            _margin_share(programme, W, solution, norm),
            {null: cosines for null, cosines in nulls.items() if cosines},
            resampled,
            agreement,
            baseline,
            solution.gap,
            tuple(null for null, cosines in nulls.items() if not cosines),
        )
        return comparison, solution

    def _draw_members(self, queries: IntArray) -> IntArray:
        return np.sort(self._rng.permutation(queries)[: self._settings.most])

    def _null_cosines(self, null: Null, norm: Norm, solution: MarginSolution) -> tuple[float, ...]:
        """The cosines of a null, a draw each; empty where the head has no such null."""
        if null == "reflected" and self.inputs.layer.projection is None:
            return ()
        if null != "heads":
            return tuple(self._cosine_of_draw(null, norm) for _ in range(self._settings.draws))
        # without linear maps all heads of a layer are s I: there is nothing to compare
        layer = self.inputs.layer
        others = [k for k in range(layer.heads if layer.projection else 0) if k != self.inputs.h]
        return tuple(cosine(self.inputs.weights(k), solution.W) for k in others)

    def _cosine_of_draw(self, null: Null, norm: Norm) -> float:
        """The cosine of other weights and the solution of their own selections."""
        if null == "reflected":
            W = self.inputs.reflected(self._rng)
            logits = self.inputs.logits(W)
        else:
            left, right = null_factors(self.inputs.singular, null, self._rng)
            W, logits = left @ right, self.inputs.logits(left, right)
        # their own selections, at the scale at which they are sure of as many queries
        sure = equally_sure_queries(
            logits, self.inputs.classes, len(self.sure), self._settings.threshold
        )
        members = self._draw_members(sure)
        selected = np.concatenate([of_text.argmax(axis=1) for of_text in logits])
        programme = self.inputs.programme(members, selected)
        solution, _ = solve_or_soften(programme, norm, self._settings)
        return cosine(W, solution.W)

    def _try_on_other_texts(
        self, W: FloatArray, norm: Norm
    ) -> tuple[tuple[float, ...], float, float]:
        """The cosine on texts drawn with replacement, and how often its solution, and the usual
        distance, agree with the head on texts that were left out.
        """
        cosines, agreements, usual_agreements, tried = [], 0, 0, 0
        for _ in range(self._settings.draws):
            is_drawn = resample_texts(self.inputs.text[self.sure], self._rng)
            members, others = self._draw_members(self.sure[is_drawn]), self.sure[~is_drawn]
            programme = self.inputs.programme(members, self._selected)
            solution, _ = solve_or_soften(programme, norm, self._settings)
            cosines.append(cosine(W, solution.W))
            # does the solution select what the head does, on texts that it has not seen?
            prediction = self.inputs.selected(solution.W, others)
            actual = self._selected[others]
            agreements += int(self.inputs.equivalent(others, prediction, actual).sum())
            # and does always the same distance from the query?
            distances, counts = np.unique(
                (self._position - self._selected)[members], return_counts=True
            )
            prediction = self._position[others] - distances[counts.argmax()]
            usual_agreements += int(self.inputs.equivalent(others, prediction, actual).sum())
            tried += len(others)
        if not tried:
            return tuple(cosines), float("nan"), float("nan")
        return tuple(cosines), agreements / tried, usual_agreements / tried


def resample_texts(texts: IntArray, rng: np.random.Generator) -> BoolArray:
    """Whether each query is in when its texts are drawn with replacement, ``(n,)``; at least one
    text is not.

    Args:
        texts: ``(n,)``, the text of each query. Queries are drawn where there is one text only.
        rng: of the draw.
    """
    if texts.min() == texts.max():
        texts = np.arange(len(texts))
    # drawn again until a text is left out, on which a solution can be tried
    numbers = np.unique(texts)
    drawn_numbers = numbers
    while len(np.unique(drawn_numbers)) == len(numbers):
        drawn_numbers = rng.choice(numbers, len(numbers))
    return np.isin(texts, drawn_numbers)


def solve_or_soften(
    programme: PairMargins, norm: Norm, settings: AuditSettings
) -> tuple[MarginSolution, str]:
    """The hard solution, or the soft one where the selections contradict each other; its status."""
    solution = max_margin(programme, norm, max_seconds=settings.max_seconds)
    if solution.status != "infeasible":
        return solution, solution.status
    # a price of slack in units of the squares of logits
    size = float(np.square(programme.keys).sum(axis=1).mean())
    size *= float(np.square(programme.queries).sum(axis=1).mean())
    slack = settings.slack / size
    return max_margin(programme, norm, slack=slack, max_seconds=settings.max_seconds), "soft"


def cosine(A: FloatArray, B: FloatArray) -> float:
    """The cosine of the angle between two matrices; NaN where one of them is zero."""
    # a zero matrix has no direction
    size = float(np.linalg.norm(A) * np.linalg.norm(B))
    return float((A * B).sum() / size) if size > 0 else float("nan")


def _margin_share(
    programme: PairMargins, W: FloatArray, solution: MarginSolution, norm: Norm
) -> float:
    """The smallest margin of ``W`` over the best, both at norm one; NaN for a soft margin."""
    # a soft solution misses margins, so its smallest one is no measure
    if solution.slack is not None or solution.norm == 0.0:
        return float("nan")
    return float(programme(W).min()) / float(norm.value(W)) * solution.norm
