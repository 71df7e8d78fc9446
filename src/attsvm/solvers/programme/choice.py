"""Which solver takes which programme, and why: the table behind ``max_margin(..., solver=...)``.

By default the family of the norm decides: a cascade of methods that hand over to each other as they
see fit. A method on its own is there to compare, to teach, and to overrule.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from attsvm.errors import InputError
from attsvm.geometry import Frobenius, Lp, Norm, Schatten, as_norm
from attsvm.margins import Margins

SMALL = 1 << 17  # entries of the written-out programme that non-negative least squares takes
# rows up to which compiled code is quicker than the cascade on the random instances of the papers
FEW = 256
_LEAST = 1.2  # exponent above one whose duality map interior points follow


@dataclass(frozen=True)
class Choice:
    """How a programme is solved.

    Attributes:
        name: the solver, as ``max_margin(..., solver=name)`` takes it.
        why: one sentence.
        alternatives: names of the other solvers that take this programme.
    """

    name: str
    why: str
    alternatives: tuple[str, ...]


@dataclass(frozen=True)
class _Method:
    line: str
    takes: Callable[[Margins, Norm, float | None], bool]
    limits: str = ""


def _frobenius(margins: Margins, norm: Norm, slack: float | None) -> bool:
    return norm == Frobenius()


def _entrywise(margins: Margins, norm: Norm, slack: float | None) -> bool:
    return isinstance(norm, Lp) and norm != Frobenius()


def _spectral(margins: Margins, norm: Norm, slack: float | None) -> bool:
    return isinstance(norm, Schatten) and norm != Frobenius()


def _any(margins: Margins, norm: Norm, slack: float | None) -> bool:
    return norm != Frobenius() and not isinstance(norm, Lp | Schatten)


def _determined(margins: Margins, norm: Norm, slack: float | None) -> bool:
    """Equalities alone that zero weights do not meet, in the Frobenius norm."""
    return (
        norm == Frobenius()
        and slack is None
        and bool(margins.equalities.all() and (margins.rhs != 0).any())
    )


def _written(margins: Margins, norm: Norm, slack: float | None) -> bool:
    rows = margins.m + int(margins.equalities.sum())
    return (
        _frobenius(margins, norm, slack)
        and slack is None
        and rows * margins.shape[0] * margins.shape[1] <= SMALL
    )


def _few(margins: Margins, norm: Norm, slack: float | None) -> bool:
    return (
        norm == Frobenius() and slack is None and margins.m <= FEW and not margins.equalities.any()
    )


METHODS: dict[str, _Method] = {
    "least-norm": _Method(
        "Frobenius, equalities alone: one linear system",
        _determined,
        " of equalities alone, with right-hand sides other than zero",
    ),
    "small": _Method(
        f"Frobenius, hard margin, at most {FEW} inequalities: coordinate descent and pivoting in"
        " compiled code, then active-set",
        _few,
        f" of hard margins with at most {FEW} inequalities",
    ),
    "active-set": _Method(
        "Frobenius: block ascent, pivoting, then least squares (small) or proximal multipliers"
        " (large)",
        _frobenius,
    ),
    "ascent": _Method("Frobenius: block coordinate ascent on the dual alone", _frobenius),
    "pivoting": _Method("Frobenius: block ascent and principal pivoting alone", _frobenius),
    "nnls": _Method(
        "Frobenius, hard margin, small: one non-negative least-squares problem",
        _written,
        f" of hard margins with at most {SMALL} entries",
    ),
    "proximal": _Method("Frobenius: proximal multipliers with semismooth Newton steps", _frobenius),
    "entrywise": _Method(
        "entrywise norms: interior points (small), else splitting, then Newton steps on the dual",
        _entrywise,
    ),
    "entrywise-splitting": _Method("entrywise norms: splitting alone", _entrywise),
    "entrywise-newton": _Method("entrywise norms: Newton steps on the dual alone", _entrywise),
    "schatten": _Method(
        "norms of singular values: interior points (small nuclear and spectral), else alternating"
        " directions, then an augmented Lagrangian",
        _spectral,
    ),
    "schatten-splitting": _Method(
        "norms of singular values: alternating directions alone", _spectral
    ),
    "schatten-newton": _Method(
        "norms of singular values: the augmented Lagrangian alone", _spectral
    ),
    "general": _Method(
        "every other norm, by its proximal map: splitting, then proximal multipliers with Newton"
        " steps on the dual",
        _any,
    ),
    "general-splitting": _Method("every other norm: splitting alone", _any),
    "general-newton": _Method("every other norm: Newton steps on the dual alone", _any),
}
"""Every solver by name, with a line about it. The first that takes a programme is its default."""


def solver_names() -> dict[str, str]:
    """Every solver that ``solver=`` takes, with a line about it."""
    return {name: method.line for name, method in METHODS.items()}


def choose(margins: Margins, norm: Norm | str | None = None, slack: float | None = None) -> Choice:
    """The solver that :func:`~attsvm.solvers.max_margin` uses for this programme, why, and which
    others would take it.

    Args:
        margins: one programme.
        norm: the norm to minimise, or its name; the Frobenius norm when left out.
        slack: the penalty of the soft margin, ``None`` for the hard margin.
    """
    norm = as_norm(norm)
    taken = [name for name, method in METHODS.items() if method.takes(margins, norm, slack)]
    return Choice(taken[0], _why(taken[0], margins, norm), tuple(taken[1:]))


@functools.cache
def module_of(kind: type[Norm]) -> str:
    """The module whose ``solve`` is the default for norms of this class."""
    if issubclass(kind, Lp):
        return "attsvm.solvers.norms.entrywise"
    if issubclass(kind, Schatten):
        return "attsvm.solvers.norms.schatten"
    return "attsvm.solvers.norms.frobenius" if kind is Frobenius else "attsvm.solvers.norms.general"


def pointed(norm: Norm) -> bool:
    """Whether small programmes of the norm are solved by interior points."""
    if isinstance(norm, Lp):
        return norm.p in (1.0, math.inf) or _LEAST <= norm.p < 2.0
    return isinstance(norm, Schatten) and norm.p in (1.0, math.inf)


def method_of(solver: str, margins: Margins, norm: Norm, slack: float | None) -> str | None:
    """The method that a request carries for this solver: ``None`` for the default of the family.

    Raises:
        InputError: an unknown name, or a solver that does not take this programme.
    """
    if solver not in METHODS:
        raise InputError(f"unknown solver {solver!r}; solvers are: {', '.join(METHODS)}")
    choice = choose(margins, norm, slack)
    if solver != choice.name and solver not in choice.alternatives:
        limits = (
            f" (it is for programmes{METHODS[solver].limits})" if METHODS[solver].limits else ""
        )
        names = ", ".join((choice.name, *choice.alternatives))
        raise InputError(
            f"solver {solver!r} does not take this programme in the norm {norm!r}{limits}; choose"
            f" from: {names}"
        )
    return None if solver == choice.name else solver


def _why(name: str, margins: Margins, norm: Norm) -> str:
    size = f"{margins.m} constraints on {margins.shape[0]} x {margins.shape[1]} weights"
    if name == "least-norm":
        return f"{size} are equalities alone, so the weights of least norm solve one linear system"
    if name == "small":
        return (
            f"in the Frobenius norm the active constraints determine the weights exactly; {size}"
            " are few enough for compiled code, and active-set takes over where that does not"
            " settle"
        )
    if name == "active-set":
        small = margins.m * margins.shape[0] * margins.shape[1] <= SMALL
        rest = (
            "few enough for non-negative least squares"
            if small
            else "too many for least squares, so proximal multipliers help"
        )
        return (
            f"in the Frobenius norm the active constraints determine the weights exactly; {size}"
            f" are {rest} where pivoting does not settle"
        )
    if name == "entrywise":
        assert isinstance(norm, Lp)
        if norm.p == 1.0 or math.isinf(norm.p):
            return (
                f"the norm {norm.name} makes {size} a linear programme, which proximal multipliers"
                " with Newton steps finish exactly"
            )
        return (
            f"the norm {norm.name} is smooth: on {size} splitting comes near quickly and Newton"
            " steps on the dual finish"
        )
    if name == "general":
        return (
            f"the norm {norm.name} is known by its proximal map: on {size} splitting comes near,"
            " and Newton steps on the dual finish"
        )
    return (
        f"the norm {norm.name} acts on singular values: on {size} each proximal map is one small"
        " decomposition, and Newton steps finish"
    )
