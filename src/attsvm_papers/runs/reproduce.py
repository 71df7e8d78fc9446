"""``attsvm reproduce``: experiments computed, judged, drawn and put on one page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import attsvm
from attsvm.base.errors import AttsvmError, InputError
from attsvm.base.files import read_json, save_arrays, write_json
from attsvm.base.interruption import work_is_kept
from attsvm.base.store import RunFolder
from attsvm.base.store.entries import tidy
from attsvm.base.workers import wait_for_any, workers
from attsvm.claims import Evidence
from attsvm.report.style import Picture
from attsvm_papers.kit.experiment import Experiment, settings_of
from attsvm_papers.kit.registry import PAPERS, experiment, identifiers
from attsvm_papers.runs import gallery
from attsvm_papers.runs.cells import Computed, Task, tasks_of, work

FORMAT = "attsvm-experiment/1"
Progress = Callable[[str, int, int], None]
Skipped = Callable[[str, str], None]


def reproduce(
    names: Sequence[str],
    folder: str | Path,
    *,
    quick: bool = False,
    scale: str | None = None,
    seeds: int | None = None,
    shift: int = 0,
    tuning: bool = False,
    sizes: Sequence[int] | None = None,
    text: str | Path | None = None,
    values: Mapping[str, str] | None = None,
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
    that decides them stays the same. Two calls on one folder wait for one another where both need a
    cell.

    Args:
        names: of experiments, such as ``tfsvm-3``, or paths of ``.py`` files, see
            :mod:`attsvm_papers.kit`.
        folder: where everything goes.
        quick: short for ``scale="smoke"``.
        scale: ``smoke``, ``small`` or ``paper``; each experiment's own when left out, which is
            never one that needs an accelerator.
        seeds: number of trials instead of the experiment's own.
        shift: added to every seed, so that the same claims meet other trials.
        tuning: whether to use the seeds on which thresholds are set, instead of those that judge.
        sizes: numbers of blocks of the trained networks instead of the experiment's own.
        text: a text file for the experiments that read one, instead of their own.
        values: other values of parameters, by name and as they are written: ``{"d": "12"}``.
        jobs: processes; the number of cores when left out.
        executor: computes the cells instead of processes of this machine, a call each: any
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
    experiments = [experiment(identifier) for identifier in dict.fromkeys(names)]
    scale_name = "smoke" if quick else scale
    requests = []
    for figure in experiments:
        try:
            setting = figure.at(
                scale=scale_name,
                seeds=seeds,
                sizes=None if sizes is None else tuple(sizes),
                text=None if text is None else str(Path(text).resolve()),
                tuning=tuning,
                values=values,
            )
            requests.append((figure, setting, figure.work(setting, shift)))
        except InputError as error:  # of this experiment alone
            if skipped is None:
                raise
            skipped(figure.id, str(error))
    if not requests:
        return []
    files = [f"{figure.id}/{name}" for figure, _, _ in requests for name in _FILES]
    request = {"command": "reproduce"}  # any experiments: they lie side by side
    with RunFolder(
        folder, request, files=["index.html", *files], overwrite=None, shared=True
    ) as run_folder:
        cells = folder.resolve() / "cells"
        for entry_folder in [*cells.iterdir()] if cells.is_dir() else []:
            tidy(entry_folder)
        runs = []
        for figure, setting, evidence, computed in _compute_experiments(
            requests, shift, cells, jobs, executor, progress
        ):
            run = {
                "format": FORMAT,
                "id": figure.id,
                "asked": figure.request,
                "paper": figure.paper,
                "paper_title": PAPERS.get(figure.paper, "Your own"),
                "title": figure.title,
                "reference": figure.reference,
                "protocol": figure.protocol,
                "notes": figure.notes,
                "scale": _scale("quick" if quick else figure.scale(scale), seeds, shift, values),
                "first_seed": figure.first_seed(setting) + shift,
                "seconds": round(computed.seconds, 3),
                "trials": evidence.rows,
                "parameters": settings_of(setting),
                "changed": _changed(figure.at(scale=scale_name), setting, values or {}),
                "words": evidence.words(),
                "claims": [
                    {**claim.check(evidence).to_json(), "file": "arrays.safetensors"}
                    for claim in figure.claims
                ],
                "attsvm": attsvm.__version__,
                **_environments(computed.environments),
                "command_line": command_line,
            }
            pictures = _draw(figure, evidence)
            with run_folder.turn():
                _write(run_folder, run, evidence, pictures)
            runs.append(run)
        with run_folder.turn():
            gallery.write_index(folder, _read_finished_runs(folder))
    return runs


_FILES = ("run.json", "arrays.safetensors", "report.html")


def _changed(usual: Any, setting: Any, values: Mapping[str, str]) -> dict[str, str]:
    """The values as they were written that differ from the usual ones."""
    before, after = settings_of(usual), settings_of(setting)
    return {name: text for name, text in values.items() if after[name] != before[name]}


def _draw(figure: Experiment, evidence: Evidence) -> list[Picture]:
    """The figures; one that needs a step that was not recorded shows the nearest one, and its title
    says so.
    """
    with_nearest = evidence.with_nearest_steps()
    replaced = with_nearest.replaced_steps
    assert replaced is not None
    pictures = []
    for picture in figure.plot(with_nearest):
        notes = "; ".join(f"step {near:g} in place of {step:g}" for step, near in replaced.items())
        pictures.append(replace(picture, title=f"{picture.title} ({notes})") if notes else picture)
        replaced.clear()
    return pictures


def _write(
    run_folder: RunFolder, run: dict[str, Any], evidence: Evidence, pictures: Sequence[Picture]
) -> None:
    """Everything of one experiment, ``run.json`` last."""
    home = run_folder.path / run["id"]
    run_folder.announce(
        f"{run['id']}/figures/{name}" for picture in pictures for name in picture.files()
    )
    home.mkdir(exist_ok=True)
    save_arrays(evidence.arrays(), home / "arrays.safetensors")
    gallery.write_experiment(home, run, pictures)
    write_json(home / "run.json", run)


def _environments(environments: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The environment in which most cells were computed, and where they differ, all environments
    with the number of their cells.
    """
    counts = Counter(json.dumps(environment) for environment in environments)
    distinct = [{**json.loads(text), "cells": count} for text, count in counts.most_common()]
    first = {name: value for name, value in distinct[0].items() if name != "cells"}
    return {"environment": first, **({"environments": distinct} if len(distinct) > 1 else {})}


def _compute_experiments(
    requests: Sequence[tuple[Experiment, Any, list[Mapping[str, Any]]]],
    shift: int,
    folder: Path,
    jobs: int | None,
    executor: Any,
    progress: Progress | None,
) -> Iterator[tuple[Experiment, Any, Evidence, Computed]]:
    """Each experiment with its parameters, the evidence of its cells and these, in order.

    1. Work begins at once on the first cells of all experiments.
    2. Experiment by experiment, stages that need evidence get further cells when it is there.
    3. An experiment is handed on as soon as its cells are read.
    """
    rounds = [tasks_of(figure, cells, folder) for figure, _, cells in requests]
    missing = {path for tasks in rounds for _, _, path in tasks if not path.exists()}
    if len(missing) < 2 and not any(figure.stages for figure, _, _ in requests):
        jobs = 1  # no process need start
    with workers(jobs, executor) as pool:
        sweep = _Sweep(pool, None if executor is None else 1, progress)
        for tasks in rounds:  # 1. all experiments side by side
            sweep.begin(tasks)
        for (figure, setting, cells), tasks in zip(requests, rounds, strict=True):
            computed = Computed()
            for stage in range(len(figure.stages) + 1):
                if stage:  # 2. cells that follow from the evidence so far
                    evidence = figure.evidence(cells, computed.arrays)
                    further = figure.work(setting, shift, evidence, stage - 1)
                    cells, tasks = [*cells, *further], tasks_of(figure, further, folder)
                    sweep.begin(tasks)
                sweep.finish(f"{figure.id} ({stage + 1})" if stage else figure.id, tasks)
                computed.read(tasks)
            # 3. claims and pictures can be made while the next one is computed
            yield figure, setting, figure.evidence(cells, computed.arrays), computed


class _Sweep:
    """Calls of :func:`attsvm_papers.runs.cells.work`.

    Args:
        executor: makes them.
        threads: that each takes.
        progress: see :func:`reproduce`.
    """

    def __init__(self, executor: Any, threads: int | None, progress: Progress | None) -> None:
        self._executor, self._threads, self._progress = executor, threads, progress
        self._calls: dict[Path, Any] = {}

    def begin(self, tasks: Sequence[Task]) -> None:
        """Have these computed, where their files are missing and nobody was asked."""
        for task in tasks:
            if task[2] not in self._calls and not task[2].exists():
                self._calls[task[2]] = self._executor.submit(work, *task, self._threads)

    def finish(self, name: str, tasks: Sequence[Task]) -> None:
        """Wait until the files of these are there.

        Raises:
            AttsvmError: the executor has lost a call.
            Exception: what computing one of them raised.
        """
        waiting = [self._calls[path] for _, _, path in tasks if path in self._calls]
        done = len(tasks) - len(waiting)
        try:
            self._tell(name, done, len(tasks))
            while waiting:
                for call in wait_for_any(waiting):
                    _raise_error_of(call)
                    waiting.remove(call)
                    done += 1
                    self._tell(name, done, len(tasks))
        except BaseException:
            for call in self._calls.values():
                call.cancel()
            raise

    def _tell(self, name: str, done: int, total: int) -> None:
        if done:
            work_is_kept()
        if self._progress is not None and total:
            self._progress(name, done, total)


def _raise_error_of(call: Any) -> None:
    """Raise the error of a call; one without a note is not of a cell but of the executor."""
    try:
        call.result()
    except BrokenProcessPool:
        raise
    except Exception as error:
        if isinstance(error, AttsvmError) or hasattr(error, "__notes__"):
            raise
        raise AttsvmError(
            f"the executor has lost a call ({type(error).__name__}: {error}); look at the logs of"
            " its workers, and call again with the same folder to go on"
        ) from error


def summary(run: dict[str, Any]) -> dict[str, Any]:
    """The entry of ``attsvm reproduce --json``."""
    return {key: run[key] for key in ("id", "paper", "title", "scale", "seconds", "claims")}


def _scale(
    name: str, seeds: int | None, shift: int, values: Mapping[str, str] | None = None
) -> str:
    return ", ".join(
        [
            name,
            *([] if seeds is None else [f"{seeds} seeds"]),
            *([f"seeds {shift} later"] if shift else []),
            *(f"{parameter}={value}" for parameter, value in (values or {}).items()),
        ]
    )


def _read_finished_runs(folder: Path) -> list[dict[str, Any]]:
    """``run.json`` of every experiment in the folder, in the papers' order, and then the reader's
    own.
    """
    known = [folder / name / "run.json" for name in identifiers()]
    paths = [*known, *sorted(set(folder.glob("*/run.json")) - set(known))]
    return [
        run for path in paths if path.exists() and (run := read_json(path)).get("format") == FORMAT
    ]
