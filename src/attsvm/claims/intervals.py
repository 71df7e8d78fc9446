"""The intervals of a mean and of a share over independent trials."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError


class Interval(NamedTuple):
    """A mean and the ends of its 95% interval, in the unit of the values.

    Attributes:
        mean: of the values.
        low: lower end; minus infinity where the values do not bound the mean.
        high: upper end; infinity where they do not.

    Example:
        >>> from attsvm.claims import interval
        >>> found = interval([1.0, 2.0, 3.0])
        >>> found.low < found.mean < found.high
        True
    """

    mean: float
    low: float
    high: float


def interval(values: ArrayLike) -> Interval:
    r"""The mean of one value per seed with Student's 95% interval,
    :math:`\bar x \pm t_{n-1, 0.975}\, s / \sqrt n`, where :math:`s` is the sample standard
    deviation.

    It covers the mean over all seeds in 95% of the cases if values are normal, however few there
    are. One value tells nothing of the spread, so its interval is infinite. Where a value is NaN,
    everything is.

    Args:
        values: ``(seeds,)``, independent of each other.

    Raises:
        InputError: not a vector, or an empty one.

    Example:
        >>> from attsvm.claims import interval
        >>> mean, low, high = interval([1.0, 2.0, 3.0])
        >>> print(f"{mean:.2f} ({low:.2f} to {high:.2f})")
        2.00 (-0.48 to 4.48)
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise InputError(f"values have shape {array.shape}; give one value per seed")
    mean, n = float(array.mean()), array.size
    if n < 2:
        return Interval(mean, -np.inf, np.inf)
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, 0.975) * array.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half)


def share_interval(good: float, trials: int) -> tuple[float, float]:
    """The 95% interval (Clopper, Pearson) of a share of which ``good`` of ``trials`` are seen."""
    from scipy.special import betaincinv

    low = betaincinv(good, trials - good + 1, 0.025) if good > 0 else 0.0
    high = betaincinv(good + 1, trials - good, 0.975) if good < trials else 1.0
    return float(low), float(high)
