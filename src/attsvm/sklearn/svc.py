"""AttentionSVC and WitnessSVC: bags of instances in, a classifier with its evidence out."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import Interval, StrOptions

from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray
from attsvm.datasets.bags import Bags
from attsvm.norms import Norm
from attsvm.sklearn.bag_classifier import CONSTRAINTS, BagClassifier, padded, places
from attsvm.sklearn.choosing import CONSTANT, Predictor, TrainingBags
from attsvm.sklearn.explaining import (
    Explanation,
    Limits,
    certify,
    explain_attention,
    explanation,
)
from attsvm.sklearn.layers import PooledLayer, WitnessLayer
from attsvm.sklearn.pooled import fit_pooled
from attsvm.sklearn.preparation import check_selectable, root_mean_square
from attsvm.sklearn.stage import Progress, StageOptions, Weights
from attsvm.sklearn.witnessed import fit_witnesses


class AttentionSVC(BagClassifier):
    r"""A softmax-attention classifier of bags: all instances have a say, each with its attention,

    .. math:: f(X, z) = \sum_h v_h^\top X^\top\mathrm{softmax}(X W_h z) + b.

    Training starts from mean pooling (:math:`W=0`) and minimises the loss with a penalty on
    attention and head (:mod:`attsvm.sklearn.penalised`). The penalty and the ratio of attention are
    chosen together, by bags left out in turn. Nothing depends on units: instances and queries are
    divided by their root-mean-square norms inside, and fitted weights are in the units of the data.

    For bags that are positive because of a single instance see :class:`WitnessSVC`.

    Args:
        heads: attention heads, which are added; 0 is uniform attention, which is mean pooling and
            looks at no query.
        query: how to make the query of a bag: ``constant`` is ``[1]``, ``first`` is the first
            instance, ``mean`` is ``[1, m / |m|] / sqrt(2)`` for the mean instance ``m``.
            :class:`~attsvm.AttentionData` has its own.
        pooling: ``soft``: attention; ``hard``: the one instance with the most attention decides.
            One head is then fitted to the expected loss of an instance drawn with attention,
            :math:`\sum_t a_t\,\ell(v^\top x_t+b)`, which is least where attention selects those
            that answer best alone; several heads are fitted as soft ones.
        penalty: on the weights, relative to the mean loss of a bag; ``"cv"`` chooses it on bags
            left out.
        class_weight: positive weights of the classes by label, ``"balanced"``, or None.
        cv: how bags are left out: a number of folds, a splitter of scikit-learn, or pairs of
            positions to fit to and to leave out; None for five folds, in which no group is torn
            apart.
        reject: bags whose decision value is closer to the runner-up class than this are rejected.
        random_state: seed of folds and starts.
        progress: True for bars on standard error; or a function that is called with stage name,
            steps done, steps in all.

    Attributes:
        classes_: the labels; of two, the negative one first.
        n_features_in_: features of an instance.
        feature_names_in_: names of the features, when fitted to data frames whose columns are
            named by texts.
        predictor_: the :class:`~attsvm.sklearn.choosing.Predictor` with its penalty, its ratio
            and its losses on bags left out.
        convex_steps_: the :class:`~attsvm.sklearn.minimise.ConvexStep` of mean pooling, with
            status, gap and violation.
        optimum_: ``global`` where attention is uniform and the problem convex, else ``local``.
        calibration_: slope of the logistic function of :meth:`predict_proba`.
        margins_: ``(n,)``: decision value of each training bag's class above that of the others, by
            models that did not see the bag.
        rejects_: positions of the training bags with ``margins_`` below ``reject``.

    >>> import numpy as np
    >>> from attsvm.sklearn import AttentionSVC
    >>> bags = np.random.default_rng(0).normal(size=(40, 5, 3))
    >>> labels = np.where(bags[:, :, 0].mean(axis=1) > 0, "up", "down")
    >>> model = AttentionSVC().fit(bags, labels)
    >>> model.predict(bags).shape, model.select(bags).shape
    ((40,), (40,))
    >>> bool(np.isclose(sum(model.contributions(bags)[0]), model.decision_function(bags)[0]))
    True
    """

    assumption = "collective"
    _parameter_constraints = {  # noqa: RUF012 - the name and form that scikit-learn looks for
        "heads": [Interval(Integral, 0, None, closed="left")],
        "query": [StrOptions({"mean", "constant", "first"})],
        **CONSTRAINTS,
    }

    def __init__(
        self,
        *,
        heads: int = 1,
        query: Literal["mean", "constant", "first"] = "constant",
        pooling: Literal["soft", "hard"] = "soft",
        penalty: float | Literal["cv"] = "cv",
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        cv: Any = None,
        reject: float = 0.0,
        random_state: int = 0,
        progress: Progress | bool | None = None,
    ) -> None:
        super().__init__(
            heads=heads,
            pooling=pooling,
            penalty=penalty,
            class_weight=class_weight,
            cv=cv,
            reject=reject,
            random_state=random_state,
            progress=progress,
        )
        self.query = query

    def _fitted_to(self, training: TrainingBags, penalty: float | None) -> Predictor:
        return fit_pooled(training, self.heads, self.pooling == "hard", penalty)

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
        at = places(X, bags)

        def sequences() -> AttentionData:
            return padded(bags, at, labels, queries).without_duplicates()

        layer = cast(PooledLayer, self._layer())
        V, intercept = layer.V[0], layer.intercept
        if V.shape[1] > 1:  # the class against the mean of the others
            V, intercept = V - V.mean(axis=1, keepdims=True), intercept - intercept.mean()
        column = positive if V.shape[1] > 1 else 0
        start = Weights(layer.W[0], V[:, column], float(intercept[column]))
        return explain_attention(sequences, start, norm, limits, options)


class WitnessSVC(BagClassifier):
    r"""A classifier of bags that are positive because of a witness: a negative bag holds none.

    Attention includes a null token, so that no instance can speak against a witness beside it
    (:mod:`attsvm.sklearn.witness`). The end is a local optimum, at which the convex step with the
    selection of the weights is certified. The penalty is chosen by bags left out in turn. Nothing
    depends on units. Instances are read in blocks and never copied.

    Where all instances have a say see :class:`AttentionSVC`.

    Args:
        heads: a positive bag of two classes needs a witness of each.
        pooling: ``soft``: all instances that may be the witness; ``hard``: the likeliest alone.
        penalty: on the weights, relative to the mean loss of a bag; ``"cv"`` chooses it on bags
            left out.
        class_weight: positive weights of the classes by label, ``"balanced"``, or None.
        cv: how bags are left out: a number of folds, a splitter of scikit-learn, or pairs of
            positions to fit to and to leave out; None for five folds, in which no group is torn
            apart.
        reject: bags whose decision value is closer to the runner-up class than this are rejected.
        random_state: seed of folds and starts.
        progress: True for bars on standard error; or a function that is called with stage name,
            steps done, steps in all.

    Attributes:
        classes_, n_features_in_, feature_names_in_: see :class:`AttentionSVC`.
        calibration_, margins_, rejects_: likewise.
        predictor_: the :class:`~attsvm.sklearn.choosing.Predictor` with its penalty and its
            losses on bags left out.
        convex_steps_: the :class:`~attsvm.sklearn.minimise.ConvexStep` of the final weights, each
            with status, gap and violation.
        optimum_: ``local``.

    >>> from attsvm.datasets import planted_witnesses
    >>> from attsvm.sklearn import WitnessSVC
    >>> bags = planted_witnesses("linear", n=60, instances=6, seed=0, d=4)
    >>> model = WitnessSVC().fit(bags, bags.labels)
    >>> model.score(bags) > 0.9, {step.status for step in model.convex_steps_}
    (True, {'optimal'})
    """

    assumption = "standard"
    _parameter_constraints = {  # noqa: RUF012
        "heads": [Interval(Integral, 1, None, closed="left")],
        **CONSTRAINTS,
    }

    def _fitted_to(self, training: TrainingBags, penalty: float | None) -> Predictor:
        return fit_witnesses(training, self.heads, self.pooling == "hard", penalty)

    def instance_probability(self, X: Any, *, bag_ids: ArrayLike | None = None) -> list[FloatArray]:
        r"""For each bag ``(T_i,)`` the probability that an instance is the witness, for heatmaps:
        :math:`e^{g_t}/(1+\sum_\tau e^{g_\tau})`, the share of attention with the null token.

        The sum over a bag is the probability that there is a witness, before the slope of
        :meth:`predict_proba`. Of several heads ``(T_i, heads)``; of three classes or more
        ``(T_i, K)``, which sum to one over instances and classes.
        """
        probabilities: list[FloatArray] = []
        for _, bags, _ in self._blocks(X, bag_ids):
            shares = cast(WitnessLayer, self._layer()).shares(bags.rows, bags.offsets)
            shares = shares[:, 0] if shares.shape[1] == 1 else shares
            probabilities += np.split(shares, bags.offsets[1:-1])
        return probabilities

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
        """The margin programme of witnesses and null tokens."""
        at, rows = places(X, bags), np.asarray(bags.rows, np.float64)
        check_selectable(padded(bags, at, labels, queries).without_duplicates())
        constant = np.full((len(rows), 1), CONSTANT * root_mean_square(rows))
        ends, nulls = bags.offsets[1:], at[bags.offsets[1:] - 1] + 1
        tokens = np.insert(np.hstack([rows, constant]), ends, 0.0, axis=0)
        wide = Bags(tokens, bags.offsets + np.arange(bags.n + 1), None, np.arange(len(tokens)))
        ones = np.ones((bags.n, 1))
        data = padded(wide, np.insert(at, ends, nulls), labels, ones).without_duplicates()
        reading = self._reading(bags, queries)
        column = positive if reading.selected.shape[1] > 1 else 0
        witness = at[bags.offsets[:-1] + reading.selected[:, column]]
        selected = np.where(labels > 0, witness, nulls)
        certified = certify(data, selected, norm, limits, options.progress)
        return explanation(data, witness, certified)
