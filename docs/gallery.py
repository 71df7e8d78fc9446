"""Sphinx extension: ``{gallery}`` shows every experiment of a run of ``attsvm reproduce`` with its
first figure and its verdicts.

The run is the folder ``runs/reproduce`` of the repository, or the one that ``ATTSVM_REPRODUCED``
names. Without a run the verdicts are the recorded ones of the tests, and the pictures those of the
experiments' pages.
"""

from __future__ import annotations

import html
import json
import os
import shutil
from itertools import groupby
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attsvm_papers.kit import PAPERS, experiment, identifiers

COMMAND = "attsvm reproduce --all --quick --out runs/reproduce"
ROOT = Path(__file__).parents[1]
VERDICTS = ("holds", "fails", "undecided", "not shown", "not applicable")


def folder() -> Path:
    """Where the run lies."""
    return Path(os.environ.get("ATTSVM_REPRODUCED") or ROOT / "runs" / "reproduce")


def runs(home: Path) -> list[dict[str, Any]]:
    """``run.json`` of every experiment, by paper."""
    found = [json.loads(path.read_text("utf-8")) for path in home.glob("*/run.json")]
    return sorted(found, key=lambda run: (run["paper_title"], run["id"]))


def recorded() -> list[dict[str, Any]]:
    """The recorded verdicts of every experiment that has some, by paper."""
    small, large = (
        json.loads((ROOT / "tests" / "papers" / name).read_text("utf-8"))
        for name in ("verdicts.json", "evidence/verdicts.json")
    )
    verdicts = small | {name: entry["claims"] for name, entry in large.items()}
    return [
        {
            "id": name,
            "title": experiment(name).title,
            "paper_title": PAPERS[experiment(name).paper],
            "claims": [{"verdict": text.partition(";")[0]} for text in verdicts[name].values()],
        }
        for name in identifiers()
        if name in verdicts
    ]


def figure(home: Path, run: dict[str, Any]) -> Path | None:
    """The first picture of a run, else that of the experiment's page."""
    own = sorted((home / run["id"] / "figures").glob("*.png"))
    pages = sorted((ROOT / "docs" / "experiments").glob(f"{run['id']}.svg"))
    return next(iter([*own, *pages]), None)


def tally(run: dict[str, Any]) -> str:
    """``5 claims: 4 hold, 1 fails``."""
    verdicts = [claim["verdict"] for claim in run["claims"]]
    words = {"holds": "hold", "fails": "fail"}
    counts = [(verdicts.count(each), each) for each in VERDICTS if each in verdicts]
    told = [f"{n} {each if n == 1 else words.get(each, each)}" for n, each in counts]
    return f"{len(verdicts)} claim{'' if len(verdicts) == 1 else 's'}: {', '.join(told)}"


def card(home: Path, run: dict[str, Any]) -> str:
    picture = figure(home, run)
    words = html.escape(run["title"])
    image = (
        f'<img loading="lazy" src="_images/gallery/{run["id"]}{picture.suffix}"'
        f' alt="First figure of {run["id"]}: {words}">'
        if picture
        else ""
    )
    link = f"experiments.html#experiment-{run['id']}"
    return (
        f'<div class="plate">{image}<p><a href="{link}"><code>{run["id"]}</code></a> {words}</p>'
        f'<p class="tally">{tally(run)}</p></div>'
    )


class Gallery(SphinxDirective):
    """Cards by paper."""

    def run(self) -> list[nodes.Node]:
        home = folder()
        found = runs(home) if home.is_dir() else []
        pieces: list[nodes.Node] = []
        if not found:
            found = recorded()
            words = (
                "These are recorded verdicts. For pictures of every experiment and a run of yours,"
                " run this before building the pages:"
            )
            pieces = [
                nodes.paragraph("", words),
                nodes.literal_block("", COMMAND, language="console"),
            ]
        for paper, group in groupby(found, key=lambda run: str(run["paper_title"])):
            section = nodes.section(ids=[nodes.make_id(f"gallery-{paper}")], names=[paper])
            section += nodes.title("", paper)
            cards = "".join(card(home, run) for run in group)
            section += nodes.raw("", f'<div class="gallery">{cards}</div>', format="html")
            pieces.append(section)
        return pieces


def copied(app: Sphinx, error: Exception | None) -> None:
    """The thumbnails, beside the other images."""
    home = folder()
    if error is not None or app.builder.format != "html":
        return
    target = Path(app.outdir) / "_images" / "gallery"
    target.mkdir(parents=True, exist_ok=True)
    for run in (runs(home) if home.is_dir() else []) or recorded():
        if picture := figure(home, run):
            shutil.copyfile(picture, target / f"{run['id']}{picture.suffix}")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("gallery", Gallery)
    app.connect("build-finished", copied)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
