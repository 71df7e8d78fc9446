"""How norms are written, on the command line and wherever a norm is taken."""

from __future__ import annotations

from attsvm.errors import InputError
from attsvm.geometry.frobenius import Frobenius
from attsvm.geometry.norm import Norm
from attsvm.nearest import did_you_mean
from attsvm.printable import kind

_WORDS = {"frobenius": "fro", "nuclear": "nuc", "spectral": "spec"}


def norm_names() -> dict[str, str]:
    """How each norm is written on the command line, with a line about it; ``P`` stands for a
    number.
    """
    names = {name: kind.spellings[name] for name, kind in Norm.known.items()}
    return dict(sorted(names.items(), key=lambda item: (":" in item[0], item[0] != "fro")))


def parse_norm(text: str) -> Norm:
    """The norm that ``text`` names: ``fro``, ``nuc``, ``spec``, ``l1``, ``linf``, ``lp:1.75``,
    ``schatten:3``, the name of any other :class:`Norm`, or ``dual:NAME`` for the dual of one.

    Raises:
        InputError: the name is unknown, or its exponent is not a number that is at least 1.
    """
    given = text.strip().lower()
    given = _WORDS.get(given, given)
    if given in Norm.known:
        return Norm.known[given].spelled(given, None)
    family, _, exponent = given.partition(":")
    if family == "dual" and exponent:
        return parse_norm(exponent).dual
    if f"{family}:P" not in Norm.known:
        meant = did_you_mean(family, [*_WORDS, *(name.partition(":")[0] for name in norm_names())])
        raise InputError(f"unknown norm {text!r}; known norms: {', '.join(norm_names())}{meant}")
    try:
        p = float(exponent)
    except ValueError:
        raise InputError(
            f"norm {text!r} needs an exponent after {family}:, such as {family}:1.75"
        ) from None
    return Norm.known[f"{family}:P"].spelled(family, p)


def as_norm(norm: Norm | str | None) -> Norm:
    """A norm as it is, the norm of a name, or the Frobenius norm for None.

    Raises:
        InputError: neither a norm nor the name of one.
    """
    if norm is None:
        return Frobenius()
    if isinstance(norm, str):
        return parse_norm(norm)
    if not isinstance(norm, Norm):
        raise InputError(
            f"norm is {kind(norm)}; give an attsvm.geometry.Norm such as Frobenius(), or its name"
        )
    return norm
