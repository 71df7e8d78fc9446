r"""Problems of next-token training: the sentences of all runs end to end, value tables, one
loss; and its exact gradient anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from attsvm import native
from attsvm.base.errors import InputError
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import FloatArray, IntArray, floats
from attsvm.theory.next_token import compiled_runs
from attsvm.theory.next_token.compiled_runs import LOSSES, SentenceLoss
from attsvm.theory.sentences import NextTokenData, winners


class NoAttentionSignalError(InputError):
    """Every sentence has a single distinct token: attention has nothing to choose, and its gradient
    is exactly zero.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory.next_token import NoAttentionSignalError, Problem
        >>> data = NextTokenData.from_words(["fox", "hen"], ["hen", "fox"])
        >>> try:
        ...     Problem.of(data, "log_mass")
        ... except NoAttentionSignalError:
        ...     print("nothing to choose")
        nothing to choose
    """


@dataclass(frozen=True, eq=False, repr=False)
class Problem(Compact):
    r"""The attention problem of ``runs`` data sets that share K and d: minimise
    :math:`L(W)=\sum_n\pi_n\ell_n(W)` in each.

    With scores :math:`s_v=e_v^\top We_q`, attention :math:`\varphi_v\propto m_ve^{s_v}` over the
    distinct tokens of a sentence, and the output :math:`o=\sum_v\varphi_vu_v` of a value table
    ``values[run, v]`` :math:`=u_v` (:math:`W_{ov}e_v` in Huang, Liang and Yang 2024):

    * ``cross_entropy``: :math:`\ell_n=-\log\mathrm{softmax}(o)_y`, Huang et al.; Li et al.'s
      ``ce``.
    * ``squared``: :math:`(1-o_y)^2`, Li et al.'s ``lsq``.
    * ``squared_softmax``: :math:`(1-\mathrm{softmax}(o)_y)^2`, Li et al.'s ``lsq`` with head
      ``gen``.
    * ``log_mass``: :math:`-\log\varphi_{x_\star}`, Li et al.'s log loss.

    Attributes:
        data: one data set per run.
        values: ``(runs, K, classes)``; the identity (the output is the attention mass per token)
            when left out of :meth:`of`.
        loss: one of the table.
        token, count: all distinct tokens of all sentences of all runs, end to end, and their
            multiplicities.
        start: ``(sentences + 1,)``, where the tokens of each sentence begin.
        run_start: ``(runs + 1,)``, where the sentences of each run begin.
        query, label, weight: per sentence.
        winner: per sentence, the position in ``token`` of its winner :math:`x_\star`.

    Example:
        >>> import attsvm
        >>> from attsvm.theory.sentences import priority_graph
        >>> from attsvm.theory.next_token import Problem
        >>> data = priority_graph(n=4, T=3, K=5, d=6, seed=0, cyclic=False)
        >>> import numpy as np
        >>> problem = Problem.of(data, "log_mass")
        >>> zero = np.zeros((data.d, data.d))
        >>> problem.log_attention(zero).shape, bool(problem.log_gap(zero).item() < 1)
        ((12,), True)
    """

    data: tuple[NextTokenData, ...]
    values: FloatArray
    loss: SentenceLoss
    token: IntArray
    count: IntArray
    start: IntArray
    run_start: IntArray
    query: IntArray
    label: IntArray
    weight: FloatArray
    winner: IntArray

    def __post_init__(self) -> None:
        runs, K, sentences = len(self.data), len(self.data[0].embeddings), len(self.query)
        fits = (
            _partitions(self.start, sentences, len(self.token))
            and _partitions(self.run_start, runs, sentences)
            and {len(self.label), len(self.weight), len(self.winner)} == {sentences}
            and len(self.count) == len(self.token)
            and _inside(self.token, 0, K)
            and _inside(self.query, 0, K)
            and _inside(self.winner, self.start[:-1], self.start[1:])
        )
        if not fits:
            raise InputError(
                "the sentences of this Problem do not fit together; build it with Problem.of"
            )
        self._check_values(self.values)

    def _check_values(self, values: FloatArray) -> None:
        """Raise unless there is a value of every token for every label that the loss reads."""
        shape = self.runs, len(self.data[0].embeddings)
        classes = values.shape[-1] if values.ndim else 0
        if values.shape[-3:-1] != shape or not (
            self.loss == "log_mass" or _inside(self.label, 0, classes)
        ):
            raise InputError(
                f"values has shape {values.shape}; give (..., {shape[0]}, {shape[1]}, classes), and"
                f" more classes than the largest label, {int(self.label.max())}"
            )

    @classmethod
    def of(
        cls,
        data: NextTokenData | Sequence[NextTokenData],
        loss: SentenceLoss = "cross_entropy",
        values: ArrayLike | None = None,
    ) -> Problem:
        """The problem of these data sets, one per run.

        Args:
            data: data of one K and d.
            loss: see the class.
            values: ``(K, classes)`` or ``(runs, K, classes)``; see :func:`output_values` for a
                matrix.

        Raises:
            InputError: no data, several K or d, a sentence without a winner, an unknown loss,
                values of another shape or not finite.
            NoAttentionSignalError: a run whose sentences have one distinct token each.
        """
        sets = (data,) if isinstance(data, NextTokenData) else tuple(data)
        if not sets:
            raise InputError("there is no data to train on; give at least one data set")
        if loss not in LOSSES:
            raise InputError(f"loss is {loss!r}; choose from: {', '.join(LOSSES)}")
        shape = sets[0].embeddings.shape
        flat_sentences = []
        for run, data_set in enumerate(sets):
            if data_set.embeddings.shape != shape:
                raise InputError(
                    f"data set {run} has embeddings {data_set.embeddings.shape}, data set 0"
                    f" {shape}; train data of one K and d together"
                )
            flat_sentences.append(_flat(run, data_set))
        token, count, lengths, winner = (
            np.concatenate([arrays[k] for arrays in flat_sentences]) for k in range(4)
        )
        start = np.concatenate([[0], np.cumsum(lengths)])
        winner = winner + start[:-1]
        return cls(
            data=sets,
            values=_values(values, len(sets), shape[0]),
            loss=loss,
            token=token,
            count=count,
            start=start,
            run_start=np.concatenate([[0], np.cumsum([data_set.N for data_set in sets])]),
            query=np.concatenate([data_set.queries for data_set in sets]),
            label=np.concatenate([data_set.labels for data_set in sets]),
            weight=np.concatenate([data_set.weights for data_set in sets]),
            winner=winner,
        )

    @property
    def runs(self) -> int:
        """Number of data sets."""
        return len(self.data)

    @cached_property
    def embeddings(self) -> FloatArray:
        """Embeddings of every run, ``(runs, K, d)``."""
        return np.stack([data_set.embeddings for data_set in self.data])

    @cached_property
    def gram(self) -> FloatArray:
        """Inner products of embeddings ``(runs, K, K)``."""
        return self.embeddings @ self.embeddings.mT

    def scores(self, W: ArrayLike) -> FloatArray:
        """``S[..., run, q, v]`` is the score of token v under query q, for ``W`` of shape
        ``(..., runs, d, d)``.
        """
        E = self.embeddings
        return E @ np.asarray(W).mT @ E.mT

    def weights(self, coefficients: ArrayLike) -> FloatArray:
        r""":math:`\sum_{qv}C_{qv}e_ve_q^\top` for ``C`` of shape ``(..., runs, K, K)``."""
        E = self.embeddings
        return E.mT @ np.asarray(coefficients).mT @ E

    def gradient(
        self, W: ArrayLike, values: ArrayLike | None = None, textbook: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        r"""The gradient as ``(G, log_scale)`` with :math:`\nabla L=e^{\text{log\_scale}}G`, of
        shapes ``(..., runs, d, d)`` and ``(..., runs)``.

        G is of order one however small the gradient is; where that is exactly zero, G is zero and
        ``log_scale`` -inf.

        Args:
            W: ``(..., runs, d, d)``.
            values: ``(..., runs, K, classes)`` instead of the problem's own.
            textbook: differences as a textbook writes them, which are rounding once the attention
                is saturated (cross-entropy only).
        """
        C, tops, _ = self._evaluate(W, values, textbook)
        return self.weights(C), tops

    def gap(self, W: ArrayLike, values: ArrayLike | None = None) -> tuple[FloatArray, FloatArray]:
        r"""The loss over its floor as ``(sign, log)`` with
        :math:`L(W)-L^{floor}=\text{sign}\,e^{\text{log}}`, ``(..., runs)`` each, exact however
        small the gap is.

        The floor is the loss with all attention on the winners, :meth:`floor`. Away from it another
        token may do better, and then the sign is -1.
        """
        _, _, (sign, log) = self._evaluate(W, values, False)
        return sign, log

    def log_gap(self, W: ArrayLike, values: ArrayLike | None = None) -> FloatArray:
        """The logarithm of :meth:`gap`, NaN where the loss is below its floor."""
        sign, log = self.gap(W, values)
        return np.where(sign > 0, log, np.nan)

    def floor(self, values: ArrayLike | None = None) -> FloatArray:
        """The loss with all attention of every sentence on its winner, ``(..., runs)``."""
        u = self.values if values is None else np.asarray(values)
        run = np.repeat(np.arange(self.runs), np.diff(self.run_start))
        rows = u[..., run, self.token[self.winner], :]
        label_values = np.take_along_axis(
            rows, np.broadcast_to(self.label[:, None], (*rows.shape[:-1], 1)), axis=-1
        )[..., 0]
        if self.loss == "log_mass":
            losses = np.zeros(label_values.shape)
        elif self.loss == "squared":
            losses = (1.0 - label_values) ** 2
        else:
            others = rows - label_values[..., None]
            np.put_along_axis(
                others,
                np.broadcast_to(self.label[:, None], (*rows.shape[:-1], 1)),
                -np.inf,
                axis=-1,
            )
            odds = np.logaddexp.reduce(others, axis=-1)
            surprise = np.logaddexp(0.0, odds)
            losses = surprise if self.loss == "cross_entropy" else np.exp(2.0 * (odds - surprise))
        return np.add.reduceat(losses * self.weight, self.run_start[:-1], axis=-1)

    def log_missing(self, W: ArrayLike) -> FloatArray:
        r""":math:`\log(1-\varphi_{x_\star})`, ``(..., sentences)`` for the sentences of all runs
        end to end; -inf for single tokens.
        """
        D, starts = self._relative(W), self.start[:-1]
        with np.errstate(divide="ignore"):
            total = np.logaddexp.reduceat(D, starts, axis=-1)
        D[..., self.winner] = -np.inf
        others: FloatArray = np.logaddexp.reduceat(D, starts, axis=-1)
        return others - total

    def log_mean(self, logs: ArrayLike) -> FloatArray:
        r""":math:`\log\sum_n\pi_ne^{l_n}` over the sentences of every run, ``(..., runs)`` for
        ``(..., sentences)``.
        """
        return np.logaddexp.reduceat(
            np.asarray(logs) + np.log(self.weight), self.run_start[:-1], axis=-1
        )

    def log_attention(self, W: ArrayLike) -> FloatArray:
        r""":math:`\log\varphi`, ``(..., tokens)``, of the distinct tokens of all sentences end to
        end (see ``token`` and ``start``).
        """
        D = self._relative(W)
        total = np.logaddexp.reduceat(D, self.start[:-1], axis=-1)
        return D - np.repeat(total, np.diff(self.start), axis=-1)

    def outputs(self, W: ArrayLike) -> FloatArray:
        """The output :math:`o` of the sentences of all runs end to end,
        ``(..., sentences, classes)``, with the problem's own values.
        """
        phi = np.exp(self.log_attention(W))
        run = np.repeat(
            np.repeat(np.arange(self.runs), np.diff(self.run_start)), np.diff(self.start)
        )
        return np.add.reduceat(
            phi[..., None] * self.values[run, self.token], self.start[:-1], axis=-2
        )

    def _relative(self, W: ArrayLike) -> FloatArray:
        """Logits relative to each sentence's winner, logarithms of multiplicities included."""
        lengths = np.diff(self.start)
        run = np.repeat(np.repeat(np.arange(self.runs), np.diff(self.run_start)), lengths)
        logits: FloatArray = self.scores(W)[
            ..., run, np.repeat(self.query, lengths), self.token
        ] + np.log(self.count)
        return logits - np.repeat(logits[..., self.winner], lengths, axis=-1)

    def _evaluate(
        self, W: ArrayLike, values: ArrayLike | None, textbook: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Coefficients ``(..., runs, K, K)`` of the gradient, the logarithms ``(..., runs)`` of
        their factors, and sign and logarithm ``(2, ..., runs)`` of the loss over its floor.
        """
        if textbook and self.loss != "cross_entropy":
            raise InputError(
                f"the textbook gradient is written for cross_entropy, not {self.loss}; leave"
                " textbook out"
            )
        s = self.scores(W)
        K, shape = s.shape[-1], s.shape[:-2]
        s = np.ascontiguousarray(s.reshape(-1, self.runs, K, K))
        u = self.values if values is None else floats("values", values)
        self._check_values(u)
        u = np.ascontiguousarray(u.reshape(-1, self.runs, K, u.shape[-1]))
        C, tops, gaps = np.zeros(s.shape), np.zeros(s.shape[:2]), np.zeros((2, *s.shape[:2]))
        corpus = self.corpus(u.shape[-1])
        work = compiled_runs.allocate_work(corpus)
        addresses = (array.ctypes.data for array in (s, u, C, tops, gaps, work))
        counts = len(s), self.runs, len(u)
        native.library.sentence_gradients(corpus, LOSSES[self.loss], textbook, *counts, *addresses)
        return C.reshape(*shape, K, K), tops.reshape(shape), gaps.reshape(2, *shape)

    @cached_property
    def _corpora(self) -> dict[int, native.Corpus]:
        return {}

    def corpus(self, classes: int) -> native.Corpus:
        """Struct that the compiled core reads, for values with an entry per label."""
        if classes not in self._corpora:
            self._corpora[classes] = compiled_runs.sentences_struct(
                (self.token, np.log(self.count), self.start, self.run_start),
                (self.query, self.winner, self.label, np.log(self.weight)),
                self.gram,
                classes,
            )
        return self._corpora[classes]


def output_values(W_ov: ArrayLike, embeddings: ArrayLike) -> FloatArray:
    r"""The value table of an output matrix, rows :math:`W_{ov}e_v`: ``(..., K, classes)`` for
    ``W_ov`` of shape ``(..., classes, d)``.

    Example:
        >>> import numpy as np
        >>> from attsvm.theory.next_token import output_values
        >>> output_values(W_ov=np.ones((2, 3)), embeddings=np.eye(3)[:2]).tolist()
        [[1.0, 1.0], [1.0, 1.0]]
    """
    return np.asarray(embeddings) @ floats("W_ov", W_ov).mT


def _flat(run: int, data: NextTokenData) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Tokens, multiplicities, distinct tokens per sentence, and the position of each winner within
    its sentence.
    """
    sentence, token, count = data.occurrences
    best = winners(data)
    if (best < 0).any():
        n = int(np.argmax(best < 0))
        raise InputError(
            f"no single token of sentence {n} of data set {run} realises its label"
            f" {data.labels[n]}; drop the sentence or correct it"
        )
    lengths = np.bincount(sentence, minlength=data.N)
    if (lengths == 1).all():
        raise NoAttentionSignalError(
            f"every sentence of data set {run} has a single distinct token; attention needs"
            " sentences of two"
        )
    starts = np.cumsum(lengths) - lengths
    winner_positions = np.flatnonzero(token == best[sentence]) - starts
    return token, count, lengths, winner_positions


def _partitions(boundaries: IntArray, blocks: int, length: int) -> bool:
    """Whether boundaries cut ``length`` entries into so many blocks, none of them empty."""
    sizes = np.diff(boundaries)
    ends = boundaries[0], boundaries[-1]
    return len(sizes) == blocks and sizes.min() > 0 and ends == (0, length)


def _inside(numbers: IntArray, low: IntArray | int, high: IntArray | int) -> bool:
    return bool(((numbers >= low) & (numbers < high)).all())


def _values(values: ArrayLike | None, runs: int, K: int) -> FloatArray:
    u = np.eye(K) if values is None else floats("values", values)
    if u.ndim not in (2, 3) or u.shape[-2] != K or (u.ndim == 3 and len(u) != runs):
        raise InputError(
            f"values has shape {u.shape}; it must be ({K}, classes) or ({runs}, {K}, classes), a"
            " row per token"
        )
    if not np.isfinite(u).all():
        raise InputError("values holds a number that is not finite; pass finite values")
    return np.array(np.broadcast_to(u, (runs, *u.shape[-2:])))
