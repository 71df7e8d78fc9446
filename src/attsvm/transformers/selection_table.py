"""One head on one text: which token every query selects, with what probability and margin."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from attsvm.base.errors import InputError
from attsvm.base.extras import data_frame
from attsvm.transformers.logit_statistics import logit_statistics
from attsvm.transformers.recording import Layer, Recording
from attsvm.transformers.token_names import strip_marks


@dataclass(frozen=True)
class TokenSelection:
    """The selection of one query.

    Attributes:
        query, token: position and name of the query.
        selected, selected_token: position and name of the token with the largest logit.
        probability: its attention.
        margin: nats by which its logit is above the next; ``inf`` where there is no other.
        rival, rival_token: position and name of the next; -1 and empty where there is none.
    """

    query: int
    token: str
    selected: int
    selected_token: str
    probability: float
    margin: float
    rival: int
    rival_token: str


@dataclass(frozen=True, repr=False)
class SelectionTable:
    """The selections of one head in one text, a row per query; a notebook draws them.

    Attributes:
        text, layer, head: numbers.
        rows: query by query.
        words: names of the tokens that are attended to.
    """

    text: int
    layer: int
    head: int
    rows: list[TokenSelection]
    words: list[str]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[TokenSelection]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> TokenSelection:
        return self.rows[index]

    def __repr__(self) -> str:
        title = f"layer {self.layer}, head {self.head}, text {self.text}"
        names = ("query", "selects", "probability", "margin", "rival")
        cells = [names, *map(_cells, self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(names))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([title, *(line.rstrip() for line in lines)])

    def table(self) -> list[dict[str, Any]]:
        """One flat row per query, for a data frame or a file."""
        return [asdict(row) for row in self.rows]

    def to_pandas(self) -> Any:
        """:meth:`table` as a data frame.

        Raises:
            UnavailableError: pandas is not installed.
        """
        return data_frame(self.table(), "table()")

    def _repr_html_(self) -> str:
        """The text twice, and a line from every query to the token that it selects."""
        row_height, left, right = 20, 150, 330
        height = row_height * (len(self.words) + 1)

        def y(position: int) -> int:
            return row_height * (position + 1)

        lines = [
            f'<line x1="{left + 6}" y1="{y(row.query) - 5}" x2="{right - 6}"'
            f' y2="{y(row.selected) - 5}" stroke="currentColor"'
            f' stroke-opacity="{0.15 + 0.85 * row.probability:.2f}">'
            f"<title>{html.escape(' · '.join(_cells(row)))}</title></line>"
            for row in self.rows
        ]
        queries = [
            f'<text x="{left}" y="{y(row.query)}" text-anchor="end">{html.escape(row.token)}</text>'
            for row in self.rows
        ]
        keys = [
            f'<text x="{right}" y="{y(position)}">{html.escape(word)}</text>'
            for position, word in enumerate(self.words)
        ]
        label = f"layer {self.layer}, head {self.head}: query on the left, selected on the right"
        return (
            f'<svg role="img" aria-label="{label}" width="480" height="{height}"'
            f' font-size="13">{"".join([*lines, *queries, *keys])}</svg>'
        )

    def plot(self, ax: Any = None) -> Any:
        """Draw the text twice, and a line from every query to the token that it selects, as strong
        as its attention; return the axes.

        Args:
            ax: matplotlib's axes; new ones when left out.
        """
        if ax is None:
            from matplotlib import pyplot

            _, ax = pyplot.subplots(figsize=(4.0, 0.24 * len(self.words) + 0.6))
        beside = {"textcoords": "offset points", "va": "center"}
        for row in self.rows:
            strength = 0.15 + 0.85 * row.probability
            ax.plot([0, 1], [row.query, row.selected], color="C0", alpha=strength)
            ax.annotate(row.token, (0, row.query), (-4, 0), ha="right", **beside)
        for position, word in enumerate(self.words):
            ax.annotate(word, (1, position), (4, 0), ha="left", **beside)
        ax.set(xlim=(-0.6, 1.6), title=f"layer {self.layer}, head {self.head}")
        ax.invert_yaxis()
        ax.axis("off")
        return ax


def _cells(row: TokenSelection) -> tuple[str, str, str, str, str]:
    """A row in words: query, selected token, probability, margin and rival."""
    rival = f"{row.rival_token} ({row.rival})" if row.rival >= 0 else "–"
    margin = f"{row.margin:.2f}" if np.isfinite(row.margin) else "–"
    return (
        f"{row.token} ({row.query})",
        f"{row.selected_token} ({row.selected})",
        f"{row.probability:.3f}",
        margin,
        rival,
    )


def selection_table(recording: Recording, layer: Layer, h: int, text: int) -> SelectionTable:
    """The selections of the head with index ``h`` in a layer, in one text.

    Raises:
        InputError: a text that is not there, or whose keys and queries are no longer held.
    """
    by_number = {entry.text: entry for entry in layer.texts}
    if text not in by_number:
        texts = f"{min(by_number)} to {max(by_number)}" if by_number else "none"
        raise InputError(f"layer {layer.number} has no text {text}; it has texts {texts}")
    entry = by_number[text]
    # computed anew from keys and queries: an audit keeps no table
    logits = entry.logits()[h]
    sinks = None if entry.sinks is None else entry.sinks[h : h + 1]
    statistics = logit_statistics(logits[None], sinks=sinks)
    # names where the text has them all; else positions
    T = logits.shape[1]
    names = recording.words[text] if text < len(recording.words) else []
    words = [strip_marks(word) for word in names]
    if len(words) != T:  # texts without names, or those of a decoder
        words = [f"{position}" for position in range(T)]
    rows = []
    columns = (statistics.selected, statistics.top, statistics.margin, statistics.rival)
    values = torch.stack([column[0].double() for column in columns]).T.tolist()
    for query, (selected, probability, margin, rival) in zip(
        entry.positions.tolist(), values, strict=True
    ):
        token = f"{query}" if layer.cross else words[query]
        rival_word = words[int(rival)] if rival >= 0 else ""
        rows.append(
            TokenSelection(
                query,
                token,
                int(selected),
                words[int(selected)],
                probability,
                margin,
                int(rival),
                rival_word,
            )
        )
    return SelectionTable(text, layer.number, layer.head_numbers[h], rows, words)
