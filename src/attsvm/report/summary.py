"""The first screen: the few numbers that answer whether the layer selects tokens like a max-margin
machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from attsvm.report.folder import Run
from attsvm.report.numbers import NONE, count, degrees, finite, number, percent, threshold

STATUS = {
    "optimal": "Both are within the tolerance",
    "infeasible": "No weights can put every selected token ahead of the others",
    "almost infeasible": "Weights that meet every margin would be too large for float64",
    "inaccurate": "The solver stopped before both were within the tolerance",
}


@dataclass(frozen=True)
class Key:
    """A key number: what it is called, its value, what stands beside it, and its definition."""

    name: str
    value: str
    beside: str
    definition: str


def keys(run: Run) -> list[Key]:
    """The row of key numbers, in the order of the argument."""
    return [_selected(run), _margin(run), _direction(run), _certificate(run), _accuracy(run)]


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


def _accuracy(run: Run) -> Key:
    listed = run.at("results.accuracy")
    entries = (
        {str(e.get("name")): e for e in listed if isinstance(e, dict)}
        if isinstance(listed, list)
        else {}
    )
    test = {name: finite(entry.get("test")) for name, entry in entries.items()}
    name = next((n for n in ("soft", "soft_final", "hard") if test.get(n) is not None), None)
    how = "from the selected token alone" if name == "hard" else "by soft attention"
    others = [
        (short, test.get(key))
        for key, short in (
            ("hard", "selected token"),
            ("mean_pooling", "mean pooling"),
            ("tfidf", "TF-IDF"),
            ("majority", "majority"),
        )
        if key != name
    ]
    return Key(
        "Test accuracy",
        percent(test[name]) if name else NONE,
        ", ".join(f"{short} {percent(value)}" for short, value in others if value is not None),
        f"Share of test sequences classified correctly {how}. Beside it: the selected token alone,"
        " the mean of all tokens, for texts the weighted counts of words, and the more frequent"
        " class.",
    )
