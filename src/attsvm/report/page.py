"""The page: one HTML file with its style, its figures and its data inside."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attsvm.printable import visible
from attsvm.report import examples, numbers, plane, summary, support
from attsvm.report.figures import accuracy_rows
from attsvm.report.folder import Run
from attsvm.report.style import Picture, inline

if TYPE_CHECKING:
    import jinja2

_TEMPLATES = Path(__file__).parent / "templates"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none';"
    " form-action 'none'"
)
"""What a browser may do with a page, whatever came into it from a file: no script, nothing loaded.
Styles are inside the page, and many are attributes, which a hash does not cover.
"""

_NAMES = {
    "d_x": "features of a token",
    "d_z": "features of a query",
    "n_train": "training sequences",
    "n_validation": "validation sequences",
    "n_test": "test sequences",
    "tokens": "tokens per sequence",
    "class_names": "classes (−1, +1)",
    "sha256": "SHA-256 of the data",
    "lr": "length of a step",
    "geometry_title": "norm",
    "geometry": "norm on the command line",
    "unique": "only solution",
    "tol": "tolerance",
    "slack": "slack penalty C",
    "hard": "hard margin",
    "norm": "norm of the max-margin weights",
    "margin": "best margin, 1 / norm",
    "gap": "certified gap",
    "violation": "largest violation",
    "trained_norm": "norm of the trained weights",
    "trained_min_margin": "their smallest margin",
    "trained_margin": "the same at norm one",
    "trained_margin_ratio": "the same over the best margin",
    "saturation": "saturated from probability",
}
_PARAMETERS = {"norm": "norm"}  # the one name that means something else among the results
_GAP_WORDS = {
    "cosine": "One minus the cosine of the angle between two weight matrices.",
    "divergence": (
        "How far the tangent plane of the {norm} at the trained weights lies below one at the"
        " max-margin weights, both scaled to norm one: the directional Bregman divergence of mirror"
        " descent. In the Frobenius norm it would be one minus the cosine."
    ),
    "margin": (
        "In the {norm} several directions may have the best margin, so margins are compared. The"
        " shortfall of the trained weights is one minus their share of the best margin."
    ),
}
CURVES = ("joint", "loss", "selection", "norm")


def _templates() -> jinja2.Environment:
    """The environment of every page: escaping on, numbers printed the house's way, the style sheet
    as ``css``.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,  # everything in a run folder may come from the user's data
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for convert in (numbers.count, numbers.number, numbers.percent, numbers.degrees, numbers.plain):
        environment.filters[convert.__name__] = convert
    environment.filters["mark"] = lambda verdict: {
        "holds": "✓",
        "fails": "✗",
        "not shown": "?",
    }.get(str(verdict), "–")
    environment.globals["policy"] = POLICY
    environment.globals["css"] = Markup((_TEMPLATES / "page.css").read_text(encoding="utf-8"))
    return environment


def document(
    template: str, filters: dict[str, Callable[..., str]] | None = None, **content: Any
) -> str:
    """A page from its template, without any character that steers a browser or a terminal: files
    may hold anything.
    """
    environment = _templates()
    environment.filters |= filters or {}
    return visible(environment.get_template(template).render(content))


def render_page(run: Run, pictures: dict[str, Picture]) -> str:
    """The HTML of the report."""
    from markupsafe import Markup

    peak = examples.peak(run)
    explored = plane.explorer(run)
    filters: dict[str, Callable[..., str]] = {
        "share": lambda value: f"{min(1.0, max(0.0, float(value))):.3f}",
        "shade": lambda value, full=1.0: f"{full * min(1.0, max(0.0, float(value) / peak)):.3f}",
    }
    return document(
        "page.html.j2",
        filters,
        at=run.at,
        pictures={name: (picture, Markup(inline(picture))) for name, picture in pictures.items()},
        curves=[name for name in CURVES if name in pictures],
        keys=summary.keys(run),
        norm_title=run.norm_title,
        frobenius=run.frobenius,
        gap_words=_GAP_WORDS[run.at("results.direction.measure") or "cosine"].format(
            norm=run.norm_title
        ),
        first_distance=run.at(
            "results.direction.first_gap" if run.frobenius else "results.direction.first_distance"
        ),
        claims=_objects(run.at("claims")),
        tally=tally(_objects(run.at("claims"))),
        accuracy=accuracy_rows(run),
        groups=examples.groups(run),
        shown=examples.SHOWN,
        peak=peak,
        constraints=support.constraints(run),
        class_names=run.class_names,
        commands=commands(run),
        explorer=explored and {key: Markup(text) for key, text in explored.items()},
        policy="; ".join([POLICY, explored["source"]]) if explored else POLICY,
        title=str(run.at("dataset.title") or run.at("dataset.name") or "attsvm"),
        fields=_fields(run),
    )


def tally(claims: list[dict[str, Any]]) -> str:
    """``5 of 7 claims hold, 1 not shown, 2 not applicable``: those that do not apply are not
    counted with the others, and not hidden.
    """
    verdicts = [claim.get("verdict") for claim in claims]
    counted = sum(verdicts.count(each) for each in ("holds", "fails", "not shown"))
    others = [(each, verdicts.count(each)) for each in ("not shown", "not applicable")]
    words = ([f"{verdicts.count('holds')} of {counted} claims hold"] if counted else []) + [
        f"{number} {each}" for each, number in others if number
    ]
    return ", ".join(words)


def commands(run: Run) -> list[str]:
    """What to type to compute the run again and to draw this page again."""
    recorded = run.at("command_line")
    if isinstance(recorded, list):
        recorded = shlex.join(str(word) for word in recorded)
    if not recorded:
        words = ["attsvm", "fit", str(run.at("dataset.source") or run.at("dataset.name") or "DATA")]
        for name, value in (run.at("parameters") or {}).items():
            if value is not None and value is not False:
                words += [
                    f"--{str(name).replace('_', '-')}",
                    *([] if value is True else [str(value)]),
                ]
        recorded = shlex.join(words)
    return [str(recorded), f"attsvm report {shlex.quote(run.folder.name or 'FOLDER')}"]


def _fields(run: Run) -> list[tuple[str, list[tuple[str, str]]]]:
    """Tables of names and values. Times stay in ``run.json``: the page of a run and of its
    repetition are the same, byte for byte.
    """
    dataset = {
        key: value
        for key, value in (run.at("dataset") or {}).items()
        if key not in ("notes", "title")
    }
    training = run.at("results.training") or {}
    tables = [
        ("Data", [(_words(key), numbers.plain(value)) for key, value in dataset.items()]),
        (
            "Parameters",
            [
                (_PARAMETERS.get(key, _words(key)), numbers.plain(value))
                for key, value in (run.at("parameters") or {}).items()
            ],
        ),
        (
            "Training",
            [
                (_words(key), numbers.plain(value))
                for key, value in training.items()
                if "second" not in key
            ],
        ),
        (
            "Margin programme",
            [
                (_words(key), numbers.plain(value))
                for key, value in (run.at("results.margin") or {}).items()
                if value != ""
            ],
        ),
        (
            "Environment",
            [
                ("attsvm", numbers.plain(run.at("attsvm"))),
                *((_words(k), numbers.plain(v)) for k, v in (run.at("environment") or {}).items()),
            ],
        ),
    ]
    return [(title, rows) for title, rows in tables if rows]


def _words(key: str) -> str:
    return _NAMES.get(key, key.replace("_", " "))


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
