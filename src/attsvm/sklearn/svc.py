"""The scikit-learn face of attsvm: bags of tokens in, a classifier with its selected tokens and
their margin out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from attsvm.data import AttentionData, FloatArray, IntArray
from attsvm.dynamics import Trajectory, direction_gap
from attsvm.errors import InputError
from attsvm.fitting import LONGEST_STEP, attend
from attsvm.fitting.descent import (
    check_step,
    descent_kind,
    joint_descent,
    selection_descent,
    step_length,
)
from attsvm.fitting.pooling import PooledHead, logistic_loss, mean_pooling
from attsvm.fitting.preparation import (
    check_selectable,
    check_units,
    root_mean_square,
    selection_steps,
)
from attsvm.fitting.splitting import split
from attsvm.fitting.stage import Progress, Weights, run_stage
from attsvm.geometry import Frobenius, Norm, as_norm
from attsvm.margins import selection_margins
from attsvm.queries import bag_queries
from attsvm.solvers import MarginSolution, max_margin
from attsvm.store import Stages, fingerprint, versions
from attsvm.store.code import code_fingerprint

Bags = AttentionData | Sequence[ArrayLike] | np.ndarray[Any, Any]


class ParameterError(InputError, InvalidParameterError):  # type: ignore[misc]
    """A parameter that scikit-learn's declared constraints refuse, in scikit-learn's words."""


class AttentionSVC(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""A softmax-attention classifier that says which token it selects, and how far it is from its
    max-margin solution.

    The model is :math:`f(X, z) = v^\top X^\top\mathrm{softmax}(X W z) + b`. Fitting has four
    stages:

    1. *pooling*: with :math:`W=0` attention is the mean of the tokens, so the head starts as
       mean-pooling logistic regression;
    2. *joint training* of :math:`W` and head by normalised gradient descent, the step chosen by
       validation loss;
       :meth:`predict` uses these weights;
    3. *selection*: the head stays (scaled to unit norm, which changes no selection), :math:`W` goes
       on, by the descent that belongs to ``norm`` (:mod:`attsvm.fitting.descent`). Its softmax
       probabilities go to 0 and 1: each sequence selects one token;
    4. *margin*: the max-margin programme of these tokens is solved in that norm, with a
       certificate, and :math:`W` is compared to it.

    Tokens and queries are divided by their root-mean-square norms inside, so step lengths do not
    depend on units; all fitted weights are in the units of the data.

    Args:
        norm: the geometry of selection and margin, a :class:`~attsvm.geometry.Norm` or its name on
            the command line (``lp:1.75``).
        query: how to make the query of a bag: ``mean`` is ``[1, m / |m|] / sqrt(2)`` for the mean
            token ``m``, ``constant`` is ``[1]``, ``first`` is the first token. Not used for
            :class:`~attsvm.AttentionData`, which has its own.
        joint_steps: steps of joint training.
        joint_lr: length of a step of ``W`` in joint training.
        head_lr: length of a step of the head in joint training.
        steps: steps of the selection stage; ``None`` for 2000 to 20000, fewer the larger the data.
        lr: length of a step of the selection stage, in the norm: after N steps the weights (for
            normalised tokens and queries) have grown to at most N times that. ``None`` for
            :func:`attsvm.fitting.descent.step_length`.
        validation_size: share of the sequences kept aside to choose the step of joint training.
        slack: penalty C of the soft margin, used only when the hard margin is infeasible. Norms of
            singular values have no soft margin here, and are then ``infeasible``.
        tol: relative duality gap asked of the max-margin solution; ``None`` for the default of
            :func:`~attsvm.max_margin`.
        solve_seconds: time after which the solver hands over the best certified weights it has, as
            ``inaccurate`` (the one place where a result may depend on the clock).
        records: records of each training stage, log-spaced.
        merge_duplicates: mask repeated tokens of a sequence. Without it they are refused, because
            equal tokens can never be told apart.
        prediction: what :meth:`predict` uses: ``soft`` attention after joint training, the ``hard``
            selection of the trained ``W``, or the hard selection of the ``margin`` solution.
        random_state: seed of the validation split.
        checkpoint: folder in which unfinished work is kept, so that the same call goes on after a
            kill and ends with the same bits.
        checkpoint_seconds: time between two writes of unfinished work.
        progress: called with stage name, steps done, steps in all.

    Attributes:
        classes_: the two labels, negative first.
        norm_: the :class:`~attsvm.geometry.Norm` of selection and margin.
        lr_: length of a step of the selection stage.
        n_features_in_: features of a token.
        weights_: :class:`~attsvm.fitting.stage.Weights` after joint training.
        selection_weights_: the same after selection.
        solution_: the :class:`~attsvm.MarginSolution` of the selected tokens.
        status_, margin_: its status and margin.
        selected_tokens_: ``(n,)``, position of the selected token of every sequence given to
            :meth:`fit`.
        support_tokens_: ``(k, 2)``, sequence and token of every support constraint, by falling
            dual.
        direction_gap_: one minus the cosine between ``selection_weights_.W`` and ``solution_.W``.
        baseline_: the mean-pooling head.
        joint_trajectory_, trajectory_: records of the two training stages; ``W`` in them is
            ``unit_`` times that of the data's units.
        unit_: root-mean-square norm of the tokens times that of the queries.
        best_step_: step of joint training that was kept.
        train_indices_, validation_indices_: which sequences were trained on.
    """

    _parameter_constraints = {  # noqa: RUF012 - the name and form that scikit-learn looks for
        "norm": [str, Norm],
        "query": [StrOptions({"mean", "constant", "first"})],
        "joint_steps": [Interval(Integral, 1, None, closed="left")],
        "joint_lr": [Interval(Real, 0.0, LONGEST_STEP, closed="right")],
        "head_lr": [Interval(Real, 0.0, LONGEST_STEP, closed="right")],
        "steps": [Interval(Integral, 1, None, closed="left"), None],
        "lr": [Interval(Real, 0.0, LONGEST_STEP, closed="right"), None],
        "validation_size": [Interval(Real, 0.0, 1.0, closed="neither")],
        "slack": [Interval(Real, 0.0, None, closed="neither")],
        "tol": [Interval(Real, 0.0, None, closed="neither"), None],
        "solve_seconds": [Interval(Real, 0.0, None, closed="neither")],
        "records": [Interval(Integral, 1, None, closed="left")],
        "merge_duplicates": ["boolean"],
        "prediction": [StrOptions({"soft", "hard", "margin"})],
        "random_state": [Interval(Integral, 0, 2**32 - 1, closed="both")],
        "checkpoint": [str, os.PathLike, None],
        "checkpoint_seconds": [Interval(Real, 0.0, None, closed="neither")],
        "progress": [callable, None],
    }

    def __init__(
        self,
        *,
        norm: str | Norm = "fro",
        query: Literal["mean", "constant", "first"] = "mean",
        joint_steps: int = 300,
        joint_lr: float = 0.1,
        head_lr: float = 0.1,
        steps: int | None = None,
        lr: float | None = None,
        validation_size: float = 0.15,
        slack: float = 1.0,
        tol: float | None = None,
        solve_seconds: float = 600.0,
        records: int = 60,
        merge_duplicates: bool = False,
        prediction: Literal["soft", "hard", "margin"] = "soft",
        random_state: int = 0,
        checkpoint: str | Path | None = None,
        checkpoint_seconds: float = 5.0,
        progress: Progress | None = None,
    ) -> None:
        self.norm = norm
        self.query = query
        self.joint_steps = joint_steps
        self.joint_lr = joint_lr
        self.head_lr = head_lr
        self.steps = steps
        self.lr = lr
        self.validation_size = validation_size
        self.slack = slack
        self.tol = tol
        self.solve_seconds = solve_seconds
        self.records = records
        self.merge_duplicates = merge_duplicates
        self.prediction = prediction
        self.random_state = random_state
        self.checkpoint = checkpoint
        self.checkpoint_seconds = checkpoint_seconds
        self.progress = progress

    def fit(self, X: Bags, y: ArrayLike | None = None) -> AttentionSVC:
        """Fit to bags of tokens.

        Args:
            X: a list of ``(T_i, d_x)`` arrays, one ``(n, T, d_x)`` array, or
                :class:`~attsvm.AttentionData` (whose labels are used when ``y`` is None).
            y: ``(n,)`` labels of two classes.

        Raises:
            InputError: unusable tokens or labels, one class only, one token in every sequence,
                repeated tokens, a norm that has no descent.
        """
        data, self.norm_, parts = self._prepared(X, y)
        self.n_features_in_ = data.d_x
        self.train_indices_, self.validation_indices_ = parts
        stages = (
            Stages(None, "")
            if self.checkpoint is None
            else Stages(Path(self.checkpoint), self._key(data))
        )

        tokens, queries = root_mean_square(data.tokens, data.mask), root_mean_square(data.queries)
        scaled = AttentionData(data.tokens / tokens, data.labels, data.queries / queries, data.mask)
        train, validation = scaled.take(self.train_indices_), scaled.take(self.validation_indices_)

        pooled = mean_pooling(train, validation)
        start = Weights(np.zeros((data.d_x, data.d_z)), pooled.coef, pooled.intercept)
        joint = self._joint(train, validation, start, stages)
        soft = Weights(
            joint.W[self._best], joint.head[self._best], float(joint.intercept[self._best])
        )
        length = float(np.linalg.norm(soft.head)) or 1.0
        hard = self._select(
            train, Weights(soft.W, soft.head / length, soft.intercept / length), stages
        )

        self.baseline_ = PooledHead(
            pooled.coef / tokens, pooled.intercept, pooled.C * tokens**2, pooled.validation_loss
        )
        self.unit_ = tokens * queries
        self.weights_, self.selection_weights_ = (
            soft.rescaled(tokens, queries),
            hard.rescaled(tokens, queries),
        )
        self._certify(data)
        return self

    def _joint(
        self, train: AttentionData, validation: AttentionData, start: Weights, stages: Stages
    ) -> Trajectory:
        def observe(
            step: int, W: FloatArray, head: FloatArray, intercept: FloatArray
        ) -> dict[str, Any]:
            values = attend.soft_values(validation, W, head, float(intercept))
            return {
                "validation_loss": np.float64(logistic_loss(validation.labels, values)),
                "validation_accuracy": np.float64(np.mean((values > 0) == (validation.labels > 0))),
            }

        joint = run_stage(
            "joint",
            train,
            *joint_descent(train, start, self.joint_lr, self.head_lr),
            steps=self.joint_steps,
            records=self.records,
            stages=stages,
            checkpoint_seconds=self.checkpoint_seconds,
            progress=self.progress,
            observe=observe,
        )
        self._best = int(np.argmin(joint.observed["validation_loss"]))
        self.best_step_ = int(joint.steps[self._best])
        self.joint_trajectory_ = joint
        return joint

    def _select(self, train: AttentionData, soft: Weights, stages: Stages) -> Weights:
        steps = selection_steps(train) if self.steps is None else self.steps
        self.lr_ = step_length(self.norm_, train) if self.lr is None else self.lr
        self.trajectory_ = run_stage(
            "selection",
            train,
            *selection_descent(self.norm_, train, soft, self.lr_, steps),
            steps=steps,
            records=self.records,
            stages=stages,
            checkpoint_seconds=self.checkpoint_seconds,
            progress=self.progress,
        )
        return Weights(self.trajectory_.W[-1], soft.head, soft.intercept)

    def _certify(self, data: AttentionData) -> None:
        W = self.selection_weights_.W
        self.selected_tokens_: IntArray = attend.selected_tokens(data, W)
        train = data.take(self.train_indices_)
        if self.progress is not None:
            self.progress("margin", 0, 1)
        margins = selection_margins(train, self.selected_tokens_[self.train_indices_])
        solution: MarginSolution = max_margin(
            margins, self.norm_, tol=self.tol, max_seconds=self.solve_seconds
        )
        if solution.status in ("infeasible", "almost infeasible") and self.norm_.takes_slack:
            solution = max_margin(
                margins, self.norm_, tol=self.tol, slack=self.slack, max_seconds=self.solve_seconds
            )
        if self.progress is not None:
            self.progress("margin", 1, 1)
        self.solution_ = solution
        self.status_, self.margin_ = solution.status, solution.margin
        support = solution.support_tokens()
        self.support_tokens_ = np.column_stack([self.train_indices_[support[:, 0]], support[:, 1]])
        self.direction_gap_ = float(direction_gap(W, solution.W))

    def decision_function(self, X: Bags) -> FloatArray:
        """``(n,)`` values; positive means ``classes_[1]``. What they come from is the parameter
        ``prediction``.
        """
        check_is_fitted(self)
        data = self._unlabelled(X)
        if self.prediction == "soft":
            weights = self.weights_
            return attend.soft_values(data, weights.W, weights.head, weights.intercept)
        weights = self.selection_weights_
        return attend.token_values(data, self._hard_tokens(data), weights.head, weights.intercept)

    def predict(self, X: Bags) -> np.ndarray[Any, Any]:
        """``(n,)`` labels out of ``classes_``."""
        positive = self.decision_function(X) > 0
        predicted: np.ndarray[Any, Any] = self.classes_[positive.astype(np.intp)]
        return predicted

    def select(self, X: Bags) -> IntArray:
        """``(n,)`` positions of the tokens that the trained ``W`` (or, with
        ``prediction='margin'``, the max-margin one) selects.
        """
        check_is_fitted(self)
        return self._hard_tokens(self._unlabelled(X))

    def _hard_tokens(self, data: AttentionData) -> IntArray:
        return attend.selected_tokens(
            data, self.solution_.W if self.prediction == "margin" else self.selection_weights_.W
        )

    def check(self, X: Bags, y: ArrayLike | None = None) -> AttentionSVC:
        """Refuse, before the first step, what :meth:`fit` would refuse with the same arguments.

        Raises:
            InputError: see :meth:`fit`.
        """
        self._prepared(X, y)
        return self

    def _prepared(
        self, X: Bags, y: ArrayLike | None
    ) -> tuple[AttentionData, Norm, tuple[IntArray, IntArray]]:
        """The data, the norm, and the training and validation sequences, checked."""
        try:
            self._validate_params()
        except InvalidParameterError as error:
            raise ParameterError(str(error)) from None
        if self.checkpoint is not None and not os.fspath(self.checkpoint):
            raise ParameterError(
                f"The 'checkpoint' parameter of {type(self).__name__} is {self.checkpoint!r}, the"
                " folder that you work in; give another folder, or None"
            )
        given = as_norm(self.norm)
        norm = Frobenius() if given == Frobenius() else given  # however it was written
        descent_kind(norm)
        data = self._labelled(X, y)
        if data.batch_shape:
            raise InputError(f"X has leading axes {data.batch_shape}; fit one instance at a time")
        if self.merge_duplicates:
            data = data.without_duplicates()
        check_selectable(data)
        check_units(data)
        if self.lr is not None:
            check_step(norm, self.lr, selection_steps(data) if self.steps is None else self.steps)
        parts = split(data.labels, self.validation_size, self.random_state, "validation_size")
        return data, norm, parts

    def _labelled(self, X: Bags, y: ArrayLike | None) -> AttentionData:
        if y is None:
            if not isinstance(X, AttentionData):
                raise InputError("y is missing; give one label per bag")
            y = X.labels
        labels = np.asarray(y)
        count = X.n if isinstance(X, AttentionData) else len(X)
        if labels.shape != (count,):
            raise InputError(
                f"y has shape {labels.shape}; it must be ({count},), one label per bag"
            )
        kind = type_of_target(labels, input_name="y")
        if kind not in ("binary", "multiclass"):
            raise InputError(f"y holds {kind} values; give labels of two classes")
        self.classes_ = np.unique(labels)
        if len(self.classes_) != 2:
            few = "one class only" if len(self.classes_) == 1 else f"{len(self.classes_)} classes"
            raise InputError(
                f"y holds {few} ({', '.join(map(str, self.classes_[:4]))}); give sequences of"
                " exactly two classes"
            )
        return self._as_data(X, np.where(labels == self.classes_[1], 1.0, -1.0))

    def _unlabelled(self, X: Bags) -> AttentionData:
        data = self._as_data(X, np.ones(X.n if isinstance(X, AttentionData) else len(X)))
        if data.d_x != self.n_features_in_:
            raise InputError(
                f"X has {data.d_x} features per token; this {type(self).__name__} was fitted with"
                f" {self.n_features_in_}"
            )
        return data

    def _as_data(self, X: Bags, labels: FloatArray) -> AttentionData:
        if isinstance(X, AttentionData):
            return AttentionData(X.tokens, labels, X.queries, X.mask)
        data = AttentionData.from_bags(list(X), labels)
        return AttentionData(
            data.tokens, labels, bag_queries(data.tokens, data.mask, self.query), data.mask
        )

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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.classifier_tags.multi_class = False
        return tags


_NOT_IN_KEY = (
    "checkpoint",
    "checkpoint_seconds",
    "progress",
    "prediction",
)  # what does not change the fitted numbers
