"""One look for every figure: palette, axes, labels at the lines, courses and histograms, and the
way into a page.

A figure is about as wide as a phone. It is drawn on white for its files; on the page every colour
becomes a CSS variable, so that the same drawing follows a light or a dark screen.
"""

from __future__ import annotations

import io
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attsvm.base.printable import visible
from attsvm.report.printing import count, power_of_ten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, FAINT, RULE, PAPER = "#22262b", "#5f6670", "#d3d7dd", "#ffffff"
TRAINED, BEST, ATTENTION = "#00639c", "#00745a", "#b84a00"
WIDTH = 4.4  # inches

CSS_VARIABLES = {
    INK: "--ink",
    FAINT: "--faint",
    RULE: "--rule",
    PAPER: "--paper",
    TRAINED: "--trained",
    BEST: "--best",
    ATTENTION: "--attention",
}

_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.parse_math": False,  # a dollar sign in a class name is a dollar sign
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": FAINT,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titlepad": 7,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "lines.markersize": 4,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "savefig.facecolor": PAPER,
    "svg.fonttype": "none",
    "svg.hashsalt": "attsvm",
    "svg.image_inline": True,
}


@dataclass(frozen=True)
class PictureOptions:
    """How pictures are saved.

    Attributes:
        dots: dots per inch of the PNG.
        lay_out: whether texts and axes are placed so that nothing overlaps, which takes most of the
            time.
        formats: further ones beside SVG and PNG: ``pdf``, or ``pgf`` for LaTeX.
    """

    dots: int = 200
    lay_out: bool = True
    formats: tuple[str, ...] = ()


_FOR_READERS = PictureOptions()
_OPTIONS = ContextVar("picture options", default=_FOR_READERS)


@contextmanager
def saved_with(options: PictureOptions) -> Iterator[None]:
    """A block in which pictures are saved with these options."""
    token = _OPTIONS.set(options)
    try:
        yield
    finally:
        _OPTIONS.reset(token)


@dataclass(frozen=True)
class Picture:
    """A drawn figure with the words that belong to it.

    Attributes:
        name: file name without suffix, and the anchor on the page.
        title: what the figure shows, a few words.
        caption: how to read it, one or two sentences.
        alt: what a reader would see, for those who cannot.
        svg: the figure as a stand-alone file.
        png: the same as pixels, see :class:`PictureOptions`.
        width: inches.
        others: the same in further formats, by suffix, see :class:`PictureOptions`.
    """

    name: str
    title: str
    caption: str
    alt: str
    svg: bytes
    png: bytes
    width: float = WIDTH
    others: Mapping[str, bytes] = field(default_factory=dict)

    def files(self) -> dict[str, bytes]:
        """Contents by name, of every format."""
        contents = {".svg": self.svg, ".png": self.png, **self.others}
        return {f"{self.name}{suffix}": content for suffix, content in contents.items()}


def _matplotlib() -> Any:
    """matplotlib, whatever the environment calls its backend: a figure that goes into a file needs
    none, and a name that is no backend would end the import. A name that is one is kept.
    """
    if "matplotlib" in sys.modules:
        return sys.modules["matplotlib"]
    named = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib as mpl
    finally:
        if named is not None:
            os.environ["MPLBACKEND"] = named
    if named:
        with suppress(ValueError):
            mpl.rcParams["backend"] = named
    return mpl


@contextmanager
def canvas(
    height: float, rows: int = 1, columns: int = 1, width: float = WIDTH, **grid: Any
) -> Iterator[tuple[Figure, NDArray[Any]]]:
    """A figure ``width`` by ``height`` inches with its axes, drawn in the house style inside the
    ``with`` block.
    """
    mpl = _matplotlib()
    from matplotlib.figure import Figure

    defaults: dict[str, Any] = {
        key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith("backend")
    }
    settings: Any = defaults | _STYLE  # a reader's own matplotlibrc must not change the report
    with mpl.rc_context(settings):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, np.atleast_1d(figure.subplots(rows, columns, **grid))


def render(figure: Figure, name: str, title: str, caption: str, alt: str) -> Picture:
    """The figure as a :class:`Picture`; call it inside :func:`canvas`."""
    import warnings

    svg, png, options = io.BytesIO(), io.BytesIO(), _OPTIONS.get()
    with warnings.catch_warnings():
        # a script that the bundled font lacks; the page uses the reader's fonts
        warnings.filterwarnings("ignore", message="Glyph")
        if options.lay_out:
            _lay_out(figure)
        else:
            figure.set_layout_engine(None)
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=options.dots, metadata={"Software": None})
        others = {f".{kind}": _saved_as(figure, kind) for kind in options.formats}
    drawing = visible(svg.getvalue().decode("utf-8")).encode("utf-8")
    width = float(figure.get_figwidth())
    return Picture(name, title, caption, alt, drawing, png.getvalue(), width, others)


def _saved_as(figure: Figure, kind: str) -> bytes:
    """The figure in a format for papers, without its date."""
    content = io.BytesIO()
    options: dict[str, Any] = {"metadata": {"CreationDate": None}} if kind == "pdf" else {}
    figure.savefig(content, format=kind, **options)
    return content.getvalue()


def _lay_out(figure: Figure) -> None:
    """Place everything where saving an SVG would, once: with a layout engine, matplotlib draws a
    figure a second time for each format.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    engine, dots = figure.get_layout_engine(), figure.dpi
    FigureCanvasSVG(figure)  # texts are measured as an SVG has them, at its 72 dots per inch
    figure.set_dpi(72)
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine(None)
    figure.set_dpi(dots)


def inline(picture: Picture) -> str:
    """The SVG element for a page: own ids, colours as CSS variables, the page's fonts, no
    declarations, no addresses.
    """
    text = picture.svg.decode("utf-8")
    text = text[text.index("<svg") :]
    head, _, body = text.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = body.replace("xlink:href", "href")
    body = re.sub(r'\bid="', f'id="{picture.name}-', body)
    body = re.sub(r'(url\(#|href="#)', rf"\g<1>{picture.name}-", body)
    body = re.sub(r"font-family: *[^;\"]*", "font-family: var(--sans)", body)
    body = re.sub(r"(font: [^;\"]*?px) [^;\"]*", r"\1 var(--sans)", body)
    for colour, variable in CSS_VARIABLES.items():
        body = body.replace(colour, f"var({variable})")
    body = re.sub(r"\n\s*", "\n", body)
    return f'<svg {box.group(0) if box else ""} aria-hidden="true" focusable="false">{body.strip()}'


def tick(value: float, _position: object = None) -> str:
    """Label of a logarithmic axis: plain from 0.01 to 10 000, powers of ten beyond."""
    if value <= 0:
        return ""
    exponent = math.floor(math.log10(value) + 1e-9)
    mantissa = value / 10.0**exponent
    if -2 <= exponent <= 4:
        return count(value) if exponent >= 0 else f"{value:.{-exponent}f}"
    return (
        power_of_ten(exponent)
        if abs(mantissa - 1) < 1e-6
        else f"{mantissa:.0f}·{power_of_ten(exponent)}"
    )


def logarithmic(axis: Axis, values: NDArray[Any]) -> None:
    """Make this axis logarithmic, with labels even when the values span less than a decade, and
    marks at 2 and 5 where it shows a few.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    positive = values[np.isfinite(values) & (values > 0)]
    span = float(positive.max() / positive.min()) if len(positive) else 1.0
    set_scale = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    set_scale("log")
    axis.set_major_locator(
        LogLocator(subs=(1.0,) if span >= 50 else (1.0, 2.0, 5.0), numticks=7 if span >= 50 else 12)
    )
    between = LogLocator(subs=(2.0, 5.0)) if 50 <= span < 1e4 else NullLocator()
    axis.set_minor_locator(between)
    axis.set_major_formatter(FuncFormatter(tick))
    axis.set_minor_formatter(NullFormatter())


def label_ends(axes: Axes, labels: Sequence[tuple[float, str, str]], spacing: float = 0.1) -> None:
    """Write ``(value, text, colour)`` at the right end of the lines, moved apart where they would
    touch.
    """
    to_fraction = axes.transData + axes.transAxes.inverted()
    x = axes.get_xlim()[1]
    ends = sorted(
        (
            (float(to_fraction.transform((x, value))[1]), text, colour)
            for value, text, colour in labels
        ),
        key=lambda p: p[0],
    )
    heights = [min(max(end[0], 0.0), 1.0) for end in ends]
    for k in range(1, len(heights)):
        heights[k] = max(heights[k], heights[k - 1] + spacing * (1 + ends[k - 1][1].count("\n")))
    excess = heights[-1] - 1.0 if heights else 0.0
    if excess > 0:  # push the stack down from the top
        heights[-1] = 1.0
        for k in range(len(heights) - 2, -1, -1):
            heights[k] = min(heights[k], heights[k + 1] - spacing * (1 + ends[k][1].count("\n")))
    for height, (_, text, colour) in zip(heights, ends, strict=True):
        axes.text(
            1.02,
            height,
            text,
            color=colour,
            transform=axes.transAxes,
            va="center",
            ha="left",
            linespacing=1.05,
        )


def markers(records: int) -> str:
    """Dots at the records while they can be told apart."""
    return "o" if records <= 12 else ""


def course(
    axes: Axes,
    steps: NDArray[Any],
    values: NDArray[Any],
    colour: str = TRAINED,
    *,
    logarithmic_values: bool = False,
    **line: Any,
) -> NDArray[np.bool_]:
    """A quantity against the steps on a logarithmic axis; records that such an axis cannot show are
    left out. Returns which records are shown.
    """
    is_drawn: NDArray[np.bool_] = np.isfinite(steps) & (steps > 0)
    rows = values if values.ndim == 1 else values.max(axis=1)
    is_drawn &= np.isfinite(rows) & ((rows > 0) if logarithmic_values else True)
    if is_drawn.any():
        axes.plot(
            steps[is_drawn],
            values[is_drawn],
            color=colour,
            marker=markers(int(is_drawn.sum())),
            **line,
        )
        logarithmic(axes.xaxis, steps[is_drawn])
        if logarithmic_values:
            logarithmic(axes.yaxis, values[is_drawn])
    return is_drawn


def histogram(
    axes: Axes, values: NDArray[Any], low: float, high: float, colour: str = BEST, bins: int = 36
) -> None:
    """Counts of values between ``low`` and ``high``; those above stand in the last bar."""
    edges = np.linspace(low, high if high > low else low + 1.0, bins + 1)
    heights, _ = np.histogram(np.minimum(values, edges[-1]), edges)
    axes.stairs(heights, edges, fill=True, color=colour, linewidth=0)
    axes.set_ylim(0, max(1.0, 1.3 * heights.max()))
    axes.locator_params(axis="y", integer=True, nbins=3)
