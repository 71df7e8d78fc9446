r"""Algorithm 1 of Huang, Liang and Yang (2024) and its parts: the output matrix, the query-key
matrix, or both at once.

Steepest descent of the query-key matrix in any norm, with momentum, and of its factors
:math:`W=KQ^\top`.

Steps are those of :class:`attsvm.optim.SteepestDescent` with ``dampening = momentum``. Momentum
averages gradients whose sizes may be any powers of ten; see
:mod:`attsvm.theory.scale_free_descent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax

from attsvm import native
from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import FloatArray, IntArray, broadcast
from attsvm.norms import Norm, as_norm
from attsvm.theory.next_token import compiled_runs
from attsvm.theory.next_token.compiled_runs import LOSSES, RuleNumber
from attsvm.theory.next_token.problem import NoAttentionSignalError, Problem, output_values
from attsvm.theory.next_token.trajectories import AttentionTrajectory, OutputTrajectory
from attsvm.theory.scale_free_descent import Gradient, Steepest, descend_scale_free
from attsvm.theory.sentences import NextTokenData
from attsvm.training.trajectory import AtSteps, LogSpaced

Data = NextTokenData | Sequence[NextTokenData]
Records = LogSpaced | AtSteps
RECORDS = LogSpaced(200)


@dataclass(frozen=True)
class StepRule:
    r"""How a gradient becomes a step; ``t`` counts from 0.

    * normalised, the default: :math:`\eta_t\,g/\|g\|_F`,
    * plain (``normalize=False``): :math:`\eta_t\,g`,
    * Polyak (``polyak=c``): :math:`\eta_t\,\frac{L-L^\star}{c\|g\|_F^2}\,g`, with ``lr`` usually 1
      and :math:`L^\star` the problem's floor plus ``loss_floor``; no step where the loss is not
      above it,

    with :math:`\eta_t=\eta/(t+1)^{\text{decay}}`.

    Attributes:
        lr: :math:`\eta`, one number or one per run.
        normalize: False for plain gradient descent.
        decay: exponent; 0 for a constant step, 0.5 for Fan et al.'s.
        polyak: :math:`c`, 2 in Vasudeva et al. (recalled); None for the other rules.
        loss_floor: what the infimum of the loss is above the problem's floor; one number or one per
            run.

    Example:
        >>> import attsvm
        >>> from attsvm.theory.sentences import priority_graph
        >>> from attsvm.theory.next_token import Problem, StepRule, attention_stage
        >>> data = priority_graph(n=4, T=3, K=5, d=6, seed=0, cyclic=False)
        >>> rule = StepRule(0.05)
        >>> trajectory = attention_stage(Problem.of(data, "log_mass"), rule, steps=100)
        >>> round(trajectory.norm[-1, 0].item(), 1) <= 5.0
        True
    """

    lr: float | tuple[float, ...]
    normalize: bool = True
    decay: float = 0.0
    polyak: float | None = None
    loss_floor: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        if not np.all(np.isfinite(self.lr)) or np.any(np.asarray(self.lr) <= 0):
            raise InputError(f"lr is {self.lr}; give a positive number, or one per run")
        if not 0.0 <= self.decay < np.inf:
            raise InputError(f"decay is {self.decay}; give an exponent of at least 0")
        if self.polyak is not None and not 0.0 < self.polyak < np.inf:
            raise InputError(f"polyak is {self.polyak}; give a positive factor")

    @property
    def code(self) -> int:
        """Number of the rule in the compiled loops."""
        if self.polyak is not None:
            return RuleNumber.POLYAK
        return RuleNumber.NORMALIZED if self.normalize else RuleNumber.PLAIN

    def rates(self, runs: int) -> FloatArray:
        """Step lengths ``(runs,)``."""
        return broadcast("lr", self.lr, (runs,), 0)

    def settings(self, watch: bool = False) -> dict[str, Any]:
        """Fields of the compiled struct that all runs share."""
        factor = float(self.polyak or 1.0)
        return {
            "rule": self.code,
            "decay": float(self.decay),
            "polyak_factor": factor,
            "counts_rises": watch,
        }

    def arrays_per_run(self, runs: int) -> dict[str, FloatArray]:
        """Arrays ``(runs,)`` of the compiled struct: step lengths and floors of the loss."""
        return {
            "lr": self.rates(runs),
            "floor": broadcast("loss_floor", self.loss_floor, (runs,), 0),
        }


class TwoStages(NamedTuple):
    """Trajectories of both stages; see :func:`two_stage`.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory.next_token import StepRule, two_stage
        >>> data = NextTokenData.from_words(
        ...     ["fox", "hen", "eats", "hen fox eats"], ["runs", "clucks", "much", "runs"]
        ... )
        >>> trained = two_stage(data, StepRule(0.05), StepRule(0.05), steps=(100, 100))
        >>> trained.output.W.shape[-2:], trained.attention.W.shape[-2:]
        ((6, 6), (6, 6))
    """

    output: OutputTrajectory
    attention: AttentionTrajectory


class JointTrajectories(NamedTuple):
    """Trajectories of both matrices at the same records; see :func:`joint_stage`.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory.next_token import StepRule, joint_stage
        >>> data = NextTokenData.from_words(
        ...     ["fox", "hen", "eats", "hen fox eats"], ["runs", "clucks", "much", "runs"]
        ... )
        >>> trained = joint_stage(data, StepRule(0.05), steps=100)
        >>> trained.output.W.shape[-2:], trained.attention.W.shape[-2:]
        ((6, 6), (6, 6))
    """

    output: OutputTrajectory
    attention: AttentionTrajectory


def output_stage(
    data: Data,
    rule: StepRule,
    steps: int,
    *,
    init: ArrayLike | None = None,
    records: Records = RECORDS,
    watch: bool = False,
) -> OutputTrajectory:
    r"""Stage 1: descent on :math:`L_0(W_{ov})=-\sum_x\pi_x\log\mathrm{softmax}(W_{ov}e_x)_{y}` over
    the sentences of one token.

    Args:
        data: one data set, or one per run.
        rule: normalised or plain.
        steps: how many.
        init: ``(classes, d)`` or ``(runs, classes, d)``; zero, and K classes, when left out.
        records: when to look.
        watch: count the steps at which the loss rose.

    Raises:
        InputError: no sentence of one token in some run, Polyak's rule, an init of another shape,
            or a label that is no class.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory.next_token import StepRule, output_stage
        >>> data = NextTokenData.from_words(
        ...     ["fox", "hen", "eats", "hen fox eats"], ["runs", "clucks", "much", "runs"]
        ... )
        >>> trajectory = output_stage(data, StepRule(0.05), steps=500)
        >>> bool(trajectory.loss[-1, 0] < trajectory.loss[0, 0])
        True
    """
    if rule.polyak is not None:
        raise InputError(
            "Polyak's rule is not offered for the output matrix; use a normalised or plain rule"
        )
    contexts = _Contexts.of(data)
    E = contexts.embeddings
    runs, K, d = E.shape
    classes = K if init is None else _count_classes(init)
    W0 = _initial_weights("init", init, (runs, classes, d))
    corpus = contexts.corpus(classes)
    marks = records.steps(steps)
    recorded = np.zeros((runs, len(marks), K, classes))
    arrays = {
        "B": np.zeros((runs, K, classes)),
        "values": np.ascontiguousarray(output_values(W0, E)),
        "B_records": recorded,
        **rule.arrays_per_run(runs),
    }
    struct = native.SentenceDescent(corpus, marks, arrays, **rule.settings(watch))
    ends = compiled_runs.share_runs(native.library.train_output, corpus, struct)
    # the loop records coefficients B with W = W0 + B^T E
    W = W0 + recorded.swapaxes(0, 1).mT @ E
    rises = ends[:, 1] if watch else None
    return OutputTrajectory(marks, W, ends[:, 0], rises, loss=contexts.losses(W))


def factored_output_stage(
    data: Data,
    rule: StepRule,
    steps: int,
    *,
    init: tuple[ArrayLike, ArrayLike],
    norm: Norm | str | None = None,
    momentum: float = 0.0,
    records: Records = RECORDS,
) -> OutputTrajectory:
    r"""Stage 1 for the factors of :math:`W_{ov}=W_oW_v^\top`, output and value matrix: normalised
    descent on the pair, with one norm for both stacked as ``(classes + d, m)``.

    Small starts turn to the solution of the nuclear norm, where :func:`output_stage` turns to that
    of the Frobenius norm. Huang et al., *Generalization or Hallucination?* (2025).

    Args:
        data: see :func:`output_stage`.
        rule: normalised, constant or decaying.
        steps: how many.
        init: :math:`W_o` ``(classes, m)`` and :math:`W_v` ``(d, m)``, or one of each per run. Zero
            is a stationary point.
        norm: of the stacked pair, Frobenius when left out.
        momentum: see :func:`steepest_stage`.
        records: when to look.

    Returns:
        The trajectory of :math:`W_{ov}`; ``factors`` holds those of both factors, ``O`` and ``V``.

    Raises:
        InputError: factors of other shapes, or the errors of :func:`output_stage` and
            :func:`steepest_stage`.

    Example:
        >>> import numpy as np
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory.next_token import StepRule, factored_output_stage
        >>> # Ann, Bob and Cid; where they live, and, of two of them, what they speak
        >>> contexts = np.eye(5)[[0, 0, 1, 1, 2]] + np.eye(5)[[3, 4, 3, 4, 3]]
        >>> answers = [0, 2, 1, 3, 0]  # Paris, French, Rome, Italian, Paris
        >>> data = NextTokenData.from_sentences([[j] for j in range(5)], answers, None, contexts)
        >>> start = 0.01 * np.random.default_rng(0).normal(size=(9, 4))
        >>> trained = factored_output_stage(
        ...     data, StepRule(0.05), 1000, init=(start[:4], start[4:])
        ... )
        >>> int(np.argmax(trained.W[-1, 0] @ [0, 0, 1, 0, 1]))  # what Cid speaks
        2
    """
    contexts = _Contexts.of(data)
    runs, _, d = contexts.embeddings.shape
    classes, m = _count_classes(init[0]), np.shape(init[0])[-1]
    contexts.require(classes)
    shapes = ((runs, classes, m), (runs, d, m))
    output, value = (
        _initial_weights(f"init[{k}]", start, shape)
        for k, (start, shape) in enumerate(zip(init, shapes, strict=True))
    )
    marks, (output, value), stopped = _descend_on_factors(
        contexts.gradient, output, value, norm, rule, steps, momentum, records
    )
    W = output @ value.mT
    factors = {"O": output, "V": value}
    return OutputTrajectory(marks, W, stopped, loss=contexts.losses(W), factors=factors)


@dataclass(frozen=True)
class _Contexts:
    """Sentences of one token of all runs, end to end: embeddings ``(runs, K, d)``; token, label and
    logarithm of the weight of every sentence; where the sentences of each run begin.
    """

    embeddings: FloatArray
    token: IntArray
    label: IntArray
    log_weight: FloatArray
    run_start: IntArray

    @classmethod
    def of(cls, data: Data) -> _Contexts:
        """The sentences of one token of these data sets, one per run."""
        sets = (data,) if isinstance(data, NextTokenData) else tuple(data)
        singles = [_sentences_of_one_token(run, data_set) for run, data_set in enumerate(sets)]
        return cls(
            np.stack([data_set.embeddings for data_set in sets]),
            np.concatenate([data_set.queries for data_set in singles]),
            np.concatenate([data_set.labels for data_set in singles]),
            np.log(np.concatenate([data_set.weights for data_set in singles])),
            np.concatenate([[0], np.cumsum([data_set.N for data_set in singles])]),
        )

    def require(self, classes: int) -> None:
        """Raise for a label that is no class."""
        if (largest := int(self.label.max())) >= classes:
            raise InputError(
                f"init has {classes} classes and the largest label is {largest}; give a row for"
                " every label"
            )

    def corpus(self, classes: int) -> native.Corpus:
        """The struct of the compiled loop: the token is its own query and its own winner."""
        self.require(classes)
        start = np.arange(len(self.token) + 1)
        return compiled_runs.sentences_struct(
            (self.token, np.zeros(len(self.token)), start, self.run_start),
            (self.token, start[:-1], self.label, self.log_weight),
            self.embeddings @ self.embeddings.mT,
            classes,
        )

    def losses(self, W: FloatArray) -> FloatArray:
        """Cross-entropies ``(R, runs)`` under weights ``(R, runs, classes, d)``."""
        corpus, loss = self.corpus(W.shape[-2]), np.zeros(W.shape[:2])
        table = np.ascontiguousarray(output_values(W, self.embeddings))
        work = compiled_runs.allocate_work(corpus)
        addresses = (array.ctypes.data for array in (table, loss, work))
        native.library.output_losses(corpus, *loss.shape, *addresses)
        return loss

    @cached_property
    def padded(self) -> tuple[FloatArray, IntArray, FloatArray]:
        """Embeddings ``(runs, n, d)``, labels and logarithms of weights ``(runs, n)`` of the
        sentences of every run, filled up with sentences of weight zero.
        """
        lengths = np.diff(self.run_start)
        in_run = np.arange(lengths.max()) < lengths[:, None]
        token, label = np.zeros((2, *in_run.shape), dtype=np.int64)
        log_weight = np.full(in_run.shape, -np.inf)
        token[in_run], label[in_run] = self.token, self.label
        log_weight[in_run] = self.log_weight
        return np.take_along_axis(self.embeddings, token[..., None], axis=1), label, log_weight

    def gradient(self, W: FloatArray) -> tuple[FloatArray, FloatArray]:
        r"""The gradient at weights ``(runs, classes, d)`` as ``(G, log_scale)``.

        Of a sentence with label y and probabilities :math:`\sigma` it is :math:`\sigma_z` in the
        logit of :math:`z\ne y`, and :math:`-\sum_{z\ne y}\sigma_z` in that of y: no digit cancels.
        """
        h, label, log_weight = self.padded
        logs = log_softmax(h @ W.mT, axis=-1) + log_weight[..., None]
        np.put_along_axis(logs, label[..., None], -np.inf, axis=-1)
        top = logs.max(axis=(-2, -1))
        slopes = np.exp(logs - top[:, None, None])
        np.put_along_axis(slopes, label[..., None], -slopes.sum(axis=-1, keepdims=True), axis=-1)
        return slopes.mT @ h, top


def _count_classes(init: ArrayLike) -> int:
    """Rows of an output matrix ``([runs,] classes, columns)``."""
    shape = np.shape(init)
    if len(shape) < 2:
        raise InputError(f"init has shape {shape}; give a matrix with a row for every class")
    return int(shape[-2])


def attention_stage(
    problem: Problem,
    rule: StepRule,
    steps: int,
    *,
    init: ArrayLike | None = None,
    records: Records = RECORDS,
    watch: bool = False,
    textbook: bool = False,
) -> AttentionTrajectory:
    """Descent on the query-key matrix with the values fixed: stage 2, and every experiment on
    attention alone.

    Args:
        problem: see :meth:`Problem.of`.
        rule: see :class:`StepRule`; for other norms, momentum and factors see
            :func:`steepest_stage` and :func:`factored_stage`.
        steps: how many.
        init: ``(d, d)`` or ``(runs, d, d)``, zero when left out.
        records: when to look.
        watch: count the steps at which the loss over its floor rose; costs about as much as the
            steps themselves.
        textbook: the gradient whose differences round, to see what that does (cross-entropy only).

    Raises:
        InputError: an init of another shape, or ``textbook`` with another loss.

    Example:
        >>> import attsvm
        >>> from attsvm.theory.sentences import priority_graph
        >>> from attsvm.theory.next_token import Problem, StepRule, attention_stage
        >>> data = priority_graph(n=4, T=3, K=5, d=6, seed=0, cyclic=False)
        >>> trajectory = attention_stage(Problem.of(data, "log_mass"), StepRule(0.05), steps=2000)
        >>> solution = attsvm.graph_svm(data).solution
        >>> bool(trajectory.cosine(solution)[-1, 0] > 0.99)
        True
    """
    if textbook and problem.loss != "cross_entropy":
        raise InputError(
            f"the textbook gradient is written for cross_entropy, not {problem.loss}; leave"
            " textbook out"
        )
    runs, K, d = problem.embeddings.shape
    W0 = _initial_weights("init", init, (runs, d, d))
    marks = records.steps(steps)
    recorded = np.zeros((runs, len(marks), K, K))
    arrays = {
        "A": np.zeros((runs, K, K)),
        "scores": np.ascontiguousarray(problem.scores(W0)),
        "values": np.ascontiguousarray(problem.values, np.float64),
        "A_records": recorded,
        **rule.arrays_per_run(runs),
    }
    settings = {**rule.settings(watch), "loss": LOSSES[problem.loss], "textbook": textbook}
    corpus = problem.corpus(problem.values.shape[-1])
    struct = native.SentenceDescent(corpus, marks, arrays, **settings)
    ends = compiled_runs.share_runs(native.library.train_attention, corpus, struct)
    W = W0 + problem.weights(recorded.swapaxes(0, 1))
    rises = ends[:, 1] if watch else None
    return AttentionTrajectory(marks, W, ends[:, 0], rises, problem=problem)


def two_stage(
    data: Data,
    output: StepRule,
    attention: StepRule,
    steps: tuple[int, int],
    *,
    init: tuple[ArrayLike | None, ArrayLike | None] = (None, None),
    records: Records = RECORDS,
    watch: bool = False,
    textbook: bool = False,
) -> TwoStages:
    """Algorithm 1 of Huang et al.: the output matrix on sentences of one token, then the query-key
    matrix on the longer ones.

    Args:
        data: one data set, or one per run.
        output: rule of stage 1, normalised with step 0.2 over the root of d in the paper (the root
            is read into a lost sign).
        attention: rule of stage 2, 0.05 over the root of d.
        steps: of both stages.
        init: starts of both matrices, zero where None.
        records: when to look, in each stage.
        watch: count the steps at which the loss rose.
        textbook: stage 2 with the rounded gradient.

    Raises:
        InputError: no sentence of one token in some run, or none of the longer ones realises its
            label.
        NoAttentionSignalError: no sentence of two distinct tokens in some run.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory.next_token import StepRule, two_stage
        >>> data = NextTokenData.from_words(
        ...     ["fox", "hen", "eats", "hen fox eats"], ["runs", "clucks", "much", "runs"]
        ... )
        >>> import attsvm
        >>> trained = two_stage(data, StepRule(0.05), StepRule(0.05), steps=(500, 2000))
        >>> solution = attsvm.max_margin(attsvm.order_margins(data))
        >>> bool(trained.attention.cosine(solution)[-1, 0] > 0.99)
        True
    """
    output_trajectory = output_stage(
        data, output, steps[0], init=init[0], records=records, watch=watch
    )
    sets = [data] if isinstance(data, NextTokenData) else list(data)
    longer = [_sentences_of_several_tokens(run, data_set) for run, data_set in enumerate(sets)]
    problem = Problem.of(
        longer,
        values=output_values(
            output_trajectory.W[-1], np.stack([data_set.embeddings for data_set in sets])
        ),
    )
    attention_trajectory = attention_stage(
        problem, attention, steps[1], init=init[1], records=records, watch=watch, textbook=textbook
    )
    return TwoStages(output_trajectory, attention_trajectory)


def joint_stage(
    data: Data,
    rule: StepRule,
    steps: int,
    *,
    output_lr: float | None = None,
    norm: Literal["block", "joint"] = "block",
    init: tuple[ArrayLike | None, ArrayLike | None] = (None, None),
    records: Records = RECORDS,
) -> JointTrajectories:
    """Both matrices from the start, on all sentences: normalised descent with a norm per matrix, or
    with one norm for both.

    Args:
        data: one data set, or one per run.
        rule: normalised; ``lr`` is that of the query-key matrix.
        steps: how many.
        output_lr: step of the output matrix, that of the other when left out.
        norm: ``block`` for a norm each, ``joint`` for the norm of the pair.
        init: starts of the output and of the query-key matrix, zero where None.
        records: when to look.

    Raises:
        InputError: a rule that is not normalised, or starts of other shapes.
        NoAttentionSignalError: no sentence of two distinct tokens in some run.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory.next_token import StepRule, joint_stage
        >>> data = NextTokenData.from_words(
        ...     ["fox", "hen", "eats", "hen fox eats"], ["runs", "clucks", "much", "runs"]
        ... )
        >>> import attsvm
        >>> trained = joint_stage(data, StepRule(0.05), steps=2000)
        >>> solution = attsvm.max_margin(attsvm.order_margins(data))
        >>> bool(trained.attention.cosine(solution)[-1, 0] > 0.9)
        True
    """
    if rule.code != RuleNumber.NORMALIZED:
        raise InputError(
            "joint training takes normalised steps; use a StepRule with normalize=True and no"
            " polyak"
        )
    if norm not in ("block", "joint"):
        raise InputError(f"norm is {norm!r}; use 'block' or 'joint'")
    problem = Problem.of(data)
    E = problem.embeddings
    runs, K, d = E.shape
    V0, W0 = (
        _initial_weights("init[0]", init[0], (runs, K, d)),
        _initial_weights("init[1]", init[1], (runs, d, d)),
    )
    marks = records.steps(steps)
    recorded, recorded_outputs = np.zeros((2, runs, len(marks), K, K))
    per_run = rule.arrays_per_run(runs)
    arrays = {
        "A": np.zeros((runs, K, K)),
        "scores": np.ascontiguousarray(problem.scores(W0)),
        "B": np.zeros((runs, K, K)),
        "values": np.ascontiguousarray(output_values(V0, E)),
        "A_records": recorded,
        "B_records": recorded_outputs,
        "lr_output": per_run["lr"] if output_lr is None else np.full(runs, float(output_lr)),
        **per_run,
    }
    corpus = problem.corpus(K)
    struct = native.SentenceDescent(
        corpus, marks, arrays, joint_norm=norm == "joint", **rule.settings()
    )
    ends = compiled_runs.share_runs(native.library.train_both, corpus, struct)
    W, V = (
        W0 + problem.weights(recorded.swapaxes(0, 1)),
        V0 + recorded_outputs.swapaxes(0, 1).mT @ E,
    )
    attention = AttentionTrajectory(
        marks, W, ends[:, 0], problem=problem, values=output_values(V, E)
    )
    return JointTrajectories(OutputTrajectory(marks, V, ends[:, 0], loss=attention.loss), attention)


def _initial_weights(name: str, init: ArrayLike | None, shape: tuple[int, int, int]) -> FloatArray:
    """Start of every run, of this shape; zero for None."""
    return np.zeros(shape) if init is None else broadcast(name, init, shape, 2)


def _sentences_of_one_token(run: int, data: NextTokenData) -> NextTokenData:
    if not (data.lengths == 1).any():
        raise InputError(
            f"data set {run} has no sentence of one token; the output matrix is trained on those"
        )
    return data.select(data.lengths == 1)


def _sentences_of_several_tokens(run: int, data: NextTokenData) -> NextTokenData:
    if not (data.lengths > 1).any():
        raise NoAttentionSignalError(
            f"every sentence of data set {run} has a single token; attention needs sentences of two"
            " distinct tokens"
        )
    return data.select(data.lengths > 1)


def steepest_stage(
    problem: Problem,
    norm: Norm | str,
    rule: StepRule,
    steps: int,
    *,
    momentum: float = 0.0,
    init: ArrayLike | None = None,
    records: Records = RECORDS,
) -> AttentionTrajectory:
    r"""NSD and NMD of Fan et al. (2025):
    :math:`W_{t+1}=W_t-\eta_t\arg\max_{\|\Delta\|\le1}\langle M_t,\Delta\rangle`.

    :math:`M_t=\beta M_{t-1}+(1-\beta)\nabla L(W_t)`, :math:`M_{-1}=0`.

    Args:
        problem: see :meth:`Problem.of`.
        norm: the geometry, such as ``Spectral()`` or its name, ``spec``.
        rule: normalised, constant or decaying.
        steps: how many.
        momentum: :math:`\beta`, from 0 to below 1.
        init: ``(d, d)`` or ``(runs, d, d)``, zero when left out.
        records: when to look.

    Raises:
        InputError: a rule that is not normalised, a momentum out of range, or an init of another
            shape.

    Example:
        >>> import attsvm
        >>> from attsvm.theory.sentences import priority_graph
        >>> from attsvm.theory.next_token import Problem, StepRule, steepest_stage
        >>> data = priority_graph(n=4, T=3, K=5, d=6, seed=0, cyclic=False)
        >>> problem = Problem.of(data, "log_mass")
        >>> trajectory = steepest_stage(problem, "spec", StepRule(0.05), steps=200)
        >>> bool(trajectory.loss[-1, 0] < trajectory.loss[0, 0])
        True
    """
    runs, _, d = problem.embeddings.shape
    W = _initial_weights("init", init, (runs, d, d))
    marks, recorded, stopped = _descend_in_norm(
        problem.gradient, W, norm, rule, steps, momentum, records
    )
    return AttentionTrajectory(marks, recorded, stopped, problem=problem)


def factored_stage(
    problem: Problem,
    rule: StepRule,
    steps: int,
    *,
    init: tuple[ArrayLike, ArrayLike],
    norm: Norm | str | None = None,
    momentum: float = 0.0,
    records: Records = RECORDS,
) -> AttentionTrajectory:
    r"""Normalised descent on the pair :math:`(K,Q)`, :math:`W=KQ^\top`, with one norm for the pair
    stacked as ``(2d, m)``.

    Args:
        problem: see :meth:`Problem.of`.
        rule: normalised, constant or decaying.
        steps: how many.
        init: K and Q, ``(d, m)`` or ``(runs, d, m)`` each. Zero is a saddle: the gradient of either
            factor is a multiple of the other.
        norm: of the stacked pair, Frobenius when left out.
        momentum: see :func:`steepest_stage`.
        records: when to look.

    Returns:
        The trajectory of W; ``factors`` holds those of K and Q.

    Raises:
        InputError: factors of other shapes, or the errors of :func:`steepest_stage`.

    Example:
        >>> import attsvm
        >>> from attsvm.theory.sentences import priority_graph
        >>> from attsvm.theory.next_token import Problem, StepRule, factored_stage
        >>> data = priority_graph(n=4, T=3, K=5, d=6, seed=0, cyclic=False)
        >>> import numpy as np
        >>> start = (0.1 * np.eye(data.d), 0.1 * np.eye(data.d))
        >>> problem = Problem.of(data, "log_mass")
        >>> trajectory = factored_stage(problem, StepRule(0.05), 200, init=start)
        >>> bool(trajectory.loss[-1, 0] < trajectory.loss[0, 0])
        True
    """
    runs, _, d = problem.embeddings.shape
    m = np.asarray(init[0]).shape[-1]
    K, Q = (_initial_weights(f"init[{k}]", start, (runs, d, m)) for k, start in enumerate(init))
    marks, (K, Q), stopped = _descend_on_factors(
        problem.gradient, K, Q, norm, rule, steps, momentum, records
    )
    return AttentionTrajectory(marks, K @ Q.mT, stopped, problem=problem, factors={"K": K, "Q": Q})


def _descend_on_factors(
    gradient: Gradient,
    left: FloatArray,
    right: FloatArray,
    norm: Norm | str | None,
    rule: StepRule,
    steps: int,
    momentum: float,
    records: Records,
) -> tuple[IntArray, tuple[FloatArray, FloatArray], IntArray]:
    """:func:`_descend_in_norm` of the stacked factors of a product ``left @ right.mT``, by the
    ``gradient`` of the product; the recorded factors.
    """
    rows = left.shape[-2]

    def pair_gradient(pair: FloatArray) -> tuple[FloatArray, FloatArray]:
        left, right = pair[:, :rows], pair[:, rows:]
        G, log_scale = gradient(left @ right.mT)
        return np.concatenate([G @ right, G.mT @ left], axis=-2), log_scale

    pair = np.concatenate([left, right], axis=-2)
    marks, recorded, stopped = _descend_in_norm(
        pair_gradient, pair, norm, rule, steps, momentum, records
    )
    return marks, (recorded[..., :rows, :], recorded[..., rows:, :]), stopped


def _descend_in_norm(
    gradient: Gradient,
    W: FloatArray,
    norm: Norm | str | None,
    rule: StepRule,
    steps: int,
    momentum: float,
    records: Records,
) -> tuple[IntArray, FloatArray, IntArray]:
    if not rule.normalize or rule.polyak is not None:
        raise InputError(
            "steepest descent in a norm takes normalised steps here; use a StepRule with"
            " normalize=True and no polyak"
        )
    if not 0.0 <= momentum < 1.0:
        raise InputError(f"momentum is {momentum}; give 0 <= momentum < 1")
    rates, marks = rule.rates(len(W)), records.steps(steps)
    recorded, stopped = descend_scale_free(
        gradient,
        W,
        Steepest(as_norm(norm), momentum),
        lambda t: rates / (t + 1.0) ** rule.decay,
        marks,
    )
    return marks, recorded, stopped
