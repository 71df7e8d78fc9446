r"""What splitting minimises in place of a norm: that norm, its half square, or its p-th power.

All of them have the same minimisers under margins up to length, and the same multipliers up to a
factor. Soft margins ask for the half square. Of a hard margin the p-th power over p of a gauge of
moderate exponent is smooth near its minimiser, where its norm is not, and converges sooner.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm import native
from attsvm.datasets.attention_data import FloatArray
from attsvm.native import address, library
from attsvm.norms import Norm
from attsvm.norms.lifts import Entrywise, Lifted, RowLengths, SingularValues

_ROUNDING = 1e-15  # of the threshold of a proximal map


class EnergyOptions(NamedTuple):
    """Numbers of the choice of energy; chosen on random programmes of 50 to 600 rows.

    Attributes:
        largest_power: exponent of a gauge up to which the p-th power converges sooner than the
            norm.
        easy_exponents: least and largest exponent of entries whose iterations need few columns of
            extrapolation; beyond them programmes are almost linear.
        secants: to the threshold of the half square's proximal map, at most; halvings of the
            bracket would end sooner.
    """

    largest_power: float = 6.0
    easy_exponents: tuple[float, float] = (1.05, 6.0)
    secants: int = 100


ENERGY = EnergyOptions()


class Energy:
    """An energy with its proximal map; one object serves matrices of one shape, in turn.

    Attributes:
        norm: the norm that it stands for.
        soft: whether it is the half square.
        gauge: the function as the compiled core knows it; ``None`` of other norms.
        is_easy: whether few columns of extrapolation are enough.
    """

    def __init__(self, norm: Norm, soft: bool, options: EnergyOptions = ENERGY) -> None:
        self.norm, self.soft, self._options = norm, soft, options
        self.gauge: native.GaugeFunction | None = None
        self._scratch: FloatArray | None = None
        least, largest = options.easy_exponents
        self.is_easy = not isinstance(norm, Entrywise) or least <= norm.p <= largest
        if isinstance(norm, Lifted):
            # The compiled core numbers the lifts.
            lifts = {Entrywise: 0, SingularValues: 1, RowLengths: 2}
            lift = next(number for kind, number in lifts.items() if isinstance(norm, kind))
            degree = 2.0 if soft else norm.p if norm.p <= options.largest_power else 1.0
            self.gauge = native.GaugeFunction(lift, norm.p, degree)

    def nearest(self, X: FloatArray, t: float) -> FloatArray:
        """The proximal point of ``t`` times the energy at ``X``, of the shape of ``X``."""
        if self.gauge is None:
            return self._half_square_prox(X, t) if self.soft else np.asarray(self.norm.prox(X, t))
        X = np.ascontiguousarray(X)
        V = np.empty_like(X)
        size = library.proximal(
            self.gauge,
            *X.shape,
            address(X, np.float64, *X.shape),
            t,
            self._scratch_address(X),
            address(V, np.float64, *X.shape),
        )
        # A matrix that is not finite has no proximal point.
        return V if size >= 0.0 else X

    def size(self, X: FloatArray, dual: bool = False) -> float:
        """The norm of ``X``, or its dual norm."""
        if self.gauge is None:
            return float(self.norm.dual_value(X) if dual else self.norm.value(X))
        X = np.ascontiguousarray(X)
        x = address(X, np.float64, *X.shape)
        return float(library.measure(self.gauge, *X.shape, x, int(dual), self._scratch_address(X)))

    def _scratch_address(self, X: FloatArray) -> int:
        """The address of what the compiled core remembers of the last matrix, such as its singular
        vectors, from which the next decomposition begins.
        """
        if self._scratch is None:
            self._scratch = np.zeros(library.measure_room(*X.shape))
        return address(self._scratch, np.float64, len(self._scratch))

    def _half_square_prox(self, X: FloatArray, t: float) -> FloatArray:
        """The proximal point of ``t`` times the half square: that of the norm with the threshold
        ``s`` at which ``s = t * ||V||``, by secants inside a bracket.
        """
        # The norm falls with the threshold, so this bracket holds it.
        low, high = 0.0, t * float(self.norm.value(X))
        below, above = -high, high - t * float(self.norm.value(self.norm.prox(X, high)))
        V = X
        for _ in range(self._options.secants):
            if not high - low > _ROUNDING * high:
                break
            s = (low * above - high * below) / (above - below)
            V = np.asarray(self.norm.prox(X, s))
            excess = s - t * float(self.norm.value(V))
            # halving the value at the other end keeps that end from staying for ever
            if excess < 0.0:
                low, below, above = s, excess, 0.5 * above
            else:
                high, above, below = s, excess, 0.5 * below
            if abs(excess) <= _ROUNDING * s:
                break
        return V
