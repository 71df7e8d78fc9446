"""The end of a command that is interrupted: at once, whatever is running, with nothing half
written.

An exception does not reach that. ``KeyboardInterrupt`` raised in a destructor, in the callback of a
weak reference or below compiled code is dropped, and the command goes on; raised inside a
``finally`` it leaves behind what that was about to remove. So the handler of the signal ends the
process itself, as a kill would: every file is written atomically, and a killed run goes on where it
was. What a kill leaves behind, unfinished files and processes, is removed first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_WORDS = {"SIGINT": "interrupted", "SIGTERM": "ended by SIGTERM", "SIGHUP": "ended by SIGHUP"}
_COMPILED = 0.5
"""Seconds after which compiled code is not waited for: a handler of Python runs after it."""
_PROCESSES = 2.0  # seconds for other processes to remove their unfinished files
_EXIT_CODE = 128  # and the number of the signal, as shells say it: 130 for SIGINT


class _Interruption:
    """The state of a process that ends on signals: its duties then, and the signal that came.

    Attributes:
        unfinished: files to remove.
        kept: whether work is on the disk from which the same command goes on.
        quiet: whether nothing is said, as in a process that works for another one.
        holds: blocks of :func:`uninterrupted` that are being run.
        signal: the first signal that the handler was called with, 0 before that.
    """

    def __init__(self) -> None:
        self.unfinished: set[Path] = set()
        self.kept = self.quiet = False
        self.holds = self.signal = 0
        self._turn = threading.Lock()

    def handle(self, number: int, _: object) -> None:
        """The handler: ends the process, at once when it is called again."""
        if self.signal:
            os._exit(_EXIT_CODE + number)
        self.signal = number
        if not self.holds:
            self.end(number)

    def end(self, number: int) -> NoReturn:
        """End other processes, remove unfinished files, say so, and leave; where the other thread
        is doing so, wait for that.
        """
        if not self._turn.acquire(blocking=False):
            time.sleep(2.0 * _PROCESSES)
            os._exit(_EXIT_CODE + number)
        try:
            end_processes(_children())
            for path in tuple(self.unfinished):
                with contextlib.suppress(OSError):
                    path.unlink()
            if not self.quiet:
                self._say(f"{interruption_sentence(signal.Signals(number).name)}\n")
            _remove_semaphores()
        finally:
            os._exit(_EXIT_CODE + number)

    @staticmethod
    def _say(text: str) -> None:
        """Past Python's buffers, which the signal may have come in the middle of."""
        with contextlib.suppress(OSError):
            line = "\n" if os.isatty(2) else ""  # after ^C, or a bar
            os.write(2, f"{line}attsvm: {text}".encode())

    def watch(self, descriptor: int) -> None:
        """A thread that ends the process where compiled code keeps the handler from it."""
        while number := os.read(descriptor, 1):
            if signal.getsignal(number[0]) == self.handle:
                time.sleep(_COMPILED + (_PROCESSES if self.holds else 0.0))
                self.end(number[0])


_STATE = _Interruption()


def end_on_signals(*, quiet: bool = False) -> None:
    """From now on Ctrl-C, SIGTERM and SIGHUP end this process as the module says, with exit code
    130, 143 or 129; signals that it ignores, as those of ``nohup``, stay ignored.

    For the main thread of a process that belongs to a command.

    Args:
        quiet: say nothing.
    """
    _STATE.quiet = quiet
    ours = [getattr(signal, name) for name in _WORDS if hasattr(signal, name)]
    ours = [number for number in ours if signal.getsignal(number) is not signal.SIG_IGN]
    reading, writing = os.pipe()
    if os.name == "posix":
        os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in ours:
        signal.signal(number, _STATE.handle)
    threading.Thread(target=_STATE.watch, args=(reading,), daemon=True).start()


def leave_to_the_system() -> None:
    """Python takes itself down and may call no handler any more: from now on the system ends the
    process when a signal comes, with a status that shells print as the same exit code.
    """
    for number in signal.valid_signals():
        if signal.getsignal(number) == _STATE.handle:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def removed_when_interrupted(path: Path) -> Iterator[None]:
    """A file that must not stay behind when the command ends inside the block."""
    _STATE.unfinished.add(path)
    try:
        yield
    finally:
        _STATE.unfinished.discard(path)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A short block at whose end a signal is heeded. Processes that are started in it do not hear
    Ctrl-C before they unblock it.
    """
    masks = hasattr(signal, "pthread_sigmask")
    before: Any = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]) if masks else ()
    _STATE.holds += 1
    try:
        yield
    finally:
        _STATE.holds -= 1
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if _STATE.signal and not _STATE.holds:
            _STATE.end(_STATE.signal)


def begin_command() -> None:
    """Forget that work was kept: a new command begins."""
    _STATE.kept = False


def work_is_kept() -> None:
    """Say that work is on the disk from which the same command goes on."""
    _STATE.kept = True


def interruption_sentence(name: str = "SIGINT") -> str:
    """How an interrupted command ends, and whether it can go on."""
    return _WORDS[name] + ("; the same command goes on from here" if _STATE.kept else "")


def end_processes(processes: Iterable[BaseProcess]) -> None:
    """End processes of :mod:`multiprocessing`: with SIGTERM, on which those of
    :mod:`attsvm.base.workers` remove their unfinished files, and those that stay with SIGKILL.
    """
    if not (processes := list(processes)):
        return
    from multiprocessing.connection import wait

    with contextlib.suppress(OSError, ValueError, AttributeError):
        for process in processes:
            process.terminate()
        left = {process.sentinel for process in processes}
        deadline = time.monotonic() + _PROCESSES
        while left and (ended := wait(left, max(0.0, deadline - time.monotonic()))):
            left -= set(ended)
    for process in processes:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            process.kill()


def _children() -> Iterable[BaseProcess]:
    """The processes that :mod:`multiprocessing` has started here; empty before it is imported."""
    parallel = sys.modules.get("multiprocessing")
    return () if parallel is None else parallel.active_children()


def _remove_semaphores() -> None:
    """Run what :mod:`multiprocessing` would at the end of Python: another process of it complains
    on standard error about semaphores that stay.
    """
    if "multiprocessing.util" in sys.modules:
        from multiprocessing import util

        with contextlib.suppress(Exception):
            util._run_finalizers(0)  # type: ignore[attr-defined]
