"""The page about the margin that an optimiser maximises: curves, ranking of norms, verdict."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from attsvm.base.files import save_arrays, write_file, write_json
from attsvm.norms import as_norm
from attsvm.report.page import document
from attsvm.report.style import Picture, canvas, inline, render
from attsvm.theory.optimiser_bias import ImplicitBias, format_share

FILES = ("arrays.safetensors", "report.html")
_TEMPLATE = Path(__file__).resolve().parent / "templates" / "bias.html.j2"


def draw_bias_curves(bias: ImplicitBias) -> Picture:
    """The picture of the shares by step, a line per norm."""
    with canvas(3.0) as (figure, axes):
        bias.plot(axes[0])
        first = bias.rows()[0]
        return render(
            figure,
            "shares",
            f"Shares of the largest margin, {bias.optimizer}",
            "Mean share by step, a line per norm with its 95 % interval; 1 is the largest margin"
            " that weights of that norm can have.",
            f"Lines rise with the steps; that of the {as_norm(first['norm']).title} ends highest,"
            f" at {format_share(first['share'])}.",
        )


def render_bias(bias: ImplicitBias, command: str) -> str:
    """One self-contained HTML page.

    Args:
        bias: what was measured.
        command: what made it.
    """
    from markupsafe import Markup

    picture = draw_bias_curves(bias)
    return document(
        _TEMPLATE,
        title=f"Which margin does {bias.optimizer} maximise?",
        bias=bias,
        picture=(picture, Markup(inline(picture))),
        rows=[_row(row) for row in bias.rows()],
        counted=int(bias.selects.sum()),
        runs=len(bias.selects),
        command=command,
    )


def write_bias(folder: Path, bias: ImplicitBias, command: str) -> dict[str, Any]:
    """Write the page and the numbers into a folder, and return the content of ``run.json``."""
    run = {
        "optimizer": bias.optimizer,
        "steps": int(bias.steps[-1]),
        "runs": len(bias.selects),
        "selecting": int(bias.selects.sum()),
        "verdict": bias.verdict,
        "leader": bias.leader,
        "norms": [
            {name: _json_number(value) for name, value in row.items()} for row in bias.rows()
        ],
        "command": command,
    }
    save_arrays(bias.arrays(), folder / "arrays.safetensors")
    write_file(folder / "report.html", render_bias(bias, command))
    write_json(folder / "run.json", run)
    return run


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the table in words."""
    ends = (row["low"], row["high"])
    return {
        "title": as_norm(row["norm"]).title,
        "ends": " to ".join(map(format_share, ends)) if math.isfinite(ends[0]) else "",
        "rising": row["rising"],
        **{name: format_share(row[name]) for name in ("share", "tenth", "cosine", "null")},
    }


def _json_number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
