r"""How near a head's weights are to the max-margin solution of their own selections, beside nulls.

A head with weights :math:`W` (logits :math:`x_t^\top Wz`) is *sure* of a query where its largest
softmax weight exceeds a threshold; queries with fewer than eight rivals are left out.
:math:`W^{mm}` is the certified solution of least norm of

.. math:: (x_{\alpha_j}-x_t)^\top W z_j\ge1

over drawn sure queries :math:`j`, what they select, :math:`\alpha_j`, and all other tokens
:math:`t` that they see. The measure is the cosine of :math:`W` and :math:`W^{mm}`. Constraints pin
a part of any weights that meet them, so it is compared with other weights on the same inputs, whose
*own* selections make another programme: ``random`` (same singular values, random singular vectors),
``rotated`` (the same two subspaces, singular vectors rotated inside them), ``permuted`` (left
singular vectors paired with other right ones). Each is scaled until it is sure of as many queries
as the head. What is left above the largest of the three, and of the mean over the layer's other
heads on this head's programme, is the *excess*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attsvm import max_margin, pair_margins
from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.geometry import parse_norm
from attsvm.margins import PairMargins

NULLS = ("random", "rotated", "permuted")
STRICT = NULLS[1:]
KINDS = (*NULLS, "again")
QUERIES = 80
THRESHOLD = 0.5
FEWEST = 8  # rivals: of two tokens one always has more than half
SECONDS = 60.0  # of the clock for one programme: none has come near


@dataclass(frozen=True, eq=False)
class Look:
    """How heads are measured.

    Attributes:
        queries: drawn into a programme.
        threshold: largest softmax weight from which a query is sure.
        surest: take the surest queries instead of a draw from all that are sure.
        classes: tokens that are equal count as one: they are no rivals of each other.
        nulls: what the head is compared with; ``again`` is a second draw of ``permuted``.
    """

    queries: int = QUERIES
    threshold: float = THRESHOLD
    surest: bool = False
    classes: bool = False
    nulls: tuple[str, ...] = NULLS


@dataclass(frozen=True, eq=False)
class Seen:
    """What weights select on inputs.

    Attributes:
        selected: ``(n, T)``, the position of every query's largest logit.
        members: ``(q,)`` numbers of queries, text by text, that are drawn into the programme.
        others: sure queries outside it.
        count: number of queries that the weights are sure of as they are.
        sure: the same as a share of all that are not left out.
        scale: what they were multiplied with to be sure of enough.
    """

    selected: IntArray
    members: IntArray
    others: IntArray
    count: int
    sure: float
    scale: float


@dataclass(frozen=True, eq=False)
class Own:
    """A head in one norm.

    Attributes:
        norm: its name.
        cosine: of the weights and their own solution.
        share: of the best margin that the weights attain, both at norm one.
        nulls: cosine of each null and its own solution.
        heads: mean cosine of the layer's other heads and this head's solution.
        agreement: share of other sure queries at which the solution selects what the head does.
        usual: the same for the most frequent relative position.
        stranger: the same for the solution of the first null's own selections.
        gap: certified relative duality gap of the head's solution.
        optimal: whether all its programmes ended ``optimal``.
        rows: of the head's programme.
        sure: share of queries that the head is sure of.
        scale: what its weights were multiplied with to be sure of enough.
        average: cosine of the weights and the :func:`average` of their selections.
        average_null: the largest of the nulls' own.
        solution: the weights of least norm.
        support: ``(k, 3)`` text, query and rival of the rows with positive multipliers.
    """

    norm: str
    cosine: float
    share: float
    nulls: dict[str, float]
    heads: float
    agreement: float
    usual: float
    stranger: float
    gap: float
    optimal: bool
    rows: int
    sure: float
    scale: float
    average: float
    average_null: float
    solution: FloatArray = field(repr=False)
    support: IntArray = field(repr=False)

    @property
    def excess(self) -> float:
        """The cosine minus that of the strictest null."""
        return self.cosine - max(self.heads, *(v for k, v in self.nulls.items() if k != "again"))


def own_solutions(
    weights: FloatArray,
    head: int,
    inputs: FloatArray,
    tokens: IntArray,
    norms: Sequence[str],
    look: Look,
    seed: int,
    draw: int = 0,
) -> list[Own]:
    """One head of a layer in every one of the norms; its nulls are the same in all of them.

    Args:
        weights: ``(heads, width, width)``.
        head: which of them.
        inputs: ``(n, T, width)``.
        tokens: ``(n, T)`` numbers of the characters.
        norms: their names.
        look: how it is measured.
        seed: of nulls and draws.
        draw: another number draws other queries for the head, with the same nulls.
    """
    W, found = weights[head], []
    own = sees(W, inputs, look, np.random.default_rng([seed, head, len(KINDS), draw]))
    wanted = max(look.queries, own.count)
    generators = {k: np.random.default_rng([seed, head, KINDS.index(k)]) for k in look.nulls}
    rivals = [(kind, variant(W, kind, rng)) for kind, rng in generators.items()]
    theirs = [sees(V, inputs, look, generators[kind], wanted) for kind, V in rivals]
    programme = programme_of(own, inputs, tokens, look)
    programmes = [programme_of(each, inputs, tokens, look) for each in theirs]
    mean = cosine(W, average(programme))
    means = [cosine(V, average(p)) for (_, V), p in zip(rivals, programmes, strict=True)]
    for name in norms:
        norm = parse_norm(name)
        best = max_margin(programme, norm, max_seconds=SECONDS)
        others = [max_margin(each, norm, max_seconds=SECONDS) for each in programmes]
        moved, strange = (
            _selected(each.W, inputs).ravel()[own.others] for each in (best, others[0])
        )
        query = own.others % tokens.shape[1]
        usual = own.members % tokens.shape[1] - own.selected.ravel()[own.members]
        guess = query - np.bincount(usual).argmax()
        told = own.selected.ravel()[own.others]
        found.append(
            Own(
                name,
                cosine(W, best.W),
                float(programme(W).min()) / float(norm.value(W)) * best.norm,
                {kind: cosine(V, each.W) for (kind, V), each in zip(rivals, others, strict=True)},
                float(np.mean([cosine(V, best.W) for V in np.delete(weights, head, axis=0)])),
                _share(moved == told),
                _share(guess == told),
                _share(strange == told),
                best.gap,
                all(each.status == "optimal" for each in (best, *others)),
                programme.m,
                own.sure,
                own.scale,
                mean,
                max(means),
                best.W,
                _support(programme, best.dual),
            )
        )
    return found


def sees(
    W: FloatArray,
    inputs: FloatArray,
    look: Look,
    rng: np.random.Generator,
    wanted: int | None = None,
) -> Seen:
    """What weights select, with a draw of the queries that they are sure of.

    Left as they are, or scaled until they are sure of ``look.queries`` where they are not; with
    ``wanted``, until they are sure of that many.
    """
    n, T, _ = inputs.shape
    logits = _logits(W, inputs)
    gaps = (logits.max(axis=2, keepdims=True) - logits).reshape(n * T, T)
    able = np.arange(n * T) % T >= FEWEST

    def top(scale: float) -> FloatArray:
        shares: FloatArray = 1.0 / np.exp(-scale * gaps).sum(axis=1)
        return np.where(able, shares, 0.0)

    count = int(np.count_nonzero(top(1.0) > look.threshold))
    scale = 1.0
    if wanted is not None or count < look.queries:
        aim = wanted or look.queries
        low, high = 1e-6, 1e9
        for _ in range(50):
            middle = float(np.sqrt(low * high))
            enough = np.count_nonzero(top(middle) > look.threshold) >= aim
            low, high = (low, middle) if enough else (middle, high)
        scale = high
    mass = top(scale)
    sure = np.flatnonzero(mass > look.threshold)
    order = np.argsort(-mass[sure], kind="stable") if look.surest else rng.permutation(len(sure))
    members = np.sort(sure[order[: look.queries]])
    return Seen(
        logits.argmax(axis=2),
        members,
        np.setdiff1d(sure, members),
        count,
        count / np.count_nonzero(able),
        scale,
    )


def variant(W: FloatArray, kind: str, rng: np.random.Generator) -> FloatArray:
    """Other weights with the singular values of ``W``."""
    U, s, Vt = np.linalg.svd(W)
    k = int(np.count_nonzero(s > 1e-6 * s[0]))  # the weights are products of factors in float32
    U, s, Vt = U[:, :k], s[:k], Vt[:k]
    if kind == "random":
        U, Vt = _orthogonal(len(W), k, rng), _orthogonal(len(W), k, rng).T
    elif kind == "rotated":
        U, Vt = U @ _orthogonal(k, k, rng), _orthogonal(k, k, rng) @ Vt
    else:  # an order without fixed points
        order = rng.permutation(k)
        Vt = Vt[order][np.argsort(np.roll(order, 1))]
    found: FloatArray = (U * s) @ Vt
    return found


def average(programme: PairMargins) -> FloatArray:
    r"""What selections say without a margin: the sum over queries of
    :math:`(x_\alpha-\bar x)z^\top`, with :math:`\bar x` the mean of the rivals.

    It is the direction of the first step of gradient descent on the mean margin.
    """
    counts = np.diff(programme.offsets)
    return programme.adjoint(1.0 / counts[programme.sequence])


def stable_rank(W: FloatArray) -> float:
    """The squared Frobenius norm over the squared spectral one."""
    return float(np.square(W).sum() / np.linalg.norm(W, 2) ** 2)


def cosine(A: FloatArray, B: FloatArray) -> float:
    """Of two matrices."""
    return float((A * B).sum() / (np.linalg.norm(A) * np.linalg.norm(B)))


def _logits(W: FloatArray, inputs: FloatArray) -> FloatArray:
    """``(n, q, T)``, minus infinity on later tokens."""
    logits = (inputs @ W.T) @ inputs.transpose(0, 2, 1)
    later: BoolArray = np.triu(np.ones(logits.shape[1:], dtype=np.bool_), 1)
    return np.where(later, -np.inf, logits)


def _selected(W: FloatArray, inputs: FloatArray) -> IntArray:
    found: IntArray = _logits(W, inputs).argmax(axis=2)
    return found


def programme_of(seen: Seen, inputs: FloatArray, tokens: IntArray, look: Look) -> PairMargins:
    """The margins that the drawn queries ask for."""
    T = tokens.shape[1]
    text, place = seen.members // T, seen.members % T
    used = np.unique(text)
    rows = [place[text == i] for i in used]
    return pair_margins(
        [inputs[i] for i in used],
        [inputs[i, r] for i, r in zip(used, rows, strict=True)],
        [seen.selected[i, r] for i, r in zip(used, rows, strict=True)],
        positions=rows,
        classes=[tokens[i] for i in used] if look.classes else None,
    )


def _support(programme: PairMargins, dual: FloatArray) -> IntArray:
    rows = np.flatnonzero(dual > 1e-6 * dual.max())
    query = programme.sequence[rows]
    assert programme.origin is not None
    return np.column_stack([programme.origin[query], programme.token[rows]])


def _share(right: Any) -> float:
    return float(np.mean(right)) if len(right) else float("nan")


def _orthogonal(n: int, k: int, rng: np.random.Generator) -> FloatArray:
    Q, R = np.linalg.qr(rng.normal(size=(n, k)))
    turned: FloatArray = Q * np.sign(np.diag(R))
    return turned
