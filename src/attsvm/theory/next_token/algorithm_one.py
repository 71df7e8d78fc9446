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
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attsvm import native
from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import FloatArray, IntArray, spread
from attsvm.norms import Norm, as_norm
from attsvm.theory.next_token import compiled_runs
from attsvm.theory.next_token.compiled_runs import LOSSES
from attsvm.theory.next_token.course import AttentionCourse, OutputCourse
from attsvm.theory.next_token.problem import NoAttentionSignalError, Problem, output_values
from attsvm.theory.scale_free_descent import Gradient, Steepest, descend
from attsvm.theory.sentences import NextTokenData
from attsvm.training.trajectory import AtSteps, LogSpaced

Data = NextTokenData | Sequence[NextTokenData]
Records = LogSpaced | AtSteps
RECORDS = LogSpaced(200)


@dataclass(frozen=True)
class Rule:
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
        >>> from attsvm.theory.next_token import Problem, Rule, attention_stage
        >>> data = priority_graph(n=4, T=3, K=5, d=6, seed=0, cyclic=False)
        >>> rule = Rule(0.05)
        >>> course = attention_stage(Problem.of(data, "log_mass"), rule, steps=100)
        >>> round(course.norm[-1, 0].item(), 1) <= 5.0
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
        """What the compiled loops call it."""
        return (
            compiled_runs.POLYAK
            if self.polyak is not None
            else compiled_runs.NORMALIZED
            if self.normalize
            else compiled_runs.PLAIN
        )

    def rates(self, runs: int) -> FloatArray:
        """``(runs,)``."""
        return spread("lr", self.lr, (runs,), 0)

    def settings(self, watch: bool = False) -> dict[str, Any]:
        """What the compiled loops read of it, but for numbers of every run."""
        factor = float(self.polyak or 1.0)
        return {
            "rule": self.code,
            "decay": float(self.decay),
            "polyak_factor": factor,
            "counts_rises": watch,
        }

    def of_runs(self, runs: int) -> dict[str, FloatArray]:
        """The numbers of every run."""
        return {"lr": self.rates(runs), "floor": spread("loss_floor", self.loss_floor, (runs,), 0)}


class TwoStages(NamedTuple):
    """What :func:`two_stage` returns.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory.next_token import Rule, two_stage
        >>> data = NextTokenData.from_words(
        ...     ["fox", "hen", "eats", "hen fox eats"], ["runs", "clucks", "much", "runs"]
        ... )
        >>> trained = two_stage(data, Rule(0.05), Rule(0.05), steps=(100, 100))
        >>> trained.output.W.shape[-2:], trained.attention.W.shape[-2:]
        ((6, 6), (6, 6))
    """

    output: OutputCourse
    attention: AttentionCourse


class Joint(NamedTuple):
    """What :func:`joint` returns: the courses of both matrices, at the same records.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory.next_token import Rule, joint
        >>> data = NextTokenData.from_words(
        ...     ["fox", "hen", "eats", "hen fox eats"], ["runs", "clucks", "much", "runs"]
        ... )
        >>> trained = joint(data, Rule(0.05), steps=100)
        >>> trained.output.W.shape[-2:], trained.attention.W.shape[-2:]
        ((6, 6), (6, 6))
    """

    output: OutputCourse
    attention: AttentionCourse


def output_stage(
    data: Data,
    rule: Rule,
    steps: int,
    *,
    init: ArrayLike | None = None,
    records: Records = RECORDS,
    watch: bool = False,
) -> OutputCourse:
    r"""Stage 1: descent on :math:`L_0(W_{ov})=-\sum_x\pi_x\log\mathrm{softmax}(W_{ov}e_x)_{y}` over
    the sentences of one token.

    Args:
        data: one data set, or one per run.
        rule: normalised or plain.
        steps: how many.
        init: ``(classes, d)`` or ``(runs, classes, d)``, zero when left out; ``classes`` is K.
        records: when to look.
        watch: count the steps at which the loss rose.

    Raises:
        InputError: no sentence of one token in some run, Polyak's rule, or an init of another
            shape.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory.next_token import Rule, output_stage
        >>> data = NextTokenData.from_words(
        ...     ["fox", "hen", "eats", "hen fox eats"], ["runs", "clucks", "much", "runs"]
        ... )
        >>> course = output_stage(data, Rule(0.05), steps=500)
        >>> bool(course.loss[-1, 0] < course.loss[0, 0])
        True
    """
    sets = (data,) if isinstance(data, NextTokenData) else tuple(data)
    if rule.polyak is not None:
        raise InputError(
            "Polyak's rule is not offered for the output matrix; use a normalised or plain rule"
        )
    singles = [_singles(run, one) for run, one in enumerate(sets)]
    E = np.stack([one.embeddings for one in sets])
    x = np.concatenate([one.queries for one in singles])
    y = np.concatenate([one.labels for one in singles])
    log_weight = np.log(np.concatenate([one.weights for one in singles]))
    run_start = np.concatenate([[0], np.cumsum([one.N for one in singles])])
    runs, K, d = E.shape
    W0 = _start("init", init, (runs, K, d))
    each = np.arange(len(x) + 1)
    made = compiled_runs.corpus(
        (x, np.zeros(len(x)), each, run_start), (x, each[:-1], y, log_weight), E @ E.mT, K
    )
    marks = records.steps(steps)
    looks = np.zeros((runs, len(marks), K, K))
    arrays = {
        "B": np.zeros((runs, K, K)),
        "values": np.ascontiguousarray(output_values(W0, E)),
        "B_records": looks,
        **rule.of_runs(runs),
    }
    course = native.SentenceDescent(made, marks, arrays, **rule.settings(watch))
    ends = compiled_runs.share_runs(native.library.train_output, made, course)
    W = W0 + looks.swapaxes(0, 1).mT @ E
    loss = np.zeros((len(marks), runs))
    table = np.ascontiguousarray(output_values(W, E))
    addresses = (array.ctypes.data for array in (table, loss, compiled_runs.room(made)))
    native.library.output_losses(made, len(marks), runs, *addresses)
    return OutputCourse(marks, W, ends[:, 0], ends[:, 1] if watch else None, loss=loss)


def attention_stage(
    problem: Problem,
    rule: Rule,
    steps: int,
    *,
    init: ArrayLike | None = None,
    records: Records = RECORDS,
    watch: bool = False,
    textbook: bool = False,
) -> AttentionCourse:
    """Descent on the query-key matrix with the values fixed: stage 2, and every experiment on
    attention alone.

    Args:
        problem: see :meth:`Problem.of`.
        rule: see :class:`Rule`; for other norms, momentum and factors see :func:`steepest_stage`
            and :func:`factored_stage`.
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
        >>> from attsvm.theory.next_token import Problem, Rule, attention_stage
        >>> data = priority_graph(n=4, T=3, K=5, d=6, seed=0, cyclic=False)
        >>> course = attention_stage(Problem.of(data, "log_mass"), Rule(0.05), steps=2000)
        >>> solution = attsvm.graph_svm(data).solution
        >>> bool(course.cosine(solution)[-1, 0] > 0.99)
        True
    """
    if textbook and problem.loss != "cross_entropy":
        raise InputError(
            f"the textbook gradient is written for cross_entropy, not {problem.loss}; leave"
            " textbook out"
        )
    runs, K, d = problem.embeddings.shape
    W0 = _start("init", init, (runs, d, d))
    marks = records.steps(steps)
    looks = np.zeros((runs, len(marks), K, K))
    arrays = {
        "A": np.zeros((runs, K, K)),
        "scores": np.ascontiguousarray(problem.scores(W0)),
        "values": np.ascontiguousarray(problem.values, np.float64),
        "A_records": looks,
        **rule.of_runs(runs),
    }
    settings = {**rule.settings(watch), "loss": LOSSES[problem.loss], "textbook": textbook}
    made = problem.corpus(problem.values.shape[-1])
    course = native.SentenceDescent(made, marks, arrays, **settings)
    ends = compiled_runs.share_runs(native.library.train_attention, made, course)
    W = W0 + problem.weights(looks.swapaxes(0, 1))
    rises = ends[:, 1] if watch else None
    return AttentionCourse(marks, W, ends[:, 0], rises, problem=problem)


def two_stage(
    data: Data,
    output: Rule,
    attention: Rule,
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
        >>> from attsvm.theory.next_token import Rule, two_stage
        >>> data = NextTokenData.from_words(
        ...     ["fox", "hen", "eats", "hen fox eats"], ["runs", "clucks", "much", "runs"]
        ... )
        >>> import attsvm
        >>> trained = two_stage(data, Rule(0.05), Rule(0.05), steps=(500, 2000))
        >>> solution = attsvm.max_margin(attsvm.order_margins(data))
        >>> bool(trained.attention.cosine(solution)[-1, 0] > 0.99)
        True
    """
    first = output_stage(data, output, steps[0], init=init[0], records=records, watch=watch)
    sets = [data] if isinstance(data, NextTokenData) else list(data)
    longer = [_longer(run, one) for run, one in enumerate(sets)]
    problem = Problem.of(
        longer, values=output_values(first.W[-1], np.stack([one.embeddings for one in sets]))
    )
    second = attention_stage(
        problem, attention, steps[1], init=init[1], records=records, watch=watch, textbook=textbook
    )
    return TwoStages(first, second)


def joint(
    data: Data,
    rule: Rule,
    steps: int,
    *,
    output_lr: float | None = None,
    norm: Literal["block", "joint"] = "block",
    init: tuple[ArrayLike | None, ArrayLike | None] = (None, None),
    records: Records = RECORDS,
) -> Joint:
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
        >>> from attsvm.theory.next_token import Rule, joint
        >>> data = NextTokenData.from_words(
        ...     ["fox", "hen", "eats", "hen fox eats"], ["runs", "clucks", "much", "runs"]
        ... )
        >>> import attsvm
        >>> trained = joint(data, Rule(0.05), steps=2000)
        >>> solution = attsvm.max_margin(attsvm.order_margins(data))
        >>> bool(trained.attention.cosine(solution)[-1, 0] > 0.9)
        True
    """
    if rule.code != compiled_runs.NORMALIZED:
        raise InputError(
            "joint training takes normalised steps; use a Rule with normalize=True and no polyak"
        )
    if norm not in ("block", "joint"):
        raise InputError(f"norm is {norm!r}; use 'block' or 'joint'")
    problem = Problem.of(data)
    E = problem.embeddings
    runs, K, d = E.shape
    V0, W0 = _start("init[0]", init[0], (runs, K, d)), _start("init[1]", init[1], (runs, d, d))
    marks = records.steps(steps)
    looks, outputs = np.zeros((2, runs, len(marks), K, K))
    of_runs = rule.of_runs(runs)
    arrays = {
        "A": np.zeros((runs, K, K)),
        "scores": np.ascontiguousarray(problem.scores(W0)),
        "B": np.zeros((runs, K, K)),
        "values": np.ascontiguousarray(output_values(V0, E)),
        "A_records": looks,
        "B_records": outputs,
        "lr_output": of_runs["lr"] if output_lr is None else np.full(runs, float(output_lr)),
        **of_runs,
    }
    made = problem.corpus(K)
    course = native.SentenceDescent(
        made, marks, arrays, joint_norm=norm == "joint", **rule.settings()
    )
    ends = compiled_runs.share_runs(native.library.train_both, made, course)
    W, V = W0 + problem.weights(looks.swapaxes(0, 1)), V0 + outputs.swapaxes(0, 1).mT @ E
    attention = AttentionCourse(marks, W, ends[:, 0], problem=problem, values=output_values(V, E))
    return Joint(OutputCourse(marks, V, ends[:, 0], loss=attention.loss), attention)


def _start(name: str, init: ArrayLike | None, shape: tuple[int, int, int]) -> FloatArray:
    return np.zeros(shape) if init is None else spread(name, init, shape, 2)


def _singles(run: int, data: NextTokenData) -> NextTokenData:
    if not (data.lengths == 1).any():
        raise InputError(
            f"data set {run} has no sentence of one token; the output matrix is trained on those"
        )
    return data.select(data.lengths == 1)


def _longer(run: int, data: NextTokenData) -> NextTokenData:
    if not (data.lengths > 1).any():
        raise NoAttentionSignalError(
            f"every sentence of data set {run} has a single token; attention needs sentences of two"
            " distinct tokens"
        )
    return data.select(data.lengths > 1)


def steepest_stage(
    problem: Problem,
    norm: Norm | str,
    rule: Rule,
    steps: int,
    *,
    momentum: float = 0.0,
    init: ArrayLike | None = None,
    records: Records = RECORDS,
) -> AttentionCourse:
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
        >>> from attsvm.theory.next_token import Problem, Rule, steepest_stage
        >>> data = priority_graph(n=4, T=3, K=5, d=6, seed=0, cyclic=False)
        >>> problem = Problem.of(data, "log_mass")
        >>> course = steepest_stage(problem, "spec", Rule(0.05), steps=200)
        >>> bool(course.loss[-1, 0] < course.loss[0, 0])
        True
    """
    runs, _, d = problem.embeddings.shape
    W = _start("init", init, (runs, d, d))
    marks, looks, stopped = _descend(problem.gradient, W, norm, rule, steps, momentum, records)
    return AttentionCourse(marks, looks, stopped, problem=problem)


def factored_stage(
    problem: Problem,
    rule: Rule,
    steps: int,
    *,
    init: tuple[ArrayLike, ArrayLike],
    norm: Norm | str | None = None,
    momentum: float = 0.0,
    records: Records = RECORDS,
) -> AttentionCourse:
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
        The course of W; ``factors`` holds those of K and Q.

    Raises:
        InputError: factors of other shapes, or the errors of :func:`steepest_stage`.

    Example:
        >>> import attsvm
        >>> from attsvm.theory.sentences import priority_graph
        >>> from attsvm.theory.next_token import Problem, Rule, factored_stage
        >>> data = priority_graph(n=4, T=3, K=5, d=6, seed=0, cyclic=False)
        >>> import numpy as np
        >>> start = (0.1 * np.eye(data.d), 0.1 * np.eye(data.d))
        >>> course = factored_stage(Problem.of(data, "log_mass"), Rule(0.05), 200, init=start)
        >>> bool(course.loss[-1, 0] < course.loss[0, 0])
        True
    """
    runs, _, d = problem.embeddings.shape
    m = np.asarray(init[0]).shape[-1]
    K, Q = (_start(f"init[{k}]", start, (runs, d, m)) for k, start in enumerate(init))

    def gradient(pair: FloatArray) -> tuple[FloatArray, FloatArray]:
        K, Q = pair[:, :d], pair[:, d:]
        G, log_scale = problem.gradient(K @ Q.mT)
        return np.concatenate([G @ Q, G.mT @ K], axis=-2), log_scale

    marks, looks, stopped = _descend(
        gradient,
        np.concatenate([K, Q], axis=-2),
        norm,
        rule,
        steps,
        momentum,
        records,
    )
    K, Q = looks[..., :d, :], looks[..., d:, :]
    return AttentionCourse(marks, K @ Q.mT, stopped, problem=problem, factors={"K": K, "Q": Q})


def _descend(
    gradient: Gradient,
    W: FloatArray,
    norm: Norm | str | None,
    rule: Rule,
    steps: int,
    momentum: float,
    records: Records,
) -> tuple[IntArray, FloatArray, IntArray]:
    if not rule.normalize or rule.polyak is not None:
        raise InputError(
            "steepest descent in a norm takes normalised steps here; use a Rule with normalize=True"
            " and no polyak"
        )
    if not 0.0 <= momentum < 1.0:
        raise InputError(f"momentum is {momentum}; give 0 <= momentum < 1")
    rates, marks = rule.rates(len(W)), records.steps(steps)
    looks, stopped = descend(
        gradient,
        W,
        Steepest(as_norm(norm), momentum),
        lambda t: rates / (t + 1.0) ** rule.decay,
        marks,
    )
    return marks, looks, stopped
