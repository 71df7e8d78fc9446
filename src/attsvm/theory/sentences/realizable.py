r"""Whether data is realizable: an injective collocation, a winner in every sentence, an acyclic
order for every query.

Assumption 1 of Huang, Liang and Yang, *Non-asymptotic Convergence of Training Transformers for
Next-token Prediction* (2024). Realizable data is exactly the data whose two max-margin programmes,
:func:`attsvm.theory.output_margins` and
:func:`attsvm.theory.order_margins`, have a solution with orthonormal embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import BoolArray, IntArray
from attsvm.theory.sentences.partial_order import PartialOrders, partial_order, winners
from attsvm.theory.sentences.sentence_data import NextTokenData


@dataclass(frozen=True)
class Finding:
    """Something about the data that a reader should know; ``str()`` is its sentence.

    Attributes:
        kind: ``labels`` (one-token sentences of one token have several labels), ``following``
            (tokens are followed by the same one), ``missing`` (no one-token sentence shows what
            follows a token; an injective n can be extended to it, so this blocks nothing),
            ``unexplained`` (no token of a sentence is followed by its label), ``cycle`` (the
            sentences of a query contradict each other; equal weights on the arcs of the cycle are
            the Farkas certificate of the order programme), or ``nothing`` (no sentence has two
            different tokens: the max-margin weights are zero).
        words: the sentence.
        blocks: whether it keeps the data from being realizable.
        sentences: every sentence that has part in it; without them the finding is gone.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData, check_realizable
        >>> data = NextTokenData.from_words(["hen", "hen"], ["eats", "runs"])
        >>> for finding in check_realizable(data).findings:
        ...     print(finding.kind, finding.blocks, finding.sentences)
        labels True (1,)
        nothing False ()
    """

    kind: Literal["labels", "following", "missing", "unexplained", "cycle", "nothing"]
    words: str
    blocks: bool = True
    sentences: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, eq=False, repr=False)
class Realizability(Compact):
    r"""Findings of :func:`check_realizable`.

    Attributes:
        realizable: whether no finding blocks.
        findings: those that block first; within, by kind and number.
        blameless: ``(N,)``, the sentences that no blocking finding names:
            ``data.select(blameless)`` is realizable.
        orders: the partial orders of the queries.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData, check_realizable
        >>> data = NextTokenData.from_words(["hen", "fox", "hen fox"], ["eats", "runs", "sleeps"])
        >>> report = check_realizable(data)
        >>> print(report)
        not realizable: 0 queries with an order
          no token of sentence 2 explains the label 'sleeps'; correct the label or drop it
        >>> check_realizable(data.select(report.blameless)).realizable
        True
    """

    realizable: bool
    findings: tuple[Finding, ...]
    blameless: BoolArray
    orders: PartialOrders

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
        lines = [f"  {finding}" for finding in self.findings]
        return "\n".join([f"{head}: {len(self.orders.queries)} queries with an order", *lines])


def check_realizable(data: NextTokenData, strict: bool = True) -> Realizability:
    """Hold data against the definition of realizable (Assumption 1 of Huang, Liang and Yang 2024),
    finding by finding, each with all sentences that have part in it.

    Args:
        data: sentences with labels.
        strict: whether contradictory collocations and labels that no token explains block. With
            False the loss of the former has a floor, and the latter add no arcs (as in the code of
            Li et al. 2024).

    Example:
        >>> from attsvm.theory.sentences import NextTokenData, check_realizable
        >>> words = ["hen", "fox", "hen fox", "hen fox"]
        >>> data = NextTokenData.from_words(words, ["eats", "runs", "runs", "eats"])
        >>> print(check_realizable(data).findings[0])
        under query 'fox' the order 'hen' > 'fox' > 'hen' is a cycle (sentences 3, 2); correct
        them, or treat the data as priority graphs with graph_margins
    """
    orders = partial_order(data)
    findings = [
        *_contradictions(data, strict),
        *_collisions(data, strict),
        *_missing_collocations(data),
        *_unexplained(data, strict),
        *_cycles(data, orders),
    ]
    if len(data.occurrences.token) == data.N:
        words = "no sentence has two different tokens, so attention has nothing to learn; add"
        findings.append(Finding("nothing", f"{words} longer sentences", blocks=False))
    blameless = np.ones(data.N, dtype=np.bool_)
    for finding in findings:
        if finding.blocks:
            blameless[list(finding.sentences)] = False
    blocking_first = sorted(findings, key=lambda finding: not finding.blocks)
    return Realizability(
        not any(finding.blocks for finding in findings), tuple(blocking_first), blameless, orders
    )


def _explaining(data: NextTokenData) -> IntArray:
    """Counts of the tokens that explain the label of each sentence ``(N,)``."""
    sentence, token, _ = data.occurrences
    return np.bincount(sentence[data.following[token] == data.labels[sentence]], minlength=data.N)


def _ambiguous(data: NextTokenData) -> dict[int, list[int]]:
    """The tokens whose one-token sentences have several labels, with these."""
    single = data.lengths == 1
    pairs = np.unique(data.queries[single] * data.K + data.labels[single])
    tokens, counts = np.unique(pairs // data.K, return_counts=True)
    return {v: (pairs[pairs // data.K == v] % data.K).tolist() for v in tokens[counts > 1].tolist()}


def _contradictions(data: NextTokenData, strict: bool) -> Iterable[Finding]:
    other = (data.lengths == 1) & (data.labels != data.following[data.queries])
    for token, labels in _ambiguous(data).items():
        sentences = _true_positions(other & (data.queries == token))
        yield Finding(
            "labels",
            f"the one-token sentences of token {_quote_names(data, [token])} have the labels"
            f" {_quote_names(data, labels)}; keep one of them, for instance by dropping"
            f" {_sentences_in_words(sentences)}",
            strict,
            sentences,
        )


def _collisions(data: NextTokenData, strict: bool) -> Iterable[Finding]:
    several = _explaining(data) > 1
    labels, counts = np.unique(data.following[data.following >= 0], return_counts=True)
    for label in labels[counts > 1].tolist():
        sentences = _true_positions(several & (data.labels == label))
        open_in = (
            f"and it is open which of them is meant in {_sentences_in_words(sentences)}; give them"
            " different following tokens"
            if sentences
            else "but no sentence leaves open which of them its label means"
        )
        tokens = _quote_names(data, _true_positions(data.following == label))
        yield Finding(
            "following",
            f"tokens {tokens} are all followed by {_quote_names(data, [label])}, {open_in}",
            strict and bool(sentences),
            sentences,
        )


def _missing_collocations(data: NextTokenData) -> Iterable[Finding]:
    tokens = np.unique(data.tokens)
    for token in tokens[data.following[tokens] < 0].tolist():
        name = _quote_names(data, [token])
        yield Finding(
            "missing", f"no one-token sentence shows what follows token {name}; add one", False
        )


def _unexplained(data: NextTokenData, strict: bool) -> Iterable[Finding]:
    is_ambiguous = (data.lengths == 1) & np.isin(data.queries, list(_ambiguous(data)))
    unexplained = (_explaining(data) == 0) & ~is_ambiguous
    for label in np.unique(data.labels[unexplained]).tolist():
        sentences = _true_positions(unexplained & (data.labels == label))
        yield Finding(
            "unexplained",
            f"no token of {_sentences_in_words(sentences)} explains the label"
            f" {_quote_names(data, [label])}; correct the label or drop"
            f" {'it' if len(sentences) == 1 else 'them'}",
            strict,
            sentences,
        )


def _cycles(data: NextTokenData, orders: PartialOrders) -> Iterable[Finding]:
    K, (sentence, token, _) = data.K, data.occurrences
    best = winners(data)[sentence]
    keys = (orders.arcs[orders.cyclic] * [K * K, K, 1]).sum(axis=1)
    in_cycle = (best >= 0) & np.isin((data.queries[sentence] * K + best) * K + token, keys)
    tied = np.bincount(sentence[in_cycle], minlength=data.N) > 0
    for query in orders.cyclic_queries.tolist():
        cycle, shown_by = orders.cycle(query)
        sentences = _true_positions(tied & (data.queries == query))
        more = (
            ""
            if set(sentences) == set(shown_by)
            else f"; cycles of this query run through {_sentences_in_words(sentences)}"
        )
        yield Finding(
            "cycle",
            f"under query {_quote_names(data, [query])} the order"
            f" {_quote_names(data, [*cycle, cycle[0]], ' > ')} is a cycle (sentences"
            f" {_join_some(shown_by)}{more}); correct them, or treat the data as priority graphs"
            " with graph_margins",
            sentences=sentences,
        )


def _quote_names(data: NextTokenData, tokens: Iterable[int], between: str = ", ") -> str:
    names = data.names(list(tokens))
    return _join_some(names if data.vocabulary is None else map(repr, names), between)


def _join_some(values: Iterable[object], between: str = ", ", most: int = 8) -> str:
    """The values with commas between them; of more than ``most`` the first, and the number of the
    others.
    """
    words = [str(value) for value in values]
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return between.join(words[:most]) + more


def _sentences_in_words(sentences: tuple[int, ...]) -> str:
    return ("sentence " if len(sentences) == 1 else "sentences ") + _join_some(sentences)


def _true_positions(where: BoolArray) -> tuple[int, ...]:
    return tuple(np.flatnonzero(where).tolist())
