"""Who takes part in the solver benchmark, in which norms, and what must be installed for it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from attsvm.bench import conic, quadratic
from attsvm.bench.quadratic import Answer
from attsvm.errors import InputError
from attsvm.geometry import Norm
from attsvm.margins import Margins

Solve = Callable[[Margins, Norm, float], Answer]
Batch = Callable[[Sequence[Margins], Norm, float], list[Answer]]

OURS = "attsvm"
_COMMON = ("fro", "l1", "linf", "nuc", "spec", "lp", "schatten")


def kind(norm: Norm) -> str:
    """``fro``, ``l1``, ``linf``, ``nuc``, ``spec``, or the family ``lp`` or ``schatten`` of
    exponents strictly between 1 and infinity.
    """
    return {"lp:1": "l1", "lp:inf": "linf"}.get(norm.name, norm.name.partition(":")[0])


@dataclass(frozen=True)
class Peer:
    """A solver under a name.

    Attributes:
        solve: ``(margins, norm, accuracy)`` to weights and multipliers; ``None`` for the
            multipliers of a solver that reports none.
        norms: kinds of norms that it takes, see :func:`kind`; ``None`` for every norm.
        packages: modules that it imports.
        tolerance: False for a solver without tolerances, which is asked once instead of once per
            accuracy.
        cones: whether it takes other norms, as the cones that they state.
        batch: how it solves many programmes at once, where it is the quickest of its norm's
            peers and so takes part in the benchmark of many small ones.
    """

    solve: Solve
    norms: tuple[str, ...] | None
    packages: tuple[str, ...] = ()
    tolerance: bool = True
    cones: bool = False
    batch: Batch | None = None

    def takes(self, norm: Norm) -> bool:
        """Whether the norm is one of its own."""
        if self.norms is None or kind(norm) in self.norms:
            return True
        return self.cones and kind(norm) not in _COMMON and norm.cones((1, 1)) is not None

    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [name for name in self.packages if importlib.util.find_spec(name) is None]


def _ours(margins: Margins, norm: Norm, accuracy: float) -> Answer:
    from attsvm.solvers import max_margin

    solution = max_margin(margins, norm, tol=accuracy)
    return solution.W, solution.dual


def _our_batch(many: Sequence[Margins], norm: Norm, accuracy: float) -> list[Answer]:
    from attsvm.solvers import max_margin

    found = max_margin(many, norm, tol=accuracy)
    return list(zip(found.W, np.split(found.dual, found.rows[1:-1]), strict=True))


def _one_by_one(
    many: Sequence[Margins], norm: Norm, accuracy: float, *, solve: Solve
) -> list[Answer]:
    return [solve(margins, norm, accuracy) for margins in many]


_CVXPY = {
    "OSQP": ("cvxpy", "osqp"),
    "CLARABEL": ("cvxpy", "clarabel"),
    "SCS": ("cvxpy", "scs"),
    "HIGHS": ("cvxpy", "highspy"),
}


def _cvxpy(solver: str, *norms: str, power_cones: bool = False, cones: bool = False) -> Peer:
    solve = partial(conic.through_cvxpy, solver=solver, power_cones=power_cones)
    looped = partial(_one_by_one, solve=solve) if power_cones else None
    return Peer(solve, norms, _CVXPY[solver], cones=cones, batch=looped)


def _reduced(solver: str) -> Peer:
    solve = partial(conic.reduced_through_cvxpy, solver=solver)
    return Peer(solve, ("nuc", "spec"), _CVXPY[solver], batch=partial(_one_by_one, solve=solve))


PEERS: dict[str, Peer] = {
    OURS: Peer(_ours, None, batch=_our_batch),
    "daqp": Peer(
        quadratic.daqp, ("fro",), ("daqp",), batch=partial(_one_by_one, solve=quadratic.daqp)
    ),
    "piqp": Peer(
        quadratic.piqp, ("fro",), ("piqp",), batch=partial(_one_by_one, solve=quadratic.piqp)
    ),
    "quadprog": Peer(quadratic.quadprog, ("fro",), ("quadprog",), tolerance=False),
    "nnls": Peer(quadratic.nnls, ("fro",), tolerance=False),
    "clarabel": Peer(quadratic.clarabel, ("fro",), ("clarabel",)),
    "linearsvc": Peer(quadratic.linear_svc, ("fro",)),
    "svc": Peer(quadratic.svc, ("fro",)),
    "highs": Peer(conic.highs, ("l1", "linf"), batch=partial(_one_by_one, solve=conic.highs)),
    "cvxpy-osqp": _cvxpy("OSQP", "fro"),
    "cvxpy-highs": _cvxpy("HIGHS", "l1", "linf"),
    "cvxpy-clarabel": _cvxpy("CLARABEL", "fro", "lp", "l1", "linf", "nuc", "spec", cones=True),
    "cvxpy-clarabel-power": _cvxpy("CLARABEL", "lp", power_cones=True),
    "cvxpy-clarabel-qr": _reduced("CLARABEL"),
    "cvxpy-scs": _cvxpy("SCS", "nuc", "spec"),
    "cvxpy-scs-qr": _reduced("SCS"),
}
"""Every contestant by name, ours first. A new peer is a new line here."""


def choose(names: str) -> list[str]:
    """Ours and the peers that ``names`` lists: ``all``, ``none``, or names separated by commas.

    Raises:
        InputError: a name is not in the registry.
    """
    if names in ("all", "none"):
        return list(PEERS) if names == "all" else [OURS]
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in PEERS:
            raise InputError(
                f"unknown peer {name!r}; known peers:"
                f" {', '.join(name for name in PEERS if name != OURS)}"
            )
    return [name for name in PEERS if name == OURS or name in wanted]
