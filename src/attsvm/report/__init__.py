"""The report of a run: every figure, and one self-contained page that opens without a network.

``write(folder)`` draws both from ``run.json``, ``arrays.safetensors`` and ``examples.json`` (see
``docs/run-folder.md``). Nothing in it depends on the clock or on a random number: two writes of one
folder give the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def write(folder: str | Path, run: dict[str, Any] | None = None) -> Path:
    """Write ``figures/*.svg``, ``figures/*.png`` and ``report.html`` of a finished run.

    Args:
        folder: a run folder, as ``attsvm fit`` leaves it. Files of an earlier report are replaced.
        run: the content of ``run.json`` when the file is yet to be written; it comes last in a run.
            Default: read it.

    Returns:
        The path of ``report.html``.

    Raises:
        InputError: the folder holds no finished run, or one in a format that this version does not
            read.
    """
    from attsvm.report.writing import (
        write_report,
    )  # matplotlib and jinja2 are needed only from here on

    return write_report(Path(folder), run)


__all__ = ["write"]
