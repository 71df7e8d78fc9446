"""One folder per run: locked while it is written, finished when ``run.json`` is there."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from attsvm.errors import InputError
from attsvm.files import atomic_write, opened

FORMAT = "attsvm-run/1"


def fingerprint(value: Any) -> str:
    """SHA-256 of ``value`` written as canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


class RunFolder:
    """A run folder that is owned by this process while the ``with`` block lasts.

    Args:
        path: the folder; made when missing.
        request: everything that decides the result (parameters, data hash, version), JSON-ready.
        overwrite: throw away another run that is there.

    Raises:
        InputError: the path is a file, another process is writing there, or the folder holds a run
            of another request.
    """

    def __init__(self, path: Path, request: dict[str, Any], *, overwrite: bool = False) -> None:
        self.path = path
        self.request = request
        self.key = fingerprint(request)
        self._overwrite = overwrite
        self._lock = FileLock(path / ".lock", timeout=0)

    def __enter__(self) -> RunFolder:
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file; --out needs a folder")
        if self.path.is_dir() and any(self.path.iterdir()) and not self._recognised():
            raise InputError(
                f"{self.path} holds files that are not a run of attsvm; choose another folder"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Timeout:
            raise InputError(
                f"another attsvm process is writing to {self.path}; wait for it or choose another"
                " folder"
            ) from None
        try:
            self._claim()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def _recognised(self) -> bool:
        return any((self.path / name).exists() for name in ("run.json", "request.json", ".lock"))

    def _claim(self) -> None:
        for leftover in (
            *self.path.glob(".*.partial*"),
            *self.path.glob("*/.*.partial*"),
        ):  # of a process that was killed while writing
            leftover.unlink()
        request = self.path / "request.json"
        if request.exists():
            found = read_json(request)
            if fingerprint(found) == self.key:
                return
            if not self._overwrite:
                raise InputError(
                    f"{self.path} holds another run ({_difference(found, self.request)}); choose"
                    " another --out or pass --overwrite"
                )
            for child in self.path.iterdir():
                if child.name == ".lock":
                    continue
                shutil.rmtree(child) if child.is_dir() else child.unlink()
        write_json(request, self.request)

    @property
    def checkpoint(self) -> Path:
        """Where unfinished work is kept."""
        return self.path / "checkpoint"

    def finish(self, run: dict[str, Any]) -> None:
        """Write ``run.json`` and drop the checkpoint. Everything else must be on disk already."""
        write_json(self.path / "run.json", run)
        shutil.rmtree(self.checkpoint, ignore_errors=True)


def finished_run(path: Path, request: dict[str, Any]) -> dict[str, Any] | None:
    """The content of ``run.json`` when the folder holds this very run, finished; else ``None``.

    A checkpoint that outlived its run, because the process was killed between the two last steps,
    is cleared.
    """
    if not ((path / "run.json").exists() and (path / "request.json").exists()):
        return None
    found = read_json(path / "request.json")
    if fingerprint(found) != fingerprint(request):
        return None
    shutil.rmtree(path / "checkpoint", ignore_errors=True)
    return read_run(path)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON, atomically; refuses NaN and infinities, which JSON does not have."""
    with atomic_write(path) as temporary:
        temporary.write_text(
            json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )


def read_run(folder: Path) -> dict[str, Any]:
    """``run.json`` of a finished run.

    Raises:
        InputError: no such folder, no ``run.json``, one that cannot be read or is of another
            format.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder that attsvm fit wrote")
    path = folder / "run.json"
    if not path.is_file():
        raise InputError(
            f"{folder} has no run.json, so it is not a finished run; run attsvm fit with --out"
            f" {folder} first"
        )
    run = read_json(path)
    found = run.get("format") if isinstance(run, dict) else None
    if not isinstance(run, dict) or found != FORMAT:
        what = "no format" if found is None else f"format {found!r}"
        raise InputError(
            f"{path} has {what}, this version reads {FORMAT!r}; fit again with --overwrite"
        )
    return run


def read_json(path: Path) -> Any:
    """The content of a file of a run folder.

    Raises:
        InputError: it cannot be read, or is not JSON.
    """
    with opened(path) as file:
        content = file.read()
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}); fit again with --overwrite") from None


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """The first parameter in which two requests differ, in words."""
    for key in sorted({*found, *wanted}):
        old, new = found.get(key), wanted.get(key)
        if old != new:
            if isinstance(old, dict) and isinstance(new, dict):
                return _difference(old, new)
            return f"{key} was {old!r}, now {new!r}"
    return "written by another version"
