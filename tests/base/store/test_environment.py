"""What is said about where a result was computed."""

import os
import platform
from importlib import metadata

from attsvm.base.store import environment
from attsvm.base.store.environment import versions


def test_packages_are_asked_once_however_many_cells_there_are(monkeypatch):
    before = environment()
    monkeypatch.setattr(metadata, "version", None)  # a call would be an error
    assert environment() == before
    assert before["numpy"] == versions()["numpy"]
    assert "scikit_learn" in before
    assert (before["cpu_count"], before["platform"]) == (os.cpu_count(), platform.platform())


def test_a_package_that_is_not_installed_is_left_out():
    assert set(versions("numpy", "attsvm-no-such-package")) == {"python", "numpy"}
