"""Sequences of two classes as one padded instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.base.errors import InputError
from attsvm.datasets import Dataset, Encoded
from attsvm.datasets.attention_data import AttentionData
from attsvm.datasets.source import View


@dataclass(frozen=True, eq=False)
class Padded:
    """An encoded data set of two classes.

    Attributes:
        data: one instance over all rows.
        views, notes: see :class:`attsvm.datasets.Encoded`.
    """

    data: AttentionData
    views: Sequence[View] | None
    notes: list[str]


def padded(dataset: Dataset, encoded: Encoded) -> Padded:
    """The sequences of two classes.

    Raises:
        InputError: there are more classes.
    """
    if len(dataset.class_names) != 2:
        names = ", ".join(dataset.class_names[:5])
        raise InputError(
            f"{dataset.name} has {len(dataset.class_names)} classes ({names}); keep the rows of"
            " two classes"
        )
    data = encoded.data(np.where(dataset.labels == 1, 1.0, -1.0))
    return Padded(data, encoded.views, encoded.notes)
