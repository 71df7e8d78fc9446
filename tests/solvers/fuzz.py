"""Calls compiled functions with arguments that do not fit.

For example ``python fuzz.py 60 compiled.solve_many``.

Arrays of a proper call are cut, lengthened, turned, strided, retyped and, where they hold
positions, filled with positions elsewhere. Whatever is refused must be refused by an exception. The
name of a function is printed before its calls, so that the last one printed is the one that
crashed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Arguments = list[Any]


def proper(rng: np.random.Generator) -> dict[str, Arguments]:
    """Arguments that fit together, by function."""
    n, d_x, d_z = 3, 4, 2
    offsets = np.array([0, 2, 5, 6])
    m = 6
    D, Z = rng.standard_normal((m, d_x)), rng.standard_normal((n, d_z))
    b, dual = np.ones(m), rng.random(m)
    instances = np.array([0, 1, 3])
    return {
        "proofs.sharp_adjoint": [D, Z, offsets, dual],
        "proofs.sharp_dot": [b, dual],
        "compiled.solve_many": [D, Z, offsets, instances, b],
        "margins": [D, Z, offsets, b, np.zeros(m, dtype=int), np.zeros(n, dtype=int)],
    }


EXOTIC = (
    "margins",
    "compiled.solve_many",
)
"""Functions that get other dtypes, axes and strides too."""


def spoiled(rng: np.random.Generator, value: Any, exotic: bool) -> Any:
    """The argument with one thing wrong."""
    if not isinstance(value, np.ndarray):
        return value + int(rng.choice([-3, 10**6]))
    if value.dtype.kind == "i" and rng.random() < 0.6:
        value = value.copy()
        value.reshape(-1)[int(rng.integers(value.size))] = int(
            rng.choice([-1, -(10**12), 10**9, 10**15, 77])
        )
        return value
    kind = int(rng.integers(8 if exotic else 4))
    if kind == 0:
        return value[: max(0, len(value) - 1)].copy()
    if kind == 1:
        return np.concatenate([value, value])
    if kind == 2:
        return value[:0].copy()
    if kind == 3:
        return np.ascontiguousarray(value[..., : max(0, value.shape[-1] - 1)])
    if kind == 4:
        return value.T.copy() if value.ndim > 1 else value[:, None].copy()
    if kind == 5:
        return np.repeat(value, 2, axis=-1)[..., ::2]
    if kind == 6:
        return np.clip(value, -9, 9).astype(rng.choice(["float32", "complex128", "object"]))
    return value[::-1]


def called(name: str) -> Callable[..., Any]:
    """The function; ``margins`` makes a programme and solves it."""
    if name == "margins":
        from attsvm.margins import Margins
        from attsvm.norms import Frobenius, Lp, Nuclear
        from attsvm.solvers import max_margin, max_margin_batch

        def solve(*arguments: Any) -> None:
            margins = Margins(*arguments)
            for norm in (Frobenius(), Lp(1.5), Nuclear()):
                max_margin(margins, norm, max_seconds=2.0)
            max_margin_batch([margins, margins])

        return solve
    module, function = name.rsplit(".", 1)
    found: Callable[..., Any] = getattr(
        importlib.import_module(f"attsvm.solvers.{module}"), function
    )
    return found


def main(count: int, names: list[str]) -> None:
    rng = np.random.default_rng(0)
    for name in names or list(proper(rng)):
        print(name, flush=True)
        function, met = called(name), {"taken": 0, "refused": 0}
        function(*proper(rng)[name])
        for _ in range(count):
            arguments = proper(rng)[name]
            some = min(len(arguments), int(rng.integers(1, 3)))
            for k in rng.choice(len(arguments), size=some, replace=False).tolist():
                arguments[k] = spoiled(rng, arguments[k], name in EXOTIC)
            try:
                function(*arguments)
                met["taken"] += 1
            except Exception:
                met["refused"] += 1
        print(met, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
