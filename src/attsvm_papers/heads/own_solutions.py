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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm import max_margin, pair_margins
from attsvm.data import FloatArray, IntArray
from attsvm.geometry import parse_norm
from attsvm.margins import PairMargins
from attsvm_papers.heads.networks import LayerAttention

NULLS = ("random", "rotated", "permuted")
STRICT = NULLS[1:]
KINDS = (*NULLS, "again")
NORMS = ("nuc", "fro", "spec", "l1", "linf")
"""A row's column ``norm`` is the position of its norm in this list."""
THRESHOLD = 0.5
FEWEST = 8  # rivals: of two tokens one always has more than half
SECONDS = 60.0  # of the clock for one programme: none has come near


@dataclass(frozen=True, eq=False)
class HeadOptions:
    """Options of the measurement of a head.

    Attributes:
        queries: drawn into a programme.
        threshold: largest softmax weight from which a query is sure.
        surest: take the surest queries instead of a draw from all that are sure.
        classes: tokens that are equal count as one: they are no rivals of each other.
        nulls: what the head is compared with; ``again`` is a second draw of ``permuted``.
    """

    queries: int
    threshold: float = THRESHOLD
    surest: bool = False
    classes: bool = False
    nulls: tuple[str, ...] = NULLS


@dataclass(frozen=True, eq=False)
class DrawnQueries:
    """Selections of a head's weights on inputs, and a draw of the queries that it is sure of.

    Attributes:
        selected: ``(n, T)``, the position of every query's largest logit.
        members: ``(q,)`` numbers of queries, text by text, that are drawn into the programme.
        others: sure queries outside it.
        count: number of queries that the weights are sure of as they are.
        sure: the share of them among all queries that are not left out.
    """

    selected: IntArray
    members: IntArray
    others: IntArray
    count: int
    sure: float


def own_solutions(
    layer: LayerAttention, head: int, norms: Sequence[str], options: HeadOptions, seed: int
) -> list[dict[str, Any]]:
    """One head of a layer in every one of the norms; its nulls are the same in all of them.

    1. Queries of which the head is sure are drawn, and of each null as many.
    2. The programme of each of these selections is written.
    3. In every norm all of them are solved, and solutions compared with the weights they come from.

    Returns:
        a row for each norm: ``cosine`` of the weights and their own solution, that of each null by
        its name (NaN where it is not in the options), ``heads``, the mean over the layer's other
        heads of the cosine to this head's solution; ``share`` of the best margin that the weights
        attain, both at norm one; ``agreement``, the share of other sure queries at which the
        solution selects what the head does, and the same for the most frequent relative position,
        ``usual``, and for the solution of the first null's selections, ``stranger``; whether all
        programmes ended ``optimal``; the share of queries of which the head is ``sure``;
        ``average``, the cosine of the weights and the :func:`average` of their selections, and
        ``average_null``, the largest of the nulls' own.
    """
    W, inputs, tokens, rows = layer.weights[head], layer.inputs, layer.tokens, []
    # 1. nulls are scaled until they are sure of as many queries as the head
    drawn_queries = draw_sure_queries(
        W, inputs, options, np.random.default_rng([seed, head, len(KINDS), 0])
    )
    target_count = max(options.queries, drawn_queries.count)
    generators = {k: np.random.default_rng([seed, head, KINDS.index(k)]) for k in options.nulls}
    rivals = [(kind, null_weights(W, kind, rng)) for kind, rng in generators.items()]
    null_queries = [
        draw_sure_queries(V, inputs, options, generators[kind], target_count) for kind, V in rivals
    ]
    # 2. margins of the selections, the same in all norms
    programme = programme_of(drawn_queries, inputs, tokens, options)
    programmes = [programme_of(queries, inputs, tokens, options) for queries in null_queries]
    means = [matrix_cosine(V, average(p)) for (_, V), p in zip(rivals, programmes, strict=True)]
    selected, query = (
        drawn_queries.selected.ravel()[drawn_queries.others],
        drawn_queries.others % tokens.shape[1],
    )
    usual = (
        drawn_queries.members % tokens.shape[1]
        - drawn_queries.selected.ravel()[drawn_queries.members]
    )
    for name in norms:
        norm = parse_norm(name)
        # 3. the head's solution, then those of its nulls
        best, *others = [
            max_margin(problem, norm, max_seconds=SECONDS) for problem in (programme, *programmes)
        ]
        guesses = {
            "agreement": _logits(best.W, inputs).argmax(axis=2).ravel()[drawn_queries.others],
            "usual": query - np.bincount(usual).argmax(),
            "stranger": _logits(others[0].W, inputs).argmax(axis=2).ravel()[drawn_queries.others],
        }
        nulls = {
            kind: matrix_cosine(V, solution.W)
            for (kind, V), solution in zip(rivals, others, strict=True)
        }
        rows.append(
            {
                "norm": NORMS.index(name),
                "cosine": matrix_cosine(W, best.W),
                **dict.fromkeys(KINDS, np.nan),
                **nulls,
                "heads": np.mean(
                    [matrix_cosine(V, best.W) for V in np.delete(layer.weights, head, 0)]
                ),
                "share": float(programme(W).min()) / float(norm.value(W)) * best.norm,
                **{
                    k: np.mean(v == selected) if len(selected) else np.nan
                    for k, v in guesses.items()
                },
                "optimal": all(solution.status == "optimal" for solution in (best, *others)),
                "sure": drawn_queries.sure,
                "average": matrix_cosine(W, average(programme)),
                "average_null": max(means),
            }
        )
    return rows


def draw_sure_queries(
    W: FloatArray,
    inputs: FloatArray,
    options: HeadOptions,
    rng: np.random.Generator,
    target_count: int | None = None,
) -> DrawnQueries:
    """The selections of weights, with a draw of the queries that they are sure of.

    Weights are left as they are, or scaled until they are sure of ``options.queries`` where they
    are not; with ``target_count``, until they are sure of that many.
    """
    n, T, _ = inputs.shape
    logits = _logits(W, inputs)
    gaps = (logits.max(axis=2, keepdims=True) - logits).reshape(n * T, T)
    able = np.arange(n * T) % T >= FEWEST

    def largest_weights(scale: float) -> FloatArray:
        weights: FloatArray = 1.0 / np.exp(-scale * gaps).sum(axis=1)
        return np.where(able, weights, 0.0)

    def count(scale: float) -> int:
        return int(np.count_nonzero(largest_weights(scale) > options.threshold))

    mass = largest_weights(scale_of(count, target_count, options.queries))
    sure = np.flatnonzero(mass > options.threshold)
    order = np.argsort(-mass[sure], kind="stable") if options.surest else rng.permutation(len(sure))
    members = np.sort(sure[order[: options.queries]])
    unscaled = count(1.0)
    return DrawnQueries(
        logits.argmax(axis=2),
        members,
        np.setdiff1d(sure, members),
        unscaled,
        unscaled / np.count_nonzero(able),
    )


def scale_of(count: Callable[[float], int], target_count: int | None, least: int) -> float:
    """The factor of the logits at which weights are sure of ``target_count`` queries, or where that
    is None and they are sure of fewer, of ``least``; ``count`` gives their number at a factor.
    """
    if target_count is None and count(1.0) >= least:
        return 1.0
    low, high = 1e-6, 1e9
    for _ in range(50):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if count(middle) >= (target_count or least) else (middle, high)
    return high


def null_weights(W: FloatArray, kind: str, rng: np.random.Generator) -> FloatArray:
    """Other weights with the singular values of ``W``."""
    U, s, Vt = np.linalg.svd(W)
    k = int(np.count_nonzero(s > 1e-6 * s[0]))  # the weights are products of factors in float32
    U, s, Vt = U[:, :k], s[:k], Vt[:k]
    if kind == "random":
        U, Vt = orthogonal(len(W), k, rng), orthogonal(len(W), k, rng).T
    elif kind == "rotated":
        U, Vt = U @ orthogonal(k, k, rng), orthogonal(k, k, rng) @ Vt
    else:  # an order without fixed points
        order = rng.permutation(k)
        Vt = Vt[order][np.argsort(np.roll(order, 1))]
    weights: FloatArray = (U * s) @ Vt
    return weights


def average(programme: PairMargins) -> FloatArray:
    r"""The direction of selections without a margin: the sum over queries of
    :math:`(x_\alpha-\bar x)z^\top`, with :math:`\bar x` the mean of the rivals.

    It is the direction of the first step of gradient descent on the mean margin.
    """
    counts = np.diff(programme.offsets)
    return programme.adjoint(1.0 / counts[programme.sequence])


def stable_rank(W: FloatArray) -> float:
    """The squared Frobenius norm over the squared spectral one."""
    return float(np.square(W).sum() / np.linalg.norm(W, 2) ** 2)


def matrix_cosine(A: FloatArray, B: FloatArray) -> float:
    """The cosine of the angle between two matrices."""
    return float((A * B).sum() / (np.linalg.norm(A) * np.linalg.norm(B)))


def _logits(W: FloatArray, inputs: FloatArray) -> FloatArray:
    """Logits ``(n, q, T)``, minus infinity on later tokens."""
    logits = (inputs @ W.T) @ inputs.transpose(0, 2, 1)
    return np.where(np.triu(np.ones(logits.shape[1:], dtype=bool), 1), -np.inf, logits)


def programme_of(
    queries: DrawnQueries, inputs: FloatArray, tokens: IntArray, options: HeadOptions
) -> PairMargins:
    """The margins that the drawn queries ask for."""
    T = tokens.shape[1]
    text, position = queries.members // T, queries.members % T
    used = np.unique(text)
    rows = [position[text == i] for i in used]
    return pair_margins(
        [inputs[i] for i in used],
        [inputs[i, r] for i, r in zip(used, rows, strict=True)],
        [queries.selected[i, r] for i, r in zip(used, rows, strict=True)],
        positions=rows,
        classes=[tokens[i] for i in used] if options.classes else None,
    )


def orthogonal(n: int, k: int, rng: np.random.Generator) -> FloatArray:
    """``(n, k)``, random with orthonormal columns."""
    Q, R = np.linalg.qr(rng.normal(size=(n, k)))
    columns: FloatArray = Q * np.sign(np.diag(R))
    return columns
