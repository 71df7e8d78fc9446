"""How norms are written, on the command line and wherever a norm is taken."""

from __future__ import annotations

import re

from attsvm.base.errors import InputError
from attsvm.base.nearest import did_you_mean
from attsvm.base.printable import kind
from attsvm.norms.frobenius import Frobenius
from attsvm.norms.lifts import Lifted
from attsvm.norms.norm import Norm

_WORDS = {"frobenius": "fro", "nuclear": "nuc", "spectral": "spec"}


def norm_names() -> dict[str, str]:
    """How each norm is written on the command line, with a line about it; ``P`` stands for a
    number.

    Example:
        >>> from attsvm.norms import norm_names
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
    Names of one norm give one object: ``lp:2`` is ``Frobenius()``.

    Raises:
        InputError: the name is unknown, or its exponent is not a number that is at least 1.

    Example:
        >>> import attsvm
        >>> attsvm.parse_norm("lp:1.75"), attsvm.parse_norm("dual:nuc"), attsvm.parse_norm("lp:2")
        (Lp(1.75), Spectral(), Frobenius())
        >>> attsvm.parse_norm("nuclaer")
        Traceback (most recent call last):
            ...
        attsvm.base.errors.InputError: unknown norm 'nuclaer'; ...; did you mean nuclear?
    """
    return _canonical(_norm_spelled(text))


def _norm_spelled(text: str) -> Norm:
    """The norm that ``text`` spells, of the class that has this spelling."""
    word = text.strip().lower()
    word = _WORDS.get(word, word)
    if word in Norm.known:
        return Norm.known[word].spelled(word, None)
    family, _, exponent = word.partition(":")
    if family == "dual" and exponent:
        return _norm_spelled(exponent).dual
    if f"{family}:P" not in Norm.known:
        raise InputError(_describe_unknown(text, word))
    try:
        p = float(exponent)
    except ValueError:
        raise InputError(
            f"norm {text!r} needs an exponent after {family}:, such as {family}:1.75"
        ) from None
    return Norm.known[f"{family}:P"].spelled(family, p)


def _describe_unknown(text: str, word: str) -> str:
    """The sentence about an unknown name, with all known ones and the nearest of them."""
    known, number = [*norm_names(), "dual:NAME"], word.partition(":")[2]
    # a family is compared with the exponent that was written
    comparable = [
        name.partition(":")[0] + f":{number}" if number and ":" in name else name for name in known
    ]
    longer = ", ".join(f"{synonym} for {name}" for synonym, name in _WORDS.items())
    if glued := re.fullmatch(r"(?:l|p|lp)(\d+(?:\.\d+)?)", word):  # l3, as papers write it
        meant = f"; did you mean lp:{glued[1]}?"
    else:
        meant = did_you_mean(word, [*comparable, *_WORDS])
    return f"unknown norm {text!r}; known norms: {', '.join(known)} ({longer}){meant}"


def as_norm(norm: Norm | str | None) -> Norm:
    """The norm of a name, the Frobenius norm for None, and of equal norms always the same object,
    the one that their name gives: ``Frobenius()`` for ``Lp(2)`` and ``Schatten(2)``.

    Raises:
        InputError: neither a norm nor the name of one.

    Example:
        >>> from attsvm.norms import Nuclear, as_norm
        >>> from attsvm.norms import Schatten
        >>> as_norm(None), as_norm("spec"), as_norm(Nuclear()), as_norm(Schatten(2))
        (Frobenius(), Spectral(), Nuclear(), Frobenius())
    """
    if norm is None:
        return Frobenius()
    if isinstance(norm, str):
        return parse_norm(norm)
    if not isinstance(norm, Norm):
        raise InputError(
            f"norm is {kind(norm)}; give an attsvm.norms.Norm such as Frobenius(), or its name"
        )
    return _canonical(norm)


def _canonical(norm: Norm) -> Norm:
    """The object that stands for all norms that equal this one.

    Families have members with a class of their own, and a member that was made as the dual of
    another one remembers an exponent that differs from the conjugate of its own by rounding.
    """
    families = Norm.known["lp:P"], Norm.known["schatten:P"]
    if not isinstance(norm, Lifted) or type(norm) not in families:
        return norm
    single = Norm.known.get(norm.name)
    return type(norm)(norm.p) if single is None else single.spelled(norm.name, None)
