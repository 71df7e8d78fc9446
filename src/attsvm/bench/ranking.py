"""From measured cells to the table: one row per contestant, one column per accuracy."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from attsvm.bench.instances import SIZES
from attsvm.bench.peers import OURS
from attsvm.bench.record import digits, duration, markdown
from attsvm.bench.solve import FINISHED, MANY, MISSING, NOT_TRIED, REFUSED, Plan
from attsvm.bench.worker import FAILED, OVER


def summary(plan: Plan, cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per norm, size, solver and accuracy: success rate, median CPU seconds of the
    successes, what stopped the others.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["norm"], cell["size"], cell["solver"]), []).append(cell)
    rows = []
    for (norm, size, solver), group in groups.items():
        for accuracy in sorted(plan.accuracies, reverse=True):
            shares, times = _successes(group, accuracy)
            finished = [max(cell["gaps"]) for cell in group if cell["outcome"] == FINISHED]
            rows.append(
                {
                    "norm": norm,
                    "size": size,
                    "solver": solver,
                    "accuracy": accuracy,
                    "success_rate": statistics.fmean(shares),
                    "seconds": statistics.median(times) if times else None,
                    "best_gap": min(finished, default=None),
                    "stopped_by": None if times else _stopped_by(group),
                    "multipliers": next(
                        (cell["multipliers"] for cell in group if cell["outcome"] == FINISHED), None
                    ),
                }
            )
    return rows


def _successes(group: list[dict[str, Any]], accuracy: float) -> tuple[list[float], list[float]]:
    """Share of programmes that reached the accuracy and the quickest time of it, instance by
    instance.
    """
    shares, times = [], []
    for seed in sorted({cell["seed"] for cell in group}):
        runs = [cell for cell in group if cell["seed"] == seed and cell["outcome"] == FINISHED]
        shares.append(
            max((float(np.mean(np.array(cell["gaps"]) <= accuracy)) for cell in runs), default=0.0)
        )
        whole = [cell["seconds"] for cell in runs if max(cell["gaps"]) <= accuracy]
        times += [min(whole)] if whole else []
    return shares, times


def _stopped_by(group: list[dict[str, Any]]) -> str:
    """The outcome to name when no run reached the accuracy."""
    outcomes = {cell["outcome"] for cell in group}
    if MISSING in outcomes:
        return MISSING
    for outcome in (OVER, FAILED, REFUSED):
        if outcome in outcomes:
            return outcome
    return OVER if NOT_TRIED in outcomes else "fell short"


def tables(plan: Plan, rows: list[dict[str, Any]], cells: list[dict[str, Any]]) -> str:
    """Markdown: a table per norm and size, then what stopped whom."""
    accuracies = sorted(plan.accuracies, reverse=True)
    parts = []
    for norm, size in dict.fromkeys(
        (row["norm"], row["size"]) for row in sorted(rows, key=lambda row: _order(plan, row))
    ):
        chosen = [row for row in rows if (row["norm"], row["size"]) == (norm, size)]
        ours = {row["accuracy"]: row["seconds"] for row in chosen if row["solver"] == OURS}
        lines = []
        for solver in dict.fromkeys(row["solver"] for row in chosen):
            mine = {row["accuracy"]: row for row in chosen if row["solver"] == solver}
            row = mine[accuracies[0]]
            mark = "" if row["multipliers"] in (None, "its own") else " †"
            best = "" if row["best_gap"] is None else f"{row['best_gap']:.0e}"
            lines.append(
                [
                    solver + mark,
                    *(_cell(mine[accuracy], ours.get(accuracy)) for accuracy in accuracies),
                    best,
                ]
            )
        parts.append(f"**{_title(plan, norm, size)}**\n")
        parts.append(
            markdown(
                ["solver", *(f"gap {accuracy:.0e}" for accuracy in accuracies), "best gap"], lines
            )
            + "\n"
        )
    parts.append(
        "CPU seconds of a whole call (median over the instances that reached the accuracy), in"
        " brackets over ours, then the share of instances whose certified gap reached the accuracy"
        " within the limit. The gap is recomputed from weights, multipliers and data with one"
        f" formula for everybody; limit {plan.seconds:g} CPU s per solve."
    )
    if any(row["multipliers"] == OURS and row["solver"] != OURS for row in rows):
        parts.append("† reports no multipliers: certified against our lower bound.")
    parts += _reasons(cells)
    return "\n".join(parts)


def _cell(row: dict[str, Any], ours: float | None) -> str:
    share = f"{100 * row['success_rate']:.0f}%"
    if row["seconds"] is None:
        return f"{row['stopped_by']}, {share}" if row["stopped_by"] != MISSING else MISSING
    ratio = f" ({digits(row['seconds'] / ours)}x)" if ours and row["solver"] != OURS else ""
    return f"{duration(row['seconds'])}{ratio}, {share}"


def _title(plan: Plan, norm: str, size: str) -> str:
    if size == MANY:
        return f"{norm}, {plan.batch} programmes of size S in one call"
    (n, T, d), count = SIZES[size], plan.instances(size)
    return (
        f"{norm}, {size}: (n, T, d) = ({n}, {T}, {d}), {n * (T - 1)} constraints, {count}"
        f" instance{'s' if count > 1 else ''}"
    )


def _order(plan: Plan, row: dict[str, Any]) -> tuple[int, int]:
    return plan.norms.index(row["norm"]), (
        -1 if row["size"] == MANY else list(SIZES).index(row["size"])
    )


def _reasons(cells: list[dict[str, Any]]) -> list[str]:
    """Each failure in words, once per solver, norm and size."""
    told: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell["outcome"] in (FAILED, REFUSED, MISSING) and cell["reason"]:
            where = told.setdefault((cell["solver"], cell["reason"]), [])
            place = f"{cell['norm']} {cell['size']}"
            where += [place] if place not in where else []
    lines = [
        f"- {solver}: {reason} ({', '.join(where)})" for (solver, reason), where in told.items()
    ]
    return ["", *lines] if lines else []
