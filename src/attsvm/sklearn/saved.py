"""Fitted classifiers of bags on disk: numbers in safetensors, everything else in JSON beside them.

Nothing here pickles, so a file of somebody else's can be read.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.base.errors import InputError
from attsvm.base.files import (
    brief,
    digest,
    flatten,
    gather,
    load_arrays,
    read_json,
    save_arrays,
    write_json,
)
from attsvm.base.store import versions
from attsvm.sklearn.bag_classifier import BagClassifier
from attsvm.sklearn.choosing import Predictor
from attsvm.sklearn.layers import Layer, PooledLayer, WitnessLayer
from attsvm.sklearn.minimise import ConvexStep
from attsvm.sklearn.svc import AttentionSVC, WitnessSVC

FORMAT = "attsvm-model/1"
WEIGHTS, MODEL = "model.safetensors", "model.json"
"""The two files of a model."""

_KINDS: dict[str, type[BagClassifier]] = {"AttentionSVC": AttentionSVC, "WitnessSVC": WitnessSVC}
_LAYERS: dict[str, type[Layer]] = {"PooledLayer": PooledLayer, "WitnessLayer": WitnessLayer}
_RANKS = {"W": 3, "V": 3, "w": 2, "intercept": 1}  # of the arrays of a layer


def save_classifier(model: BagClassifier, folder: str | Path) -> Path:
    """Write a fitted classifier into a folder, which is made when it is missing.

    ``model.safetensors`` holds the numbers, ``model.json`` parameters, classes, names of features
    and the digest of the numbers. A splitter given as ``cv`` and a function given as ``progress``
    are not kept; nothing that predicts depends on them.

    Args:
        model: an :class:`~attsvm.sklearn.AttentionSVC` or :class:`~attsvm.sklearn.WitnessSVC`.
        folder: where the two files go; those of another model there are replaced.

    Returns:
        The folder.

    Raises:
        InputError: anything else than such a classifier, labels that are no numbers and no texts,
            or a folder that cannot be written.
        NotFittedError: it is not fitted.

    Example:
        >>> import numpy as np
        >>> from attsvm.datasets import planted_witnesses
        >>> from attsvm.sklearn import WitnessSVC, load_classifier, save_classifier
        >>> bags = planted_witnesses("linear", n=40, instances=5, seed=0, d=3)
        >>> model = WitnessSVC(penalty=0.01).fit(bags, bags.labels)
        >>> again = load_classifier(save_classifier(model, "runs/model"))
        >>> bool(np.all(again.decision_function(bags) == model.decision_function(bags)))
        True
    """
    from sklearn.utils.validation import check_is_fitted

    kind = next((name for name, known in _KINDS.items() if type(model) is known), None)
    if kind is None:
        raise InputError(
            f"a {type(model).__name__} cannot be saved; give a fitted {' or '.join(_KINDS)}, and"
            " keep the other steps of a pipeline with skops or joblib"
        )
    check_is_fitted(model)
    predictor, folder = model.predictor_, Path(folder)
    layer = {field.name: getattr(predictor.layer, field.name) for field in fields(predictor.layer)}
    arrays = {
        **flatten("layer", {k: v for k, v in layer.items() if isinstance(v, np.ndarray)}),
        "losses": predictor.losses,
        "left_out": predictor.left_out,
        "margins": model.margins_,
        "rejects": model.rejects_,
    }
    names = getattr(model, "feature_names_in_", None)
    content = {
        "format": FORMAT,
        "versions": versions("attsvm", "numpy", "scikit-learn"),
        "kind": kind,
        "parameters": _parameters(model),
        "classes": {"dtype": model.classes_.dtype.str, "labels": _labels(model.classes_)},
        "features": model.n_features_in_,
        "feature_names": None if names is None else list(names),
        "calibration": float(model.calibration_),
        "optimum": model.optimum_,
        "layer": {
            "kind": type(predictor.layer).__name__,
            **{k: _plain(v) for k, v in layer.items() if not isinstance(v, np.ndarray)},
        },
        "penalty": _plain(predictor.penalty),
        "ratio": _plain(predictor.ratio),
        "convex": bool(predictor.convex),
        "steps": [
            {name: _plain(value) for name, value in asdict(step).items()}
            for step in predictor.steps
        ],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be made ({error.strerror or error}); choose another folder"
        ) from None
    save_arrays(arrays, folder / WEIGHTS)
    write_json(folder / MODEL, {**content, "sha256": digest(folder / WEIGHTS)})
    return folder


def load_classifier(folder: str | Path) -> BagClassifier:
    """The fitted classifier that :func:`save_classifier` wrote: its predictions are those of the
    saved one, bit for bit on the same machine.

    Args:
        folder: of ``model.safetensors`` and ``model.json``; a run folder of ``attsvm fit`` is one.

    Raises:
        InputError: no such files, files of another version or of different models, or anything in
            them that is not as it was written.

    Example:
        >>> from attsvm.datasets import planted_witnesses
        >>> from attsvm.sklearn import WitnessSVC, load_classifier, save_classifier
        >>> bags = planted_witnesses("linear", n=40, instances=5, seed=0, d=3)
        >>> folder = save_classifier(WitnessSVC(penalty=0.01).fit(bags, bags.labels), "runs/model")
        >>> load_classifier(folder).predict(bags).shape
        (40,)
    """
    folder = Path(folder)
    path = folder / MODEL
    if not path.is_file():
        raise InputError(f"{folder} has no {MODEL}; give the folder into which a model was saved")
    try:
        content = read_json(path)
    except InputError:
        raise InputError(f"{path} is not JSON; save the model again") from None
    written = content.get("format") if isinstance(content, dict) else None
    if written != FORMAT:
        raise InputError(
            f"{path} has format {written!r}, and this version reads {FORMAT!r}; save the model"
            " again with this version"
        )
    arrays = load_arrays(folder / WEIGHTS)
    if digest(folder / WEIGHTS) != content.get("sha256"):
        raise InputError(
            f"{folder / WEIGHTS} is not the file that {MODEL} was written with; copy both again, or"
            " save the model again"
        )
    try:
        return _model(content, arrays)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {brief(str(error))}"
        raise InputError(f"{path} is not as it was written ({reason}); save it again") from None


def _model(content: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> BagClassifier:
    """The classifier of these files."""
    model = _KINDS[content["kind"]](**_read_parameters(content["parameters"]))
    model._validate_params()
    classes = content["classes"]
    model.classes_ = np.array(classes["labels"], dtype=_label_type(classes["dtype"]))
    model.n_features_in_ = int(content["features"])
    if content["feature_names"] is not None:
        model.feature_names_in_ = np.array(content["feature_names"], dtype=object)
    layer = dict(content["layer"])
    kind = _LAYERS[layer.pop("kind")]
    numbers = gather("layer", arrays)
    predictor = Predictor(
        kind(**numbers, **layer),  # type: ignore[arg-type]
        float(content["penalty"]),
        None if content["ratio"] is None else float(content["ratio"]),
        arrays["losses"],
        arrays["left_out"],
        [_step(step) for step in content["steps"]],
        bool(content["convex"]),
    )
    model.predictor_ = replace(predictor, layer=_checked(predictor.layer, numbers, model))
    model.convex_steps_, model.optimum_ = predictor.steps, str(content["optimum"])
    model.calibration_ = float(content["calibration"])
    model.margins_, model.rejects_ = arrays["margins"], arrays["rejects"]
    return model


def _checked(layer: Layer, numbers: dict[str, NDArray[Any]], model: BagClassifier) -> Layer:
    """The layer, which has the shapes that features and classes ask for.

    Raises:
        ValueError: it has not.
    """
    K, d = len(model.classes_), model.n_features_in_
    values = 1 if K == 2 else K
    for name, array in numbers.items():
        if array.dtype != np.float64 or not np.isfinite(array).all():
            raise ValueError(f"{name} has type {array.dtype} or numbers that are not finite")
        if array.ndim != _RANKS.get(name, array.ndim):
            raise ValueError(f"{name} has shape {array.shape}")
    if isinstance(layer, PooledLayer):
        fits = (
            layer.W.shape[:2] == layer.V.shape[:2]
            and layer.V.shape[1:] == (d, values)
            and layer.intercept.shape == (values,)
        )
    else:
        columns = len(layer.w) if layer.null else K
        fits = layer.w.shape == (columns, d) and layer.intercept.shape == (columns,)
        fits = fits and layer.null == (K == 2)
    if not fits:
        raise ValueError(f"its weights do not fit {K} classes and {d} features")
    return layer


def _parameters(model: BagClassifier) -> dict[str, Any]:
    """The parameters of a classifier as JSON has them."""
    parameters = model.get_params(deep=False)
    if isinstance(parameters["class_weight"], dict):
        pairs = parameters["class_weight"].items()
        parameters["class_weight"] = [[_plain(label), float(weight)] for label, weight in pairs]
    for name in ("cv", "progress"):
        if not isinstance(parameters[name], int | np.integer):
            parameters[name] = None
    return {name: _plain(value) for name, value in parameters.items()}


def _read_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    weights = parameters["class_weight"]
    return {**parameters, "class_weight": dict(weights) if isinstance(weights, list) else weights}


def _labels(classes: NDArray[Any]) -> list[Any]:
    """The labels of classes as JSON has them."""
    labels = classes.tolist()
    if not all(isinstance(label, str | int | float) for label in labels):
        raise InputError(
            f"the classes are {classes.dtype} ({labels[0]!r}, ...); a model is saved whose labels"
            " are numbers or texts"
        )
    return labels


def _label_type(name: str) -> np.dtype[Any]:
    """The type of the labels.

    Raises:
        ValueError: it is none of numbers or texts.
    """
    dtype = np.dtype(name)
    if dtype.kind not in "biufUO":
        raise ValueError(f"labels of type {name}")
    return dtype


def _step(step: dict[str, Any]) -> ConvexStep:
    numbers = {name: float(step[name]) for name in ("objective", "gap", "violation")}
    return ConvexStep(**{**step, **numbers})


def _plain(value: Any) -> Any:
    """A value as JSON has it: infinities, which it lacks, as texts."""
    value = value.item() if isinstance(value, np.generic) else value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
