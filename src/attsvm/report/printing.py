"""Numbers for people: one way to print each kind of number, everywhere in the report."""

from __future__ import annotations

import math
from typing import Any

MINUS, THIN, NONE, INFINITY = "\u2212", "\u202f", "–", "∞"
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def finite(value: Any) -> float | None:
    """``value`` as a finite float, else None (null, NaN, infinity, text)."""
    if value is None or isinstance(value, (str, bool)):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _special(value: Any) -> str | None:
    """The text for what is not a finite number: a dash or a signed infinity."""
    if isinstance(value, float) and math.isinf(value):
        return INFINITY if value > 0 else MINUS + INFINITY
    return NONE if finite(value) is None else None


def power_of_ten(exponent: int) -> str:
    """``10⁻⁵``."""
    return "10" + str(exponent).translate(_SUPERSCRIPTS)


def count(value: Any) -> str:
    """Whole numbers, groups of three set apart by thin spaces from five digits on: ``1797``,
    ``60 000``.
    """
    special = _special(value)
    if special is not None:
        return special
    rounded = round(float(value))
    digits = f"{abs(rounded):,}".replace(",", THIN) if abs(rounded) >= 10_000 else str(abs(rounded))
    return (MINUS if rounded < 0 else "") + digits


def number(value: Any, digits: int = 3) -> str:
    """A real number to ``digits`` significant digits; ``3.0 × 10⁻⁵`` where plain decimals would be
    hard to read.
    """
    special = _special(value)
    if special is not None:
        return special
    real = float(value)
    if real == 0:
        return "0"
    sign, size = (MINUS if real < 0 else ""), abs(real)
    mantissa, _, exponent = f"{size:.{digits - 1}e}".partition("e")
    decimal_exponent = int(exponent)
    if not -3 <= decimal_exponent < 5:
        mantissa, _, exponent = f"{size:.1e}".partition("e")
        return f"{sign}{mantissa}{THIN}×{THIN}{power_of_ten(int(exponent))}"
    if size >= 10_000:
        return sign + count(size)
    return sign + f"{float(f'{size:.{digits - 1}e}'):.{max(0, digits - 1 - decimal_exponent)}f}"


def percent(share: Any, decimals: int = 1) -> str:
    """A share as a percentage. ``100 %`` and ``0 %`` are printed only when exact; else ``>99.9 %``
    and ``<0.1 %``.
    """
    special = _special(share)
    if special is not None:
        return special
    value = 100.0 * float(share)
    if value in (0.0, 100.0):
        return f"{value:.0f}{THIN}%"
    step = 10.0**-decimals
    if 0 < value < step / 2:
        return f"<{step:.{decimals}f}{THIN}%"
    if 100 - step / 2 < value < 100:
        return f">{100 - step:.{decimals}f}{THIN}%"
    return f"{MINUS if value < 0 else ''}{abs(value):.{decimals}f}{THIN}%"


def threshold(share: Any) -> str:
    """A share that somebody chose, with no more digits than it needs: ``99 %``, ``99.5 %``."""
    value = finite(share)
    return NONE if value is None else f"{100 * value:.6g}{THIN}%"


def degrees(angle: Any) -> str:
    """An angle in degrees: ``4.4°``, and ``4.6 × 10⁻⁴ degrees`` where the sign would look like an
    exponent.
    """
    text = number(angle, 2)
    if text in (NONE, INFINITY):
        return text
    return text + (" degrees" if "×" in text else "°")


def plain(value: Any) -> str:
    """Any parameter of a run as text: numbers for people, yes and no, lists joined by commas."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return count(value)
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e15:
            return count(value)
        text = number(value, 4)
        return text.rstrip("0") if "." in text and "×" not in text else text
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items())
    return str(value)
