"""Features of instances for bags: an ordinary transformer of rows, applied to bags."""

from __future__ import annotations

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


class TakesBags:
    """An estimator that takes more than one table."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags

    def _new_bags(self, X: Any, groups: ArrayLike | None) -> Bags:
        """Bags with as many features as those of the fit."""
        check_is_fitted(self)
        bags, d = as_bags(X, groups), self.n_features_in_  # type: ignore[attr-defined]
        if bags.d != d:
            raise InputError(
                f"X has {bags.d} features per instance; this {type(self).__name__} was fitted with"
                f" {d}"
            )
        return bags


class BagTransformer(TakesBags, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer of bags."""

    def set_output(self, *, transform: str | None = None) -> Self:
        """Bags come out whatever table is asked for; a pipeline that holds this step can then set
        the output of its other steps.
        """
        return self


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

    Attributes:
        instances_, context_: the fitted transformers, None where there is none.
        n_features_in_: features of an instance.

    >>> from sklearn.preprocessing import StandardScaler
    >>> from attsvm.sklearn import BagFeatures
    >>> bags = [[[1.0], [3.0]], [[5.0]]]
    >>> BagFeatures(StandardScaler()).fit(bags).transform(bags).rows.round(2).tolist()
    [[-1.22], [0.0], [1.22]]
    """

    def __init__(self, instances: Any = None, context: Any = None) -> None:
        self.instances = instances
        self.context = context

    def fit(self, X: Any, y: ArrayLike | None = None, *, groups: ArrayLike | None = None) -> Any:
        """Fit the transformers to bags; ``y`` has no part in it.

        Raises:
            InputError: unusable bags, or nothing left of an instance.
        """
        bags = as_bags(X, groups)
        if isinstance(self.instances, str) and self.instances != "drop":
            raise InputError(f"instances is {self.instances!r}; give a transformer, None or 'drop'")
        if isinstance(self.instances, str) and self.context is None:
            raise InputError("instances are dropped and there is no context, so nothing is left")
        self.n_features_in_ = bags.d
        self.instances_ = (
            None
            if self.instances is None or isinstance(self.instances, str)
            else clone(self.instances).fit(bags.rows)
        )
        self.context_ = None if self.context is None else clone(self.context).fit(_statistics(bags))
        return self

    def transform(self, X: Any, *, groups: ArrayLike | None = None) -> Bags:
        """Bags of the new features, as :class:`~attsvm.datasets.bags.Bags`, which every estimator
        of attsvm takes.

        Raises:
            InputError: unusable bags, or another number of features than in :meth:`fit`.
        """
        bags, parts = self._new_bags(X, groups), []
        if not isinstance(self.instances, str):
            parts.append(bags.rows if self.instances_ is None else _rows(self.instances_, bags))
        if self.context_ is not None:
            context = _dense(self.context_.transform(_statistics(bags)))
            parts.append(np.repeat(context, bags.lengths, axis=0))
        rows = parts[0] if len(parts) == 1 else np.hstack(parts)
        return Bags(rows, bags.offsets, bags.labels, bags.source)


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

    def fit(self, X: Any, y: ArrayLike | None = None, *, groups: ArrayLike | None = None) -> Any:
        """Fit to bags; ``y`` has no part in it."""
        from sklearn.compose import ColumnTransformer

        bags = as_bags(X, groups)
        d, count = bags.d, min(self.n_components, bags.n)
        parts = [
            ("mean", self._kernel(self.mean / (2 * d), count), slice(0, d)),
            ("extremes", self._kernel(self.extremes / (4 * d), count), slice(d, 3 * d)),
        ]
        self.n_features_in_ = d
        self.features_ = BagFeatures(
            FunctionTransformer(_divided, kw_args={"by": np.sqrt(d)}),
            context=ColumnTransformer(parts),
        ).fit(bags)
        return self

    def _kernel(self, gamma: float, count: int) -> Any:
        from sklearn.kernel_approximation import Nystroem

        features = Nystroem(gamma=gamma, n_components=count, random_state=self.random_state)
        return make_pipeline(StandardScaler(), features)

    def transform(self, X: Any, *, groups: ArrayLike | None = None) -> Bags:
        """Bags of the instances, divided by the root of ``d``, and the features of their bag.

        Raises:
            InputError: unusable bags, or another number of features than in :meth:`fit`.
        """
        bags = self._new_bags(X, groups)
        found: Bags = self.features_.transform(bags)
        return found


def _divided(rows: FloatArray, by: float) -> FloatArray:
    return rows / by


def _statistics(bags: Bags) -> FloatArray:
    """``(n, 3 d)``: mean, smallest and largest value of each feature."""
    starts = bags.offsets[:-1]
    return np.hstack(
        [
            np.add.reduceat(bags.rows, starts, axis=0) / bags.lengths[:, None],
            np.minimum.reduceat(bags.rows, starts, axis=0),
            np.maximum.reduceat(bags.rows, starts, axis=0),
        ]
    )


def _rows(transformer: Any, bags: Bags) -> FloatArray:
    rows = _dense(transformer.transform(bags.rows))
    if rows.ndim != 2 or len(rows) != len(bags.rows):
        raise InputError(
            f"the transformer made {rows.shape} of {bags.rows.shape}; it must keep the instances"
        )
    return rows


def _dense(array: Any) -> FloatArray:
    return np.ascontiguousarray(
        array.toarray() if hasattr(array, "toarray") else np.asarray(array), dtype=np.float64
    )
