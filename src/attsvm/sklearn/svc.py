"""AttentionSVC: bags of instances in, a classifier with its evidence and its margin out."""

from __future__ import annotations

import hashlib
import os
import warnings
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import compute_sample_weight
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from attsvm.bags import Bags, as_bags, bag_labels
from attsvm.data import AttentionData, BoolArray, FloatArray, IntArray, axes, given_away
from attsvm.dynamics import Trajectory, direction_gap
from attsvm.errors import InputError
from attsvm.fitting import LONGEST_STEP, layers
from attsvm.fitting.descent_of_norm import (
    check_step,
    descent_kind,
    joint_descent,
    selection_descent,
    step_length,
)
from attsvm.fitting.layers import Layer, PooledLayer, Reading
from attsvm.fitting.pooling import PooledHead, logistic_loss, mean_pooling
from attsvm.fitting.predicting import (
    Predictor,
    Table,
    against_rest,
    calibration,
    fit_pooled,
    fit_witnesses,
    margin_values,
)
from attsvm.fitting.preparation import (
    check_selectable,
    check_units,
    joint_steps,
    root_mean_square,
    selection_steps,
    split,
)
from attsvm.fitting.stage import Progress, Weights, no_longer_falling, run_stage
from attsvm.fitting.witness import CONSTANT
from attsvm.geometry import Frobenius, Norm, as_norm
from attsvm.margins import selection_margins
from attsvm.progress import reporter
from attsvm.queries import table_queries
from attsvm.sklearn.features import TakesBags
from attsvm.solvers import MarginSolution, max_margin
from attsvm.store import Stages, fingerprint, versions
from attsvm.store.code import code_fingerprint


class ParameterError(InputError, InvalidParameterError):  # type: ignore[misc]
    """A parameter that scikit-learn's declared constraints refuse, in scikit-learn's words."""


class AttentionSVC(TakesBags, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""A softmax-attention classifier of bags that names the instances that decide, and certifies
    its margin.

    What makes a bag positive is an assumption, and the model keeps the one that is chosen:

    * ``collective``: all instances have a say,
      :math:`f(X, z) = v^\top X^\top\mathrm{softmax}(X W z) + b`. Training starts from mean pooling
      (:math:`W=0`). Without a ``penalty`` :math:`W` and head are trained by normalised gradient
      descent, the step chosen on bags kept aside. With one, or for several ``heads``, more than two
      classes or weighted bags, the penalised loss is minimised, the penalty chosen on bags left out
      in turn (:mod:`attsvm.fitting.penalised`).
    * ``standard``: a bag is positive because it holds a witness, and a negative bag holds none.
      Attention includes a null token, so that no instance can speak against a witness beside it
      (:mod:`attsvm.fitting.witness`). Selection and certified convex steps alternate; the end is a
      local optimum.

    With ``explain=True`` two stages follow the predictor:

    1. *selection* (``collective``): the head stays, scaled to unit norm, :math:`W` goes on by the
       descent that belongs to ``norm`` (:mod:`attsvm.fitting.descent_of_norm`) until each bag
       selects one instance. With ``standard`` the selection is the predictor's: the witness of a
       positive bag, the null token of a negative one;
    2. *margin*: the max-margin programme of these selections is solved in that norm, with a
       certificate.

    They cost minutes on thousands of bags; the predictor takes seconds. Instances and queries are
    divided by their root-mean-square norms inside, so nothing depends on units; all fitted weights
    are in the units of the data. :meth:`fit` warns of parameters that were given and that it does
    not read.

    Args:
        assumption: see above.
        pooling: ``soft``: attention; ``hard``: the one instance with the most attention; ``margin``
            (``collective`` with ``explain``): the instance that the max-margin weights select.
        norm: the geometry of selection and margin, a :class:`~attsvm.geometry.Norm` or its name on
            the command line (``lp:1.75``).
        query: how to make the query of a bag: ``constant`` is ``[1]``, ``first`` is the first
            instance, ``mean`` is ``[1, m / |m|] / sqrt(2)`` for the mean
            instance ``m``; None for ``mean`` in joint training and ``constant`` with a penalty. Not
            used for :class:`~attsvm.AttentionData`, which has its own, nor with ``standard``.
        heads: attention heads. ``collective`` adds them, and 0 is uniform attention, which is mean
            pooling; with ``standard`` and two classes a positive bag needs a witness of each.
        penalty: on the weights, relative to the mean loss of a bag; ``"cv"`` chooses it on bags
            left out. None is ``"cv"`` with ``standard``.
        class_weight: weights of the classes, ``"balanced"``, or None.
        explain: whether selection and margin follow the predictor.
        reject: bags whose decision value is closer to the runner-up class than this are rejected.
        joint_steps: steps of joint training (``collective`` without penalty); ``None`` for 30 to
            300, about five seconds of one core, and no more once the validation loss has stopped
            falling.
        joint_lr: length of a step of ``W`` in joint training.
        head_lr: length of a step of the head in joint training.
        selection_steps: steps of the selection stage; ``None`` for 100 to 20000, about ten
            seconds of one core.
        lr: length of a step of the selection stage, in the norm: after N steps the weights (for
            normalised tokens and queries) have grown to at most N times that. ``None`` for
            :func:`attsvm.fitting.descent_of_norm.step_length`.
        validation_size: share of the bags kept aside to choose the step of joint training.
        slack: penalty C of the soft margin, used only when the hard margin is infeasible. Norms of
            singular values have no soft margin here, and are then ``infeasible``.
        tol: relative duality gap asked of the max-margin solution; ``None`` for the default of
            :func:`~attsvm.max_margin`.
        solve_seconds: time after which the solver hands over the best certified weights it has, as
            ``inaccurate`` (the one place where a result may depend on the clock).
        records: records of each training stage, log-spaced.
        merge_duplicates: leave repeated instances of a bag out of training. With ``explain`` they
            are refused otherwise, because equal instances can never be told apart.
        random_state: seed of splits and starts.
        checkpoint: folder in which unfinished stages are kept, so that the same call goes on after
            a kill and ends with the same bits.
        checkpoint_seconds: time between two writes of unfinished work.
        progress: True for bars on standard error; or a function that is called with stage name,
            steps done, steps in all.

    Attributes:
        classes_: the labels; of two, the negative one first.
        n_features_in_: features of an instance.
        predictor_: the :class:`~attsvm.fitting.predicting.Predictor` with its penalty, its losses
            on bags left out and its certified convex steps; None after joint training.
        convex_steps_: the :class:`~attsvm.fitting.minimise.ConvexStep` of the final weights, each
            with status, gap and violation.
        optimum_: ``global`` where the predictor's problem is convex, else ``local``; ``none`` after
            joint training, which stops early.
        calibration_: slope of the logistic function of :meth:`predict_proba`.
        margins_: ``(n,)``: decision value of each training bag's class above that of the others, by
            models that did not see the bag where there are any.
        instance_margins_: for each training bag, the signed distance of each of its instances from
            the decision boundary, in the units of the data, positive on the side of the bag.
        rejects_: positions of the training bags with ``margins_`` below ``reject``.
        train_indices_, validation_indices_: which bags were trained on.
        weights_: :class:`~attsvm.fitting.stage.Weights` of the predictor (``collective`` with one
            head and two classes).
        baseline_, joint_trajectory_, best_step_: the mean-pooling head, the records of joint
            training and the step that was kept (``collective`` without penalty).
        unit_: root-mean-square norm of the instances times that of the queries.
        query_: how queries are made.
        norm_: the :class:`~attsvm.geometry.Norm` of selection and margin.
        solution_: with ``explain``: the :class:`~attsvm.MarginSolution` of the selected instances.
            With ``standard`` its tokens are the instances with a constant feature of four times
            their root-mean-square norm, and the null token at the end.
        status_, margin_: its status and margin.
        selected_tokens_: ``(n,)``, position of the selected instance of every training bag.
        support_tokens_: ``(k, 2)``, bag and instance of every support constraint, by falling dual.
        lr_, selection_weights_, trajectory_, direction_gap_: of the selection stage: step length,
            final weights, records (``W`` in them is ``unit_`` times that of the data's units), and
            one minus the cosine between ``selection_weights_.W`` and ``solution_.W``.
    """

    _parameter_constraints = {  # noqa: RUF012 - the name and form that scikit-learn looks for
        "assumption": [StrOptions({"collective", "standard"})],
        "pooling": [StrOptions({"soft", "hard", "margin"})],
        "norm": [str, Norm],
        "query": [StrOptions({"mean", "constant", "first"}), None],
        "heads": [Interval(Integral, 0, None, closed="left")],
        "penalty": [Interval(Real, 0.0, None, closed="neither"), StrOptions({"cv"}), None],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "explain": ["boolean"],
        "reject": [Interval(Real, None, None, closed="neither")],
        "joint_steps": [Interval(Integral, 1, None, closed="left"), None],
        "joint_lr": [Interval(Real, 0.0, LONGEST_STEP, closed="right")],
        "head_lr": [Interval(Real, 0.0, LONGEST_STEP, closed="right")],
        "selection_steps": [Interval(Integral, 1, None, closed="left"), None],
        "lr": [Interval(Real, 0.0, LONGEST_STEP, closed="right"), None],
        "validation_size": [Interval(Real, 0.0, 1.0, closed="neither")],
        "slack": [Interval(Real, 0.0, None, closed="neither")],
        "tol": [Interval(Real, 0.0, None, closed="neither"), None],
        "solve_seconds": [Interval(Real, 0.0, None, closed="neither")],
        "records": [Interval(Integral, 1, None, closed="left")],
        "merge_duplicates": ["boolean"],
        "random_state": [Interval(Integral, 0, 2**32 - 1, closed="both")],
        "checkpoint": [str, os.PathLike, None],
        "checkpoint_seconds": [Interval(Real, 0.0, None, closed="neither")],
        "progress": [callable, "boolean", None],
    }

    def __init__(
        self,
        *,
        assumption: Literal["collective", "standard"] = "collective",
        pooling: Literal["soft", "hard", "margin"] = "soft",
        norm: str | Norm = "fro",
        query: Literal["mean", "constant", "first"] | None = None,
        heads: int = 1,
        penalty: float | Literal["cv"] | None = None,
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        explain: bool = False,
        reject: float = 0.0,
        joint_steps: int | None = None,
        joint_lr: float = 0.1,
        head_lr: float = 0.1,
        selection_steps: int | None = None,
        lr: float | None = None,
        validation_size: float = 0.15,
        slack: float = 1.0,
        tol: float | None = None,
        solve_seconds: float = 600.0,
        records: int = 60,
        merge_duplicates: bool = False,
        random_state: int = 0,
        checkpoint: str | Path | None = None,
        checkpoint_seconds: float = 5.0,
        progress: Progress | bool | None = None,
    ) -> None:
        self.assumption = assumption
        self.pooling = pooling
        self.norm = norm
        self.query = query
        self.heads = heads
        self.penalty = penalty
        self.class_weight = class_weight
        self.explain = explain
        self.reject = reject
        self.joint_steps = joint_steps
        self.joint_lr = joint_lr
        self.head_lr = head_lr
        self.selection_steps = selection_steps
        self.lr = lr
        self.validation_size = validation_size
        self.slack = slack
        self.tol = tol
        self.solve_seconds = solve_seconds
        self.records = records
        self.merge_duplicates = merge_duplicates
        self.random_state = random_state
        self.checkpoint = checkpoint
        self.checkpoint_seconds = checkpoint_seconds
        self.progress = progress

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> AttentionSVC:
        """Fit to bags of instances.

        Args:
            X: bags in any form that :func:`attsvm.bags.as_bags` takes: a list of ``(T_i, d_x)``
                arrays, one ``(n, T, d_x)`` array, ``(N, d_x)`` rows with ``groups``,
                :class:`~attsvm.AttentionData`, bags of other libraries.
            y: ``(n,)`` labels of the bags, of two classes or more; None for those that came with
                the bags. With ``groups``, in the order in which bags first appear.
            groups: ``(N,)``: the bag of each row.
            sample_weight: ``(n,)`` weights of the bags.

        Raises:
            InputError: unusable bags or labels, one class only; with ``explain`` also one instance
                in every bag, repeated instances, a norm that has no descent.

        Warns:
            UserWarning: parameters that were given and that this fit does not read.
        """
        prepared = self._prepared(X, y, groups, sample_weight)
        bags, places, queries, labels, shares, data, joint, parts = prepared
        self.n_features_in_ = bags.d
        self.train_indices_, self.validation_indices_ = parts
        if idle := self._idle(joint, isinstance(X, AttentionData)):
            warnings.warn(f"{idle}; leave them out, or fit another way", stacklevel=2)
        for name in [*_EXPLAINED, "weights_", "baseline_", "joint_trajectory_", "best_step_"]:
            self.__dict__.pop(name, None)
        stages = Stages(None, "")
        if self.checkpoint is not None and data is not None:
            stages = Stages(Path(self.checkpoint), self._key(data))
        tokens, z = root_mean_square(bags.rows), root_mean_square(queries)
        self.unit_ = tokens * z
        soft: Weights | None = None
        scaled: AttentionData | None = None
        if data is not None and self.assumption == "collective":
            scaled = AttentionData(
                given_away(data.tokens / tokens), data.labels, data.queries / z, data.mask
            )
        if joint:
            assert scaled is not None
            soft = self._joint(scaled, stages, tokens, z)
        else:
            self._predictor(bags, queries, labels, shares)
            if hasattr(self, "weights_"):
                soft = self.weights_.rescaled(1 / tokens, 1 / z)
        self._describe(bags, queries, labels)
        if self.explain:
            assert data is not None
            if self.assumption == "standard":
                self._certify_witnesses(bags, places, labels)
            else:
                assert soft is not None
                assert scaled is not None
                length = float(np.linalg.norm(soft.head)) or 1.0
                unit = Weights(soft.W, soft.head / length, soft.intercept / length)
                hard = self._select(scaled.take(self.train_indices_), unit, stages)
                self.selection_weights_ = hard.rescaled(tokens, z)
                self._certify(data)
        return self

    def _predictor(
        self, bags: Bags, queries: FloatArray, labels: IntArray, shares: FloatArray
    ) -> None:
        progress = reporter(self.progress)

        def tick(done: int, total: int) -> None:
            if progress is not None:
                progress("predictor", done, total)

        table = Table(
            bags.rows, bags.offsets, queries, labels, len(self.classes_), shares, self._seed, tick
        )
        asked = self.penalty if isinstance(self.penalty, Real) else None
        if self.assumption == "standard":
            found = fit_witnesses(table, self.heads, self.pooling != "soft", asked)
        else:
            found = fit_pooled(table, self.heads, self.pooling != "soft", asked)
            layer = cast(PooledLayer, found.layer)
            if layer.W.shape[0] == layer.V.shape[2] == 1:
                self.weights_ = Weights(
                    layer.W[0], layer.V[0, :, 0].copy(), float(layer.intercept[0])
                )
        self.predictor_: Predictor | None = found
        self.convex_steps_ = found.steps
        self.optimum_ = "global" if found.convex else "local"

    def _describe(self, bags: Bags, queries: FloatArray, labels: IntArray) -> None:
        """Calibration, margins and rejects of the training bags."""
        layer = self._layer()
        values = layer.read(bags.rows, bags.offsets, queries).values
        unseen = values.copy()
        seen_late = self.validation_indices_
        if self.predictor_ is not None:
            seen_late = np.flatnonzero(~np.isnan(self.predictor_.left_out[:, 0]))
            unseen[seen_late] = self.predictor_.left_out[seen_late]
        self.calibration_ = calibration(unseen[seen_late], labels[seen_late], shift=False).slope
        self.margins_ = margin_values(unseen, labels)
        self.rejects_ = np.flatnonzero(self.margins_ < self.reject)
        alone = layer.alone(bags.rows) / np.where(layer.size() > 0, layer.size(), 1.0)
        distances = margin_values(alone, labels[bags.bag])
        self.instance_margins_ = np.split(distances, bags.offsets[1:-1])

    def _joint(self, scaled: AttentionData, stages: Stages, tokens: float, z: float) -> Weights:
        """Weights for tokens and queries of norm one, by normalised descent from mean pooling."""
        train, validation = scaled.take(self.train_indices_), scaled.take(self.validation_indices_)
        pooled = mean_pooling(train, validation)
        start = Weights(np.zeros((scaled.d_x, scaled.d_z)), pooled.coef, pooled.intercept)

        def observe(
            step: int, W: FloatArray, head: FloatArray, intercept: FloatArray
        ) -> dict[str, Any]:
            values = layers.soft_values(validation, W, head, float(intercept))
            return {
                "validation_loss": np.float64(logistic_loss(validation.labels, values)),
                "validation_accuracy": np.float64(np.mean((values > 0) == (validation.labels > 0))),
            }

        joint = run_stage(
            "joint",
            train,
            *joint_descent(train, start, self.joint_lr, self.head_lr),
            steps=self.joint_steps or joint_steps(train),
            stop=None if self.joint_steps else no_longer_falling("validation_loss"),
            records=self.records,
            stages=stages,
            checkpoint_seconds=self.checkpoint_seconds,
            progress=reporter(self.progress),
            observe=observe,
        )
        best = int(np.argmin(joint.observed["validation_loss"]))
        self.best_step_ = int(joint.steps[best])
        self.joint_trajectory_: Trajectory = joint
        self.baseline_ = PooledHead(
            pooled.coef / tokens, pooled.intercept, pooled.C * tokens**2, pooled.validation_loss
        )
        soft = Weights(joint.W[best], joint.head[best], float(joint.intercept[best]))
        self.weights_ = soft.rescaled(tokens, z)
        self.predictor_, self.convex_steps_, self.optimum_ = None, [], "none"
        return soft

    def _select(self, train: AttentionData, soft: Weights, stages: Stages) -> Weights:
        steps = self.selection_steps or selection_steps(train)
        if (progress := reporter(self.progress)) is not None:
            progress("selection", 0, steps)
        self.lr_ = step_length(self.norm_, train) if self.lr is None else self.lr
        self.trajectory_ = run_stage(
            "selection",
            train,
            *selection_descent(self.norm_, train, soft, self.lr_, steps),
            steps=steps,
            records=self.records,
            stages=stages,
            checkpoint_seconds=self.checkpoint_seconds,
            progress=progress,
        )
        return Weights(self.trajectory_.W[-1], soft.head, soft.intercept)

    def _certify(self, data: AttentionData) -> None:
        W = self.selection_weights_.W
        self.selected_tokens_: IntArray = layers.selected_tokens(data, W)
        self._solve(data, self.selected_tokens_, self.train_indices_)
        self.direction_gap_ = float(direction_gap(W, self.solution_.W))

    def _certify_witnesses(self, bags: Bags, places: IntArray, labels: IntArray) -> None:
        """The margin programme of witnesses and null tokens."""
        constant = np.full((len(bags.rows), 1), CONSTANT * root_mean_square(bags.rows))
        ends, nulls = bags.offsets[1:], places[bags.offsets[1:] - 1] + 1
        tokens = np.insert(np.hstack([bags.rows, constant]), ends, 0.0, axis=0)
        offsets = bags.offsets + np.arange(bags.n + 1)
        wide = Bags(tokens, offsets, None, np.arange(len(tokens)))
        queries = np.ones((bags.n, 1))
        data = _padded(wide, np.insert(places, ends, nulls), labels, queries)
        read = self._layer().read(bags.rows, bags.offsets, queries)
        self.selected_tokens_ = places[bags.offsets[:-1] + read.selected[:, 0]]
        selected = np.where(labels > 0, self.selected_tokens_, nulls)
        self._solve(data, selected, np.arange(bags.n))

    def _solve(self, data: AttentionData, selected: IntArray, indices: IntArray) -> None:
        if (progress := reporter(self.progress)) is not None:
            progress("margin", 0, 1)
        margins = selection_margins(data.take(indices), selected[indices])
        solution: MarginSolution = max_margin(
            margins, self.norm_, tol=self.tol, max_seconds=self.solve_seconds
        )
        if solution.status in ("infeasible", "almost infeasible"):
            solution = max_margin(
                margins, self.norm_, tol=self.tol, slack=self.slack, max_seconds=self.solve_seconds
            )
        if progress is not None:
            progress("margin", 1, 1)
        self.solution_ = solution
        self.status_, self.margin_ = solution.status, solution.margin
        support = solution.support_tokens()
        self.support_tokens_ = np.column_stack([indices[support[:, 0]], support[:, 1]])

    def _layer(self) -> Layer:
        """The model that predicts, with the ``pooling`` asked for now."""
        if self.pooling == "margin" and not hasattr(self, "selection_weights_"):
            raise InputError(_NO_MARGIN)
        if self.assumption == "standard":
            assert self.predictor_ is not None
            return self.predictor_.layer
        soft = getattr(self, "weights_", None)
        if self.pooling != "soft" and hasattr(self, "selection_weights_"):
            hard = self.selection_weights_
            W = self.solution_.W if self.pooling == "margin" else hard.W
            return _single(Weights(W, hard.head, hard.intercept), hard=True)
        if self.predictor_ is not None:
            return self.predictor_.layer
        assert soft is not None
        return _single(soft, hard=self.pooling == "hard")

    def _read(self, X: Any, groups: ArrayLike | None) -> tuple[Bags, Reading]:
        bags, queries = self._unlabelled(X, groups)
        return bags, self._layer().read(bags.rows, bags.offsets, queries)

    def decision_function(self, X: Any, *, groups: ArrayLike | None = None) -> FloatArray:
        """``(n,)`` values; positive means ``classes_[1]``. Of three classes or more, ``(n, K)``."""
        return _one_column(self._read(X, groups)[1].values)

    def decision_function_instances(
        self, X: Any, *, groups: ArrayLike | None = None
    ) -> list[FloatArray]:
        """For each bag ``(T_i,)`` values of its instances, each as a bag of its own; of three
        classes or more, ``(T_i, K)``.
        """
        bags, _ = self._unlabelled(X, groups)
        return np.split(_one_column(self._layer().alone(bags.rows)), bags.offsets[1:-1])

    def attention(self, X: Any, *, groups: ArrayLike | None = None) -> list[FloatArray]:
        """For each bag the attention of the model that predicts, ``(T_i,)``, summing to one; of
        several heads ``(T_i, heads)``. With ``standard`` it is the share of each instance in being
        the witness.
        """
        bags, read = self._read(X, groups)
        return np.split(_one_column(read.attention), bags.offsets[1:-1])

    def contributions(self, X: Any, *, groups: ArrayLike | None = None) -> list[FloatArray]:
        """For each bag ``(T_i,)`` parts of its decision value, which they sum to; of three classes
        or more, ``(T_i, K)``. ``collective``: attention times the value of the instance;
        ``standard``: attention times the value of the bag.
        """
        bags, read = self._read(X, groups)
        return np.split(_one_column(read.contributions), bags.offsets[1:-1])

    def predict(self, X: Any, *, groups: ArrayLike | None = None) -> np.ndarray[Any, Any]:
        """``(n,)`` labels out of ``classes_``."""
        _, read = self._read(X, groups)
        return self.classes_[_column(read.values)]

    def predict_proba(self, X: Any, *, groups: ArrayLike | None = None) -> FloatArray:
        """``(n, K)`` probabilities: the logistic function of ``calibration_`` times the decision
        values (softmax of three classes or more); the slope is fitted to bags left out.
        """
        _, read = self._read(X, groups)
        values = self.calibration_ * read.values
        if values.shape[1] == 1:
            values = np.hstack([np.zeros_like(values), values])
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def select(self, X: Any, *, groups: ArrayLike | None = None) -> IntArray:
        """``(n,)`` positions of the instances that decide: the one that contributes most to the
        predicted class (``collective``, soft), the one selected (hard), or the likeliest witness
        (``standard``).
        """
        bags, read = self._read(X, groups)
        return _places(X, bags)[bags.offsets[:-1] + _selected(read)]

    def evidence(self, X: Any, instances: int = 1, *, groups: ArrayLike | None = None) -> Evidence:
        """What speaks for each prediction, and whether it suffices.

        Args:
            X: bags.
            instances: how many instances of a bag are selected, by falling contribution to the
                predicted class.
            groups: the bag of each row, when ``X`` is a table.
        """
        if instances < 1:
            raise InputError(f"instances is {instances}; give at least 1")
        given = isinstance(X, AttentionData)
        bags, queries = self._unlabelled(X, groups)
        layer = self._layer()
        read = layer.read(bags.rows, bags.offsets, queries)
        column = _column(read.values)
        weight = _toward(read, column, bags)
        order = np.lexsort([-weight, bags.bag])
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order)) - np.repeat(bags.offsets[:-1], bags.lengths)
        chosen = rank < instances
        alone = self._part(layer, bags, queries if given else None, chosen)
        without = self._part(layer, bags, queries if given else None, ~chosen)
        other = _other_pooling(layer).read(bags.rows, bags.offsets, queries).values
        two = np.hstack([-read.values, read.values]) if read.values.shape[1] == 1 else read.values
        single = layer.alone(bags.rows)
        single = np.hstack([-single, single]) if single.shape[1] == 1 else single
        best = np.maximum.reduceat(single, bags.offsets[:-1], axis=0)
        margin = against_rest(two, column) / (2.0 if read.values.shape[1] == 1 else 1.0)
        first = _places(X, bags)[order]
        return Evidence(
            [part[:instances] for part in np.split(first, bags.offsets[1:-1])],
            margin,
            alone == column,
            without != column,
            _column(other) == column,
            against_rest(best, column),
            margin < self.reject,
        )

    def _part(
        self, layer: Layer, bags: Bags, queries: FloatArray | None, keep: np.ndarray[Any, Any]
    ) -> IntArray:
        """``(n,)`` predicted columns of the bags with these rows only, -1 where none is left."""
        left = np.add.reduceat(keep.astype(np.int64), bags.offsets[:-1])
        filled = left > 0
        predicted = np.full(bags.n, -1, dtype=np.int64)
        if filled.any():
            rows = bags.rows[keep]
            offsets = np.concatenate([[0], np.cumsum(left[filled])])
            own = table_queries(rows, offsets, self.query_) if queries is None else queries[filled]
            predicted[filled] = _column(layer.read(rows, offsets, own).values)
        return predicted

    def check(
        self,
        X: Any,
        y: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> AttentionSVC:
        """Refuse, before the first step, what :meth:`fit` would refuse with the same arguments.

        Raises:
            InputError: see :meth:`fit`.
        """
        self._prepared(X, y, groups, sample_weight)
        return self

    def _prepared(self, X: Any, y: ArrayLike | None, groups: Any, sample_weight: Any) -> _Prepared:
        """What a fit starts from, checked."""
        try:
            self._validate_params()
        except InvalidParameterError as error:
            raise ParameterError(str(error)) from None
        if self.checkpoint is not None and not os.fspath(self.checkpoint):
            raise ParameterError(
                f"The 'checkpoint' parameter of {type(self).__name__} is {self.checkpoint!r}, the"
                " folder that you work in; give another folder, or None"
            )
        if self.pooling == "margin" and not (self.explain and self.assumption == "collective"):
            raise InputError(_NO_MARGIN)
        if self.heads == 0 and self.assumption == "standard":
            raise InputError(
                "heads is 0, uniform attention, which finds no witness; give at least 1"
            )
        given = as_norm(self.norm)
        self.norm_ = Frobenius() if given == Frobenius() else given  # however it was written
        self._seed = int(self.random_state)
        if groups is None and axes(X) == 1 and axes(y) > 1:
            raise InputError("X holds one label per bag and y the bags; call fit(bags, labels)")
        bags = as_bags(X, groups)
        labels = self._classes(bag_labels(y, bags))
        places = _places(X, bags)
        if self.merge_duplicates:
            ones = np.ones(bags.n)
            left = _padded(bags, places, ones, ones[:, None]).without_duplicates()
            bags, places = as_bags(left), _places(left, bags)
        weights = _weights(sample_weight, bags.n) * compute_sample_weight(
            self.class_weight, self.classes_[labels]
        )
        joint = (
            self.assumption == "collective"
            and self.penalty is None
            and self.heads == 1
            and len(self.classes_) == 2
            and bool((weights == weights[0]).all())
        )
        self.query_ = self.query or ("mean" if joint else "constant")
        queries = self._queries(X, bags)
        check_units(bags.rows, queries)
        data: AttentionData | None = None
        if joint or self.explain:
            if isinstance(X, AttentionData) and not self.merge_duplicates:
                data = AttentionData(X.tokens, _signs(labels), X.queries, X.mask)
            else:
                data = _padded(bags, places, labels, queries)
        if self.explain:
            assert data is not None
            self._check_explained(data)
        every = np.arange(bags.n)
        parts = every, every[:0]
        if joint:
            parts = split(_signs(labels), self.validation_size, self._seed, "validation_size")
        elif np.bincount(labels).min() < 2:
            few = self.classes_[np.argmin(np.bincount(labels))]
            raise InputError(f"class {few} has one bag; give at least two of each class")
        shares = weights / weights.sum()
        return _Prepared(bags, places, queries, labels, shares, data, joint, parts)

    def _idle(self, joint: bool, given: bool) -> str:
        """The parameters with a value of their own that this fit does not read, and what would
        read them; empty where there are none.
        """
        collective = self.assumption == "collective"
        explained = bool(self.explain)
        read = {
            "joint": joint,
            "explained": explained,
            "selection": explained and collective,
            "descent": joint or (explained and collective),
            "folder": joint or explained,
            "kept": (joint or explained) and self.checkpoint is not None,
            "queries": collective and self.heads > 0 and not given,
        }
        plain = AttentionSVC().get_params()
        mine = {name: getattr(self, name) for name in plain} | {"norm": self.norm_}
        plain["norm"] = Frobenius()
        told = []
        for stage, (names, reader) in _READERS.items():
            set_here = [name for name in names if mine[name] != plain[name]]
            if set_here and not read[stage]:
                told.append(f"{', '.join(set_here)} without effect: read by {reader} alone")
        return "; ".join(told)

    def _check_explained(self, data: AttentionData) -> None:
        if len(self.classes_) != 2 or self.heads != 1:
            raise InputError(
                f"explain=True needs two classes and one head; there are {len(self.classes_)}"
                f" classes and {self.heads} heads"
            )
        check_selectable(data)
        if self.assumption == "collective":
            descent_kind(self.norm_)
            if self.lr is not None:
                steps = self.selection_steps or selection_steps(data)
                check_step(self.norm_, self.lr, steps)

    def _classes(self, labels: np.ndarray[Any, Any]) -> IntArray:
        """``(n,)`` positions in ``classes_``, which it sets."""
        kind = type_of_target(labels, input_name="y")
        if kind not in ("binary", "multiclass"):
            raise InputError(f"y holds {kind} values; give labels of two classes or more")
        self.classes_, positions = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                f"y holds one class only ({self.classes_[0]}); give bags of two classes or more"
            )
        return np.asarray(positions, dtype=np.int64)

    def _unlabelled(self, X: Any, groups: ArrayLike | None) -> tuple[Bags, FloatArray]:
        check_is_fitted(self)
        bags = as_bags(X, groups)
        if bags.d != self.n_features_in_:
            raise InputError(
                f"X has {bags.d} features per instance; this {type(self).__name__} was fitted with"
                f" {self.n_features_in_}"
            )
        return bags, self._queries(X, bags)

    def _queries(self, X: Any, bags: Bags) -> FloatArray:
        if isinstance(X, AttentionData):
            return X.queries
        return table_queries(bags.rows, bags.offsets, self.query_)

    def _key(self, data: AttentionData) -> str:
        digest = hashlib.sha256()
        for array in (data.tokens, data.labels, data.queries, data.mask):
            digest.update(repr(array.shape).encode())
            digest.update(np.ascontiguousarray(array).data)
        parameters = {
            key: value for key, value in self.get_params().items() if key not in _NOT_IN_KEY
        } | {"norm": self.norm_.name}
        return fingerprint(
            {
                "data": digest.hexdigest(),
                "parameters": parameters,
                "versions": versions(),
                "code": code_fingerprint(type(self)),
            }
        )


class _Prepared(NamedTuple):
    """What a fit starts from.

    Attributes:
        bags: as one table.
        places: ``(N,)``: the position of each instance in its bag, as the caller counts.
        queries: ``(n, d_z)``.
        labels: ``(n,)`` positions in ``classes_``.
        shares: ``(n,)`` weights of the bags, of sum one.
        data: the same, padded; None where no stage reads it so.
        joint: whether W and head are trained together.
        parts: training and validation bags.
    """

    bags: Bags
    places: IntArray
    queries: FloatArray
    labels: IntArray
    shares: FloatArray
    data: AttentionData | None
    joint: bool
    parts: tuple[IntArray, IntArray]


# what reads a parameter, where not every fit does
_READERS = {
    "joint": (
        ("joint_steps", "joint_lr", "head_lr", "validation_size"),
        "joint training (assumption='collective' with penalty=None, one head, two classes and bags"
        " of equal weight)",
    ),
    "explained": (("norm", "slack", "tol", "solve_seconds"), "explain=True"),
    "selection": (("selection_steps", "lr"), "assumption='collective' with explain=True"),
    "descent": (("records",), "joint training and assumption='collective' with explain=True"),
    "folder": (("checkpoint",), "joint training and explain=True"),
    "kept": (("checkpoint_seconds",), "stages that a checkpoint folder keeps"),
    "queries": (
        ("query",),
        "assumption='collective' with at least one head, for bags without queries of their own",
    ),
}
# what does not change the stages of training
_NOT_IN_KEY = ("checkpoint", "checkpoint_seconds", "progress", "reject")
_NO_MARGIN = "pooling is 'margin', which needs collective attention and a fit with explain=True"
_EXPLAINED = (
    "solution_",
    "status_",
    "margin_",
    "selected_tokens_",
    "support_tokens_",
    "lr_",
    "selection_weights_",
    "trajectory_",
    "direction_gap_",
)


def _places(X: Any, bags: Bags) -> IntArray:
    """``(N,)``: the position of each instance in its bag, as the caller counts."""
    if isinstance(X, AttentionData):
        return np.nonzero(X.mask)[1]
    return np.arange(len(bags.rows)) - np.repeat(bags.offsets[:-1], bags.lengths)


def _padded(bags: Bags, places: IntArray, labels: ArrayLike, queries: FloatArray) -> AttentionData:
    """Sequences with each instance in its place."""
    tokens = np.zeros((bags.n, int(places.max()) + 1, bags.d))
    mask = np.zeros(tokens.shape[:2], dtype=np.bool_)
    tokens[bags.bag, places], mask[bags.bag, places] = bags.rows, True
    return AttentionData(given_away(tokens), _signs(labels), queries, mask)


def _signs(labels: ArrayLike) -> FloatArray:
    return np.where(np.asarray(labels) > 0, 1.0, -1.0)


def _weights(sample_weight: Any, n: int) -> FloatArray:
    """``(n,)`` weights of bags, checked."""
    if sample_weight is None:
        return np.ones(n)
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n,):
        raise InputError(f"sample_weight has shape {weights.shape}; it must be ({n},), one per bag")
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise InputError("sample_weight must be finite, not negative, and not zero everywhere")
    return weights


def _single(weights: Weights, hard: bool) -> PooledLayer:
    return PooledLayer(
        weights.W[None], weights.head[None, :, None], np.array([weights.intercept]), hard
    )


def _other_pooling(layer: Layer) -> Layer:
    """The same weights, soft where the layer is hard and hard where it is soft."""
    return replace(layer, hard=not layer.hard)


def _one_column(values: FloatArray) -> FloatArray:
    return np.asarray(values[:, 0] if values.shape[1] == 1 else values)


def _column(values: FloatArray) -> IntArray:
    """``(n,)``: the class that values predict."""
    if values.shape[1] == 1:
        return np.asarray(values[:, 0] > 0, dtype=np.int64)
    return np.asarray(np.argmax(values, axis=1), dtype=np.int64)


def _selected(read: Reading) -> IntArray:
    column = _column(read.values) if read.selected.shape[1] > 1 else 0
    return np.asarray(read.selected[np.arange(len(read.values)), column])


def _toward(read: Reading, column: IntArray, bags: Bags) -> FloatArray:
    """``(N,)``: by what instances of a bag are ranked, the selected one first."""
    if read.contributions.shape[1] == 1:
        weight: FloatArray = read.contributions[:, 0] * np.where(column > 0, 1.0, -1.0)[bags.bag]
    else:
        weight = read.contributions[np.arange(len(bags.rows)), column[bags.bag]].copy()
    weight[bags.offsets[:-1] + _selected(read)] = np.inf
    return weight


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of predictions, bag by bag.

    Attributes:
        instances: for each bag the positions of the selected instances, the weightiest first.
        margin: ``(n,)``: the value of the predicted class above that of the runner-up (of two
            classes, the size of the decision value).
        sufficient: ``(n,)``: the selected instances alone give the same prediction.
        necessary: ``(n,)``: without them the prediction is another one, or nothing is left.
        agrees: ``(n,)``: soft attention and the instance with the most attention alone give the
            same prediction.
        runner_up: ``(n,)``: the best instance for the predicted class, alone, above the best
            instance for any other class.
        rejected: ``(n,)``: ``margin`` is below the threshold.
    """

    instances: list[IntArray]
    margin: FloatArray
    sufficient: BoolArray
    necessary: BoolArray
    agrees: BoolArray
    runner_up: FloatArray
    rejected: BoolArray

    def __repr__(self) -> str:
        shares = ", ".join(
            f"{name} {np.mean(getattr(self, name)):.1%}"
            for name in ("sufficient", "necessary", "agrees", "rejected")
        )
        return f"Evidence({len(self.margin)} bags: {shares})"
