"""Measures of the experiments on adaptive steps: records, attention that is missing, rates."""

import numpy as np

from attsvm import AttentionData
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm_papers import kit


def log_spaced_records(steps: int, count: int = 60) -> list[int]:
    """``count`` steps on a log scale from 1 to the last, and the powers of ten between."""
    decades = [10**k for k in range(int(np.log10(steps)) + 1)]
    spaced: list[int] = np.rint(np.geomspace(1, steps, count)).astype(int).tolist()
    return sorted({*spaced, *decades})


def log_missing(data: AttentionData, tokens: IntArray, W: FloatArray) -> FloatArray:
    r"""Logarithm of the largest :math:`1-\varphi_{i,\text{token}_i}` over the sequences,
    ``(records, runs)``, at any saturation.
    """
    logits = np.einsum("rntd,krde,rne->krnt", data.tokens, W, data.queries, optimize=True)
    is_selected = np.arange(data.T) == tokens[..., None]
    selected_logit = np.sum(np.where(is_selected, logits, 0.0), axis=-1, keepdims=True)
    others = np.logaddexp.reduce(np.where(is_selected, -np.inf, logits - selected_logit), axis=-1)
    return (others - np.logaddexp(0.0, others)).max(axis=-1)


def log_slopes(evidence: kit.Evidence, column: str, first: float, last: float) -> FloatArray:
    """Slopes of the logarithm of a column against that of the step, one per trial, over the records
    from ``first`` to ``last``.
    """
    return kit.exponents(evidence["step"], evidence[column], first, last)
