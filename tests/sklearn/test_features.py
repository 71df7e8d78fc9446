"""Features of instances: the transformer's own numbers, bag by bag."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, StandardScaler

from attsvm.base.errors import InputError
from attsvm.sklearn import AttentionSVC, BagContext, BagFeatures, WitnessSVC


def bags(seed=0, n=8):
    generator = np.random.default_rng(seed)
    return [generator.normal(size=(generator.integers(1, 5), 3)) for _ in range(n)]


def test_instances_are_transformed_as_the_rows_of_one_table():
    given = bags()
    found = BagFeatures(StandardScaler()).fit(given).transform(given)
    rows = np.concatenate(given)
    np.testing.assert_allclose(found.rows, (rows - rows.mean(axis=0)) / rows.std(axis=0))
    assert found.lengths.tolist() == [len(bag) for bag in given]


def test_the_context_of_a_bag_is_in_each_of_its_instances():
    given = bags()
    found = BagFeatures(context=FunctionTransformer()).fit(given).transform(given)
    for i, bag in enumerate(given):
        context = np.concatenate([bag.mean(axis=0), bag.min(axis=0), bag.max(axis=0)])
        np.testing.assert_allclose(found[i], np.hstack([bag, np.tile(context, (len(bag), 1))]))
    alone = BagFeatures("drop", context=FunctionTransformer()).fit(given).transform(given)
    np.testing.assert_array_equal(alone.rows, found.rows[:, 3:])


def test_the_size_of_a_bag_is_one_more_feature():
    given = [np.full((count, 1), 3.0) for count in (1, 4, 16)]
    features = BagFeatures(size=True).fit(given)
    scaled = np.array([-1.0, 0.0, 1.0]) * np.sqrt(1.5)  # logarithms at equal distances
    expected = np.column_stack([np.full(21, 3.0), np.repeat(scaled, [1, 4, 16])])
    np.testing.assert_allclose(features.transform(given).rows, expected, atol=1e-12)
    larger = features.transform([np.zeros((64, 1))]).rows  # in the units of the fit
    np.testing.assert_allclose(larger[:, 1], 2.0 * np.sqrt(1.5))
    alone = BagFeatures("drop", size=True).fit(given).transform(given)
    np.testing.assert_allclose(alone.rows, expected[:, 1:], atol=1e-12)
    equal = BagFeatures(size=True).fit([np.zeros((7, 1))] * 3).transform([np.zeros((7, 1))])
    np.testing.assert_allclose(equal.rows, 0.0, atol=1e-12)


def test_nystroem_features_with_uniform_attention_are_the_mean_map_kernel():
    given = bags(n=6)
    rows = np.concatenate(given)
    mapped = BagFeatures(Nystroem(gamma=0.3, n_components=len(rows))).fit(given).transform(given)
    means = np.array([mapped[i].mean(axis=0) for i in range(6)])
    kernel = [[rbf_kernel(a, b, gamma=0.3).mean() for a in given] for b in given]
    np.testing.assert_allclose(means @ means.T, kernel, atol=1e-8)


def test_a_length_is_learned_through_squares():
    generator = np.random.default_rng(0)
    shells, labels = generator.normal(size=(80, 5, 4)), np.arange(80) % 2
    shells[labels > 0, 0] *= 8.0 / np.linalg.norm(shells[labels > 0, 0], axis=1, keepdims=True)
    squares = BagFeatures(PolynomialFeatures(2, include_bias=False)).fit(shells[:50])
    fitted = WitnessSVC().fit(squares.transform(shells[:50]), labels[:50])
    assert fitted.score(squares.transform(shells[50:]), labels[50:]) >= 0.9
    assert (fitted.select(squares.transform(shells))[labels > 0] == 0).mean() >= 0.9


@pytest.mark.filterwarnings("ignore:bags left out are not predicted")
def test_a_pipeline_with_bags_may_set_the_output_of_its_steps():
    given, labels = bags(n=12), np.arange(12) % 2
    pipeline = make_pipeline(BagFeatures(StandardScaler()), AttentionSVC(penalty=0.01))
    expected = pipeline.fit(given, labels).decision_function(given)
    asked = clone(pipeline).set_output(transform="default").fit(given, labels)
    np.testing.assert_array_equal(asked.decision_function(given), expected)


@pytest.mark.parametrize(
    ("features", "sentence"),
    [
        (BagFeatures("scale"), "instances is 'scale'; give a transformer"),
        (BagFeatures("drop"), "nothing is left"),
    ],
)
def test_bad_parameters_are_one_sentence(features, sentence):
    with pytest.raises(InputError, match=sentence):
        features.fit(bags())


def test_a_transformer_that_loses_instances_is_refused():
    given = bags()
    for lossy in (lambda rows: rows[:-1], lambda rows: rows[:, 0]):
        with pytest.raises(InputError, match="it must keep the instances"):
            BagFeatures(FunctionTransformer(lossy)).fit(given).transform(given)


@pytest.mark.parametrize("features", [BagFeatures(), BagContext()])
def test_features_are_fitted_first(features):
    with pytest.raises(NotFittedError):
        features.transform(bags())


def test_another_width_is_refused():
    fitted = BagFeatures(StandardScaler()).fit(bags())
    assert {"instances", "context"} <= clone(fitted).get_params().keys()
    with pytest.raises(InputError, match="X has 2 features per instance; this BagFeatures was"):
        fitted.transform([np.zeros((2, 2))])


def test_the_context_transformer_is_the_same_for_equal_bags_and_sees_the_whole_bag():
    given = bags(n=30)
    fitted = BagContext(n_components=10).fit(given)
    found = fitted.transform(given)
    assert found.d == 3 + 2 * 10
    for i, bag in enumerate(given):
        np.testing.assert_allclose(found[i][:, :3], bag / np.sqrt(3))
        assert (found[i][:, 3:] == found[i][0, 3:]).all()
    shuffled = fitted.transform([bag[::-1] for bag in given])
    np.testing.assert_allclose(shuffled[4][0, 3:], found[4][0, 3:], atol=1e-12)
    assert BagContext().fit(given).transform(given).d == 3 + 2 * 30  # no more than bags
    with pytest.raises(InputError, match="X has 2 features per instance; this BagContext was"):
        fitted.transform([np.zeros((2, 2))])


def test_the_kernels_of_the_context_have_the_widths_that_are_documented():
    # with a component for each bag Nystroem's features are exact on the bags of the fit
    given = bags(n=12)
    context = BagContext(n_components=12, mean=5.0, extremes=3.0).fit(given).transform(given)
    features = np.array([context[i][0, 3:] for i in range(12)])
    means = np.array([bag.mean(axis=0) for bag in given])
    extremes = np.array([np.r_[bag.min(axis=0), bag.max(axis=0)] for bag in given])
    for part, found, gamma in (
        (means, features[:, :12], 5.0 / (2 * 3)),
        (extremes, features[:, 12:], 3.0 / (4 * 3)),
    ):
        expected = rbf_kernel((part - part.mean(axis=0)) / part.std(axis=0), gamma=gamma)
        np.testing.assert_allclose(found @ found.T, expected, atol=1e-8)


def test_what_depends_on_the_spread_of_a_bag_is_learned_with_its_context():
    generator = np.random.default_rng(0)
    labels = np.arange(160) % 2
    given = generator.normal(size=(160, 8, 3)) * (1 + labels)[:, None, None]
    scores = [
        make_pipeline(BagFeatures(StandardScaler()), *steps, AttentionSVC(heads=0))
        .fit(given[:100], labels[:100])
        .score(given[100:], labels[100:])
        for steps in ([BagContext()], [])
    ]
    assert scores[0] >= 0.9
    assert scores[1] <= 0.7
