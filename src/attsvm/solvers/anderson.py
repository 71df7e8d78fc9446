r"""Anderson's extrapolation of a fixed-point iteration :math:`z\leftarrow z+r(z)` (Anderson 1965;
Walker and Ni, *Anderson acceleration for fixed-point iterations*, 2011).

Of the last points it takes the affine combination whose residual is least, by the normal equations
of the changes between them. It is safeguarded:

1. where the residual has more than doubled after an extrapolation, the plain step of the point
   before is taken instead, and the memory begins anew;
2. where the least residual of a window of points is no smaller than that of the windows before,
   plain steps go on for a while;
3. the change since the last point replaces the oldest one, and the combination is made.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from attsvm.datasets.attention_data import FloatArray


class AndersonOptions(NamedTuple):
    """Numbers of the extrapolation; chosen on random programmes of 50 to 600 rows.

    Attributes:
        columns: changes that are remembered, and
        easy_columns: where the iteration is easy.
        ridge: of the least squares, relative to the trace of their matrix.
        window: points within which the residual must fall, and
        fallen: to which share of the least one before.
        plain_steps: steps without extrapolation where it has not.
    """

    columns: int = 40
    easy_columns: int = 10
    ridge: float = 1e-12
    window: int = 60
    fallen: float = 0.7
    plain_steps: int = 20


ANDERSON = AndersonOptions()


class Extrapolation:
    """The memory of an iteration; :meth:`advance` makes the next point."""

    def __init__(self, columns: int, options: AndersonOptions = ANDERSON) -> None:
        self._columns, self._options = columns, options
        self._residual_before = self._least = self._least_in_window = math.inf
        self._points = self._plain_steps = 0
        self.forget()

    def forget(self) -> None:
        """Begin again with the next point."""
        self._last: tuple[FloatArray, FloatArray] | None = None
        self._plain_next: FloatArray | None = None  # what the last point's plain step would be
        self._count = 0

    def advance(self, z: FloatArray, residual: FloatArray) -> FloatArray:
        """The next point, of the shape of ``z``."""
        size = float(np.linalg.norm(residual))
        # 1. An extrapolation that has led away is undone.
        if self._plain_next is not None and size > 2.0 * self._residual_before:
            plain_next, self._residual_before = self._plain_next, math.inf
            self.forget()
            return plain_next
        self._residual_before = size
        # 2. A window without progress is followed by plain steps.
        self._least_in_window = min(self._least_in_window, size)
        self._points += 1
        if self._points % self._options.window == 0:
            is_stuck = self._least_in_window > self._options.fallen * self._least
            self._least = math.inf if is_stuck else min(self._least, self._least_in_window)
            self._least_in_window = math.inf
            if is_stuck:
                self.forget()
                self._plain_steps = self._options.plain_steps
        # 3. The combination of the remembered points.
        self._remember(z, residual)
        plain: FloatArray = z + residual
        self._plain_next = None
        self._plain_steps -= 1
        columns = min(self._count, self._columns)
        if columns < 2 or self._plain_steps >= 0:
            return plain
        normal = self._normal[:columns, :columns].copy()
        # Changes that are all zero have no trace, and a system all the same.
        normal[np.diag_indices(columns)] += self._options.ridge * np.trace(normal) + 1e-300
        weights = np.linalg.solve(normal, self._changes[:columns] @ residual.reshape(-1))
        self._plain_next = plain
        extrapolated: FloatArray = plain - (weights @ self._moves[:columns]).reshape(z.shape)
        return extrapolated

    def _remember(self, z: FloatArray, residual: FloatArray) -> None:
        """Store the changes of point and residual since the last point, in place of the oldest."""
        if self._last is not None:
            if self._count == 0:
                self._changes = np.empty((self._columns, z.size))  # of residuals
                self._moves = np.empty((self._columns, z.size))  # of plain steps
                self._normal = np.empty((self._columns, self._columns))
            column = self._count % self._columns
            self._count += 1
            columns = min(self._count, self._columns)
            last_z, last_residual = self._last
            np.subtract(residual, last_residual, out=self._changes[column].reshape(z.shape))
            np.subtract(z, last_z, out=self._moves[column].reshape(z.shape))
            self._moves[column] += self._changes[column]
            products = self._changes[:columns] @ self._changes[column]
            self._normal[column, :columns] = self._normal[:columns, column] = products
        self._last = z, residual
