r"""All selections of small instances: which are locally optimal, and regularisation paths in cones
around them (claims T17, T18).
"""

import itertools
from typing import Any, Literal

import numpy as np

from attsvm import (
    Norm,
    Nuclear,
    locally_optimal,
    max_margin,
    optimal_tokens,
    parse_norm,
    regularization_path,
    selection_margins,
    token_scores,
)
from attsvm.datasets import unit_sphere
from attsvm_papers.kit import stacked
from attsvm_papers.tfsvm.local_cones import narrow

Choices = list[tuple[tuple[int, ...], Any, bool]]
BOUNDS = ("fro", "nuc", "lp:1.5", "lp:3")
"""Norms of local paths; the column ``bound`` holds a position in this list."""


def enumeration(seeds: list[int], d: int) -> dict[str, Any]:
    """All nine selections of instances with n = 2 and T = 3: how many are locally optimal, and
    whether an all-support rival is.
    """
    rows = []
    for seed in seeds:
        data, head = unit_sphere(2, 3, d, seed)
        optimal, found = _selections(data, head)
        local = [choice for choice, solution, ok in found if ok]
        spurious = [
            ok
            for choice, solution, ok in found
            if choice != optimal and len(solution.support) == solution.margins.m
        ]
        rows.append(
            {
                "count_seed": seed,
                "count": len(local),
                "optimal_local": optimal in local,
                "all_support_rivals": len(spurious),
                "spurious": sum(spurious),
            }
        )
    return stacked(rows)


def _selections(data: Any, head: Any, norm: Norm | None = None) -> tuple[tuple[int, ...], Choices]:
    """The optimal selection, and every selection with its solution in a norm and whether it is
    locally optimal there.
    """
    scores = token_scores(data, head)
    choices = list(itertools.product(range(data.T), repeat=data.n))
    programmes = [selection_margins(data, choice) for choice in choices]
    # gaps of paths fall below what the default tolerance leaves of a direction
    solutions = max_margin(programmes, norm, tol=1e-11)
    found = [
        (
            choice,
            solution,
            solution.status == "optimal" and bool(locally_optimal(solution, scores).all()),
        )
        for choice, solution in zip(choices, solutions, strict=True)
    ]
    return tuple(optimal_tokens(data, head).tolist()), found


def local_path(
    seeds: list[int], d: int, sizes: tuple[float, ...], bound: str = "fro"
) -> dict[str, Any]:
    """Regularisation paths in cones around locally optimal directions that are not global; radii in
    units of the solution's norm.

    ``bound`` names the norm that is bounded and in which directions are locally optimal; of the
    nuclear norm, through factors.
    """
    norm, rows = parse_norm(bound), []
    form: Literal["W", "KQ"] = "KQ" if norm == Nuclear() else "W"
    for seed in seeds:
        data, head = unit_sphere(2, 3, d, seed)
        optimal, found = _selections(data, head, norm)
        for choice, solution, ok in found:
            if ok and choice != optimal:
                cone = narrow(solution)
                radii = [size * solution.norm for size in sizes]
                path = regularization_path(data, head, norm, radii, form, starts=1, cone=cone)
                other = next(best for place, best, _ in found if place == optimal)
                rows.append(
                    (
                        seed,
                        cone.degrees,
                        solution.unique is not False,
                        *path.direction_gap(solution),
                        *path.direction_gap(other),
                    )
                )
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 3 + 2 * len(sizes))
    return {
        "seed": table[:, 0],
        "degrees": table[:, 1],
        "unique": table[:, 2],
        "local_gap": table[:, 3 : 3 + len(sizes)],
        "local_other": table[:, 3 + len(sizes) :],
    }
