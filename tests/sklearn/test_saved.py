"""Fitted classifiers on disk: the same predictions, and damaged or foreign files in a sentence."""

import json

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline

import attsvm
from attsvm.base.files import load_arrays, save_arrays
from attsvm.sklearn import AttentionSVC, BagFeatures, WitnessSVC, load_classifier, save_classifier


@pytest.fixture(scope="module")
def bags():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(rng.integers(3, 9), 5)) for _ in range(60)]


@pytest.fixture(scope="module")
def labels(bags):
    classes = np.array([np.argmax(bag.mean(axis=0)[:3]) for bag in bags])
    return {
        "booleans": np.array([bag[:, 0].max() > 1.2 for bag in bags]),
        "texts": np.array(["blue", "green", "röd"])[classes],
        "floats": classes % 2 + 1.0,
        "objects": np.array(["no", "yes"], dtype=object)[classes % 2],
    }


@pytest.mark.parametrize("options", [{}, {"heads": 2}, {"pooling": "hard"}])
@pytest.mark.parametrize("kind", ["booleans", "texts"])
@pytest.mark.parametrize("estimator", [AttentionSVC, WitnessSVC])
def test_a_loaded_model_predicts_exactly_as_the_saved_one(
    estimator, kind, options, bags, labels, tmp_path
):
    model = estimator(penalty=0.01, random_state=3, **options).fit(bags, labels[kind])
    again = load_classifier(save_classifier(model, tmp_path / "new" / "model"))
    assert type(again) is estimator
    assert again.get_params() == model.get_params()
    assert again.classes_.dtype == model.classes_.dtype
    for ask in ("predict", "predict_proba", "decision_function", "select"):
        assert np.array_equal(getattr(again, ask)(bags), getattr(model, ask)(bags))
    for ask in ("attention", "contributions", "decision_function_instances"):
        for one, other in zip(getattr(again, ask)(bags), getattr(model, ask)(bags), strict=True):
            assert np.array_equal(one, other)
    assert np.array_equal(again.margins_, model.margins_)
    assert again.convex_steps_ == model.convex_steps_


@pytest.mark.parametrize("kind", ["floats", "objects"])
def test_labels_keep_their_type_and_class_weights_their_labels(kind, bags, labels, tmp_path):
    classes = sorted(set(labels[kind]))
    weights = dict(zip(classes, (1.0, 2.0), strict=True))
    model = AttentionSVC(heads=0, class_weight=weights, cv=KFold(3), query="mean")
    model.fit(bags, labels[kind])
    again = load_classifier(save_classifier(model, tmp_path))
    assert again.class_weight == weights
    assert again.cv is None  # a splitter has no part in predictions
    assert again.query == "mean"
    assert again.classes_.tolist() == classes
    assert again.predictor_.ratio == model.predictor_.ratio
    assert again.score(bags, labels[kind]) == model.score(bags, labels[kind])


def test_names_of_features_are_checked_after_loading(tmp_path):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frames = [pandas.DataFrame(rng.normal(size=(4, 2)), columns=["a", "b"]) for _ in range(20)]
    y = [frame["a"].max() > 1 for frame in frames]
    again = load_classifier(save_classifier(WitnessSVC(penalty=0.01).fit(frames, y), tmp_path))
    with pytest.raises(attsvm.InputError, match="same order"):
        again.predict([frame[["b", "a"]] for frame in frames])


@pytest.fixture
def saved(bags, labels, tmp_path):
    return save_classifier(WitnessSVC(penalty=0.01).fit(bags, labels["booleans"]), tmp_path)


def test_numbers_of_another_model_are_refused(saved):
    arrays = load_arrays(saved / "model.safetensors")
    save_arrays({**arrays, "layer.w": 2 * arrays["layer.w"]}, saved / "model.safetensors")
    with pytest.raises(
        attsvm.InputError, match=r"is not the file that model\.json was written with"
    ):
        load_classifier(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "attsvm-model/9"}, "has format 'attsvm-model/9', and this version reads"),
        ({"kind": "SVC"}, "is not as it was written"),
        ({"features": 7}, "weights do not fit 2 classes and 7 features"),
        ({"classes": {"dtype": "<i8", "labels": [1, 2, 3]}}, "do not fit 3 classes"),
        ({"parameters": {}}, "is not as it was written"),
        ({"calibration": None}, "is not as it was written"),
    ],
)
def test_a_file_that_somebody_has_changed_is_one_sentence(saved, change, message):
    path = saved / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(attsvm.InputError, match=message):
        load_classifier(saved)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_damaged_and_missing_files_are_one_sentence(saved, name):
    path = saved / name
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(attsvm.InputError, match=name):
        load_classifier(saved)
    path.unlink()
    with pytest.raises(attsvm.InputError, match=name):
        load_classifier(saved)


def test_only_fitted_classifiers_are_saved(bags, labels, tmp_path):
    with pytest.raises(NotFittedError):
        save_classifier(WitnessSVC(), tmp_path)
    pipeline = make_pipeline(BagFeatures(), WitnessSVC(penalty=0.01)).fit(bags, labels["booleans"])
    with pytest.raises(attsvm.InputError, match="a Pipeline cannot be saved"):
        save_classifier(pipeline, tmp_path)
