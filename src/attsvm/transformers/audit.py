"""The audit of a recording, head by head: what is selected, by what margin, and how near the
weights are to the max-margin solution of their own selections, beside nulls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.extras import data_frame
from attsvm.base.printable import Compact, kind
from attsvm.datasets.attention_data import BoolArray, FloatArray
from attsvm.norms import Norm, as_norm
from attsvm.report.plots import axes_of
from attsvm.solvers import MarginSolution
from attsvm.transformers.audit_folder import save_audit
from attsvm.transformers.comparison import AuditSettings, HeadComparison
from attsvm.transformers.drawing import Drawing, drawings
from attsvm.transformers.head_findings import PENDING, Head, Support
from attsvm.transformers.head_inputs import HeadInputs
from attsvm.transformers.null_weights import NULLS, Null
from attsvm.transformers.recording import Layer, Recording
from attsvm.transformers.selection_table import SelectionTable, selection_table
from attsvm.transformers.selections import (
    KINDS,
    Classes,
    HeadSelections,
    Selections,
    compute_selections,
    favourite_token,
)

NAN = float("nan")

SureSelections = dict[tuple[int, int], HeadSelections]
"""What pending heads select, by the numbers of layer and head."""


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

    @property
    def pending(self) -> list[Head]:
        """Heads whose programmes are still to be solved, the most selective first."""
        # sure heads first: their page fills with what readers look for
        pending = [head for head in self.heads if head.uncompared == PENDING]
        return sorted(pending, key=lambda head: (-head.sure[0], -head.top))

    def replace_head(self, head: Head) -> None:
        """Put a head that has been compared in the place of the pending one."""
        self.heads[self.heads.index(self.head(head.layer, head.head))] = head

    def head(self, layer: int, head: int) -> Head:
        """One head.

        Raises:
            InputError: a head that is not there.
        """
        for candidate in self.heads:
            if (candidate.layer, candidate.head) == (layer, head):
                return candidate
        layers = sorted({candidate.layer for candidate in self.heads})
        raise InputError(
            f"there is no head {head} in layer {layer}; layers {layers[0]} to {layers[-1]} have"
            f" heads 0 to {max(candidate.head for candidate in self.heads)}"
        )

    def support(self, layer: int, head: int) -> list[Support]:
        """The rows that hold up the margin of this head, see :attr:`Head.support`."""
        return list(self.head(layer, head).support)

    def plot(self, ax: Any = None) -> Any:
        """The mean attention on the selected token, a row per layer and a column per head; on these
        axes of matplotlib, or new ones.
        """
        layers = sorted({head.layer for head in self.heads})
        masses = np.full((len(layers), 1 + max(head.head for head in self.heads)), np.nan)
        for head in self.heads:
            masses[layers.index(head.layer), head.head] = head.top
        axes = axes_of(ax)
        image = axes.imshow(masses, cmap="Greens", vmin=0.0, vmax=1.0)
        axes.set_xticks(range(masses.shape[1]))
        axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
        axes.set(xlabel="head", ylabel="layer", title="attention on the selected token, mean")
        axes.figure.colorbar(image, ax=axes)
        return axes

    def selections(self, text: int, layer: int, head: int) -> SelectionTable:
        """The tokens that a head selects in a text, query by query: with which probability, by
        which margin, and over which rival.

        Raises:
            InputError: a head or a text that is not there, or an audit of a folder, which holds no
                keys and queries.

        Example:
            >>> import torch
            >>> from attsvm.transformers import audit, capture, demo_model
            >>> model, tokenizer, batch = demo_model(tokens=40)
            >>> with torch.no_grad(), capture(model) as recording:
            ...     _ = model(**batch)
            >>> result = audit(recording.name_tokens(tokenizer), norms=[])
            >>> row = result.selections(text=0, layer=1, head=3)[8]
            >>> row.token, row.selected_token
            ('a', 'was')
        """
        self.head(layer, head)
        if layer not in self.recording.layers:
            raise InputError(
                "this audit holds no keys and queries; make one with capture and audit in Python"
            )
        recorded = self.recording.layers[layer]
        return selection_table(self.recording, recorded, recorded.head_numbers.index(head), text)

    def table(self) -> list[dict[str, Any]]:
        """One flat row per head, for a data frame or a file."""
        return [head.row() for head in self.heads]

    def to_pandas(self) -> Any:
        """:meth:`table` as a data frame.

        Raises:
            UnavailableError: pandas is not installed.
        """
        return data_frame(self.table(), "table()")

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
        return save_audit(self, self.table(), Path(folder), title, overwrite)


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
    """Audit every head of a recording.

    Args:
        recording: from :func:`~attsvm.transformers.capture`.
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
        >>> from attsvm.transformers import audit, capture, demo_model
        >>> model, tokenizer, batch = demo_model(tokens=40)
        >>> with torch.no_grad(), capture(model) as recording:
        ...     _ = model(**batch)
        >>> selects = audit(recording, norms=[]).head(layer=1, head=3).selects
        >>> max(selects, key=selects.get)
        'previous'
    """
    settings = AuditSettings(norms, nulls, threshold, most, draws, seed, center, max_seconds)
    result, selections = audit_statistics(recording, settings, classes)
    total, pending = len(result.heads), len(result.pending)
    comparisons = compare_pending_heads(recording, result, selections, settings, classes)
    for done, head in enumerate(comparisons, start=total - pending + 1):
        result.replace_head(head)
        if progress is not None:
            progress(done, total)
    return result


def audit_statistics(
    recording: Recording, settings: AuditSettings, classes: Classes | None = None
) -> tuple[Audit, SureSelections]:
    """The statistics of every head, whose comparison is left :data:`PENDING`; and what pending
    heads select.

    Raises:
        InputError: an unknown null or norm, a recording without texts.
    """
    if not isinstance(recording, Recording):
        raise InputError(
            f"recording is {kind(recording)}; give the one of"
            " `with attsvm.transformers.capture(model)`"
        )
    # names are checked before anything is computed
    unknown = [null for null in settings.nulls if null not in NULLS]
    if unknown:
        raise InputError(f"unknown null {unknown[0]!r}; nulls are: {', '.join(NULLS)}")
    for norm in settings.norms:
        as_norm(norm)
    if not recording.layers:
        raise InputError("the recording has no texts; call the model inside the capture block")
    heads: list[Head] = []
    selections: SureSelections = {}
    # a layer at a time: they may lie on the disk
    for layer in recording.layers.values():
        of_layer = compute_selections(recording, layer, classes)
        for h in range(layer.heads):
            head = _head_statistics(recording, layer, of_layer, h, settings)
            heads.append(head)
            if head.uncompared == PENDING:
                selections[head.layer, head.head] = of_layer.of_head(h, settings.threshold)
    heads.sort(key=lambda head: (head.layer, head.head))
    return Audit(heads, recording, settings.threshold, drawings(recording)), selections


def select_again(recording: Recording, result: Audit, settings: AuditSettings) -> SureSelections:
    """What the pending heads of an audit select, from another recording of the same texts."""
    selections: SureSelections = {}
    for number in sorted({head.layer for head in result.pending}):
        layer = recording.layers[number]
        of_layer = compute_selections(recording, layer)
        for head in result.pending:
            if head.layer == number:
                h = layer.head_numbers.index(head.head)
                selections[number, head.head] = of_layer.of_head(h, settings.threshold)
    return selections


def compare_pending_heads(
    recording: Recording,
    result: Audit,
    selections: SureSelections,
    settings: AuditSettings,
    classes: Classes | None = None,
) -> Iterator[Head]:
    """Yield the pending heads of an audit beside their max-margin solutions, as soon as each is
    solved, the most selective first; with what holds up its margin in the first norm.
    """
    for head in result.pending:
        layer = recording.layers[head.layer]
        h = layer.head_numbers.index(head.head)
        # draws of a head depend on no other head, so that a resumed audit is the same
        rng = np.random.default_rng([settings.seed, head.layer, head.head])
        inputs = HeadInputs(layer, h, settings.center, classes)
        comparison = HeadComparison(inputs, selections[head.layer, head.head], settings, rng)
        pairs = [comparison.compare(as_norm(norm)) for norm in settings.norms]
        fits = tuple(fit for fit, _ in pairs)
        yield replace(
            head,
            fits=fits,
            programme_queries=len(comparison.members),
            uncompared="",
            support=_support_rows(recording, comparison, pairs[0][1]),
        )


def _why_uncompared(layer: Layer, sure: int, settings: AuditSettings) -> str:
    """The reason why a head is not compared, or not yet; empty where no norm was asked for."""
    if not settings.norms:
        return ""
    # a bias is no function of the weights, so their solution says nothing about it
    if any(text.bias is not None for text in layer.texts):
        return "something is added to their logits"
    if sure < settings.fewest:
        return (
            f"fewer than {settings.fewest} of their queries have top mass above"
            f" {settings.threshold:g} and a choice"
        )
    return PENDING


def _support_rows(
    recording: Recording, comparison: HeadComparison, solution: MarginSolution
) -> tuple[Support, ...]:
    """The constraints with a positive multiplier, largest first, with their tokens by name."""
    margins, inputs = solution.margins, comparison.inputs
    texts = np.unique(inputs.text[comparison.members])
    # constraints with a positive multiplier, by falling multiplier
    rows = np.flatnonzero(solution.dual > 0)
    rows = rows[np.argsort(-solution.dual[rows], kind="stable")]
    supports = []
    for c in rows.tolist():
        # from the constraint to its query, and from there to the text that was recorded
        i = int(margins.sequence[c])
        assert margins.origin is not None
        text = inputs.layer.texts[int(texts[margins.origin[i, 0]])].text
        query, selected = int(margins.origin[i, 1]), int(margins.selected[i])
        rival = int(margins.token[c])
        words = None
        if text < len(recording.words) and not inputs.layer.cross:
            line = recording.words[text]
            words = (line[query], line[selected], line[rival])
        supports.append(Support(text, query, selected, rival, float(solution.dual[c]), words))
    return tuple(supports)


def _head_statistics(
    recording: Recording, layer: Layer, selections: Selections, h: int, settings: AuditSettings
) -> Head:
    # a query that sees one key has no choice, and says nothing about the head
    top, has_rival = selections.top[h], np.isfinite(selections.margin[h])
    confident = has_rival & (top > 0.8)
    sure = int(selections.sure(h, settings.threshold).sum())
    s = HeadInputs(layer, h, settings.center).singular[1] if layer.projection else None
    return Head(
        layer=layer.number,
        head=layer.head_numbers[h],
        name=layer.name,
        queries=len(top),
        queries_of_texts=sum(text.queries_of_text for text in layer.texts),
        sure_queries=sure,
        programme_queries=0,
        sure=_confidence_shares(top, has_rival),
        top=float(top.mean()),
        entropy=float(selections.entropy[h].mean()),
        effective=float(np.exp(selections.entropy[h]).mean()),
        margin=_quantiles(selections.margin[h][has_rival]),
        scale_free=_quantiles(selections.scale_free[h][has_rival]),
        sure_scale_free=float(np.median(selections.scale_free[h][confident]))
        if confident.any()
        else NAN,
        peak=float(selections.peak[h].max()),
        selects={kind: float((selections.kind[h] == k).mean()) for k, kind in enumerate(KINDS)},
        chance=dict(zip(KINDS, selections.chance.tolist(), strict=True)),
        favourite=favourite_token(recording, layer, selections, h),
        rank=NAN if s is None else float((s**2).sum() / s[0] ** 2),
        nuclear_ratio=NAN if s is None else float(s.sum() / np.sqrt((s**2).sum())),
        uncompared=_why_uncompared(layer, sure, settings),
    )


def _confidence_shares(top: FloatArray, has_rival: BoolArray) -> tuple[float, float, float]:
    """Shares of the queries that have a rival with top mass above .5, .9 and .99."""
    if not has_rival.any():
        return NAN, NAN, NAN
    low, middle, high = (float((top[has_rival] > level).mean()) for level in (0.5, 0.9, 0.99))
    return low, middle, high


def _quantiles(values: FloatArray) -> tuple[float, float, float]:
    if len(values) == 0:
        return NAN, NAN, NAN
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    return float(low), float(middle), float(high)
