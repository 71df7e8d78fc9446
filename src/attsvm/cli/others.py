"""Commands that other packages bring: modules as those of this one, found by their entry points."""

from __future__ import annotations

from typing import Any

GROUP = "attsvm.commands"


def commands_of_others() -> list[Any]:
    """The modules, each with ``add_parser``, and ``names`` where ``attsvm list`` is to show what
    there is to choose from.
    """
    from importlib.metadata import entry_points  # a third of the start of a command

    return [each.load() for each in sorted(entry_points(group=GROUP), key=lambda each: each.name)]
