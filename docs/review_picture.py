"""The picture of the first screen: a review with the word that decides marked, in a light and a
dark variant.

    python docs/review_picture.py RUN "TEXT"

RUN is a folder of ``attsvm fit`` on texts; the pictures go to ``docs/_static/readme``.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import attsvm

HERE = Path(__file__).parent / "_static" / "readme"
SCHEMES = {  # page, words, faint words, highlight
    "light": ("#ffffff", "#22262b", "#5f6670", "#00745a"),
    "dark": ("#0d1117", "#e6edf3", "#9198a1", "#2fbf98"),
}
WIDTH, LINE, SIZE = 5.4, 0.34, 13.0  # inches, inches, points


def read(folder: str, text: str):
    """The answer for a text, its words with their places, and the attention of each."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "one.csv"
        run = attsvm.load_run(folder)
        column = run.options.get("text") or "text"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([[column], [text]])
        answer = run.predict(path)[0]
        _, encoded = run.read(path)
        attention = run.model.attention(encoded.bags)[0]
        view = encoded.views[0]
    words = [
        (slice(*spans[0]), share)
        for spans, share in zip(view["spans"], attention, strict=False)
        if spans
    ]
    return answer, str(view["text"]), words


def draw(scheme: str, answer, text: str, words) -> Figure:
    """The text with its words shaded by their attention, and the answer below."""
    page, ink, faint, highlight = SCHEMES[scheme]
    figure = Figure(figsize=(WIDTH, 1.0), facecolor=page)
    renderer = FigureCanvasAgg(figure).get_renderer()
    dots = figure.dpi

    def width(piece: str, **style) -> float:
        artist = figure.text(0, 0, piece, fontsize=SIZE, **style)
        inches = artist.get_window_extent(renderer).width / dots
        artist.remove()
        return inches

    largest = max(share for _, share in words)
    shares = {part.start: share / largest for part, share in words}
    chosen = max(words, key=lambda word: word[1])[0].start
    space = 1.35 * (width("a a") - width("aa"))
    # 1: lines of words that fit into the width
    lines, x, start = [[]], 0.0, 0
    for piece in text.split(" "):
        bold = {"weight": "bold"} if start <= chosen < start + len(piece) else {}
        inches = width(piece, **bold)
        if x + inches > WIDTH - 0.5:
            lines.append([])
            x = 0.0
        share = max((shares.get(start + k, 0.0) for k in range(len(piece))), default=0.0)
        lines[-1].append((piece, x, inches, share, bold))
        x, start = x + inches + space, start + len(piece) + 1
    height = LINE * (len(lines) + 2) + 0.35
    figure.set_size_inches(WIDTH, height)
    # 2: words, each on a shade of its attention
    for k, line in enumerate(lines):
        y = height - 0.4 - LINE * k
        for piece, x, inches, share, bold in line:
            box = (0.25 + x - 0.03, y - 0.08), inches + 0.06, 0.27
            patch = FancyBboxPatch(
                *box,
                boxstyle="round,pad=0,rounding_size=0.05",
                facecolor=(*_rgb(highlight), 0.55 * share),
                edgecolor=highlight if bold else "none",
                linewidth=1.6,
                transform=figure.dpi_scale_trans,
            )
            figure.add_artist(patch)
            place = ((0.25 + x) / WIDTH, y / height)
            figure.text(*place, piece, color=ink, fontsize=SIZE, **bold)
    # 3: the answer
    sentence = (
        f"{answer['prediction']}, probability {answer['probability']:.2f}: “{answer['chosen']}”"
        f" decides, ahead of “{answer['rival']}” by {answer['margin']:.1f}"
    )
    figure.text(0.25 / WIDTH, 0.3 / height, sentence, color=faint, fontsize=SIZE - 2.5)
    return figure


def _rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))


if __name__ == "__main__":
    content = read(*sys.argv[1:])
    for name in SCHEMES:
        figure = draw(name, *content)
        figure.savefig(HERE / f"review-{name}.png", dpi=150, facecolor=figure.get_facecolor())
    print(content[0])
