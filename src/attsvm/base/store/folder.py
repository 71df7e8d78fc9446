"""One folder per run: locked while it is written, finished when ``run.json`` is there.

``request.json`` is the run's ledger. At every instant a folder is empty, or an unfinished run of
the request in ``request.json``, or a finished one: ``run.json`` repeats the key of its request, so
that one which another run has left behind counts for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from attsvm.base.errors import InputError
from attsvm.base.nearest import file_meant
from attsvm.base.store.json_files import fingerprint, read_json, write_json
from attsvm.base.store.ledger import Ledger, is_partial, json_object
from attsvm.base.store.stages import remove_stages

FORMAT = "attsvm-run/1"

_LOCK, _REQUEST, _RUN = ".lock", "request.json", "run.json"


class RunFolder:
    """A run folder that is owned by this process while the ``with`` block lasts.

    Files of others in it are neither written over nor deleted.

    Args:
        path: the folder; made when missing.
        request: everything that decides the result (parameters, data hash, version), JSON-ready.
        files: names of what will be written there; others are told by :meth:`announce`.
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
        self.key = fingerprint(request)
        request = json.loads(json.dumps(request))  # as it is read back: tuples are lists
        self._files = frozenset(files) | {_RUN}
        self._overwrite = overwrite
        self._lock = FileLock(path / _LOCK, thread_local=False)
        self._ledger = Ledger(path / _REQUEST, FORMAT, self.key, request, self._files)

    def __enter__(self) -> RunFolder:
        self._examined()
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
            self._claim(self._examined())  # again: nobody else writes here from now on
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

    def _examined(self) -> Ledger | None:
        """What the folder holds, None when that is nothing; refuses what may not be touched."""
        if self.path.is_symlink() and not self.path.exists():
            raise InputError(f"{self.path} is a link to nowhere, and a run needs a folder")
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file, and a run needs a folder; choose another")
        found = Ledger.read(self._ledger.path, FORMAT)
        if found is None:
            foreign = sorted(
                child.name
                for child in (self.path.iterdir() if self.path.is_dir() else ())
                if child.name != _LOCK and not is_partial(child.name, [_REQUEST])
            )
            if foreign:
                more = "" if len(foreign) < 4 else f" and {len(foreign) - 3} more"
                raise InputError(
                    f"{self.path} holds files that are not a run of attsvm"
                    f" ({', '.join(foreign[:3])}{more}); choose another folder"
                )
            return None
        if found.key != self.key and not self._overwrite:
            raise InputError(
                f"{self.path} holds another run"
                f" ({_difference(found.request, self._ledger.request)}); choose another folder"
                + ("" if self._overwrite is None else " or pass overwrite=True")
            )
        found.check_free(self._files)
        return found

    def _claim(self, found: Ledger | None) -> None:
        if found is not None and found.key == self.key:
            files, clearing = found.files | self._files, found.clearing
            self._ledger = replace(self._ledger, files=files, clearing=clearing)
        elif found is not None:  # another run, whose files go once this is on the disk
            self._ledger = replace(self._ledger, clearing=found.files | found.clearing)
        self._ledger.write()
        if self._ledger.clearing:
            remove_stages(self.checkpoint)
            self._ledger = self._ledger.clear()
        self._ledger.remove_unfinished()

    def announce(self, names: Iterable[str]) -> None:
        """Say what will be written, before it is.

        Raises:
            InputError: another's file has one of these names.
        """
        with self.turn():
            self._ledger = self._known().adding(names)

    def _known(self) -> Ledger:
        """The ledger with what others have announced."""
        return Ledger.read(self._ledger.path, FORMAT) or self._ledger

    @property
    def checkpoint(self) -> Path:
        """Where unfinished work is kept."""
        return self.path / "checkpoint"

    def finish(self, run: dict[str, Any]) -> dict[str, Any]:
        """Write ``run.json``, with the key of its request and the names of its files, and drop the
        checkpoint. Everything else must be on disk already.

        Returns:
            The content of ``run.json``.
        """
        self._ledger = self._known()
        run = {**run, "key": self.key, "files": sorted(self._ledger.files | {_REQUEST})}
        write_json(self.path / _RUN, run)
        remove_stages(self.checkpoint)
        return run


def announce(folder: Path, names: Iterable[str]) -> None:
    """Say what will be written into a folder, where that is a run's.

    Raises:
        InputError: another's file has one of these names.
    """
    if ledger := Ledger.read(folder / _REQUEST, FORMAT):
        ledger.adding(names)


def finished_run(path: Path, request: dict[str, Any]) -> dict[str, Any] | None:
    """The content of ``run.json`` when the folder holds this very run, finished; else ``None``.

    A checkpoint that outlived its run, because the process was killed between the two last steps,
    is cleared.
    """
    run, ledger = json_object(path / _RUN) or {}, Ledger.read(path / _REQUEST, FORMAT)
    key = fingerprint(request)
    if ledger is None or run.get("format") != FORMAT:
        return None
    if run.get("key") != key or ledger.key != key:
        return None
    remove_stages(path / "checkpoint")
    return run


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
            f"{folder} has no run.json, so it is not a finished run; let attsvm fit finish it first"
        )
    run = read_json(path)
    found = run.get("format") if isinstance(run, dict) else None
    if not isinstance(run, dict) or found != FORMAT:
        what = "no format" if found is None else f"format {found!r}"
        raise InputError(
            f"{path} has {what}, this version reads {FORMAT!r} of attsvm fit; give the folder of a"
            " fit, or fit again into another one"
        )
    ledger = Ledger.read(folder / _REQUEST, FORMAT)
    if ledger is not None and run.get("key") not in (None, ledger.key):
        raise InputError(
            f"{path} is of a run that is being overwritten by another, which is not finished; run"
            " that again to finish it"
        )
    return run


def _difference(found: Any, wanted: dict[str, Any]) -> str:
    """The first parameter in which two requests differ, in words."""
    if isinstance(found, dict):
        for key in sorted({*found, *wanted}, key=lambda key: (key != "command", key)):
            old, new = found.get(key), wanted.get(key)
            if old != new:
                if isinstance(old, dict) and isinstance(new, dict):
                    return _difference(old, new)
                if key == "code":
                    return "the code of attsvm has changed since"
                return f"{key} was {old!r}, now {new!r}"
    return "written by another version"
