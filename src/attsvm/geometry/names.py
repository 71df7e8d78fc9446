"""How norms are written on the command line."""

from __future__ import annotations

from collections.abc import Callable

from attsvm.errors import InputError
from attsvm.geometry.entrywise import Lp
from attsvm.geometry.frobenius import Frobenius
from attsvm.geometry.norm import Norm
from attsvm.geometry.schatten import Nuclear, Schatten, Spectral

_NORMS: dict[str, tuple[Callable[[], Norm], str]] = {
    "fro": (Frobenius, "Frobenius norm: what gradient descent on W minimises"),
    "nuc": (Nuclear, "nuclear norm: what gradient descent on the factors K, Q minimises"),
    "spec": (Spectral, "spectral norm: what spectral descent (Muon) minimises"),
    "l1": (lambda: Lp(1), "sum of absolute entries: what coordinate descent minimises"),
    "linf": (lambda: Lp(float("inf")), "largest absolute entry: what sign descent minimises"),
}
_FAMILIES: dict[str, tuple[Callable[[float], Norm], str]] = {
    "lp": (Lp, "entrywise p-norm, 1 <= P <= inf: what mirror descent with that p minimises"),
    "schatten": (Schatten, "p-norm of the singular values, 1 <= P <= inf"),
}


def norm_names() -> dict[str, str]:
    """How each norm is written on the command line, with a line about it; ``P`` stands for a
    number.
    """
    single = {name: line for name, (_, line) in _NORMS.items()}
    return single | {f"{family}:P": line for family, (_, line) in _FAMILIES.items()}


def parse_norm(text: str) -> Norm:
    """The norm that ``text`` names: ``fro``, ``nuc``, ``spec``, ``l1``, ``linf``, ``lp:1.75``,
    ``schatten:3``.

    Raises:
        InputError: the name is unknown, or its exponent is not a number that is at least 1.
    """
    name, colon, exponent = text.strip().lower().partition(":")
    if name in _NORMS and not colon:
        return _NORMS[name][0]()
    if name not in _FAMILIES:
        raise InputError(f"unknown norm {text!r}; known norms: {', '.join(norm_names())}")
    try:
        p = float(exponent)
    except ValueError:
        raise InputError(
            f"norm {text!r} needs an exponent after {name}:, such as {name}:1.75"
        ) from None
    return _FAMILIES[name][0](p)
