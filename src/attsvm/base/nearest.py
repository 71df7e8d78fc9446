"""Names that somebody may have meant."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from attsvm.base.printable import name_of


def did_you_mean(name: str, names: Iterable[object], cutoff: float = 0.7) -> str:
    """``"; did you mean NAME?"`` with the nearest of some names, empty where none is near.

    The least ``cutoff`` of difflib's ratio allows for a letter or two of a short name.
    """
    from difflib import get_close_matches

    known = {str(known_name).casefold(): str(known_name) for known_name in names}
    close = get_close_matches(name.casefold(), known, n=1, cutoff=cutoff)
    return f"; did you mean {known[close[0]]}?" if close else ""


def file_meant(path: Path) -> str:
    """:func:`did_you_mean` for a file or folder that is not there, among those beside it."""
    try:
        beside = [name_of(entry) for entry in os.listdir(path.parent)]  # noqa: PTH208 - names
    except OSError:
        return ""
    return did_you_mean(name_of(path.name), beside)
