"""The picture of the first screen: which margin an optimiser maximises, for light and dark pages.

``python docs/first_picture.py`` reads the table that `bias-1` drew, ``experiments/bias-1.svg``, and
writes ``_static/readme/bias-light.svg`` and ``bias-dark.svg``.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
ROWS = {
    "normalised gradient descent": "gradient descent",
    "sign descent": "signs",
    "Muon": "Muon",
    "mirror descent, p = 1.5": "mirror descent",
    "normalised descent of K and Q": "keys and queries",
    "Adam": "Adam",
}
COLUMNS = {
    "Frobenius": "Frob.",
    "ℓ∞": "ℓ∞",
    "spectral": "spectral",
    "ℓ1.5": "ℓ1.5",
    "nuclear": "nuclear",
}
COLOURS = {
    "light": {"ink": "#1f2328", "faint": "#59636e", "best": "#00785a", "cell": "#00785a"},
    "dark": {"ink": "#f0f6fc", "faint": "#9198a1", "best": "#3ecba5", "cell": "#3ecba5"},
}
WIDTH, LEFT, TOP, ROW = 390, 122, 58, 34
ALT = (
    "Shares of the largest margin: gradient descent reaches it in the Frobenius norm, signs in the"
    " maximum norm, Muon in the spectral one, mirror descent in its own, keys and queries in the"
    " nuclear one, Adam in none."
)


def table() -> dict[tuple[str, str], str]:
    """The shares that are written in the picture of `bias-1`, by its titles of row and column."""
    text = (HERE / "experiments" / "bias-1.svg").read_text(encoding="utf-8")
    found = re.findall(r'<text[^>]*?x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)<', text)
    words = [(float(x), float(y), word) for x, y, word in found]
    numbers = [each for each in words if re.fullmatch(r"[\d.]+", each[2])]

    def nearest(position: float, axis: int, titles: dict[str, str]) -> tuple[float, str]:
        return min((abs(each[axis] - position), each[2]) for each in words if each[2] in titles)

    shares = {}
    for x, y, number in numbers:
        (far_x, column), (far_y, row) = nearest(x, 0, COLUMNS), nearest(y, 1, ROWS)
        if max(far_x, far_y) < 5:
            shares[row, column] = number
    return shares


def drawing(theme: str) -> str:
    """The picture, at most as wide as the screen of a telephone."""
    colour, shares = COLOURS[theme], table()
    step = (WIDTH - LEFT) / len(COLUMNS)
    height = TOP + ROW * len(ROWS) + 6
    pieces = [
        '<text x="0" y="18" class="t">Share of the largest margin in each norm</text>',
        *(
            f'<text x="{LEFT + (k + 0.5) * step:.1f}" y="{TOP - 12}" class="c">{title}</text>'
            for k, title in enumerate(COLUMNS.values())
        ),
    ]
    for k, (row, label) in enumerate(ROWS.items()):
        y = TOP + k * ROW
        values = [shares[row, column] for column in COLUMNS]
        pieces.append(f'<text x="0" y="{y + 21}" class="r">{escape(label)}</text>')
        for j, value in enumerate(values):
            leads = value == max(values, key=float) and float(value) > 0.95
            x = LEFT + j * step
            opacity = 0.9 if leads else 0.28 * float(value)
            pieces.append(
                f'<rect x="{x + 1:.1f}" y="{y + 1}" width="{step - 2:.1f}"'
                f' height="{ROW - 2}" rx="4" fill="{colour["cell"]}" fill-opacity="{opacity:.2f}"/>'
                f'<text x="{x + step / 2:.1f}" y="{y + 21}" class="{"b" if leads else "n"}">'
                f"{value.removeprefix('0')}</text>"
            )
    on_cell = "#ffffff" if theme == "light" else "#0d1117"
    style = (
        "text{font:14px -apple-system,'Segoe UI',Helvetica,Arial,sans-serif;"
        f"fill:{colour['ink']}}}"
        ".t{font-weight:600;font-size:15px}.c,.n,.b{text-anchor:middle}"
        f".c{{font-size:13px;fill:{colour['faint']}}}.b{{font-weight:700;fill:{on_cell}}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img" aria-label="{escape(ALT)}"><style>{style}</style>'
        + "".join(pieces)
        + "</svg>\n"
    )


if __name__ == "__main__":
    for theme in COLOURS:
        path = HERE / "_static" / "readme" / f"bias-{theme}.svg"
        path.write_text(drawing(theme), encoding="utf-8")
