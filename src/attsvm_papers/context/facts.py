r"""Subjects, two facts about each, and which of them are told.

Subjects come in groups. Of a group the first fact (a city, say) and the second (a language) are the
same for all its subjects. The first one is told of everybody, the second of the *known* subjects
alone; of the *new* ones it is asked. A context is a subject and a question, one-hot and added up.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.theory import soft_label_margins
from attsvm.theory.sentences import NextTokenData


class Facts(NamedTuple):
    """Questions and answers, those that are told and those that are asked.

    Attributes:
        training: contexts that are told, ``(m, subjects + 2)``.
        answers: ``(m,)``, numbers of first facts from 0, of second ones behind them.
        questions: contexts that are asked, ``(u, subjects + 2)``.
        expected: ``(u,)``, their answers.
        groups: how many.
    """

    training: FloatArray
    answers: IntArray
    questions: FloatArray
    expected: IntArray
    groups: int

    def margins(self) -> Margins:
        """The constraints that every told answer is ahead of all others."""
        return soft_label_margins(self.training, np.eye(2 * self.groups)[self.answers])

    def sentences(self, contexts: int, width: int) -> NextTokenData:
        """Every told context as a token with its embedding, filled up with tokens of embedding 0 to
        so many contexts of that width.
        """
        E = np.zeros((contexts, width))
        E[: len(self.training), : self.training.shape[1]] = self.training
        return NextTokenData.from_sentences(
            [[j] for j in range(len(self.training))], self.answers, None, E
        )

    def least_margin(self, W: FloatArray) -> FloatArray:
        """The least margin ``(...)`` of told answers under weights ``(..., answers, d)``."""
        return least_leads(W, self.training, self.answers).min(axis=-1)

    def unseen_leads(self, W: FloatArray) -> FloatArray:
        """How far ``(..., u)`` the answer that is asked for is ahead of all other second facts."""
        return least_leads(W[..., self.groups :, :], self.questions, self.expected - self.groups)


def least_leads(W: FloatArray, contexts: FloatArray, answers: IntArray) -> FloatArray:
    """How far ``(..., contexts)`` answers are ahead of the best other under weights
    ``(..., answers, d)``.
    """
    logits = contexts @ W[..., : contexts.shape[1]].mT
    index = np.broadcast_to(answers, logits.shape[:-1])[..., None]
    right = np.take_along_axis(logits, index, axis=-1)
    np.put_along_axis(logits, index, -np.inf, axis=-1)
    leads: FloatArray = (right - logits.max(axis=-1, keepdims=True))[..., 0]
    return leads


def facts_of_groups(known: Sequence[int], new: Sequence[int]) -> Facts:
    """Groups with so many known and new subjects."""
    groups = len(known)
    sizes = np.add(known, new)
    group = np.repeat(np.arange(groups), sizes)
    rank = np.concatenate([np.arange(size) for size in sizes])  # of a subject in its group
    is_new = rank >= np.asarray(known)[group]
    subject, question = np.divmod(np.arange(2 * len(group)), 2)
    contexts = np.eye(len(group) + 2)[subject] + np.eye(len(group) + 2)[len(group) + question]
    answer = groups * question + group[subject]
    is_open: NDArray[np.bool_] = (question == 1) & is_new[subject]
    return Facts(contexts[~is_open], answer[~is_open], contexts[is_open], answer[is_open], groups)


def random_facts(groups: int, seed: int, alike: bool = False) -> Facts:
    """Groups with one to three known and one to three new subjects each, of sizes of their own or
    all alike.
    """
    shape = (2, 1) if alike else (2, groups)
    sizes = np.random.default_rng([91, seed]).integers(1, 4, shape)
    known, new = np.broadcast_to(sizes, (2, groups))
    return facts_of_groups(known.tolist(), new.tolist())
