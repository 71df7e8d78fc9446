r"""Soft labels: an output matrix that learns how often each token follows a context.

Context :math:`j` has the embedding :math:`h_j` and the distribution :math:`p_j` of the token that
comes next; its *support* :math:`\mathcal S_j` holds the tokens with :math:`p_{jz}>0`.
Thrampoulidis, *Implicit Optimization Bias of Next-token Prediction in Linear Models* (2024).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import BoolArray, FloatArray
from attsvm.margins.checks import reals
from attsvm.margins.operator import Margins
from attsvm.margins.selection import against_rivals, one_hot
from attsvm.margins.sets import with_odds, with_ties


class SoftLabels(NamedTuple):
    r"""Contexts with the distributions of what follows them.

    Attributes:
        embeddings: ``(m, d)``, row j is :math:`h_j`.
        probabilities: ``(m, V)``, row j is :math:`p_j`.
        weights: ``(m,)``, :math:`\pi_j`, the share of each context.
    """

    embeddings: FloatArray
    probabilities: FloatArray
    weights: FloatArray

    @property
    def entropy(self) -> float:
        r""":math:`\mathcal H=-\sum_j\pi_j\sum_zp_{jz}\log p_{jz}`, which no cross-entropy is
        below.
        """
        p = self.probabilities
        terms = p * np.log(p, out=np.zeros(p.shape), where=p > 0)
        return -float(self.weights @ terms.sum(axis=1))


def soft_labels(embeddings: ArrayLike, counts: ArrayLike) -> SoftLabels:
    r"""Contexts and their distributions, from counts.

    Args:
        embeddings: ``(m, d)``, one row per context.
        counts: ``(m, V)``, how often each token followed each context: not negative, and some token
            in every row. Divided by their sum, rows are :math:`p_j`; their sums, divided by the sum
            of all, are :math:`\pi_j`. A matrix of distributions is one too.

    Raises:
        InputError: arrays of other shapes, a value that is not finite, a negative count, or a
            context that nothing follows.
    """
    h = reals("embeddings", embeddings, (None, None), "(contexts, features), one row per context")
    n = reals("counts", counts, (len(h), None), f"({len(h)}, V), one row per row of embeddings")
    if (n < 0).any():
        j, z = (int(k) for k in np.argwhere(n < 0)[0])
        raise InputError(f"counts[{j}, {z}] is {n[j, z]:g}; counts are not negative")
    total = n.sum(axis=1)
    if (total == 0).any():
        j = int(np.flatnonzero(total == 0)[0])
        raise InputError(f"counts[{j}] is all zero, so nothing follows context {j}; drop it")
    return SoftLabels(h, n / total[:, None], total / total.sum())


def soft_label_margins(embeddings: ArrayLike, counts: ArrayLike) -> Margins:
    r"""The margins of soft labels: equal logits on the support of every context, at least one above
    all others.

    .. math:: (\mathbf 1_{a_j}-\mathbf 1_z)^\top Wh_j=0\quad(z\in\mathcal S_j\setminus a_j),\qquad
              (\mathbf 1_{a_j}-\mathbf 1_v)^\top Wh_j\ge1\quad(v\notin\mathcal S_j).

    The weights are ``(V, d)``, and the anchor :math:`a_j` is the most frequent token; any other of
    the support gives the same programme, NTP-SVM of Thrampoulidis (2024): the direction in which
    an output matrix diverges. How probable the tokens of a support are does not matter. With one
    token each it is :func:`~attsvm.theory.output_margins`. A "sequence" is a context; "tokens" are
    those of the vocabulary. Memory is ``m V`` rows of ``V`` numbers.

    Args:
        embeddings: ``(m, d)``, one row per context.
        counts: ``(m, V)``, counts or probabilities of the next token, zero off the support.

    Raises:
        InputError: arrays of other shapes, a value that is not finite, a negative count, or a
            context that nothing follows.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> margins = attsvm.soft_label_margins(np.eye(2), counts=[[3, 1, 0], [0, 0, 2]])
        >>> margins.token.tolist(), margins.equality.tolist()
        ([1, 2, 0, 1], [True, False, False, False])
        >>> attsvm.max_margin(margins).W.round(3).tolist()
        [[0.333, -0.333], [0.333, -0.333], [-0.667, 0.667]]
    """
    labels = soft_labels(embeddings, counts)
    support = labels.probabilities > 0
    rows = _anchored(labels, np.ones(support.shape, dtype=np.bool_))
    return with_ties(rows, support, "support", "class")


def log_odds_margins(embeddings: ArrayLike, counts: ArrayLike) -> Margins:
    r"""The equalities that make the softmax of the logits split every support as the counts do.

    .. math:: (\mathbf 1_{a_j}-\mathbf 1_z)^\top Wh_j=\log(p_{ja_j}/p_{jz})
        \quad(z\in\mathcal S_j\setminus a_j),

    with the anchor of :func:`soft_label_margins`. Soft labels are *compatible* where they have a
    solution; :func:`~attsvm.margins.least_norm` finds it, or proves that there is none.

    Args:
        embeddings: ``(m, d)``, one row per context.
        counts: ``(m, V)``, counts or probabilities of the next token, zero off the support.

    Raises:
        InputError: arrays of other shapes, a value that is not finite, a negative count, or a
            context that nothing follows.

    Example:
        >>> import numpy as np
        >>> from attsvm.margins import least_norm
        >>> from attsvm.theory import log_odds_margins
        >>> odds = log_odds_margins(np.eye(2), counts=[[3, 1, 0], [0, 0, 2]])
        >>> odds.rhs.round(3).tolist()  # log(3 / 1)
        [1.099]
        >>> least_norm(odds).W.round(3).tolist()
        [[0.549, 0.0], [-0.549, 0.0], [0.0, 0.0]]
    """
    labels = soft_labels(embeddings, counts)
    p = labels.probabilities
    return with_odds(_anchored(labels, p > 0), p)


def _anchored(labels: SoftLabels, rivals: BoolArray) -> Margins:
    """Rows of the most frequent token minus every other one among ``rivals``."""
    anchor = np.argmax(labels.probabilities, axis=1).astype(np.int64)
    return against_rivals(one_hot(*rivals.shape), labels.embeddings, anchor, rivals)
