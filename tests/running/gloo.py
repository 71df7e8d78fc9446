"""Two gloo processes: the one of the test, and another one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest


def loaded(script: Path) -> ModuleType:
    """A file that is run as ``SCRIPT RANK FOLDER``, as a module."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def beside_another(script: ModuleType, folder: Path) -> None:
    """Run ``script.main(0, folder)`` here and rank 1 in another process, which is started once for
    all checks: that is most of the cost.
    """
    environment = {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script.__file__), "1", str(folder)],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            patch.setenv("GLOO_SOCKET_IFNAME", "lo")
            warnings.simplefilter("ignore")
            script.main(0, folder)
        error = other.communicate(timeout=120)[1]
    finally:
        other.kill()
    assert other.returncode == 0, error[-3000:]
