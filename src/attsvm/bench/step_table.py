"""From measured steps to the table: one row per optimiser."""

from __future__ import annotations

from typing import Any

from attsvm.bench.record import digits, duration, markdown

_HEADERS = [
    "optimiser",
    "step",
    "quartiles",
    "beside",
    "GB/s",
    "of copy",
    "state B/param",
    "extra B/param",
    "peak GiB",
]


def tables(cells: list[dict[str, Any]], *, by_cpu: bool) -> str:
    """Markdown: a table per parameter list, the matrix optimisers apart, then who could not take
    part.
    """
    parts = []
    for name in dict.fromkeys(cell["parameters"] for cell in cells):
        for count in dict.fromkeys(cell["count"] for cell in cells if cell["parameters"] == name):
            chosen = [
                cell for cell in cells if (cell["parameters"], cell["count"]) == (name, count)
            ]
            # One that others are compared with runs in several lots; its first row is enough.
            rows: dict[str, dict[str, Any]] = {}
            for cell in chosen:
                if cell["outcome"] == "finished":
                    rows.setdefault(cell["optimiser"], cell)
            if not rows:
                continue
            copy = max(cell["copy"] for cell in rows.values())
            which = (
                ""
                if count == max(cell["count"] for cell in cells if cell["parameters"] == name)
                else " (hidden matrices only)"
            )
            parts.append(
                f"**{name}: {count / 1e6:.1f} million float32 parameters{which}; copying moves"
                f" {copy / 1e9:.3g} GB/s**\n"
            )
            parts.append(markdown(_HEADERS, [_row(cell) for cell in rows.values()]) + "\n")
    parts.append(
        "Wall time of a step, median and quartiles over the rounds. Beside: the median over the"
        f" rounds of the time ({'CPU' if by_cpu else 'wall'}) over that of the optimiser named."
        " GB/s: the bytes that the algorithm has to move, over the time. Extra: memory a step"
        " needs beyond parameters, gradients and state."
    )
    absent: dict[str, list[str]] = {}
    for cell in cells:
        if cell["outcome"] != "finished" and cell["optimiser"] not in absent.setdefault(
            cell["reason"], []
        ):
            absent[cell["reason"]].append(cell["optimiser"])
    parts += (
        [
            "",
            *(
                f"- not available: {', '.join(names)} ({reason})"
                for reason, names in absent.items()
            ),
        ]
        if absent
        else []
    )
    return "\n".join(parts)


def _row(cell: dict[str, Any]) -> list[str]:
    low, high = cell["wall_quartiles"]
    itself = cell["reference"] == cell["optimiser"]
    beside = (
        "" if itself or cell["ratio"] is None else f"{digits(cell['ratio'])}x {cell['reference']}"
    )
    extra = (
        "" if cell["temporary_bytes"] is None else f"{cell['temporary_bytes'] / cell['count']:.1f}"
    )
    return [
        cell["optimiser"],
        duration(cell["wall"]),
        f"{duration(low)} to {duration(high)}",
        beside,
        digits(cell["bytes_per_second"] / 1e9),
        f"{100 * cell['bytes_per_second'] / cell['copy']:.0f}%",
        f"{cell['state_bytes'] / cell['count']:.1f}",
        extra,
        "" if cell["peak_bytes"] is None else f"{cell['peak_bytes'] / 2**30:.2f}",
    ]
