"""Every test: fixed hypothesis profile, one thread per numerical library, nothing written outside
tmp_path, a budget, and no skip but for a reason that is listed.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent / "running"))
from budget import Budget
from skips import BROWSER, Skipped

hypothesis.settings.register_profile(
    "attsvm",
    derandomize=True,  # the same examples on every machine: a red run is reproducible
    deadline=None,  # the machine may be shared
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # likewise
    max_examples=25,
    print_blob=True,
)
hypothesis.settings.register_profile(
    "thorough", parent=hypothesis.settings.get_profile("attsvm"), max_examples=200
)
hypothesis.settings.load_profile(os.environ.get("ATTSVM_EXAMPLES", "attsvm"))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Budget())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skipped())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a test draws from torch's own generator does not depend on the tests before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


LONG = ("test_all.py", "test_faults.py", "test_surroundings.py")
"""Files with tests of ten seconds and more: run first, so that none is left to one core at the
end.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays: the garbage collector need not look at it again, and
    seldom at what is young.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


class Drawing(NamedTuple):
    """The figures of a report for readers."""

    figures: Any


@pytest.fixture(scope="session", autouse=True)
def quick_pictures() -> Iterator[Drawing]:
    """Drawing is most of what a small fit costs, so elsewhere a report has two figures, coarse and
    not laid out.
    """
    from attsvm.report import figures, style

    for_readers = Drawing(figures.FIGURES)
    quick = style.PictureOptions(dots=30, lay_out=False)
    with pytest.MonkeyPatch.context() as patch, style.saved_with(quick):
        patch.setattr(figures, "FIGURES", (figures.accuracy, figures.direction))
        yield for_readers


ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
ARGUMENTS += ["--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        yield chromium
        chromium.close()
