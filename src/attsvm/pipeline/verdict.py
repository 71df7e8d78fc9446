"""The claims of a fit, and what they add up to."""

from __future__ import annotations

import math
from typing import Any

SELECTING_SHARE = 0.95
DIRECTION_GAP = 0.01
MARGIN_SHARE = 0.9
ACCURACY_POINTS = 0.01
OVERFITTING = 0.1
"""Accuracy on the training part minus that on the validation part, from which on more steps are not
advised; two standard errors where those are more.
"""


def claims(results: dict[str, Any], n_test: int) -> list[dict[str, Any]]:
    """The ``claims`` of ``run.json``, each with statement, measured value, threshold, verdict and
    reason.
    """
    selection, margin, direction = results["selection"], results["margin"], results["direction"]
    accuracy = {entry["name"]: entry["test"] for entry in results["accuracy"]}
    share = selection["saturated"] / selection["sequences"]
    return [
        claim(
            "selection",
            f"At least {SELECTING_SHARE:.0%} of the sequences give {selection['threshold']:.0%} of"
            " their attention to one token.",
            share,
            SELECTING_SHARE,
            share >= SELECTING_SHARE,
            "a few sequences with small margins saturate last",
        ),
        certificate(margin, "selected tokens"),
        *_comparison(margin, direction),
        *accuracy_claims(
            accuracy,
            n_test,
            "Soft attention",
            "attention starts as mean pooling, so it should lose nothing but noise",
        ),
    ]


def certificate(margin: dict[str, Any], of: str) -> dict[str, Any]:
    """The claim that the max-margin solution of these tokens is proved optimal."""
    return claim(
        "certificate",
        f"The max-margin solution of the {of} is proved optimal: relative duality gap and violation"
        " within the tolerance.",
        max(margin["gap"], margin["violation"]),
        margin["tol"],
        margin["status"] == "optimal",
        "both numbers are recomputed from the original data",
    )


def accuracy_claims(
    accuracy: dict[str, float], n_test: int, subject: str, reason: str
) -> list[dict[str, Any]]:
    """The claims about held-out labels: beside mean pooling, and beside a random token."""
    behind = accuracy["mean_pooling"] - accuracy["soft"]
    return [
        claim(
            "accuracy",
            f"{subject} predicts held-out labels at least as well as mean pooling, to one point.",
            -behind,
            -ACCURACY_POINTS,
            # Counts, not floats: one point of n_test sequences is a whole number of them, rounded
            # down.
            round(behind * n_test) <= ACCURACY_POINTS * n_test,
            reason,
        ),
        claim(
            "control",
            "The selected token predicts held-out labels better than a random token.",
            accuracy["hard"] - accuracy["random_token"],
            0.0,
            accuracy["hard"] > accuracy["random_token"],
            "otherwise the selection would carry no information",
        ),
    ]


def _comparison(margin: dict[str, Any], direction: dict[str, Any]) -> list[dict[str, Any]]:
    """The two claims about the trained weights and the solution, in the measure that the norm
    allows.
    """
    distance, norm = direction["distance"], margin["geometry_title"]
    certified, reached = margin["status"] == "optimal", 1.0 - distance
    along = "The trained weights point along the max-margin solution:"
    theory = "the theory says 0 in the limit, approached slowly"
    name, statement, reason, course = {
        "margin": (
            "margin",
            f"The trained weights reach at least {MARGIN_SHARE:.0%} of the best margin in the"
            f" {norm}.",
            f"several directions may be best in the {norm}, so margins are compared; 90 % is"
            " weights at most a ninth longer than necessary",
            "shortfall of the margin",
        ),
        "divergence": (
            "direction",
            f"{along} the directional Bregman divergence in the {norm} is at most"
            f" {DIRECTION_GAP:g}.",
            f"0.01 is what an angle of 8.1 degrees is in the Frobenius norm; {theory}",
            "divergence of the direction",
        ),
        "cosine": (
            "direction",
            f"{along} 1 - cosine is at most {DIRECTION_GAP:g}.",
            f"0.01 is an angle of 8.1 degrees; {theory}",
            "direction gap",
        ),
    }[direction["measure"]]
    measured, threshold, holds = (
        (reached, MARGIN_SHARE, reached >= MARGIN_SHARE)
        if name == "margin"
        else (distance, DIRECTION_GAP, distance <= DIRECTION_GAP)
    )
    return [
        claim(name, statement, measured, threshold, holds if certified else None, reason),
        claim(
            "approach",
            f"The {course} is still falling: its last record is below that at half of the training,"
            " and below nine tenths of that at a tenth of it.",
            distance,
            min(0.9 * direction["first_distance"], direction["midway_distance"]),
            direction["falling"] if certified else None,
            f"convergence in {name} has no finite end, so an honest run must still improve",
        ),
    ]


def claim(
    name: str, statement: str, measured: float, threshold: float, holds: bool | None, reason: str
) -> dict[str, Any]:
    """One of the ``claims``; ``holds`` is None where it is not applicable."""
    verdict = "not applicable" if holds is None else "holds" if holds else "fails"
    return {
        "id": name,
        "statement": statement,
        "measured": measured,
        "threshold": threshold,
        "verdict": verdict,
        "reason": reason,
    }


def verdict(
    results: dict[str, Any], stated: list[dict[str, Any]], n_validation: int, kind: str = "array"
) -> dict[str, Any]:
    """The ``verdict`` of ``run.json``: in the headline what was asked; beside it the nulls;
    in the sentences what the theory says, and its ends by their names in
    :data:`attsvm.report.endings.ENDS`.

    Args:
        results: of ``run.json``.
        stated: :func:`claims`.
        n_validation: sequences of the validation part.
        kind: what a token is, ``text``, ``image`` or ``array``.
    """
    selection, margin, direction = results["selection"], results["margin"], results["direction"]
    holds = {one["id"]: one["verdict"] == "holds" for one in stated}
    ok = (
        holds["selection"]
        and holds["certificate"]
        and holds["margin" if direction["measure"] == "margin" else "direction"]
    )
    saturated, total = selection["saturated"], selection["sequences"]
    selecting = (
        f"all {total} sequences select one token"
        if saturated == total
        else f"{saturated} of {total} sequences select one token"
    )
    name = "max-margin" if margin["hard"] else "soft-margin"
    if not ok and not holds["certificate"]:
        end = "undecided"
        theory = (
            f"Undecided: {selecting}, but the {name} solution could not be certified to the"
            " tolerance asked for."
        )
    else:
        end = "yes" if ok else "not yet"
        theory = (
            f"{end.capitalize()}: {selecting}, and the trained {_reached(margin, direction, name)}."
        )
    sentences = [theory]
    if not holds["selection"]:
        sentences.append(_advice(results, n_validation))
    sentences += [_margin_sentence(margin), _direction_sentence(margin, direction, holds)]
    if not margin["hard"]:
        sentences.append(
            f"{_WITHOUT[margin['hard_status']]}, so the soft margin was solved instead."
        )
    return {
        "headline": answer(results["accuracy"], kind),
        "holds": ok,
        "ends": [end] if margin["hard"] else [end, margin["hard_status"]],
        "beside": nulls(results["accuracy"], kind),
        "sentences": sentences,
    }


_WITHOUT = {
    "infeasible": "No weights select all these tokens at once (hard margin infeasible)",
    "almost infeasible": (
        "Weights that select all these tokens at once, if any exist, are too large for float64"
        " (hard margin almost infeasible)"
    ),
}
_WORDS = {
    # what a token, what several of them, and what several sequences are called
    "text": ("word", "words", "texts"),
    "image": ("patch", "patches", "images"),
    "array": ("token", "tokens", "sequences"),
}
_BASELINES = {
    "mean_pooling": "mean pooling",
    "tfidf": "TF-IDF with logistic regression",
    "majority": "the more frequent label",
}


def answer(accuracy: list[dict[str, Any]], kind: str) -> str:
    """How often the chosen token alone is right, and all of them, with the strongest baseline; for
    texts always with TF-IDF.
    """
    test = {entry["name"]: entry["test"] for entry in accuracy}
    one, many, several = _WORDS[kind]
    known = sorted((name for name in _BASELINES if name in test), key=lambda name: -test[name])
    beside = known[:1] + [name for name in known[1:] if name == "tfidf"]
    return (
        f"The chosen {one} alone is right on {test['hard']:.1%} of held-out {several}; all {many}"
        f" together {test['soft']:.1%}; "
        + "; ".join(f"{_BASELINES[name]} {test[name]:.1%}" for name in beside)
        + "."
    )


def nulls(accuracy: list[dict[str, Any]], kind: str) -> str:
    """What stands beside the chosen token: tokens chosen in other ways, and all of them."""
    test = {entry["name"]: entry["test"] for entry in accuracy}
    one, many, _ = _WORDS[kind]
    ways = [("random_token", f"a random {one}")]
    if "extreme_token" in test:
        ways.append(("extreme_token", f"the most extreme {one} of a regression on single {many}"))
    ways.append(("mean_pooling", f"the mean of all {many}"))
    return (
        f"Beside the chosen {one}, right on {test['hard']:.1%}: "
        + ", ".join(f"{what} is right on {test[name]:.1%}" for name, what in ways)
        + "."
    )


_NAMED = 8


def words_sentence(classes: list[dict[str, Any]]) -> str:
    """The words chosen most often, class by class; empty where there are none."""
    named = [
        f"for {one['class']}: {', '.join(row['word'] for row in one['words'][:_NAMED])}"
        for one in classes
        if one["words"]
    ]
    return f"Chosen most often {'; '.join(named)}." if named else ""


def _advice(results: dict[str, Any], n_validation: int) -> str:
    """Whether more steps would bring in the sequences that do not select one token yet, as far as
    this run tells.
    """
    selection, steps = results["selection"], results["training"]["steps"]
    end = next(entry for entry in results["accuracy"] if entry["name"] == "soft_final")
    train, validation = end["train"], end["validation"]
    both = (train + validation) / 2.0
    chance = 2.0 * math.sqrt(both * (1.0 - both) / n_validation)
    if train - validation > max(OVERFITTING, chance):
        return (
            f"With the weights at the end attention is right on {train:.1%} of the training and"
            f" {validation:.1%} of the validation sequences, so more steps are not advised: they"
            " fit the training part further. All tokens together are read with the weights of step"
            f" {results['training']['best_joint_step']} of joint training, where the validation"
            " loss was smallest."
        )
    midway = selection["midway"]
    gained = selection["saturated"] - midway["saturated"]
    since = f"between step {midway['step']} and the end, step {steps}"
    if gained > 0:
        return f"{gained} of them came to it {since}, so more steps (--steps) may bring in others."
    return (
        f"Their number did not rise {since}, so more steps are unlikely to bring in others; the"
        f" least sure gives its token {selection['min_probability']:.1%} of its attention, where"
        f" {selection['threshold']:.0%} is asked for."
    )


def _reached(margin: dict[str, Any], direction: dict[str, Any], kind: str) -> str:
    """How far the trained weights came, after ``the trained``."""
    norm, angle = margin["geometry_title"], direction["angle_degrees"]
    if direction["measure"] == "margin":
        return (
            f"weights reach {_percent(1.0 - direction['distance'])} of the certified best margin in"
            f" the {norm}"
        )
    if direction["measure"] == "divergence":
        return (
            f"direction is at a Bregman divergence of {direction['distance']:.2g} from the"
            f" certified {kind} solution in the {norm}"
        )
    return f"direction is {angle:.2g}° from the certified {kind} solution"


def _percent(share: float) -> str:
    return f"{100 * max(share, 0.0):.3g} %"


def _margin_sentence(margin: dict[str, Any]) -> str:
    if margin["status"] != "optimal":
        return _stopped_sentence(margin)
    norm = "" if margin["geometry"] == "fro" else f" in the {margin['geometry_title']}"
    return (
        f"The best possible margin for these selections{norm} is {margin['margin']:.4g}; the"
        f" trained weights reach {_percent(margin['trained_margin_ratio'])} of it."
        f" {margin['support_constraints']} of {margin['constraints']} constraints hold it up, in"
        f" {margin['support_sequences']} sequences."
    )


def _stopped_sentence(margin: dict[str, Any]) -> str:
    """What is missing from a certificate, and what may help."""
    numbers = {"relative gap": margin["gap"], "violation": margin["violation"]}
    above = [f"{name} of {value:.2g}" for name, value in numbers.items() if value > margin["tol"]]
    missed = " and ".join(above) or "rounding in terms that cancel"
    stopped = (
        f"The solver stopped at weights of margin {margin['margin']:.4g}, whose {missed}"
        f" {'are' if len(above) > 1 else 'is'} above the tolerance of {margin['tol']:.2g}"
    )
    if margin["out_of_time"]:
        return (
            f"{stopped}, because its time was up; more of it (--solve-seconds) or a looser"
            " tolerance (--tol) may let it finish."
        )
    if margin["gap"] >= 1.0 or not above:
        return f"{stopped}; it had time left, and more of it changes nothing."
    return (
        f"{stopped}; it had time left, and more of it changes nothing, but a tolerance above that"
        " (--tol) accepts these weights."
    )


def _direction_sentence(
    margin: dict[str, Any], direction: dict[str, Any], holds: dict[str, bool]
) -> str:
    if not holds["certificate"]:
        return "Without a certified solution there is no direction to compare with."
    trend = "still falling" if holds["approach"] else "no longer falling"
    cosine, gap, distance = direction["cosine"], direction["gap"], direction["distance"]
    if direction["measure"] == "cosine":
        return (
            f"The cosine between trained and max-margin weights is {cosine:.6f}; its gap is"
            f" {gap:.2g}, {trend}."
        )
    if direction["measure"] == "divergence":
        return (
            "The directional Bregman divergence, zero only in the direction of the solution, is"
            f" {distance:.2g}, {trend}; the cosine between trained and max-margin weights is"
            f" {cosine:.6f}."
        )
    said = (
        f"The trained margin falls short of the best by {_percent(distance)}, and this shortfall is"
        f" {trend}"
    )
    if margin["unique"]:
        return (
            f"{said}; the solution was found to be the only one, and the cosine between it and the"
            f" trained weights is {cosine:.6f}."
        )
    others = (
        "Other weights have the same norm and margins"
        if margin["unique"] is False
        else "Whether other weights do as well was not decided"
    )
    return (
        f"{said}. {others}, so directions may differ: the cosine with the solution that was found"
        f" is {cosine:.6f}."
    )
