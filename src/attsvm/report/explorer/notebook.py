"""The explorer in a notebook and as a file of its own."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attsvm.report.explorer as pages
from attsvm.errors import InputError
from attsvm.files import write_file
from attsvm.report.explorer.states import Own, State

_SENTENCE = (
    "Each colour is one of your sequences, and attention should choose the filled token: the green"
    " arrow is the prompt that does so with the largest margin, and training (blue) turns towards"
    " it. Drag any token."
)


@dataclass(frozen=True, eq=False)
class Explorer:
    """An explorer of data; a notebook shows it when it is the last value of a cell.

    Attributes:
        state: what it shows first, see :mod:`attsvm.report.explorer.states`.
    """

    state: State

    @property
    def _shown(self) -> Own:
        return Own(self.state, "your data", _SENTENCE)

    def html(self) -> str:
        """A page, complete in one file."""
        return pages.page(self._shown)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file.

        Raises:
            InputError: the file cannot be written.
        """
        return write_file(path, self.html())

    def widget(self) -> Any:
        """An ``anywidget``: its ``state`` follows what the reader does, and setting ``content`` to
        :func:`attsvm.report.explorer.content` of another state shows that one.

        Raises:
            InputError: anywidget is not installed.
        """
        try:
            import anywidget
            import traitlets
        except ImportError:
            raise InputError(
                "the widget needs anywidget, which is not installed: pip install 'attsvm[notebook]'"
            ) from None
        kind = type(
            "ExplorerWidget",
            (anywidget.AnyWidget,),
            {
                "_esm": pages.script(),
                "_css": pages.style(),
                "content": traitlets.Dict().tag(sync=True),
                "state": traitlets.Dict().tag(sync=True),
            },
        )
        return kind(content=pages.content(self._shown), state=self.state)

    def _repr_html_(self) -> str:
        """In a frame, so that neither the notebook's style nor the page's reaches the other."""
        return (
            f'<iframe title="attsvm explorer" srcdoc="{html.escape(self.html(), quote=True)}"'
            ' style="width: 100%; height: 62rem; border: 0"></iframe>'
        )

    def __repr__(self) -> str:
        sequences = self.state["sequences"]
        tokens = sum(len(each["tokens"]) for each in sequences)
        return (
            f"Explorer({len(sequences)} sequences, {tokens} tokens, p={self.state['p']});"
            " .save('explorer.html') writes a page"
        )
