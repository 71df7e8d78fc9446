"""The claims of a fit, and what they add up to."""

from __future__ import annotations

from typing import Any

SELECTING_SHARE = 0.95
DIRECTION_GAP = 0.01
ACCURACY_POINTS = 0.01


def claims(results: dict[str, Any], n_test: int) -> list[dict[str, Any]]:
    """The ``claims`` of ``run.json``, each with statement, measured value, threshold, verdict and reason."""
    selection, margin, direction = results["selection"], results["margin"], results["direction"]
    accuracy = {entry["name"]: entry["test"] for entry in results["accuracy"]}
    share = selection["saturated"] / selection["sequences"]
    certified = margin["status"] == "optimal"
    return [
        _claim(
            "selection",
            f"At least {SELECTING_SHARE:.0%} of the sequences give {selection['threshold']:.0%} of their attention to one token.",
            share,
            SELECTING_SHARE,
            share >= SELECTING_SHARE,
            "a few sequences with small margins saturate last; training longer brings them in",
        ),
        _claim(
            "certificate",
            "The max-margin solution of the selected tokens is proved optimal: relative duality gap and violation within the tolerance.",
            max(margin["gap"], margin["violation"]),
            margin["tol"],
            certified,
            "both numbers are recomputed from the original data",
        ),
        _claim(
            "direction",
            f"The trained weights point along the max-margin solution: 1 - cosine is at most {DIRECTION_GAP:g}.",
            direction["gap"],
            DIRECTION_GAP,
            direction["gap"] <= DIRECTION_GAP if certified else None,
            "0.01 is an angle of 8.1 degrees; the theory says 0 in the limit, approached slowly",
        ),
        _claim(
            "approach",
            "The direction gap is still falling: its last record is below nine tenths of its record at a tenth of the training.",
            direction["gap"],
            0.9 * direction["first_gap"],
            direction["falling"] if certified else None,
            "convergence in direction has no finite end, so an honest run must still improve",
        ),
        _claim(
            "accuracy",
            "Soft attention predicts held-out labels at least as well as mean pooling, to one point.",
            accuracy["soft"] - accuracy["mean_pooling"],
            -ACCURACY_POINTS,
            # Counts, not floats: one point of n_test sequences is a whole number of them, rounded down.
            round((accuracy["mean_pooling"] - accuracy["soft"]) * n_test) <= ACCURACY_POINTS * n_test,
            "attention starts as mean pooling, so it should lose nothing but noise",
        ),
        _claim(
            "control",
            "The selected token predicts held-out labels better than a random token.",
            accuracy["hard"] - accuracy["random_token"],
            0.0,
            accuracy["hard"] > accuracy["random_token"],
            "otherwise the selection would carry no information",
        ),
    ]


def _claim(name: str, statement: str, measured: float, threshold: float, holds: bool | None, reason: str) -> dict[str, Any]:
    verdict = "not applicable" if holds is None else "holds" if holds else "fails"
    return {"id": name, "statement": statement, "measured": measured, "threshold": threshold, "verdict": verdict, "reason": reason}


def verdict(results: dict[str, Any], stated: list[dict[str, Any]]) -> dict[str, Any]:
    """The ``verdict`` of ``run.json``: a headline, whether the theory's claims hold, and a few sentences."""
    selection, margin, direction = results["selection"], results["margin"], results["direction"]
    holds = {claim["id"]: claim["verdict"] == "holds" for claim in stated}
    ok = holds["selection"] and holds["certificate"] and holds["direction"]
    angle, saturated, total = direction["angle_degrees"], selection["saturated"], selection["sequences"]
    selecting = f"all {total} sequences select one token" if saturated == total else f"{saturated} of {total} sequences select one token"
    kind = "max-margin" if margin["hard"] else "soft-margin"
    if ok:
        headline = f"Yes: {selecting}, and the trained direction is {angle:.2g}° from the certified {kind} solution."
    elif not holds["certificate"]:
        headline = f"Undecided: {selecting}, but the {kind} solution could not be certified to the tolerance asked for."
    else:
        headline = f"Not yet: {selecting}, and the trained direction is {angle:.2g}° from the certified {kind} solution."
    sentences = [_margin_sentence(margin), _direction_sentence(direction, holds), _accuracy_sentence(results["accuracy"])]
    if not margin["hard"]:
        sentences.append("No weights select all these tokens at once (hard margin infeasible), so the soft margin was solved instead.")
    return {"headline": headline, "holds": ok, "sentences": sentences}


def _margin_sentence(margin: dict[str, Any]) -> str:
    if margin["status"] != "optimal":
        return (
            f"The solver stopped at weights of margin {margin['margin']:.4g}, a relative gap of {margin['gap']:.2g} from its proved bound; "
            "more time (--solve-seconds) or a looser tolerance (--tol) would let it finish."
        )
    return (
        f"The best possible margin for these selections is {margin['margin']:.4g}; the trained weights reach "
        f"{100 * max(margin['trained_margin_ratio'], 0.0):.3g} % of it. "
        f"{margin['support_constraints']} of {margin['constraints']} constraints hold it up, in {margin['support_sequences']} sequences."
    )


def _direction_sentence(direction: dict[str, Any], holds: dict[str, bool]) -> str:
    if not holds["certificate"]:
        return "Without a certified solution there is no direction to compare with."
    trend = "still falling" if holds["approach"] else "no longer falling"
    return f"The cosine between trained and max-margin weights is {direction['cosine']:.6f}; its gap is {direction['gap']:.2g}, {trend}."


def _accuracy_sentence(accuracy: list[dict[str, Any]]) -> str:
    test = {entry["name"]: entry["test"] for entry in accuracy}
    return (
        f"On held-out data soft attention is right on {test['soft']:.1%}, the single selected token on {test['hard']:.1%}, "
        f"mean-pooling logistic regression on {test['mean_pooling']:.1%}, a random token on {test['random_token']:.1%}."
    )
