r"""Mean-pooling logistic regression: the baseline, and the head that training starts from.

With :math:`W=0` softmax attention is the mean of the tokens, so a head that is trained on means
makes the untrained attention layer equal to the baseline. Whatever a fit gains beyond it is due to
attention.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np

from attsvm.datasets.attention_data import AttentionData, FloatArray, mean_tokens

PENALTIES = tuple(10.0 ** np.arange(-3, 4))
"""Inverse penalties C that are tried, relative to the mean squared norm of a pooled sequence."""


@dataclass(frozen=True)
class PooledHead:
    """A linear head on mean-pooled tokens: ``coef @ mean + intercept``.

    Attributes:
        coef: ``(d_x,)``.
        intercept: scalar.
        C: the inverse penalty of scikit-learn's ``LogisticRegression`` that had the smallest
            validation loss.
        validation_loss: mean logistic loss on the validation part.
    """

    coef: FloatArray
    intercept: float
    C: float
    validation_loss: float

    def decision(self, data: AttentionData) -> FloatArray:
        """``(n,)`` values whose sign is the predicted label."""
        return mean_tokens(data) @ self.coef + self.intercept


def logistic_loss(labels: FloatArray, values: FloatArray) -> float:
    r"""Mean of :math:`\log(1+e^{-y f})`, without overflow."""
    return float(np.logaddexp(0.0, -labels * values).mean())


def mean_pooling(train: AttentionData, validation: AttentionData) -> PooledHead:
    """Logistic regression on mean tokens, its penalty chosen on the validation part.

    Ties go to the strongest penalty.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    pooled = mean_tokens(train)
    scale = float(np.mean(np.sum(pooled**2, axis=1))) or 1.0
    heads = []
    for relative in PENALTIES:
        C = float(relative / scale)
        with warnings.catch_warnings():
            # On separable data a weak penalty has its optimum far away; the validation loss judges
            # where it stopped.
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted = LogisticRegression(C=C, max_iter=1000).fit(pooled, train.labels)
        head = PooledHead(fitted.coef_[0].copy(), float(fitted.intercept_[0]), C, 0.0)
        loss = logistic_loss(validation.labels, head.decision(validation))
        heads.append(replace(head, validation_loss=loss))
    return min(heads, key=lambda head: head.validation_loss)
