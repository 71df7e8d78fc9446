"""Head by head: what is selected, by what margin, and how near the weights are to the max-margin
solution of their own selections, beside nulls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.data import BoolArray, FloatArray
from attsvm.errors import InputError
from attsvm.geometry import Norm, parse_norm
from attsvm.probe.audit_folder import save
from attsvm.probe.capture import Recording
from attsvm.probe.comparison import Settings, Subject
from attsvm.probe.head_findings import Comparison, Head, Support, frame
from attsvm.probe.inputs import Inputs
from attsvm.probe.null_weights import NULLS, Null
from attsvm.probe.selections import KINDS, Classes, Selections, selections
from attsvm.solvers import MarginSolution
from attsvm.workers import results, slots, workers

FEWEST = 10
"""Sure queries that a head needs to be compared with its max-margin solution."""

Found = tuple[Head, list[Support]]
"""What is known of one head."""


@dataclass(eq=False)
class Audit:
    """The result of :func:`audit`.

    Attributes:
        heads: layer by layer.
        recording: what it was computed from.
        threshold: top mass from which a query counts as sure.
    """

    heads: list[Head]
    recording: Recording
    threshold: float
    _supports: dict[tuple[int, int], list[Support]] = field(repr=False, default_factory=dict)

    def head(self, layer: int, head: int) -> Head:
        """One head.

        Raises:
            InputError: a head that is not there.
        """
        for each in self.heads:
            if (each.layer, each.head) == (layer, head):
                return each
        layers = sorted({each.layer for each in self.heads})
        raise InputError(
            f"there is no head {head} in layer {layer}; layers {layers[0]} to {layers[-1]} have"
            f" heads 0 to {max(each.head for each in self.heads)}"
        )

    def support(self, layer: int, head: int) -> list[Support]:
        """The rows that hold up the margin of this head, by falling multiplier: those of its
        solution in the first norm that was asked for.
        """
        self.head(layer, head)
        return self._supports.get((layer, head), [])

    def table(self) -> list[dict[str, Any]]:
        """One flat row per head, for a data frame or a file."""
        return [each.row() for each in self.heads]

    def to_pandas(self) -> Any:
        """:meth:`table` as a data frame.

        Raises:
            UnavailableError: pandas is not installed.
        """
        return frame(self.table())

    def save(self, folder: str | Path, title: str = "", *, overwrite: bool = False) -> Path:
        """Write ``run.json`` and ``report.html`` into a folder of their own.

        Args:
            folder: made when missing.
            title: of the page; the folder's name when left out.
            overwrite: replace another run that is there.

        Returns:
            The page.

        Raises:
            InputError: a folder that holds something else.
        """
        return save(self, self.table(), Path(folder), title, overwrite)


def audit(
    recording: Recording,
    norms: Sequence[str | Norm] | None = None,
    nulls: Sequence[Null] = ("heads", "permuted"),
    *,
    center: bool = True,
    threshold: float = 0.5,
    most: int = 80,
    draws: int = 3,
    classes: Classes | None = None,
    seed: int = 0,
    max_seconds: float = 20.0,
    jobs: int = 1,
    executor: Any = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Every head of a recording.

    Args:
        recording: from :func:`~attsvm.probe.capture` or :func:`~attsvm.probe.from_cache`.
        norms: in which max-margin solutions are compared; none for statistics alone. When left out,
            Frobenius and nuclear, and Frobenius alone for heads whose weights are the identity on
            keys and queries (rotary positions).
        nulls: what the cosines are compared with, see :mod:`attsvm.probe.comparison`.
        center: subtract the mean input from queries; the mean's share moves to the constant.
        threshold: top mass above which a query is sure of its selection and joins the programme.
        most: largest number of queries in a programme, drawn at random from the sure ones.
        draws: draws of each null, and of texts with replacement.
        classes: equivalent tokens: per text ``(T,)`` integers, equal for those of one class; a
            list, or a function of the text's number. They count as one for the head, its nulls and
            its agreement on other texts.
        seed: of the draws of queries, nulls and texts.
        max_seconds: for each programme.
        jobs: processes that share the heads; 1 is this process.
        executor: looks at the heads instead, see :func:`attsvm.workers.workers`. A
            call is sent a layer, and hands back what is known of some of its heads.
        progress: called with heads done and heads in all.

    Raises:
        InputError: an unknown null or norm, a recording without texts.
        AttsvmError: a process was killed.
    """
    settings = Settings(norms, nulls, threshold, most, draws, seed, center, max_seconds)
    total = sum(layer.heads for layer in recording.layers)
    found: dict[tuple[int, int], Found] = {}

    def keep(one: Found) -> None:
        found[one[0].layer, one[0].head] = one
        if progress is not None:
            progress(len(found), total)

    look(recording, settings, keep, classes=classes, jobs=jobs, executor=executor)
    return gathered(recording, threshold, found)


def gathered(recording: Recording, threshold: float, found: dict[tuple[int, int], Found]) -> Audit:
    """The audit of these heads, in their order."""
    heads = [found[number] for number in sorted(found)]
    supports = {(head.layer, head.head): rows for head, rows in heads}
    return Audit([head for head, _ in heads], recording, threshold, supports)


def look(
    recording: Recording,
    settings: Settings,
    keep: Callable[[Found], None],
    *,
    known: Collection[tuple[int, int]] = (),
    classes: Classes | None = None,
    jobs: int = 1,
    executor: Any = None,
) -> None:
    """Look at the heads of a recording that are not known, see :func:`audit`.

    Args:
        recording: where they are.
        settings: how they are compared.
        keep: called with each head as soon as it is there.
        known: numbers of layer and head that are passed over.
        classes: equivalent tokens.
        jobs: processes that share the heads.
        executor: looks at the heads instead.

    Raises:
        InputError: an unknown null or norm, a recording without texts.
        AttsvmError: a process was killed.
    """
    unknown = [each for each in settings.nulls if each not in NULLS]
    if unknown:
        raise InputError(f"unknown null {unknown[0]!r}; nulls are: {', '.join(NULLS)}")
    if not recording.texts:
        raise InputError("the recording has no texts; call the model inside the capture block")
    here = jobs == 1 and executor is None
    if callable(classes) and not here:  # it may not be known elsewhere
        classes = [classes(text) for text in range(recording.texts)]
    left = [
        (layer, heads)
        for layer in recording.layers
        if (heads := [h for h, n in enumerate(layer.numbers) if (layer.number, n) not in known])
    ]
    with workers(jobs, executor) as chosen:
        shares = 1 if here else -(-slots(chosen) // max(len(left), 1))
        parts = [
            (replace(recording, layers=[layer]), heads[k::shares], settings, classes)
            for layer, heads in left
            for k in range(min(shares, len(heads)))
        ]
        for some in results(chosen, _heads if here else _listed, parts):
            for one in some:
                keep(one)


def _listed(*arguments: Any) -> list[Found]:
    return list(_heads(*arguments))


def _heads(
    recording: Recording, heads: Sequence[int], settings: Settings, classes: Classes | None
) -> Iterator[Found]:
    """Some heads of the only layer of a recording, and what holds up their margins."""
    (layer,) = recording.layers
    norms = settings.norms
    if norms is None:
        norms = ("fro",) if layer.projection is None else ("fro", "nuc")
    chosen = [parse_norm(each) if isinstance(each, str) else each for each in norms]
    seen = selections(recording, layer, classes)
    plain = all(text.bias is None for text in layer.texts)
    for h in heads:
        rng = np.random.default_rng([settings.seed, layer.number, layer.numbers[h]])
        inputs = Inputs(layer, h, settings.center, classes)
        subject = Subject(inputs, seen, h, settings, rng)
        fits: list[Comparison] = []
        supports: list[Support] = []
        why = ""
        if chosen and not plain:
            why = "something is added to their logits"
        elif chosen and len(subject.sure) < FEWEST:
            why = (
                f"fewer than {FEWEST} of their queries have top mass above {settings.threshold:g}"
                " and a choice"
            )
        for norm in chosen if not why else ():
            fit, solution = subject.compare(norm)
            supports = supports if fits else _support(recording, subject, solution)
            fits.append(fit)
        yield _head(subject, seen, h, tuple(fits), why), supports


def _support(recording: Recording, subject: Subject, solution: MarginSolution) -> list[Support]:
    margins, inputs = solution.margins, subject.inputs
    texts = np.unique(inputs.text[subject.members])
    rows = np.flatnonzero(solution.dual > 0)
    rows = rows[np.argsort(-solution.dual[rows], kind="stable")]
    found = []
    for c in rows.tolist():
        i = int(margins.sequence[c])
        assert margins.origin is not None
        text = inputs.layer.texts[int(texts[margins.origin[i, 0]])].text
        query, chosen = int(margins.origin[i, 1]), int(margins.selected[i])
        rival = int(margins.token[c])
        words = None
        if text < len(recording.words) and not inputs.layer.cross:
            line = recording.words[text]
            words = (line[query], line[chosen], line[rival])
        found.append(Support(text, query, chosen, rival, float(solution.dual[c]), words))
    return found


def _head(
    subject: Subject, seen: Selections, h: int, fits: tuple[Comparison, ...], uncompared: str
) -> Head:
    inputs, layer = subject.inputs, subject.inputs.layer
    top, able = seen.top[h], np.isfinite(seen.margin[h])
    confident = able & (top > 0.8)
    s = inputs.singular[1] if layer.projection else None
    return Head(
        layer.number,
        layer.numbers[h],
        layer.name,
        len(top),
        sum(text.asked for text in layer.texts),
        len(subject.sure),
        len(subject.members) if fits else 0,
        _shares(top, able),
        float(top.mean()),
        float(seen.entropy[h].mean()),
        float(np.exp(seen.entropy[h]).mean()),
        _quantiles(seen.margin[h][able]),
        _quantiles(seen.scale_free[h][able]),
        float(np.median(seen.scale_free[h][confident])) if confident.any() else float("nan"),
        float(seen.peak[h].max()),
        {kind: float((seen.kind[h] == k).mean()) for k, kind in enumerate(KINDS)},
        float("nan") if s is None else float((s**2).sum() / s[0] ** 2),
        float("nan") if s is None else float(s.sum() / np.sqrt((s**2).sum())),
        fits,
        uncompared,
    )


def _shares(top: FloatArray, able: BoolArray) -> tuple[float, float, float]:
    """Among queries that have a choice."""
    if not able.any():
        return float("nan"), float("nan"), float("nan")
    low, middle, high = (float((top[able] > level).mean()) for level in (0.5, 0.9, 0.99))
    return low, middle, high


def _quantiles(values: FloatArray) -> tuple[float, float, float]:
    if len(values) == 0:
        return float("nan"), float("nan"), float("nan")
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    return float(low), float(middle), float(high)
