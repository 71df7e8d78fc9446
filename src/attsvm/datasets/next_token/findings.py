"""What keeps sentences from being realizable, and what else a reader of them should know: one class
per kind, each a sentence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

_SHOWN = 8  # sentences or tokens that a message lists


@dataclass(frozen=True)
class Finding:
    """Something about the data that a reader should know; ``str()`` is its sentence.

    Attributes:
        blocks: whether it keeps the data from being realizable.
        sentences: every sentence that has part in it; without them the finding is gone.
        names: the vocabulary of the data, for the sentence.
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
    """

    token: int

    def __str__(self) -> str:
        return f"no one-token sentence shows what follows token {self._name(self.token)}; add one"


@dataclass(frozen=True)
class LabelNotRealizable(Finding):
    """No token of the ``sentences`` is followed by their ``label`` (or, in token-priority data, is
    ``label``).
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
