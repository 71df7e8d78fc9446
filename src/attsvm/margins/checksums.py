r"""A number for the bytes of an array, as quick as memory is read.

Four sums of eight bytes at a time are carried on by turns, with the step of Collet's xxHash64,

.. math:: h\leftarrow p\cdot\operatorname{rotate}_{31}(h+q\,w)\bmod 2^{64},

one to one in what was there and in what comes. So another value of a single word always gives
another number. No protection from intent.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from attsvm.jit import kernel

_P, _Q = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_LEFT, _RIGHT = np.uint64(31), np.uint64(33)


def checksum(array: Any, found: int = 0) -> int:
    """Of the bytes, the type and the shape of an array, beginning at the number ``found``."""
    name = zlib.crc32(repr((array.dtype.str, array.shape)).encode())
    flat = np.require(array, requirements=["C", "A"]).reshape(-1).view(np.uint8)
    words = len(flat) // 8 * 8
    rest = zlib.crc32(flat[words:].tobytes())
    return int(_mixed(flat[:words].view(np.uint64), np.uint64(found), np.uint64(name << 32 | rest)))


@kernel
def _mixed(words: Any, found: Any, name: Any) -> Any:
    a, b, c, d = found, found ^ _P, name, name ^ _Q
    fours = len(words) // 4 * 4
    for i in range(0, fours, 4):
        a, b = a + _Q * words[i], b + _Q * words[i + 1]
        c, d = c + _Q * words[i + 2], d + _Q * words[i + 3]
        a, b = ((a << _LEFT) | (a >> _RIGHT)) * _P, ((b << _LEFT) | (b >> _RIGHT)) * _P
        c, d = ((c << _LEFT) | (c >> _RIGHT)) * _P, ((d << _LEFT) | (d >> _RIGHT)) * _P
    for i in range(fours, len(words)):
        a = a + _Q * words[i]
        a = ((a << _LEFT) | (a >> _RIGHT)) * _P
    for each in (b, c, d, name):
        a = a + _Q * each
        a = ((a << _LEFT) | (a >> _RIGHT)) * _P
    return a ^ (a >> _RIGHT)
