"""Products of rows raise no warning that has nothing to do with them; sums over bags."""

import numpy as np
import pytest

from attsvm.sklearn import segments
from attsvm.sklearn.layers import PooledLayer, WitnessLayer


class Leftovers(np.ndarray):
    """Rows whose product reports an invalid value, as that of OpenBLAS 0.3.31 does for
    single-precision rows of five numbers, where no number stood in the processor's registers.
    """

    def __matmul__(self, factor):
        np.subtract(np.inf, np.inf)
        return np.asarray(self) @ np.asarray(factor)


def witness_scores(rows, weights, offsets):
    layer = WitnessLayer(weights.T, np.zeros(1, np.float32), null=True, hard=False)
    return layer.alone(rows)


def pooled_scores(rows, weights, offsets):
    values = weights[None]
    return PooledLayer(values, values, np.zeros(1, np.float32)).alone(rows)


@pytest.mark.parametrize(
    "multiply",
    [
        lambda rows, weights, offsets: segments.columns(rows, weights),
        lambda rows, weights, offsets: segments.products(rows, weights.T, offsets)[:, None],
        witness_scores,
        pooled_scores,
    ],
    ids=["columns", "products", "witnesses", "attention"],
)
def test_what_stood_in_the_registers_is_no_invalid_value(multiply):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(20, 5)).astype(np.float32)
    weights = generator.normal(size=(5, 1)).astype(np.float32)
    with pytest.raises(FloatingPointError), np.errstate(all="raise"):
        rows.view(Leftovers) @ weights
    with np.errstate(all="raise"):
        product = multiply(rows.view(Leftovers), weights, np.array([0, 20]))
    exact = rows.astype(np.float64) @ weights.astype(np.float64)
    np.testing.assert_allclose(product, exact, rtol=1e-5, atol=1e-5)  # single precision


@pytest.mark.parametrize("offsets", [[0, 3, 6, 9, 12], [0, 1, 6, 8, 12]], ids=["equal", "unequal"])
@pytest.mark.parametrize("shape", [(12,), (12, 2), (12, 2, 3)])
def test_each_bag_has_the_sum_and_the_largest_of_its_own_rows(offsets, shape):
    values = np.random.default_rng(0).normal(size=shape)
    bags = np.split(values, offsets[1:-1])
    np.testing.assert_allclose(
        segments.sums(values, np.array(offsets)), [bag.sum(axis=0) for bag in bags], atol=1e-14
    )  # rounding
    np.testing.assert_array_equal(
        segments.largest(values, np.array(offsets)), [bag.max(axis=0) for bag in bags]
    )
