"""Where sequences come from: random instances, the papers' toy points, images, text and files.

Every source is a :class:`Dataset`: labels and provenance first, and vectors only when
:meth:`Dataset.encode` is told which rows may be learned from. :func:`load` finds one by its path or
its name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "Dataset": "source",
    "Encoded": "source",
    "ImageSet": "image_sets",
    "Reviews": "reviews",
    "TokenIds": "wordpiece",
    "Toy": "toys",
    "WordPiece": "wordpiece",
    "array": "arrays",
    "assumption_test": "bag_generators",
    "digits": "images",
    "encoder_text": "encoders",
    "gauss": "drawn",
    "huggingface_text": "huggingface",
    "image_bags": "bag_generators",
    "image_digest": "image_sets",
    "image_set": "image_sets",
    "imdb": "reviews",
    "instance": "catalogue",
    "load": "catalogue",
    "mixed_reviews": "bag_generators",
    "mlp_instance": "drawn",
    "names": "catalogue",
    "orth": "drawn",
    "orthonormal": "drawn",
    "planted_witnesses": "bag_generators",
    "sentences": "bag_generators",
    "text": "documents",
    "toy": "toys",
    "unit_sphere": "drawn",
}

__all__ = [
    "Dataset",
    "Encoded",
    "ImageSet",
    "Reviews",
    "TokenIds",
    "Toy",
    "WordPiece",
    "array",
    "assumption_test",
    "digits",
    "encoder_text",
    "gauss",
    "huggingface_text",
    "image_bags",
    "image_digest",
    "image_set",
    "imdb",
    "instance",
    "load",
    "mixed_reviews",
    "mlp_instance",
    "names",
    "next_token",
    "orth",
    "orthonormal",
    "planted_witnesses",
    "sentences",
    "text",
    "toy",
    "unit_sphere",
]

if TYPE_CHECKING:
    from attsvm.datasets import next_token
    from attsvm.datasets.arrays import array
    from attsvm.datasets.bag_generators import (
        assumption_test,
        image_bags,
        mixed_reviews,
        planted_witnesses,
        sentences,
    )
    from attsvm.datasets.catalogue import instance, load, names
    from attsvm.datasets.documents import text
    from attsvm.datasets.drawn import gauss, mlp_instance, orth, orthonormal, unit_sphere
    from attsvm.datasets.encoders import encoder_text
    from attsvm.datasets.huggingface import huggingface_text
    from attsvm.datasets.image_sets import ImageSet, image_digest, image_set
    from attsvm.datasets.images import digits
    from attsvm.datasets.reviews import Reviews, imdb
    from attsvm.datasets.source import Dataset, Encoded
    from attsvm.datasets.toys import Toy, toy
    from attsvm.datasets.wordpiece import TokenIds, WordPiece


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"attsvm.datasets.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if name == "next_token":
        return importlib.import_module("attsvm.datasets.next_token")
    raise AttributeError(f"module 'attsvm.datasets' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
