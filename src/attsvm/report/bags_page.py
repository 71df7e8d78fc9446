"""The page of a classifier of bags: which instances decide, whether they suffice, what holds the
margin up, and which bags are rejected.

It asks a fitted model for everything and computes nothing of its own, so it belongs to no
estimator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.base.files import brief, read_json, write_file, write_json
from attsvm.base.printable import name_of
from attsvm.base.store import announce, read_run
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray
from attsvm.datasets.bags import Bags, as_bags, bag_labels
from attsvm.report.page import POLICY, document, end_paragraphs, has_unequal_classes
from attsvm.report.slides_page import CONTENT, slides_document
from attsvm.report.token_sequences import data_uri
from attsvm.solvers import MarginSolution


@dataclass(frozen=True)
class PageSizes:
    """How much a page of bags shows: what a reader can follow.

    Attributes:
        bags: of a group.
        texts, images, arrays: instances of a bag, by their kind; the selected ones are among them.
        word: characters up to which instances are words, which stand beside one another.
        support: rows of the table of support instances.
    """

    bags: int = 8
    texts: int = 40
    images: int = 24
    arrays: int = 8
    word: int = 25
    support: int = 20


_SIZES = PageSizes()

GROUPS = {
    "wrong": ("Wrong", "Bags that are classified wrongly, the most confident first."),
    "rejected": ("Rejected", "Their margin is below the threshold: ask somebody who knows."),
    "insufficient": (
        "One instance does not suffice",
        "The selected instance alone would give another prediction.",
    ),
    "near": ("Close", "Classified rightly, with the smallest margins of each class."),
    "confident": ("Confident", "Classified rightly, with the largest margins of each class."),
}


class PageExplanation(Protocol):
    """The results of a model's ``explain`` on the page; see :class:`attsvm.sklearn.Explanation`."""

    @property
    def selected(self) -> IntArray:
        """``(n,)``, the position of the selected instance in each bag."""

    @property
    def solution(self) -> MarginSolution:
        """The max-margin solution of the selections."""

    @property
    def support(self) -> IntArray:
        """``(k, 2)``, bag and instance of every support constraint."""


@dataclass(frozen=True)
class Instance:
    """One instance of a bag on the page.

    Attributes:
        name: its position, counted from 1.
        text: what it says; empty for images and vectors.
        uri: its picture; empty for texts and vectors.
        contribution: what it adds to the bag's value, towards the predicted class.
        share: the size of that relative to the largest one of its bag.
        against: whether it speaks against the predicted class.
        value: the value of a bag with this instance alone.
        selected: whether it is the selected one.
    """

    name: str
    text: str
    uri: str
    contribution: float
    share: float
    against: bool
    value: float
    selected: bool


@dataclass(frozen=True)
class Card:
    """One bag on the page; ``short`` says that its instances are words."""

    name: str
    label: str
    predicted: str
    correct: bool
    probability: float
    margin: float
    rejected: bool
    sufficient: bool
    necessary: bool
    kind: str
    short: bool
    instances: list[Instance]
    more: int


def write_bags(
    path: str | Path,
    model: Any,
    X: Any,
    y: ArrayLike | None = None,
    *,
    bag_ids: ArrayLike | None = None,
    instances: Sequence[str] | ArrayLike | Callable[[int, int], Any] | None = None,
    names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    explained: PageExplanation | None = None,
    title: str = "Bags",
) -> Path:
    """Write one self-contained page about bags and the model that classifies them.

    Args:
        path: the HTML file.
        model: a fitted :class:`attsvm.sklearn.AttentionSVC` or ``WitnessSVC``, or a pipeline that
            ends in one.
        X: bags, in any form that :func:`attsvm.datasets.bags.as_bags` takes.
        y: ``(n,)`` their labels; None for those that came with the bags.
        bag_ids: the bag of each row, when ``X`` is a table.
        instances: how the instances look: texts, or images ``(N, height, width)`` or ``(N, height,
            width, 3)``, in the order of the rows of ``X`` (of
            :attr:`~attsvm.datasets.bags.Bags.source`, where the bags have one). Where they are too
            many for memory a function of bag and instance, both counted from 0, which is called for
            the few that are shown: ``lambda bag, t: patch_image(slides[bag], *places[bag][t])``.
            Without it an instance is its position.
        names: ``(n,)`` of the bags; by default their position.
        class_names: ``(K,)`` of the classes, in the order of the model's; by default its labels.
        explained: what ``model.explain`` says of these bags; the page then shows their support
            instances and the certificate of their margin.
        title: of the page.

    Raises:
        InputError: bags or labels that do not fit the model, or too few pictures or names.
    """
    bags = as_bags(X, bag_ids)
    labels = bag_labels(y, bags)
    data = X if isinstance(X, AttentionData) else bags  # which keeps its queries
    read = _ModelOfBags(model, data, bags, labels, _pictures(instances, bags), names, class_names)
    explanation = (read, explained) if explained else None
    return write_file(path, _document(_content(read, explanation, title), None))


@dataclass(frozen=True)
class PageBags:
    """Bags for :func:`write_joint_page`.

    Attributes:
        bags: the bags, with their labels, and queries where they have some.
        instances: texts or images of their instances, see :func:`write_bags`.
        names: of the bags.
        class_names: of the classes, in the order of the model's.
    """

    bags: Bags
    instances: Sequence[str] | FloatArray | None
    names: list[str]
    class_names: Sequence[str]

    def read(self, model: Any) -> _ModelOfBags:
        """The model's predictions and evidence of these bags."""
        bags, pictures = self.bags, _pictures(self.instances, self.bags)
        return _ModelOfBags(
            model, bags, bags, bag_labels(None, bags), pictures, self.names, self.class_names
        )


def write_joint_page(
    path: Path,
    model: Any,
    held_out: PageBags,
    explained: tuple[PageBags, PageExplanation],
    run: dict[str, Any],
) -> Path:
    """Write the page of a fit: what it measured (``run``, the content of ``run.json``), the bags
    that it held out, and the support instances among those it was fitted to.
    """
    bags, explanation = explained
    content = _content(
        held_out.read(model), (bags.read(model), explanation), run["dataset"]["title"]
    )
    content = json.loads(json.dumps(content))  # as it is read back
    write_json(path.with_name(CONTENT), content)
    return write_file(path, _document(content, run))


def write_again(folder: Path) -> Path | None:
    """The page of a fit of the standard assumption, drawn from what :func:`write_joint_page` kept
    in :data:`CONTENT`; None for other folders.

    Raises:
        InputError: a run that is not finished, or a file that is not as it was written.
    """
    if not (folder / CONTENT).is_file():
        return None
    from jinja2 import TemplateError

    run, content = read_run(folder), read_json(folder / CONTENT)
    is_slides = (run.get("dataset") or {}).get("kind") == "slide"
    if not is_slides and (run.get("parameters") or {}).get("assumption") != "standard":
        return None
    try:
        page = slides_document(content, run) if is_slides else _document(content, run)
    except (AttributeError, LookupError, TypeError, ValueError, TemplateError) as error:
        raise InputError(
            f"{name_of(folder / CONTENT)} is not as attsvm fit writes it"
            f" ({type(error).__name__}: {brief(str(error))}); delete the folder and fit again"
        ) from error
    announce(folder, {"report.html"})
    return write_file(folder / "report.html", page)


def _content(
    bags: _ModelOfBags, explained: tuple[_ModelOfBags, PageExplanation] | None, title: str
) -> dict[str, Any]:
    """The content of a page of bags, ready for JSON.

    Args:
        bags: those of the page.
        explained: the bags whose margin was solved, and that; None without.
        title: of the page.
    """
    support_bags, explanation = explained or (None, None)
    return {
        "title": title,
        "totals": bags.totals(),
        "groups": [
            [*GROUPS[name], [asdict(bags.card(i)) for i in rows[: _SIZES.bags]], len(rows)]
            for name, rows in bags.groups().items()
            if len(rows)
        ],
        "support": support_bags.support(explanation) if support_bags and explanation else [],
        "certificate": _certificate_numbers(
            bags.estimator, explanation.solution if explanation else None
        ),
        "standard": bags.estimator.assumption == "standard",
        "classes": [bags.class_name(label) for label in bags.estimator.classes_],
    }


def _document(content: dict[str, Any], run: dict[str, Any] | None) -> str:
    results = run["results"] if run else {}
    return document(
        "bags.html.j2",
        policy=POLICY,
        run=run,
        accuracy=sorted(results.get("accuracy", []), key=lambda row: -row["test"]),
        words=results.get("words") or [],
        unequal=has_unequal_classes(run["dataset"]) if run else False,
        ends=end_paragraphs(run["verdict"].get("ends")) if run else [],
        **content,
    )


class _ModelOfBags:
    """Predictions, evidence and values of a model for some bags, each computed once.

    Args:
        model: the classifier, or a pipeline that ends in it.
        data: the bags as they were passed, with their queries.
        bags: as one table.
        labels: ``(n,)``.
        pictures: kind of the instances, and their texts or images.
        names: of the bags.
        class_names: of the classes.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        bags: Bags,
        labels: np.ndarray[Any, Any],
        pictures: tuple[str, Any],
        names: Sequence[str] | None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        if names is not None and len(names) != bags.n:
            raise InputError(f"there are {len(names)} names for {bags.n} bags; give one for each")
        self.bags, self.labels, (self.kind, self.pictures) = bags, labels, pictures
        self.names, self.class_names = names, class_names
        self.estimator = model[-1] if hasattr(model, "named_steps") else model
        inner = model[:-1].transform(bags) if hasattr(model, "named_steps") else data
        self.predicted = self.estimator.predict(inner)
        self.column = np.searchsorted(self.estimator.classes_, self.predicted)
        self.correct = self.predicted == labels
        self.evidence = self.estimator.evidence(inner)
        self.probability = self.estimator.predict_proba(inner)[np.arange(bags.n), self.column]
        self.contributions = self._toward(self.estimator.contributions(inner))
        self.values = self._toward(self.estimator.decision_function_instances(inner))

    def _toward(self, values: list[FloatArray]) -> list[FloatArray]:
        """Values of instances towards the predicted class of their bag."""
        return [
            bag[:, column] if bag.ndim > 1 else (1 if column else -1) * bag
            for bag, column in zip(values, self.column, strict=True)
        ]

    def totals(self) -> dict[str, Any]:
        """Shares for the top of the page."""
        evidence = self.evidence
        return {
            "bags": self.bags.n,
            "instances": int(self.bags.offsets[-1]),
            "correct": int(self.correct.sum()),
            "accuracy": float(self.correct.mean()),
            "sufficient": float(np.mean(evidence.sufficient)),
            "necessary": float(np.mean(evidence.necessary)),
            "agrees": float(np.mean(evidence.agrees)),
            "rejected": int(evidence.rejected.sum()),
        }

    def groups(self) -> dict[str, IntArray]:
        """Positions of the bags of each group."""
        margin, wrong = self.evidence.margin, ~self.correct
        rising = np.argsort(margin, kind="stable")
        right = rising[self.correct[rising]]
        return {
            "wrong": rising[::-1][wrong[rising[::-1]]],
            "rejected": rising[self.evidence.rejected[rising]],
            "insufficient": rising[~self.evidence.sufficient[rising]],
            "near": self._in_turn(right),
            "confident": self._in_turn(right[::-1]),
        }

    def _in_turn(self, rows: IntArray) -> IntArray:
        """The rows with the predicted classes in turn, each in the order of ``rows``."""
        turns = np.zeros(len(rows), dtype=np.int64)
        for column in np.unique(self.column[rows]):
            in_class = self.column[rows] == column
            turns[in_class] = np.arange(in_class.sum())
        return rows[np.argsort(turns, kind="stable")]

    def card(self, i: int) -> Card:
        """One bag."""
        contributions, values, evidence = self.contributions[i], self.values[i], self.evidence
        selected = evidence.instances[i]
        limit = {"text": _SIZES.texts, "image": _SIZES.images}.get(self.kind, _SIZES.arrays)
        largest_first = np.argsort(-np.abs(contributions), kind="stable")
        tokens = np.union1d(largest_first[:limit], selected)
        if self.kind != "text":  # sentences stay in their order
            tokens = tokens[np.argsort(-contributions[tokens], kind="stable")]
        largest = float(np.abs(contributions).max()) or 1.0
        instances = [
            Instance(
                str(t + 1),
                *self._picture(i, int(t)),
                float(contributions[t]),
                float(abs(contributions[t]) / largest),
                bool(contributions[t] < 0),
                float(values[t]),
                bool(t in selected),
            )
            for t in tokens
        ]
        return Card(
            self._name(i),
            self.class_name(self.labels[i]),
            self.class_name(self.predicted[i]),
            bool(self.correct[i]),
            float(self.probability[i]),
            float(evidence.margin[i]),
            bool(evidence.rejected[i]),
            bool(evidence.sufficient[i]),
            bool(evidence.necessary[i]),
            self.kind,
            all(len(instance.text) < _SIZES.word for instance in instances),
            instances,
            int(self.bags.lengths[i]) - len(instances),
        )

    def class_name(self, label: Any) -> str:
        """A class in words: ``1`` for 1.0."""
        if self.class_names is not None:
            return self.class_names[int(np.searchsorted(self.estimator.classes_, label))]
        return f"{label:g}" if isinstance(label, float) else str(label)

    def _name(self, i: int) -> str:
        return f"bag {i + 1}" if self.names is None else str(self.names[i])

    def _picture(self, i: int, t: int) -> tuple[str, str]:
        """The text and the image of an instance, one of them empty."""
        if callable(self.pictures):
            picture = self.pictures(i, t)
            if self.kind == "text":
                return str(picture), ""
            return "", data_uri(_pixels(picture), 0.0, 255.0 if np.max(picture) > 1.0 else 1.0)
        source = int(self.bags.source[self.bags.offsets[i] + t])
        if self.kind == "text":
            return str(self.pictures[source]), ""
        if self.kind == "image":
            return "", data_uri(self.pictures[source], *self._pixel_range)
        return "", ""

    @property
    def _pixel_range(self) -> tuple[float, float]:
        """The values of black and white pixels."""
        return 0.0, 255.0 if self.pictures.max() > 1.0 else 1.0

    def support(self, explained: PageExplanation) -> list[dict[str, Any]]:
        """The instances whose constraints hold the margin up, by falling multiplier."""
        solution, positive = explained.solution, self.estimator.classes_[-1]
        rows = []
        for (i, rival), dual in zip(
            explained.support[: _SIZES.support],
            np.sort(solution.dual[solution.support])[::-1][: _SIZES.support],
            strict=True,
        ):
            chosen = int(explained.selected[i])
            inside = self.estimator.assumption == "collective" or self.labels[i] == positive
            rows.append(
                {
                    "bag": self._name(i),
                    "label": self.class_name(self.labels[i]),
                    "selected": self._titled(i, chosen) if inside else ("no witness", "", ""),
                    "rival": self._titled(i, int(rival))
                    if rival < self.bags.lengths[i]
                    else ("no witness", "", ""),
                    "dual": float(dual),
                }
            )
        return rows

    def _titled(self, i: int, t: int) -> tuple[str, str, str]:
        return (f"instance {t + 1}", *self._picture(i, t))


def _pictures(instances: Any, bags: Bags) -> tuple[str, Any]:
    """The kind of the instances, and their texts or images by the row of their source."""
    if instances is None:
        return "array", None
    if callable(instances):
        return "text" if isinstance(instances(0, 0), str) else "image", instances
    if not isinstance(instances, np.ndarray) and isinstance(instances[0], str):
        kind, pictures = "text", instances
    else:
        kind, pictures = "image", _pixels(instances, 1)
    if len(pictures) <= int(bags.source.max()):
        raise InputError(
            f"instances has {len(pictures)} entries and the bags speak of row"
            f" {int(bags.source.max())}; give one for each row"
        )
    return kind, pictures


def _pixels(images: Any, axes: int = 0) -> FloatArray:
    """Pixels of images behind some ``axes``, ``(..., height, width)`` or ``(..., height, width,
    3)``.

    Raises:
        InputError: another shape.
    """
    pixels = np.asarray(images, dtype=np.float64)
    if pixels.ndim == axes + 3 and pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    if pixels.ndim != axes + 2 and not (pixels.ndim == axes + 3 and pixels.shape[-1] == 3):
        raise InputError(
            f"instances has shape {pixels.shape}; give texts, or images of one or three channels"
        )
    return pixels


def _certificate_numbers(estimator: Any, solution: MarginSolution | None) -> dict[str, Any]:
    """Status and errors of the convex steps and of the margin."""
    steps = estimator.convex_steps_
    return {
        "steps": len(steps),
        "optimal": sum(step.status == "optimal" for step in steps),
        "gap": max((step.gap for step in steps), default=0.0),
        "violation": max((step.violation for step in steps), default=0.0),
        "optimum": estimator.optimum_,
        "margin": None
        if solution is None
        else {
            "status": solution.status,
            "margin": solution.margin,
            "gap": solution.gap,
            "violation": solution.violation,
            "norm": solution.geometry.title,
        },
    }
