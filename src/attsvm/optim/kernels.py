r"""One compiled pass over a list of parameters on the CPU: :math:`y\leftarrow\rho y-\eta g`, :math:`w=\mathrm{sp}(y,r)`.

Reads the gradient and the dual iterate, writes the dual iterate and the weight: four words per number. The tensors are handed over as
addresses, cut into blocks of equal size, so that many small ones cost no more than one large one.

Powers of float32 are computed in float64, as :math:`2^{r\log_2|y|}` with polynomials that the compiler turns into vector
instructions, and are rounded once.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from attsvm.jit import fusing_kernel, parallel_fusing_kernel

FloatArray = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]

BLOCK = 1 << 14  # numbers: three blocks of float32 stay in the second cache

_SQRT_HALF = 0x3FE6A09E667F3BCD  # bits of sqrt(1/2)
_MANTISSA = 52
_ROUNDER = 6755399441055744.0  # 1.5 * 2^52: added and taken away, it rounds to a whole number
_LOG2_E = 1.4426950408889634

PRODUCT1, PRODUCT2, PRODUCT3, PRODUCT4, PRODUCT10, ROOT2, ROOT4, POWER = range(8)


def _reinterpreting(source: Any, target: Any, instruction: str) -> Any:
    """A compiled function that reads the bits of a ``source`` as a ``target``."""

    @intrinsic
    def reinterpret(typing_context: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(arguments[0], context.get_value_type(signature.return_type))

        return target(source), codegen

    return reinterpret


_bits = _reinterpreting(types.float64, types.int64, "bitcast")
_number = _reinterpreting(types.int64, types.float64, "bitcast")
_float32_at = _reinterpreting(types.int64, types.CPointer(types.float32), "inttoptr")  # type: ignore[no-untyped-call]
_float64_at = _reinterpreting(types.int64, types.CPointer(types.float64), "inttoptr")  # type: ignore[no-untyped-call]


@fusing_kernel
def _power(size: float, r: float) -> float:
    """``size ** r`` of a non-negative float64 that came from a float32, to 2e-9 relative."""
    bits = _bits(size)
    above = bits - _SQRT_HALF + (1023 << _MANTISSA)  # positive, so that the shift below needs no sign
    exponent = above >> _MANTISSA
    mantissa = _number(bits - ((exponent - 1023) << _MANTISSA))  # in [sqrt(1/2), sqrt(2))
    t = (mantissa - 1.0) / (mantissa + 1.0)
    u = t * t
    series = 1.0 / 13.0
    series = series * u + 1.0 / 11.0
    series = series * u + 1.0 / 9.0
    series = series * u + 1.0 / 7.0
    series = series * u + 1.0 / 5.0
    series = series * u + 1.0 / 3.0
    series = series * u + 1.0
    whole = _number(exponent | 0x4330000000000000) - 4503599627370496.0 - 1023.0  # int to float without a conversion instruction
    v = r * (whole + 2.0 * _LOG2_E * t * series)
    v = min(max(v, -1000.0), 1000.0)
    shifted = v + _ROUNDER
    x = (v - (shifted - _ROUNDER)) * 0.6931471805599453
    e = 1.0 / 40320.0
    e = e * x + 1.0 / 5040.0
    e = e * x + 1.0 / 720.0
    e = e * x + 1.0 / 120.0
    e = e * x + 1.0 / 24.0
    e = e * x + 1.0 / 6.0
    e = e * x + 0.5
    e = e * x + 1.0
    e = e * x + 1.0
    result = e * _number((_bits(shifted) + 1023) << _MANTISSA)
    return result if (size > 0.0) & (size < math.inf) else size


@fusing_kernel
def _map(y: FloatArray, w: FloatArray, kind: int) -> None:
    if kind == PRODUCT1:
        for i in range(y.size):
            w[i] = y[i]
    elif kind == PRODUCT2:
        for i in range(y.size):
            w[i] = y[i] * abs(y[i])
    elif kind == PRODUCT3:
        for i in range(y.size):
            w[i] = y[i] * y[i] * y[i]
    elif kind == PRODUCT4:
        for i in range(y.size):
            square = y[i] * y[i]
            w[i] = math.copysign(square * square, y[i])
    elif kind == PRODUCT10:
        for i in range(y.size):
            square = y[i] * y[i]
            fifth = square * square * y[i]
            w[i] = fifth * abs(fifth)
    elif kind == ROOT2:
        for i in range(y.size):
            w[i] = math.copysign(math.sqrt(abs(y[i])), y[i])
    elif kind == ROOT4:
        for i in range(y.size):
            w[i] = math.copysign(math.sqrt(math.sqrt(abs(y[i]))), y[i])


@parallel_fusing_kernel
def step32(
    g_at: IntArray,
    y_at: IntArray,
    w_at: IntArray,
    sizes: IntArray,
    starts: IntArray,
    owners: IntArray,
    rho: float,
    eta: float,
    kind: int,
    r: float,
) -> None:  # pragma: no cover - compiled
    """One step of float32 tensors.

    Args:
        g_at: addresses of the gradients.
        y_at: of the dual iterates.
        w_at: of the weights.
        sizes: how many numbers each of these has.
        starts: for every block, the number at which it starts in its tensor.
        owners: for every block, its tensor.
        rho: factor of the dual iterate.
        eta: step length.
        kind: how the power is computed.
        r: its exponent, for ``POWER``.
    """
    for block in numba.prange(starts.size):
        k = owners[block]
        first = starts[block]
        count = min(BLOCK, sizes[k] - first)
        g = carray(_float32_at(g_at[k] + 4 * first), (count,))
        y = carray(_float32_at(y_at[k] + 4 * first), (count,))
        w = carray(_float32_at(w_at[k] + 4 * first), (count,))
        keep, step = np.float32(rho), np.float32(eta)
        if keep != 1.0:  # a loop of its own, so that the product rounds as it does in torch
            for i in range(count):
                y[i] *= keep
        for i in range(count):
            y[i] -= step * g[i]
        if kind == POWER:
            for i in range(count):
                w[i] = math.copysign(np.float32(_power(np.float64(abs(y[i])), r)), y[i])
        else:
            _map(y, w, kind)


@parallel_fusing_kernel
def step64(
    g_at: IntArray,
    y_at: IntArray,
    w_at: IntArray,
    sizes: IntArray,
    starts: IntArray,
    owners: IntArray,
    rho: float,
    eta: float,
    kind: int,
    whole: float,
    rest: float,
) -> None:  # pragma: no cover - compiled
    """One step of float64 tensors, as :func:`step32`; the exponent is ``whole + rest``."""
    for block in numba.prange(starts.size):
        k = owners[block]
        first = starts[block]
        count = min(BLOCK, sizes[k] - first)
        g = carray(_float64_at(g_at[k] + 8 * first), (count,))
        y = carray(_float64_at(y_at[k] + 8 * first), (count,))
        w = carray(_float64_at(w_at[k] + 8 * first), (count,))
        if rho != 1.0:
            for i in range(count):
                y[i] *= rho
        for i in range(count):
            y[i] -= eta * g[i]
        if kind == POWER:
            for i in range(count):
                size = abs(y[i])
                w[i] = math.copysign((size**whole if whole > 0.0 else 1.0) * (size**rest if rest > 0.0 else 1.0), y[i])
        else:
            _map(y, w, kind)
