"""Commands that other packages bring: modules as those of this one, found by their entry points."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

GROUP = "attsvm.commands"


def commands_of_others() -> list[Any]:
    """Modules of commands, each with ``add_parser``, and with ``names`` where ``attsvm list`` is to
    show what there is to choose from.

    Only distributions whose names begin with ours are looked at, and by their files: to import
    ``importlib.metadata`` alone takes half as long as a command takes to start.
    """
    modules: dict[str, str] = {}
    for folder in dict.fromkeys(sys.path):
        for path in sorted(Path(folder).glob("attsvm*.dist-info/entry_points.txt")):
            _, _, text = path.read_text(encoding="utf-8").partition(f"[{GROUP}]")
            for line in text.partition("[")[0].splitlines():
                name, _, module = line.partition("=")
                if module:
                    modules.setdefault(name.strip(), module.strip())
    return [importlib.import_module(modules[name]) for name in sorted(modules)]
