"""AttentionSVC: scikit-learn's own checks where they apply, and the theory's promises on bags."""

import pickle
import re

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils import estimator_checks

from attsvm import AttentionData
from attsvm.errors import InputError
from attsvm.geometry import Schatten, parse_norm
from attsvm.sklearn import AttentionSVC

FAST = {"joint_steps": 60, "steps": 2000, "records": 20}


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
    for prediction in ("soft", "hard", "margin"):
        assert clone(model).get_params()["steps"] == FAST["steps"]
        model.set_params(prediction=prediction)
        assert model.score(bags, labels) >= 0.95
    marked = np.array([np.argmax(bag[:, 1]) for bag in bags])
    assert np.mean(model.select(bags) == marked) >= 0.95
    model.set_params(prediction="soft")


def test_the_unit_of_the_tokens_does_not_matter(fitted):
    model, bags, labels = fitted
    other = AttentionSVC(**FAST).fit(
        [1024.0 * bag for bag in bags], labels
    )  # a power of two: exactly the same computation
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


def test_cross_validation_works_on_lists_of_bags():
    bags, labels = make_bags(n=40)
    assert (
        cross_val_score(
            AttentionSVC(joint_steps=40, steps=50, records=8), bags, labels, cv=2
        ).mean()
        >= 0.8
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
    again = AttentionSVC(**FAST, checkpoint=tmp_path).fit(bags, labels)
    for other in (first, again):
        assert other.selection_weights_.W.tobytes() == model.selection_weights_.W.tobytes()
    with pytest.raises(InputError, match="checkpoint of another computation"):
        AttentionSVC(**{**FAST, "steps": 2001}, checkpoint=tmp_path).fit(bags, labels)


def _bags(change):
    bags, labels = make_bags(n=12)
    return change(bags, labels)


@pytest.mark.parametrize(
    ("bags", "labels", "parameters", "sentence"),
    [
        (*_bags(lambda b, y: (b, ["cat"] * 12)), {}, r"y holds one class only \(cat\)"),
        (*_bags(lambda b, y: (b, np.arange(12) % 3)), {}, r"y holds 3 classes \(0, 1, 2\)"),
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
        (*_bags(lambda b, y: ([*b[:-1], b[-1][:0]], y)), {}, r"bags\[11\] has no tokens"),
        (
            *_bags(lambda b, y: (b, y)),
            {"lr": -1.0},
            r"The 'lr' parameter of AttentionSVC must be a float in the range .* Got -1\.0 instead",
        ),
        (
            *_bags(lambda b, y: (b, y)),
            {"steps": 0},
            "The 'steps' parameter of AttentionSVC must be an int in the range",
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
            {"prediction": "both"},
            "The 'prediction' parameter of AttentionSVC must be a str among",
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
    few = {"joint_steps": 30, "steps": 150, "records": 8, "norm": norm}
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
    few = {"joint_steps": 20, "steps": 30, "records": 4}
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
        InputError, match="X has 5 features per token; this AttentionSVC was fitted with 6"
    ):
        model.predict([np.zeros((2, 5))])


def test_a_selection_that_no_weights_make_gets_the_soft_margin(monkeypatch):
    from attsvm.fitting import attend

    generator = np.random.default_rng(0)
    bags = [
        generator.permutation([[0.0], [1.0]]) + 0.01 * generator.normal(size=(2, 1))
        for _ in range(40)
    ]
    labels = np.arange(40) % 2
    # Training itself can only end on selections that some weights make; the first token of each bag
    # is not one of them.
    monkeypatch.setattr(attend, "selected_tokens", lambda data, W: np.zeros(data.n, dtype=np.int64))
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
    few = {"explain": True, "joint_steps": 5, "steps": 9, "records": 2}
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
