"""Mirrors of the structs of ``attsvm.h``.

A struct is made by its constructor alone, from NumPy arrays: it checks type, shape and order of
each, reads the sizes off them, and keeps them alive. Functions of the library look at no array
again.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from ctypes import POINTER, c_double, c_int64, c_void_p
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attsvm.native.lapack import lapack_address
from attsvm.native.memory import address

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]


def _consecutive(kind: Any, *names: str) -> tuple[tuple[str, Any], ...]:
    """Consecutive fields of one type."""
    return tuple((name, kind) for name in names)


class Struct(ctypes.Structure):
    """A struct of the library.

    Attributes:
        arrays: the arrays that its pointers lead to, by the name of the field.
    """

    def __init__(self, *sizes: Any, **fields: Any) -> None:
        super().__init__(*sizes, **fields)
        self.arrays: dict[str, NDArray[Any]] = {}

    def point(self, name: str, array: NDArray[Any], dtype: type, *shape: int) -> None:
        """Let the field ``name`` point to the numbers of an array, and keep the array alive.

        Raises:
            TypeError: another type, shape or order than the field has.
        """
        try:
            setattr(self, name, address(array, dtype, *shape))
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}.{name} is {error}") from None
        self.arrays[name] = array


S = TypeVar("S", bound=Struct)


def pointers(structs: Sequence[S]) -> Any:
    """An array of pointers to structs of one type, which it keeps alive."""
    kind = type(structs[0])
    return (POINTER(kind) * len(structs))(*(ctypes.pointer(struct) for struct in structs))


def check_offsets(name: str, offsets: Integers, end: int) -> None:
    """Refuse positions that do not rise from 0 to ``end``: they would lead out of the arrays.

    Raises:
        TypeError: such positions; a defect of the caller.
    """
    if offsets[0] != 0 or offsets[-1] != end or (offsets[1:] < offsets[:-1]).any():
        raise TypeError(f"the {name} must rise from 0 to {end}, the number of what they divide")


class ProgrammeRows(Struct):
    r"""``Programme``: rows :math:`a_c=\delta_cz_i^\top`, as compiled code reads them from the
    arrays of a :class:`attsvm.solvers.programme.Programme`.

    Args:
        D: ``(m, d_x)`` differences.
        Z: ``(n, d_z)`` queries.
        b: ``(m,)`` right-hand sides.
        cap: ``(m,)`` upper bounds of the multipliers.
        offsets: ``(n + 1,)``, where the rows of each sequence begin.
        free_sign: ``(m,)``, 1 for equalities.
    """

    _fields_ = (
        *_consecutive(c_int64, "m", "n", "dx", "dz"),
        *_consecutive(c_void_p, "D", "Z", "b", "cap", "offsets", "free_sign"),
    )

    def __init__(
        self, D: Floats, Z: Floats, b: Floats, cap: Floats, offsets: Integers, free_sign: Bytes
    ) -> None:
        # sizes are read off the two matrices; all other arrays must agree with them
        (m, d_x), (n, d_z) = D.shape, Z.shape
        super().__init__(m, n, d_x, d_z)
        self.point("D", D, np.float64, m, d_x)
        self.point("Z", Z, np.float64, n, d_z)
        self.point("b", b, np.float64, m)
        self.point("cap", cap, np.float64, m)
        self.point("offsets", offsets, np.int64, n + 1)
        self.point("free_sign", free_sign, np.uint8, m)
        check_offsets("offsets of a programme", offsets, m)


class ActiveSet(Struct):
    """``ActiveSet``: an empty set of free rows, with memory for the factor of their Gram matrix.

    Args:
        m: number of rows.
        rank: how many of them can be independent.
    """

    _fields_ = (
        *_consecutive(c_int64, "m", "rank", "count"),
        *_consecutive(c_void_p, "factor", "work", "rows", "side"),
    )

    def __init__(self, m: int, rank: int) -> None:
        super().__init__(m, rank, 0)
        # no row is free, so the factor has no entry that anybody reads
        self.point("factor", np.empty((m, m)), np.float64, m, m)
        self.point("work", np.empty(4 * m), np.float64, 4 * m)
        self.point("rows", np.empty(m, np.int64), np.int64, m)
        self.point("side", np.zeros(m, np.uint8), np.uint8, m)


class Batch(Struct):
    """``Batch``: programmes that lie end to end, and their solutions.

    The arrays of the solutions are made here, in two allocations, because small programmes are
    solved in the time of a few dozen allocations.

    Args:
        D: ``(M, d_x)`` differences of all programmes.
        Z: ``(N, d_z)`` queries.
        b: ``(M,)`` right-hand sides.
        offsets: ``(N + 1,)``, where the rows of each sequence begin; see :func:`check_offsets`.
        instances: ``(B + 1,)``, where the sequences of each programme begin.
        start: ``(M,)`` multipliers to begin with, or None.
        slack: penalty of soft margins, infinite for hard ones.

    Attributes:
        solutions: the arrays that the library writes: ``W`` ``(B, d_x, d_z)`` weights, ``dual``
            ``(M,)`` multipliers, ``values`` ``(M,)`` margins, ``figures`` ``(B, 4)`` norm, gap,
            violation and rounding of hard margins, ``outcome`` ``(B,)`` unsettled, weights or
            contradiction, ``systems`` ``(B,)`` steps of active sets.
    """

    _fields_ = (
        *_consecutive(c_int64, "dx", "dz"),
        *_consecutive(c_void_p, "D", "Z", "b", "offsets", "instances", "start"),
        ("slack", c_double),
        *_consecutive(c_void_p, "W", "dual", "values", "figures", "outcome", "steps"),
    )
    inputs: tuple[NDArray[Any] | None, ...]
    solutions: dict[str, NDArray[Any]]

    def __init__(
        self,
        D: Floats,
        Z: Floats,
        b: Floats,
        offsets: Integers,
        instances: Integers,
        start: Floats | None,
        slack: float,
    ) -> None:
        (M, d_x), (N, d_z), count = D.shape, Z.shape, len(instances) - 1
        # where each array begins in the allocation of its type, whose numbers have eight bytes
        dual = count * d_x * d_z
        values, figures = dual + M, dual + 2 * M
        numbers, integers = np.zeros(figures + 4 * count), np.zeros(2 * count, np.int64)
        first_number = address(numbers, np.float64, figures + 4 * count)
        first_integer = address(integers, np.int64, 2 * count)
        super().__init__(
            d_x,
            d_z,
            address(D, np.float64, M, d_x),
            address(Z, np.float64, N, d_z),
            address(b, np.float64, M),
            address(offsets, np.int64, N + 1),
            address(instances, np.int64, count + 1),
            None if start is None else address(start, np.float64, M),
            slack,
            first_number,
            first_number + 8 * dual,
            first_number + 8 * values,
            first_number + 8 * figures,
            first_integer,
            first_integer + 8 * count,
        )
        # pointers own nothing: the arrays live as long as the struct
        self.inputs = D, Z, b, offsets, instances, start
        self.solutions = {
            "W": numbers[:dual].reshape(count, d_x, d_z),
            "dual": numbers[dual:values],
            "values": numbers[values:figures],
            "figures": numbers[figures:].reshape(count, 4),
            "outcome": integers[:count],
            "systems": integers[count:],
        }


class Interior(Struct):
    r"""``Interior``: interior points at a gap of infinity, with memory for their state.

    Args:
        m: number of rows.
        cost: ``(k,)``, what each of the weights counts in the norm.
        box: whether the norm is :math:`\ell_\infty` and not :math:`\ell_1`.
        patience: number of iterations without progress that ends the method.
    """

    _fields_ = (
        *_consecutive(c_int64, "box", "systems", "idle", "pattern", "tried", "patience"),
        *_consecutive(c_double, "tau", "gap", "seconds"),
        ("cost", c_void_p),
        *_consecutive(c_void_p, "lam", "s", "best_lam"),
        *_consecutive(c_void_p, "w", "u", "v", "zu", "zv", "best_w"),
    )

    def __init__(self, m: int, cost: Floats, box: bool, patience: int) -> None:
        k = len(cost)
        # a gap of infinity: no point was met yet; a clock of infinity: none runs
        super().__init__(box=box, patience=patience, tau=-1.0, gap=math.inf, seconds=math.inf)
        self.point("cost", cost, np.float64, k)
        for name in ("lam", "s", "best_lam"):
            self.point(name, np.zeros(m), np.float64, m)
        for name in ("w", "u", "v", "zu", "zv", "best_w"):
            self.point(name, np.zeros(k), np.float64, k)


class Blas(Struct):
    """``Blas``: SciPy's matrix product and factorisations, for kernels on large matrices."""

    _fields_ = _consecutive(c_void_p, "gemm", "potrf", "syrk", "trsm", "getrf", "getrs")

    def __init__(self) -> None:
        super().__init__(*(lapack_address(f"d{routine}") for routine, _ in self._fields_))


@functools.cache
def blas() -> Blas:
    """The one table of SciPy's routines."""
    return Blas()


class GaugeFunction(Struct):
    """``Gauge``: the function that a splitting minimises.

    Args:
        lift: 0 for a gauge of entries, 1 of singular values, 2 of lengths of rows.
        p: exponent of the gauge.
        degree: power of the gauge that is minimised: 1, 2 or ``p``.
    """

    _fields_ = (("lift", c_int64), ("p", c_double), ("degree", c_double), ("svd", c_void_p))

    def __init__(self, lift: int, p: float, degree: float) -> None:
        super().__init__(lift, p, degree, lapack_address("dgesdd"))


class SplittingState(Struct):
    """``Iterate``: the iterate of a splitting, and how far to go.

    Args:
        W: ``(d_x, d_z)`` weights, read and written.
        lam: ``(m,)`` multipliers, read and written.
        room: scratch memory of at least ``splitting_room`` numbers.
        target: the error that is aimed at.
        enough: the error at which to stop when it no longer falls.
        most: largest number of iterations.
        easy: whether Anderson's acceleration has the short memory of easy norms.
    """

    _fields_ = (
        *_consecutive(c_void_p, "W", "lam", "room"),
        *_consecutive(c_double, "t", "target", "enough", "error"),
        *_consecutive(c_int64, "most", "warm", "easy", "iterations", "exchanges"),
    )

    def __init__(
        self,
        W: Floats,
        lam: Floats,
        room: Floats,
        *,
        target: float,
        enough: float = 0.0,
        most: int = 0,
        easy: bool = False,
    ) -> None:
        super().__init__(target=target, enough=enough, most=most, easy=easy)
        # W and lam agree with the programme that the caller passes beside the iterate
        self.point("W", W, np.float64, *W.shape)
        self.point("lam", lam, np.float64, len(lam))
        self.point("room", room, np.float64, len(room))


class SequenceArrays(Struct):
    """``SequenceArrays``: the sequences of one instance, visible tokens end to end.

    Args:
        keys: ``(N, d_k)``, less the mean of their sequence.
        queries: ``(n, d_z)``.
        labels: ``(n,)``.
        start: ``(n + 1,)``, where each sequence begins; none is empty.
        values: tokens ``(N, d_x)`` less means ``(n, d_x)``, the means, and which tokens are zero;
            None under a fixed head.
        chunks: groups of sequences whose sums are taken apart; by the size of the keys when left
            out.
    """

    _fields_ = (
        *_consecutive(c_int64, "n", "N", "d_k", "d_x", "d_z", "chunks", "longest"),
        *_consecutive(c_void_p, "keys", "queries", "labels", "values", "means", "is_zero"),
        *_consecutive(c_void_p, "start", "chunk_start"),
    )

    def __init__(
        self,
        keys: Floats,
        queries: Floats,
        labels: Floats,
        start: Integers,
        values: tuple[Floats, Floats, NDArray[np.bool_]] | None = None,
        chunks: int | None = None,
    ) -> None:
        keys = np.ascontiguousarray(keys)
        (N, d_k), (n, d_z), lengths = keys.shape, queries.shape, np.diff(start)
        check_offsets("starts of sequences", start, N)
        if lengths.min() < 1:
            raise TypeError("every sequence must have a visible token")
        # half a megabyte of keys is one chunk; thirty-two are enough for all cores of a machine
        count = chunks or (1 if N * d_k <= 1 << 16 else min(32, n))
        # chunks of equal work: a sequence costs about one token beside its tokens
        ends = np.linspace(0, N + n, count + 1)
        chunk_start = np.searchsorted(start + np.arange(n + 1), ends).astype(np.int64)
        super().__init__(n, N, d_k, 0, d_z, count, int(lengths.max()))
        self.point("keys", keys, np.float64, N, d_k)
        self.point("queries", queries, np.float64, n, d_z)
        self.point("labels", labels, np.float64, n)
        self.point("start", start, np.int64, n + 1)
        self.point("chunk_start", chunk_start, np.int64, count + 1)
        # a fixed head reads scores in place of values
        if values is not None:
            tokens, means, is_zero = values
            self.d_x = d_x = tokens.shape[1]
            self.point("values", tokens, np.float64, N, d_x)
            self.point("means", means, np.float64, n, d_x)
            if is_zero.any():
                self.point("is_zero", is_zero, np.bool_, N)


class ParameterRule(ctypes.Structure):
    """``ParameterRule``: how a parameter moves along its gradient; numbers alone.

    Attributes:
        kind: 0 steepest, 1 Polyak's, 2 mirror.
        normalize: whether the step is divided by the norm of the gradient.
        keeps_dual: whether the dual iterate is not taken anew from the weights at every step.
        lr: step length.
        eps: what is added to the norm of a mirror step.
        inverse_integer: integer part of the exponent from the dual to the weights.
        inverse_fraction: its fraction, in [0, 1).
        forward_integer: integer part of the exponent from the weights to the dual.
        forward_fraction: its fraction, in [0, 1).
    """

    _fields_ = (
        *_consecutive(c_int64, "kind", "normalize", "keeps_dual"),
        *_consecutive(c_double, "lr", "eps", "inverse_integer", "inverse_fraction"),
        *_consecutive(c_double, "forward_integer", "forward_fraction"),
    )


class DescentRun(Struct):
    """``DescentRun``: one run of descent.

    What moves is given either as ``W``, as ``K`` and ``Q`` beside ``W`` for their product, or as
    moved queries.

    Args:
        sequences: what is attended to.
        head: ``(d_x + 1,)``, the intercept last; written when it is trained.
        winner: ``(n,)``, number of the winner among all tokens, written.
        margin: ``(n,)``, written.
        softmax_sum: ``(n,)``, sum of the softmax over the winner's term, written.
        W: ``(d_z, d_k)``, the transpose of the weights, written.
        moved_queries: ``(n, d_k)``, queries that the weights have moved.
        K: ``(inner, d_k)``, written.
        Q: ``(d_z, inner)``, written.
        dual: shaped like ``W``, its mirror image, written.
        head_dual: shaped like ``head``, its mirror image, written.
        head_width: number of entries of the head that are trained, 0 for a fixed head.
        loss: code of the loss.
        stacked: whether K and Q are normalised together.
        penalty: of the squared weights.
        rules: of W or K, and of the head or Q.

    Attributes:
        sequences: what is attended to.
        stopped_at: step whose gradient was zero, or -1.
        log_gradient_norm: logarithm of the norm of the gradient, after ``evaluate_runs``.
        mean_loss: the loss, after ``evaluate_runs``.
    """

    _fields_ = (
        ("data", POINTER(SequenceArrays)),
        *_consecutive(c_int64, "loss", "head_width", "inner", "stacked", "stopped_at"),
        *_consecutive(c_double, "penalty", "best_loss_excess", "polyak_factor"),
        ("rules", ParameterRule * 2),
        *_consecutive(c_void_p, "W", "moved_queries", "K", "Q", "dual", "head_dual", "head"),
        *_consecutive(c_void_p, "token_score", "intercept_score", "best_score"),
        *_consecutive(c_void_p, "winner", "margin", "softmax_sum"),
        *_consecutive(c_double, "log_gradient_norm", "mean_loss"),
        ("workspace", c_void_p),
    )
    sequences: SequenceArrays

    def __init__(
        self,
        sequences: SequenceArrays,
        head: Floats,
        winner: Integers,
        margin: Floats,
        softmax_sum: Floats,
        *,
        W: Floats | None = None,
        moved_queries: Floats | None = None,
        K: Floats | None = None,
        Q: Floats | None = None,
        dual: Floats | None = None,
        head_dual: Floats | None = None,
        head_width: int = 0,
        loss: int = 0,
        stacked: bool = False,
        penalty: float = 0.0,
        rules: tuple[ParameterRule, ParameterRule] | None = None,
    ) -> None:
        super().__init__(
            ctypes.pointer(sequences),
            loss=loss,
            head_width=head_width,
            stacked=stacked,
            stopped_at=-1,
            penalty=penalty,
        )
        self.arrays, self.sequences = {}, sequences
        # sizes are those of the sequences, checked when they were laid out
        n, d_k, d_z = sequences.n, sequences.d_k, sequences.d_z
        for name, array in (("W", W), ("dual", dual)):
            if array is not None:
                self.point(name, array, np.float64, d_z, d_k)
        if moved_queries is not None:
            self.point("moved_queries", moved_queries, np.float64, n, d_k)
        if K is not None and Q is not None:
            self.inner = len(K)
            self.point("K", K, np.float64, self.inner, d_k)
            self.point("Q", Q, np.float64, d_z, self.inner)
        for name, array in (("head", head), ("head_dual", head_dual)):
            if array is not None:
                self.point(name, array, np.float64, len(head))
        self.point("winner", winner, np.int64, n)
        self.point("margin", margin, np.float64, n)
        self.point("softmax_sum", softmax_sum, np.float64, n)
        if head_width not in (0, sequences.d_x, sequences.d_x + 1) or head_width > len(head):
            raise TypeError(f"{head_width} trained entries of a head of {len(head)}")
        # rules are numbers, copied into the struct
        for k, rule in enumerate(rules or ()):
            self.rules[k] = rule

    def fix_scores(
        self, token_score: Floats, intercept_score: Floats, best_score: Floats | None = None
    ) -> None:
        """Take the scores of a fixed head.

        Args:
            token_score: ``(N,)``, label times score of every token, without the intercept.
            intercept_score: ``(n,)``, label times intercept.
            best_score: ``(n,)``, score of the best token, which Polyak's rule reads.
        """
        data = self.sequences
        self.point("token_score", token_score, np.float64, data.N)
        self.point("intercept_score", intercept_score, np.float64, data.n)
        if best_score is not None:
            self.point("best_score", best_score, np.float64, data.n)


class Corpus(Struct):
    """``Corpus``: sentences of next-token problems, of all runs end to end.

    Args:
        token: ``(all tokens,)``, distinct tokens of every sentence.
        log_count: ``(all tokens,)``, logarithms of their multiplicities.
        start: ``(sentences + 1,)``, where the tokens of each sentence begin.
        run_start: ``(runs + 1,)``, where the sentences of each run begin.
        query: ``(sentences,)``.
        winner: ``(sentences,)``, counted over all tokens.
        label: ``(sentences,)``.
        log_weight: ``(sentences,)``.
        gram: ``(runs, K, K)``, products of the embeddings.
        classes: number of labels.
    """

    _fields_ = (
        *_consecutive(c_int64, "K", "classes", "tokens", "sentences"),
        *_consecutive(c_void_p, "token", "log_count", "start", "run_start", "query"),
        *_consecutive(c_void_p, "winner", "label", "log_weight", "gram", "orthonormal"),
    )

    def __init__(
        self,
        token: Integers,
        log_count: Floats,
        start: Integers,
        run_start: Integers,
        query: Integers,
        winner: Integers,
        label: Integers,
        log_weight: Floats,
        gram: Floats,
        classes: int,
    ) -> None:
        runs, K, _ = gram.shape
        tokens, sentences = len(token), len(start) - 1
        check_offsets("starts of sentences", start, tokens)
        check_offsets("starts of runs", run_start, sentences)
        # scratch memory is for the largest run
        most_tokens = int(np.diff(start[run_start]).max())
        super().__init__(K, classes, most_tokens, int(np.diff(run_start).max()))
        self.point("token", token, np.int64, tokens)
        self.point("log_count", log_count, np.float64, tokens)
        self.point("start", start, np.int64, sentences + 1)
        self.point("run_start", run_start, np.int64, runs + 1)
        self.point("query", query, np.int64, sentences)
        self.point("winner", winner, np.int64, sentences)
        self.point("label", label, np.int64, sentences)
        self.point("log_weight", log_weight, np.float64, sentences)
        self.point("gram", gram, np.float64, runs, K, K)
        # orthonormal embeddings need no products with the Gram matrix
        orthonormal = (gram == np.eye(K)).all(axis=(-2, -1))
        self.point("orthonormal", orthonormal, np.bool_, runs)


class SentenceDescent(Struct):
    """``SentenceDescent``: steps of descent on sentences, in coordinates of the vocabulary.

    Args:
        corpus: the sentences.
        record_steps: ``(count,)``, increasing steps at which weights are recorded.
        arrays: by name, those that the method has: ``lr``, ``lr_output``, ``floor`` ``(runs,)``;
            ``A``, ``scores`` ``(runs, K, K)``; ``B``, ``values`` ``(runs, K, classes)``; and
            ``A_records`` and ``B_records``, the coordinates at the recorded steps,
            ``(runs, count, ...)``.
        rule: 0 normalised, 1 plain, 2 Polyak's.
        loss: code of the loss.
        textbook: whether the gradient is computed as a textbook writes it.
        counts_rises: whether the loss is computed at every step, and its rises are counted.
        joint_norm: whether both matrices are divided by one norm.
        decay: exponent of the step's number by which steps shrink.
        polyak_factor: by which Polyak's steps are divided.

    Attributes:
        arrays: ``ends`` among them, ``(runs, 3)``: the step that could not be taken or -1, the
            number of rises of the loss, the step of the last.
    """

    _fields_ = (
        *_consecutive(c_int64, "rule", "loss", "textbook", "counts_rises", "joint_norm"),
        *_consecutive(c_double, "decay", "polyak_factor"),
        *_consecutive(c_void_p, "lr", "lr_output", "floor"),
        ("count", c_int64),
        *_consecutive(c_void_p, "record_steps", "A", "scores", "B", "values"),
        *_consecutive(c_void_p, "A_records", "B_records", "ends"),
    )

    def __init__(
        self,
        corpus: Corpus,
        record_steps: Integers,
        arrays: dict[str, Floats],
        *,
        rule: int,
        loss: int = 0,
        textbook: bool = False,
        counts_rises: bool = False,
        joint_norm: bool = False,
        decay: float = 0.0,
        polyak_factor: float = 1.0,
    ) -> None:
        super().__init__(rule, loss, textbook, counts_rises, joint_norm, decay, polyak_factor)
        runs, count = len(corpus.arrays["gram"]), len(record_steps)
        K, classes = corpus.K, corpus.classes
        # a method has some of these arrays; each has one shape
        shapes = {
            **dict.fromkeys(("lr", "lr_output", "floor"), (runs,)),
            **dict.fromkeys(("A", "scores"), (runs, K, K)),
            **dict.fromkeys(("B", "values"), (runs, K, classes)),
            "A_records": (runs, count, K, K),
            "B_records": (runs, count, K, classes),
        }
        self.count = count
        self.point("record_steps", record_steps, np.int64, count)
        ends = np.tile(np.array([-1, 0, -1], dtype=np.int64), (runs, 1))
        self.point("ends", ends, np.int64, runs, 3)
        for name, array in arrays.items():
            self.point(name, array, np.float64, *shapes[name])


STRUCTS: tuple[type[ctypes.Structure], ...] = (
    *(ProgrammeRows, ActiveSet, Batch, Interior, Blas, GaugeFunction, SplittingState),
    *(SequenceArrays, ParameterRule, DescentRun, Corpus, SentenceDescent),
)
