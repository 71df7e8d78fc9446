"""The page: one HTML file with its style, its figures and its data inside."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.files import brief, write_file
from attsvm.base.printable import name_of, visible
from attsvm.base.store import announce
from attsvm.datasets.attention_data import AttentionData
from attsvm.norms import Lp, parse_norm
from attsvm.report import printing, token_sequences
from attsvm.report.endings import ENDS
from attsvm.report.explorer import fragment, script_hash, style
from attsvm.report.explorer.states import DataExample, state_of
from attsvm.report.figures import accuracy_rows, draw
from attsvm.report.printing import NONE, count, degrees, finite, number, percent, threshold
from attsvm.report.run_contents import Run, read
from attsvm.report.style import Picture, inline
from attsvm.report.token_sequences import token_name, view_of

if TYPE_CHECKING:
    import jinja2


_ARRAYS = ("tokens", "labels", "queries", "mask", "selected", "scores", "sequence")
LISTED = 12  # support constraints in the table: the largest multipliers, without scrolling
STATUS = {
    "optimal": "Both are within the tolerance",
    "infeasible": "No weights can put every selected token ahead of the others",
    "almost infeasible": "Weights that meet every margin would be too large for float64",
    "inaccurate": "The solver stopped before both were within the tolerance",
}
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
    "n_test": "test sequences",
    "tokens": "tokens per sequence",
    "class_names": "classes",
    "sha256": "SHA-256 of the data",
    "class_counts": "sequences of each class",
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
CURVES = ("loss", "selection", "norm")


@cache
def _templates(*folders: Path) -> jinja2.Environment:
    """The environment of every page: escaping on, numbers printed the house's way, the style sheet
    as ``css``. A template is compiled once.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([_TEMPLATES, *folders]),
        autoescape=True,  # everything in a run folder may come from the user's data
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for convert in (
        printing.count,
        printing.number,
        printing.percent,
        printing.degrees,
        printing.plain,
    ):
        environment.filters[convert.__name__] = convert
    environment.filters["share"] = lambda value: f"{min(1.0, max(0.0, float(value))):.3f}"
    environment.filters["fixed"] = lambda value: f"{value:.3f}".replace("-", printing.MINUS)
    environment.filters["mark"] = lambda verdict: {
        "holds": "✓",
        "fails": "✗",
        "not shown": "?",
        "undecided": "~",
    }.get(str(verdict), "–")
    environment.globals["policy"] = POLICY
    environment.globals["css"] = Markup((_TEMPLATES / "page.css").read_text(encoding="utf-8"))
    return environment


def document(template: str | Path, **content: Any) -> str:
    """A page from its template, without any character that steers a browser or a terminal: files
    may hold anything.
    """
    template = Path(template)
    environment = _templates(*([template.parent] if template.is_absolute() else []))
    return visible(environment.get_template(template.name).render(content))


def render_page(run: Run, pictures: dict[str, Picture]) -> str:
    """The HTML of the report."""
    from markupsafe import Markup

    explored, groups = explorer(run), token_sequences.groups(run)
    return document(
        "page.html.j2",
        at=run.at,
        pictures={name: (picture, Markup(inline(picture))) for name, picture in pictures.items()},
        curves=[name for name in CURVES if name in pictures],
        keys=keys(run),
        norm_title=run.norm_title,
        frobenius=run.frobenius,
        gap_words=_GAP_WORDS[run.at("results.direction.measure") or "cosine"].format(
            norm=run.norm_title
        ),
        first_distance=run.at(
            "results.direction.first_gap" if run.frobenius else "results.direction.first_distance"
        ),
        claims=run.objects("claims"),
        tally=tally(run.objects("claims")),
        accuracy=accuracy_rows(run),
        words=run.objects("results.words"),
        ends=end_paragraphs(run.at("verdict.ends")),
        errors=[group for group in groups if group.name == "wrong"],
        groups=[group for group in groups if group.name != "wrong"],
        unequal=has_unequal_classes(run.at("dataset") or {}),
        shown=token_sequences.SHOWN,
        peak=token_sequences.peak(run),
        constraints=constraints(run),
        class_names=run.class_names,
        commands=commands(run),
        explorer=explored and {key: Markup(text) for key, text in explored.items()},
        policy="; ".join([POLICY, explored["source"]]) if explored else POLICY,
        title=str(run.at("dataset.title") or run.at("dataset.name") or "attsvm"),
        fields=_fields(run),
    )


def has_unequal_classes(dataset: dict[str, Any]) -> bool:
    """Whether recall by class says more than accuracy: there are more than two classes, or six of
    ten held-out sequences are of one.
    """
    counts = (dataset.get("class_counts") or {}).get("test") or []
    return len(counts) > 2 or (len(counts) == 2 and max(counts) >= 0.6 * sum(counts))


def end_paragraphs(ends: object) -> list[tuple[str, str]]:
    """Titles and paragraphs of the ``ends`` of a verdict; empty where it names none."""
    names = ends if isinstance(ends, list) else []
    return [ENDS[name] for name in names if name in ENDS]


def tally(claims: list[dict[str, Any]]) -> str:
    """``5 of 7 claims hold, 1 undecided, 2 not applicable``: those that are undecided, or do not
    apply, are not counted with the others, and not hidden.
    """
    verdicts = [claim.get("verdict") for claim in claims]
    counted = sum(verdicts.count(verdict) for verdict in ("holds", "fails", "not shown"))
    others = [
        (verdict, verdicts.count(verdict))
        for verdict in ("undecided", "not shown", "not applicable")
    ]
    words = ([f"{verdicts.count('holds')} of {counted} claims hold"] if counted else []) + [
        f"{number} {verdict}" for verdict, number in others if number
    ]
    return ", ".join(words)


def commands(run: Run) -> list[str]:
    """Commands that compute the run again and draw this page again, both in the folder where the
    first was typed.
    """
    recorded = run.at("command_line") or ""
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--out", nargs="?")
    known, _ = options.parse_known_args(shlex.split(recorded))
    folder = known.out or run.folder.name or "FOLDER"
    return [*filter(None, [recorded]), f"attsvm report {shlex.quote(folder)}"]


def _fields(run: Run) -> list[tuple[str, list[tuple[str, str]]]]:
    """Tables of names and values. Times stay in ``run.json``: the page of a run and of its
    repetition are the same, byte for byte.
    """

    def rows(path: str, *without: str, **named: str) -> list[tuple[str, str]]:
        names = _NAMES | named
        return [
            (names.get(key, key.replace("_", " ")), printing.plain(value))
            for key, value in (run.at(path) or {}).items()
            if key not in without and value != ""
        ]

    tables = [
        ("Data", rows("dataset", "notes", "title")),
        ("Parameters", rows("parameters", norm="norm")),
        ("Training", rows("results.training")),
        ("Margin programme", rows("results.margin")),
        ("Environment", [("attsvm", printing.plain(run.at("attsvm"))), *rows("environment")]),
    ]
    return [(title, rows) for title, rows in tables if rows]


@dataclass(frozen=True)
class Key:
    """A key number: what it is called, its value, what stands beside it, and its definition."""

    name: str
    value: str
    beside: str
    definition: str


def keys(run: Run) -> list[Key]:
    """The row of key numbers, in the order of the argument."""
    return [_selected(run), _margin(run), _direction(run), _certificate(run)]


def _selected(run: Run) -> Key:
    sequences, saturated = (
        finite(run.at("results.selection.sequences")),
        finite(run.at("results.selection.saturated")),
    )
    share = saturated / sequences if sequences and saturated is not None else None
    least = threshold(run.at("results.selection.threshold"))
    return Key(
        "Select one token",
        percent(share),
        f"{count(saturated)} of {count(sequences)} sequences",
        "Training sequences with two tokens or more whose selected token has a softmax probability"
        f" of at least {least}.",
    )


def _margin(run: Run) -> Key:
    ratio = finite(run.at("results.margin.trained_margin_ratio"))
    slack = finite(run.at("results.margin.slack"))
    soft = run.at("results.margin.hard") is False
    beside = (
        ""
        if ratio is None
        else (
            f"trained: {percent(ratio)} of it"
            if ratio >= 0
            else f"trained: {number(run.at('results.margin.trained_margin'))}"
        )
    )
    what = (
        "The largest value that the smallest margin of all constraints can take for weights of"
        f" {run.norm_title} one: 1 / ‖W‖ of the max-margin weights."
    )
    if soft:
        what = (
            f"1 / ‖W‖ of the soft-margin weights, C = {number(slack)}: not all selected tokens are"
            " separable, so some margins fall short."
        )
    return Key(
        "Soft margin" if soft else "Best margin",
        number(run.at("results.margin.margin")),
        beside,
        what,
    )


def _direction(run: Run) -> Key:
    angle = f"angle {degrees(run.at('results.direction.angle_degrees'))}"
    measure, norm = run.at("results.direction.measure"), run.norm_title
    if measure == "margin":
        distance = finite(run.at("results.direction.distance"))
        reached = None if distance is None else max(1.0 - distance, 0.0)
        return Key(
            "Margin reached",
            percent(reached),
            f"{angle} to one solution",
            f"The smallest margin of the trained weights over the best possible, both at {norm}"
            " one. Several directions may be best.",
        )
    if measure == "divergence":
        return Key(
            "Direction gap",
            number(run.at("results.direction.distance"), 2),
            angle,
            f"Bregman divergence of the {norm} between the directions of the max-margin and the"
            " trained weights. 0: same direction.",
        )
    return Key(
        "Direction gap",
        number(run.at("results.direction.gap"), 2),
        angle,
        "One minus the cosine between the trained weights and the max-margin weights. 0: same"
        " direction; 1: perpendicular.",
    )


def _certificate(run: Run) -> Key:
    status = str(run.at("results.margin.status") or NONE)
    known = STATUS.get(status, status)
    if status in ("infeasible", "almost infeasible"):
        return Key(
            "Certificate",
            status,
            "no margin exists" if status == "infeasible" else "hardly any margin",
            f"{known}.",
        )
    gap, violation = run.at("results.margin.gap"), run.at("results.margin.violation")
    what = (
        "Gap: relative distance of the norm to a proven lower bound. Violation: largest shortfall"
        " of a constraint."
    )
    beside = f"gap {number(gap, 2)}, violation {number(violation, 2)}"
    return Key(
        "Certificate", status, beside, f"{what} {known}, {number(run.at('results.margin.tol'), 2)}."
    )


@dataclass(frozen=True)
class Constraint:
    """One row of the table.

    Attributes:
        row: of the sequence in its file, from 1.
        selected: the selected token in words, or ``token 3``.
        rival: the token that it has to beat.
        selected_patch: picture of the selected token, for images.
        rival_patch: picture of the rival.
        dual: dual variable.
        share: dual over the sum of all duals.
        margin: margin of the constraint at the max-margin weights; 1 on the boundary.
    """

    row: int
    selected: str
    rival: str
    selected_patch: token_sequences.Photo | None
    rival_patch: token_sequences.Photo | None
    dual: float
    share: float
    margin: float


def constraints(run: Run) -> list[Constraint]:
    """The constraints with the largest duals, at most :data:`LISTED`; empty when the run has
    none.
    """
    columns = run.series("dual", "constraint_sequence", "constraint_token", "margin_values")
    if columns is None:
        return []
    dual, sequences, rivals, values = columns
    total = float(dual[dual > 0].sum())
    selected, explained = run.arrays["selected"], run.arrays["explained"]
    file_rows = run.arrays.get("explained_rows", explained)  # runs of older versions have none
    views = {e["sequence"]: view_of(e) for e in run.examples if e["part"] == "train"}
    scale = token_sequences.value_range([view_of(example) for example in run.examples])
    rows = []
    for c in np.argsort(-dual, kind="stable")[:LISTED]:
        if dual[c] <= 0:
            break
        # i counts within the sequences of the theory, examples within the original data
        i, rival = int(sequences[c]), int(rivals[c])
        token, sequence = int(selected[i]), int(explained[i])
        view = views.get(sequence, {})
        image = view.get("kind") == "image"
        rows.append(
            Constraint(
                row=int(file_rows[i]),
                selected=token_name(view, token),
                rival=token_name(view, rival),
                selected_patch=token_sequences.crop(view, token, scale) if image else None,
                rival_patch=token_sequences.crop(view, rival, scale) if image else None,
                dual=float(dual[c]),
                share=float(dual[c]) / total,
                margin=float(values[c]),
            )
        )
    return rows


def explorer(run: Run) -> dict[str, str] | None:
    """The explorer for the template: its fragment, its style, and the source for the
    Content-Security-Policy. None where the run holds no tokens in the plane.
    """
    arrays = [run.arrays.get(f"plane_{name}") for name in _ARRAYS]
    if any(array is None for array in arrays):
        return None
    tokens, labels, queries, mask, selected, scores, sequence = arrays
    data = AttentionData(tokens, labels, queries, mask)  # type: ignore[arg-type]
    norm = parse_norm(str(run.at("results.margin.geometry") or "fro"))
    p = max(1.1, norm.p) if isinstance(norm, Lp) else 2.0
    numbers = np.asarray(sequence)
    if (rows := run.arrays.get("explained_rows", run.arrays.get("explained"))) is not None:
        numbers = rows[numbers]  # as in the table of constraints
    names = ", ".join(
        f"{name} is row {number}" for name, number in zip("ABCDE", numbers, strict=False)
    )
    prompt = (
        "the best prompt for them alone"
        if data.queries.shape[-1] == 1
        else "the best prompt for them alone, one and the same for all, where the run has a query"
        " of each sequence's own"
    )
    sentence = (
        f"Some training sequences of this run ({names}), with the tokens that it selected filled."
        f" The green arrow is {prompt}, and training (blue) turns towards it. Drag any token."
    )
    return {
        "html": fragment(DataExample(state_of(data, selected, scores, p), "this run", sentence)),
        "css": style(),
        "source": f"script-src '{script_hash()}'",
    }


def write_report(folder: Path, record: dict[str, Any] | None) -> Path:
    """See :func:`attsvm.report.write`: everything is drawn before the first file is written."""
    run = read(folder, record)
    try:
        pictures = draw(run)
        page = render_page(run, pictures).encode("utf-8")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if record is not None or isinstance(error, InputError):  # not read from files
            raise
        raise InputError(
            f"the files in {name_of(folder)} are not as attsvm fit writes them"
            f" ({type(error).__name__}: {brief(str(error))}); delete the folder and fit again"
        ) from error
    contents = {
        f"figures/{name}": content
        for picture in pictures.values()
        for name, content in picture.files().items()
    }
    announce(folder, {*contents, "report.html"})
    (folder / "figures").mkdir(exist_ok=True)
    for name, data in (contents | {"report.html": page}).items():
        write_file(folder / name, data)
    return folder / "report.html"
