"""Leases: who is at work on which file of a folder that several machines share.

A lease is a file that is created exclusively (``O_CREAT | O_EXCL``; locks are not used: NFS loses
them). NFS keeps that atomic from version 3 on, also where a reply is lost and the request sent
again: it carries a mark of the client (a link, the way of older programmes, would then say that
somebody else was first). Its holder rewrites it every :data:`BEAT` seconds. It is void when
its holder has ended: at once for a process of the same machine, and after :data:`PATIENCE` seconds
without a change for any other (:class:`Watch`). A void lease is not deleted by those who find it,
who could so delete one another's new leases, but followed by one of the next number. Whoever gives
a lease back removes all up to its own, the first one first: a new lease 0 then stays.

No clock is compared with another: who watches a lease measures by its own how long the text stays
the same. A text is read by opening the file, for which NFS asks the server. Listings of folders may
be a minute old there; that costs time, because whoever takes a lease asks the server.

What is correct depends on none of this. Results are written under another name, flushed and
renamed. Where a holder was only slow, or two hold one lease on a file system that keeps none of the
above, two processes compute the same result and write it whole, one after the other.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import platform
import re
import secrets
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

BEAT = 5.0
PATIENCE = 60.0

_FREE = "free"
_NAME = re.compile(r"\.(.+)\.lease-\d+")


class Lease:
    """The right to write one file, from :func:`take`; kept alive by a thread inside ``with``.

    Args:
        path: the file that it is on.
        number: how many void leases came before it.
    """

    def __init__(self, path: Path, number: int, holder: dict[str, Any]) -> None:
        self._path, self.number, self._holder = path, number, holder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        remove(self._path, self.number)

    def _beat(self) -> None:
        for beat in itertools.count(1):
            if self._over.wait(BEAT):
                return
            try:
                descriptor = os.open(_file(self._path, self.number), os.O_WRONLY | os.O_TRUNC)
                with os.fdopen(descriptor, "w") as file:
                    json.dump({**self._holder, "beat": beat}, file)
            except FileNotFoundError:  # somebody took it for dead
                return
            except OSError:  # a server that does not answer may do so at the next beat
                continue


class Watch:
    """Finds leases whose holders, on other machines, have stopped: unchanged for
    :data:`PATIENCE` seconds of this process's clock, so that clocks need not agree.
    """

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[str, float]] = {}

    def held(self, path: Path) -> bool:
        """Whether somebody who may be alive works on ``path``; a lease that has expired is made
        void.
        """
        number, text = _last(path)
        if text is None or _is_void(text):
            self._seen.pop(path, None)
            return False
        known, since = self._seen.setdefault(path, (text, time.monotonic()))
        if known != text:
            self._seen[path] = (text, time.monotonic())
        elif time.monotonic() - since > PATIENCE:
            _create(_file(path, number + 1), _FREE)
            return False
        return True


def take(path: Path) -> Lease | None:
    """The lease on ``path``; None where a process that may be alive has it."""
    number, text = _last(path)
    if text is not None:
        if not _is_void(text):
            return None
        number += 1
    holder = {**_this_process(), "lease": secrets.token_hex(8)}
    return Lease(path, number, holder) if _create(_file(path, number), json.dumps(holder)) else None


def remove(path: Path, last: int) -> None:
    """Remove the leases on a file up to this number."""
    for number in range(last + 1):
        _file(path, number).unlink(missing_ok=True)


def leased(folder: Path) -> set[Path]:
    """The files of a folder on which there are leases, void ones included."""
    names = [leased_name(path.name) for path in folder.iterdir()]
    return {folder / name for name in names if name is not None}


def leased_name(name: str) -> str | None:
    """The name of the file that a lease of this name is on; None where it is no lease."""
    match = _NAME.fullmatch(name)
    return None if match is None else match[1]


def _file(path: Path, number: int) -> Path:
    return path.with_name(f".{path.name}.lease-{number}")


def _last(path: Path) -> tuple[int, str | None]:
    """Number and text of the last lease on a file; 0 and None where there is none."""
    found: tuple[int, str | None] = (0, None)
    for number in itertools.count():
        try:
            found = number, _file(path, number).read_text()
        except OSError:
            break
    return found


def _create(file: Path, text: str) -> bool:
    """Write a file that is not there yet; whether this process was the one that did."""
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text)
    return True


def _is_void(text: str) -> bool:
    """Whether it is free, or its holder was a process of this machine that has ended."""
    if text == _FREE:
        return True
    try:
        holder = json.loads(text)
    except ValueError:  # it is being written
        return False
    machine = _machine()
    return (
        machine is not None
        and holder["machine"] == machine
        and _started(holder["process"]) != holder["started"]
    )


def _this_process() -> dict[str, Any]:
    process = os.getpid()
    return {
        "machine": _machine(),
        "host": platform.node(),
        "process": process,
        "started": _started(process),
    }


@functools.cache
def _machine() -> str | None:
    """Names this boot of this machine, and the container inside it; None where nothing does."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _started(process: int) -> int | None:
    """When a process of this machine started, in ticks; None when it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
