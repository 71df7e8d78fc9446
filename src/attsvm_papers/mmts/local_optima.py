r"""All selections of small instances: which are locally optimal, and regularisation paths in cones
around them (claims T17b, T18).
"""

import itertools
from typing import Any

import numpy as np

from attsvm import (
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
from attsvm_papers import kit
from attsvm_papers.tfsvm.local_cones import PATH_SIZES, narrow

BOUNDS = {"fro": "W, Frobenius", "nuc": "K and Q", "lp:1.5": "W, l1.5", "lp:3": "W, l3"}
"""Norms of local paths, and what is bounded in them."""


def selections(data, head, norm=None):
    """The solution of every selection in a norm, whether it is locally optimal there, and which of
    them is the optimal one.
    """
    scores = token_scores(data, head)
    choices = list(itertools.product(range(data.T), repeat=data.n))
    programmes = [selection_margins(data, choice) for choice in choices]
    # gaps of paths fall below what the default tolerance leaves of a direction
    found = max_margin(programmes, norm, tol=1e-11)
    local = [s.status == "optimal" and locally_optimal(s, scores).all() for s in found]
    return list(found), np.array(local), choices.index(tuple(optimal_tokens(data, head).tolist()))


@kit.run(
    seeds=kit.seeds(100, by=100, name="draws"),
    d=(3, 8, 64, 256),
    quick={"draws": 20, "d": (3, 8, 64)},
)
def enumeration(seeds, d):
    """All nine selections of instances with n = 2 and T = 3: how many are locally optimal."""
    rows = []
    for seed in seeds:
        _, local, _ = selections(*unit_sphere(2, 3, d, seed))
        rows.append({"count_seed": seed, "count": local.sum()})
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
    norm, rows = parse_norm(bound), []
    form: Any = "KQ" if norm == Nuclear() else "W"
    for seed in seeds:
        data, head = unit_sphere(2, 3, 3, seed)
        found, local, best = selections(data, head, norm)
        for k in np.flatnonzero(local & (np.arange(len(found)) != best)).tolist():
            cone = narrow(found[k])
            radii = [size * found[k].norm for size in PATH_SIZES]
            path = regularization_path(data, head, norm, radii, form, starts=1, cone=cone)
            rows.append(
                {
                    "seed": seed,
                    "degrees": cone.degrees,
                    "unique": found[k].unique is not False,
                    "local_gap": path.direction_gap(found[k]),
                    "local_other": path.direction_gap(found[best]),
                }
            )
    return kit.stacked(rows)
