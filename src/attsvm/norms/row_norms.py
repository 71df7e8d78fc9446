r"""Norms of the lengths of the rows: their sum, and the largest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from attsvm.norms.array_api import INFINITY
from attsvm.norms.lifts import RowLengths
from attsvm.norms.norm import Descent, Norm


class Rows(RowLengths):
    r"""The norm :math:`\sum_i\|W_i\|_2` of the rows of :math:`W`, the group lasso's; dual:
    :class:`MaxRow`.

    Rows of its max-margin solutions are zero: whole features of the tokens take no part in
    attention (Yuan and Lin, *Model Selection and Estimation in Regression with Grouped Variables*,
    2006). The steepest direction is the longest row of ``G`` alone, at length one.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> W = np.array([[3.0, 4.0], [0.0, 1.0]])
        >>> float(attsvm.Rows().value(W))
        6.0
        >>> attsvm.Rows().steepest(W).round(3).tolist()
        [[0.6, 0.8], [0.0, 0.0]]
    """

    spellings: ClassVar[Mapping[str, str]] = {
        "rows": "sum of the lengths of the rows: few features of the tokens take part"
    }
    name = "rows"
    title = "norm of rows"
    descent = Descent("steepest", "descent of the longest row", 1 / 24)

    def __init__(self) -> None:
        super().__init__(1.0)

    @property
    def dual(self) -> Norm:
        """The largest length of a row."""
        return MaxRow()

    __repr__ = Norm.__repr__


class MaxRow(RowLengths):
    r"""The largest length :math:`\max_i\|W_i\|_2` of a row of :math:`W`; dual: :class:`Rows`.

    Optimisers that normalise every row of their gradient, such as those of matrices whose rows are
    the features of one token, take steepest steps in this norm.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> W = np.array([[3.0, 4.0], [0.0, 1.0]])
        >>> float(attsvm.MaxRow().value(W))
        5.0
        >>> attsvm.MaxRow().steepest(W).round(3).tolist()
        [[0.6, 0.8], [0.0, 1.0]]
    """

    spellings: ClassVar[Mapping[str, str]] = {
        "maxrow": "largest length of a row: what descent with normalised rows minimises"
    }
    name = "maxrow"
    title = "norm of the largest row"
    descent = Descent("steepest", "descent with normalised rows", 1 / 3)

    def __init__(self) -> None:
        super().__init__(INFINITY)

    @property
    def dual(self) -> Norm:
        """The sum of the lengths of the rows."""
        return Rows()

    __repr__ = Norm.__repr__
