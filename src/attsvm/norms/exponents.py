"""Exponents, radii and weights: how they are read, conjugated and written."""

from __future__ import annotations

from typing import Any

from array_api_compat import device

from attsvm.base.errors import InputError
from attsvm.norms.array_api import Array, namespace


def conjugate_exponent(p: float) -> float:
    r""":math:`q` with :math:`1/p+1/q=1`."""
    if p == 1.0:
        return float("inf")
    return 1.0 if p == float("inf") else 1.0 + 1.0 / (p - 1.0)


def per_run(number: Any, W: Array) -> Array:
    """One number, or one per run, as an array that broadcasts against the vectors ``(..., k)`` of
    the runs.

    Raises:
        InputError: a number is negative or not a number.
    """
    array = non_negative(number, W)
    return array[..., None] if array.ndim else array


def non_negative(number: Any, W: Array) -> Array:
    """The radius of a ball, or the weight of a proximal map, as an array of the kind of ``W``.

    Raises:
        InputError: a number is negative or not a number.
    """
    xp = namespace(W)
    array = xp.asarray(number, dtype=W.dtype, device=device(W))
    if not bool(xp.all(array >= 0)):
        raise InputError(
            "the radius of a ball and the weight of a proximal map must be numbers >= 0, and one"
            " is not"
        )
    return array


def exponent_text(p: float) -> str:
    """The shortest text that reads back as ``p``."""
    return str(int(p)) if p.is_integer() else repr(p)


def checked_exponent(name: str, p: float) -> float:
    """``p`` as a float.

    Raises:
        InputError: ``p`` is not a number that is at least 1.
    """
    try:
        number = float(p)
    except (TypeError, ValueError):
        number = float("nan")
    if not number >= 1.0:
        raise InputError(
            f"{name}({p!r}) is not a norm: the exponent p must be a number with 1 <= p <= inf"
        )
    return number
