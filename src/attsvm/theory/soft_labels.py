r"""Both limits of an output matrix on soft labels: a finite part :math:`W^{fin}` that meets the
odds of the tokens that occur, and a direction :math:`W^{mm}` that rules the others out.

.. math:: L(W)=-\sum_j\pi_j\sum_zp_{jz}\log\mathrm{softmax}(Wh_j)_z\ \ge\ \mathcal H.

Let :math:`\mathcal F=\mathrm{span}\{(\mathbf 1_z-\mathbf 1_{z'})h_j^\top: z,z'\in\mathcal S_j\}`.
The bound is reached, in the limit, exactly where labels are *compatible* (some W meets all log-odds
inside supports) and *separable* (some W has equal logits on every support and larger ones than off
it). Then the part of gradient descent in :math:`\mathcal F` converges, and the part orthogonal to
it diverges along the max-margin solution. Thrampoulidis, *Implicit Optimization Bias of Next-token
Prediction in Linear Models* (2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import FloatArray
from attsvm.margins import LeastNorm, equality_basis, least_norm
from attsvm.solvers import max_margin_batch
from attsvm.theory.likelihood import Likelihood, inside_subspaces
from attsvm.theory.parts import TwoParts
from attsvm.theory.soft_label_constraints import (
    SoftLabels,
    log_odds_margins,
    soft_label_margins,
    soft_labels,
)


@dataclass(frozen=True, eq=False, repr=False)
class SoftLabelSVM(TwoParts):
    r"""Both parts that theory predicts for an output matrix trained on soft labels.

    Attributes:
        solution: :math:`W^{mm}` with its certificate; its status is ``infeasible`` where labels are
            not separable, and W is 0 where every token follows every context.
        subspace: ``(r, V, d)``, an orthonormal basis of :math:`\mathcal F`.
        finite: ``(V, d)``, :math:`W^{fin}`: in :math:`\mathcal F` the one minimiser of the loss
            inside supports. Where labels are compatible it is the :math:`W^\star` of the log-odds.
        gradient: norm of the gradient of that loss at :math:`W^{fin}`, its certificate: it is
            convex.
        floor: its value there: the infimum of :math:`L` where labels are separable, and the entropy
            where they are compatible as well.
        labels: embeddings, distributions and weights of the contexts.
        odds: the weights of least norm that meet all log-odds, or the proof that there are none.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> svm = attsvm.soft_label_svm(np.eye(2), np.array([[3, 1, 0], [0, 0, 2]]))
        >>> svm.compatible, svm.separable, abs(svm.floor - svm.entropy) < 1e-12
        (True, True, True)
    """

    labels: SoftLabels
    odds: LeastNorm

    @property
    def compatible(self) -> bool:
        """Whether some weights meet all log-odds inside supports; :attr:`odds` is the proof."""
        return self.odds.consistent

    @property
    def separable(self) -> bool:
        """Whether some weights separate supports from what never follows, with proof. That none do
        is proved where the status of :attr:`solution` is ``infeasible``; any other leaves it open.
        """
        return self.solution.status == "optimal"

    @property
    def entropy(self) -> float:
        r""":math:`\mathcal H`, the least loss that distributions allow."""
        return self.labels.entropy

    def basis(self) -> FloatArray:
        """An orthonormal basis of all directions that change the loss ``(p, V, d)``, those of
        :attr:`subspace` first.
        """
        margins = self.solution.margins
        return self.completed(
            margins.differences[:, :, None] * margins.queries[margins.sequence][:, None, :]
        )

    def likelihood(self) -> Likelihood:
        """The loss in coordinates of :meth:`basis`, in which tokens of one support differ by
        coordinates of :attr:`subspace` only.
        """
        likelihood, rows = _likelihood(self.labels, self.basis()), len(self.subspace)
        j, _ = np.nonzero(self.labels.probabilities)
        likelihood.features[self.labels.probabilities[j] > 0, rows:] = 0.0
        return likelihood


def soft_label_svm(embeddings: ArrayLike, counts: ArrayLike) -> SoftLabelSVM:
    r"""Finite part and max-margin direction of an output matrix on soft labels, with both proofs.

    .. math:: W^{mm}=\arg\min\|W\|_F\ \text{ s.t. }\ (\mathbf 1_z-\mathbf 1_{z'})^\top Wh_j=0,\quad
        (\mathbf 1_z-\mathbf 1_v)^\top Wh_j\ge1

    for all contexts, :math:`z,z'\in\mathcal S_j` and :math:`v\notin\mathcal S_j`, and

    .. math:: W^{fin}=\arg\min_{W\in\mathcal F}-\sum_j\pi_j\sum_{z\in\mathcal S_j}p_{jz}\log
        \frac{e^{(Wh_j)_z}}{\sum_{z'\in\mathcal S_j}e^{(Wh_j)_{z'}}}.

    Contexts are taken to be distinct: rows of equal embeddings with different counts are not
    compatible; add their counts first. Linearly independent embeddings (so :math:`d\ge m`) make any
    labels compatible and separable. Thrampoulidis, *Implicit Optimization Bias of Next-token
    Prediction in Linear Models* (2024).

    Args:
        embeddings: ``(m, d)``, one row per context; see :func:`soft_label_svm_batch` for many.
        counts: ``(m, V)``, counts or probabilities of the next token, zero off the support.

    Raises:
        InputError: arrays of other shapes, a value that is not finite, a negative count, a context
            that nothing follows, or more equalities than can be written out.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> svm = attsvm.soft_label_svm(np.eye(2), np.array([[3, 1, 0], [0, 0, 2]]))
        >>> odds = svm.finite[0, 0] - svm.finite[1, 0]
        >>> round(float(np.exp(odds)), 6)  # 3 to 1 after the first context
        3.0
        >>> svm.solution.W[:, 0].round(3).tolist()
        [0.333, 0.333, -0.667]
    """
    return soft_label_svm_batch([embeddings], [counts])[0]


def soft_label_svm_batch(
    embeddings: Sequence[ArrayLike], counts: Sequence[ArrayLike]
) -> list[SoftLabelSVM]:
    r"""Solutions of :func:`soft_label_svm` for many pairs of embeddings and counts, which are
    solved together.

    Args:
        embeddings: matrices ``(m, d)``.
        counts: as many matrices ``(m, V)``.

    Raises:
        InputError: another number of counts than of embeddings, or the errors of
            :func:`soft_label_svm`.

    Example:
        >>> import numpy as np
        >>> from attsvm.theory import soft_label_svm_batch
        >>> counts = np.array([[3, 1, 0], [0, 0, 2]])
        >>> [svm.separable for svm in soft_label_svm_batch([np.eye(2)] * 2, [counts, counts])]
        [True, True]
    """
    if len(embeddings) != len(counts):
        raise InputError(
            f"there are {len(embeddings)} matrices of embeddings and {len(counts)} of counts; give"
            " as many of each"
        )
    pairs = list(zip(embeddings, counts, strict=True))
    labels = [soft_labels(*pair) for pair in pairs]
    margins = [soft_label_margins(*pair) for pair in pairs]
    odds = [least_norm(log_odds_margins(*pair)) for pair in pairs]
    # the finite part: the loss inside supports, searched from the weights that meet the odds
    subspaces = [equality_basis(programme) for programme in margins]
    reduced = [
        _likelihood(label, basis, inside=True)
        for label, basis in zip(labels, subspaces, strict=True)
    ]
    starts = np.zeros((len(pairs), max((len(basis) for basis in subspaces), default=0)))
    for start, basis, least in zip(starts, subspaces, odds, strict=True):
        start[: len(basis)] = np.tensordot(basis, least.W, axes=2)
    minimisers = inside_subspaces(reduced, subspaces, starts)
    solutions = max_margin_batch(margins)
    return [
        SoftLabelSVM(
            solution=solutions[k],
            subspace=subspaces[k],
            finite=finite,
            gradient=gradient,
            floor=floor,
            labels=labels[k],
            odds=odds[k],
        )
        for k, (finite, gradient, floor) in enumerate(minimisers)
    ]


def _likelihood(labels: SoftLabels, basis: FloatArray, inside: bool = False) -> Likelihood:
    """The loss in coordinates of ``basis``, a row per context and token of its support; ``inside``
    leaves out the tokens off the support.
    """
    p = labels.probabilities
    j, z = np.nonzero(p)
    logits = np.einsum("pvd,md->mvp", basis, labels.embeddings)
    rivals = p[j] > 0 if inside else np.ones((len(j), p.shape[1]), dtype=np.bool_)
    rivals[np.arange(len(j)), z] = False
    features = np.where(rivals[..., None], logits[j, z][:, None] - logits[j], 0.0)
    return Likelihood(features, np.where(rivals, 0.0, -np.inf), labels.weights[j] * p[j, z])
