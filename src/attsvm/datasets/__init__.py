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
    "Toy": "toys",
    "array": "arrays",
    "assumption_test": "bag_generators",
    "digits": "images",
    "encoder_text": "encoders",
    "gauss": "drawn",
    "huggingface_text": "huggingface",
    "instance": "catalogue",
    "load": "catalogue",
    "mlp_instance": "drawn",
    "names": "catalogue",
    "orth": "drawn",
    "orthonormal": "drawn",
    "planted_witnesses": "bag_generators",
    "read_bags": "bag_files",
    "text": "documents",
    "toy": "toys",
    "unit_sphere": "drawn",
}

__all__ = [
    "Dataset",
    "Encoded",
    "Toy",
    "array",
    "assumption_test",
    "digits",
    "encoder_text",
    "gauss",
    "huggingface_text",
    "instance",
    "load",
    "mlp_instance",
    "names",
    "orth",
    "orthonormal",
    "planted_witnesses",
    "read_bags",
    "text",
    "toy",
    "unit_sphere",
]

if TYPE_CHECKING:
    from attsvm.datasets.arrays import array
    from attsvm.datasets.bag_files import read_bags
    from attsvm.datasets.bag_generators import assumption_test, planted_witnesses
    from attsvm.datasets.catalogue import instance, load, names
    from attsvm.datasets.documents import text
    from attsvm.datasets.drawn import gauss, mlp_instance, orth, orthonormal, unit_sphere
    from attsvm.datasets.encoders import encoder_text
    from attsvm.datasets.huggingface import huggingface_text
    from attsvm.datasets.images import digits
    from attsvm.datasets.source import Dataset, Encoded
    from attsvm.datasets.toys import Toy, toy


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"attsvm.datasets.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'attsvm.datasets' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
