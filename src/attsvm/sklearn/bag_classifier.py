"""What the classifiers of bags have in common: they take bags, predict, and give evidence."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import compute_sample_weight
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions
from sklearn.utils.multiclass import type_of_target

from attsvm.base.errors import InputError
from attsvm.base.progress import reporter
from attsvm.base.thread_limits import one_thread
from attsvm.datasets.attention_data import (
    AttentionData,
    BoolArray,
    FloatArray,
    IntArray,
    axes,
    given_away,
)
from attsvm.datasets.bags import Bags, as_bags, bag_labels
from attsvm.datasets.queries import table_queries
from attsvm.norms import Norm, as_norm
from attsvm.sklearn.choosing import Predictor, Table, calibration, margin_values
from attsvm.sklearn.evidence import Evidence, predicted, selected, weigh
from attsvm.sklearn.explaining import Explanation, Limits
from attsvm.sklearn.features import TakesBags
from attsvm.sklearn.layers import Layer, Reading
from attsvm.sklearn.preparation import check_units
from attsvm.sklearn.stage import Progress

SEEDS = Interval(Integral, 0, 2**32 - 1, closed="both")
CONSTRAINTS = {
    "penalty": [Interval(Real, 0.0, None, closed="neither"), StrOptions({"cv"})],
    "pooling": [StrOptions({"soft", "hard"})],
    "class_weight": [dict, StrOptions({"balanced"}), None],
    "reject": [Interval(Real, None, None, closed="neither")],
    "random_state": [SEEDS],
    "progress": [callable, "boolean", None],
}


class ParameterError(InputError, InvalidParameterError):  # type: ignore[misc]
    """A parameter that scikit-learn's declared constraints refuse, in scikit-learn's words."""


@dataclass(frozen=True, eq=False)
class Given:
    """What a fit starts from.

    Attributes:
        bags: as one table.
        queries: ``(n, d_z)``.
        labels: ``(n,)`` positions in ``classes_``.
        shares: ``(n,)`` weights of the bags, of sum one.
    """

    bags: Bags
    queries: FloatArray
    labels: IntArray
    shares: FloatArray


class BagClassifier(TakesBags, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of bags; see its two kinds."""

    assumption: ClassVar[Literal["collective", "standard"]]
    query: Any = "constant"

    def __init__(
        self,
        *,
        heads: int = 1,
        pooling: Literal["soft", "hard"] = "soft",
        penalty: float | Literal["cv"] = "cv",
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        reject: float = 0.0,
        random_state: int = 0,
        progress: Progress | bool | None = None,
    ) -> None:
        self.heads = heads
        self.pooling = pooling
        self.penalty = penalty
        self.class_weight = class_weight
        self.reject = reject
        self.random_state = random_state
        self.progress = progress

    @abstractmethod
    def _fitted_to(self, table: Table, asked: float | None) -> Predictor:
        """The predictor of these bags, of the penalty that is asked for."""

    @abstractmethod
    def _explained(
        self, X: Any, bags: Bags, queries: FloatArray, labels: IntArray, norm: Norm, limits: Limits
    ) -> Explanation:
        """See :meth:`explain`."""

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Fit to bags of instances.

        Args:
            X: bags in any form that :func:`attsvm.datasets.bags.as_bags` takes: a list of ``(T_i,
                d_x)`` arrays, one ``(n, T, d_x)`` array, ``(N, d_x)`` rows with ``groups``,
                :class:`~attsvm.AttentionData`, bags of other libraries.
            y: ``(n,)`` labels of the bags, of two classes or more; None for those that came with
                the bags. With ``groups``, in the order in which bags first appear.
            groups: ``(N,)``: the bag of each row.
            sample_weight: ``(n,)`` weights of the bags.

        Raises:
            InputError: unusable bags or labels, or a class with fewer than two bags.
        """
        given = self.given(X, y, groups, sample_weight)
        few = np.bincount(given.labels)
        if few.min() < 2:
            raise InputError(
                f"class {self.classes_[np.argmin(few)]} has one bag; give at least two of each"
                " class"
            )
        progress, seed = reporter(self.progress), int(self.random_state)

        def tick(done: int, total: int) -> None:
            if progress is not None:
                progress("predictor", done, total)

        table = Table(
            given.bags.rows,
            given.bags.offsets,
            given.queries,
            given.labels,
            len(self.classes_),
            given.shares,
            seed,
            tick,
        )
        asked = None if isinstance(self.penalty, str) else float(self.penalty)
        # descents ask for thousands of small products, for which threads of BLAS wait at full load
        with one_thread(scipy=True):
            found = self._fitted_to(table, asked)
        self.predictor_ = found
        self.convex_steps_ = found.steps
        self.optimum_ = "global" if found.convex else "local"
        seen = np.flatnonzero(~np.isnan(found.left_out[:, 0]))
        self._describe(given, found.left_out, seen)
        return self

    def _describe(self, given: Given, unseen: FloatArray, seen: IntArray) -> None:
        """Calibration, margins and rejects of the training bags, by ``(n, C)`` values of models
        that did not see them at the positions ``seen``.
        """
        bags = given.bags
        values = self._layer().read(bags.rows, bags.offsets, given.queries).values
        values[seen] = unseen[seen]
        self.calibration_ = calibration(values[seen], given.labels[seen], shift=False).slope
        self.margins_ = margin_values(values, given.labels)
        self.rejects_ = np.flatnonzero(self.margins_ < self.reject)

    def _layer(self) -> Layer:
        """The model that predicts."""
        return self.predictor_.layer

    def explain(
        self,
        X: Any,
        y: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        norm: str | Norm = "fro",
        limits: Limits | None = None,
    ) -> Explanation:
        """What bags select, and the certified max-margin solution of these selections.

        It costs minutes on thousands of bags. Repeated instances of a bag are left out, because
        equal instances can never be told apart.

        Args:
            X: bags, mostly those of :meth:`fit`.
            y: ``(n,)`` their labels; None for those that came with the bags, or where there are
                none for what the model predicts.
            groups: the bag of each row, when ``X`` is a table.
            norm: the geometry of the margin, a :class:`~attsvm.norms.Norm` or its name
                (``lp:1.75``).
            limits: steps, tolerance and time.

        Raises:
            InputError: three classes or more, other than one head, one instance in every bag, or a
                norm that has no descent.
        """
        bags, queries = self._unlabelled(X, groups)
        if len(self.classes_) != 2 or self.heads != 1:
            raise InputError(
                f"explain needs two classes and one head; there are {len(self.classes_)} classes"
                f" and {self.heads} heads"
            )
        if y is None and bags.labels is None:
            labels = predicted(self._layer().read(bags.rows, bags.offsets, queries).values)
        else:
            labels = self._positions(bag_labels(y, bags))
        return self._explained(X, bags, queries, labels, as_norm(norm), limits or Limits())

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
        """For each bag the attention ``(T_i,)`` of its instances, summing to one; of several heads
        ``(T_i, heads)``. Of witnesses it is the share of each instance in being the witness.
        """
        bags, read = self._read(X, groups)
        return np.split(_one_column(read.attention), bags.offsets[1:-1])

    def contributions(self, X: Any, *, groups: ArrayLike | None = None) -> list[FloatArray]:
        """For each bag ``(T_i,)`` parts of its decision value, which they sum to; of three classes
        or more, ``(T_i, K)``: attention times the value of the instance, or, of witnesses, times
        the value of the bag.
        """
        bags, read = self._read(X, groups)
        return np.split(_one_column(read.contributions), bags.offsets[1:-1])

    def predict(self, X: Any, *, groups: ArrayLike | None = None) -> np.ndarray[Any, Any]:
        """``(n,)`` labels out of ``classes_``."""
        _, read = self._read(X, groups)
        return self.classes_[predicted(read.values)]

    def predict_proba(self, X: Any, *, groups: ArrayLike | None = None) -> FloatArray:
        """``(n, K)`` probabilities: the logistic function of ``calibration_`` times the decision
        values (softmax of three classes or more); the slope is fitted to bags left out.
        """
        values = self.calibration_ * self._read(X, groups)[1].values
        if values.shape[1] == 1:
            values = np.hstack([np.zeros_like(values), values])
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def score(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> float:
        """The share of bags that are classified rightly.

        Args:
            X: bags.
            y: ``(n,)`` their labels; None for those that came with the bags.
            sample_weight: ``(n,)`` weights of the bags.
            groups: the bag of each row, when ``X`` is a table.
        """
        truth = bag_labels(y, as_bags(X, groups))
        found = self.predict(X, groups=groups)
        return float(accuracy_score(truth, found, sample_weight=sample_weight))

    def select(self, X: Any, *, groups: ArrayLike | None = None) -> IntArray:
        """``(n,)`` positions of the instances that decide: the one that contributes most to the
        predicted class, the one selected where pooling is hard, or the likeliest witness.
        """
        bags, read = self._read(X, groups)
        return places(X, bags)[bags.offsets[:-1] + selected(read)]

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
        bags, whole = self._unlabelled(X, groups)
        given = isinstance(X, AttentionData)

        def queries(rows: FloatArray, offsets: IntArray, kept: BoolArray) -> FloatArray:
            return whole[kept] if given else table_queries(rows, offsets, self.query)

        return weigh(self._layer(), bags, queries, places(X, bags), instances, self.reject)

    def given(
        self, X: Any, y: ArrayLike | None = None, groups: Any = None, sample_weight: Any = None
    ) -> Given:
        """What :meth:`fit` starts from; it refuses what that refuses."""
        try:
            self._validate_params()
        except InvalidParameterError as error:
            raise ParameterError(str(error)) from None
        if groups is None and axes(X) == 1 and axes(y) > 1:
            raise InputError("X holds one label per bag and y the bags; call fit(bags, labels)")
        bags = as_bags(X, groups)
        given = bag_labels(y, bags)
        kind = type_of_target(given, input_name="y")
        if kind not in ("binary", "multiclass"):
            raise InputError(f"y holds {kind} values; give labels of two classes or more")
        self.classes_, labels = np.unique(given, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                f"y holds one class only ({self.classes_[0]}); give bags of two classes or more"
            )
        self.n_features_in_ = bags.d
        weights = _weights(sample_weight, bags.n)
        weights = weights * compute_sample_weight(self.class_weight, given)
        queries = self._queries(X, bags)
        check_units(bags.rows, queries)
        return Given(bags, queries, np.asarray(labels, np.int64), weights / weights.sum())

    def _positions(self, labels: np.ndarray[Any, Any]) -> IntArray:
        """``(n,)`` positions of labels in ``classes_``."""
        at = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        strange = self.classes_[at] != labels
        if strange.any():
            raise InputError(
                f"y holds {labels[strange][0]}, which is none of the classes of the fit,"
                f" {', '.join(map(str, self.classes_))}"
            )
        return np.asarray(at, dtype=np.int64)

    def _unlabelled(self, X: Any, groups: ArrayLike | None) -> tuple[Bags, FloatArray]:
        bags = self._new_bags(X, groups)
        return bags, self._queries(X, bags)

    def _queries(self, X: Any, bags: Bags) -> FloatArray:
        if isinstance(X, AttentionData):
            return X.queries
        return table_queries(bags.rows, bags.offsets, self.query)

    def _read(self, X: Any, groups: ArrayLike | None) -> tuple[Bags, Reading]:
        bags, queries = self._unlabelled(X, groups)
        return bags, self._layer().read(bags.rows, bags.offsets, queries)


def places(X: Any, bags: Bags) -> IntArray:
    """``(N,)``: the position of each instance in its bag, as the caller counts."""
    if isinstance(X, AttentionData):
        return np.nonzero(X.mask)[1]
    return np.arange(len(bags.rows)) - np.repeat(bags.offsets[:-1], bags.lengths)


def padded(bags: Bags, at: IntArray, labels: ArrayLike, queries: FloatArray) -> AttentionData:
    """Sequences with each instance in its place; labels above zero are +1."""
    tokens = np.zeros((bags.n, int(at.max()) + 1, bags.d))
    mask = np.zeros(tokens.shape[:2], dtype=np.bool_)
    tokens[bags.bag, at], mask[bags.bag, at] = bags.rows, True
    signs = np.where(np.asarray(labels) > 0, 1.0, -1.0)
    return AttentionData(given_away(tokens), signs, queries, mask)


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


def _one_column(values: FloatArray) -> FloatArray:
    return np.asarray(values[:, 0] if values.shape[1] == 1 else values)
