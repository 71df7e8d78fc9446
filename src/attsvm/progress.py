"""Progress bars with an ETA on standard error: what ``progress=True`` and the commands show."""

from __future__ import annotations

import contextlib
import sys
from typing import Any


class ProgressBars:
    """One bar per stage, or a line for a stage of a single step; nothing when ``quiet``."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: Any = None
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps of ``stage`` are behind us; a standard error that
        takes no more words is left in peace.
        """
        if self._quiet:
            return
        try:
            self._show(stage, done, total)
        except OSError:
            self._quiet, self._bar = True, None

    def _show(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self.close()
            self._stage = stage
            if total == 1:
                print(f"{stage:>9}: solving", file=sys.stderr)
                return
            from tqdm import tqdm

            self._bar = tqdm(
                total=total,
                initial=done,
                desc=f"{stage:>9}",
                unit=" steps",
                file=sys.stderr,
                mininterval=0.5,
                dynamic_ncols=True,
            )
        if self._bar is None:
            return
        self._bar.n = done
        self._bar.update(0)
        if done == total:
            self._bar.refresh()
            self.close()

    def close(self) -> None:
        """End the line of the bar."""
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.close()
            self._bar = None


def reporter(progress: Any) -> Any:
    """Who is told of progress: bars for True, nobody for False or None, and whoever else was
    given.
    """
    if isinstance(progress, bool):
        return ProgressBars() if progress else None
    return progress
