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
from attsvm.transformers.inputs import Inputs
from attsvm.transformers.null_weights import Null, surest, variant
from attsvm.transformers.selections import Selections


@dataclass(frozen=True)
class Settings:
    """How heads are compared; see :func:`~attsvm.transformers.audit`."""

    norms: Sequence[str | Norm] = ("fro",)
    nulls: Sequence[Null] = ("heads", "permuted")
    threshold: float = 0.5
    most: int = 80
    draws: int = 3
    seed: int = 0
    center: bool = True
    max_seconds: float = 20.0


class Subject:
    """One head that is to be compared: its inputs, what it selects, and of what it is sure.

    Attributes:
        members: the queries of its programme.
    """

    def __init__(
        self,
        inputs: Inputs,
        seen: Selections,
        h: int,
        settings: Settings,
        rng: np.random.Generator,
    ) -> None:
        self.inputs, self._h, self._settings, self._rng = inputs, h, settings, rng
        self._selected = seen.selected[h]
        self._position = seen.position
        self.sure = np.flatnonzero(seen.sure(h, settings.threshold))
        self.members = self._some(self.sure)

    def compare(self, norm: Norm) -> tuple[Comparison, MarginSolution]:
        """The head in this norm, and the solution of its selections."""
        W = self.inputs.weights()
        programme = self.inputs.programme(self.members, self._selected)
        solution, status = self._solved(programme, norm)
        resampled, agreement, baseline = self._other_texts(W, norm)
        nulls = {null: self._null(null, norm, solution) for null in self._settings.nulls}
        found = Comparison(
            norm.name,
            status,
            programme.m,
            cosine(W, solution.W),
            _share(programme, W, solution, norm),
            {null: cosines for null, cosines in nulls.items() if cosines},
            resampled,
            agreement,
            baseline,
            solution.gap,
            tuple(null for null, cosines in nulls.items() if not cosines),
        )
        return found, solution

    def _some(self, queries: IntArray) -> IntArray:
        return np.sort(self._rng.permutation(queries)[: self._settings.most])

    def _null(self, null: Null, norm: Norm, solution: MarginSolution) -> tuple[float, ...]:
        if null == "reflected" and self.inputs.layer.projection is None:
            return ()
        if null != "heads":
            return tuple(self._null_cosine(null, norm) for _ in range(self._settings.draws))
        layer = self.inputs.layer
        others = [k for k in range(layer.heads if layer.projection else 0) if k != self._h]
        return tuple(cosine(self.inputs.weights(k), solution.W) for k in others)

    def _null_cosine(self, null: Null, norm: Norm) -> float:
        """The cosine of other weights and the solution of their own selections."""
        if null == "reflected":
            W = self.inputs.reflected(self._rng)
        else:
            W = variant(self.inputs.singular, null, self._rng)
        logits = self.inputs.logits(W)
        sure = surest(logits, self.inputs.classes, len(self.sure), self._settings.threshold)
        members = self._some(sure)
        selected = np.concatenate([each.argmax(axis=1) for each in logits])
        solution, _ = self._solved(self.inputs.programme(members, selected), norm)
        return cosine(W, solution.W)

    def _other_texts(self, W: FloatArray, norm: Norm) -> tuple[tuple[float, ...], float, float]:
        """The cosine on texts drawn with replacement, and how often its solution, and the usual
        distance, agree with the head on texts that were left out.
        """
        cosines, right, usual, asked = [], 0, 0, 0
        for _ in range(self._settings.draws):
            drawn = self._drawn()
            members, others = self._some(self.sure[drawn]), self.sure[~drawn]
            solution, _ = self._solved(self.inputs.programme(members, self._selected), norm)
            cosines.append(cosine(W, solution.W))
            guess = np.concatenate([x.argmax(axis=1) for x in self.inputs.logits(solution.W)])
            told, place = self._selected[others], self._position[others]
            right += int(self.inputs.equivalent(others, guess[others], told).sum())
            distances, counts = np.unique(
                (self._position - self._selected)[members], return_counts=True
            )
            guess = place - distances[counts.argmax()]
            usual += int(self.inputs.equivalent(others, guess, told).sum())
            asked += len(others)
        if not asked:
            return tuple(cosines), float("nan"), float("nan")
        return tuple(cosines), right / asked, usual / asked

    def _drawn(self) -> BoolArray:
        """Which sure queries are in when their texts are drawn with replacement, at least one of
        them not; queries are drawn where there is one text only.
        """
        group = self.inputs.text[self.sure]
        if group.min() == group.max():
            group = np.arange(len(group))
        names = np.unique(group)
        drawn = names
        while len(np.unique(drawn)) == len(names):
            drawn = self._rng.choice(names, len(names))
        return np.isin(group, drawn)

    def _solved(self, programme: PairMargins, norm: Norm) -> tuple[MarginSolution, str]:
        """The hard solution, or the soft one where the selections contradict each other."""
        limit = self._settings.max_seconds
        solution = max_margin(programme, norm, max_seconds=limit)
        if solution.status != "infeasible":
            return solution, solution.status
        size = float(np.square(programme.keys).sum(axis=1).mean())
        size *= float(np.square(programme.queries).sum(axis=1).mean())
        return max_margin(programme, norm, slack=10.0 / size, max_seconds=limit), "soft"


def cosine(A: FloatArray, B: FloatArray) -> float:
    """Of the angle between two matrices; NaN where one of them is zero."""
    size = float(np.linalg.norm(A) * np.linalg.norm(B))
    return float((A * B).sum() / size) if size > 0 else float("nan")


def _share(programme: PairMargins, W: FloatArray, solution: MarginSolution, norm: Norm) -> float:
    """The smallest margin of ``W`` over the best, both at norm one; NaN for a soft margin."""
    if solution.slack is not None or solution.norm == 0.0:
        return float("nan")
    return float(programme(W).min()) / float(norm.value(W)) * solution.norm
