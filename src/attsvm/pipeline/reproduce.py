"""``attsvm reproduce``: experiments computed, judged, drawn and put on one page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

import attsvm
from attsvm.claims import Evidence
from attsvm.errors import InputError
from attsvm.files import save_arrays
from attsvm.pipeline.cells import Cells, Step, work
from attsvm.pipeline.workers import Workers
from attsvm.report import gallery
from attsvm.runs import environment, read_json, write_json
from attsvm_papers.kit import PAPERS, Cell, Experiment, experiment

FORMAT = "attsvm-experiment/1"
Progress = Callable[[str, int, int], None]
Skipped = Callable[[str, str], None]


def reproduce(
    identifiers: Sequence[str],
    folder: Path,
    *,
    quick: bool = False,
    scale: str | None = None,
    seeds: int | None = None,
    shift: int = 0,
    sizes: Sequence[int] | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    skipped: Skipped | None = None,
    command_line: str | None = None,
) -> list[dict[str, Any]]:
    """Reproduce experiments into ``folder`` and return the content of each one's ``run.json``.

    Each experiment gets a folder of its name with ``run.json``, ``arrays.safetensors``,
    ``figures/`` and ``report.html``; the page over all of them, also of those from earlier calls,
    is ``index.html``. Finished cells are kept in ``cells/`` and never computed again while the code
    that decides them stays the same.

    Args:
        identifiers: names such as ``tfsvm-3``, or paths of ``.py`` files, see
            :mod:`attsvm_papers.kit`.
        folder: where everything goes.
        quick: short for ``scale="smoke"``.
        scale: ``smoke``, ``small`` or ``paper``; each experiment's own when left out, which is
            never one that needs an accelerator.
        seeds: number of trials instead of the experiment's own.
        shift: added to every seed, so that the same claims meet trials that nobody has looked at.
        sizes: numbers of blocks of the trained networks instead of the experiment's own.
        jobs: processes; the number of cores when left out.
        progress: called with the experiment's name, cells done, cells in all.
        skipped: called with the name of an experiment that is left out, and why: it needs data or a
            device that is not here, or has no trials to which ``seeds`` or ``shift`` or networks to
            which ``sizes`` could apply. Without it the error is raised.
        command_line: how the user asked for it, for the report.

    Raises:
        InputError: an unknown name, ``seeds`` or ``shift`` for an experiment without trials, a
            folder that another process writes to.
        UnavailableError: data or a device is missing.
    """
    chosen = [experiment(identifier) for identifier in dict.fromkeys(identifiers)]
    asked = "smoke" if quick else scale
    asked_for = []
    for each in chosen:
        try:
            setting = each.at(
                scale=asked, seeds=seeds, sizes=None if sizes is None else tuple(sizes)
            )
            asked_for.append((each, setting, each.work(setting, shift)))
        except InputError as error:  # of this experiment alone
            if skipped is None:
                raise
            skipped(each.id, str(error))
    if not asked_for:
        return []
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --out needs a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / ".lock").exists():
        raise InputError(
            f"{folder} holds files that are not of attsvm reproduce; choose another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"another attsvm process is writing to {folder}; wait for it or choose another folder"
        ) from None
    try:
        runs = []
        with Workers(work, jobs or os.cpu_count() or 1) as workers:
            for each, setting, evidence, seconds in _computed(
                asked_for, folder / "cells", workers, progress
            ):
                run = {
                    "format": FORMAT,
                    "id": each.id,
                    "asked": each.asked,
                    "paper": each.paper,
                    "paper_title": PAPERS.get(each.paper, "Your own"),
                    "title": each.title,
                    "reference": each.reference,
                    "protocol": each.protocol,
                    "notes": each.notes,
                    "scale": _scale("quick" if quick else each.scale(scale), seeds, shift),
                    "seconds": round(seconds, 3),
                    "trials": evidence.rows,
                    "parameters": asdict(setting),
                    "words": evidence.words(),
                    "claims": [
                        {**claim.check(evidence).to_json(), "file": "arrays.safetensors"}
                        for claim in each.claims
                    ],
                    "attsvm": attsvm.__version__,
                    "environment": environment(),
                    "command_line": command_line,
                }
                home = folder / each.id
                home.mkdir(exist_ok=True)
                save_arrays(evidence.arrays(), home / "arrays.safetensors")
                gallery.write_experiment(home, run, list(each.plot(evidence)))
                write_json(home / "run.json", run)
                runs.append(run)
        gallery.write_index(folder, _finished(folder))
    finally:
        lock.release()
    return runs


def _computed(
    asked_for: Sequence[tuple[Experiment, Any, list[Cell]]],
    folder: Path,
    workers: Workers,
    progress: Progress | None,
) -> Iterator[tuple[Experiment, Any, Evidence, float]]:
    """Each experiment with its parameters, the evidence of its cells and their seconds, in order.

    Work begins at once wherever it is known; where cells follow from others, it begins when all
    experiments before are done.
    """

    def step(name: str) -> Step:
        return lambda done, total: None if progress is None else progress(name, done, total)

    begun: set[Path] = set()
    known = {
        each.id: Cells(each, cells, folder, begun)
        for each, _, cells in asked_for
        if each.then is None
    }
    finished = dict(
        zip(known, workers.start([stage.missing for stage in known.values()]), strict=True)
    )
    for each, setting, cells in asked_for:
        if each.then is None:
            results, seconds = known[each.id].results(finished[each.id], step(each.id))
        else:
            first = Cells(each, cells, folder)
            (done,) = workers.start([first.missing])
            results, seconds = first.results(done, step(each.id))
            if further := list(each.then(setting, each.evidence(cells, results))):
                second = Cells(each, further, folder)
                (done,) = workers.start([second.missing])
                found, spent = second.results(done, step(f"{each.id} (2)"))
                cells, results, seconds = [*cells, *further], results + found, seconds + spent
        yield each, setting, each.evidence(cells, results), seconds


def summary(run: dict[str, Any]) -> dict[str, Any]:
    """The entry of ``attsvm reproduce --json``."""
    return {key: run[key] for key in ("id", "paper", "title", "scale", "seconds", "claims")}


def _scale(name: str, seeds: int | None, shift: int) -> str:
    return ", ".join(
        [
            name,
            *([] if seeds is None else [f"{seeds} seeds"]),
            *([f"seeds {shift} later"] if shift else []),
        ]
    )


def _finished(folder: Path) -> list[dict[str, Any]]:
    """``run.json`` of every experiment in the folder, in the papers' order, and then the reader's
    own.
    """
    from attsvm_papers.kit import identifiers

    known = [folder / name / "run.json" for name in identifiers()]
    paths = [*known, *sorted(set(folder.glob("*/run.json")) - set(known))]
    return [
        run for path in paths if path.exists() and (run := read_json(path)).get("format") == FORMAT
    ]
