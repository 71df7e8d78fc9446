"""Progress with an ETA on standard error: what ``progress=True`` and the commands show. Bars on a
terminal, a few plain lines in a file.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LineOptions:
    """When a stage has a line where there is no terminal.

    Attributes:
        first: seconds from its beginning to the next line; as long as a reader waits for one.
        growth: how many times longer each further wait is; chosen so that an hour has ten lines and
            a day fifteen.
    """

    first: float = 10.0
    growth: float = 2.0


class ProgressBars:
    """One bar per stage, or a line for a stage of a single step; nothing when ``quiet``.

    Where standard error is no terminal, a stage has a line at its beginning, a line at its end and
    ever fewer between them: a bar would fill a log file with copies of itself.

    Args:
        quiet: show nothing.
        lines: when there are lines instead of a bar.
        clock: seconds, of which differences are taken.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        lines: LineOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._quiet = quiet
        self._options, self._clock = lines or LineOptions(), clock
        self._bar: Any = None
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps of ``stage`` are behind us; a standard error that
        takes no more words is left in peace.
        """
        if self._quiet or sys.stderr is None:
            return
        try:
            self._show(stage, done, total)
        except (OSError, ValueError):  # full, or closed
            self._quiet, self._bar = True, None

    def _show(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self.close()
            self._stage = stage
            if total == 1:
                print(f"{stage:>9}: solving", file=sys.stderr, flush=True)
                return
            self._bar = self._begin(stage, done, total)
        if self._bar is None:
            return
        self._bar.n = done
        self._bar.update(0)
        if done == total:
            self._bar.refresh()
            self.close()

    def _begin(self, stage: str, done: int, total: int) -> Any:
        if not sys.stderr.isatty():
            return _Lines(stage, done, total, self._options, self._clock)
        from tqdm import tqdm

        return tqdm(
            total=total,
            initial=done,
            desc=f"{stage:>9}",
            unit=" steps",
            file=sys.stderr,
            mininterval=0.5,
            dynamic_ncols=True,
        )

    def close(self) -> None:
        """End the line of the bar."""
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.close()
            self._bar = None


class _Lines:
    """A stage in lines; it is moved as a bar of tqdm is, by ``n`` and ``update``.

    Args:
        stage, done, total: see :class:`ProgressBars`.
        options: when there are lines.
        clock: see :class:`ProgressBars`.
    """

    def __init__(
        self, stage: str, done: int, total: int, options: LineOptions, clock: Callable[[], float]
    ) -> None:
        self._stage, self._first, self._total = stage, done, total
        self._options, self._clock = options, clock
        self.n, self._began, self._wait = done, clock(), options.first
        self._next = self._began + self._wait
        if done < total:
            self._print("")

    def update(self, _: int) -> None:
        """A line, when it is time for one and the end is not reached."""
        now = self._clock()
        if self.n < self._total and now >= self._next:
            self._wait *= self._options.growth
            self._next = now + self._wait
            self.refresh()

    def refresh(self) -> None:
        """A line with the time that has passed and, before the end, the time that is left."""
        passed, steps = self._clock() - self._began, self.n - self._first
        words = f", {passed:.0f} s" if steps else ""
        if steps and self.n < self._total:
            words += f", about {passed / steps * (self._total - self.n):.0f} s left"
        self._print(words)

    def _print(self, words: str) -> None:
        line = f"{self._stage:>9}: {self.n} of {self._total} steps{words}"
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing is open."""


def reporter(progress: Any) -> Any:
    """The function that progress is reported to: bars for True, None for False or None, and any
    other function itself.
    """
    if isinstance(progress, bool):
        return ProgressBars() if progress else None
    return progress
