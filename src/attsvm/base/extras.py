"""Packages that only some installations have: imported where they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from attsvm.base.errors import MissingExtraError, UnavailableError


def imported(module: str, purpose: str, package: str, extra: str) -> Any:
    """A module of an optional package.

    Raises:
        MissingExtraError: it is not installed; says for what ``purpose`` which ``extra`` is needed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(purpose, package, extra) from error


def data_frame(rows: list[dict[str, Any]], method: str) -> Any:
    """Flat rows as a data frame of pandas; ``method`` returns them without it.

    Raises:
        UnavailableError: pandas is not installed.
    """
    try:
        import pandas  # type: ignore[import-untyped]
    except ImportError:
        raise UnavailableError(
            "a data frame needs the package pandas; install it with: pip install pandas"
            f" ({method} returns the same without it)"
        ) from None
    return pandas.DataFrame(rows)
