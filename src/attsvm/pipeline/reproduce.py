"""``attsvm reproduce``: experiments computed, judged, drawn and put on one page."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import attsvm
from attsvm.claims import Evidence
from attsvm.errors import InputError
from attsvm.files import save_arrays
from attsvm.pipeline.cells import Cells, Computed
from attsvm.pipeline.sweep import Sweep, compute
from attsvm.report import gallery
from attsvm.store import RunFolder, read_json, write_json
from attsvm.store.entries import tidy
from attsvm.workers import Workers
from attsvm_papers.kit import PAPERS, Cell, Experiment, experiment

FORMAT = "attsvm-experiment/1"
Progress = Callable[[str, int, int], None]
Skipped = Callable[[str, str], None]


def reproduce(
    identifiers: Sequence[str],
    folder: str | Path,
    *,
    quick: bool = False,
    scale: str | None = None,
    seeds: int | None = None,
    shift: int = 0,
    tuning: bool = False,
    sizes: Sequence[int] | None = None,
    jobs: int | None = None,
    executor: Any = None,
    progress: Progress | None = None,
    skipped: Skipped | None = None,
    command_line: str | None = None,
) -> list[dict[str, Any]]:
    """Reproduce experiments into ``folder`` and return the content of each one's ``run.json``.

    Each experiment gets a folder of its name with ``run.json``, ``arrays.safetensors``,
    ``figures/`` and ``report.html``; the page over all of them, also of those from earlier calls,
    is ``index.html``. Finished cells are kept in ``cells/`` and never computed again while the code
    that decides them stays the same. Several calls on one folder, from one machine or many, share
    the cells that are missing.

    Args:
        identifiers: names such as ``tfsvm-3``, or paths of ``.py`` files, see
            :mod:`attsvm_papers.kit`.
        folder: where everything goes.
        quick: short for ``scale="smoke"``.
        scale: ``smoke``, ``small`` or ``paper``; each experiment's own when left out, which is
            never one that needs an accelerator.
        seeds: number of trials instead of the experiment's own.
        shift: added to every seed, so that the same claims meet trials that nobody has looked at.
        tuning: whether to use the seeds on which thresholds are set, instead of those that judge.
        sizes: numbers of blocks of the trained networks instead of the experiment's own.
        jobs: processes; the number of cores, or of the executor's slots, when left out.
        executor: computes the cells instead of processes of this machine: any
            :class:`concurrent.futures.Executor` (``client.get_executor(pure=False)`` of Dask), or
            ``submitit.AutoExecutor``. Its workers have attsvm and see ``folder`` under the same
            path.
        progress: called with the experiment's name, cells done, cells in all.
        skipped: called with the name of an experiment that is left out, and why: it needs data or a
            device that is not here, or has no trials to which ``seeds`` or ``shift`` or networks to
            which ``sizes`` could apply. Without it the error is raised.
        command_line: how the user asked for it, for the report.

    Raises:
        InputError: an unknown name, ``seeds`` or ``shift`` for an experiment without trials, a
            folder that holds something else.
        UnavailableError: data or a device is missing.
    """
    folder = Path(folder)
    chosen = [experiment(identifier) for identifier in dict.fromkeys(identifiers)]
    asked = "smoke" if quick else scale
    asked_for = []
    for each in chosen:
        try:
            setting = each.at(
                scale=asked,
                seeds=seeds,
                sizes=None if sizes is None else tuple(sizes),
                tuning=tuning,
            )
            asked_for.append((each, setting, each.work(setting, shift)))
        except InputError as error:  # of this experiment alone
            if skipped is None:
                raise
            skipped(each.id, str(error))
    if not asked_for:
        return []
    files = [f"{each.id}/{name}" for each, _, _ in asked_for for name in _FILES]
    request = {"command": "reproduce"}  # any experiments: they lie side by side
    with RunFolder(
        folder, request, files=["index.html", *files], overwrite=None, shared=True
    ) as run_folder:
        cells = folder.resolve() / "cells"
        for kept in [*cells.iterdir()] if cells.is_dir() else []:
            tidy(kept)
        runs = []
        with Workers(compute, jobs, executor=executor) as workers:
            for each, setting, evidence, computed in _computed(
                asked_for, shift, cells, Sweep(workers), progress
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
                    "first_seed": each.first_seed(setting) + shift,
                    "seconds": round(computed.seconds, 3),
                    "trials": evidence.rows,
                    "parameters": asdict(setting),
                    "words": evidence.words(),
                    "claims": [
                        {**claim.check(evidence).to_json(), "file": "arrays.safetensors"}
                        for claim in each.claims
                    ],
                    "attsvm": attsvm.__version__,
                    **_environments(computed.environments),
                    "command_line": command_line,
                }
                home = folder / each.id
                home.mkdir(exist_ok=True)
                save_arrays(evidence.arrays(), home / "arrays.safetensors")
                pictures = list(each.plot(evidence))
                run_folder.announce(
                    f"{each.id}/figures/{picture.name}{suffix}"
                    for picture in pictures
                    for suffix in (".svg", ".png")
                )
                gallery.write_experiment(home, run, pictures)
                write_json(home / "run.json", run)
                runs.append(run)
        gallery.write_index(folder, _finished(folder))
    return runs


_FILES = ("run.json", "arrays.safetensors", "report.html")


def _environments(of_cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the cells were computed with: the environment of most of them, and all of them with the
    number of their cells where they differ.
    """
    counts = Counter(json.dumps(each) for each in of_cells)
    found = [{**json.loads(text), "cells": count} for text, count in counts.most_common()]
    first = {name: value for name, value in found[0].items() if name != "cells"}
    return {"environment": first, **({"environments": found} if len(found) > 1 else {})}


class _Rounds:
    """The cells of an experiment: first those that are known, then round after round those that
    follow from the results of all before.

    Attributes:
        kept: the cells of the latest round.
        computed: the results of all rounds; complete after the last call of :meth:`follow`.
    """

    def __init__(
        self, each: Experiment, setting: Any, cells: list[Cell], shift: int, folder: Path
    ) -> None:
        self.each, self.setting, self._shift, self._folder = each, setting, shift, folder
        self.kept, self.computed = Cells(each, cells, folder), Computed()
        self._cells, self._stage = cells, 0

    @property
    def name(self) -> str:
        return f"{self.each.id} ({self._stage + 1})" if self._stage else self.each.id

    def evidence(self) -> Evidence:
        """What the results say so far."""
        return self.each.evidence(self._cells, self.computed.arrays)

    def follow(self, sweep: Sweep) -> bool:
        """Begin the next round if all results before it are there.

        Returns:
            False: there is no further round, or it is too early to tell.
        """
        last = self._stage == len(self.each.stages)
        if last or any(map(sweep.waits_for, self.kept.paths)):
            return False
        self.computed.add(self.kept.results())
        further = self.each.work(self.setting, self._shift, self.evidence(), self._stage)
        self._cells, self._stage = [*self._cells, *further], self._stage + 1
        self.kept = Cells(self.each, further, self._folder)
        sweep.add(self.kept.missing, first=True)
        return True


def _computed(
    asked_for: Sequence[tuple[Experiment, Any, list[Cell]]],
    shift: int,
    folder: Path,
    sweep: Sweep,
    progress: Progress | None,
) -> Iterator[tuple[Experiment, Any, Evidence, Computed]]:
    """Each experiment with its parameters, the evidence of its cells and these, in order.

    Work begins at once wherever it is known. A round that follows from others begins when they are
    done, before whatever else waits, so that no process is idle while an experiment ends.
    """
    every: list[_Rounds] = []
    for asked in asked_for:
        every.append(_Rounds(*asked, shift, folder))
        sweep.add(every[-1].kept.missing)
    staged = [rounds for rounds in every if rounds.each.stages]
    for rounds in every:
        latest = None
        while latest is not rounds.kept:
            latest, name = rounds.kept, rounds.name
            missing = [path for path in latest.paths if sweep.waits_for(path)]
            for left in itertools.chain([len(missing)], sweep.finish(missing)):
                if progress is not None and latest.paths:
                    progress(name, len(latest.paths) - left, len(latest.paths))
                for others in staged:
                    while others.follow(sweep):
                        pass
        rounds.computed.add(rounds.kept.results())
        yield rounds.each, rounds.setting, rounds.evidence(), rounds.computed
        rounds.computed = Computed()  # figures of many experiments: one at a time in memory


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
