"""The explorer in a notebook and as a file of its own."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

import attsvm.report.explorer as pages
from attsvm.base.files import write_file
from attsvm.report.explorer.states import DataExample, State

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

    def html(self) -> str:
        """A page, complete in one file."""
        return pages.page(DataExample(self.state, "your data", _SENTENCE))

    def save(self, path: str | Path) -> Path:
        """Write the page to a file.

        Raises:
            InputError: the file cannot be written.
        """
        return write_file(path, self.html())

    def _repr_html_(self) -> str:
        """In a frame, so that neither the notebook's style nor the page's reaches the other."""
        return (
            f'<iframe title="attsvm explorer" srcdoc="{html.escape(self.html(), quote=True)}"'
            ' style="width: 100%; height: 62rem; border: 0"></iframe>'
        )

    def __repr__(self) -> str:
        sequences = self.state["sequences"]
        tokens = sum(len(sequence["tokens"]) for sequence in sequences)
        return (
            f"Explorer({len(sequences)} sequences, {tokens} tokens, p={self.state['p']});"
            " .save('explorer.html') writes a page"
        )
