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

    Example:
        >>> from attsvm.geometry import norm_names
        >>> list(norm_names())[:7]
        ['fro', 'l1', 'linf', 'rows', 'maxrow', 'nuc', 'spec']
        >>> norm_names()["nuc"]
        'nuclear norm: what gradient descent on the factors K, Q minimises'
    """
    names = {name: kind.spellings[name] for name, kind in Norm.known.items()}
    return dict(sorted(names.items(), key=lambda item: (":" in item[0], item[0] != "fro")))


def parse_norm(text: str) -> Norm:
    """The norm that ``text`` names: ``fro``, ``nuc``, ``spec``, ``l1``, ``linf``, ``lp:1.75``,
    ``schatten:3``, the name of any other :class:`Norm`, or ``dual:NAME`` for the dual of one.

    Raises:
        InputError: the name is unknown, or its exponent is not a number that is at least 1.

    Example:
        >>> import attsvm
        >>> attsvm.parse_norm("lp:1.75"), attsvm.parse_norm("dual:nuc")
        (Lp(1.75), Spectral())
        >>> attsvm.parse_norm("nuclaer")
        Traceback (most recent call last):
            ...
        attsvm.errors.InputError: unknown norm 'nuclaer'; known norms: ...; did you mean nuclear?
    """
    given = text.strip().lower()
    given = _WORDS.get(given, given)
    if given in Norm.known:
        return Norm.known[given].spelled(given, None)
    family, _, exponent = given.partition(":")
    if family == "dual" and exponent:
        return parse_norm(exponent).dual
    if f"{family}:P" not in Norm.known:
        raise InputError(_unknown(text, given))
    try:
        p = float(exponent)
    except ValueError:
        raise InputError(
            f"norm {text!r} needs an exponent after {family}:, such as {family}:1.75"
        ) from None
    return Norm.known[f"{family}:P"].spelled(family, p)


def _unknown(text: str, given: str) -> str:
    """The sentence about a name that leads nowhere, with every name that leads somewhere."""
    known, number = [*norm_names(), "dual:NAME"], given.partition(":")[2]
    asked = [
        name.partition(":")[0] + f":{number}" if number and ":" in name else name for name in known
    ]
    longer = ", ".join(f"{word} for {name}" for word, name in _WORDS.items())
    return (
        f"unknown norm {text!r}; known norms: {', '.join(known)} ({longer})"
        f"{did_you_mean(given, [*asked, *_WORDS])}"
    )


def as_norm(norm: Norm | str | None) -> Norm:
    """A norm as it is, the norm of a name, or the Frobenius norm for None.

    Raises:
        InputError: neither a norm nor the name of one.

    Example:
        >>> from attsvm.geometry import Nuclear, as_norm
        >>> as_norm(None), as_norm("spec"), as_norm(Nuclear())
        (Frobenius(), Spectral(), Nuclear())
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
