r"""All selections of small instances: which are locally optimal, and regularisation paths in cones
around them (claims T17b, T18).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attsvm import (
    Nuclear,
    parse_norm,
    regularization_path,
)
from attsvm.datasets import unit_sphere
from attsvm_papers import kit
from attsvm_papers.tfsvm.local_cones import PATH_SIZES, narrow_cone, solve_every_selection

BOUNDS = {"fro": "W, Frobenius", "nuc": "K and Q", "lp:1.5": "W, l1.5", "lp:3": "W, l3"}
"""Norms of local paths, and what is bounded in them."""


@kit.run(
    seeds=kit.seeds(100, by=100, name="draws"),
    d=(3, 8, 64, 256),
    quick={"draws": 20, "d": (3, 8, 64)},
)
def enumeration(seeds, d):
    """Numbers of locally optimal selections among all nine of instances with n = 2 and T = 3."""
    rows = []
    for seed in seeds:
        _, is_local, _ = solve_every_selection(*unit_sphere(2, 3, d, seed))
        rows.append({"count_seed": seed, "count": is_local.sum()})
    return kit.stacked(rows)


@kit.run(
    bound=[*BOUNDS],
    seeds=kit.seeds(20, by=100, name="path_seeds"),
    quick={"path_seeds": 6},
)
def local_path(bound, seeds):
    """Regularisation paths in cones around locally optimal directions that are not global, d = 3;
    radii in units of the solution's norm. ``bound`` is the norm that is bounded and in which
    directions are locally optimal; of the nuclear norm, through factors.
    """
    return kit.stacked(paths_around_local_optima(bound, seeds, PATH_SIZES))


def paths_around_local_optima(
    bound: str, seeds: Sequence[int], sizes: Sequence[float]
) -> list[dict[str, Any]]:
    """Measurements of the local path around every locally optimal direction that is not global, at
    radii of these sizes in units of the solution's norm; see :data:`local_path`.
    """
    norm, rows = parse_norm(bound), []
    form: Any = "KQ" if norm == Nuclear() else "W"
    for seed in seeds:
        data, head = unit_sphere(2, 3, 3, seed)
        solutions, is_local, best = solve_every_selection(data, head, norm)
        for k in np.flatnonzero(is_local & (np.arange(len(solutions)) != best)).tolist():
            cone = narrow_cone(solutions[k])
            radii = [size * solutions[k].norm for size in sizes]
            path = regularization_path(data, head, norm, radii, form, starts=1, cone=cone)
            rows.append(
                {
                    "seed": seed,
                    "degrees": cone.degrees,
                    "unique": solutions[k].unique is not False,
                    "local_gap": path.direction_gap(solutions[k]),
                    "local_other": path.direction_gap(solutions[best]),
                }
            )
    return rows
