"""Data that several tests of training share, and the path of their references."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from attsvm.datasets.attention_data import AttentionData


@pytest.fixture
def ragged_data() -> tuple[AttentionData, np.ndarray]:
    """Twelve sequences of one to seven tokens; tokens and queries of different dimensions."""
    rng = np.random.default_rng(11)
    lengths = [1, 7, 3, 4, 2, 6, 7, 5, 3, 2, 4, 6]
    bags = [rng.standard_normal((length, 5)) for length in lengths]
    return AttentionData.from_bags(
        bags, np.sign(rng.standard_normal(12)), rng.standard_normal((12, 4))
    ), rng.standard_normal(5)
