"""Arrays of NumPy are known without a question to each library; all others as before."""

import array_api_compat
import numpy as np
import pytest
import torch

from attsvm import Lp
from attsvm.geometry import array_api
from attsvm.geometry.array_api import floating, namespace


@pytest.mark.parametrize("array", [np.ones((2, 3)), np.float64(1.0), np.float32(1.0)])
def test_arrays_of_numpy_are_known_at_once(array, monkeypatch):
    expected = array_api_compat.array_namespace(np.empty(0))
    namespace(array)
    monkeypatch.setattr(array_api, "array_namespace", None)
    assert namespace(array, np.empty(0)) is expected


def test_other_libraries_are_asked():
    assert namespace(torch.ones(1)) is array_api_compat.array_namespace(torch.ones(1))
    with pytest.raises(TypeError):
        namespace(np.ones(1), torch.ones(1))
    with pytest.raises(TypeError):
        namespace(1.0)


@pytest.mark.parametrize("kind", [np.int64, np.bool_, np.float32, np.float64])
def test_integers_become_floats_and_floats_stay(kind):
    W = np.ones((2, 2), dtype=kind)
    kept = np.issubdtype(kind, np.floating)
    assert (floating(W) is W) == kept
    assert floating(W).dtype == (kind if kept else np.float64)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.5, np.inf])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_one_matrix_and_the_same_among_others_have_the_same_length_and_direction(p, kind):
    """A vector's largest entry is a number, that of several an array: two ways through the code,
    whose powers round differently in the last bits.
    """
    rng, norm = np.random.default_rng(3), Lp(p)
    several = rng.standard_normal((3, 4, 5)).astype(kind)
    several[1] = 0.0
    for k, W in enumerate(several):
        rounding = 16 * np.finfo(kind).eps  # a few powers and a sum of twenty of them
        np.testing.assert_allclose(norm.value(W), norm.value(several)[k], rtol=rounding)
        np.testing.assert_allclose(norm.steepest(W), norm.steepest(several)[k], rtol=rounding)
        assert norm.steepest(W).dtype == kind
