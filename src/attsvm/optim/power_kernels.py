r"""Compiled powers :math:`w=\mathrm{sp}(y,r)=\mathrm{sign}(y)|y|^r` of arrays, within two units in
the last place.

An exponent is a whole number and a rest. The rest is a square root, a cube root, or
:math:`2^{r\log_2|y|}` with polynomials that the compiler turns into vector instructions, in
float32; the whole number is products, in float64 from two on, where float32 would lose more. Arrays
with a zero, a denormal, an infinity or a NaN take the power in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import intrinsic

from attsvm.jit import fusing_kernel

FloatArray = npt.NDArray[Any]
Power = tuple[int, float, float]

_SQRT_HALF = 0x3FE6A09E667F3BCD  # bits of sqrt(1/2)
_MANTISSA = 52
_ROUNDER = 6755399441055744.0  # 1.5 * 2^52: added and taken away, it rounds to a whole number
_LOG2_E = 1.4426950408889634

PRODUCT1, PRODUCT2, PRODUCT3, PRODUCT4, PRODUCT5, PRODUCT10, ROOT2, ROOT4, ROOT34, POWER = range(10)

_SQRT_HALF32 = np.int32(0x3F3504F3)
_MANTISSA32 = np.int32(23)
_TOP = np.int32(-(1 << 23))  # sign and exponent of a float32
# bits of the smallest normal number; how many more are finite
_SMALLEST32, _RANGE32 = np.uint32(1 << 23), np.uint32(0x7F000000)
_ONE32, _ROUNDER32 = np.float32(1.0), np.float32(12582912.0)
_THIRD = 1.0 / 3.0
_THREE32, _THIRD32, _FOUR_THIRDS32 = np.int32(3), np.float32(_THIRD), np.float32(4.0 / 3.0)
# four thirds of the bits of one, less what makes the first guess of an inverse cube root best
_CUBE_MAGIC = np.int32(0x54A21D2A)
_MOST_PRODUCTS = 64.0
# a product of an exponent of a float32 with a multiple of 1 / 4096 below one is exact
_SPLIT = 4096
# log2(1 + f) / f on [sqrt(1/2) - 1, sqrt(2) - 1], and (2^z - 1) / z on [-0.55, 0.55], interpolated
# at Chebyshev's points
_LOG2: Any = tuple(
    map(
        np.float32,
        (
            1.442695,
            -0.72134745,
            0.48091075,
            -0.36069328,
            0.28790325,
            -0.23916988,
            0.21607822,
            -0.20586188,
            0.12310968,
        ),
    )
)
_EXP2: Any = tuple(
    map(np.float32, (0.6931472, 0.2402265, 0.05550332, 0.009618061, 0.0013402925, 0.00015463604))
)
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8 = _LOG2
_E0, _E1, _E2, _E3, _E4, _E5 = _EXP2


def reinterpreting(source: Any, target: Any, instruction: str) -> Any:
    """A compiled function that reads the bits of a ``source`` as a ``target``."""

    @intrinsic
    def reinterpret(typing_context: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(
                arguments[0], context.get_value_type(signature.return_type)
            )

        return target(source), codegen

    return reinterpret


_bits = reinterpreting(types.float64, types.int64, "bitcast")
_number = reinterpreting(types.int64, types.float64, "bitcast")
_bits32 = reinterpreting(types.float32, types.int32, "bitcast")
_number32 = reinterpreting(types.int32, types.float32, "bitcast")


@fusing_kernel
def _power(size: float, r: float) -> float:
    """``size ** r`` of a non-negative float64 that came from a float32, to 2e-9 relative."""
    bits = _bits(size)
    # positive, so that the shift below needs no sign
    above = bits - _SQRT_HALF + (1023 << _MANTISSA)
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
    # int to float without a conversion instruction
    whole = _number(exponent | 0x4330000000000000) - 4503599627370496.0 - 1023.0
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
    """Products and square roots."""
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
    elif kind == PRODUCT5:
        for i in range(y.size):
            wide = np.float64(y[i])  # or two roundings in float32 too many
            square = wide * wide
            w[i] = square * square * wide
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
    elif kind == ROOT34:
        for i in range(y.size):
            root = math.sqrt(abs(y[i]))
            w[i] = math.copysign(root * math.sqrt(root), y[i])


@fusing_kernel
def _root(size: Any, r: Any, high: Any, low: Any) -> Any:
    """``size ** r`` of a normal float32, ``0 < r < 1``, ``r = high + low``: what is whole in the
    exponent never meets a rounding.
    """
    bits = _bits32(size)
    above = (bits - _SQRT_HALF32) & _TOP
    f = _number32(np.int32(bits - above)) - _ONE32
    exponent = np.float32(np.int32(above) >> _MANTISSA32)
    t = _L8
    t = t * f + _L7
    t = t * f + _L6
    t = t * f + _L5
    t = t * f + _L4
    t = t * f + _L3
    t = t * f + _L2
    t = t * f + _L1
    t = t * f + _L0
    v = (r * f) * t
    shifted = (exponent * high + v) + _ROUNDER32
    z = (exponent * high - (shifted - _ROUNDER32)) + (exponent * low + v)
    e = _E5
    e = e * z + _E4
    e = e * z + _E3
    e = e * z + _E2
    e = e * z + _E1
    e = e * z + _E0
    e = e * z + _ONE32
    return _number32(np.int32(_bits32(e) + (_bits32(shifted) << _MANTISSA32)))


@fusing_kernel
def _cube_root(size: Any) -> Any:
    """The cube root of a normal float32: an inverse cube root off the bits, two Newton steps, and a
    last one on the root itself.
    """
    inverse = _number32(np.int32(_CUBE_MAGIC - _bits32(size) // _THREE32))
    inverse = inverse * (_FOUR_THIRDS32 - (_THIRD32 * size) * inverse * (inverse * inverse))
    inverse = inverse * (_FOUR_THIRDS32 - (_THIRD32 * size) * inverse * (inverse * inverse))
    square = inverse * inverse
    root = size * square
    return root - (root * (root * root) - size) * (_THIRD32 * square)


@fusing_kernel
def _raise(y: FloatArray, w: FloatArray, whole: int) -> None:
    """``w *= |y| ** whole`` in float64, so that only the last rounding is one of float32; more than
    four by repeated squaring.
    """
    if whole == 2:
        for i in range(y.size):
            wide = np.float64(y[i])
            w[i] = np.float64(w[i]) * (wide * wide)
    elif whole == 3:
        for i in range(y.size):
            wide = abs(np.float64(y[i]))
            w[i] = np.float64(w[i]) * (wide * wide * wide)
    elif whole == 4:
        for i in range(y.size):
            wide = np.float64(y[i])
            w[i] = np.float64(w[i]) * ((wide * wide) * (wide * wide))
    else:
        base, product = np.empty(y.size), np.empty(y.size)
        for i in range(y.size):
            base[i] = abs(np.float64(y[i]))
            product[i] = w[i]
        while whole > 0:
            if whole & 1:
                for i in range(y.size):
                    product[i] *= base[i]
            whole >>= 1
            if whole > 0:
                for i in range(y.size):
                    base[i] *= base[i]
        for i in range(y.size):
            w[i] = product[i]


@fusing_kernel
def is_special(number: Any) -> Any:
    """Whether a float32 is zero, denormal, infinite or NaN: what :func:`_root` cannot take."""
    return (np.uint32(_bits32(abs(number))) - _SMALLEST32) >= _RANGE32


@fusing_kernel
def image32(
    y: FloatArray, w: FloatArray, special: int, kind: int, whole: float, rest: float
) -> None:
    """``w = sp(y, whole + rest)``; ``special`` counts the numbers of ``y`` that are
    :func:`is_special`.
    """
    if kind != POWER:
        _map(y, w, kind)
        return
    if special > 0 or whole > _MOST_PRODUCTS:
        r = whole + rest
        for i in range(y.size):
            w[i] = math.copysign(np.float32(_power(np.float64(abs(y[i])), r)), y[i])
        return
    leading = math.floor(rest * _SPLIT + 0.5) / _SPLIT
    r32, high, low = np.float32(rest), np.float32(leading), np.float32(rest - leading)
    cube = abs(rest - _THIRD) < 1e-15
    if whole == 1.0 and cube:
        for i in range(y.size):
            w[i] = _cube_root(abs(y[i])) * y[i]
    elif whole == 1.0:
        for i in range(y.size):
            w[i] = _root(abs(y[i]), r32, high, low) * y[i]
    elif cube:
        for i in range(y.size):
            w[i] = math.copysign(_cube_root(abs(y[i])), y[i])
    elif rest > 0.0:
        for i in range(y.size):
            w[i] = math.copysign(_root(abs(y[i]), r32, high, low), y[i])
    else:
        for i in range(y.size):
            w[i] = math.copysign(_ONE32, y[i])
    if whole > 1.0:
        _raise(y, w, int(whole))


@fusing_kernel
def image64(y: FloatArray, w: FloatArray, kind: int, whole: float, rest: float) -> None:
    """``w = sp(y, whole + rest)``."""
    if kind != POWER:
        _map(y, w, kind)
        return
    if whole == 1.0:
        for i in range(y.size):
            w[i] = y[i] * abs(y[i]) ** rest
        return
    for i in range(y.size):
        size = abs(y[i])
        w[i] = math.copysign(
            (size**whole if whole > 0.0 else 1.0) * (size**rest if rest > 0.0 else 1.0), y[i]
        )
