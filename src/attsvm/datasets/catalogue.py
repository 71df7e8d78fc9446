"""One door to every data set: a path or a name."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from attsvm.base.errors import InputError
from attsvm.base.files import SUFFIXES, is_folder
from attsvm.base.nearest import did_you_mean, file_meant
from attsvm.datasets.arrays import array, from_data
from attsvm.datasets.attention_data import AttentionData, FloatArray
from attsvm.datasets.bag_files import holds_bags, slides
from attsvm.datasets.source import Dataset, Kind
from attsvm.datasets.tables import TABLE_SUFFIXES, kind_of
from attsvm.datasets.toys import PUBLISHED, TITLES, toy

_log = logging.getLogger(__name__)

_READING_OPTIONS = (
    *("text", "label", "test", "positive", "delimiter", "encoding", "skip_empty", "id"),
    *("classes", "optional"),
)
_MODEL_OPTIONS = (*_READING_OPTIONS, "model", "dim", "max_tokens", "query")
_ENCODER_OPTIONS = (
    *_READING_OPTIONS,
    *("encoder", "layer", "dim", "max_tokens", "instances", "query"),
    *("device", "dtype", "cache", "progress"),
)
_TEXT_OPTIONS = (*_MODEL_OPTIONS, "min_count", "window")
_IMAGE_OPTIONS = ("patch", "stride")
_SLIDE_OPTIONS = (*("labels", "id", "label", "group", "features", "coords", "positive", "classes"),)
_TAKERS = {
    "text": _TEXT_OPTIONS,
    "vectors of a model": _MODEL_OPTIONS,
    "an encoder": _ENCODER_OPTIONS,
    "digits": _IMAGE_OPTIONS,
    "slides": _SLIDE_OPTIONS,
    "a file of arrays": ("classes",),
}
_PLURALS = {
    "text": "texts",
    "vectors of a model": "texts with option model",
    "an encoder": "texts with option encoder",
}
_GENERATED = {
    "digits": (
        "Handwritten digits of scikit-learn, 3 against 8, as 2 x 2 patches; digits:4-9 for another"
        " pair"
    ),
    "unit_sphere": (
        "Random tokens, queries and labels; unit_sphere:n,T,d,seed for another size than 6,8,10,0"
    ),
}


def names() -> dict[str, str]:
    """The named data sets, each with a line that says what it is.

    Example:
        >>> import attsvm
        >>> list(attsvm.datasets.names())[:3]
        ['digits', 'unit_sphere', 'single_global']
        >>> attsvm.datasets.names()["plane"]
        'Two sequences in the plane: weights against factors (tfsvm-1)'
    """
    return {**_GENERATED, **TITLES}


def load(spec: str | Path, **options: Any) -> Dataset:
    """The data set at a path or of a name.

    Args:
        spec: a file (``.npz``, ``.safetensors``; ``.csv``, ``.tsv``, ``.jsonl``, these also ``.gz``
            or ``.xz``; ``.parquet``), a folder with a folder of texts for each class (or with
            ``train``, which holds these) or of slides (see :func:`attsvm.datasets.read_bags`), or
            one of :func:`names`, with its arguments after a colon. A file in the way of a name is
            meant when the name is written ``./name``.
        **options: ``text``, ``label`` (columns) and all else that
            :func:`attsvm.datasets.readers.read_texts` takes, ``model`` (a Hugging Face model whose
            input embeddings are the word vectors), ``encoder`` (one whose hidden states are), and
            what :func:`attsvm.datasets.text`, :func:`attsvm.datasets.huggingface_text` and
            :func:`attsvm.datasets.encoder_text` take, for texts; ``patch`` and ``stride`` for
            ``digits``. ``classes``, the names of the classes of a fitted model, lets labels be
            missing. None means the default.

    Raises:
        InputError: neither a file nor a name, arguments of a name that make no sense, an option of
            another kind of data.

    Example:
        >>> import attsvm
        >>> dataset = attsvm.datasets.load("digits:4-9", patch=4)
        >>> dataset.title, len(dataset)
        ('Handwritten digits, 4 against 9', 361)
        >>> dataset.encode(train=range(300)).bags.rows.shape
        (1444, 64)
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    dataset = replace(_load(spec, chosen), options=chosen)
    _log.info("%s: %d rows, classes %s", spec, len(dataset), ", ".join(dataset.class_names))
    return dataset


def _load(spec: str | Path, chosen: dict[str, Any]) -> Dataset:
    """See :func:`load`."""
    name, arguments = _parse(spec)
    if isinstance(spec, str) and name in names():
        options = {key: value for key, value in chosen.items() if key != "classes"}
        return _named(name, arguments, options)  # named data have labels
    path, kind = Path(spec), kind_of_data(spec)
    if kind == "text":
        return _texts(path, chosen)
    if kind == "slide":
        _refuse(chosen, "slides")
        return slides(path, **chosen)
    if kind == "array":
        _refuse(chosen, "a file of arrays")
        return array(path, **chosen)
    if os.path.exists(path):  # noqa: PTH110 - False for a name that cannot be one
        kinds = ", ".join((*SUFFIXES, *TABLE_SUFFIXES))
        raise InputError(
            f"{path} is not a format that attsvm reads; give a {kinds} file, or a folder with"
            " a folder of texts for each class"
        )
    meant = did_you_mean(name, [*names(), *PUBLISHED]) or file_meant(path)
    raise InputError(
        f"{spec} is neither a file nor a named data set; the names are {', '.join(names())}"
        f", and {', '.join(PUBLISHED)} for the papers' toys{meant}"
    )


def kind_of_data(spec: str | Path) -> Kind | None:
    """The kind of the tokens at a path or of a name; None where :func:`load` refuses it.

    Example:
        >>> from attsvm.datasets.catalogue import kind_of_data
        >>> kind_of_data("digits:4-9"), kind_of_data("reviews.csv"), kind_of_data("X.npz")
        ('image', 'text', 'array')
    """
    name, _ = _parse(spec)
    if isinstance(spec, str) and name in names():
        return "image" if name == "digits" else "array"
    path = Path(spec)
    suffix, compression = kind_of(path)
    if holds_bags(path):
        return "slide"
    if is_folder(path) or suffix in TABLE_SUFFIXES:
        return "text"
    return "array" if suffix in SUFFIXES and not compression else None


def instance(spec: str | Path) -> tuple[AttentionData, dict[str, FloatArray]] | None:
    """Data of a named instance (``unit_sphere``, the toys) with its head ``v`` or its ``scores``;
    None for everything else.

    Raises:
        InputError: arguments of the name that make no sense.

    Example:
        >>> import attsvm
        >>> data, known = attsvm.datasets.instance("plane")
        >>> data, sorted(known)
        (AttentionData(2 sequences of 3 tokens, d_x=2, d_z=2, 2 of 2 labels +1), ['scores', 'v'])
    """
    name, arguments = _parse(spec)
    if name not in names() or name == "digits":
        return None
    data, head, scores, _ = _generated(name, arguments)
    known = {"v": head, "scores": scores}
    return data, {key: value for key, value in known.items() if value is not None}


def _parse(spec: str | Path) -> tuple[str, str]:
    """Name and arguments; the name of an experiment whose data is a toy stands for the toy."""
    name, _, arguments = str(spec).partition(":")
    return PUBLISHED.get(name, name), arguments


def _texts(path: Path, options: dict[str, Any]) -> Dataset:
    if "encoder" in options and "model" in options:
        raise InputError(
            "option encoder and option model are two ways to make words vectors: hidden states in"
            " the text, or input embeddings; choose one"
        )
    if "encoder" in options:
        _refuse(options, "an encoder")
        from attsvm.datasets.encoders import encoder_text

        return encoder_text(path, **options)
    if "model" in options:
        _refuse(options, "vectors of a model")
        from attsvm.datasets.huggingface import huggingface_text

        return huggingface_text(path, **options)
    _refuse(options, "text")
    from attsvm.datasets.documents import text

    return text(path, **options)


def _named(name: str, arguments: str, options: dict[str, Any]) -> Dataset:
    _refuse(options, name)
    if name == "digits":
        from attsvm.datasets.images import digits

        pair = _integers(arguments or "3-8", "-", "digits:4-9", 2)
        return digits(*pair, **options)
    data, _, _, title = _generated(name, arguments)
    source = f"attsvm.datasets.{'unit_sphere' if name == 'unit_sphere' else 'toy'}"
    full = f"{name}:{arguments}" if arguments else name
    return from_data(data, full, title, {"source": source, "rows": data.n})


def _generated(
    name: str, arguments: str
) -> tuple[AttentionData, FloatArray | None, FloatArray | None, str]:
    """Data, head if it is fixed, and title of a random instance or a toy."""
    if name == "unit_sphere":
        from attsvm.datasets.drawn import unit_sphere

        sizes = _integers(arguments or "6,8,10,0", ",", "unit_sphere:6,8,10,0", 4)
        return (
            *unit_sphere(*sizes),
            None,
            "Random sequences, n={}, T={}, d={}, seed {}".format(*sizes),
        )
    if arguments:
        raise InputError(
            f"{name}:{arguments} has arguments, and {name} takes none; leave out the colon and what"
            " follows"
        )
    problem = toy(name)
    return problem.data, problem.head, problem.scores, problem.title


def _integers(arguments: str, separator: str, example: str, count: int) -> list[int]:
    """So many whole numbers, of at most 19 digits: 64 bits."""
    numbers = arguments.split(separator)
    if len(numbers) != count or not all(
        number.strip().isdecimal() and len(number) <= 19 for number in numbers
    ):
        raise InputError(
            f"{arguments!r} cannot be read in a data set's name; write it like {example}"
        )
    return [int(number) for number in numbers]


def _refuse(options: dict[str, Any], what: str) -> None:
    """Refuse options that do not go with this kind of data."""
    for name in options:
        if name not in _TAKERS.get(what, ()):
            takers = [kind for kind, names in _TAKERS.items() if name in names]
            known = list(dict.fromkeys(_PLURALS.get(kind, kind) for kind in takers))
            if "texts" in known or name in ("encoder", "model"):  # by whatever makes them vectors
                known = ["texts", *(kind for kind in known if not kind.startswith("texts"))]
            use = f"it is for {' and '.join(known)}" if known else "no data takes it"
            raise InputError(f"option {name} does not go with {what}; {use}")
