"""Head by head: what is selected, by what margin, and how near the weights are to the max-margin
solution of their own selections, beside nulls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.printable import Compact, kind
from attsvm.datasets.attention_data import BoolArray, FloatArray
from attsvm.norms import Norm, as_norm
from attsvm.solvers import MarginSolution
from attsvm.transformers.audit_folder import save
from attsvm.transformers.capture import Layer, Recording
from attsvm.transformers.comparison import Settings, Subject
from attsvm.transformers.drawing import Drawing, drawings
from attsvm.transformers.head_findings import PENDING, Head, Support, frame
from attsvm.transformers.inputs import Inputs
from attsvm.transformers.null_weights import NULLS, Null
from attsvm.transformers.selections import KINDS, Classes, Selections, favourite, selections

NAN = float("nan")
FEWEST = 10
"""Sure queries that a head needs to be compared with its max-margin solution."""

Found = tuple[Head, list[Support]]
"""What is known of one head."""

Seen = dict[int, Selections]
"""What the heads of every layer select, by the layer's number."""


@dataclass(eq=False, repr=False)
class Audit(Compact):
    """The result of :func:`audit`.

    Attributes:
        heads: layer by layer.
        recording: what it was computed from.
        threshold: top mass from which a query counts as sure.
        drawings: of some texts, what every head selects in them.
    """

    heads: list[Head]
    recording: Recording
    threshold: float
    drawings: list[Drawing] = field(default_factory=list)
    _supports: dict[tuple[int, int], list[Support]] = field(repr=False, default_factory=dict)

    @property
    def pending(self) -> list[Head]:
        """Heads whose programmes are still to be solved, the most selective first."""
        left = [each for each in self.heads if each.uncompared == PENDING]
        return sorted(left, key=lambda each: (-each.sure[0], -each.top))

    def put(self, head: Head, supports: list[Support]) -> None:
        """A head is known."""
        place = self.heads.index(self.head(head.layer, head.head))
        self.heads[place] = head
        self._supports[head.layer, head.head] = supports

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
    norms: Sequence[str | Norm] = ("fro",),
    nulls: Sequence[Null] = ("heads", "permuted"),
    *,
    center: bool = True,
    threshold: float = 0.5,
    most: int = 80,
    draws: int = 3,
    classes: Classes | None = None,
    seed: int = 0,
    max_seconds: float = 20.0,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Every head of a recording.

    Args:
        recording: from :func:`~attsvm.transformers.capture` or
            :func:`~attsvm.transformers.from_cache`.
        norms: in which max-margin solutions are compared; none for statistics alone. The nuclear
            norm takes about ten times as long as the Frobenius norm.
        nulls: what the cosines are compared with, see :mod:`attsvm.transformers.comparison`.
        center: subtract the mean input from queries; the mean's share moves to the constant.
        threshold: top mass above which a query is sure of its selection and joins the programme.
        most: largest number of queries in a programme, drawn at random from the sure ones.
        draws: draws of each null, and of texts with replacement.
        classes: equivalent tokens: per text ``(T,)`` integers, equal for those of one class; a
            list, or a function of the text's number. They count as one for the head, its nulls and
            its agreement on other texts.
        seed: of the draws of queries, nulls and texts.
        max_seconds: for each programme.
        progress: called with heads done and heads in all.

    Raises:
        InputError: an unknown null or norm, a recording without texts.

    Example:
        >>> import torch
        >>> from attsvm.transformers import audit, capture, story
        >>> model, tokenizer, batch = story(tokens=40)
        >>> with torch.no_grad(), capture(model) as recording:
        ...     _ = model(**batch)
        >>> selects = audit(recording, norms=[]).head(layer=1, head=3).selects
        >>> max(selects, key=selects.get)
        'previous'
    """
    settings = Settings(norms, nulls, threshold, most, draws, seed, center, max_seconds)
    found, seen = statistics(recording, settings, classes)
    total, left = len(found.heads), len(found.pending)
    heads = solved(recording, found, seen, settings, classes)
    for done, one in enumerate(heads, start=total - left + 1):
        found.put(*one)
        if progress is not None:
            progress(done, total)
    return found


def statistics(
    recording: Recording, settings: Settings, classes: Classes | None = None
) -> tuple[Audit, Seen]:
    """Every head without its comparison, which is left :data:`PENDING`.

    Raises:
        InputError: an unknown null or norm, a recording without texts.
    """
    if not isinstance(recording, Recording):
        raise InputError(
            f"recording is {kind(recording)}; give the one of"
            " `with attsvm.transformers.capture(model)`"
        )
    unknown = [each for each in settings.nulls if each not in NULLS]
    if unknown:
        raise InputError(f"unknown null {unknown[0]!r}; nulls are: {', '.join(NULLS)}")
    for norm in settings.norms:
        as_norm(norm)
    if not recording.texts:
        raise InputError("the recording has no texts; call the model inside the capture block")
    seen = look(recording, classes)
    heads = [
        _head(recording, layer, seen[layer.number], h, settings)
        for layer in recording.layers
        for h in range(layer.heads)
    ]
    heads.sort(key=lambda each: (each.layer, each.head))
    return Audit(heads, recording, settings.threshold, drawings(recording)), seen


def look(recording: Recording, classes: Classes | None = None) -> Seen:
    """What every head of a recording selects."""
    return {layer.number: selections(recording, layer, classes) for layer in recording.layers}


def solved(
    recording: Recording,
    found: Audit,
    seen: Seen,
    settings: Settings,
    classes: Classes | None = None,
) -> Iterator[Found]:
    """The pending heads of an audit beside their max-margin solutions, each as soon as it is there,
    the most selective first; with what holds up its margin in the first norm.
    """
    layers = {layer.number: layer for layer in recording.layers}
    for head in found.pending:
        layer = layers[head.layer]
        h = layer.numbers.index(head.head)
        rng = np.random.default_rng([settings.seed, head.layer, head.head])
        inputs = Inputs(layer, h, settings.center, classes)
        subject = Subject(inputs, seen[head.layer], h, settings, rng)
        pairs = [subject.compare(as_norm(norm)) for norm in settings.norms]
        fits = tuple(fit for fit, _ in pairs)
        supports = _support(recording, subject, pairs[0][1])
        yield replace(head, fits=fits, joined=len(subject.members), uncompared=""), supports


def _uncompared(layer: Layer, sure: int, settings: Settings) -> str:
    """Why a head is not compared, or not yet; empty where no norm was asked for."""
    if not settings.norms:
        return ""
    if any(text.bias is not None for text in layer.texts):
        return "something is added to their logits"
    if sure < FEWEST:
        return (
            f"fewer than {FEWEST} of their queries have top mass above {settings.threshold:g}"
            " and a choice"
        )
    return PENDING


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


def _head(recording: Recording, layer: Layer, seen: Selections, h: int, settings: Settings) -> Head:
    top, able = seen.top[h], np.isfinite(seen.margin[h])
    confident = able & (top > 0.8)
    sure = int(seen.sure(h, settings.threshold).sum())
    s = Inputs(layer, h, settings.center).singular[1] if layer.projection else None
    return Head(
        layer=layer.number,
        head=layer.numbers[h],
        name=layer.name,
        queries=len(top),
        asked=sum(text.asked for text in layer.texts),
        sure_queries=sure,
        joined=0,
        sure=_shares(top, able),
        top=float(top.mean()),
        entropy=float(seen.entropy[h].mean()),
        effective=float(np.exp(seen.entropy[h]).mean()),
        margin=_quantiles(seen.margin[h][able]),
        scale_free=_quantiles(seen.scale_free[h][able]),
        sure_scale_free=float(np.median(seen.scale_free[h][confident])) if confident.any() else NAN,
        peak=float(seen.peak[h].max()),
        selects={kind: float((seen.kind[h] == k).mean()) for k, kind in enumerate(KINDS)},
        chance=dict(zip(KINDS, seen.chance.tolist(), strict=True)),
        favourite=favourite(recording, layer, seen, h),
        rank=NAN if s is None else float((s**2).sum() / s[0] ** 2),
        spread=NAN if s is None else float(s.sum() / np.sqrt((s**2).sum())),
        uncompared=_uncompared(layer, sure, settings),
    )


def _shares(top: FloatArray, able: BoolArray) -> tuple[float, float, float]:
    """Among queries that have a choice."""
    if not able.any():
        return NAN, NAN, NAN
    low, middle, high = (float((top[able] > level).mean()) for level in (0.5, 0.9, 0.99))
    return low, middle, high


def _quantiles(values: FloatArray) -> tuple[float, float, float]:
    if len(values) == 0:
        return NAN, NAN, NAN
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    return float(low), float(middle), float(high)
