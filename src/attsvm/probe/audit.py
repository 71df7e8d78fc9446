r"""Head by head: what is selected, by what margin, and how near the weights are to the max-margin
solution of their own selections, beside nulls.

A head without rotary positions has weights :math:`W=sW_K^\top W_Q` on the inputs of its layer: its
logits are :math:`x_t^\top Wz` with :math:`z=(x-\bar x,1)`, the centred input of the query and a
constant that carries bias and mean. In other heads keys and queries themselves are the inputs and
:math:`W=sI`. The queries that a head is sure of (top mass above a threshold) ask for margins,

.. math:: (x_{\alpha_j}-x_t)^\top Wz_j\ge1,

and :math:`W^{mm}` is their certified solution of least norm. The cosine of :math:`W` and
:math:`W^{mm}` says little by itself: constraints alone pin a good part of any weights that meet
them. So it is compared with nulls, other weights on the same inputs:

* ``heads``: the other heads of the layer, on the programme of this one,
* ``random``: the same singular values with random singular vectors,
* ``rotated``: the same two subspaces, singular vectors rotated inside them,
* ``permuted``: left singular vectors paired with other right ones;

the last three with *their own* selections, scaled until they are as sure of as many queries, and
solved again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.errors import InputError
from attsvm.geometry import Norm, parse_norm
from attsvm.margins import PairMargins, pair_margins
from attsvm.probe.capture import Layer, Recording
from attsvm.probe.selections import KINDS, Selections, selections
from attsvm.solvers import MarginSolution, max_margin

Null = Literal["heads", "random", "rotated", "permuted"]
NULLS: tuple[Null, ...] = ("heads", "random", "rotated", "permuted")
FEWEST = 10
"""Sure queries that a head needs to be compared with its max-margin solution."""


@dataclass(frozen=True)
class Comparison:
    """A head's weights beside the max-margin solution of their own selections, in one norm.

    Attributes:
        norm: its name.
        status: of the solution, see :class:`~attsvm.solvers.MarginSolution`; ``soft`` when the hard
            programme is infeasible and the soft one was solved.
        constraints: number of rows.
        cosine: of the head's weights and the solution.
        share: the head's smallest margin over the best one, both at norm one.
        nulls: per null the cosines of its draws.
        agreement: share of other confident queries at which the solution selects what the head
            does; NaN without such queries.
        baseline: the same for the most frequent relative position.
        gap: certified relative duality gap of the solution.
    """

    norm: str
    status: str
    constraints: int
    cosine: float
    share: float
    nulls: dict[str, tuple[float, ...]]
    agreement: float
    baseline: float
    gap: float

    def null(self) -> float:
        """The mean of the strictest null: the one with the largest mean; NaN without nulls."""
        means = [float(np.mean(draws)) for draws in self.nulls.values() if draws]
        return max(means, default=float("nan"))

    @property
    def excess(self) -> float:
        """:attr:`cosine` minus :meth:`null`: what is left for the theory."""
        return self.cosine - self.null()


@dataclass(frozen=True)
class Support:
    """One row that holds the margin up: a query, what it selects, and the rival that is nearest."""

    text: int
    query: int
    selected: int
    rival: int
    multiplier: float
    words: tuple[str, str, str] | None


@dataclass(frozen=True)
class Head:
    """One head of one layer.

    Attributes:
        layer, head: numbers.
        name: the module.
        queries: how many the statistics are over.
        sure: share of queries with top mass above .5, .9 and .99.
        top: mean top mass.
        entropy: mean, in nats; ``effective`` is its exponential, a number of tokens.
        margin: .1, .5 and .9 quantiles in nats.
        scale_free: the same in units of the head's typical logit.
        sure_scale_free: median over queries with top mass above .8; NaN without any.
        peak: the largest logit.
        selects: share of queries per kind of selected token, see
            :data:`~attsvm.probe.selections.KINDS`.
        rank: stable rank of the weights; NaN where keys and queries are the inputs.
        spread: nuclear over Frobenius norm of the weights; NaN likewise.
        fits: one comparison per norm.
    """

    layer: int
    head: int
    name: str
    queries: int
    sure: tuple[float, float, float]
    top: float
    entropy: float
    effective: float
    margin: tuple[float, float, float]
    scale_free: tuple[float, float, float]
    sure_scale_free: float
    peak: float
    selects: dict[str, float]
    rank: float
    spread: float
    fits: tuple[Comparison, ...] = ()

    def fit(self, norm: str | Norm) -> Comparison:
        """The comparison in this norm.

        Raises:
            InputError: a norm in which the head was not compared.
        """
        name = (parse_norm(norm) if isinstance(norm, str) else norm).name
        for each in self.fits:
            if each.norm == name:
                return each
        have = ", ".join(each.norm for each in self.fits) or "none"
        raise InputError(
            f"head {self.head} of layer {self.layer} was not compared in the norm {name}; it was"
            f" in: {have}"
        )


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
        rows = []
        for each in self.heads:
            row: dict[str, Any] = {
                "layer": each.layer,
                "head": each.head,
                "name": each.name,
                "queries": each.queries,
                "top": each.top,
                "sure_50": each.sure[0],
                "sure_90": each.sure[1],
                "sure_99": each.sure[2],
                "entropy": each.entropy,
                "effective_tokens": each.effective,
                "margin": each.margin[1],
                "margin_scale_free": each.scale_free[1],
                "margin_scale_free_sure": each.sure_scale_free,
                "largest_logit": each.peak,
                "stable_rank": each.rank,
                "nuclear_over_frobenius": each.spread,
                **{f"selects_{kind.replace(' ', '_')}": v for kind, v in each.selects.items()},
            }
            for fit in each.fits:
                row |= {
                    f"{fit.norm}_cosine": fit.cosine,
                    f"{fit.norm}_null": fit.null(),
                    f"{fit.norm}_excess": fit.excess,
                    f"{fit.norm}_margin_share": fit.share,
                    f"{fit.norm}_status": fit.status,
                }
            rows.append(row)
        return rows

    def to_pandas(self) -> Any:
        """:meth:`table` as a data frame; needs pandas."""
        import pandas  # type: ignore[import-untyped]

        return pandas.DataFrame(self.table())


def audit(
    recording: Recording,
    norms: Sequence[str | Norm] = ("fro", "nuc"),
    nulls: Sequence[Null] = ("heads", "permuted"),
    *,
    center: bool = True,
    threshold: float = 0.5,
    most: int = 80,
    draws: int = 3,
    classes: Callable[[int], ArrayLike] | Sequence[ArrayLike] | None = None,
    seed: int = 0,
    max_seconds: float = 20.0,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Every head of a recording.

    Args:
        recording: from :func:`~attsvm.probe.capture` or :func:`~attsvm.probe.from_cache`.
        norms: in which max-margin solutions are compared; none for statistics alone.
        nulls: what the cosines are compared with, see the top of this page.
        center: subtract the mean input from queries; the mean's share moves to the constant.
        threshold: top mass above which a query is sure of its selection and joins the programme.
        most: largest number of queries in a programme, drawn at random from the sure ones.
        draws: draws of each null.
        classes: equivalent tokens, see :func:`~attsvm.probe.selections.selections`.
        seed: of the draws of queries and nulls.
        max_seconds: for each programme.
        progress: called with heads done and heads in all.

    Raises:
        InputError: an unknown null or norm, a recording without texts.
    """
    unknown = [each for each in nulls if each not in NULLS]
    if unknown:
        raise InputError(f"unknown null {unknown[0]!r}; nulls are: {', '.join(NULLS)}")
    if not recording.texts:
        raise InputError("the recording has no texts; call the model inside the capture block")
    chosen = [parse_norm(each) if isinstance(each, str) else each for each in norms]
    total = sum(layer.heads for layer in recording.layers)
    heads: list[Head] = []
    supports: dict[tuple[int, int], list[Support]] = {}
    for layer in recording.layers:
        seen = selections(recording, layer, classes)
        inputs = _Inputs(layer, center)
        for h in range(layer.heads):
            rng = np.random.default_rng([seed, layer.number, h])
            fits: list[Comparison] = []
            sure = np.flatnonzero((seen.top[h] > threshold) & (seen.runner[h] >= 0))
            members = np.sort(rng.permutation(sure)[:most])
            for norm in chosen if inputs.usable and len(sure) >= FEWEST else ():
                fit, solution = _compare(
                    inputs,
                    seen,
                    h,
                    norm,
                    nulls,
                    threshold,
                    sure,
                    members,
                    draws,
                    rng,
                    max_seconds,
                    classes,
                )
                if not fits:
                    key = (layer.number, h)
                    supports[key] = _support(recording, inputs, solution, members)
                fits.append(fit)
            heads.append(_head(layer, seen, h, inputs, tuple(fits)))
            if progress is not None:
                progress(len(heads), total)
    return Audit(heads, recording, threshold, supports)


class _Inputs:
    """What a layer's weights act on: the inputs of its linear maps, or keys and queries."""

    def __init__(self, layer: Layer, center: bool) -> None:
        self.layer, self._center = layer, center
        P = layer.projection
        self.usable = all(text.bias is None for text in layer.texts)
        self.linear = P is not None
        self.scale = layer.texts[0].scale
        self.d = layer.texts[0].queries.shape[2]
        self.text = np.concatenate(
            [np.full(len(t.positions), i) for i, t in enumerate(layer.texts)]
        )
        self.row = np.concatenate([np.arange(len(t.positions)) for t in layer.texts])
        if P is not None:
            self.mean = np.concatenate(P.query_inputs).mean(axis=0) if center else 0.0
        self._cache: tuple[int, list[FloatArray], list[FloatArray]] | None = None

    def keys(self, h: int) -> list[FloatArray]:
        """Per text ``(T, width)``."""
        return self._both(h)[0]

    def queries(self, h: int) -> list[FloatArray]:
        """Per text ``(q, width + 1)``, or ``(q, d)`` where keys and queries are the inputs."""
        return self._both(h)[1]

    def _both(self, h: int) -> tuple[list[FloatArray], list[FloatArray]]:
        P = self.layer.projection
        key = -1 if P is not None else h
        if self._cache is None or self._cache[0] != key:
            if P is not None:
                queries = [
                    np.concatenate([z - self.mean, np.ones((len(z), 1))], axis=1)
                    for z in P.query_inputs
                ]
                self._cache = (key, P.key_inputs, queries)
            else:
                g = h * len(self.layer.texts[0].keys) // self.layer.heads
                self._cache = (
                    key,
                    [t.keys[g].double().numpy() for t in self.layer.texts],
                    [t.queries[h].double().numpy() for t in self.layer.texts],
                )
        return self._cache[1], self._cache[2]

    def weights(self, h: int) -> FloatArray:
        """The head's own weights on these inputs."""
        P = self.layer.projection
        if P is None:
            return self.scale * np.eye(self.d)
        own = slice(h * self.d, (h + 1) * self.d)
        W = self.scale * (P.W_K[own].T @ P.W_Q[own])
        shift = self.scale * (P.W_K[own].T @ (P.b_Q[own] + P.W_Q[own] @ self._mean()))
        return np.concatenate([W, shift[:, None]], axis=1)

    def _mean(self) -> FloatArray:
        P = self.layer.projection
        assert P is not None
        return np.broadcast_to(np.asarray(self.mean, dtype=np.float64), (P.W_Q.shape[1],))


def _compare(
    inputs: _Inputs,
    seen: Selections,
    h: int,
    norm: Norm,
    nulls: Sequence[Null],
    threshold: float,
    sure: IntArray,
    members: IntArray,
    draws: int,
    rng: np.random.Generator,
    max_seconds: float,
    classes: Callable[[int], ArrayLike] | Sequence[ArrayLike] | None,
) -> tuple[Comparison, MarginSolution]:
    W = inputs.weights(h)
    programme = _programme(inputs, h, members, seen.selected[h], classes)
    solution, status = _solved(programme, norm, max_seconds)
    cosine, share = _cosine(W, solution.W), _share(programme, W, solution, norm)
    found: dict[str, tuple[float, ...]] = {}
    for null in nulls:
        if null == "heads":
            if inputs.linear:
                others = [k for k in range(inputs.layer.heads) if k != h]
                found[null] = tuple(_cosine(inputs.weights(k), solution.W) for k in others)
            continue
        found[null] = tuple(
            _null_cosine(
                inputs,
                h,
                _variant(W, null, rng),
                norm,
                sure,
                len(members),
                threshold,
                rng,
                max_seconds,
            )
            for _ in range(draws)
        )
    agreement, baseline = _held_out(inputs, seen, h, solution, members, sure)
    comparison = Comparison(
        norm.name, status, programme.m, cosine, share, found, agreement, baseline, solution.gap
    )
    return comparison, solution


def _programme(
    inputs: _Inputs,
    h: int,
    members: IntArray,
    selected: IntArray,
    classes: Callable[[int], ArrayLike] | Sequence[ArrayLike] | None = None,
) -> PairMargins:
    """The margins of these queries, which select these positions."""
    keys, queries = inputs.keys(h), inputs.queries(h)
    text, row = inputs.text[members], inputs.row[members]
    used = np.unique(text)
    rows = [row[text == i] for i in used]
    group = None
    if classes is not None:
        group = [np.asarray(classes(int(i)) if callable(classes) else classes[i]) for i in used]
    return pair_margins(
        [keys[i] for i in used],
        [queries[i][r] for i, r in zip(used, rows, strict=True)],
        [selected[members[text == i]] for i in used],
        positions=[inputs.layer.texts[i].positions[r] for i, r in zip(used, rows, strict=True)]
        if not inputs.layer.cross
        else [np.zeros(len(r), dtype=np.int64) for r in rows],
        visible=[inputs.layer.texts[i].visible[r] for i, r in zip(used, rows, strict=True)],
        classes=group,
    )


def _solved(programme: PairMargins, norm: Norm, max_seconds: float) -> tuple[MarginSolution, str]:
    """The hard solution, or the soft one where the selections contradict each other."""
    solution = max_margin(programme, norm, max_seconds=max_seconds)
    if solution.status != "infeasible":
        return solution, solution.status
    size = float(np.square(programme.keys).sum(axis=1).mean())
    size *= float(np.square(programme.queries).sum(axis=1).mean())
    return max_margin(programme, norm, slack=10.0 / size, max_seconds=max_seconds), "soft"


def _cosine(A: FloatArray, B: FloatArray) -> float:
    size = float(np.linalg.norm(A) * np.linalg.norm(B))
    return float((A * B).sum() / size) if size > 0 else float("nan")


def _share(programme: PairMargins, W: FloatArray, solution: MarginSolution, norm: Norm) -> float:
    """The smallest margin of ``W`` over the best, both at norm one; NaN for a soft margin."""
    if solution.slack is not None or solution.norm == 0.0:
        return float("nan")
    return float(programme(W).min()) / float(norm.value(W)) * solution.norm


def _variant(W: FloatArray, null: Null, rng: np.random.Generator) -> FloatArray:
    U, s, Vt = np.linalg.svd(W, full_matrices=False)
    kept = s > 1e-10 * s[0]
    U, s, Vt = U[:, kept], s[kept], Vt[kept]
    k = len(s)
    if null == "permuted":
        left, right = U, Vt[_derangement(k, rng)]
    elif null == "rotated":
        left, right = U @ _orthogonal(k, k, rng), _orthogonal(k, k, rng) @ Vt
    else:
        left, right = _orthogonal(W.shape[0], k, rng), _orthogonal(W.shape[1], k, rng).T
    variant: FloatArray = (left * s) @ right
    return variant


def _derangement(n: int, rng: np.random.Generator) -> IntArray:
    """A random order without fixed points (by a shift where there are two or three)."""
    order = rng.permutation(n)
    found = np.empty(n, dtype=np.int64)
    found[order] = np.roll(order, 1)
    return found


def _orthogonal(n: int, k: int, rng: np.random.Generator) -> FloatArray:
    Q, R = np.linalg.qr(rng.normal(size=(n, k)))
    turned: FloatArray = Q * np.sign(np.diag(R))
    return turned


def _null_cosine(
    inputs: _Inputs,
    h: int,
    W: FloatArray,
    norm: Norm,
    sure: IntArray,
    wanted: int,
    threshold: float,
    rng: np.random.Generator,
    max_seconds: float,
) -> float:
    """The cosine of other weights and the solution of their own selections on the same inputs."""
    logits = _logits(inputs, h, W)
    own = _surest(logits, len(sure), threshold)
    members = np.sort(rng.permutation(own)[:wanted])
    if len(members) < 2:
        return float("nan")
    selected = np.concatenate([each.argmax(axis=1) for each in logits])
    solution, _ = _solved(_programme(inputs, h, members, selected), norm, max_seconds)
    return _cosine(W, solution.W)


def _logits(inputs: _Inputs, h: int, W: FloatArray) -> list[FloatArray]:
    """Per text ``(q, T)``: what these weights give, minus infinity on hidden keys."""
    return [
        np.where(text.visible, (queries @ W.T) @ keys.T, -np.inf)
        for text, queries, keys in zip(
            inputs.layer.texts, inputs.queries(h), inputs.keys(h), strict=True
        )
    ]


def _surest(logits: list[FloatArray], wanted: int, threshold: float) -> IntArray:
    """The queries with top mass above ``threshold`` at the scale of the weights at which they are
    ``wanted`` many (to a part in a thousand of that scale).
    """

    def top(scale: float) -> FloatArray:
        shares = []
        for each in logits:
            peak = each.max(axis=1, keepdims=True)
            shares.append(1.0 / np.exp(scale * (each - peak)).sum(axis=1))
        return np.where(rivals, np.concatenate(shares), 0.0)

    rivals = np.concatenate([np.isfinite(each).sum(axis=1) > 1 for each in logits])
    low, high = 0.0, 1.0
    while np.count_nonzero(top(high) > threshold) < min(wanted, rivals.sum()) and high < 1e6:
        low, high = high, 2.0 * high
    while high - low > 1e-3 * high:
        middle = 0.5 * (low + high)
        low, high = (
            (low, middle) if np.count_nonzero(top(middle) > threshold) >= wanted else (middle, high)
        )
    return np.flatnonzero(top(high) > threshold)


def _held_out(
    inputs: _Inputs,
    seen: Selections,
    h: int,
    solution: MarginSolution,
    members: IntArray,
    sure: IntArray,
) -> tuple[float, float]:
    """Agreement of the solution's selections at sure queries outside the programme, and that of the
    most frequent relative position among its members.
    """
    others = np.setdiff1d(sure, members)
    if len(others) == 0:
        return float("nan"), float("nan")
    selected = np.concatenate([each.argmax(axis=1) for each in _logits(inputs, h, solution.W)])
    distance = seen.position - seen.selected[h]
    usual = np.bincount(distance[members] - distance.min()).argmax() + distance.min()
    guess = seen.position[others] - usual
    return (
        float((selected[others] == seen.selected[h][others]).mean()),
        float((guess == seen.selected[h][others]).mean()),
    )


def _support(
    recording: Recording, inputs: _Inputs, solution: MarginSolution, members: IntArray
) -> list[Support]:
    margins = solution.margins
    texts = np.unique(inputs.text[members])
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
    layer: Layer, seen: Selections, h: int, inputs: _Inputs, fits: tuple[Comparison, ...]
) -> Head:
    top, able = seen.top[h], np.isfinite(seen.margin[h])
    confident = able & (top > 0.8)
    s = np.linalg.svd(inputs.weights(h), compute_uv=False) if inputs.linear else None
    return Head(
        layer.number,
        h,
        layer.name,
        len(top),
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
