"""Every test: fixed hypothesis profile, one thread per numerical library, nothing written outside
tmp_path.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import pytest

from attsvm import kernel_cache

kernel_cache.folder()  # found before a test looks for caches elsewhere

hypothesis.settings.register_profile(
    "attsvm",
    derandomize=True,  # the same examples on every machine: a red run is reproducible
    deadline=None,  # the first call of a compiled kernel may take seconds
    max_examples=50,
    print_blob=True,
)
hypothesis.settings.load_profile("attsvm")

LONG = ("test_kills.py", "test_surroundings.py", "test_processes.py", "test_all.py")
"""Files with tests of ten seconds and more: run first, so that none is left to one core at the
end.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
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
    if CHROMIUM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on this machine")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()
