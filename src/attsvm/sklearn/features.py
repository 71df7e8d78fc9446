"""Features of instances for bags: an ordinary transformer of rows, applied to bags."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.validation import check_is_fitted

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import FloatArray
from attsvm.datasets.bags import Bags, as_bags
from sklearn import config_context


class TakesBags:
    """An estimator that takes more than one table."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags

    n_features_in_: int

    def _remember_features(self, bags: Bags) -> None:
        """Set ``n_features_in_``, and ``feature_names_in_`` where features have names."""
        self.n_features_in_ = bags.d
        if bags.feature_names is not None:
            self.feature_names_in_ = bags.feature_names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _new_bags(self, X: Any, bag_ids: ArrayLike | None) -> Bags:
        """Bags with as many features as those of the fit, of the same names in the same order."""
        check_is_fitted(self)
        bags, d, kind = as_bags(X, bag_ids), self.n_features_in_, type(self).__name__
        fitted, names = getattr(self, "feature_names_in_", None), bags.feature_names
        if fitted is not None and names is not None and list(fitted) != list(names):
            different = [*sorted({*fitted} ^ {*names}), *names[: len(fitted)]]
            raise InputError(
                "feature names should match those that were passed during fit, in the same order;"
                f" {different[0]!r} is the first that does not: give X[model.feature_names_in_]"
            )
        if bags.d != d:
            raise InputError(
                f"X has {bags.d} features per instance; this {kind} was fitted with {d}"
            )
        if (fitted is None) != (names is None) and not isinstance(X, Bags):
            warnings.warn(
                f"X has feature names, but {kind} was fitted without feature names"
                if fitted is None
                else f"X has no feature names, but {kind} was fitted with feature names",
                stacklevel=3,
            )
        return bags


class BagTransformer(TakesBags, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer of bags."""

    def set_output(self, *, transform: str | None = None) -> Self:
        """Bags come out whatever table is asked for; a pipeline that holds this step can then set
        the output of its other steps.
        """
        return self

    @abstractmethod
    def fit(self, X: Any, y: ArrayLike | None = None, *, bag_ids: ArrayLike | None = None) -> Self:
        """Fit to bags."""

    @abstractmethod
    def transform(self, X: Any, *, bag_ids: ArrayLike | None = None) -> Bags:
        """Bags of the new features."""

    def fit_transform(
        self, X: Any, y: ArrayLike | None = None, *, bag_ids: ArrayLike | None = None
    ) -> Bags:
        """Fit to bags and transform them."""
        bags = as_bags(X, bag_ids)
        return self.fit(bags, y).transform(bags)


class BagFeatures(BagTransformer):
    """Instances of bags through transformers of rows: scaling, Nystroem or random features, PCA.

    ``make_pipeline(BagFeatures(StandardScaler()), BagFeatures(Nystroem(gamma=0.1)),
    AttentionSVC())`` is a kernel method on bags.

    Args:
        instances: a transformer of tables, fitted to the instances of all bags; None leaves them as
            they are, ``"drop"`` leaves them out.
        context: a transformer of tables, fitted to one row per bag: the mean, the smallest and the
            largest value of each feature, ``(n, 3 d)``. What it makes of a bag is appended to each
            of its instances. None for no context. With it an instance is no longer judged by
            itself, so it does not go with :class:`~attsvm.sklearn.WitnessSVC`.
        size: whether the logarithm of the number of instances of the bag, scaled to mean 0 and
            deviation 1 over bags, is one more feature. The more instances there are, the more of
            them look like a witness by chance.

    Attributes:
        instances_, context_: the fitted transformers, None where there is none.
        size_: mean and deviation of the logarithms, None without ``size``.
        n_features_in_: features of an instance.
        feature_names_in_: their names, when fitted to data frames.

    >>> from sklearn.preprocessing import StandardScaler
    >>> from attsvm.sklearn import BagFeatures
    >>> bags = [[[1.0], [3.0]], [[5.0]]]
    >>> BagFeatures(StandardScaler()).fit(bags).transform(bags).rows.round(2).tolist()
    [[-1.22], [0.0], [1.22]]
    """

    def __init__(self, instances: Any = None, context: Any = None, *, size: bool = False) -> None:
        self.instances = instances
        self.context = context
        self.size = size

    def fit(self, X: Any, y: ArrayLike | None = None, *, bag_ids: ArrayLike | None = None) -> Self:
        """Fit the transformers to bags; ``y`` has no part in it.

        Raises:
            InputError: unusable bags, or nothing left of an instance.
        """
        bags = as_bags(X, bag_ids)
        if isinstance(self.instances, str) and self.instances != "drop":
            raise InputError(f"instances is {self.instances!r}; give a transformer, None or 'drop'")
        if isinstance(self.instances, str) and self.context is None and not self.size:
            raise InputError("instances are dropped and there is no context, so nothing is left")
        self._remember_features(bags)
        scaled = not (self.instances is None or isinstance(self.instances, str))
        with config_context(transform_output="default"):
            self.instances_ = clone(self.instances).fit(np.asarray(bags.rows)) if scaled else None
            self.context_ = (
                None if self.context is None else clone(self.context).fit(_statistics(bags))
            )
        logs = np.log(bags.lengths)
        deviation = float(logs.std()) if np.ptp(bags.lengths) else 1.0
        self.size_ = (float(logs.mean()), deviation) if self.size else None
        return self

    def transform(self, X: Any, *, bag_ids: ArrayLike | None = None) -> Bags:
        """Bags of the new features, as :class:`~attsvm.datasets.bags.Bags`, which every estimator
        of attsvm takes.

        Raises:
            InputError: unusable bags, or another number of features than in :meth:`fit`.
        """
        bags, blocks = self._new_bags(X, bag_ids), []
        with config_context(transform_output="default"):
            if not isinstance(self.instances, str):
                blocks.append(
                    np.asarray(bags.rows)
                    if self.instances_ is None
                    else _rows(self.instances_, bags)
                )
            if self.context_ is not None:
                context = _dense(self.context_.transform(_statistics(bags)))
                blocks.append(np.repeat(context, bags.lengths, axis=0))
        if self.size_ is not None:
            mean, deviation = self.size_
            sizes = (np.log(bags.lengths) - mean) / deviation
            blocks.append(np.repeat(sizes, bags.lengths)[:, None])
        rows = blocks[0] if len(blocks) == 1 else np.hstack(blocks)
        return replace(bags, rows=rows, feature_names=None)


class BagContext(BagTransformer):
    """Instances with what their bag looks like: Nystroem features of its mean, and of its smallest
    and largest values.

    ``make_pipeline(BagFeatures(StandardScaler()), BagContext(), AttentionSVC(heads=0))`` is a
    kernel method on whole bags. An instance is no longer judged by itself.

    Args:
        n_components: Nystroem features of each part, at most as many as bags.
        mean: width of the kernel on means, for features of deviation one: its ``gamma`` is
            ``mean / (2 d)``.
        extremes: that on smallest and largest values, ``extremes / (4 d)``.
        random_state: seed of the Nystroem features.

    Attributes:
        features_: the fitted :class:`BagFeatures`.
        n_features_in_: features of an instance.
        feature_names_in_: their names, when fitted to data frames.

    >>> import numpy as np
    >>> from attsvm.sklearn import BagContext
    >>> bags = np.random.default_rng(0).normal(size=(30, 4, 2))
    >>> BagContext(n_components=10).fit(bags).transform(bags).rows.shape
    (120, 22)
    """

    def __init__(
        self,
        *,
        n_components: int = 80,
        mean: float = 4.0,
        extremes: float = 2.0,
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.mean = mean
        self.extremes = extremes
        self.random_state = random_state

    def fit(self, X: Any, y: ArrayLike | None = None, *, bag_ids: ArrayLike | None = None) -> Self:
        """Fit to bags; ``y`` has no part in it."""
        from sklearn.compose import ColumnTransformer

        bags = as_bags(X, bag_ids)
        d, count = bags.d, min(self.n_components, bags.n)
        kernels = [
            ("mean", self._kernel(self.mean / (2 * d), count), slice(0, d)),
            ("extremes", self._kernel(self.extremes / (4 * d), count), slice(d, 3 * d)),
        ]
        self._remember_features(bags)
        self.features_ = BagFeatures(
            FunctionTransformer(_divided, kw_args={"by": np.sqrt(d)}),
            context=ColumnTransformer(kernels),
        ).fit(replace(bags, feature_names=None))
        return self

    def _kernel(self, gamma: float, count: int) -> Any:
        from sklearn.kernel_approximation import Nystroem

        features = Nystroem(gamma=gamma, n_components=count, random_state=self.random_state)
        return make_pipeline(StandardScaler(), features)

    def transform(self, X: Any, *, bag_ids: ArrayLike | None = None) -> Bags:
        """Bags of the instances, divided by the root of ``d``, and the features of their bag.

        Raises:
            InputError: unusable bags, or another number of features than in :meth:`fit`.
        """
        bags = self._new_bags(X, bag_ids)
        return self.features_.transform(replace(bags, feature_names=None))


def _divided(rows: FloatArray, by: float) -> FloatArray:
    return rows / by


def _statistics(bags: Bags) -> FloatArray:
    """``(n, 3 d)``: mean, smallest and largest value of each feature."""
    starts, rows = bags.offsets[:-1], np.asarray(bags.rows, np.float64)
    return np.hstack(
        [
            np.add.reduceat(rows, starts, axis=0) / bags.lengths[:, None],
            np.minimum.reduceat(rows, starts, axis=0),
            np.maximum.reduceat(rows, starts, axis=0),
        ]
    )


def _rows(transformer: Any, bags: Bags) -> FloatArray:
    rows = _dense(transformer.transform(np.asarray(bags.rows)))
    if rows.ndim != 2 or len(rows) != bags.offsets[-1]:
        raise InputError(
            f"the transformer made {rows.shape} of {bags.rows.shape}; it must keep the instances"
        )
    return rows


def _dense(array: Any) -> FloatArray:
    return np.ascontiguousarray(
        array.toarray() if hasattr(array, "toarray") else np.asarray(array), dtype=np.float64
    )
