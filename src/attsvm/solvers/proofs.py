r"""Proofs of accuracy that do not depend on how a solution was found.

For any :math:`\lambda\ge0` and any :math:`W` whose margins meet :math:`b`,

.. math:: \frac{b^\top\lambda}{\|A^\top\lambda\|_*} \;\le\; \min\|W\| \;\le\; \|W\|,

because :math:`b^\top\lambda\le\langle A^\top\lambda, W\rangle\le\|A^\top\lambda\|_*\|W\|`. When
:math:`A^\top\lambda = 0` and
:math:`b^\top\lambda>0` the lower bound is infinite and no weights exist (Farkas). Every number here
is computed from the caller's margins.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.native import address, library
from attsvm.norms import Norm
from attsvm.solvers.integers import to_floats, to_integers

_TINY = float(np.finfo(np.float64).tiny)
_EPS = float(np.finfo(np.float64).eps)
_ROUNDING = 4e-16  # of a ratio that is one
ROUNDING = 2.0**-98
"""Of a sum with twice the digits, relative to the sum of the sizes of its terms (a million of them
at most).
"""
NO_MATTER = 2e-13
"""Rounding of margins or of the lower bound that no tolerance minds; beyond it the figures are
computed again with twice the digits.
"""


class CertificateOptions(NamedTuple):
    """How hard the certificates try to scale weights to their margins; untuned."""

    rescalings: int = 3  # of hard-margin weights, since one division rounds
    lengthenings: int = 6  # of soft-margin weights
    growth: float = 8.0  # of what is added to the length, from one lengthening to the next
    tight: float = 1e-6  # share of its right-hand side within which a row is met but for rounding
    wide_gap: float = 1e-6  # from which longer weights are tried only where they may gain
    least_gain: float = 1e-3  # such a share of the gap


OPTIONS = CertificateOptions()


class Certificate(NamedTuple):
    """Weights and multipliers with what is proved of them.

    Attributes:
        W: ``(d_x, d_z)`` weights.
        dual: ``(m,)`` multipliers.
        values: ``(m,)`` margins of the weights.
        norm: of the weights.
        gap: relative duality gap; 1 proves nothing.
        violation: largest amount by which a right-hand side is missed.
        rounding: violation that the rounding of the margins can hide.
        shortness: largest share of its right-hand side that a margin misses.
    """

    W: FloatArray
    dual: FloatArray
    values: FloatArray
    norm: float
    gap: float
    violation: float
    rounding: float
    shortness: float = 0.0

    @property
    def error(self) -> float:
        """The largest of gap, violation and shortness: what a solver makes small."""
        return max(self.gap, self.violation, self.shortness)


def certify_hard(
    margins: Margins,
    norm: Norm,
    W: FloatArray,
    dual: FloatArray,
    options: CertificateOptions = OPTIONS,
) -> Certificate:
    r"""``W`` rescaled until the smallest :math:`\langle A_c, W\rangle/b_c` is one, with the gap to
    the bound of ``dual``.

    See :func:`length_ratio`; what other rows miss is violation. Where rounding could hide more than
    ``NO_MATTER``, margins and bound are computed with twice the digits. The gap is 1 (nothing
    proved) when the margins of ``W`` cannot be scaled to their right-hand sides.

    1. Scale the weights until the smallest ratio is one.
    2. Bound the violation that rounding can hide; where it matters, use twice the digits.
    3. Compare the norm to the lower bound.
    """
    # 1. Scale.
    scaling_rows = scale_rows(margins.rhs)
    original_W, values = W, margins(W)
    for _ in range(options.rescalings):
        ratio = length_ratio(values, margins.rhs)
        if not 0.0 < ratio < np.inf or abs(ratio - 1.0) <= _ROUNDING:
            break
        W = W / ratio
        values = margins(W)
    # 2. Rounding.
    rounding = _hidden_violation(margins, W, values, scaling_rows)
    lower = lower_bound(margins, norm, dual)
    if rounding > NO_MATTER:
        return _certify_sharply(margins, norm, original_W, dual, lower, options)
    # 3. Gap.
    size = float(norm.value(W))
    gap = 1.0
    if 0.0 < ratio < np.inf and 0.0 < size < np.inf:
        gap = max(0.0, 1.0 - lower / size)
    return Certificate(W, dual, values, size, gap, _violation(margins, values), rounding)


def _certify_sharply(
    margins: Margins,
    norm: Norm,
    W: FloatArray,
    dual: FloatArray,
    lower: float,
    options: CertificateOptions,
) -> Certificate:
    """The best certificate of ``W`` and its multiples, with margins in double-double arithmetic:
    they are those of the weights as they are, so that no rounding is left but that of ``W`` when it
    is rescaled.
    """
    best: Certificate | None = None
    for _ in range(options.rescalings):
        values, low = sharp_values(margins.differences, margins.queries, margins.offsets, W)
        ratio = length_ratio(values, margins.rhs)
        size = float(norm.value(W))
        scalable = 0.0 < ratio < np.inf and 0.0 < size < np.inf
        gap = max(0.0, 1.0 - lower / size) if scalable else 1.0
        violation = max(0.0, float((margins.rhs - values - low).max(initial=0.0)))
        certificate = Certificate(W, dual, values, size, gap, violation, 0.0, max(0.0, 1.0 - ratio))
        if best is None or certificate.error < best.error:
            best = certificate
        if not scalable or abs(ratio - 1.0) <= _ROUNDING:
            break
        W = W / ratio
    assert best is not None
    return best


def sharp_values(
    D: FloatArray, Z: FloatArray, offsets: IntArray, W: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The margins of ``W`` to twice the digits, as ``high + low``."""
    (m, d_x), d_z = D.shape, Z.shape[1]
    high, low, work = np.zeros(m), np.zeros(m), np.empty(2 * d_x + d_z)
    W = np.ascontiguousarray(W, dtype=np.float64)
    library.exact_values(
        *_addresses(_to_compiled(D, Z, offsets)),
        address(W, np.float64, d_x, d_z),
        address(work, np.float64, 2 * d_x + d_z),
        address(high, np.float64, m),
        address(low, np.float64, m),
    )
    return high, low


def sharp_adjoint(
    D: FloatArray, Z: FloatArray, offsets: IntArray, dual: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The adjoint of ``dual`` to twice the digits, as ``high + low``, and the sum of the sizes of
    its terms, of which its error is a share of ``ROUNDING``.
    """
    d_x, shape = D.shape[1], (D.shape[1], Z.shape[1])
    dual, work = np.ascontiguousarray(dual, dtype=np.float64), np.empty(3 * d_x)
    sums = np.empty(shape), np.empty(shape), np.empty(shape)
    rows = _to_compiled(D, Z, offsets)
    library.exact_adjoint(
        *_addresses(rows),
        address(dual, np.float64, len(D)),
        address(work, np.float64, 3 * d_x),
        *(address(matrix, np.float64, *shape) for matrix in sums),
    )
    return sums


CompiledRows = tuple[FloatArray, FloatArray, IntArray]
"""Differences, queries and offsets, as compiled sums read them."""


def _to_compiled(D: FloatArray, Z: FloatArray, offsets: IntArray) -> CompiledRows:
    """The rows, contiguous.

    Raises:
        TypeError: offsets that do not fit the rows.
    """
    if offsets[0] != 0 or offsets[-1] != len(D) or (np.diff(offsets) < 0).any():
        raise TypeError("the offsets of rows must rise from 0 to their number")
    return (
        np.ascontiguousarray(D, dtype=np.float64),
        np.ascontiguousarray(Z, dtype=np.float64),
        np.ascontiguousarray(offsets, dtype=np.int64),
    )


def _addresses(rows: CompiledRows) -> tuple[int, ...]:
    """Addresses of the arrays and their sizes, in the order of compiled functions."""
    D, Z, offsets = rows
    return (
        address(D, np.float64, *D.shape),
        address(Z, np.float64, len(offsets) - 1, Z.shape[1]),
        address(offsets, np.int64, len(offsets)),
        *(len(Z), D.shape[1], Z.shape[1]),
    )


def scale_rows(rhs: FloatArray) -> BoolArray:
    """The rows whose ratio of margin to right-hand side says how far weights must be scaled: those
    with a positive right-hand side.

    A negative one is half of an equality written as two opposite rows. The other half holds exactly
    at the right scale, and where its right-hand side is small the ratio is mostly rounding; so then
    only the largest right-hand sides say how much longer weights must be.
    """
    positive: BoolArray = rhs > 0.0
    return positive if (rhs >= 0.0).all() else rhs > 0.5 * rhs.max(initial=0.0)


def length_ratio(values: FloatArray, rhs: FloatArray) -> float:
    """By which weights with these margins are divided to be as short as the rows allow: the
    smallest ratio of a margin to its right-hand side among :func:`scale_rows`.

    Where these would allow shorter weights, all rows with a positive right-hand side are asked.
    """
    scaling_rows, positive = scale_rows(rhs), rhs > 0.0
    ratio = float((values[scaling_rows] / rhs[scaling_rows]).min())
    if ratio > 1.0 and scaling_rows.sum() < positive.sum():
        ratio = max(1.0, min(ratio, float((values[positive] / rhs[positive]).min())))
    return ratio


def certify_soft(
    margins: Margins,
    norm: Norm,
    W: FloatArray,
    dual: FloatArray,
    slack: float,
    options: CertificateOptions = OPTIONS,
) -> Certificate:
    r"""Gap between primal and dual objective, relative to the primal.

    Primal :math:`\tfrac12\|W\|^2+C\sum_c(b_c-\langle A_c,W\rangle)_+`, dual
    :math:`b^\top\lambda-\tfrac12\|A^\top\lambda\|_*^2`. A large penalty multiplies the rounding by
    which rows are missed; where that matters, weights longer by as much are tried too.
    """
    best = _certify_soft_weights(margins, norm, W, dual, slack)
    extra = _ROUNDING  # of weights that round once more when they are lengthened
    for _ in range(options.lengthenings):
        # The penalty multiplies what rows miss; longer weights help only where that is the gap.
        if best.gap <= NO_MATTER or (
            best.gap > options.wide_gap and not _would_gain(margins, best, slack, options)
        ):
            break
        high, low = sharp_values(margins.differences, margins.queries, margins.offsets, best.W)
        tight = (margins.rhs > 0.0) & (np.abs(margins.rhs - high) <= options.tight * margins.rhs)
        ratio = float(
            ((margins.rhs - low) / np.where(tight, high, 1.0)).max(where=tight, initial=1.0)
        )
        lengthened = _certify_soft_weights(
            margins, norm, best.W * (ratio * (1.0 + extra)), dual, slack
        )
        # Rounding may take away what was added, so more is added each time.
        extra *= options.growth
        if lengthened.gap >= best.gap:
            break
        best = lengthened
    return best


def _would_gain(
    margins: Margins, certificate: Certificate, slack: float, options: CertificateOptions
) -> bool:
    """Whether what nearly tight rows miss, and the rounding of their margins, is a share of the
    gap.
    """
    shortfall, rhs = margins.rhs - certificate.values, margins.rhs
    missed = np.maximum(shortfall, 0.0)
    primal = 0.5 * certificate.norm**2 + slack * float(missed.sum())
    tight = (rhs > 0.0) & (np.abs(shortfall) <= options.tight * rhs)
    return (
        slack * float((missed + _EPS * rhs)[tight].sum())
        > options.least_gain * certificate.gap * primal
    )


def _certify_soft_weights(
    margins: Margins, norm: Norm, W: FloatArray, dual: FloatArray, slack: float
) -> Certificate:
    """The certificate of these weights as they are: gap between primal and dual objective.

    Sums of which terms cancel, or whose rounding a large penalty multiplies beyond ``NO_MATTER`` of
    the objective, are computed with twice the digits.
    """
    values, upper = margins(W), float(norm.value(W))
    primal = 0.5 * upper * upper + slack * float(np.maximum(margins.rhs - values, 0.0).sum())
    lengths, limit = margins.lengths, NO_MATTER / _EPS * primal
    size = math.sqrt(float(np.vdot(W, W)))
    if (
        slack * size * float(lengths.max(initial=0.0)) * margins.m > limit
        or float(margins.rhs @ dual) > limit
        or float(lengths @ dual) * max(upper, size) > limit
    ):
        values, low = sharp_values(margins.differences, margins.queries, margins.offsets, W)
        short = (margins.rhs - values) - low
        primal = 0.5 * upper * upper + slack * math.fsum(np.maximum(short, 0.0).tolist())
        # `gain_low` is added last, when the large numbers have cancelled.
        gain, gain_low = sharp_dot(margins.rhs, dual)
        adjoint = _sharp_pull(margins, dual)
    else:
        gain, gain_low, adjoint = float(margins.rhs @ dual), 0.0, margins.adjoint(dual)
    dual_norm = float(norm.dual_value(adjoint))
    bound = (gain - 0.5 * dual_norm * dual_norm) + gain_low  # infinite where a power would raise
    gap = max(0.0, primal - bound) / max(primal, _TINY)
    gap = gap if math.isfinite(gap) else 1.0
    return Certificate(W, dual, values, upper, gap, 0.0, 0.0)


def lower_bound(margins: Margins, norm: Norm, dual: FloatArray) -> float:
    r""":math:`b^\top\lambda/\|A^\top\lambda\|_*`: no weights that meet the margins have a smaller
    norm; ``inf`` when none exist.
    """
    gain, adjoint = float(margins.rhs @ dual), margins.adjoint(dual)
    # Rounding is bounded by the sizes of terms; where it matters, sums take twice the digits.
    abs_dual = np.abs(dual)
    length = math.sqrt(
        float(np.vdot(adjoint, adjoint))
    )  # multipliers on the way may be of any abs_dual
    terms = float(np.vdot(margins.lengths, abs_dual))
    if (
        _EPS * float(np.vdot(np.abs(margins.rhs), abs_dual)) > NO_MATTER * abs(gain)
        or _EPS * terms > NO_MATTER * length
        or not math.isfinite(length)
    ):
        gain = sum(sharp_dot(margins.rhs, dual))
        adjoint = _sharp_pull(margins, dual)
    if gain <= 0.0:
        return 0.0
    with np.errstate(over="ignore"):
        dual_norm = float(norm.dual_value(adjoint))
    return gain / dual_norm if dual_norm > 0.0 else np.inf


def sharp_dot(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """The inner product to twice the digits, as ``high + low``."""
    sums = np.empty(2)
    x, y = (np.ascontiguousarray(vector, dtype=np.float64) for vector in (x, y))
    library.exact_dot(
        address(x, np.float64, len(x)),
        address(y, np.float64, len(x)),
        len(x),
        address(sums, np.float64, 2),
    )
    return float(sums[0]), float(sums[1])


def _sharp_pull(margins: Margins, dual: FloatArray) -> FloatArray:
    """The adjoint, computed to twice the digits and rounded once; in integers where terms that
    cancel are so large that these are too few.
    """
    D, Z, offsets = margins.differences, margins.queries, margins.offsets
    high, low, size = sharp_adjoint(D, Z, offsets, dual)
    pulled = high + low
    if not ROUNDING * float(np.linalg.norm(size)) > NO_MATTER * float(np.linalg.norm(pulled)):
        return pulled
    # Integers cancel exactly.
    nonzero = np.flatnonzero(dual)
    (D, d), (lam, x), (Z, z) = (to_integers(array) for array in (D[nonzero], dual[nonzero], Z))
    try:
        return to_floats((D * lam[:, None]).T @ Z[margins.sequence[nonzero]], 1, d + x + z)
    except OverflowError:
        return pulled


def farkas_residual(margins: Margins, dual: FloatArray) -> float:
    r"""How far ``dual`` is from proving that no weights exist: its residual relative to its own
    terms, entry by entry.

    .. math:: \max_{ae}\ \Big|\sum_c\lambda_c A_{c,ae}\Big| \Big/ \sum_c|\lambda_c A_{c,ae}|

    A value of :math:`r` proves that in weights that meet the margins some margin is what is left of
    terms :math:`1/r` times as large as its right-hand side: :math:`b_c\le
    r\,\sum_{ae}|A_{c,ae}W_{ae}|` for some row with :math:`\lambda_c\ne0`. At rounding level
    (1e-16) that is beyond float64 and yet no proof that none exist; a proof is
    :func:`attsvm.solvers.farkas.prove_infeasible`. It is ``inf`` when ``dual`` proves nothing: no
    positive :math:`b^\top\lambda`, or a negative entry outside the equalities.
    """
    rows = np.flatnonzero(dual)
    if len(rows) == 0 or (dual[~margins.equalities] < 0.0).any():
        return float("inf")
    subset = margins.restricted(rows)
    # Powers of two, so that nothing leaves float64 on the way; columns have no scale here.
    D, Z = _columns_near_one(subset.differences), _columns_near_one(subset.queries)
    D, rows_exponent = _rows_near_one(D)
    Z, queries_exponent = _rows_near_one(Z)
    mantissa, power = np.frexp(dual[rows])
    rhs, rhs_power = np.frexp(subset.rhs)
    rhs_power = np.where(rhs != 0.0, rhs_power, -10000)
    # b^T dual in a common power of two, so that no term overflows.
    gains = rhs_power + power
    gain = float(np.ldexp(rhs * mantissa, np.clip(gains - gains.max(), -1100, 0)).sum())
    if not gain > 0.0:
        return float("inf")
    power = power + rows_exponent + queries_exponent[subset.sequence]
    scaled_dual = np.ldexp(mantissa, np.clip(power - power.max(), -1100, 0))
    high, low, size = sharp_adjoint(D, Z, subset.offsets, scaled_dual)
    nonzero = size > 0.0
    return float((np.abs(high + low)[nonzero] / size[nonzero]).max(initial=0.0))


def _columns_near_one(rows: FloatArray) -> FloatArray:
    """The rows, columns divided by powers of two above their largest entries."""
    scaled: FloatArray = np.ldexp(rows, -np.frexp(np.abs(rows).max(axis=0, initial=0.0))[1])
    return scaled


def _rows_near_one(rows: FloatArray) -> tuple[FloatArray, IntArray]:
    """The rows divided by powers of two above their largest entries, and the exponents."""
    exponent = np.frexp(np.abs(rows).max(axis=1, initial=0.0))[1]
    return np.ldexp(rows, -exponent[:, None]), exponent


def _violation(margins: Margins, values: FloatArray) -> float:
    """Largest amount by which a right-hand side is missed, 0 when none is."""
    return max(0.0, float((margins.rhs - values).max(initial=0.0)))


def _hidden_violation(
    margins: Margins, W: FloatArray, values: FloatArray, positive: BoolArray
) -> float:
    r"""Largest violation that rounding can hide; of ``positive`` rows relative to their right-hand
    sides, where these are below one.

    A margin has a rounding error of about :math:`\epsilon|\delta_c|^\top|W||z_{i(c)}|`, which hides
    nothing where the margin exceeds its right-hand side by more. It is at most
    :math:`\epsilon\|A_c\|\|W\|`, which settles most programmes without another product.
    """
    largest = float(margins.lengths.max(initial=0.0)) * math.sqrt(float(np.vdot(W, W)))
    least = float(margins.rhs.min(where=positive, initial=1.0))
    # The cheap bound first.
    if _EPS * largest <= NO_MATTER * least:
        return _EPS * largest / least
    moved: FloatArray = np.abs(margins.queries) @ np.abs(W).T
    error = _EPS * margins.along_sizes(moved)
    # Rounding hides no violation where there is room to spare; equalities have none.
    room = np.where(margins.equalities, 0.0, np.maximum(values - margins.rhs, 0.0))
    error = error - room
    error[positive] /= np.minimum(margins.rhs[positive], 1.0)
    return max(0.0, float(error.max(initial=0.0)))
