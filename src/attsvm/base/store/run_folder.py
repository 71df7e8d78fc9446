"""One folder per run: locked while it is written, finished when ``run.json`` is there.

``request.json`` is the run's ledger: what the run is, and every file that it writes, listed before
it is written. At every instant a folder is empty, or an unfinished run of the request in
``request.json``, or a finished one: ``run.json`` repeats the key of its request, so that one which
another run has left behind counts for nothing. Nothing that is not listed is replaced or deleted.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from filelock import BaseFileLock, FileLock, Timeout

from attsvm.base.errors import InputError
from attsvm.base.files import (
    digest,
    is_unfinished_write,
    json_object,
    load_arrays,
    read_json,
    save_arrays,
    write_json,
)
from attsvm.base.interruption import work_is_kept
from attsvm.base.nearest import file_meant
from attsvm.base.store.environment import environment

_log = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray[Any, Any]]

FORMAT = "attsvm-run/1"

_LOCK, _REQUEST, _RUN, _CHECKPOINT = ".lock", "request.json", "run.json", "checkpoint"


class RunFolder:
    """A run folder that is owned by this process while the ``with`` block lasts.

    Files of others in it are neither written over nor deleted. Unfinished work is kept in it by
    stages: named sets of arrays, each ``partial`` while the computation is inside the stage and
    ``done`` afterwards, which go when the run is finished.

    Args:
        path: the folder; made when missing.
        request: everything that decides the result (parameters, data hash, version), JSON-ready.
        files: names of what will be written there; others are announced by :meth:`announce`.
        overwrite: delete the files of another run that is there; None where the user has no such
            choice.
        shared: other processes may write to the same run, each in a :meth:`turn`; what they write
            under one name is the same.

    Raises:
        InputError: on entry, with nothing changed: the path is a file, another process is writing
            there and the run is not shared, or the folder holds a run of another request, something
            that is not a run, or another's file under a name of ``files``.
    """

    def __init__(
        self,
        path: Path,
        request: dict[str, Any],
        *,
        files: Iterable[str] = (),
        overwrite: bool | None = False,
        shared: bool = False,
    ) -> None:
        self.path = path
        self._shared = shared
        request = json.loads(json.dumps(request))  # as it is read back: tuples are lists
        self.key = digest(request)
        self._overwrite = overwrite
        self._lock = FileLock(path / _LOCK, thread_local=False)
        self._ledger = _Ledger(path, self.key, request, frozenset(files) | {_RUN})

    def __enter__(self) -> RunFolder:
        self._check_folder()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=-1 if self._shared else 0)
        except Timeout:
            raise InputError(
                f"another attsvm process is writing to {self.path}; wait for it or choose another"
                " folder"
            ) from None
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be written to ({error.strerror or error}); choose another"
                " folder"
            ) from None
        try:
            self._take_over(self._check_folder())  # again: nobody else writes here from now on
        except BaseException:
            self._lock.release()
            raise
        if self._shared:
            self._lock.release()
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._shared:
            self._lock.release()

    def turn(self) -> BaseFileLock:
        """A block in which nobody else writes to the run."""
        return self._lock

    def _check_folder(self) -> _Ledger | None:
        """The ledger of the run in the folder, None where there is none; refuses what may not be
        touched.
        """
        if self.path.is_symlink() and not self.path.exists():
            raise InputError(
                f"{self.path} is a link to nowhere, but a run needs a folder; choose another"
            )
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file, but a run needs a folder; choose another")
        present = _Ledger.read(self.path)
        if present is None:
            foreign = sorted(
                child.name
                for child in (self.path.iterdir() if self.path.is_dir() else ())
                if child.name != _LOCK and not is_unfinished_write(child.name, _REQUEST)
            )
            if foreign:
                more = "" if len(foreign) < 4 else f" and {len(foreign) - 3} more"
                raise InputError(
                    f"{self.path} holds files that are not a run of attsvm"
                    f" ({', '.join(foreign[:3])}{more}); choose another folder"
                )
            return None
        if present.key != self.key and not self._overwrite:
            raise InputError(
                f"{self.path} holds another run"
                f" ({_difference(present.request, self._ledger.request)}); choose another folder"
                + ("" if self._overwrite is None else " or pass overwrite=True")
            )
        present.check_free(self._ledger.files)
        return present

    def _take_over(self, present: _Ledger | None) -> None:
        """Go on with this run where it is present; delete the files of another one."""
        if present is not None and present.key == self.key:
            _log.info("%s: going on with the run that lies there", self.path)
            self._ledger = replace(present, files=present.files | self._ledger.files)
        elif present is not None:  # another run, whose files go once this is on the disk
            _log.info("%s: another run is deleted", self.path)
            self._ledger = replace(self._ledger, clearing=present.files | present.clearing)
        self._ledger.write()
        if self._ledger.clearing:
            self._ledger.delete(self._ledger.clearing)
            self._ledger = replace(self._ledger, clearing=frozenset()).write()
        self._ledger.delete_unfinished_writes()

    def announce(self, names: Iterable[str]) -> None:
        """List what will be written, before it is.

        Raises:
            InputError: another's file has one of these names.
        """
        with self.turn():
            self._ledger = self._current().adding(names)

    def _current(self) -> _Ledger:
        """The ledger with what others have announced."""
        return _Ledger.read(self.path) or self._ledger

    def save_stage(self, stage: str, arrays: Arrays, *, done: bool) -> None:
        """Keep ``arrays`` as the state of ``stage``, atomically and bit for bit.

        Raises:
            InputError: another's file has the name that is needed.
        """
        name = _stage_file(stage, done)
        with self.turn():
            self._ledger = self._current().of_environment(environment()).adding([name])
        (self.path / _CHECKPOINT).mkdir(exist_ok=True)
        save_arrays(arrays, self.path / name)
        _log.debug("%s: %s is kept", self.path, name)
        work_is_kept()
        if done:
            self._ledger.delete([_stage_file(stage, False)])

    def load_stage(self, stage: str) -> tuple[Arrays | None, bool]:
        """``(arrays, done)`` of ``stage``; ``(None, False)`` when it has not begun."""
        for done in (True, False):
            name = _stage_file(stage, done)
            if name in self._ledger.files and (self.path / name).exists():
                arrays = load_arrays(self.path / name)
                with self.turn():
                    self._ledger = self._current().of_environment(environment())
                work_is_kept()
                return arrays, done
        return None, False

    @property
    def environments(self) -> list[dict[str, Any]]:
        """The environments in which stages were computed, today's last."""
        return list(self._current().environments)

    def finish(self, run: dict[str, Any]) -> dict[str, Any]:
        """Write ``run.json``, with the key of its request and the names of its files, and delete
        the stages. Everything else must be on disk already.

        Returns:
            The content of ``run.json``.
        """
        self._ledger = self._current()
        results = self._ledger.files - self._ledger.stage_files
        run = {**run, "key": self.key, "files": sorted(results | {_REQUEST})}
        write_json(self.path / _RUN, run)
        _log.info("%s: finished", self.path)
        self._ledger = self._ledger.without_stages()
        return run


def announce(folder: Path, names: Iterable[str]) -> None:
    """List what will be written into a folder, where that is a run's.

    Raises:
        InputError: another's file has one of these names.
    """
    if ledger := _Ledger.read(folder):
        ledger.adding(names)


def finished_run(path: Path, request: dict[str, Any]) -> dict[str, Any] | None:
    """The content of ``run.json`` when the folder holds this very run, finished; else ``None``.

    Stages that outlived their run, because the process was killed between the two last steps, are
    deleted.
    """
    run, ledger, key = json_object(path / _RUN) or {}, _Ledger.read(path), digest(request)
    if ledger is None or run.get("format") != FORMAT:
        return None
    if run.get("key") != key or ledger.key != key:
        return None
    ledger.without_stages()
    return run


def holds_request(path: Path, request: dict[str, Any]) -> bool:
    """Whether the folder holds this very run, finished or not."""
    ledger = _Ledger.read(path)
    return ledger is not None and ledger.key == digest(request)


def read_run(folder: Path) -> dict[str, Any]:
    """``run.json`` of a finished run.

    Raises:
        InputError: no such folder, no ``run.json``, one that cannot be read or is of another
            format.
    """
    if not folder.is_dir():
        meant = "" if folder.exists() else file_meant(folder)
        raise InputError(f"{folder} is not a folder; give the folder that attsvm fit wrote{meant}")
    path = folder / _RUN
    if not path.is_file():
        raise InputError(
            f"{folder} has no run.json, so it holds no finished run; give the folder of a finished"
            " attsvm fit"
        )
    run = read_json(path)
    written = run.get("format") if isinstance(run, dict) else None
    if not isinstance(run, dict) or written != FORMAT:
        has = "no format" if written is None else f"format {written!r}"
        raise InputError(
            f"{path} has {has}, this version reads {FORMAT!r} of attsvm fit; give the folder of a"
            " fit, or fit again into another one"
        )
    ledger = _Ledger.read(folder)
    if ledger is not None and run.get("key") not in (None, ledger.key):
        raise InputError(
            f"{path} is of a run that is being overwritten by another, which is not finished; run"
            " that again to finish it"
        )
    return run


@dataclass(frozen=True)
class _Ledger:
    """The content of ``request.json``.

    Attributes:
        folder: the run's.
        key: digest of the request.
        request: what is computed.
        files: names of all files that were written or will be, relative to the folder, with ``/``.
        clearing: files of another run that are about to be deleted.
        environments: in which stages were computed, the latest last.
    """

    folder: Path
    key: str
    request: Any
    files: frozenset[str] = frozenset()
    clearing: frozenset[str] = frozenset()
    environments: tuple[dict[str, Any], ...] = ()

    @classmethod
    def read(cls, folder: Path) -> _Ledger | None:
        """The ledger of a folder; None where there is none of this format."""
        content = json_object(folder / _REQUEST)
        if content is None or content.get("format") != FORMAT:
            return None
        try:
            return cls(
                folder,
                str(content.get("key", "")),
                content.get("request"),
                _inner_names(content.get("files", ())),
                _inner_names(content.get("clearing", ())),
                tuple(content.get("environments", ())),
            )
        except (ValueError, TypeError):
            return None

    def write(self) -> _Ledger:
        """Put it on the disk."""
        lists = {
            "files": sorted(self.files),
            "clearing": sorted(self.clearing),
            "environments": list(self.environments),
        }
        content = {"format": FORMAT, "key": self.key, "request": self.request}
        content |= {name: entries for name, entries in lists.items() if entries}
        write_json(self.folder / _REQUEST, content)
        return self

    @property
    def stage_files(self) -> frozenset[str]:
        """Names of the files of unfinished work."""
        return frozenset(name for name in self.files if name.startswith(f"{_CHECKPOINT}/"))

    def adding(self, names: Iterable[str]) -> _Ledger:
        """The ledger with files that are going to be written, on the disk already.

        Raises:
            InputError: a file of this name is there and is not this run's.
        """
        new = frozenset(names) - self.files
        self.check_free(new)
        return replace(self, files=self.files | new).write() if new else self

    def of_environment(self, here: dict[str, Any]) -> _Ledger:
        """The ledger with this environment as the latest one, on the disk already."""
        if self.environments and self.environments[-1] == here:
            return self
        others = [other for other in self.environments if other != here]
        return replace(self, environments=(*others, here)).write()

    def without_stages(self) -> _Ledger:
        """The ledger without the files of unfinished work, which are deleted."""
        if not self.stage_files:
            return self
        self.delete(self.stage_files)
        return replace(self, files=self.files - self.stage_files, environments=()).write()

    def check_free(self, names: Iterable[str]) -> None:
        """Refuse names under which something lies that is not this run's.

        Raises:
            InputError: it names what is in the way.
        """
        for name in sorted(set(names) - self.files - self.clearing):
            path = self.folder / name
            obstacle = _misplaced(self.folder, PurePosixPath(name).parent) or (
                path if path.is_symlink() or path.exists() else None
            )
            if obstacle is not None:
                raise InputError(
                    f"{obstacle} is in the way: it would be written over and is not of this run;"
                    " move it, or choose another folder"
                )

    def delete(self, names: Iterable[str]) -> None:
        """Delete listed files, unfinished writes of them, and the folders they leave empty. What
        somebody has put in their place, a link or a folder, stays.
        """
        listed = set(names) & (self.files | self.clearing)
        _delete_unfinished(self.folder, listed)
        for name in sorted(listed):
            path = self.folder / name
            if _misplaced(self.folder, PurePosixPath(name).parent):
                continue
            if path.is_file() and not path.is_symlink():
                path.unlink(missing_ok=True)
            for parent in list(path.relative_to(self.folder).parents)[:-1]:
                with contextlib.suppress(OSError):  # something else is in it
                    (self.folder / parent).rmdir()

    def delete_unfinished_writes(self) -> None:
        """Delete what a killed process had begun to write under one of the names."""
        _delete_unfinished(self.folder, self.files | self.clearing | {_REQUEST})


def _delete_unfinished(folder: Path, names: Iterable[str]) -> None:
    """Delete unfinished writes of these files in a folder."""
    targets: dict[PurePosixPath, set[str]] = {}
    for name in names:
        targets.setdefault(PurePosixPath(name).parent, set()).add(PurePosixPath(name).name)
    for inner, inner_names in targets.items():
        if _misplaced(folder, inner) or not (folder / inner).is_dir():
            continue
        for path in (folder / inner).iterdir():
            unfinished = any(is_unfinished_write(path.name, name) for name in inner_names)
            if unfinished and path.is_file() and not path.is_symlink():
                path.unlink(missing_ok=True)


def _misplaced(folder: Path, inner: PurePosixPath) -> Path | None:
    """The first of these folders that is something else: a link or a file."""
    for name in inner.parts:
        folder = folder / name
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            return folder
    return None


def _inner_names(names: Any) -> frozenset[str]:
    """Names as a ledger lists them; refuses those that lead out of the folder."""
    for name in names:
        folders = PurePosixPath(name).parts
        is_relative = folders and folders[0] != "/" and ":" not in folders[0]
        if not is_relative or ".." in folders or "\\" in name:
            raise ValueError(name)
    return frozenset(names)


def _stage_file(stage: str, done: bool) -> str:
    return f"{_CHECKPOINT}/{stage}.{'done' if done else 'partial'}.safetensors"


def _difference(old: Any, new: dict[str, Any]) -> str:
    """The first parameter in which two requests differ, in words."""
    if isinstance(old, dict):
        for key in sorted({*old, *new}, key=lambda key: (key != "command", key)):
            before, now = old.get(key), new.get(key)
            if before != now:
                if isinstance(before, dict) and isinstance(now, dict):
                    return _difference(before, now)
                if key == "code":
                    return "the code of attsvm has changed since"
                return f"{key} was {before!r}, now {now!r}"
    return "written by another version"
