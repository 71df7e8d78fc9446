"""AttentionSVC: scikit-learn's own checks where they apply, and the theory's promises on bags."""

import pickle
import re

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.utils import estimator_checks

from attsvm import AttentionData
from attsvm.datasets import assumption_test, planted_witnesses
from attsvm.errors import InputError
from attsvm.fitting import layers
from attsvm.geometry import Schatten, parse_norm
from attsvm.sklearn import AttentionSVC, BagFeatures

FAST = {"explain": True, "joint_steps": 60, "selection_steps": 2000, "records": 20}


def make_bags(n=60, seed=0, d=6):
    """Bags of noise in which one token carries the label on its first feature and is marked by its
    second.
    """
    generator = np.random.default_rng(seed)
    labels = np.where(np.arange(n) % 2 == 0, "cat", "dog")
    bags = []
    for label in labels:
        bag = generator.normal(size=(generator.integers(2, 7), d)) * 0.5
        bag[generator.integers(len(bag)), :2] = (2.0 if label == "dog" else -2.0, 2.0)
        bags.append(bag)
    return bags, labels


@pytest.fixture(scope="module")
def fitted():
    bags, labels = make_bags()
    return AttentionSVC(**FAST).fit(bags, labels), bags, labels


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
def test_scikit_learns_own_checks_that_need_no_flat_table(check):
    # The other checks fit a two-dimensional table of features, which a bag of tokens is not.
    getattr(estimator_checks, check)("AttentionSVC", AttentionSVC(**FAST))


def test_fitted_attributes_describe_the_data_given(fitted):
    model, bags, _ = fitted
    assert list(model.classes_) == ["cat", "dog"]
    assert model.n_features_in_ == 6
    assert model.selected_tokens_.shape == (60,)
    assert all(
        0 <= token < len(bag) for token, bag in zip(model.selected_tokens_, bags, strict=True)
    )
    assert np.array_equal(
        np.union1d(model.train_indices_, model.validation_indices_), np.arange(60)
    )
    assert set(model.support_tokens_[:, 0]) <= set(model.train_indices_.tolist())
    sequence, token = model.support_tokens_[0]
    assert token != model.selected_tokens_[sequence]


def test_the_margin_is_certified_and_the_direction_approaches_it(fitted):
    model, bags, _ = fitted
    assert model.status_ == "optimal"
    assert model.solution_.gap <= model.solution_.tol == 1e-9
    W = model.solution_.W
    smallest = np.inf
    for i in model.train_indices_:
        tokens = np.asarray(bags[i])
        mean = tokens.mean(axis=0)
        query = np.concatenate([[1.0], mean / np.linalg.norm(mean)]) / np.sqrt(2.0)
        logits = tokens @ W @ query
        others = np.delete(logits, model.selected_tokens_[i])
        smallest = (
            min(smallest, logits[model.selected_tokens_[i]] - others.max())
            if len(others)
            else smallest
        )
    assert smallest == pytest.approx(1.0, abs=1e-9)
    assert model.margin_ == pytest.approx(1.0 / np.linalg.norm(W), rel=1e-12)
    gaps = model.trajectory_.direction_gap(W)
    assert gaps[-1] == pytest.approx(model.direction_gap_, rel=1e-6)
    assert gaps[-1] < 0.1 * gaps[1]


def test_it_learns_the_marked_token(fitted):
    model, _, _ = fitted
    bags, labels = make_bags(seed=7)
    for pooling in ("soft", "hard", "margin"):
        assert clone(model).get_params()["selection_steps"] == FAST["selection_steps"]
        model.set_params(pooling=pooling)
        assert model.score(bags, labels) >= 0.95
    marked = np.array([np.argmax(bag[:, 1]) for bag in bags])
    assert np.mean(model.select(bags) == marked) >= 0.95
    model.set_params(pooling="soft")


def test_the_unit_of_the_tokens_does_not_matter(fitted):
    model, bags, labels = fitted
    # a power of two: exactly the same computation
    other = AttentionSVC(**FAST).fit([1024.0 * bag for bag in bags], labels)
    assert np.array_equal(other.selected_tokens_, model.selected_tokens_)
    assert other.margin_ == pytest.approx(1024.0 * model.margin_, rel=1e-9)
    np.testing.assert_allclose(
        other.selection_weights_.W, model.selection_weights_.W / 1024.0, rtol=1e-9, atol=0
    )


def test_equal_seeds_give_equal_bits_and_bags_padding_does_not_matter(fitted):
    model, bags, labels = fitted
    again = AttentionSVC(**FAST).fit(bags, labels)
    assert again.selection_weights_.W.tobytes() == model.selection_weights_.W.tobytes()
    values = model.decision_function(bags)
    np.testing.assert_allclose(
        np.concatenate([model.decision_function([bag]) for bag in bags]),
        values,
        rtol=1e-12,
        atol=1e-12,
    )


def test_pickle_and_clone(fitted):
    model, bags, _ = fitted
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(bags), model.predict(bags))
    with pytest.raises(NotFittedError):
        clone(model).predict(bags)


def test_only_a_pipeline_looks_like_a_pipeline(fitted):
    assert not hasattr(fitted[0], "steps")  # by which tools tell pipelines from estimators


def test_joint_training_ends_when_the_validation_loss_stops_falling():
    bags, labels = make_bags()
    labels = np.where(np.arange(60) % 5 == 0, "cat", labels)  # a tenth of them are wrong
    short = AttentionSVC().fit(bags, labels)
    whole = AttentionSVC(joint_steps=300).fit(bags, labels)
    losses = whole.joint_trajectory_.observed["validation_loss"]
    assert short.best_step_ < short.joint_trajectory_.steps[-1] < 300
    assert short.joint_trajectory_.steps[-1] >= 2 * short.best_step_
    seen = whole.joint_trajectory_.steps <= short.joint_trajectory_.steps[-1]
    assert short.best_step_ == whole.joint_trajectory_.steps[seen][np.argmin(losses[seen])]


def test_cross_validation_works_on_lists_of_bags():
    bags, labels = make_bags(n=40)
    assert (
        cross_val_score(AttentionSVC(joint_steps=40, records=8), bags, labels, cv=2).mean() >= 0.8
    )


def test_attention_data_brings_its_own_queries():
    bags, labels = make_bags(n=30)
    signs = np.where(labels == "dog", 1.0, -1.0)
    data = AttentionData.from_bags(bags, signs, queries=np.ones((30, 1)))
    model = AttentionSVC(**FAST).fit(data)
    assert model.weights_.W.shape == (6, 1)
    assert set(model.predict(data)) <= {-1.0, 1.0}


def test_a_checkpoint_folder_gives_the_same_bits(tmp_path, fitted):
    model, bags, labels = fitted
    first = AttentionSVC(**FAST, checkpoint=tmp_path, checkpoint_seconds=1e-6).fit(bags, labels)
    told = []
    again = AttentionSVC(**FAST, checkpoint=tmp_path, progress=lambda *step: told.append(step))
    again.fit(bags, labels)
    ended = {stage: done == total for stage, done, total in told}
    assert ended == {"joint": True, "selection": True, "margin": True}  # what was kept is done
    for other in (first, again):
        assert other.selection_weights_.W.tobytes() == model.selection_weights_.W.tobytes()
    with pytest.raises(InputError, match="checkpoint of another computation"):
        AttentionSVC(**{**FAST, "selection_steps": 2001}, checkpoint=tmp_path).fit(bags, labels)


def _bags(change):
    bags, labels = make_bags(n=12)
    return change(bags, labels)


@pytest.mark.parametrize(
    ("bags", "labels", "parameters", "sentence"),
    [
        (*_bags(lambda b, y: (b, ["cat"] * 12)), {}, r"y holds one class only \(cat\)"),
        (*_bags(lambda b, y: (b, np.arange(12) % 3)), {}, "explain=True needs two classes"),
        (*_bags(lambda b, y: (b, [1] * 11 + [0])), {"penalty": "cv"}, "class 0 has one bag"),
        (
            *_bags(lambda b, y: (b, y)),
            {"assumption": "standard", "pooling": "margin"},
            "pooling is 'margin', which needs collective attention",
        ),
        (
            *_bags(lambda b, y: (b, y)),
            {"assumption": "standard", "heads": 0},
            "heads is 0, uniform attention",
        ),
        (*_bags(lambda b, y: (b, y)), {"heads": 2}, "explain=True needs two classes and one head"),
        (
            *_bags(lambda b, y: (b, np.repeat(y, [len(bag) for bag in b]))),
            {},
            "one per instance; give one per bag",
        ),
        (*_bags(lambda b, y: ([*b[:-1], np.nan * b[-1]], y)), {}, "bag 11 holds nan"),
        (*_bags(lambda b, y: ([*b[:-1], b[-1][:, :3]], y)), {}, "bag 11 has 3 features"),
        (*_bags(lambda b, y: (b, np.linspace(0, 1, 12))), {}, "y holds continuous values"),
        (*_bags(lambda b, y: (b, y[:-1])), {}, r"y has shape \(11,\); it must be \(12,\)"),
        (*_bags(lambda b, y: (b, None)), {}, "y is missing"),
        (
            *_bags(lambda b, y: ([bag[:1] for bag in b], y)),
            {},
            "each of the 12 sequences has a single token",
        ),
        (
            *_bags(lambda b, y: ([*b[:-1], np.vstack([b[0], b[0][:1]])], y)),
            {},
            "sequence 11 holds the same token at positions 0 and",
        ),
        (*_bags(lambda b, y: ([*b[:-1], b[-1][:0]], y)), {}, "bag 11 has no instances"),
        (
            *_bags(lambda b, y: (b, y)),
            {"lr": -1.0},
            r"The 'lr' parameter of AttentionSVC must be a float in the range .* Got -1\.0 instead",
        ),
        (
            *_bags(lambda b, y: (b, y)),
            {"selection_steps": 0},
            "The 'selection_steps' parameter of AttentionSVC must be an int in the range",
        ),
        (*_bags(lambda b, y: (b, y)), {"norm": "euclid"}, "unknown norm 'euclid'"),
        (
            *_bags(lambda b, y: (b, y)),
            {"norm": "lp:1.001"},
            r"fit trains for lp:1\.001 by mirror descent",
        ),
        (
            *_bags(lambda b, y: (b, y)),
            {"query": "magic"},
            "The 'query' parameter of AttentionSVC must be a str among .* Got 'magic'",
        ),
        (
            *_bags(lambda b, y: (b, y)),
            {"pooling": "both"},
            "The 'pooling' parameter of AttentionSVC must be a str among",
        ),
        (
            *_bags(lambda b, y: (b, y)),
            {"validation_size": 1.0},
            r"The 'validation_size' parameter .* must be a float in the range \(0\.0, 1\.0\)",
        ),
    ],
)
def test_bad_input_is_one_sentence(bags, labels, parameters, sentence):
    with pytest.raises(InputError, match=sentence):
        AttentionSVC(**{**FAST, **parameters}).fit(bags, labels)


@pytest.mark.parametrize("norm", ["nuc", "spec", "lp:1.75", Schatten(3)])
def test_the_unit_of_the_tokens_does_not_matter_in_any_norm(norm):
    bags, labels = make_bags(n=24)
    few = {"explain": True, "joint_steps": 30, "selection_steps": 150, "records": 8, "norm": norm}
    model, other = (
        AttentionSVC(**few).fit(bags, labels),
        AttentionSVC(**few).fit([1024.0 * bag for bag in bags], labels),
    )
    assert (
        model.norm_
        == model.solution_.geometry
        == (norm if isinstance(norm, Schatten) else parse_norm(norm))
    )
    np.testing.assert_allclose(
        other.selection_weights_.W, model.selection_weights_.W / 1024.0, rtol=1e-9, atol=0
    )
    assert other.margin_ == pytest.approx(1024.0 * model.margin_, rel=1e-6)


def test_names_of_one_norm_are_one_norm(tmp_path):
    bags, labels = make_bags(n=12)
    few = {"explain": True, "joint_steps": 20, "selection_steps": 30, "records": 4}
    models = [
        AttentionSVC(**few, norm=norm, checkpoint=tmp_path).fit(bags, labels)
        for norm in ("fro", "lp:2", Schatten(2))
    ]
    assert len({model.selection_weights_.W.tobytes() for model in models}) == 1
    assert len({type(model.norm_) for model in models}) == 1


def test_merging_duplicates_masks_the_copies():
    bags, labels = make_bags(n=20)
    doubled = [np.vstack([bag, bag[:1]]) for bag in bags]
    model = AttentionSVC(**FAST, merge_duplicates=True).fit(doubled, labels)
    assert model.status_ == "optimal"
    assert all(token < len(bag) for token, bag in zip(model.selected_tokens_, bags, strict=True))


def test_new_bags_of_another_width_are_refused(fitted):
    model, _, _ = fitted
    with pytest.raises(
        InputError, match="X has 5 features per instance; this AttentionSVC was fitted with 6"
    ):
        model.predict([np.zeros((2, 5))])


def test_a_selection_that_no_weights_make_gets_the_soft_margin(monkeypatch):

    generator = np.random.default_rng(0)
    bags = [
        generator.permutation([[0.0], [1.0]]) + 0.01 * generator.normal(size=(2, 1))
        for _ in range(40)
    ]
    labels = np.arange(40) % 2
    # Training itself can only end on selections that some weights make; the first token of each bag
    # is not one of them.
    monkeypatch.setattr(layers, "selected_tokens", lambda data, W: np.zeros(data.n, dtype=np.int64))
    model = AttentionSVC(query="constant", slack=0.5, **FAST).fit(bags, labels)
    assert model.status_ == "optimal"
    assert model.solution_.slack == 0.5
    margins = model.solution_.margins
    values = margins(model.solution_.W)
    np.testing.assert_allclose(model.solution_.slacks, np.maximum(1.0 - values, 0.0), atol=1e-9)
    # One unknown: the soft-margin optimum of a scalar is where the subgradient of W^2/2 + C sum (1
    # - a W)_+ changes sign.
    a = margins.differences[:, 0]
    objective = [
        0.5 * w**2 + 0.5 * np.maximum(1.0 - a * w, 0.0).sum() for w in np.linspace(-3, 3, 6001)
    ]
    W = float(model.solution_.W[0, 0])
    assert 0.5 * W**2 + 0.5 * np.maximum(1.0 - a * W, 0.0).sum() <= min(objective) + 1e-9


@pytest.mark.parametrize("size", [1e200, 1e-200, 1e-308])
def test_tokens_at_the_ends_of_float64_are_refused_before_training(size):
    bags, labels = make_bags()
    with pytest.raises(InputError, match="too close to the ends of float64"):
        AttentionSVC(**FAST).fit([size * bag for bag in bags], labels)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"checkpoint": ""}, "checkpoint"),
        ({"head_lr": 1e308}, "head_lr"),
        ({"joint_lr": 1e200}, "joint_lr"),
        ({"lr": 1e200}, "lr"),
        ({"lr": 1e-90, "norm": "lp:10"}, "in the dual of mirror descent"),
        ({"random_state": -1}, "random_state"),
        ({"records": 2.5}, "records"),
        ({"tol": float("nan")}, "tol"),
        ({"merge_duplicates": "yes"}, "merge_duplicates"),
        ({"progress": 3}, "progress"),
    ],
)
def test_a_parameter_out_of_range_is_refused_before_anything_is_written(
    parameters, sentence, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    bags, labels = make_bags()
    with pytest.raises(InputError, match=sentence):
        AttentionSVC(**{**FAST, **parameters}).fit(bags, labels)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("X", "y", "sentence"),
    [
        (np.arange(12) % 2, np.ones((12, 3, 2)), r"X holds one label .* fit\(bags, labels\)"),
        ([0, 1] * 6, [[[1.0]], [[1.0], [2.0]]] * 6, r"X holds one label per bag"),
        (np.ones((12, 3)), np.arange(12) % 2, "X is a table of 12 rows.*StandardScaler"),
        ("digits.npz", [0, 1], "X is 'digits.npz'; give a list of bags"),
        (7, [0, 1], "X is 7; give a list of bags"),
        ({"a": 1}, [0], "X is dict; give a list of bags"),
        (np.ones((12, 3, 2)), np.full(12, np.nan), "y holds no label for bag 0"),
        (np.ones((12, 3, 2)), np.ones((12, 2)), r"y has shape \(12, 2\); it must be \(12,\)"),
    ],
)
def test_what_is_given_the_wrong_way_round_is_one_sentence(X, y, sentence):
    with pytest.raises(InputError, match=sentence) as refused:
        AttentionSVC(**FAST).fit(X, y)
    assert "\n" not in str(refused.value)
    assert "--" not in str(refused.value)


def test_a_scaler_in_front_of_bags_is_refused():
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pipeline = make_pipeline(StandardScaler(), AttentionSVC(**FAST))
    with pytest.raises(InputError, match=r"X is a table of 12 rows.*leave them out"):
        pipeline.fit(np.random.default_rng(0).normal(size=(12, 3)), np.arange(12) % 2)
    bags, labels = make_bags(12)
    with pytest.raises(ValueError, match=r"inhomogeneous|dim 3"):  # numpy's and sklearn's words
        pipeline.fit(bags, labels)


def test_bars_of_progress(capsys, fitted):
    _, bags, labels = fitted
    few = {"explain": True, "joint_steps": 5, "selection_steps": 9, "records": 2}
    model = AttentionSVC(**few, progress=True).fit(bags, labels)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.search(r"joint: 100%.*5/5", shown.err)
    assert re.search(r"selection: 100%.*9/9", shown.err)
    assert "margin: solving" in shown.err
    quiet = AttentionSVC(**few, progress=False).fit(bags, labels)
    assert capsys.readouterr().err == ""
    np.testing.assert_array_equal(model.selection_weights_.W, quiet.selection_weights_.W)
    assert clone(model).progress is True
    pickle.dumps(model)


def planted(n=120, instances=8, seed=0, kind="linear"):
    bags = planted_witnesses(kind, n, instances, seed, d=5)
    return bags.take(np.arange(n // 2)), bags.take(np.arange(n // 2, n))


def precision(model, bags):
    witness = bags.instance_labels[bags.offsets[:-1] + model.select(bags)] == 1
    return witness[bags.labels > 0].mean()


@pytest.mark.parametrize("pooling", ["soft", "hard"])
def test_the_standard_assumption_finds_the_witness_and_certifies_its_steps(pooling):
    train, test = planted()
    model = AttentionSVC(assumption="standard", pooling=pooling).fit(train, train.labels)
    assert model.score(test, test.labels) >= 0.9
    assert precision(model, test) >= 0.95
    assert model.optimum_ == "local"
    assert {step.status for step in model.convex_steps_} == {"optimal"}
    assert max(step.gap for step in model.convex_steps_) <= 1e-6


@pytest.mark.slow
def test_a_sample_in_which_nothing_is_learned_decides_nothing(monkeypatch):
    import attsvm.fitting.predicting as predicting

    monkeypatch.setattr(predicting, "_LARGE", 1000)
    monkeypatch.setattr(predicting, "_SAMPLE", 1000)
    monkeypatch.setattr(predicting, "_FEWEST", 12)
    bags = planted_witnesses("linear", 200, 60, seed=0, d=80)
    model = AttentionSVC(assumption="standard").fit(bags.take(range(150)), bags.labels[:150])
    assert not np.isnan(model.predictor_.left_out).any()  # all bags were left out, not a sample's
    assert model.score(bags.take(range(150, 200)), bags.labels[150:]) > 0.9


def test_a_model_of_the_standard_assumption_does_not_use_poison():
    train = assumption_test("single concept", 100, "train", 3)
    test = assumption_test("single concept", 200, "test", 3)
    grown = BagFeatures(PolynomialFeatures(2, include_bias=False)).fit(train)
    standard = make_pipeline(grown, AttentionSVC(assumption="standard")).fit(train, train.labels)
    collective = AttentionSVC(penalty="cv").fit(train, train.labels)
    assert roc_auc_score(test.labels, standard.decision_function(test)) >= 0.95
    # The null: attention pooling learns "no poison, so positive".
    assert roc_auc_score(test.labels, collective.decision_function(test)) <= 0.5


def test_several_heads_of_the_standard_assumption_need_a_witness_each():
    train = assumption_test("several concepts", 150, "train", 3)
    test = assumption_test("several concepts", 200, "test", 3)
    auc = [
        roc_auc_score(
            test.labels,
            AttentionSVC(assumption="standard", heads=heads)
            .fit(train, train.labels)
            .decision_function(test),
        )
        for heads in (1, 2)
    ]
    assert auc[1] >= 0.97
    assert auc[1] > auc[0]


@pytest.mark.parametrize("assumption", ["standard", "collective"])
def test_three_classes_have_probabilities_contributions_and_selections(assumption):
    generator = np.random.default_rng(0)
    labels = np.array(["a", "b", "c"])[np.arange(90) % 3]
    bags = []
    for k in np.arange(90) % 3:
        bag = generator.normal(size=(5, 4))
        bag[generator.integers(5), k] += 8.0
        bags.append(bag)
    model = AttentionSVC(assumption=assumption, penalty="cv").fit(bags[:60], labels[:60])
    assert model.score(bags[60:], labels[60:]) >= 0.9
    probability = model.predict_proba(bags[60:])
    assert probability.shape == (30, 3)
    np.testing.assert_allclose(probability.sum(axis=1), 1.0, rtol=1e-12)
    values, parts = model.decision_function(bags), model.contributions(bags)
    np.testing.assert_allclose([part.sum(axis=0) for part in parts], values, atol=1e-9)
    carrier = [np.argmax(bag[:, k]) for bag, k in zip(bags, np.arange(90) % 3, strict=True)]
    assert np.mean(model.select(bags) == carrier) >= 0.9
    assert [len(scores) for scores in model.decision_function_instances(bags)] == [5] * 90


def test_probabilities_are_calibrated_on_bags_left_out():
    generator = np.random.default_rng(1)
    bags = [generator.normal(size=(4, 3)) for _ in range(400)]
    signal = np.array([bag.mean(axis=0)[0] for bag in bags])
    labels = generator.random(400) < 1.0 / (1.0 + np.exp(-3.0 * signal))
    model = AttentionSVC(penalty="cv").fit(bags[:200], labels[:200])
    truth = 1.0 / (1.0 + np.exp(-3.0 * signal[200:]))
    assert np.abs(model.predict_proba(bags[200:])[:, 1] - truth).mean() <= 0.1
    assert np.array_equal(
        model.predict_proba(bags[200:])[:, 1] > 0.5, model.decision_function(bags[200:]) > 0
    )


def test_a_table_with_groups_is_the_list_of_its_bags():
    train, test = planted()
    bags = np.split(train.rows, train.offsets[1:-1])
    given = AttentionSVC(assumption="standard").fit(bags, train.labels)
    groups = np.repeat([f"bag {i}" for i in range(train.n)], train.lengths)
    table = AttentionSVC(assumption="standard").fit(train.rows, train.labels, groups=groups)
    names = test.bag
    assert np.array_equal(
        given.decision_function(test), table.decision_function(test.rows, groups=names)
    )


def test_a_weight_of_four_is_a_bag_given_four_times():
    bags, labels = make_bags(n=30)
    labels[0] = "dog"  # a wrong label, so that its weight matters
    fixed = {"assumption": "standard", "penalty": 1e-2}
    weighted = AttentionSVC(**fixed).fit(bags, labels, sample_weight=np.r_[4.0, np.ones(29)])
    repeated = AttentionSVC(**fixed).fit([bags[0]] * 3 + bags, [labels[0]] * 3 + list(labels))
    plain = AttentionSVC(**fixed).fit(bags, labels)
    values, same, other = (model.decision_function(bags) for model in (weighted, repeated, plain))
    # The unit of the instances is that of all bags given, so it differs a little.
    assert np.abs(values - same).max() < 0.1 * np.abs(values - other).max()


@pytest.mark.parametrize("assumption", ["standard", "collective"])
def test_units_do_not_matter_to_penalised_models(assumption):
    bags, labels = make_bags(n=40)
    fitted, other = (
        AttentionSVC(assumption=assumption, penalty="cv").fit([c * bag for bag in bags], labels)
        for c in (1.0, 1024.0)
    )
    np.testing.assert_allclose(
        other.decision_function([1024.0 * bag for bag in bags]), fitted.decision_function(bags)
    )


def test_the_margin_of_witnesses_is_certified_with_a_null_token():
    train, _ = planted(n=60)
    model = AttentionSVC(assumption="standard", explain=True).fit(train, train.labels)
    assert model.status_ == "optimal"
    w = model.solution_.W[:, 0]
    unit = 4.0 * np.sqrt((train.rows**2).sum(axis=1).mean())
    scores = np.split(train.rows @ w[:-1] + unit * w[-1], train.offsets[1:-1])
    slack = np.zeros(model.solution_.margins.m)
    if model.solution_.slack is not None:
        slack = model.solution_.slacks
    if not slack.any():
        for bag, label, selected in zip(scores, train.labels, model.selected_tokens_, strict=True):
            if label < 0:
                assert bag.max() <= -1 + 1e-8
            else:
                rivals = np.delete(bag, selected)
                assert bag[selected] >= 1 - 1e-8
                assert bag[selected] - rivals.max() >= 1 - 1e-8


def test_without_explain_there_is_no_margin_and_the_sentence_says_so():
    bags, labels = make_bags(n=24)
    model = AttentionSVC(joint_steps=20).fit(bags, labels)
    assert not hasattr(model, "solution_")
    with pytest.raises(InputError, match="explain=True"):
        model.set_params(pooling="margin").predict(bags)


def test_rejects_are_the_bags_below_the_threshold():
    bags, labels = make_bags(n=40)
    model = AttentionSVC(assumption="collective", penalty="cv", reject=1.0).fit(bags, labels)
    assert np.array_equal(model.rejects_, np.flatnonzero(model.margins_ < 1.0))
    assert [len(margins) for margins in model.instance_margins_] == [len(bag) for bag in bags]


def test_a_grid_over_the_parameters_of_bags():
    train, test = planted(n=60, instances=5)
    bags = np.split(train.rows, train.offsets[1:-1])
    pipeline = make_pipeline(BagFeatures(StandardScaler()), AttentionSVC(penalty=1e-3))
    search = GridSearchCV(pipeline, {"attentionsvc__assumption": ["standard", "collective"]}, cv=2)
    search.fit(bags, train.labels)
    assert search.predict(np.split(test.rows, test.offsets[1:-1])).shape == (test.n,)
    assert cross_val_predict(pipeline, bags, train.labels, cv=2).shape == (train.n,)
    assert "AttentionSVC" in search.best_estimator_._repr_html_()


@pytest.mark.parametrize("assumption", ["standard", "collective"])
def test_positions_are_those_of_the_sequences_given(assumption):
    train, _ = planted(n=60, instances=5)
    plain = train.data(train.labels)
    tokens = np.repeat(plain.tokens, 2, axis=1)  # a masked copy in front of every instance
    mask = np.tile([False, True], (train.n, 5))
    spread = AttentionData(tokens, plain.labels, np.ones((train.n, 1)), mask)
    collective = assumption == "collective"
    options = FAST if collective else {"assumption": "standard", "explain": True}
    model = AttentionSVC(**options).fit(spread)
    asked = {"query": "constant"} if collective else {}
    bags = np.split(train.rows, train.offsets[1:-1])
    known = AttentionSVC(**options, **asked).fit(bags, train.labels)
    assert np.array_equal(model.selected_tokens_, 2 * known.selected_tokens_ + 1)
    assert np.array_equal(model.select(spread), 2 * known.select(train) + 1)
    first = [part[0] for part in model.evidence(spread).instances]
    assert np.array_equal(first, model.select(spread))
