"""Progress bars with an ETA on standard error."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """One bar per stage; silent when ``quiet`` or when standard error is not a terminal and nothing would be seen."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Any = None
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps of ``stage`` are behind us."""
        if self._quiet:
            return
        if stage != self._stage:
            self.close()
            from tqdm import tqdm

            self._stage = stage
            self._bar = tqdm(
                total=total, initial=done, desc=f"{stage:>9}", unit=" steps", file=sys.stderr, mininterval=0.5, dynamic_ncols=True
            )
        self._bar.n = done
        self._bar.refresh() if done == total else self._bar.update(0)

    def close(self) -> None:
        """End the line of the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
