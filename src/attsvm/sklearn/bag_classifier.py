"""What the classifiers of bags have in common: they take bags, predict, and give evidence."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import fields, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from attsvm.base.cores import one_thread
from attsvm.base.errors import InputError
from attsvm.base.progress import reporter
from attsvm.base.softmax import softmax_rows
from attsvm.datasets.attention_data import (
    AttentionData,
    BoolArray,
    FloatArray,
    IntArray,
    axes,
    given_away,
)
from attsvm.datasets.bags import Bags, as_bags, bag_labels, per_bag
from attsvm.datasets.queries import table_queries
from attsvm.norms import Norm, as_norm
from attsvm.sklearn.choosing import (
    Calibration,
    Predictor,
    TrainingBags,
    calibration,
    margin_values,
    threshold,
)
from attsvm.sklearn.deciding import deciding_sets
from attsvm.sklearn.evidence import BagEvidence, joined_evidence, predicted, selected, weigh
from attsvm.sklearn.explaining import Explanation, Limits
from attsvm.sklearn.features import TakesBags
from attsvm.sklearn.layers import Layer, Reading
from attsvm.sklearn.moments import check_sizes
from attsvm.sklearn.stage import Progress, StageOptions

SEEDS = Interval(Integral, 0, 2**32 - 1, closed="both")
CONSTRAINTS = {
    "penalty": [Interval(Real, 0.0, None, closed="neither"), StrOptions({"cv"})],
    "pooling": [StrOptions({"soft", "hard"})],
    "class_weight": [dict, StrOptions({"balanced"}), None],
    "cv": ["cv_object"],
    "reject": [Interval(Real, None, None, closed="neither")],
    "random_state": [SEEDS],
    "progress": [callable, "boolean", None],
}


class ParameterError(InputError, InvalidParameterError):  # type: ignore[misc]
    """A parameter that scikit-learn's declared constraints refuse, in scikit-learn's words."""


class ChanceWarning(UserWarning):
    """Bags left out are not predicted better than by chance.

    >>> import warnings
    >>> from attsvm.sklearn import ChanceWarning
    >>> warnings.simplefilter("error", ChanceWarning)  # where such a fit must not go on
    >>> warnings.resetwarnings()
    """


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
        cv: Any = None,
        reject: float = 0.0,
        random_state: int = 0,
        progress: Progress | bool | None = None,
    ) -> None:
        self.heads = heads
        self.pooling = pooling
        self.penalty = penalty
        self.class_weight = class_weight
        self.cv = cv
        self.reject = reject
        self.random_state = random_state
        self.progress = progress

    @abstractmethod
    def _fitted_to(self, training: TrainingBags, penalty: float | None) -> Predictor:
        """The predictor of these bags, of this penalty or of the one that bags left out choose."""

    @abstractmethod
    def _explained(
        self,
        X: Any,
        bags: Bags,
        queries: FloatArray,
        labels: IntArray,
        positive: int,
        norm: Norm,
        limits: Limits,
        options: StageOptions,
    ) -> Explanation:
        """See :meth:`explain`; labels are 1 in the class at the position ``positive``, else 0."""

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        bag_ids: ArrayLike | None = None,
    ) -> Self:
        """Fit to bags of instances.

        Labels, weights and groups are in the order in which bags first appear; a pandas Series is
        aligned by its index where that holds the ids of the bags.

        Args:
            X: bags in any form that :func:`attsvm.datasets.bags.as_bags` takes: a list of ``(T_i,
                d_x)`` arrays, one ``(n, T, d_x)`` array, ``(N, d_x)`` rows with ``bag_ids``,
                :class:`~attsvm.AttentionData`, bags of other libraries.
            y: ``(n,)`` labels of the bags, of two classes or more; None for those that came with
                the bags.
            sample_weight: ``(n,)`` weights of the bags: a bag of weight 2 is fitted, left out and
                counted as two bags, one of weight 0 as none.
            groups: ``(n,)``: the patient, or whatever else bags share, which is left out as one;
                None for those that came with the bags.
            bag_ids: ``(N,)``: the bag of each row, when ``X`` is a table.

        Raises:
            InputError: unusable bags, labels, weights or groups, or a class with fewer than two
                bags.

        Warns:
            ChanceWarning: bags left out are not predicted better than by chance.
        """
        training = self.training_bags(X, y, sample_weight, groups, bag_ids)
        few = np.bincount(training.labels, training.weights > 0, minlength=training.classes)
        if few.min() < 2:
            raise InputError(
                f"class {self.classes_[np.argmin(few)]} has one bag; give at least two of each"
                " class"
            )
        used = np.flatnonzero(training.weights > 0)
        penalty = None if isinstance(self.penalty, str) else float(self.penalty)
        # descents ask for thousands of small products, for which threads of BLAS wait at full load
        with one_thread(scipy=True):
            predictor = self._fitted_to(_without_weightless(training, used), penalty)
        values = np.full((training.bags.n, predictor.left_out.shape[1]), np.nan)
        values[used] = predictor.left_out
        judged = np.flatnonzero(~np.isnan(values[:, 0]))
        layer = predictor.layer
        if not predictor.convex:  # whose certificate is for its intercept, too
            cut = threshold(values[judged], training.labels[judged], training.weights[judged])
            layer, values = layer.counted_from(cut), values - cut
        self.predictor_ = replace(predictor, layer=layer, left_out=values)
        self.convex_steps_ = predictor.steps
        self.optimum_ = "global" if predictor.convex else "local"
        line = self._describe(training, values, judged)
        _warn_of_chance(line, training.weights)
        return self

    def _describe(
        self, training: TrainingBags, left_out: FloatArray, positions: IntArray
    ) -> Calibration:
        """Set calibration, margins and rejects of the training bags, by ``(n, C)`` values of models
        that did not see them at these positions.
        """
        values = self._reading(training.bags, training.queries).values
        values[positions] = left_out[positions]
        counted = positions[training.weights[positions] > 0]
        line = calibration(
            values[counted], training.labels[counted], False, training.weights[counted]
        )
        self.calibration_ = line.slope
        self.margins_ = margin_values(values, training.labels)
        self.rejects_ = np.flatnonzero(self.margins_ < self.reject)
        return line

    def _layer(self) -> Layer:
        """The model that predicts."""
        return self.predictor_.layer

    def explain(
        self,
        X: Any,
        y: ArrayLike | None = None,
        *,
        bag_ids: ArrayLike | None = None,
        positive: Any = None,
        norm: str | Norm = "fro",
        limits: Limits | None = None,
        stage: StageOptions | None = None,
    ) -> Explanation:
        """Selections of bags, and their certified max-margin solution: of two classes, or of one
        class against all others.

        It costs minutes on thousands of bags. Repeated instances of a bag are left out, because
        equal instances can never be told apart.

        Args:
            X: bags, mostly those of :meth:`fit`.
            y: ``(n,)`` their labels; None for those that came with the bags, or where there are
                none for what the model predicts.
            bag_ids: the bag of each row, when ``X`` is a table.
            positive: the label of the class that is told from the others, where there are three
                or more; of two it is the second.
            norm: the geometry of the margin, a :class:`~attsvm.norms.Norm` or its name
                (``lp:1.75``).
            limits: steps, tolerance and time.
            stage: how the stage in which attention is trained on is recorded and kept.

        Raises:
            InputError: no class named of three or more, other than one head, one instance in every
                bag, or a norm that has no descent.
        """
        bags, queries = self._unlabelled(X, bag_ids)
        if self.heads != 1:
            raise InputError(f"explain needs one head; there are {self.heads}")
        if len(self.classes_) > 2 and positive is None:
            raise InputError(
                f"there are {len(self.classes_)} classes, and explain tells one from the others;"
                " name its label as positive"
            )
        class_ = 1 if positive is None else int(self._positions(np.asarray([positive]))[0])
        if len(self.classes_) == 2 and class_ == 0:
            raise InputError(f"of two classes the positive one is {self.classes_[1]}")
        if y is None and bags.labels is None:
            labels = predicted(self._reading(bags, queries).values)
        else:
            labels = self._positions(bag_labels(y, bags))
        return self._explained(
            X,
            bags,
            queries,
            np.asarray(labels == class_, np.int64),
            class_,
            as_norm(norm),
            limits or Limits(),
            stage or StageOptions(progress=reporter(self.progress)),
        )

    def decision_function(self, X: Any, *, bag_ids: ArrayLike | None = None) -> FloatArray:
        """``(n,)`` values; positive means ``classes_[1]``. Of three classes or more, ``(n, K)``."""
        return _one_column(self._read(X, bag_ids)[1].values)

    def decision_function_instances(
        self, X: Any, *, bag_ids: ArrayLike | None = None
    ) -> list[FloatArray]:
        """For each bag ``(T_i,)`` values of its instances, each as a bag of its own; of three
        classes or more, ``(T_i, K)``.
        """
        layer, values = self._layer(), []
        for _, bags, _ in self._blocks(X, bag_ids):
            values += np.split(_one_column(layer.alone(bags.rows)), bags.offsets[1:-1])
        return values

    def attention(self, X: Any, *, bag_ids: ArrayLike | None = None) -> list[FloatArray]:
        """For each bag the attention ``(T_i,)`` of its instances, summing to one; of several heads
        ``(T_i, heads)``. Of witnesses it is the share of each instance in being the witness, if
        there is one.
        """
        bags, reading = self._read(X, bag_ids)
        return np.split(_one_column(reading.attention), bags.offsets[1:-1])

    def contributions(self, X: Any, *, bag_ids: ArrayLike | None = None) -> list[FloatArray]:
        """For each bag ``(T_i,)`` parts of its decision value, which they sum to; of three classes
        or more, ``(T_i, K)``.

        Of attention a part is attention times the value of the instance. Of witnesses it is what
        the value of the bag would fall by without the instance, and an equal share of what these
        falls leave over, so that the likelier witness has the larger part in every bag.
        """
        bags, reading = self._read(X, bag_ids)
        return np.split(_one_column(reading.contributions), bags.offsets[1:-1])

    def deciding_set(self, X: Any, *, bag_ids: ArrayLike | None = None) -> list[IntArray]:
        """For each bag the positions of the smallest set of instances without which the prediction
        changes, the weightiest first: how much of a bag speaks for its call.

        It is exact, because the sign of a value is that of a sum over instances. A negative bag of
        the standard assumption has an empty set, for there is no witness to take away. A bag of
        which every instance speaks for the prediction has all of them.

        Raises:
            InputError: three classes or more, or other than one head.
        """
        check_is_fitted(self)
        if len(self.classes_) != 2 or self.heads > 1:
            raise InputError(
                f"deciding_set needs two classes and one head; there are {len(self.classes_)}"
                f" classes and {self.heads} heads"
            )
        layer, sets = self._layer(), []
        for _, bags, queries in self._blocks(X, bag_ids):
            sets += deciding_sets(layer, bags, queries)
        if not isinstance(X, AttentionData):
            return sets
        visible = [np.flatnonzero(mask) for mask in X.mask]
        return [at[chosen] for at, chosen in zip(visible, sets, strict=True)]

    def predict(self, X: Any, *, bag_ids: ArrayLike | None = None) -> np.ndarray[Any, Any]:
        """``(n,)`` labels out of ``classes_``."""
        _, reading = self._read(X, bag_ids)
        return self.classes_[predicted(reading.values)]

    def predict_proba(self, X: Any, *, bag_ids: ArrayLike | None = None) -> FloatArray:
        """``(n, K)`` probabilities: the logistic function of ``calibration_`` times the decision
        values (softmax of three classes or more). The slope is fitted to bags left out, and so
        is what the values of two classes are counted from, where attention is not uniform.
        """
        return self.probabilities(self._read(X, bag_ids)[1].values)

    def probabilities(self, values: FloatArray) -> FloatArray:
        """``(n, K)`` probabilities of ``(n, C)`` decision values; see :meth:`predict_proba`."""
        scaled = self.calibration_ * values
        if scaled.shape[1] == 1:
            scaled = np.hstack([np.zeros_like(scaled), scaled])
        return softmax_rows(scaled)

    def readings(
        self, X: Any, *, bag_ids: ArrayLike | None = None
    ) -> Iterator[tuple[IntArray, Bags, Layer, Reading]]:
        """Positions of a few bags, these bags in memory, the model and what it sees in them; all
        bags in turn, so that nothing of their size is ever held.
        """
        layer = self._layer()
        for positions, bags, queries in self._blocks(X, bag_ids):
            yield positions, bags, layer, layer.read(bags.rows, bags.offsets, queries)

    def score(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        bag_ids: ArrayLike | None = None,
    ) -> float:
        """The share of bags that are classified rightly.

        Args:
            X: bags.
            y: ``(n,)`` their labels; None for those that came with the bags.
            sample_weight: ``(n,)`` weights of the bags.
            bag_ids: the bag of each row, when ``X`` is a table.
        """
        bags = as_bags(X, bag_ids)
        weights = None if sample_weight is None else _weights(sample_weight, bags)
        predictions = self.predict(X, bag_ids=bag_ids)
        return float(accuracy_score(bag_labels(y, bags), predictions, sample_weight=weights))

    def select(self, X: Any, *, bag_ids: ArrayLike | None = None) -> IntArray:
        """``(n,)`` positions of the instances that decide: the one that contributes most to the
        predicted class, the one selected where pooling is hard, or the likeliest witness.
        """
        bags, reading = self._read(X, bag_ids)
        return places(X, bags)[bags.offsets[:-1] + selected(reading)]

    def evidence(
        self, X: Any, instances: int = 1, *, bag_ids: ArrayLike | None = None
    ) -> BagEvidence:
        """The instances that speak for each prediction, and whether they suffice.

        Args:
            X: bags.
            instances: how many instances of a bag are selected, by falling contribution to the
                predicted class, or, of witnesses, the likeliest first.
            bag_ids: the bag of each row, when ``X`` is a table.
        """
        if instances < 1:
            raise InputError(f"instances is {instances}; give at least 1")
        layer, pieces = self._layer(), []
        for positions, bags, all_queries in self._blocks(X, bag_ids):
            data = X.take(positions) if isinstance(X, AttentionData) else bags

            def queries(
                rows: FloatArray,
                offsets: IntArray,
                chosen: BoolArray,
                known: FloatArray | None = all_queries if bags.queries is not None else None,
            ) -> FloatArray:
                if known is not None:
                    return known[chosen]
                return table_queries(rows, offsets, self.query)

            at = places(data, bags)
            pieces.append(weigh(layer, bags, queries, at, instances, self.reject))
        return joined_evidence(pieces)

    def training_bags(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        bag_ids: ArrayLike | None = None,
    ) -> TrainingBags:
        """The bags of :meth:`fit`, those of weight 0 among them; it refuses what that refuses."""
        try:
            self._validate_params()
        except InvalidParameterError as error:
            raise ParameterError(str(error)) from None
        if bag_ids is None and axes(y) > 1 and axes(X) == 1:
            raise InputError("X holds one label per bag and y the bags; call fit(bags, labels)")
        bags = as_bags(X, bag_ids)
        y = bag_labels(y, bags)
        target = type_of_target(y, input_name="y")
        if target not in ("binary", "multiclass"):
            raise InputError(f"y holds {target} values; give labels of two classes or more")
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                f"y holds one class only ({self.classes_[0]}); give bags of two classes or more"
            )
        self._remember_features(bags)
        weights = _weights(sample_weight, bags)
        weights = weights * class_weights(self.class_weight, self.classes_, labels, weights)[labels]
        queries = self._queries(X, bags)
        progress = reporter(self.progress)

        def tick(done: int, total: int) -> None:
            if progress is not None:
                progress("predictor", done, total)

        training = TrainingBags(
            bags,
            queries,
            np.asarray(labels, np.int64),
            len(self.classes_),
            weights,
            bags.groups if groups is None else _groups(groups, bags),
            self.cv,
            int(self.random_state),
            tick,
        )
        check_sizes(training.moments, queries[weights > 0])
        return training

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

    def _unlabelled(self, X: Any, bag_ids: ArrayLike | None) -> tuple[Bags, FloatArray]:
        bags = self._new_bags(X, bag_ids)
        return bags, self._queries(X, bags)

    def _blocks(
        self, X: Any, bag_ids: ArrayLike | None
    ) -> Iterator[tuple[IntArray, Bags, FloatArray]]:
        """Positions of a few bags, these bags in memory, and their queries."""
        for positions, bags in self._new_bags(X, bag_ids).blocks():
            yield positions, bags, self._queries(X, bags)

    def _queries(self, X: Any, bags: Bags) -> FloatArray:
        if bags.queries is not None:
            return bags.queries
        if self.query == "constant":
            return np.ones((bags.n, 1))
        blocks = bags.blocks()
        return np.concatenate([table_queries(b.rows, b.offsets, self.query) for _, b in blocks])

    def _reading(self, bags: Bags, queries: FloatArray) -> Reading:
        layer = self._layer()
        return joined_readings(
            [layer.read(b.rows, b.offsets, queries[at]) for at, b in bags.blocks()]
        )

    def _read(self, X: Any, bag_ids: ArrayLike | None) -> tuple[Bags, Reading]:
        bags, queries = self._unlabelled(X, bag_ids)
        return bags, self._reading(bags, queries)


def joined_readings(readings: list[Reading]) -> Reading:
    """The reading of bags from those of some at a time."""
    names = [field.name for field in fields(Reading)]
    return Reading(
        *(np.concatenate([getattr(reading, name) for reading in readings]) for name in names)
    )


def places(X: Any, bags: Bags) -> IntArray:
    """``(N,)``: the position of each instance in its bag, as the caller counts."""
    if isinstance(X, AttentionData):
        return np.nonzero(X.mask)[1]
    return np.arange(bags.offsets[-1]) - np.repeat(bags.offsets[:-1], bags.lengths)


def padded(bags: Bags, at: IntArray, labels: ArrayLike, queries: FloatArray) -> AttentionData:
    """Sequences with each instance in its place; labels above zero are +1."""
    tokens = np.zeros((bags.n, int(at.max()) + 1, bags.d))
    mask = np.zeros(tokens.shape[:2], dtype=np.bool_)
    tokens[bags.bag, at], mask[bags.bag, at] = np.asarray(bags.rows), True
    signs = np.where(np.asarray(labels) > 0, 1.0, -1.0)
    return AttentionData(given_away(tokens), signs, queries, mask)


def class_weights(
    class_weight: dict[Any, Any] | Literal["balanced"] | None,
    classes: np.ndarray[Any, Any],
    labels: IntArray,
    weights: FloatArray,
) -> FloatArray:
    """``(K,)`` weights of the classes: those of a dictionary, one where it says nothing;
    ``balanced``: such that every class weighs the same.

    Raises:
        InputError: a weight that is not positive and finite, an unknown class, or a class whose
            bags all weigh nothing.
    """
    totals = np.bincount(labels, weights, minlength=len(classes))
    if not totals.all():
        raise InputError(
            f"every bag of class {classes[np.argmin(totals)]} has sample_weight 0; give one of"
            " each class a positive weight, or drop the class"
        )
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, str):
        return totals.sum() / (len(classes) * totals)
    known = dict(zip(classes.tolist(), range(len(classes)), strict=True))
    by_class = np.ones(len(classes))
    for label, weight in class_weight.items():
        if label not in known:
            raise InputError(
                f"class_weight names class {label!r}, which y does not hold; its classes are"
                f" {', '.join(map(str, classes))}"
            )
        if not (isinstance(weight, float | int | np.number) and 0.0 < weight < np.inf):
            raise InputError(
                f"class_weight of class {label} is {weight!r}; it must be positive and finite"
            )
        by_class[known[label]] = float(weight)
    return by_class


def _weights(sample_weight: Any, bags: Bags) -> FloatArray:
    """``(n,)`` weights of bags, checked."""
    if sample_weight is None:
        return np.ones(bags.n)
    weights = per_bag("sample_weight", sample_weight, bags, "weight").astype(np.float64)
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise InputError("sample_weight must be finite, not negative, and not zero everywhere")
    return weights


def _groups(groups: Any, bags: Bags) -> np.ndarray[Any, Any]:
    """``(n,)`` groups of bags, checked."""
    try:
        return per_bag("groups", groups, bags, "group")
    except InputError as error:
        if np.shape(groups) != (bags.offsets[-1],):
            raise
        raise InputError(f"{error}; the bag of each row is bag_ids") from None


def _without_weightless(training: TrainingBags, used: IntArray) -> TrainingBags:
    """The bags of positive weight, at the positions ``used``."""
    if len(used) == training.bags.n:
        return training
    cv, groups = training.cv, training.groups
    if cv is not None and not hasattr(cv, "split") and not isinstance(cv, Integral):
        positions = np.full(training.bags.n, -1)
        positions[used] = np.arange(len(used))
        cv = [tuple(at[at >= 0] for at in (positions[a], positions[b])) for a, b in cv]
    return replace(
        training,
        bags=training.bags.take(used),
        queries=training.queries[used],
        labels=training.labels[used],
        weights=training.weights[used],
        groups=None if groups is None else groups[used],
        cv=cv,
    )


def _warn_of_chance(line: Calibration, weights: FloatArray) -> None:
    """Warn where bags left out are not predicted better than by the shares of the classes: where
    twice the logarithm of the likelihood ratio is below the 90 % point of its distribution.
    """
    from scipy.stats import chi2

    bags = weights.sum() ** 2 / np.sum(weights**2)  # the effective size of a weighted sample
    if 2.0 * bags * (line.chance - line.loss) < chi2.ppf(0.9, df=1):
        warnings.warn(
            "bags left out are not predicted better than by chance (log loss"
            f" {line.loss:.3f}; the shares of the classes alone have {line.chance:.3f}): trust"
            " neither predictions nor selected instances",
            ChanceWarning,
            stacklevel=3,
        )


def _one_column(values: FloatArray) -> FloatArray:
    return np.asarray(values[:, 0] if values.shape[1] == 1 else values)
