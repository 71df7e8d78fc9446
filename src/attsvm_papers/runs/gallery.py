"""The pages of reproduced experiments: one each, and a gallery of all of them with their
verdicts.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from attsvm.base.files import write_file
from attsvm.report.explorer import fragment, presets, script_hash, style
from attsvm.report.page import POLICY, document, tally
from attsvm.report.style import Picture, inline

_TEMPLATES = Path(__file__).resolve().parent / "templates"
_ORDER = ("fails", "undecided", "not shown", "not applicable", "holds")


def write_experiment(folder: Path, run: Mapping[str, Any], pictures: Sequence[Picture]) -> None:
    """Write ``figures/`` and ``report.html`` of one experiment.

    Args:
        folder: the experiment's folder.
        run: the content of its ``run.json``.
        pictures: its figures, drawn.
    """
    from markupsafe import Markup

    toy = next((preset for preset in presets() if preset.experiment == run["id"]), None)
    page = document(
        _TEMPLATES / "experiment.html.j2",
        explorer=toy and Markup(fragment(toy)),
        explorer_css=Markup(style()),
        policy="; ".join([POLICY, f"script-src '{script_hash()}'"]) if toy else POLICY,
        run=run,
        claims=run["claims"],
        tally=tally(list(run["claims"])),
        without=without_null(run["claims"]),
        changed=note_on_changes(run),
        pictures=[(picture, Markup(inline(picture))) for picture in pictures],
        title=run["title"],
    )
    (folder / "figures").mkdir(exist_ok=True)
    for picture in pictures:
        for name, content in picture.files().items():
            write_file(folder / "figures" / name, content)
    write_file(folder / "report.html", page)


def write_index(folder: Path, runs: Sequence[Mapping[str, Any]]) -> Path:
    """Write ``index.html``: every experiment with its first figure, and one table of all claims.

    Args:
        folder: where the experiments' folders are.
        runs: the content of their ``run.json``, sorted by paper.
    """
    papers = [
        (title, [_card(folder, run) for run in group])
        for title, group in groupby(runs, key=lambda run: str(run["paper_title"]))
    ]
    claims = [{**claim, "experiment": run["id"]} for run in runs for claim in run["claims"]]
    page = document(
        _TEMPLATES / "gallery.html.j2",
        papers=papers,
        claims=claims,
        counts={
            verdict: sum(claim["verdict"] == verdict for claim in claims)
            for verdict in reversed(_ORDER)
        },
        without=without_null(claims),
        title="Claims and figures, reproduced",
        experiments=len(runs),
    )
    return write_file(folder / "index.html", page)


def without_null(claims: Iterable[Mapping[str, Any]]) -> int:
    """Number of the claims that were judged and have no null."""
    judged = [claim for claim in claims if claim["verdict"] != "not applicable"]
    return sum(claim.get("null") is None for claim in judged)


def note_on_changes(run: Mapping[str, Any]) -> str:
    """A sentence on the parameters that were changed; empty where none was."""
    changes = ", ".join(f"{name} = {text}" for name, text in run.get("changed", {}).items())
    if not changes:
        return ""
    return f"Parameters were changed ({changes}): claims about published numbers may not apply."


def _card(folder: Path, run: Mapping[str, Any]) -> dict[str, Any]:
    first = sorted((folder / run["id"] / "figures").glob("*.svg"))
    thumbnail = base64.b64encode(first[0].read_bytes()).decode() if first else ""
    verdicts = [claim["verdict"] for claim in run["claims"]]
    mark = next(
        (
            verdict
            for verdict in ("fails", "not shown", "holds", "undecided")
            if verdict in verdicts
        ),
        "not applicable",
    )
    return {**run, "thumbnail": thumbnail, "mark": mark, "tally": tally(list(run["claims"]))}
