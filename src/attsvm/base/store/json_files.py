"""JSON on disk, and the fingerprint of a JSON value."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from attsvm.base.errors import InputError
from attsvm.base.files import opened, write_file


def fingerprint(value: Any) -> str:
    """SHA-256 of ``value`` written as canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON, atomically; refuses NaN and infinities, which JSON does not have.
    Half of a surrogate pair, which UTF-8 does not have, is written as its escape.
    """
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
    write_file(path, f"{text}\n".encode("utf-8", "backslashreplace"))


def read_json(path: Path) -> Any:
    """The content of a file of a run folder.

    Raises:
        InputError: it cannot be read, or is not JSON.
    """
    with opened(path) as file:
        content = file.read()
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); delete it and run the same command again to write it"
            " anew"
        ) from None
