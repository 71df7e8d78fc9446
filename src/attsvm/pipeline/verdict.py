"""The claims of a fit, what they add up to, and the sentences that say so: their words are in
``templates/verdict.txt.j2``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray

from attsvm.claims import Claim, Evidence, above, at_least, at_most, below
from attsvm.sklearn.minimise import TOLERANCE

_WORDS = {
    # kind of data: what a token, several of them, and several sequences are called
    "text": ("word", "words", "texts"),
    "sentences": ("sentence", "sentences", "texts"),
    "image": ("patch", "patches", "images"),
    "array": ("token", "tokens", "sequences"),
}
_BASELINES = {
    "mean_pooling": "mean pooling",
    "tfidf": "TF-IDF with logistic regression",
    "majority": "the most frequent label",
}
_NULL_TITLES = {
    "mean_pooling": "mean pooling",
    "random_token": "a random token",
    "extreme_token": "the most extreme token",
    "majority": "always naming the most frequent label",
}
MOST_CLASSES = 6
"""Classes that a sentence names; tables have all."""
_UNEQUAL = 0.6
"""Accuracy of always naming the most frequent of two classes, from which classes are unequal; of
more classes it is as much above their equal share.
"""


def check_claims(
    claims: Sequence[Claim], results: dict[str, Any], n_test: int
) -> list[dict[str, Any]]:
    """The ``claims`` of ``run.json``.

    Args:
        claims: what is claimed of these results.
        results: of ``run.json``.
        n_test: held-out sequences.
    """
    columns: dict[str, Any] = {"n_test": n_test}
    for section in ("selection", "margin", "direction", "steps", "evidence"):
        for name, value in results.get(section, {}).items():
            if isinstance(value, str | int | float):
                columns[f"{section}.{name}"] = value
    measure = _measure(results)
    columns |= {f"accuracy.{entry['name']}": entry[measure] for entry in results["accuracy"]}
    evidence = Evidence({name: [value] for name, value in columns.items()})
    keys = ("id", "statement", "measured", "threshold", "verdict", "reason")
    entries = [claim.check(evidence).to_json() for claim in claims]
    return [{key: entry[key] for key in keys} for entry in entries]


def attention_claims(results: dict[str, Any], n_test: int) -> list[Claim]:
    """Claims about attention that is trained together with its head."""
    threshold = results["selection"]["threshold"]
    return [
        Claim(
            "selection",
            f"At least 95% of the sequences give {threshold:.0%} of their attention to one token.",
            "ours",
            lambda e: e["selection.saturated"] / e["selection.sequences"],
            at_least(0.95, "a few sequences with small margins saturate last"),
        ),
        _certificate(results, "selected tokens"),
        _same_direction(results),
        _approach(results),
        *_accuracy_claims(results, "Soft attention", n_test),
    ]


def witness_claims(results: dict[str, Any], n_test: int) -> list[Claim]:
    """Claims about a classifier of witnesses."""
    return [
        Claim(
            "steps",
            "Every convex step of the final weights is proved optimal.",
            "ours",
            lambda e: e["steps.gap"],
            at_most(TOLERANCE, "the whole problem is not convex, so the end is a local optimum"),
        ),
        _certificate(results, "witnesses"),
        Claim(
            "sufficiency",
            "In at least 95% of the held-out sequences the selected token alone gives the same"
            " prediction.",
            "ours",
            lambda e: e["evidence.sufficient"],
            at_least(0.95, "under the standard assumption one witness is enough"),
        ),
        *_accuracy_claims(results, "The model", n_test),
    ]


def _certificate(results: dict[str, Any], subject: str) -> Claim:
    """The claim that the max-margin solution of these tokens is proved optimal."""
    tol = results["margin"]["tol"]

    def error(evidence: Evidence) -> NDArray[np.float64]:
        largest = np.maximum(evidence["margin.gap"], evidence["margin.violation"])
        proved = (evidence["margin.status"] == "optimal") | (largest > tol)
        return np.where(proved, largest, np.inf)  # both small, but rounding may have made them so

    return Claim(
        "certificate",
        f"The max-margin solution of the {subject} is proved optimal: relative duality gap and"
        " violation within the tolerance.",
        "ours",
        error,
        at_most(tol, "both numbers are recomputed from the original data"),
    )


_CERTIFIED = {"a certified solution": lambda e: e["margin.status"] == "optimal"}


def _same_direction(results: dict[str, Any]) -> Claim:
    """The claim that trained weights and solution agree, in the measure that the norm allows."""
    measure, norm = results["direction"]["measure"], results["margin"]["geometry_title"]
    if measure == "margin":
        return Claim(
            "margin",
            f"The trained weights reach at least 90% of the best margin in the {norm}.",
            "ours",
            lambda e: 1.0 - e["direction.distance"],
            at_least(
                0.9,
                f"several directions may be best in the {norm}, so margins are compared; 90 % is"
                " weights at most a ninth longer than necessary",
            ),
            _CERTIFIED,
        )
    name, equals = (
        (
            "the directional Bregman divergence in the " + norm,
            "what an angle of 8.1 degrees is in the Frobenius norm",
        )
        if measure == "divergence"
        else ("1 - cosine", "an angle of 8.1 degrees")
    )
    return Claim(
        "direction",
        f"The trained weights point along the max-margin solution: {name} is at most 0.01.",
        "ours",
        lambda e: e["direction.distance"],
        at_most(0.01, f"0.01 is {equals}; the theory says 0 in the limit, approached slowly"),
        _CERTIFIED,
    )


def _approach(results: dict[str, Any]) -> Claim:
    """The claim that what is compared with the solution still falls."""
    direction = results["direction"]
    name, curve = {
        "margin": ("margin", "shortfall of the margin"),
        "divergence": ("direction", "divergence of the direction"),
        "cosine": ("direction", "direction gap"),
    }[direction["measure"]]
    return Claim(
        "approach",
        f"The {curve} is still falling: its last record is below that at half of the training, and"
        " below nine tenths of that at a tenth of it.",
        "ours",
        lambda e: e["direction.distance"],
        below(
            min(0.9 * direction["first_distance"], direction["midway_distance"]),
            f"convergence in {name} has no finite end, so an honest run must still improve",
        ),
        _CERTIFIED,
    )


def _measure(results: dict[str, Any]) -> str:
    """By what methods are compared: the mean recall of the classes where the fit weighs them
    alike, else the accuracy.
    """
    return "balanced" if results["training"].get("class_weight") == "balanced" else "test"


def strongest_null(results: dict[str, Any]) -> str:
    """The name of the null that is right most often on the test part."""
    measure = _measure(results)
    shares = {entry["name"]: entry[measure] for entry in results["accuracy"]}
    return max((name for name in _NULL_TITLES if name in shares), key=lambda name: shares[name])


def _accuracy_claims(results: dict[str, Any], subject: str, n_test: int) -> list[Claim]:
    """The claims about held-out labels: beside the strongest null, beside the most frequent label,
    and beside a random token.
    """
    null, measure = strongest_null(results), _measure(results)
    soft = next(entry[measure] for entry in results["accuracy"] if entry["name"] == "soft")
    noise = max(0.01, float(np.sqrt(soft * (1.0 - soft) / n_test)))
    counted = "on the mean recall of the classes, " if _measure(results) == "balanced" else ""

    def lead(evidence: Evidence) -> NDArray[np.float64]:
        # whole sequences: a difference of rounded shares may miss one point by an ulp
        n = evidence["n_test"]
        ahead = evidence["accuracy.soft"] - evidence[f"accuracy.{null}"]
        return np.asarray(np.round(ahead * n) / n)

    def errors_above_majority(evidence: Evidence) -> NDArray[np.float64]:
        share, n = evidence["accuracy.soft"], evidence["n_test"]
        error = np.sqrt(np.maximum(share * (1.0 - share), 1.0 / n) / n)
        return np.asarray((share - evidence["accuracy.majority"]) / error)

    return [
        Claim(
            "accuracy",
            f"{subject} predicts held-out labels at least as well as the strongest null, {counted}"
            f"to one point or one standard error: {_NULL_TITLES[null]}.",
            "ours",
            lead,
            at_least(-noise, "what a null knows, the model should know but for noise"),
        ),
        Claim(
            "majority",
            f"{subject} predicts held-out labels better than by always naming the most frequent"
            f" one, {counted}by two standard errors.",
            "ours",
            errors_above_majority,
            at_least(2.0, "where one class is most of the data, this alone is often right"),
        ),
        Claim(
            "control",
            "The selected token predicts held-out labels better than a random token.",
            "ours",
            lambda e: e["accuracy.hard"] - e["accuracy.random_token"],
            above(0.0, "otherwise the selection would carry no information"),
        ),
    ]


def attention_verdict(
    results: dict[str, Any],
    claims: list[dict[str, Any]],
    kind: str,
    classes: Sequence[str],
    n_test: int,
) -> dict[str, Any]:
    """The ``verdict`` of ``run.json``: in the headline the accuracy of the chosen token; beside it
    the nulls; in the sentences what the theory says, in the advice those that name an option to
    change, and its ends by their names in :data:`attsvm.report.endings.ENDS`.

    Args:
        results: of ``run.json``.
        claims: those of the run.
        kind: of the data, ``text``, ``image`` or ``array``.
        classes: their names.
        n_test: how many sequences are held out.
    """
    margin, direction = results["margin"], results["direction"]
    holds = {claim["id"]: claim["verdict"] == "holds" for claim in claims}
    agrees = holds["margin" if direction["measure"] == "margin" else "direction"]
    ok = holds["selection"] and holds["certificate"] and agrees
    end = "yes" if ok else "not yet" if holds["certificate"] else "undecided"
    errors = {"relative gap": margin["gap"], "violation": margin["violation"]}
    blocks = ["theory", *([] if holds["selection"] else ["advice"]), "margin", "direction"]
    return _verdict(
        results,
        kind,
        classes,
        ok=ok,
        ends=[end],
        blocks=blocks if margin["hard"] else [*blocks, "soft"],
        advice=[
            *([] if holds["selection"] else ["advice"]),
            *([] if holds["certificate"] else ["margin"]),
        ],
        n_test=n_test,
        everything="soft attention over all",
        holds=holds,
        end=end,
        above=[(name, error) for name, error in errors.items() if error > margin["tol"]],
    )


def witness_verdict(
    results: dict[str, Any],
    claims: list[dict[str, Any]],
    kind: str,
    classes: Sequence[str],
    n_test: int,
) -> dict[str, Any]:
    """The ``verdict`` of ``run.json``; see :func:`attention_verdict`."""
    proofs = [claim for claim in claims if claim["id"] in ("steps", "certificate")]
    ok = all(claim["verdict"] == "holds" for claim in proofs)
    return _verdict(
        results,
        kind,
        classes,
        ok=ok,
        ends=[] if ok else ["undecided"],
        blocks=["sufficiency", "steps", "programme"],
        advice=[],
        n_test=n_test,
        everything="the model on all",
    )


def _verdict(
    results: dict[str, Any],
    kind: str,
    classes: Sequence[str],
    *,
    ok: bool,
    ends: list[str],
    blocks: list[str],
    advice: list[str],
    **more: Any,
) -> dict[str, Any]:
    """The verdict with the sentences of these blocks of the template, and those of ``advice``,
    which say what to do.
    """
    margin = results["margin"]
    entries = {entry["name"]: entry for entry in results["accuracy"]}
    test = {name: entry["test"] for name, entry in entries.items()}
    token, tokens, sequences = _WORDS[kind]
    # the strongest baseline, for texts always TF-IDF, and of unequal classes the largest
    share = 1.0 / len(classes)
    unequal = test.get("majority", share) >= share + (_UNEQUAL - 0.5)
    ranked = sorted((name for name in _BASELINES if name in test), key=lambda name: -test[name])
    always = {"tfidf", *(["majority"] if unequal else [])}
    baselines = ranked[:1] + [name for name in ranked[1:] if name in always]
    context = {
        **results,
        **more,
        "test": test,
        "token": token,
        "tokens": tokens,
        "sequences": sequences,
        "baselines": [(name, _BASELINES[name]) for name in baselines],
        "programme": "max-margin" if margin["hard"] else "soft-margin",
    }
    beside = [sentence("beside", **context)]
    if unequal or len(classes) > 2:
        recall = zip(classes, entries["soft"]["recall"], strict=True)
        known = [(name, value) for name, value in recall if value is not None]
        is_part = len(known) > MOST_CLASSES
        if is_part:
            known = sorted(known, key=lambda pair: pair[1])[:MOST_CLASSES]
        balanced = entries["soft"]["balanced"]
        beside.append(sentence("recall", balanced=balanced, recall=known, is_part=is_part))
    if not results["training"]["beats_chance"]:
        beside.append(sentence("chance", **context))
    about = results["theory"]
    is_part = about["sequences"] < about["training_sequences"] or len(classes) > 2
    return {
        "headline": sentence("headline", **context),
        "holds": ok,
        "ends": ends if margin["hard"] else [*ends, margin["hard_status"]],
        "beside": " ".join(beside),
        "sentences": [
            *(sentence(block, **context) for block in blocks),
            *([sentence("about", **context)] if is_part else []),
        ],
        "advice": [sentence(block, **context) for block in advice],
    }


def words_sentence(
    classes: list[dict[str, Any]], most: int = 8, most_classes: int = MOST_CLASSES
) -> str:
    """The words of each class, and the classes that have none; empty without classes. Of many
    classes the first few are named.
    """
    named = [
        {"class": entry["class"], "words": [row["word"] for row in entry["words"][:most]]}
        for entry in classes
        if entry["words"]
    ]
    without = [
        f"{entry['class']} ({entry['texts']} text{'s' * (entry['texts'] != 1)}"
        f"{'; most often chosen: ' * bool(entry['often'])}{', '.join(entry['often'])})"
        for entry in classes
        if not entry["words"]
    ]
    if len(without) > most_classes:
        without[most_classes:] = [f"{len(without) - most_classes} more classes"]
    more = len(named) - most_classes
    return sentence("words", classes=named[:most_classes], more=max(more, 0), without=without)


def sentence(block: str, **context: Any) -> str:
    """The sentence of a block of the template, on one line."""
    template = _template()
    text = "".join(template.blocks[block](template.new_context(context)))
    return re.sub(r"\s*\n\s*", " ", text).strip()


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # plain text; pages escape it
    )
    environment.filters["percent"] = lambda value: f"{value:.1%}"
    environment.filters["whole_percent"] = lambda value: f"{value:.0%}"
    environment.filters["share"] = lambda value: f"{100 * max(value, 0.0):.3g} %"
    return environment.get_template("verdict.txt.j2")
