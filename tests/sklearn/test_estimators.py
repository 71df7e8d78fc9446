"""What both estimators promise: scikit-learn's own checks where they apply, forms of bags, weights,
units, pickles, and a sentence for whatever they do not take.
"""

import pickle
import re

import numpy as np
import pytest
from made_bags import BOTH, make_bags
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

from attsvm import AttentionData
from attsvm.base.cores import thread_pools
from attsvm.base.errors import InputError
from attsvm.datasets import planted_witnesses
from attsvm.sklearn import AttentionSVC, BagFeatures, Limits, WitnessSVC


def planted(n=120, instances=8, seed=0):
    """Halves of bags of which the positive ones hold a witness."""
    bags = planted_witnesses("linear", n, instances, seed, d=5)
    return bags.take(np.arange(n // 2)), bags.take(np.arange(n // 2, n))


@BOTH
@pytest.mark.parametrize(
    "check",
    [
        "check_estimator_repr",
        "check_no_attributes_set_in_init",
        "check_estimator_cloneable",
        "check_get_params_invariance",
        "check_set_params",
        "check_do_not_raise_errors_in_init_or_set_params",
        "check_parameters_default_constructible",
        "check_estimator_tags_renamed",
        "check_valid_tag_types",
        "check_mixin_order",
        "check_param_validation",
    ],
)
def test_scikit_learns_own_checks_that_need_no_flat_table(check, kind):
    # The other checks fit a two-dimensional table of features, which a bag of tokens is not.
    getattr(estimator_checks, check)(kind.__name__, kind())


@BOTH
def test_fitted_attributes_and_the_pickle_describe_the_model_not_the_data(kind):
    train, test = planted(600, 10)
    model = kind(penalty=1e-3).fit(train, train.labels)
    assert model.n_features_in_ == 5
    assert model.classes_.tolist() == [-1, 1]
    assert model.margins_.shape == (train.n,)
    assert np.array_equal(model.rejects_, np.flatnonzero(model.margins_ < 0.0))
    assert not hasattr(model, "steps")  # by which tools tell pipelines from estimators
    kept = pickle.dumps(model)
    assert len(kept) < 10_000 < 8 * train.rows.size
    again = pickle.loads(kept)
    assert np.array_equal(again.decision_function(test), model.decision_function(test))
    with pytest.raises(NotFittedError):
        clone(model).predict(test)


@BOTH
def test_products_of_a_fit_take_one_thread(kind):
    train, _ = planted(60)
    seen = []

    def look(stage, done, total):
        seen.extend(pool.num_threads for pool in thread_pools("blas", scipy=True))

    kind(penalty=1e-3, progress=look).fit(train, train.labels)
    assert set(seen) == {1}


@BOTH
def test_a_table_with_bag_ids_is_the_list_of_its_bags(kind):
    train, test = planted(60)
    bags = np.split(train.rows, train.offsets[1:-1])
    given = kind(penalty=1e-3).fit(bags, train.labels)
    ids = np.repeat([f"bag {i}" for i in range(train.n)], train.lengths)
    table = kind(penalty=1e-3).fit(train.rows, train.labels, bag_ids=ids)
    values = given.decision_function(test)
    assert np.array_equal(values, table.decision_function(test.rows, bag_ids=test.bag))
    right = np.mean(given.predict(test) == test.labels)
    assert table.score(test.rows, test.labels, bag_ids=test.bag) == right == given.score(test)
    weights = np.where(test.labels > 0, 3.0, 1.0)
    assert given.score(test, test.labels, weights) == pytest.approx(
        np.average(given.predict(test) == test.labels, weights=weights)
    )


@BOTH
def test_three_classes_have_probabilities_contributions_and_selections(kind):
    generator = np.random.default_rng(0)
    labels = np.array(["a", "b", "c"])[np.arange(90) % 3]
    bags = []
    for k in np.arange(90) % 3:
        bag = generator.normal(size=(5, 4))
        bag[generator.integers(5), k] += 8.0
        bags.append(bag)
    model = kind().fit(bags[:60], labels[:60])
    assert model.score(bags[60:], labels[60:]) >= 0.9
    probability = model.predict_proba(bags[60:])
    assert probability.shape == (30, 3)
    np.testing.assert_allclose(probability.sum(axis=1), 1.0, rtol=1e-12)
    values, parts = model.decision_function(bags), model.contributions(bags)
    np.testing.assert_allclose([part.sum(axis=0) for part in parts], values, atol=1e-9)
    carrier = [np.argmax(bag[:, k]) for bag, k in zip(bags, np.arange(90) % 3, strict=True)]
    assert np.mean(model.select(bags) == carrier) >= 0.9
    assert [len(scores) for scores in model.decision_function_instances(bags)] == [5] * 90
    first = [int(part[0]) for part in model.evidence(bags).instances]
    assert first == model.select(bags).tolist()
    with pytest.raises(
        InputError, match="there are 3 classes, and explain tells one from the others"
    ):
        model.explain(bags)


@BOTH
def test_the_instance_that_decides_contributes_most_to_the_prediction(kind):
    bags, labels = make_bags(n=24)  # of two to six instances
    model = kind(penalty=1e-2).fit(bags, labels)
    values, parts = model.decision_function(bags), model.contributions(bags)
    assert min((values > 0).sum(), (values < 0).sum()) >= 5
    # a witness speaks for the positive class, in a negative bag too
    toward = np.ones(24) if kind is WitnessSVC else np.sign(values)
    best = [np.argmax(sign * part) for sign, part in zip(toward, parts, strict=True)]
    assert model.select(bags).tolist() == best
    # places are counted as the caller counts, with hidden ones before and between
    tokens, mask = np.zeros((24, 16, 6)), np.zeros((24, 16), dtype=bool)
    for i, bag in enumerate(bags):
        at = i % 5 + 2 * np.arange(len(bag))
        tokens[i, at], mask[i, at] = bag, True
    data = AttentionData(tokens, np.sign(values), np.ones((24, 1)), mask)
    expected = (np.arange(24) % 5 + 2 * np.array(best)).tolist()
    assert model.select(data).tolist() == expected
    assert [int(part[0]) for part in model.evidence(data).instances] == expected


@BOTH
def test_units_do_not_matter(kind):
    bags, labels = make_bags(n=24)
    fitted, other = (
        kind(penalty=1e-2).fit([c * bag for bag in bags], labels) for c in (1.0, 1024.0)
    )
    np.testing.assert_allclose(
        other.decision_function([1024.0 * bag for bag in bags]), fitted.decision_function(bags)
    )


@BOTH
def test_a_weight_of_four_is_a_bag_given_four_times(kind):
    bags, labels = make_bags(n=30)
    labels[0] = "dog"  # a wrong label, so that its weight matters
    weighted = kind(penalty=1e-2).fit(bags, labels, sample_weight=np.r_[1.0, np.full(29, 0.25)])
    repeated = kind(penalty=1e-2).fit([bags[0]] * 3 + bags, [labels[0]] * 3 + list(labels))
    plain = kind(penalty=1e-2).fit(bags, labels)
    values, same, other = (model.decision_function(bags) for model in (weighted, repeated, plain))
    # both end within a gap of 1e-6 of the same least, of which the values are a root
    np.testing.assert_allclose(values, same, atol=3e-3 * np.abs(values).max())
    assert np.abs(values - other).max() > 0.1 * np.abs(values).max()


@BOTH
def test_equal_seeds_give_equal_bits_and_padding_does_not_matter(kind):
    bags, labels = make_bags(24)
    model, again = (kind().fit(bags, labels) for _ in range(2))
    values = model.decision_function(bags)
    assert np.array_equal(values, again.decision_function(bags))
    alone = np.concatenate([model.decision_function([bag]) for bag in bags])
    np.testing.assert_allclose(alone, values, rtol=1e-11, atol=1e-11)


@BOTH
def test_rejects_are_the_bags_below_the_threshold(kind):
    bags, labels = make_bags(n=40)
    model = kind(reject=1.0, penalty=1e-2).fit(bags, labels)
    assert np.array_equal(model.rejects_, np.flatnonzero(model.margins_ < 1.0))
    found = model.evidence(bags)
    assert np.array_equal(found.rejected, np.abs(model.decision_function(bags)) < 1.0)


def test_a_grid_over_parameters_and_a_cross_validation_of_bags():
    train, test = planted(n=40, instances=5)
    bags = np.split(train.rows, train.offsets[1:-1])
    pipeline = make_pipeline(BagFeatures(StandardScaler()), WitnessSVC(penalty=1e-3))
    search = GridSearchCV(pipeline, {"witnesssvc__pooling": ["soft", "hard"]}, cv=2)
    search.fit(bags, train.labels)
    assert search.predict(np.split(test.rows, test.offsets[1:-1])).shape == (test.n,)
    assert cross_val_predict(pipeline, bags, train.labels, cv=2).shape == (train.n,)
    assert "WitnessSVC" in search.best_estimator_._repr_html_()
    assert cross_val_score(AttentionSVC(penalty=1e-2), *make_bags(n=40), cv=2).mean() >= 0.8


@BOTH
def test_new_bags_of_another_width_are_refused(kind):
    bags, labels = make_bags(20)
    model = kind(penalty=1e-2).fit(bags, labels)
    sentence = f"X has 5 features per instance; this {kind.__name__} was fitted with 6"
    with pytest.raises(InputError, match=sentence):
        model.predict([np.zeros((2, 5))])


BAGS, LABELS = make_bags(n=12)
CUBE, HALVES = np.ones((12, 3, 2)), np.arange(12) % 2


@BOTH
@pytest.mark.parametrize(
    ("X", "y", "sentence"),
    [
        (BAGS, ["cat"] * 12, r"y holds one class only \(cat\)"),
        (BAGS, [1] * 11 + [0], "class 0 has one bag"),
        (BAGS, np.repeat(LABELS, [len(bag) for bag in BAGS]), "one per instance; give one per bag"),
        (BAGS, np.linspace(0, 1, 12), "y holds continuous values"),
        (BAGS, LABELS[:-1], r"y has shape \(11,\); it must be \(12,\)"),
        (BAGS, None, "y is missing"),
        ([*BAGS[:-1], np.nan * BAGS[-1]], LABELS, "bag 11 holds nan"),
        ([*BAGS[:-1], BAGS[-1][:, :3]], LABELS, "bag 11 has 3 features"),
        ([*BAGS[:-1], BAGS[-1][:0]], LABELS, "bag 11 has no instances"),
        ([1e200 * bag for bag in BAGS], LABELS, "the ends of float64"),
        ([1e-308 * bag for bag in BAGS], LABELS, "the ends of float64"),
        (HALVES, CUBE, r"X holds one label .* fit\(bags, labels\)"),
        ([0, 1] * 6, [[[1.0]], [[1.0], [2.0]]] * 6, "X holds one label per bag"),
        (
            CUBE[0].repeat(4, 0),
            HALVES,
            r"a table of 12 rows.* in BagFeatures\(StandardScaler\(\)\)",
        ),
        ("digits.npz", [0, 1], "X is 'digits.npz'; give a list of bags"),
        (7, [0, 1], "X is 7; give a list of bags"),
        ({"a": 1}, [0], r"bag 0 has shape \(\); a bag is a table of instances"),
        (CUBE, np.full(12, np.nan), "y holds no label for bag 0"),
        (CUBE, np.ones((12, 2)), r"y has shape \(12, 2\); it must be \(12,\)"),
    ],
)
def test_bad_bags_are_one_sentence(X, y, sentence, kind):
    with pytest.raises(InputError, match=sentence) as refused:
        kind().fit(X, y)
    assert "\n" not in str(refused.value)
    assert "--" not in str(refused.value)


@BOTH
@pytest.mark.filterwarnings("ignore:bags left out are not predicted")
def test_two_bags_of_a_class_are_enough(kind):
    assert kind(penalty=1e-2).fit(BAGS, [1] * 10 + [0] * 2).classes_.tolist() == [0, 1]


@BOTH
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("penalty", -1.0),
        ("penalty", None),
        ("pooling", "both"),
        ("heads", -1),
        ("random_state", -1),
        ("progress", 3),
    ],
)
def test_bad_parameters_are_one_sentence(name, value, kind):
    with pytest.raises(InputError, match=f"The '{name}' parameter of {kind.__name__} must"):
        kind(**{name: value}).fit(BAGS, LABELS)


@BOTH
@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (np.ones(11), r"sample_weight has shape \(11,\); it must be \(12,\)"),
        (np.r_[-1.0, np.ones(11)], "sample_weight must be finite, not negative"),
        (np.r_[np.nan, np.ones(11)], "sample_weight must be finite, not negative"),
        (np.r_[np.inf, np.ones(11)], "sample_weight must be finite, not negative"),
        (np.zeros(12), "not zero everywhere"),
    ],
)
def test_weights_that_are_none_are_one_sentence(weights, sentence, kind):
    with pytest.raises(InputError, match=sentence):
        kind(penalty=1e-2).fit(BAGS, LABELS, sample_weight=weights)


def test_parameters_are_those_that_the_model_reads():
    assert len(AttentionSVC().get_params()) <= 9
    assert len(WitnessSVC().get_params()) <= 8
    with pytest.raises(InputError, match="The 'heads' parameter of WitnessSVC"):
        WitnessSVC(heads=0).fit(*make_bags(12))
    with pytest.raises(InputError, match="The 'query' parameter of AttentionSVC must be a str"):
        AttentionSVC(query="magic").fit(*make_bags(12))


@BOTH
def test_progress_rises_to_its_end(kind):
    told = []
    kind(penalty=1e-2, progress=lambda *step: told.append(step)).fit(BAGS, LABELS)
    stages, done, total = zip(*told, strict=True)
    assert set(stages) == {"predictor"}
    assert list(done) == sorted(done)
    assert set(total) == {done[-1]}


@BOTH
def test_bars_of_progress(capsys, kind):
    bags, labels = make_bags(n=24)
    model = kind(penalty=1e-2, progress=True).fit(bags, labels)
    model.explain(bags, labels, limits=Limits(steps=50))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "predictor" in shown.err
    assert bool(re.search(r"selection: \d+ of \d+", shown.err)) == (kind is AttentionSVC)
    assert "margin: solving" in shown.err
    quiet = kind(penalty=1e-2, progress=False).fit(bags, labels)
    assert capsys.readouterr().err == ""
    assert np.array_equal(model.decision_function(bags), quiet.decision_function(bags))
    assert clone(model).progress is True
