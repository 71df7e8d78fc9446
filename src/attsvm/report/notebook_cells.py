"""Solutions and claims as cells of a notebook: a small table that says what was found
and how well it is known. Colours are the notebook's own.
"""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from attsvm.claims import Claim, Verdict
from attsvm.report.printing import count, number, plain
from attsvm.solvers import MarginSolution, SolutionBatch

_SHOWN = 6  # rows of a table in a notebook cell; the text says how many there are
_WORDS = {
    "holds": "✓ holds",
    "fails": "✗ fails",
    "undecided": "~ undecided",
    "not shown": "? not shown",
    "not applicable": "– not applicable",
}

TableRows = list[tuple[str, str]]


def cell(of: Any) -> str:
    """The HTML of a solution, of many, of a claim or of a verdict."""
    if isinstance(of, MarginSolution):
        return _html_table(f"MarginSolution: {of.status}", _solution(of), of.message)
    if isinstance(of, SolutionBatch):
        return _html_table(f"SolutionBatch: {count(len(of))} programmes", _batch(of), "")
    if isinstance(of, Verdict):
        return _html_table(
            f"{of.claim.id} {_WORDS[of.verdict]}", _verdict_rows(of), of.claim.statement
        )
    if isinstance(of, Claim):
        return _html_table(f"Claim {of.id}", _claim(of), of.statement)
    raise TypeError(f"no cell for {type(of).__name__}")


def _html_table(title: str, rows: TableRows, note: str) -> str:
    body = "".join(
        f'<tr><th scope="row" style="text-align: left">{escape(name)}</th>'
        f'<td style="text-align: left">{escape(value)}</td></tr>'
        for name, value in rows
    )
    words = f"<div>{escape(note)}</div>" if note else ""
    return f"<div><strong>{escape(title)}</strong>{words}<table><tbody>{body}</tbody></table></div>"


def _solution(of: MarginSolution) -> TableRows:
    margins = of.margins
    rows = [
        ("programme", f"{count(margins.m)} constraints of {count(margins.n)} sequences"),
        ("norm that is minimised", repr(of.geometry)),
    ]
    if np.isinf(of.norm):
        pairs = of.conflict()[:_SHOWN]
        rows.append(
            (
                "contradiction",
                "; ".join(f"sequence {i}: token {s} over token {t}" for i, s, t in pairs.tolist()),
            )
        )
        return rows
    rows += [
        ("weights", f"{margins.shape[0]} × {margins.shape[1]}, norm {number(of.norm, 6)}"),
        ("margin, 1 / norm", number(of.margin, 6)),
        ("certified gap", number(of.gap, 2)),
        ("largest violation", number(of.violation, 2)),
    ]
    if of.slack is not None:
        missed = int(np.count_nonzero(of.slacks))
        rows.append(("soft margin", f"C = {plain(of.slack)}, {count(missed)} constraints missed"))
    tokens = of.support_tokens()
    listed = ", ".join(f"({i}, {t})" for i, t in tokens[:_SHOWN].tolist())
    more = f" and {count(len(tokens) - _SHOWN)} more" if len(tokens) > _SHOWN else ""
    rows.append(("support (sequence, token)", f"{listed}{more}" if listed else "none"))
    rows.append(("solver", f"{of.solver}, {count(of.iterations)} iterations"))
    return rows


def _batch(of: SolutionBatch) -> TableRows:
    statuses, counts = np.unique(of.status, return_counts=True)
    rows = [(str(status), count(int(k))) for status, k in zip(statuses, counts, strict=True)]
    if of.optimal.any():
        least, most = (number(end(of.norm[of.optimal]), 6) for end in (np.min, np.max))
        rows.append(("norm of the weights", f"{least} to {most}"))
        rows.append(("largest certified gap", number(of.gap[of.optimal].max(), 2)))
        rows.append(("largest violation", number(of.violation[of.optimal].max(), 2)))
    return rows


def _claim(of: Claim) -> TableRows:
    where = " · ".join(filter(None, (of.source, of.reference)))
    rows = [("expected", str(of.expect)), ("source", where)]
    if of.assumes:
        rows.append(("assumes", "; ".join(of.assumes)))
    return rows


def _verdict_rows(of: Verdict) -> TableRows:
    rows = [("measured", number(of.measured, 4))] if np.isfinite(of.measured) else []
    rows += _claim(of.claim)
    if of.counted > 1:
        rows.append(("instances that pass", f"{count(of.passed)} of {count(of.counted)}"))
    if of.verdict == "undecided" and of.halves is not None:
        rows.append(("halves of the trials that hold", "{} of {}".format(*of.halves)))
    rows += [(name, number(worst, 4)) for name, worst in of.worst_values.items()]
    if of.null is not None and of.claim.null is not None:
        null = f"{of.claim.null.words}: {number(of.null.measured, 4)}, {of.null.verdict}"
        rows.append(("null", null))
    if of.unmet:
        rows.append(("no instance has", "; ".join(of.unmet)))
    if of.explanation:
        rows.append(("why", of.explanation))
    return rows
