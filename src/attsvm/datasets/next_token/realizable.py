r"""Whether data is realizable: an injective collocation, a winner in every sentence, an acyclic
order for every query.

Assumption 1 of Huang, Liang and Yang, *Non-asymptotic Convergence of Training Transformers for
Next-token Prediction* (2024). Realizable data is exactly the data whose two max-margin programmes,
:func:`attsvm.margins.output_margins` and
:func:`attsvm.margins.order_margins`, have a solution with orthonormal embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.datasets.next_token.partial_order import PartialOrders, Role, partial_order, winners
from attsvm.datasets.next_token.sentence_data import NextTokenData
from attsvm.errors import InputError
from attsvm.printable import Compact

_SHOWN = 8  # sentences or tokens that a message lists


@dataclass(frozen=True)
class Finding:
    """Something about the data that a reader should know; ``str()`` is its sentence.

    Attributes:
        blocks: whether it keeps the data from being realizable.
        sentences: every sentence that has part in it; without them the finding is gone.
        names: the vocabulary of the data, for the sentence.

    Example:
        >>> from attsvm.datasets.next_token import NextTokenData, check_realizable
        >>> data = NextTokenData.from_words(["hen", "hen"], ["eats", "runs"])
        >>> for finding in check_realizable(data).findings:
        ...     print(type(finding).__name__, finding.blocks, finding.sentences)
        NotAFunction True (1,)
        NoAttentionSignal False ()
    """

    blocks: bool = field(default=True, kw_only=True)
    sentences: tuple[int, ...] = field(default=(), kw_only=True)
    names: tuple[str, ...] | None = field(default=None, kw_only=True, repr=False, compare=False)

    def _name(self, token: int) -> str:
        return str(token) if self.names is None else f"{self.names[token]!r}"

    def _where(self) -> str:
        return ("sentence " if len(self.sentences) == 1 else "sentences ") + _listed(self.sentences)


@dataclass(frozen=True)
class NotAFunction(Finding):
    """One-token sentences of ``token`` have different ``labels``; ``sentences`` are those whose
    label is not ``data.following[token]``.

    Example:
        >>> from attsvm.datasets.next_token import NextTokenData, check_realizable
        >>> data = NextTokenData.from_words(["hen", "hen"], ["eats", "runs"])
        >>> print(check_realizable(data).findings[0])
        the one-token sentences of token 'hen' have the labels 'eats', 'runs'; keep one of them,
        for instance by dropping sentence 1
    """

    token: int
    labels: tuple[int, ...]

    def __str__(self) -> str:
        labels = _listed(map(self._name, self.labels))
        several = (
            f"the one-token sentences of token {self._name(self.token)} have the labels {labels}"
        )
        return f"{several}; keep one of them, for instance by dropping {self._where()}"


@dataclass(frozen=True)
class NotInjective(Finding):
    """``tokens`` are all followed by ``following``; it blocks if some ``sentences`` hold two of
    them and have that label.

    Example:
        >>> from attsvm.datasets.next_token import NextTokenData, check_realizable
        >>> data = NextTokenData.from_words(["hen", "fox", "hen fox"], ["eats", "eats", "eats"])
        >>> print(check_realizable(data).findings[0])
        tokens 'hen', 'fox' are all followed by 'eats', and it is open which of them is meant in
        sentence 2; give them different following tokens
    """

    tokens: tuple[int, ...]
    following: int

    def __str__(self) -> str:
        all_of = (
            f"tokens {_listed(map(self._name, self.tokens))} are all followed by"
            f" {self._name(self.following)}"
        )
        if not self.sentences:
            return f"{all_of}, but no sentence leaves open which of them its label means"
        return (
            f"{all_of}, and it is open which of them is meant in {self._where()}; give them"
            " different following tokens"
        )


@dataclass(frozen=True)
class CollocationMissing(Finding):
    """No one-token sentence shows what follows ``token``; an injective n can be extended to it, so
    this alone blocks nothing.

    Example:
        >>> from attsvm.datasets.next_token import NextTokenData, check_realizable
        >>> data = NextTokenData.from_words(["hen", "hen fox"], ["eats", "eats"])
        >>> print(check_realizable(data).findings[0])
        no one-token sentence shows what follows token 'fox'; add one
    """

    token: int

    def __str__(self) -> str:
        return f"no one-token sentence shows what follows token {self._name(self.token)}; add one"


@dataclass(frozen=True)
class LabelNotRealizable(Finding):
    """No token of the ``sentences`` is followed by their ``label`` (or, in token-priority data, is
    ``label``).

    Example:
        >>> from attsvm.datasets.next_token import NextTokenData, check_realizable
        >>> data = NextTokenData.from_words(["hen", "fox", "hen fox"], ["eats", "runs", "sleeps"])
        >>> print(check_realizable(data).findings[0])
        no token of sentence 2 explains the label 'sleeps'; correct the label or drop the sentence
    """

    label: int

    def __str__(self) -> str:
        them = "the sentence" if len(self.sentences) == 1 else "the sentences"
        return (
            f"no token of {self._where()} explains the label {self._name(self.label)}; correct the"
            f" label or drop {them}"
        )


@dataclass(frozen=True)
class CyclicOrder(Finding):
    r"""Sentences of ``query`` contradict each other: every token of ``cycle`` wins against the
    next, and the last against the first.

    The same cycle is the Farkas certificate of the order programme: equal weights on its arcs sum
    to zero.

    Attributes:
        query: the last token of the sentences.
        cycle: tokens of a short cycle.
        shown_by: one sentence per arc, in the order of ``cycle``.
        sentences: all whose winner is in a cycle with one of their tokens, this cycle or another.

    Example:
        >>> from attsvm.datasets.next_token import NextTokenData, check_realizable
        >>> words = ["hen", "fox", "hen fox", "hen fox"]
        >>> data = NextTokenData.from_words(words, ["eats", "runs", "runs", "eats"])
        >>> print(check_realizable(data).findings[0])
        under query 'fox' the order 'hen' > 'fox' > 'hen' is a cycle (sentences 3, 2); correct
        them, or treat the data as priority graphs with graph_margins
    """

    query: int
    cycle: tuple[int, ...]
    shown_by: tuple[int, ...]

    def __str__(self) -> str:
        circle = " > ".join(map(self._name, [*self.cycle, self.cycle[0]]))
        more = (
            ""
            if set(self.sentences) == set(self.shown_by)
            else f"; cycles of this query run through {self._where()}"
        )
        return (
            f"under query {self._name(self.query)} the order {circle} is a cycle (sentences"
            f" {_listed(self.shown_by)}{more}); correct them, or treat the data as priority graphs"
            " with graph_margins"
        )


@dataclass(frozen=True)
class NoAttentionSignal(Finding):
    """Every sentence consists of one distinct token: attention has no gradient and its max-margin
    weights are zero.

    Example:
        >>> from attsvm.datasets.next_token import NextTokenData, check_realizable
        >>> data = NextTokenData.from_words(["hen", "fox fox"], ["eats", "runs"])
        >>> print(check_realizable(data).findings[-1])
        no sentence has two different tokens, so attention has nothing to learn; add longer
        sentences
    """

    def __str__(self) -> str:
        return (
            "no sentence has two different tokens, so attention has nothing to learn; add longer"
            " sentences"
        )


def _listed(items: Iterable[object]) -> str:
    """The items with commas; of many the first."""
    words = [str(item) for item in items]
    return ", ".join(words[:_SHOWN]) + (
        f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    )


@dataclass(frozen=True, eq=False, repr=False)
class Realizability(Compact):
    r"""What :func:`check_realizable` found.

    Attributes:
        realizable: whether no finding blocks.
        findings: those that block first; within, by kind and number.
        blameless: ``(N,)``, the sentences that no blocking finding names:
            ``data.select(blameless)`` is realizable.
        orders: the partial orders of the queries.
        roles: for every query with an arc, how many tokens of the vocabulary are optimal,
            non-optimal, confused and non-comparable, ``(Q, 4)`` in the order of ``ROLES``.
        unseen: ``(u,)``, tokens that are the query of no sentence with two different tokens:
            :math:`W e_q=0` for them.
        repeated: sentences that equal an earlier one, label included.
        dropped: sentences without a winner; they add no arcs.
        entropy_floor: the smallest loss that any output matrix reaches on the one-token sentences
            (0 when n is a function); nan without such sentences.
        embeddings: ``(K, d)``, those of the data.

    Example:
        >>> from attsvm.datasets.next_token import NextTokenData, check_realizable
        >>> data = NextTokenData.from_words(["hen", "fox", "hen fox"], ["eats", "runs", "sleeps"])
        >>> report = check_realizable(data)
        >>> report.realizable, report.blameless.tolist()
        (False, [True, True, False])
        >>> check_realizable(data.select(report.blameless)).realizable
        True
    """

    ROLES: ClassVar[tuple[Role, ...]] = (
        Role.OPTIMAL,
        Role.NON_OPTIMAL,
        Role.CONFUSED,
        Role.NON_COMPARABLE,
    )

    realizable: bool
    findings: tuple[Finding, ...]
    blameless: BoolArray
    orders: PartialOrders
    roles: IntArray
    unseen: IntArray
    repeated: int
    dropped: int
    entropy_floor: float
    embeddings: FloatArray

    @cached_property
    def orthonormality(self) -> float:
        r"""Largest entry of :math:`|EE^\top-I|`; the closed forms and sign theorems of the paper
        ask for 0.
        """
        return float(
            np.abs(self.embeddings @ self.embeddings.T - np.eye(len(self.embeddings))).max()
        )

    @cached_property
    def independent(self) -> bool:
        """Whether the rows of E are linearly independent, so that every acyclic order has
        weights.
        """
        K, d = self.embeddings.shape
        return bool(d >= K and np.linalg.matrix_rank(self.embeddings) == K)

    @property
    def confused(self) -> int:
        """Confused tokens, summed over queries."""
        return int(self.roles[:, 2].sum())

    def require(self) -> None:
        """Do nothing for realizable data.

        Raises:
            InputError: the first finding, when one blocks.
        """
        if not self.realizable:
            more = sum(finding.blocks for finding in self.findings) - 1
            raise InputError(
                f"the data is not realizable: {self.findings[0]}"
                + (f" ({more} more findings)" if more else "")
            )

    def __str__(self) -> str:
        head = "realizable" if self.realizable else "not realizable"
        return "\n".join(
            [
                f"{head}: {len(self.orders.queries)} queries with an order",
                *(f"  {finding}" for finding in self.findings),
            ]
        )


def check_realizable(data: NextTokenData, strict: bool = True) -> Realizability:
    """Hold data against the definition of realizable (Assumption 1 of Huang, Liang and Yang 2024),
    finding by finding, each with all sentences that have part in it.

    Args:
        data: sentences with labels.
        strict: whether contradictory collocations and labels that no token explains block. With
            False the loss of the former has a floor, the latter add no arcs (as in the code of Li
            et al. 2024), and the report says how large and how many.

    Example:
        >>> from attsvm.datasets.next_token import NextTokenData, check_realizable
        >>> data = NextTokenData.from_words(["hen", "fox", "hen fox"], ["eats", "runs", "runs"])
        >>> print(check_realizable(data))
        realizable: 1 queries with an order
    """
    orders = partial_order(data)
    blocking: list[Finding] = []
    notes: list[Finding] = []
    for finding in [
        *_contradictions(data, strict),
        *_collisions(data, strict),
        *_missing(data),
        *_unexplained(data, strict),
        *_cycles(data, orders),
    ]:
        (blocking if finding.blocks else notes).append(finding)
    blameless = np.ones(data.N, dtype=np.bool_)
    for finding in blocking:
        blameless[list(finding.sentences)] = False
    sentence = data.occurrences.sentence
    several = np.bincount(sentence, minlength=data.N) > 1
    if not several.any():
        notes.append(NoAttentionSignal(blocks=False))
    return Realizability(
        realizable=not blocking,
        findings=(*blocking, *notes),
        blameless=blameless,
        orders=orders,
        roles=_counts(orders),
        unseen=np.setdiff1d(np.arange(data.K), data.queries[several]),
        repeated=_repeated(data),
        dropped=int((winners(data) < 0).sum()),
        entropy_floor=_entropy(data),
        embeddings=data.embeddings,
    )


def _single(data: NextTokenData) -> tuple[IntArray, IntArray]:
    """Distinct pairs of a one-token sentence and its label, sorted."""
    single = data.lengths == 1
    pairs = np.unique(data.queries[single] * data.K + data.labels[single])
    return pairs // data.K, pairs % data.K


def _fitting(data: NextTokenData) -> tuple[IntArray, IntArray, BoolArray]:
    """Sentence and token of every occurrence, and whether the token explains the label of its
    sentence.
    """
    sentence, token, _ = data.occurrences
    return sentence, token, data.following[token] == data.labels[sentence]


def _contradictions(data: NextTokenData, strict: bool) -> list[Finding]:
    x, y = _single(data)
    tokens, counts = np.unique(x, return_counts=True)
    other = (data.lengths == 1) & (data.labels != data.following[data.queries])
    return [
        NotAFunction(
            v,
            tuple(y[x == v].tolist()),
            blocks=strict,
            sentences=_numbers(other & (data.queries == v)),
            names=data.vocabulary,
        )
        for v in tokens[counts > 1].tolist()
    ]


def _collisions(data: NextTokenData, strict: bool) -> list[Finding]:
    sentence, _, fits = _fitting(data)
    several = np.bincount(sentence[fits], minlength=data.N) > 1
    labels, counts = np.unique(data.following[data.following >= 0], return_counts=True)
    found: list[Finding] = []
    for label in labels[counts > 1].tolist():
        sentences = _numbers(several & (data.labels == label))
        tokens = _numbers(data.following == label)
        found.append(
            NotInjective(
                tokens,
                label,
                blocks=strict and bool(sentences),
                sentences=sentences,
                names=data.vocabulary,
            )
        )
    return found


def _missing(data: NextTokenData) -> list[Finding]:
    missing = np.unique(data.tokens)
    missing = missing[data.following[missing] < 0]
    return [CollocationMissing(int(v), blocks=False, names=data.vocabulary) for v in missing]


def _unexplained(data: NextTokenData, strict: bool) -> list[Finding]:
    sentence, _, fits = _fitting(data)
    unexplained = np.bincount(sentence[fits], minlength=data.N) == 0
    x, _ = _single(data)
    tokens, counts = np.unique(x, return_counts=True)
    # already told as NotAFunction
    unexplained &= ~((data.lengths == 1) & np.isin(data.queries, tokens[counts > 1]))
    return [
        LabelNotRealizable(
            label,
            blocks=strict,
            sentences=_numbers(unexplained & (data.labels == label)),
            names=data.vocabulary,
        )
        for label in np.unique(data.labels[unexplained]).tolist()
    ]


def _cycles(data: NextTokenData, orders: PartialOrders) -> list[Finding]:
    K, (sentence, token, _) = data.K, data.occurrences
    best = winners(data)[sentence]
    keys = (orders.arcs[orders.cyclic] * [K * K, K, 1]).sum(axis=1)
    part = (best >= 0) & np.isin((data.queries[sentence] * K + best) * K + token, keys)
    tied = np.bincount(sentence[part], minlength=data.N) > 0
    return [
        CyclicOrder(
            q,
            *orders.cycle(q),
            sentences=_numbers(tied & (data.queries == q)),
            names=data.vocabulary,
        )
        for q in orders.cyclic_queries.tolist()
    ]


def _counts(orders: PartialOrders) -> IntArray:
    at = np.searchsorted(orders.queries, orders.nodes[0])
    counts = np.zeros((len(orders.queries), len(Role)), dtype=np.int64)
    np.add.at(counts, (at, orders.roles), 1)
    counts[:, Role.NON_COMPARABLE] = orders.K - counts.sum(axis=1)
    return counts[:, list(Realizability.ROLES)]


def _repeated(data: NextTokenData) -> int:
    same = 0
    keys = np.stack([data.lengths, data.labels], axis=1)
    for length in np.unique(data.lengths):
        rows = np.flatnonzero(data.lengths == length)
        words = data.tokens[data.offsets[rows][:, None] + np.arange(length)]
        same += len(rows) - len(np.unique(np.column_stack([words, keys[rows, 1]]), axis=0))
    return same


def _entropy(data: NextTokenData) -> float:
    single = data.lengths == 1
    if not single.any():
        return float("nan")
    pairs, at = np.unique(data.queries[single] * data.K + data.labels[single], return_inverse=True)
    joint = np.bincount(at, data.weights[single]) / data.weights[single].sum()
    each = np.bincount(pairs // data.K, joint, minlength=data.K)[pairs // data.K]
    return float((joint * np.log(each / joint)).sum())


def _numbers(where: BoolArray) -> tuple[int, ...]:
    return tuple(np.flatnonzero(where).tolist())
