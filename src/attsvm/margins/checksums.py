r"""A number for the bytes of an array, as quick as memory is read.

Four sums of eight bytes at a time are carried on by turns, each by a step that is one to one in
what was there and in what comes: :math:`h\leftarrow\operatorname{rotate}((h\oplus w)\,p)`, with
an odd :math:`p`, modulo :math:`2^{64}`. So another value of a single word always gives another
number, and any other change does but for one in :math:`2^{64}`. No protection from intent.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from attsvm.jit import kernel

_ODD = np.uint64(0x9E3779B185EBCA87)
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
    a, b, c, d = found, found ^ _ODD, name, name ^ _ODD
    fours = len(words) // 4 * 4
    for i in range(0, fours, 4):
        a = (a ^ words[i]) * _ODD
        a = (a << _LEFT) | (a >> _RIGHT)
        b = (b ^ words[i + 1]) * _ODD
        b = (b << _LEFT) | (b >> _RIGHT)
        c = (c ^ words[i + 2]) * _ODD
        c = (c << _LEFT) | (c >> _RIGHT)
        d = (d ^ words[i + 3]) * _ODD
        d = (d << _LEFT) | (d >> _RIGHT)
    for i in range(fours, len(words)):
        a = (a ^ words[i]) * _ODD
        a = (a << _LEFT) | (a >> _RIGHT)
    for each in (b, c, d, name):
        a = (a ^ each) * _ODD
        a = (a << _LEFT) | (a >> _RIGHT)
    return a
