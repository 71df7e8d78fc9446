"""Packages that only some installations have: imported where they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from attsvm.base.errors import MissingExtraError


def imported(module: str, purpose: str, package: str, extra: str) -> Any:
    """A module of an optional package.

    Raises:
        MissingExtraError: it is not installed; says for what ``purpose`` which ``extra`` is needed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(purpose, package, extra) from error
